"""Facts are learned with small models, and with servers that do not do what they are asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core.llms import LLMMetadata
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext import Fact, TokenCounter
from llama_index_memory_ext.errors import FactReplyError
from tests.conversation import assistant, user
from tests.learning.learning import Learns, ask_model, contents, learner, talk
from tests.learning.test_prompt import ARGUMENTS, PROMPT
from tests.openai_server import Message, OpenAIServer, call, fail, say
from tests.scripted_models import StartClient

COUNTER = TokenCounter()


class Small(OpenAI):
    """A model whose name LlamaIndex does not know, with a window of 8,192 tokens."""

    window: int = 8_192

    @property
    def metadata(self) -> LLMMetadata:
        known: dict[str, Any] = {"context_window": self.window} if self.window else {}
        return LLMMetadata(
            **known, is_chat_model=True, is_function_calling_model=True, model_name="s"
        )


class Unknown(Small):
    """One whose window LlamaIndex does not know either."""

    window: int = 0


def in_text(messages: list[Message], tools: list[str]) -> Message:
    """What the learner reports, as JSON in words, if it is asked so."""
    if "still true" in messages[-1]["content"]:
        return say("Yes.")
    reported = learner(messages, ["report_facts"])["tool_calls"][0]["function"][
        "arguments"
    ]
    return say("I see that you like something!" if tools else reported)


def tokens_of(body: dict[str, Any]) -> int:
    """The tokens of a request by another tokenizer: with an eighth more than ours."""
    sent = [
        *(str(message["content"]) for message in body["messages"]),
        json.dumps(body.get("tools", "")),
    ]
    return int(sum(map(COUNTER.count, sent)) * 1.13) + (body.get("max_tokens") or 0)


def refuse_longer_than(server: OpenAIServer, window: int) -> None:
    too_long = f"This model's maximum context length is {window} tokens. Please reduce the length of the messages."
    server.complain = lambda body: too_long if tokens_of(body) > window else None


async def test_batches_fit_into_the_window_of_the_model(learns: Learns) -> None:
    """With the known facts, the instructions and the answer: nothing is refused, and nothing is left out."""
    memory, server = learns(client=Small)
    refuse_longer_than(server, 8_192)
    facts = [
        Fact(
            content=f"Has visited the {COUNTER.clip(f'town{i} ' * 40, 40)} of the north"
        )
        for i in range(150)
    ]
    await memory.sql_store.facts.write(memory.facts.namespace, facts)
    turns = [
        (user(f"I like drink{i}. {'And so on. ' * 150}"), assistant("Fine. " * 100))
        for i in range(40)
    ]
    await memory.sql_store.log.append(
        "chat", [message for turn in turns for message in turn], len
    )
    await memory.aflush()
    assert server.refusals == []
    assert {f"Likes drink{i}" for i in range(40)} <= set(await contents(memory))
    assert 6 < len(server.requests) < 20
    assert all(body["max_tokens"] <= 4_000 for body in server.bodies)


@pytest.mark.parametrize("words", [9_000, 60_000])
async def test_a_turn_that_is_too_long_is_clipped_further_until_it_is_read(
    learns: Learns, words: int
) -> None:
    """Where the window is not known."""
    memory, server = learns(client=Unknown)
    refuse_longer_than(server, 4_096)
    await memory.sql_store.log.append(
        "chat", [user(f"I like tea. {'so ' * words}"), assistant("Fine.")], len
    )
    # Each failure ends a backfill, and the next one reads a shorter text.
    while (await memory.abackfill()).failed:
        pass
    assert await contents(memory) == ["Likes tea"]
    assert (await memory.astats()).set_aside == ()
    assert 0 < len(server.refusals) < 3


async def test_what_takes_too_long_is_read_in_smaller_parts_and_not_set_aside(
    learns: Learns,
) -> None:
    """And the next parts begin as small."""

    def model(messages: list[Message], tools: list[str]) -> Message:
        slow = COUNTER.count(str(messages[-1]["content"])) > 2_000
        return (
            fail(504, "The upstream server is timing out.")
            if slow
            else learner(messages, tools)
        )

    memory, server = learns(model, client=Small)
    turns = [
        (user(f"I like drink{i}. {'And so on. ' * 100}"), assistant("Fine."))
        for i in range(60)
    ]
    await memory.sql_store.log.append(
        "chat", [message for turn in turns for message in turn], len
    )
    done = await memory.abackfill()
    assert (done.new, done.set_aside, done.failed) == (60, 0, {})
    assert len(server.requests) <= 30
    memory = learns(lambda *_: fail(504, "Late."), "hopeless", Small, user_id="bob")[0]
    await memory.sql_store.log.append("hopeless", talk("tea"), len)
    assert (await memory.abackfill()).failed == {"hopeless": "InternalServerError"}
    assert (await memory.astats()).set_aside == ()


LOOPS = {
    "in a text": '{"new_facts": [{"label": "n1", "content": "Likes tea and '
    + "is a software engineer and " * 900,
    "of facts": '{"new_facts": ['
    + '{"label": "n1", "content": "Is an engineer", "category": "knowledge", "confidence": 0.9, "quote": "I am"}, '
    * 120,
    "of numbered facts": '{"new_facts": ['
    + "".join(
        f'{{"content": "Has {i} cats", "confidence": 0.9, "quote": "I have {i} cats"}}, '
        for i in range(150)
    ),
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
@pytest.mark.parametrize("is_call", [True, False])
async def test_of_a_reply_that_loops_nothing_is_stored_that_nobody_said(
    loop: str, is_call: bool, learns: Learns
) -> None:
    def model(messages: list[Message], tools: list[str]) -> Message:
        message = (
            call(("call_1", "report_facts", {})) if is_call and tools else say(loop)
        )
        if is_call and tools:
            message["tool_calls"][0]["function"]["arguments"] = loop
        return {**message, "finish_reason": "length"}

    memory = learns(model, client=Small)[0]
    await memory.aput_messages([user("I like tea."), assistant("Fine.")])
    await memory.aflush()
    assert await contents(memory) == []


async def test_a_server_that_leaves_the_tool_out_is_asked_in_text_from_then_on(
    learns: Learns,
) -> None:
    """Each answer is paid for, and so is the question whether the known fact still holds: only this one names it."""
    memory, server = learns(in_text, client=Small)
    for word in ("tea", "rain"):
        await memory.aput_messages(talk(word))
        await memory.aflush()
    assert await contents(memory) == ["I like rain", "I like tea"]
    assert ["tools" in body for body in server.bodies] == [True, False, False, False]
    assert (await memory.astats()).usage["facts"].calls == 4
    naming = ["I like tea" in str(body["messages"]) for body in server.bodies]
    assert naming == [True, True, False, True]


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        (400, "registry.ollama.ai/library/tiny does not support tools"),
        (
            400,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        ),
        (500, "tools param requires --jinja flag"),
        (404, "No endpoints found that support tool use."),
        (400, "Unrecognized request arguments supplied: tools, tool_choice"),
    ],
)
async def test_a_server_that_refuses_tools_is_asked_in_text_from_then_on(
    start_client: StartClient, status: int, complaint: str
) -> None:
    refused, read = fail(status, complaint), say(json.dumps(ARGUMENTS))
    llm, server = start_client(
        Small, lambda messages, tools: refused if tools else read
    )
    for _ in range(2):
        assert (await ask_model(llm, PROMPT))[0].ends == 2
    assert ["tools" in body for body in server.bodies] in (
        [True, False, False],
        [True, True, False, False],
    )


async def test_a_model_that_has_called_the_tool_before_is_not_asked_in_text(
    start_client: StartClient,
) -> None:
    """Its words are then a refusal, or a slip, for which it is asked once more."""
    answers = [
        call(("call_1", "report_facts", ARGUMENTS)),
        *[say("I cannot help with that.")] * 2,
    ]
    llm, server = start_client(Small, lambda messages, tools: answers.pop(0))
    await ask_model(llm, PROMPT)
    with pytest.raises(FactReplyError):
        await ask_model(llm, PROMPT)
    assert ["tools" in body for body in server.bodies] == [True, True, True]


async def test_no_words_where_a_call_was_asked_for_are_not_nothing(
    start_client: StartClient,
) -> None:
    llm, server = start_client(
        Small, lambda messages, tools: say("" if tools else json.dumps(ARGUMENTS))
    )
    assert (await ask_model(llm, PROMPT))[0].ends == 2
    assert len(server.requests) == 2
