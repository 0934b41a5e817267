"""A lock belongs to the tasks of one event loop."""

from __future__ import annotations

import asyncio
import gc

import pytest

from llama_index_memory_ext.background.locks import lock_for


async def hold() -> None:
    async with lock_for("a"):
        await asyncio.Event().wait()


async def _pass(order: list[int], number: int) -> None:
    async with lock_for("a"):
        order.append(number)


async def test_tasks_that_name_the_same_lock_come_in_their_order() -> None:
    order: list[int] = []
    async with lock_for("a"):
        tasks = [asyncio.ensure_future(_pass(order, i)) for i in range(5)]
        async with lock_for("b"):
            await asyncio.sleep(0)
        assert order == []
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]


# A task of a closed loop is what this is about; Python tells of it when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_closed_loop_has_held_is_free() -> None:
    """Also where the next loop lies at the same place in memory."""
    order: list[int] = []
    for i in range(20):
        loop = asyncio.new_event_loop()
        holder = loop.create_task(hold())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        asyncio.run(asyncio.wait_for(_pass(order, i), 5))
        del loop, holder
    gc.collect()
    assert order == list(range(20))
