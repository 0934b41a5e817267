"""What each chat engine of LlamaIndex sends when it talks through the memory, recorded over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.chat_engine.types import BaseChatEngine, ChatMode

from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.text.entries import message_tokens
from tests.conversation import (
    BEFORE_QUESTION,
    assistant,
    calling,
    record,
    result,
    sent_text,
    user,
)
from tests.memories import OpenMemory
from tests.openai_server import Message, OpenAIServer, say, serve
from tests.scripted_models import client_without_connections

QUESTIONS = ["My name is Logan.", "I live in Oslo.", "What is my name?"]
FACT = "Logan likes rain."
NO_RECORD = "</memory>\n\n"


def model(messages: list[Message], tools: list[str]) -> Message:
    """Rewrites no question, and answers each by its words."""
    text = messages[-1]["content"]
    for asked in reversed(QUESTIONS):
        if (
            f"Follow Up Input: {asked}" in text
            or f"<Follow Up Message>\n{asked}" in text
        ):
            return say(asked)
        if asked in text:
            return say(f"I heard: {asked}")
    return say("What?")


async def chat(engine: BaseChatEngine, question: str) -> str:
    return str(await asyncio.to_thread(engine.chat, question))


async def stream_chat(engine: BaseChatEngine, question: str) -> str:
    return await asyncio.to_thread(
        lambda: "".join(engine.stream_chat(question).response_gen)
    )


async def achat(engine: BaseChatEngine, question: str) -> str:
    return str(await engine.achat(question))


async def astream_chat(engine: BaseChatEngine, question: str) -> str:
    answer = await engine.astream_chat(question)
    return "".join([token async for token in answer.async_response_gen()])


def complain(body: Message) -> str | None:
    """As the templates of Qwen 3.5: user and assistant take turns behind one system message."""
    roles = [message["role"] for message in body["messages"]]
    turns = roles[1:] if roles[0] == "system" else roles
    expected = ["user", "assistant"] * len(turns)
    if turns == expected[: len(turns)]:
        return None
    return "System message must be at the beginning."


@pytest.fixture
async def memory(open_memory: OpenMemory) -> AsyncIterator[CondensedMemory]:
    """One that knows a fact, so that it has something to show in the first turn."""
    opened = open_memory(extract_facts=False)
    await opened.facts.aadd(FACT)
    yield opened
    await opened.aclose()


def engine_of(
    mode: ChatMode, server: OpenAIServer, memory: CondensedMemory, **options: Any
) -> BaseChatEngine:
    """The engine as an index makes it."""
    meanings, llm = MockEmbedding(embed_dim=4), client_without_connections(server)
    index = VectorStoreIndex.from_documents(
        [Document(text="Oslo has rain.")], embed_model=meanings
    )
    return index.as_chat_engine(
        chat_mode=mode, llm=llm, memory=memory, embed_model=meanings, **options
    )


def texts(request: list[Message]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request]


def said_before(turn: int) -> list[tuple[str, str]]:
    """What the record holds before a turn, counted from 0: each message once, in its order."""
    return [
        one
        for asked in QUESTIONS[:turn]
        for one in (("user", asked), ("assistant", f"I heard: {asked}"))
    ]


def shown(text: str) -> list[tuple[str, str]]:
    """The messages in a text with a memory, in which the fact is once."""
    assert text.count("<memory>") == text.count(FACT) == 1
    return record(text)


def check_simple(turn: int, requests: list[list[Message]]) -> None:
    """One user message, with all in front of the question."""
    ((role, text),) = texts(requests[0])
    assert (role, len(requests)) == ("user", 1)
    assert shown(text) == said_before(turn)
    assert text.endswith((BEFORE_QUESTION if turn else NO_RECORD) + QUESTIONS[turn])


def check_context(turn: int, requests: list[list[Message]]) -> None:
    """The engine's system message, the memory as a user's, a short answer, and the question alone."""
    (context, memory, answer, question) = texts(requests[-1])
    ends = (context[0], memory[0], question)
    assert ends == ("system", "user", ("user", QUESTIONS[turn]))
    assert answer == ("assistant", "I have read the conversation so far.")
    assert "Oslo has rain." in context[1]
    assert memory[1].startswith("<memory>\n")
    assert shown(memory[1]) == said_before(turn)


def check_condensing(turn: int, request: list[Message]) -> None:
    """One user message, in which the memory stands for the history."""
    ((role, text),) = texts(request)
    assert (role, text.count(QUESTIONS[turn])) == ("user", 1)
    assert "user: <memory>\n" in text
    assert shown(text) == said_before(turn)


def check_condense_plus_context(turn: int, requests: list[list[Message]]) -> None:
    """The question is condensed first, and then the requests are those of the context engine."""
    assert len(requests) == 2
    check_condensing(turn, requests[0])
    check_context(turn, requests)


def check_condense_question(turn: int, requests: list[list[Message]]) -> None:
    """The query engine gets the condensed question, and nothing else of the conversation."""
    assert len(requests) == 2
    check_condensing(turn, requests[0])
    (system, query) = texts(requests[1])
    assert (system[0], query[0]) == ("system", "user")
    assert "<memory>" not in system[1] + query[1]
    assert QUESTIONS[turn] in query[1]


CHECKS: dict[ChatMode, Callable[[int, list[list[Message]]], None]] = {
    ChatMode.SIMPLE: check_simple,
    ChatMode.CONTEXT: check_context,
    ChatMode.CONDENSE_PLUS_CONTEXT: check_condense_plus_context,
    ChatMode.BEST: check_condense_plus_context,
    ChatMode.CONDENSE_QUESTION: check_condense_question,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ask", [chat, achat, stream_chat, astream_chat])
@pytest.mark.parametrize("mode", CHECKS)
async def test_an_engine_sends_all_that_was_said_once_as_each_model_takes_it(
    memory: CondensedMemory, mode: ChatMode, ask: Callable[[BaseChatEngine, str], Any]
) -> None:
    with serve(model) as server:
        server.complain = complain
        options = (
            {"streaming": ask in (stream_chat, astream_chat)}
            if mode == ChatMode.CONDENSE_QUESTION
            else {}
        )
        engine = engine_of(mode, server, memory, **options)
        for turn, question in enumerate(QUESTIONS):
            before = len(server.requests)
            assert await ask(engine, question) == f"I heard: {question}"
            CHECKS[mode](turn, server.requests[before:])
        assert server.refusals == []
    kept = [
        (message.role.value, message.content) for message in await memory.aget_all()
    ]
    assert kept == said_before(len(QUESTIONS))


# ---- the calls of the memory by which engines and agents ask ---------------------------------------------


async def test_a_question_to_come_moves_a_turn_that_is_over_into_the_record(
    memory: CondensedMemory,
) -> None:
    """As that question will do when it is put: the record is the same before and after."""
    await memory.aput_messages([user("One?"), assistant("One.")])
    (before, answer) = await memory.aget(input="Two?")
    await memory.aput(user("Two?"))
    (after,) = await memory.aget(input="Two?")
    roles = [message.role.value for message in (before, answer, after)]
    assert roles == ["user", "assistant", "user"]
    assert (
        sent_text([after])
        == (before.content or "") + BEFORE_QUESTION.removeprefix(NO_RECORD) + "Two?"
    )


async def test_a_question_that_is_asked_again_after_its_answer_has_its_room(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(
        token_limit=600, condensed_token_limit=550, facts_token_limit=0
    )
    question = "word " * 400
    await memory.aput_messages([user(question), assistant("Fine.")])
    prompt = await memory.aget(input=question)
    assert [message.role.value for message in prompt] == ["user", "assistant"]
    counts = [
        message_tokens(message, memory.tokenizer_fn)
        for message in [*prompt, user(question)]
    ]
    assert sum(counts) <= 600


async def test_a_turn_that_goes_on_stays_whatever_is_asked(
    memory: CondensedMemory,
) -> None:
    """An agent asks again for each tool call, of a question with an image by its text alone."""
    await memory.aput_messages(
        [user("Sum!"), calling(("c1", "add", {"a": 1})), result("c1", "4711")]
    )
    for question in ("Sum!", "Something else"):
        roles = [one.role.value for one in await memory.aget(input=question)]
        assert roles == ["user", "assistant", "tool"]


async def test_a_question_that_was_flushed_while_it_is_answered_is_not_to_come(
    memory: CondensedMemory,
) -> None:
    """Or the model would be sent calls and results without a user's message."""
    await memory.aput(user("Sum!"))
    await memory.aflush()
    (prompt,) = await memory.aget(input="Sum!")
    message = (prompt.role.value, shown(prompt.content or ""))
    assert message == ("user", [("user", "Sum!")])


