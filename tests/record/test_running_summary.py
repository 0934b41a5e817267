"""What leaves the record is summed up by a model, beside the conversation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import Settings
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    MemoryStore,
    TokenCounter,
)
from llama_index_memory_ext.blocks import LogBlock
from llama_index_memory_ext.record.summary import summary_room
from tests.conversation import (
    assistant,
    calling,
    of_today,
    record,
    result,
    sent_text,
    user,
)
from tests.memories import OpenMemory, OpenPlainMemory
from tests.openai_server import Message, fail, say, serve
from tests.record.conftest import OpenBlock
from tests.scripted_models import StartModel, client_without_connections

COUNTER = TokenCounter()
SIX_KEEP_TWO: dict[str, Any] = {
    "max_messages": 6,
    "keep_messages": 2,
    "summarize": True,
}


def is_for_summary(messages: list[Message]) -> bool:
    return "running summary" in str(messages[0]["content"])


def count_up(messages: list[Message], tools: list[str]) -> Message:
    """Says what it was given: the summary before, and the messages, without results of tools."""
    if not is_for_summary(messages):
        return say("The answer.")
    text = messages[-1]["content"]
    before = (
        text.split("<summary_so_far>\n")[1]
        .split("\n</summary_so_far>")[0]
        .replace("(none)", "")
    )
    return say(
        f"{before}[{', '.join(said for role, said in record(text) if role != 'tool')}]"
    )


def turns(first: int, last: int) -> list[ChatMessage]:
    return [
        message
        for i in range(first, last + 1)
        for message in (user(f"question {i}"), assistant(f"answer {i}"))
    ]


async def shown(block: CondensedMemoryBlock) -> str:
    await block.await_jobs("chat")
    return await block.aget([], session_id="chat")


def summary_in(text: str) -> str:
    return text.partition("<conversation_summary>")[2].partition(
        "</conversation_summary>"
    )[0]


async def test_after_six_messages_two_are_kept_and_the_others_summed_up(
    open_block: OpenBlock, start_model: StartModel
) -> None:
    """The summary stands in front, and each one extends the one before."""
    llm, server = start_model(count_up)
    block = open_block(llm=llm, **SIX_KEEP_TWO)
    await block.aput(turns(1, 3), session_id="chat")
    assert summary_in(await shown(block)) == ""
    assert server.requests == []
    await block.aput(turns(4, 4), session_id="chat")
    text = await shown(block)
    first = "[question 1, answer 1, question 2, answer 2, question 3, answer 3]"
    assert await block.asummary("chat") == first
    assert await block.asummary("nobody") == ""
    assert text.startswith(f"<conversation_summary>{first}</conversation_summary>\n")
    assert [said for _, said in record(text)] == ["question 4", "answer 4"]
    await block.aput(turns(5, 7), session_id="chat")
    text = await shown(block)
    assert (
        summary_in(text)
        == f"{first}[question 4, answer 4, question 5, answer 5, question 6, answer 6]"
    )
    assert [said for _, said in record(text)] == ["question 7", "answer 7"]
    assert (await block.ameasure("chat")).summarised == 12
    assert len(server.requests) == 2
    assert server.refusals == []


def count_up_after(
    event: threading.Event,
) -> Callable[[list[Message], list[str]], Message]:
    """Return a model that answers as ``count_up`` when the event is set."""

    def count_up_late(messages: list[Message], tools: list[str]) -> Message:
        event.wait(30)
        return count_up(messages, tools)

    return count_up_late


BAD: dict[str, Callable[[], Message]] = {
    "nothing": lambda: say(""),
    "white space": lambda: say(" \n "),
    "a refusal": lambda: say("OK."),
    "a loop": lambda: say("They count. " * 100),
    "an exception": lambda: 1 / 0,  # type: ignore[dict-item,return-value]
}


@pytest.mark.parametrize("kind", BAD)
async def test_what_is_no_summary_never_replaces_a_good_one(
    open_block: OpenBlock,
    start_model: StartModel,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nothing is lost: the next one that succeeds has all that was said meanwhile."""
    monkeypatch.setattr(LogBlock, "retry_seconds", 1e-3)
    fails = False
    llm, _ = start_model(
        lambda messages, tools: BAD[kind]() if fails else count_up(messages, tools)
    )
    block = open_block(llm=llm, **SIX_KEEP_TWO)
    await block.aput(turns(1, 4), session_id="chat")
    good = summary_in(await shown(block))
    fails = True
    await block.aput(turns(5, 7), session_id="chat")
    for _ in range(2):
        text = await shown(block)
        assert summary_in(text) == good
        assert [said for _, said in record(text)][-1] == "answer 7"
        assert len(record(text)) <= 6
    fails = False
    await block.aput(turns(8, 8), session_id="chat")
    text = await shown(block)
    assert summary_in(text).startswith(good)
    assert all(f"question {i}, answer {i}" in summary_in(text) for i in range(1, 8))
    assert [said for _, said in record(text)] == ["question 8", "answer 8"]


