"""Work beside the conversation."""

from __future__ import annotations

import asyncio

import pytest

from llama_index_memory_ext.jobs import Jobs


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