async def test_closing_leaves_a_question_without_an_answer_where_it_is(
    memory: CondensedMemory, open_memory: OpenMemory
) -> None:
    await memory.aput_messages([user("One?"), assistant("One."), user("Two?")])
    await memory.aclose()
    (prompt,) = await open_memory().aget(input="Two?")
    assert shown(prompt.content or "") == [("user", "One?"), ("assistant", "One.")]
    assert (prompt.content or "").endswith("Two?")


async def test_the_short_answer_stands_within_the_limit_and_only_behind_a_memory(
    open_memory: OpenMemory,
) -> None:
    limits = {"token_limit": 300, "condensed_token_limit": 300, "facts_token_limit": 0}
    memory = open_memory(**limits)
    assert await memory.aget(input="One?") == []
    for i in range(30):
        await memory.aput_messages([user(f"Number {i}?"), assistant("word " * i)])
        prompt = await memory.aget(input="Two?")
        tokens = sum(
            message_tokens(message, memory.tokenizer_fn)
            for message in [*prompt, user("Two?")]
        )
        assert [message.role.value for message in prompt] == ["user", "assistant"]
        assert tokens <= 300


async def test_a_question_to_come_has_its_room_within_the_limit(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(
        token_limit=300, condensed_token_limit=250, facts_token_limit=0
    )
    await memory.aput_messages([user("word " * 150), assistant("Fine.")])
    assert await memory.aget(input="Two?")
    assert await memory.aget(input="word " * 290) == []


async def test_a_question_to_come_has_its_room_beside_a_turn_without_an_answer(
    open_memory: OpenMemory,
) -> None:
    """As after a stream that was interrupted: the engine sends both questions."""
    memory = open_memory(
        token_limit=600, condensed_token_limit=550, facts_token_limit=0
    )
    await memory.aput_messages([user("word " * 400), assistant("Fine.")])
    await memory.aput(user("One?"))
    question = user("word " * 500)
    prompt = await memory.aget(input=question)
    counts = [
        message_tokens(message, memory.tokenizer_fn) for message in [*prompt, question]
    ]
    assert sum(counts) <= 600
