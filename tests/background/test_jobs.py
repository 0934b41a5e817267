"""Work beside the conversation."""

from __future__ import annotations

import asyncio
import gc
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from llama_index_memory_ext import CondensedMemory, MemoryStore
from llama_index_memory_ext.background.failures import (
    LONGEST_PAUSE_SECONDS,
    BackOff,
    Failure,
    seconds_until_retry,
)
from llama_index_memory_ext.background.jobs import Jobs
from llama_index_memory_ext.background.registry import JobRegistry
from llama_index_memory_ext.background.waiting import JobKey, wait_for_owner
from llama_index_memory_ext.blocks import LogBlock
from tests.conversation import assistant, user
from tests.openai_server import Message
from tests.openai_server import fail as failure
from tests.scripted_models import StartModel

CHAT = JobKey("chat", "reader")

# Far more than a busy machine needs; a wait that does not end is the failure.
PATIENCE_SECONDS = 60


def new_jobs() -> Jobs:
    return Jobs("work", "It was not done")


async def fail() -> None:
    raise ConnectionError


def number_of_failures(jobs: Jobs, key: JobKey) -> int:
    failure = jobs.failure_of(key)
    return failure.failures if failure else 0


async def succeed() -> None:
    """Nothing to do."""


async def test_a_caller_does_not_wait_for_the_pause_after_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even one that begins to wait before the job has begun to pause: a synchronous put does that."""
    jobs = new_jobs()
    for _ in range(3):
        jobs.start(CHAT, fail, 3600.0)
        await asyncio.wait_for(jobs.wait(CHAT), PATIENCE_SECONDS)
    assert number_of_failures(jobs, CHAT) == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert (
        line
        == "It was not done (session 'chat', ConnectionError); trying again in 300 s."
    )


async def test_the_last_failure_is_known_until_the_next_success() -> None:
    """Each session's own: its number, the type of its error, when it was, and when it is tried again.

    A caller that waits does not shorten the pause for the others.
    """
    jobs, start = new_jobs(), datetime.now(timezone.utc)
    await jobs.finish(CHAT, fail)
    failure = jobs.failure_of(CHAT)
    assert failure
    assert failure == Failure(1, "ConnectionError", failure.at, None)
    assert start <= failure.at <= datetime.now(timezone.utc)
    jobs.start(CHAT, fail, 60.0)
    await jobs.wait(CHAT)
    failure = jobs.failure_of(CHAT)
    assert failure
    state = (failure.failures, failure.retry_at)
    assert state == (2, failure.at + timedelta(seconds=120))
    await jobs.finish(JobKey("another"), succeed)
    await jobs.finish(CHAT, fail)
    after = jobs.failure_of(CHAT)
    assert after
    assert (after.failures, after.retry_at) == (3, failure.retry_at)
    jobs.start(CHAT, succeed, 3600.0)
    await jobs.wait(CHAT)
    assert number_of_failures(jobs, CHAT) == 3
    await jobs.finish(CHAT, succeed)
    assert jobs.failure_of(CHAT) is None


def test_each_pause_is_twice_as_long_as_the_one_before_up_to_five_minutes() -> None:
    """A success ends no pause, and makes the next one short."""
    back_off, without = BackOff(10.0), BackOff(0.0, failures=3)
    assert not back_off.pausing
    pauses = [back_off.failed() for _ in range(7)]
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert BackOff(2.0, 5_000).failed() == LONGEST_PAUSE_SECONDS
    without.failed()
    for one in (back_off, without):
        one.succeeded()
    states = [(one.failures, one.pausing) for one in (back_off, without)]
    assert states == [(7, True), (0, False)]


def test_a_clock_that_was_set_back_lengthens_no_pause() -> None:
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    failure = Failure(1, "ConnectionError", tomorrow, retry_at=tomorrow)
    assert seconds_until_retry(failure) == LONGEST_PAUSE_SECONDS


async def test_memories_that_come_and_go_do_not_ask_a_failing_model_each_for_itself(
    start_model: StartModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web application makes one for each request."""
    monkeypatch.setattr(LogBlock, "retry_seconds", 3600.0)
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    def model(messages: list[Message], tools: list[str]) -> Message:
        loop.call_soon_threadsafe(asked.set)
        return failure(503, "Out of order.")

    llm, server = start_model(model)
    store = MemoryStore()
    for i in range(6):
        memory = CondensedMemory.from_defaults(
            "chat", chat_store=store, llm=llm, extract_every_turns=1
        )
        await memory.aput_messages([user(f"question {i}"), assistant(f"answer {i}")])
        await asyncio.wait_for(asked.wait(), 30)
    del memory
    gc.collect()
    assert len(server.requests) == 1
    await store.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_work_of_the_last_start_is_what_is_tried_again() -> None:
    """A memory whose model fails is gone with its request, and that of the next request has a model that works."""
    jobs, tried, done = new_jobs(), asyncio.Event(), asyncio.Event()

    async def broken() -> None:
        tried.set()
        raise ConnectionError

    async def mended() -> None:
        done.set()

    jobs.start(CHAT, broken, 0.05)
    await asyncio.wait_for(tried.wait(), 30)
    jobs.start(CHAT, mended, 3600.0)
    await asyncio.wait_for(done.wait(), 30)
    await jobs.wait(CHAT)
    assert jobs.failure_of(CHAT) is None


