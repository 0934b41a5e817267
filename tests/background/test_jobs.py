"""Work beside the conversation."""

from __future__ import annotations

import asyncio
import gc
from datetime import datetime, timedelta, timezone

import pytest

from llama_index_memory_ext import CondensedMemory, MemoryStore
from llama_index_memory_ext.background.jobs import (
    LONGEST_PAUSE_SECONDS,
    Failure,
    JobKey,
    JobRegistry,
    Jobs,
    pause_seconds,
)
from tests.conversation import assistant, user
from tests.openai_server import Message, say
from tests.openai_server import fail as failure
from tests.scripted_models import StartModel

CHAT = JobKey("chat", "reader")


def new_jobs() -> Jobs:
    return Jobs("work", "It was not done")


async def fail() -> None:
    raise ConnectionError


def number_of_failures(jobs: Jobs, key: JobKey) -> int:
    failure = jobs.failure_of(key)
    return failure.failures if failure else 0


async def test_nobody_waits_for_the_pause_after_a_failure() -> None:
    """Not even who begins to wait before the job has begun to pause: a synchronous put does that."""
    jobs = new_jobs()
    for _ in range(3):
        jobs.start(CHAT, fail, 3600.0)
        await asyncio.wait_for(jobs.wait(CHAT), 5)
    assert number_of_failures(jobs, CHAT) == 1


async def test_a_failure_is_one_line_without_words(caplog: pytest.LogCaptureFixture) -> None:
    jobs = new_jobs()
    jobs.start(CHAT, fail, 3600.0)
    await jobs.wait(CHAT)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["It was not done (session 'chat', ConnectionError); nothing is lost, trying again in 300 s."]


async def succeed() -> None:
    """Nothing to do."""


async def test_the_last_failure_is_known_until_the_next_success() -> None:
    """Each session's own: its number, the type of its error, when it was, and when it is tried again."""
    jobs, start = new_jobs(), datetime.now(timezone.utc)
    await jobs.finish(CHAT, fail)
    failure = jobs.failure_of(CHAT)
    assert failure == Failure(1, "ConnectionError", failure.at if failure else start, None)
    assert failure
    assert start <= failure.at <= datetime.now(timezone.utc)
    jobs.start(CHAT, fail, 60.0)
    await jobs.wait(CHAT)
    failure = jobs.failure_of(CHAT)
    assert failure
    assert failure.failures == 2
    assert failure.retry_at == failure.at + timedelta(seconds=120)
    assert jobs.failure_of(JobKey("another")) is None
    await jobs.finish(CHAT, succeed)
    assert jobs.failure_of(CHAT) is None
    assert number_of_failures(jobs, CHAT) == 0


async def test_whoever_waits_does_not_shorten_the_pause_for_the_others() -> None:
    jobs = new_jobs()
    jobs.start(CHAT, fail, 3600.0)
    await jobs.wait(CHAT)
    before = jobs.failure_of(CHAT)
    await jobs.finish(CHAT, fail)
    after = jobs.failure_of(CHAT)
    assert before
    assert after
    assert (after.failures, after.retry_at) == (2, before.retry_at)
    jobs.start(CHAT, succeed, 3600.0)
    await jobs.wait(CHAT)
    assert number_of_failures(jobs, CHAT) == 2


def test_a_model_that_is_gone_for_a_week_is_still_tried_again() -> None:
    assert pause_seconds(2.0, 5_000) == LONGEST_PAUSE_SECONDS


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
    assert await store.users.count("chat", reader=memory.facts_block.reader_of("chat")) == 1
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
    end = asyncio.ensure_future(memory.facts_block.await_jobs("chat"))
    other = CondensedMemory.from_defaults("other", user_id="bob", chat_store=store, extract_facts=False)
    await other.aclose()
    assert not end.done()
    await store.aclose()
    await asyncio.wait_for(end, 5)
    release.set()
    assert await store.users.pending(memory.facts_block.reader_of("chat")) == ["chat"]
    await store.aclose()


async def test_jobs_of_a_kind_are_the_same_for_all_on_a_store() -> None:
    registry = JobRegistry()
    jobs = registry.jobs("facts", "Not done")
    assert registry.jobs("facts", "Not done") is jobs
    assert registry.jobs("summary", "Not done") is not jobs
    await registry.stop()


async def test_failures_of_many_sessions_take_no_more_room_than_those_of_a_thousand() -> None:
    """The oldest are forgotten."""
    jobs = new_jobs()
    for i in range(1_100):
        await jobs.finish(JobKey(f"chat {i}"), fail)
    known = [number_of_failures(jobs, JobKey(f"chat {i}")) for i in range(1_100)]
    assert known == [0] * 100 + [1] * 1_000
