"""The order of the jobs on one database."""

from __future__ import annotations

import asyncio
import threading

from llama_index_memory_ext.background.threads import Job, Threads


async def test_a_job_overtakes_no_earlier_one_that_waits_for_one_of_its_locks() -> None:
    """Otherwise jobs with few locks would keep a job with many of them waiting."""
    threads = Threads(2)
    release = threading.Event()
    done: list[str] = []

    def work(job: Job) -> None:
        if job.name == "first":
            release.wait(60)
        done.append(job.name)

    def enter(name: str, *locks: str) -> asyncio.Future[None]:
        answer = asyncio.get_running_loop().create_future()
        job = Job(0, work, lambda _: None, name, set(locks), answer, writes=False)
        threads.enter(job)
        return answer

    waiting = [enter("first", "a"), enter("second", "a", "b"), enter("third", "b")]
    await asyncio.wait_for(enter("another", "c"), 60)
    release.set()
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert done == ["another", "first", "second", "third"]
