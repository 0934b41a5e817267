"""Locks belong to tasks of open loops only."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from llama_index_memory_ext.background.locks import lock_for


async def hold(*name: str) -> None:
    async with lock_for(*name):
        await asyncio.Event().wait()


def begin(loop: asyncio.AbstractEventLoop, *names: str) -> list[asyncio.Task[None]]:
    """Tasks that hold locks, or wait for them, in a loop that stands still then."""
    tasks = [loop.create_task(hold(name)) for name in names]
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    return tasks


# Tasks of a closed loop are what this is about; Python tells of them when they are collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_holder_and_a_waiter_whose_loop_was_closed_are_gone() -> None:
    loop = asyncio.new_event_loop()
    tasks = begin(loop, "a", "a")
    loop.close()
    asyncio.run(asyncio.wait_for(_pass("a"), 5))
    del tasks
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_loop_that_is_closed_while_others_wait_lets_them_in() -> None:
    other = asyncio.new_event_loop()
    tasks = await asyncio.to_thread(begin, other, "b", "b")
    waiting = [asyncio.ensure_future(_pass("b")) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    other.close()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    del tasks
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_collected_holder_does_not_release_the_next_ones_lock() -> None:
    """The collector ends its frame, and with it the block that held the lock."""
    loop = asyncio.new_event_loop()
    left: list[Any] = [begin(loop, "c"), loop]
    loop.close()
    del loop

    async def next_one() -> None:
        async with lock_for("c") as _:
            left.clear()
            gc.collect()
            assert lock_for("c").holder is asyncio.current_task()

    asyncio.run(asyncio.wait_for(next_one(), 5))


async def _pass(name: str) -> None:
    async with lock_for(name):
        pass
