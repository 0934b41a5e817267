"""Programs that hold one turn and end: what they and killed ones have heard is learned."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import Memory
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    MemoryStore,
    RelevantFactsBlock,
)
from llama_index_memory_ext.blocks import LogBlock
from llama_index_memory_ext.memory import writing
from llama_index_memory_ext.memory.closing import warn_of_unused
from tests.conversation import assistant, user
from tests.learning.learning import extractions, learner, likes, talk
from tests.memories import OpenMemory, OpenPlainMemory
from tests.openai_server import Message, fail, serve
from tests.scripted_models import StartModel, client_without_connections

WORDS = ("tea", "rain", "snow")


def opened(
    session_id: str, uri: str | None, llm: OpenAI, **options: Any
) -> CondensedMemory:
    return CondensedMemory.from_defaults(
        session_id, user_id="ann", llm=llm, async_database_uri=uri, **options
    )


async def killed(session_id: str, word: str, uri: str | None, llm: OpenAI) -> None:
    """A program that ends before anything was read of its turn."""
    memory = opened(session_id, uri, llm, extract_every_turns=100)
    await memory.aput_messages(talk(word))
    await memory.sql_store.aclose()


async def one_turn(session_id: str, word: str, uri: str | None, llm: OpenAI) -> None:
    async with opened(session_id, uri, llm) as memory:
        await memory.aput(user(f"I like {word}."))
        await memory.aget()
        await memory.aput(assistant("Fine."))


async def learned(uri: str | None, llm: OpenAI) -> list[str]:
    async with opened("later", uri, llm) as memory:
        return sorted(fact.content for fact in await memory.facts.alist())


# ---- the preset ---------------------------------------------------------------------------------------


async def test_short_programs_learn_what_killed_ones_have_left(
    database_uri: str, start_model: StartModel
) -> None:
    """All of it by the end of the first one, and nothing twice."""
    llm, server = start_model(learner)
    for word in ("wine", "milk"):
        await killed(f"killed {word}", word, database_uri, llm)
    await one_turn("first", "tea", database_uri, llm)
    assert await learned(database_uri, llm) == [
        "Likes milk",
        "Likes tea",
        "Likes wine",
    ]
    await one_turn("second", "rain", database_uri, llm)
    await one_turn("third", "snow", database_uri, llm)
    assert await learned(database_uri, llm) == sorted(
        f"Likes {word}" for word in ("milk", "wine", *WORDS)
    )
    asked = sorted(likes(server.requests))
    assert asked == sorted([word] for word in ("milk", "wine", *WORDS))


async def test_of_two_programs_at_once_one_result_is_stored(
    database_uri: str, start_model: StartModel
) -> None:
    llm, _ = start_model(learner)
    await killed("killed", "wine", database_uri, llm)
    await asyncio.gather(
        *(one_turn(word, word, database_uri, llm) for word in ("tea", "rain"))
    )
    assert await learned(database_uri, llm) == ["Likes rain", "Likes tea", "Likes wine"]


def test_a_program_that_closes_in_another_event_loop_learns_it_too(
    database_uri: str,
) -> None:
    """The extraction was cancelled with the loop in which it began."""
    with serve(learner) as server:
        llm = client_without_connections(server)
        asyncio.run(killed("killed", "wine", database_uri, llm))
        memory = opened("first", database_uri, llm)
        asyncio.run(memory.aput(user("I like tea.")))
        memory.close()
        assert asyncio.run(learned(database_uri, llm)) == ["Likes tea", "Likes wine"]


async def test_a_model_that_fails_is_asked_twice_for_each_killed_session(
    database_uri: str, start_model: StartModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogBlock, "retry_seconds", 3600.0)
    llm, server = start_model(lambda messages, tools: fail(503, "Out of order."))
    for word in ("wine", "milk"):
        await killed(word, word, database_uri, llm)
    async with opened("first", database_uri, llm) as memory:
        await memory.aput(user("Hello."))
    # The last one is of the session that is closed.
    assert sorted(likes(server.requests), reverse=True) == [["wine"]] * 2 + [
        ["milk"]
    ] * 2 + [[]]


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """An event that a model waits for; it is set when the test is over."""
    over = threading.Event()
    yield over
    over.set()


async def test_closing_waits_for_killed_sessions_for_a_bounded_time(
    database_uri: str,
    start_model: StartModel,
    hanging: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is left is named, and stays unread."""
    monkeypatch.setattr("llama_index_memory_ext.blocks.CLOSE_SECONDS", 0.1)

    def model(messages: list[Message], tools: list[str]) -> Message:
        if "I like wine" in str(messages[-1]["content"]):
            hanging.wait(60)
        return learner(messages, tools)

    llm, server = start_model(model)
    await killed("killed", "wine", database_uri, llm)
    await one_turn("first", "tea", database_uri, llm)
    assert (
        "Block 'relevant_facts' was closed before all of its work was done"
        in caplog.text
    )
    assert len(extractions(server.requests)) == 2
    hanging.set()
    await one_turn("second", "rain", database_uri, llm)
    assert await learned(database_uri, llm) == ["Likes rain", "Likes tea", "Likes wine"]


