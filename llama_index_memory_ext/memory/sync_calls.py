"""Runs a call of a memory from code without an event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index.core.async_utils import asyncio_run

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from llama_index_memory_ext.store import MemoryStore

T = TypeVar("T")


def run_alone(store: MemoryStore, call: Coroutine[Any, Any, T], *, with_jobs: bool = False) -> T:
    """Returns the result of a call. No job is left in an event loop that has ended.

    Args:
        store: The store whose jobs the call may start.
        call: The call.
        with_jobs: Whether to wait for the jobs that the call has started; otherwise they are cancelled.
    """
    tasks: list[asyncio.Task[T] | None] = []

    async def run() -> T:
        tasks.append(asyncio.current_task())
        try:
            result = await call
            if with_jobs:
                # Those of other sessions, too: in a program without an event loop nothing else would wait for them.
                await store.jobs.wait_for_all()
            return result
        finally:
            await store.jobs.stop()

    try:
        result: T = asyncio_run(run())
    except KeyboardInterrupt:
        # Ctrl+C leaves the task in an event loop that no longer runs, where it would keep its locks.
        for task in tasks:
            if task is not None and not task.done() and not task.get_loop().is_running():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    task.get_loop().run_until_complete(task)
        raise
    return result