async def test_the_summary_is_there_after_a_restart(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """Also where no model is there any more, or summing up has been turned off."""
    llm, server = start_model(count_up)
    memory = open_memory(llm=llm, extract_facts=False, **SIX_KEEP_TWO)
    await memory.aput_messages(turns(1, 5))
    await memory.condensed_block.await_jobs("chat")
    await memory.aclose()
    before = sent_text(await memory.aget())
    assert "question 3, answer 3]" in summary_in(before)
    for options in (SIX_KEEP_TWO, {"max_messages": 6}):
        again = open_memory(extract_facts=False, **options)
        assert sent_text(await again.aget()) == before
    assert len(server.requests) == 1


async def test_two_workers_have_one_result(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """Both may ask the model; each message is in the summary once."""
    both_asked = threading.Barrier(2)

    def at_once(messages: list[Message], tools: list[str]) -> Message:
        both_asked.wait(30)
        return count_up(messages, tools)

    llm, server = start_model(at_once)
    one, two = (
        open_memory(llm=llm, extract_facts=False, recall_token_limit=0, **SIX_KEEP_TWO)
        for _ in range(2)
    )
    await one.aput_messages(turns(1, 5))
    await two.aflush()
    await one.aflush()
    assert len(server.requests) == 2
    texts = [sent_text(await memory.aget()) for memory in (one, two)]
    assert texts[0] == texts[1]
    assert summary_in(texts[0])
    assert all(texts[0].count(f"question {i}") == 1 for i in range(1, 6))


@pytest.mark.parametrize("reply", ["They count questions and answers.", ""])
async def test_successive_records_share_their_front_between_two_cuts(
    open_block: OpenBlock,
    start_model: StartModel,
    reply: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt cache serves the front; also while no summary succeeds."""
    monkeypatch.setattr(LogBlock, "retry_seconds", 60.0)
    llm, server = start_model(lambda messages, tools: say(reply))
    block = open_block(llm=llm, token_limit=600, recall_token_limit=0, summarize=True)
    texts = [""]
    for i in range(60):
        await block.aput(turns(i, i), session_id="chat")
        text = await shown(block)
        assert COUNTER.count(f"<condensed_memory>\n{text}</condensed_memory>\n") <= 600
        texts.append(text)
    new_fronts = sum(not after.startswith(before) for before, after in pairwise(texts))
    assert 3 <= new_fronts <= 12
    assert "answer 59" in texts[-1]
    assert summary_in(texts[-1]) == reply
    assert server.requests


async def test_a_slow_summary_leaves_as_many_messages_as_have_room(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """For three turns; then the record is cut, and its beginning stays."""
    may_answer = threading.Event()
    llm, _ = start_model(count_up_after(may_answer))
    memory = open_memory(llm=llm, extract_facts=False, **SIX_KEEP_TWO)
    await memory.aput_messages(turns(1, 3))
    numbers = []
    for i in range(4, 9):
        await memory.aput_messages([*turns(i, i), user("Go on.")])
        text = sent_text(await memory.aget())
        assert summary_in(text) == ""
        numbers.append(len(record(text)))
    may_answer.set()
    assert numbers == [6, 5, 6, 2, 5]
    await memory.condensed_block.await_jobs("chat")
    assert "question 3, answer 3" in summary_in(sent_text(await memory.aget()))


async def test_a_long_history_is_summed_up_a_batch_at_a_time(
    open_block: OpenBlock, start_model: StartModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls and their results stay together, and one failure loses nothing of what is done."""
    monkeypatch.setattr(LogBlock, "retry_seconds", 1e-3)
    failing = {3}
    llm, server = start_model(
        lambda messages, tools: (
            say("") if len(server.requests) in failing else count_up(messages, tools)
        )
    )
    block = open_block(llm=llm, **SIX_KEEP_TWO)
    long = "word " * 400
    messages = [
        message
        for i in range(60)
        for message in (
            user(f"question {i}"),
            calling((f"c{i}", "read", {})),
            result(f"c{i}", long),
            assistant("ok"),
        )
    ]
    await block.aput(messages, session_id="chat")
    await shown(block)
    failing.clear()
    await block.aput(turns(100, 100), session_id="chat")
    text = await shown(block)
    assert all(summary_in(text).count(f"question {i},") == 1 for i in range(60))
    assert [said for _, said in record(text)] == ["question 100", "answer 100"]
    batches = [record(request[-1]["content"]) for request in server.requests]
    assert len(batches) >= 4
    assert all(batch[0][0] != "tool" for batch in batches)
    assert all(COUNTER.count(str(request)) < 60_000 for request in server.requests)


@pytest.mark.parametrize("words", [0, 60])
async def test_each_message_of_a_long_history_is_summed_up_once(
    open_block: OpenBlock, start_model: StartModel, words: int
) -> None:
    """A request ends with the last row that was read for it, or where it is full."""
    llm, server = start_model(lambda messages, tools: say("The user asks and asks."))
    block = open_block(llm=llm, **SIX_KEEP_TWO)
    messages = [
        ChatMessage("word " * words + str(message.content), role=message.role)
        for message in turns(1, 225)
    ]
    await block.aput(messages, session_id="chat")
    text = await shown(block)
    assert len(server.requests) > 1
    said = []
    for prompt in (*[request[-1]["content"] for request in server.requests], text):
        said += [content for _, content in record(prompt)]
    assert said == [message.content for message in messages]


async def test_it_is_kept_in_every_database(
    store: MemoryStore, start_model: StartModel
) -> None:
    """Together with what is recalled, for two memories of one session that take turns."""
    llm, server = start_model(count_up)
    options: dict[str, Any] = {
        "extract_facts": False,
        "facts_token_limit": 0,
        "recall_token_limit": 500,
    }
    memories = [
        CondensedMemory.from_defaults(
            "chat", chat_store=store, llm=llm, **options, **SIX_KEEP_TWO
        )
        for _ in range(2)
    ]
    for i in range(1, 11):
        await memories[i % 2].aput_messages(turns(i, i))
        await memories[i % 2].condensed_block.await_jobs("chat")
    for memory in memories:
        await memory.aflush()
        text = sent_text(await memory.aget(input="What was question 2?"))
        verbatim, _, earlier = text.partition("<earlier_messages")
        told = summary_in(text) + "".join(said for _, said in record(verbatim))
        assert all(
            told.count(f"question {i},") + told.count(f"question {i}answer") == 1
            for i in range(1, 11)
        )
        assert "question 2\n" in earlier
    assert server.refusals == []


async def test_what_changes_least_stands_first(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """The profile, instructions, summary, messages, what was recalled for the question, and the question."""
    llm, _ = start_model(count_up)
    options: dict[str, Any] = {
        "extract_facts": False,
        "include_system": True,
        "recall_token_limit": 300,
    }
    memory = open_memory(llm=llm, **options, **SIX_KEEP_TWO)
    await memory.facts.aadd("Counts questions")
    await memory.aput_messages(
        [
            ChatMessage(role="system", content="Be kind."),
            *turns(1, 5),
            user("Question 1 again?"),
        ]
    )
    await memory.condensed_block.await_jobs("chat")
    text = sent_text(await memory.aget())
    marks = [
        "<memory>\n<user_profile>\n<fact ",
        '</user_profile>\n<condensed_memory>\n<message role="system">Be kind.</message>\n<conversation_summary>',
        f'</conversation_summary>\n{of_today()}<message role="assistant">answer 5',
        "<earlier_messages note=",
        "</earlier_messages>\n</condensed_memory>\n</memory>\n\nQuestion 1 again?",
    ]
    places = [text.find(mark) for mark in marks]
    assert places == sorted(places)
    assert places[0] == 0
    assert "Be kind" not in summary_in(text)


async def test_a_reset_forgets_the_summary(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    llm, _ = start_model(count_up)
    for clear in (
        CondensedMemory.areset,
        CondensedMemory.aforget,
        lambda memory: memory.aset([]),
    ):
        memory = open_memory(llm=llm, extract_facts=False, **SIX_KEEP_TWO)
        await memory.aput_messages(turns(1, 5))
        await memory.aflush()
        assert summary_in(sent_text(await memory.aget()))
        await clear(memory)
        await memory.aput_messages(turns(6, 7))
        assert summary_in(sent_text(await memory.aget())) == ""


async def test_without_a_model_of_its_own_it_asks_that_of_the_settings(
    open_plain_memory: OpenPlainMemory,
    start_model: StartModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a plain Memory, too."""
    llm, _ = start_model(count_up)
    monkeypatch.setattr(Settings, "_llm", llm)
    block = CondensedMemoryBlock(**SIX_KEEP_TWO)
    memory = open_plain_memory(block)
    for message in [*turns(1, 5), user("question 6")]:
        await memory.aput(message)
    await block.await_jobs("chat")
    assert "question 2, answer 2" in summary_in(sent_text(await memory.aget()))


def test_synchronous_calls_wait_for_the_summary(database_uri: str) -> None:
    """Their event loop ends with them."""
    with serve(count_up) as server:
        llm = client_without_connections(server)
        options: dict[str, Any] = {"extract_facts": False, **SIX_KEEP_TWO}
        memory = CondensedMemory.from_defaults(
            "chat", llm=llm, async_database_uri=database_uri, **options
        )
        memory.put_messages([*turns(1, 4), user("question 5")])
        assert "question 3, answer 3]" in summary_in(sent_text(memory.get()))
        memory.close()


async def test_the_state_is_kept_per_session(
    open_block: OpenBlock, start_model: StartModel
) -> None:
    llm, _ = start_model(count_up)
    block = open_block(llm=llm, **SIX_KEEP_TWO)
    for session_id in ("ann", "bob"):
        await block.aput(
            [user(f"I am {session_id}"), *turns(1, 4)], session_id=session_id
        )
    for session_id, other in (("ann", "bob"), ("bob", "ann")):
        await block.await_jobs(session_id)
        text = await block.aget([], session_id=session_id)
        assert f"I am {session_id}" in summary_in(text)
        assert other not in text


async def test_a_batch_that_is_refused_is_made_smaller(
    open_block: OpenBlock, start_model: StartModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that all before the message that a model refuses is summed up in the end."""
    monkeypatch.setattr(LogBlock, "retry_seconds", 1e-6)
    llm, server = start_model(
        lambda messages, tools: (
            say("")
            if "question 30" in str(messages[-1]["content"])
            else count_up(messages, tools)
        )
    )
    block = open_block(llm=llm, **SIX_KEEP_TWO)
    await block.aput(turns(1, 40), session_id="chat")
    for _ in range(16):
        await shown(block)
        await block.aflush("chat")
        await block.anotice("chat")
    assert "question 28" in await block.asummary("chat")
    assert "question 30" not in await block.asummary("chat")
    assert len(server.requests) < 80


async def test_a_message_that_is_too_long_for_the_model_is_clipped_until_it_is_summed_up(
    open_block: OpenBlock, start_model: StartModel
) -> None:
    """Where its window is not known; the answer is bounded."""
    too_long = fail(400, "This model's maximum context length is 1500 tokens.")
    llm, server = start_model(
        lambda messages, tools: (
            too_long
            if "to 3. one" in str(messages) and COUNTER.count(str(messages)) > 1_500
            else say("The user counts to 3.")
        )
    )
    block = open_block(llm=llm, **SIX_KEEP_TWO)
    await block.aput(
        [user(f"I count to 3. {'one two three ' * 3_000}"), *turns(1, 5)],
        session_id="chat",
    )
    for _ in range(6):
        await block.aflush("chat")
    assert await block.asummary("chat") == "The user counts to 3."
    assert {body["max_tokens"] for body in server.bodies} == {2_100}
    # Each success makes the next batch longer again.
    server.requests.clear()
    await block.aput(turns(6, 105), session_id="chat")
    await block.aflush("chat")
    assert len(server.requests) == 1


@given(
    window=st.integers(0, 300_000),
    token_limit=st.integers(1, 4_000),
    halvings=st.integers(0, 13),
)
def test_a_request_for_a_summary_fits_into_the_window(
    window: int, token_limit: int, halvings: int
) -> None:
    batch, answer = summary_room(
        window, 500, token_limit=token_limit, halvings=halvings
    )
    assert (
        500 + token_limit + max(batch, 200) + answer
        <= max(0.85 * window, 500 + token_limit) + 300
    )
    more = summary_room(None, 500, token_limit=token_limit, halvings=0)
    assert batch <= more[0] == 8_000
    assert answer <= more[1]


@pytest.mark.parametrize(
    "again",
    [{}, {"condensed_token_limit": 900}, {"recall_token_limit": 1_800}],
)
async def test_an_old_summary_leaves_room(
    open_memory: OpenMemory, start_model: StartModel, again: dict[str, Any]
) -> None:
    """Whatever has been turned off since."""
    long = "A long talk: " + " ".join(f"part{i}" for i in range(600))
    llm, _ = start_model(lambda messages, tools: say(long))
    options: dict[str, Any] = {
        "llm": llm,
        "extract_facts": False,
        "condensed_token_limit": 2_000,
    }
    options |= {"include_system": True, **SIX_KEEP_TWO}
    memory = open_memory(**options)
    instructions = ChatMessage(role="system", content="Be kind. " * 500)
    await memory.aput_messages(
        [instructions, user(long), *turns(1, 6), user("question 7")]
    )
    await memory.aflush()
    options |= {"summarize": False, **again}
    text = sent_text(await open_memory(**options).aget())
    assert "answer 6" in text
    assert "question 7" in text
    assert "long talk" in text
    assert COUNTER.count(text.partition("<relevant_facts>")[0]) <= 2_010