async def test_stopping_ends_the_jobs_of_the_sessions_that_are_named() -> None:
    registry, started = JobRegistry(), asyncio.Event()
    jobs = registry.jobs("work", "It was not done")

    async def never_end() -> None:
        started.set()
        await asyncio.Event().wait()

    jobs.start(CHAT, never_end, 3600.0)
    await started.wait()
    waiting = asyncio.ensure_future(registry.wait_for_session("chat"))
    await registry.stop({"another"})
    assert not waiting.done()
    await registry.stop()
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert registry.jobs("work", "It was not done") is jobs


async def test_successes_of_other_sessions_leave_a_failure_known() -> None:
    jobs = new_jobs()
    await jobs.finish(CHAT, fail)
    for i in range(1_100):
        await jobs.finish(JobKey(f"chat {i}"), succeed)
    assert number_of_failures(jobs, CHAT) == 1


# ---- questions that wait for the jobs of their owner --------------------------------------------------


def of(owner: str, session_id: str = "chat") -> JobKey:
    return JobKey(session_id, "reader", (owner,))


async def test_a_question_waits_until_a_job_of_its_owner_has_ended() -> None:
    """Also in another event loop; not for the owner's job in the same session, nor for that of another owner."""
    jobs, go_on = new_jobs(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()

    jobs.start(of("ann", "monday"), work, 3600.0)
    for owner, session_id in (("ann", "monday"), ("bob", "friday")):
        await asyncio.wait_for(
            wait_for_owner((owner,), 3600, except_session=session_id), PATIENCE_SECONDS
        )
    here = asyncio.create_task(wait_for_owner(("ann",), 3600, except_session="friday"))
    elsewhere = asyncio.create_task(
        asyncio.to_thread(
            asyncio.run, wait_for_owner(("ann",), 3600, except_session="friday")
        )
    )
    assert (await asyncio.wait([here, elsewhere], timeout=0.05))[0] == set()
    go_on.set()
    await asyncio.wait_for(asyncio.gather(here, elsewhere), PATIENCE_SECONDS)
    await asyncio.wait_for(
        wait_for_owner(("ann",), 3600, except_session="friday"), PATIENCE_SECONDS
    )


async def test_a_job_that_takes_long_is_waited_for_once() -> None:
    """The next one is, when it has succeeded."""
    jobs, go_on = new_jobs(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()

    key = of("long")
    jobs.start(key, work, 3600.0)
    await asyncio.wait_for(
        wait_for_owner(key.owner, 0.01, except_session=""), PATIENCE_SECONDS
    )
    await asyncio.wait_for(
        wait_for_owner(key.owner, 3600, except_session=""), PATIENCE_SECONDS
    )
    go_on.set()
    await jobs.wait(key)
    go_on.clear()
    jobs.start(key, work, 3600.0)
    waiting = asyncio.create_task(wait_for_owner(key.owner, 3600, except_session=""))
    assert (await asyncio.wait([waiting], timeout=0.05))[0] == set()
    await jobs.stop()
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_no_question_waits_for_a_job_that_tries_again() -> None:
    """Nor for another job of this owner, as of the next session, until one has succeeded."""
    jobs, failed = new_jobs(), asyncio.Event()

    async def hang_after_failing() -> None:
        if failed.is_set():
            await asyncio.Event().wait()
        failed.set()
        raise ConnectionError

    key = of("failing", "monday")
    jobs.start(key, hang_after_failing, 0.01)
    await asyncio.wait_for(
        wait_for_owner(key.owner, 3600, except_session=""), PATIENCE_SECONDS
    )
    new_jobs().start(of("failing", "tuesday"), asyncio.Event().wait, 3600.0)
    await asyncio.wait_for(
        wait_for_owner(key.owner, 3600, except_session=""), PATIENCE_SECONDS
    )
    await jobs.finish(of("failing", "wednesday"), succeed)
    jobs.start(of("failing", "thursday"), asyncio.Event().wait, 3600.0)
    waiting = asyncio.create_task(wait_for_owner(key.owner, 3600, except_session=""))
    assert (await asyncio.wait([waiting], timeout=0.05))[0] == set()
    waiting.cancel()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_few_sessions_of_an_owner_are_worked_on_at_once_and_all_in_the_end() -> (
    None
):
    """A small server refuses forty calls at once. Another owner does not wait for them."""
    jobs = new_jobs()
    free = asyncio.Event()
    begun: list[str] = []

    async def work(session_id: str) -> None:
        begun.append(session_id)
        await free.wait()

    keys = [JobKey(f"ann {i}", "reader", ("ann",)) for i in range(40)]
    keys.append(JobKey("bob", "reader", ("bob",)))
    for key in keys:
        jobs.start(key, partial(work, key.session_id), 1.0)
    for _ in keys:
        await asyncio.sleep(0)
    assert begun == [*(f"ann {i}" for i in range(8)), "bob"]
    free.set()
    for key in keys:
        await jobs.wait(key)
    assert sorted(begun) == sorted(key.session_id for key in keys)