# ---- blocks in LlamaIndex's own memory ----------------------------------------------------------------


@pytest.mark.parametrize("end", ["aflush", "aclose"])
async def test_short_programs_with_blocks_in_a_plain_memory_learn_what_was_said(
    end: str, database_uri: str, start_model: StartModel
) -> None:
    """Without the id of a session they flush each that they have seen."""
    llm, _ = start_model(learner)
    for word in WORDS:
        store = MemoryStore(database_uri)
        facts = RelevantFactsBlock(store=store, user_id="ann", llm=llm)
        memory = Memory.from_defaults(
            session_id=word, chat_store=store, memory_blocks=[facts]
        )
        await memory.aput(user(f"I like {word}."))
        await memory.aget()
        await memory.aput(assistant("Fine."))
        await getattr(facts, end)()
        await store.aclose()
    assert await learned(database_uri, llm) == sorted(f"Likes {word}" for word in WORDS)


async def test_one_block_flushes_each_of_its_sessions_once(
    start_model: StartModel,
) -> None:
    llm, server = start_model(learner)
    block = RelevantFactsBlock(user_id="ann", llm=llm)
    for word in WORDS:
        await block.aput(talk(word), session_id=word)
    await block.aflush()
    assert sorted(fact.content for fact in await block.book().alist()) == sorted(
        f"Likes {word}" for word in WORDS
    )
    assert len(server.requests) == 3
    await block.aclose()
    await block.aclose()
    assert len(server.requests) == 3


