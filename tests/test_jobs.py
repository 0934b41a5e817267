"""Work beside the conversation."""

from __future__ import annotations

import asyncio
import copy
import pickle
import time
from datetime import datetime, timedelta, timezone

import pytest

from llama_index_memory_ext.events import SummaryFailedEvent
from llama_index_memory_ext.jobs import LONGEST_PAUSE_SECONDS, Failure, Jobs


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
        assert copied == Jobs("It was not done", "summary", SummaryFailedEvent)
