"""Work beside the conversation."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import time
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from llama_index_memory_ext import CondensedMemory, MemoryStore
from llama_index_memory_ext.background.job_board import JobBoard
from llama_index_memory_ext.background.jobs import LONGEST_PAUSE_SECONDS, Failure, Jobs
from llama_index_memory_ext.events import SummaryFailedEvent
from tests.conftest import StartModel
from tests.conversation import assistant, user
from tests.openai_server import Message, say
from tests.openai_server import fail as failure


async def fail(session_id: str) -> None:
    raise ConnectionError(session_id)


async def test_nobody_waits_for_the_pause_after_a_failure() -> None:
    """Not even who begins to wait before the job has begun to pause: a synchronous put does that."""
    jobs = Jobs("It was not done")
    for _ in range(3):
        jobs.start("chat", fail, 3600.0)
        await asyncio.wait_for(jobs.wait("chat"), 5)
    assert jobs.failures_of("chat") == 1


async def test_a_failure_is_one_line_without_words(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Jobs("It was not done")
    jobs.start("chat", fail, 3600.0)
    await jobs.wait("chat")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["It was not done (session 'chat', ConnectionError); nothing is lost, trying again in 300 s."]


async def succeed(session_id: str) -> None:
    """Nothing to do."""


async def test_the_last_failure_is_known_until_the_next_success() -> None:
    """Each session's own: its number, the type of its error, when it was, and when it is tried again."""
    jobs, start = Jobs("It was not done"), datetime.now(timezone.utc)
    await jobs.finish("chat", fail)
    failure = jobs.failure_of("chat")
    assert failure == Failure(1, "ConnectionError", failure.at if failure else start, None)
    assert failure
    assert start <= failure.at <= datetime.now(timezone.utc)
    jobs.start("chat", fail, 60.0)
    await jobs.wait("chat")
    failure = jobs.failure_of("chat")
    assert failure
    assert failure.failures == 2
    assert failure.retry_at == failure.at + timedelta(seconds=120)
    assert jobs.failure_of("another") is None
    await jobs.finish("chat", succeed)
    assert jobs.failure_of("chat") is None
    assert jobs.failures_of("chat") == 0


async def test_whoever_waits_does_not_shorten_the_pause_for_the_others() -> None:
    jobs = Jobs("It was not done")
    jobs.start("chat", fail, 3600.0)
    await jobs.wait("chat")
    before = jobs.failure_of("chat")
    await jobs.finish("chat", fail)
    after = jobs.failure_of("chat")
    assert before
    assert after
    assert (after.failures, after.retry_at) == (2, before.retry_at)
    jobs.start("chat", succeed, 3600.0)
    await jobs.wait("chat")
    assert jobs.failures_of("chat") == 2


async def test_a_model_that_is_gone_for_a_week_is_still_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Jobs("It was not done")
    jobs.failures["chat"] = Failure(5_000, "ConnectionError", datetime.now(timezone.utc)), time.monotonic()
    jobs.start("chat", fail, 2.0)
    await jobs.wait("chat")
    assert jobs.failures_of("chat") == 5_001
    assert f"trying again in {LONGEST_PAUSE_SECONDS:g} s" in caplog.text


async def test_a_copy_of_jobs_begins_without_any_and_fails_in_the_same_words() -> None:
    jobs = Jobs("It was not done", "summary", SummaryFailedEvent)
    await jobs.finish("chat", fail)
    for copied in (copy.deepcopy(jobs), pickle.loads(pickle.dumps(jobs))):
        assert (copied.failed, copied.name, copied.event) == (jobs.failed, jobs.name, jobs.event)
        assert copied.failures_of("chat") == 0


async def test_memories_that_come_and_go_do_not_ask_a_failing_model_each_for_itself(
    database_uri: str, start_model: StartModel, caplog: pytest.LogCaptureFixture
) -> None:
    """A web application makes one for each request."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def model(messages: list[Message], tools: list[str]) -> Message:
        loop.call_soon_threadsafe(asked.set)
        return failure(503, "Out of order.")

    llm, server = start_model(model)
    store = MemoryStore(database_uri)
    for i in range(6):
        memory = CondensedMemory.from_defaults("chat", user_id="ann", chat_store=store, llm=llm)
        memory.facts_block.retry_seconds = 3600
        await memory.aput_messages([user(f"question {i}"), assistant(f"answer {i}")])
        if i > 0:
            await asyncio.wait_for(asked.wait(), 30)
    del memory
    gc.collect()
    assert len(server.requests) == 1
    await store.aclose()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_the_work_of_whoever_came_last_is_what_is_tried_again(start_model: StartModel) -> None:
    """A memory whose model fails is gone with its request, and that of the next request has a model that works."""
    asked, learned = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def broken(messages: list[Message], tools: list[str]) -> Message:
        loop.call_soon_threadsafe(asked.set)
        return failure(503, "Out of order.")

    def mended(messages: list[Message], tools: list[str]) -> Message:
        loop.call_soon_threadsafe(learned.set)
        return say("")

    store = MemoryStore()
    for model, done in ((broken, asked), (mended, learned)):
        memory = CondensedMemory.from_defaults("chat", chat_store=store, llm=start_model(model)[0])
        memory.facts_block.retry_seconds = 0.05
        await memory.aput_messages([user("Hello."), assistant("Hello."), user("And?")])
        await asyncio.wait_for(done.wait(), 30)
    await memory.facts_block.await_jobs("chat")
    assert await memory.facts_block.acount_unread("chat") == 1
    await store.aclose()


async def test_closing_a_store_ends_what_its_memories_have_under_way(
    database_uri: str, start_model: StartModel
) -> None:
    """And closing one of the memories neither ends the work of the others nor closes their store."""
    asked, release = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def model(messages: list[Message], tools: list[str]) -> Message:
        loop.call_soon_threadsafe(asked.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(30)
        return say("")

    llm, _ = start_model(model)
    store = MemoryStore(database_uri)
    memory = CondensedMemory.from_defaults("chat", user_id="ann", chat_store=store, llm=llm)
    await memory.aput_messages([user("one"), assistant("two")])
    await memory.aput(user("three"))
    await asked.wait()
    other = CondensedMemory.from_defaults("other", user_id="bob", chat_store=store, extract_facts=False)
    await other.aclose()
    jobs: Any = memory.facts_block._jobs
    assert len(jobs.jobs) == 1
    await store.aclose()
    assert jobs.jobs == {}
    release.set()
    assert await store.pending(memory.facts_block.reader_of("chat")) == ["chat"]
    await store.aclose()


async def test_jobs_of_a_name_are_the_same_as_long_as_somebody_holds_them() -> None:
    """What is forgotten takes no room."""
    board = JobBoard()
    jobs = board.jobs("facts of ann", partial(Jobs, "Not done"))
    assert board.jobs("facts of ann", partial(Jobs, "Not done")) is jobs
    assert board.jobs("facts of bob", partial(Jobs, "Not done")) is not jobs
    jobs.failures["chat"] = Failure(3, "ConnectionError", datetime.now(timezone.utc)), 0.0
    del jobs
    gc.collect()
    assert board.jobs("facts of ann", partial(Jobs, "Not done")).failures == {}
    await board.stop()