@pytest.mark.parametrize("kind", [CondensedMemoryBlock, RelevantFactsBlock])
async def test_a_memory_that_keeps_its_turns_to_itself_is_told_what_to_set(
    kind: type[CondensedMemoryBlock | RelevantFactsBlock],
    open_plain_memory: OpenPlainMemory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, and not where turns are passed on."""
    fitting = open_plain_memory(kind(name=f"fitting_{kind.__name__}"))
    block = kind(name=f"empty_{kind.__name__}")
    by_default = open_plain_memory(block, chat_history_token_ratio=0.7)
    for memory in (fitting, by_default):
        for i in range(5):
            await memory.aput(user(f"Question {i}"))
            await memory.aget()
            await memory.aput(assistant("Fine."))
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if "was given no turn yet" in record.getMessage()
    ]
    assert re.match(
        r"Block 'empty_\w+' .*chat_history_token_ratio=0\.0001, insert_method=\"user\"",
        line,
    )
    for memory in (fitting, by_default):
        for each in memory.memory_blocks:
            assert isinstance(each, CondensedMemoryBlock | RelevantFactsBlock)
            await each.aclose()


@pytest.mark.parametrize("kind", [CondensedMemoryBlock, RelevantFactsBlock])
async def test_a_flush_of_a_block_that_was_given_no_turn_says_what_to_set(
    kind: type[CondensedMemoryBlock | RelevantFactsBlock],
    open_plain_memory: OpenPlainMemory,
    start_model: StartModel,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After one turn too: a program that waits for facts would wait for nothing."""
    llm, server = start_model(learner)
    block = kind(name=f"flushed_{kind.__name__}", llm=llm)
    memory = open_plain_memory(block, chat_history_token_ratio=0.7)
    await memory.aput(user("I like tea."))
    await memory.aget()
    await memory.aput(assistant("Fine."))
    await block.aflush()
    assert server.requests == []
    assert f"Block '{block.name}' was given no turn yet" in caplog.text
    await block.aclose()


# ---- a memory that no run was given -------------------------------------------------------------------


def warnings_in(caplog: pytest.LogCaptureFixture) -> int:
    return sum(
        "agent.run(question, memory=memory)" in record.getMessage()
        for record in caplog.records
    )


async def test_a_memory_that_only_the_agent_was_given_is_warned_of_once(
    open_memory: OpenMemory, start_model: StartModel, caplog: pytest.LogCaptureFixture
) -> None:
    """LlamaIndex takes the argument and ignores it."""
    warn_of_unused.cache_clear()
    llm, _ = start_model(learner)
    for name in ("a", "b"):
        async with open_memory(name, llm=llm) as memory:
            await FunctionAgent(llm=llm, memory=memory).run("I like tea.")
            assert warnings_in(caplog) == (name == "b")
    assert warnings_in(caplog) == 1


# ---- two runs at once -------------------------------------------------------------------


async def two_runs(memory: CondensedMemory, llm: Any, *, in_turns: bool) -> None:
    async def run(question: str) -> None:
        async with memory.turn() if in_turns else nullcontext():
            await FunctionAgent(llm=llm).run(question, memory=memory)

    await asyncio.gather(run("I like tea."), run("I like milk."))


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("ratio", [0.0001, 0.7])
async def test_two_runs_at_once_are_warned_of_once(
    open_memory: OpenMemory,
    start_model: StartModel,
    caplog: pytest.LogCaptureFixture,
    in_turns: bool,
    ratio: float,
) -> None:
    writing._warn_of_two_runs.cache_clear()
    llm, _ = start_model(learner)
    memory = open_memory(extract_facts=False, chat_history_token_ratio=ratio)
    for _ in range(2):
        await two_runs(memory, llm, in_turns=in_turns)
    assert caplog.text.count("async with memory.turn()") == (not in_turns)
    assert "tea" not in caplog.text


async def test_questions_one_after_the_other_are_not_warned_of(
    open_memory: OpenMemory, start_model: StartModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor are several persons of a shared session, an import, and a question behind a failed turn."""
    writing._warn_of_two_runs.cache_clear()
    llm, _ = start_model(learner)
    memory = open_memory(extract_facts=False)
    for question in ("I like tea.", "I like milk."):
        await FunctionAgent(llm=llm).run(question, memory=memory)
    await memory.aput_messages([user("Hm?"), user("Hello?"), user("Anyone?")])
    shared = open_memory("team", user_id="ann", shared=True, extract_facts=False)
    for question in ("Hello, Bob.", "Where is Bob?"):
        await shared.aput(user(question))
    failing = open_memory("fails", extract_facts=False)
    for question in ("Hello?", "Are you there?"):
        async with failing.turn():
            await failing.aput(user(question))
    assert caplog.text == ""


async def test_a_memory_that_is_used_for_anything_is_not_warned_of(
    open_memory: OpenMemory, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_unused.cache_clear()
    uses: dict[str, Callable[[CondensedMemory], Awaitable[Any]]] = {
        "list facts": lambda memory: memory.facts.alist(),
        "search": lambda memory: memory.asearch("tea"),
        "explain": lambda memory: memory.facts_block.aexplain("tea"),
        "forget": lambda memory: memory.aforget(vacuum=False),
        "import": lambda memory: memory.aimport(
            '[{"role": "user", "content": "I like tea."}]'
        ),
        "put": lambda memory: memory.aput(user("I like tea.")),
        "read": lambda memory: memory.aget(),
        "export": lambda memory: memory.aexport(),
        "count": lambda memory: memory.astats(),
        "delete": lambda memory: memory.areset(),
        "list sessions": lambda memory: memory.sql_store.sessions(),
    }
    for name, use in uses.items():
        async with open_memory(name) as memory:
            await use(memory)
    store = MemoryStore()
    async with CondensedMemory.from_defaults("chat", chat_store=store) as memory:
        await memory.aexport()
    await store.aclose()
    with pytest.raises(ZeroDivisionError):
        async with open_memory("fails"):
            raise ZeroDivisionError
    await memory.aclose()
    assert warnings_in(caplog) == 0
