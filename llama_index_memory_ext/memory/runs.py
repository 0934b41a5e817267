"""The runs of agents: one at a time in a session, in this process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index_memory_ext.background.locks import LOOK_SECONDS, at_fork, lock_for
from llama_index_memory_ext.errors import TurnError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from llama_index_memory_ext.memory.fields import MemoryFields

M = TypeVar("M", bound="MemoryFields")

# The task that runs a turn of each session now, in any event loop of this process.
_holders: dict[tuple[str, ...], asyncio.Task[Any] | None] = {}

at_fork(after_in_child=_holders.clear)


@asynccontextmanager
async def single_run(memory: M) -> AsyncIterator[M]:
    """Yield the memory as soon as no other run of its session is under way in this process.

    Raises:
        TurnError: The task is within a run of the session already.
    """
    name = _run_name(memory)
    task = asyncio.current_task()
    if _holders.get(name) is task:
        raise TurnError(
            "This task is already inside memory.turn(); run the agent without opening another."
        )
    async with lock_for("turn", *name):
        # The lock orders the tasks of one event loop; a task of another loop can only
        # poll.
        while (holder := _holders.setdefault(name, task)) is not task:
            if holder is None or holder.get_loop().is_closed():
                _holders.pop(name, None)
            else:
                await asyncio.sleep(LOOK_SECONDS)
        try:
            yield memory
        finally:
            if _holders.get(name) is task:
                del _holders[name]


def has_run(memory: MemoryFields) -> bool:
    """Return whether a run of the session of a memory is under way in this process."""
    return _run_name(memory) in _holders


def _run_name(memory: MemoryFields) -> tuple[str, ...]:
    return (memory.session_id, *memory.sql_store.database.identity)
