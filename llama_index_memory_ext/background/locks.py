"""Locks of tasks and of threads, also around a fork."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from llama_index_memory_ext.errors import TurnError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable


# Takes functions to call around a fork; where processes cannot fork, never calls them.
at_fork = getattr(os, "register_at_fork", lambda **_: None)
# How many seconds a fork waits for other threads.
FORK_SECONDS = 2.0
_TRY_SECONDS = 0.02
# The seconds between two looks at a state that no event reports.
LOOK_SECONDS = 0.01

Memory = TypeVar("Memory")

_locks: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakValueDictionary[Hashable, asyncio.Lock]
] = WeakKeyDictionary()


def lock_for(*name: Hashable) -> asyncio.Lock:
    """Return the lock of this name in this event loop: of the tasks that use it, one runs at a time, in their order."""
    locks = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return locks.setdefault(name, asyncio.Lock())


# The tasks that run a turn now, in any event loop of this process.
_holders: dict[tuple[str, ...], asyncio.Task[Any] | None] = {}

at_fork(after_in_child=_holders.clear)


def is_running(name: tuple[str, ...]) -> bool:
    """Return whether a run of the session of this name is within ``single_run`` in this process."""
    return name in _holders


@asynccontextmanager
async def single_run(memory: Memory, name: tuple[str, ...]) -> AsyncIterator[Memory]:
    """Yield the memory as soon as no other run of the session of this name is under way in this process.

    Raises:
        TurnError: The task is within a run of the session already.
    """
    task = asyncio.current_task()
    if _holders.get(name) is task:
        raise TurnError(
            "This task is within memory.turn() already; run the agent without opening another."
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


# All locks of ``thread_lock``, and the locks that this process holds while it forks.
_thread_locks: WeakSet[Any] = WeakSet()
_registering = threading.RLock()
_held_over_fork: list[Any] = []


def thread_lock() -> Any:
    """Return a reentrant lock for threads that is free in the child after a fork, whichever thread held it before.

    A fork waits for the lock, at most ``FORK_SECONDS``, so that the protected data is
    complete in the child.
    """
    lock = threading.RLock()
    with _registering:
        _thread_locks.add(lock)
    return lock


def _hold_locks() -> None:
    """Acquire all thread locks; after ``FORK_SECONDS``, only the free locks."""
    _registering.acquire()
    locks = list(_thread_locks)
    end = time.monotonic() + FORK_SECONDS
    while True:
        held = [lock for lock in locks if lock.acquire(timeout=_TRY_SECONDS)]
        if len(held) == len(locks) or time.monotonic() > end:
            break
        # The thread that holds the missing lock may wait for one of the held locks.
        for lock in held:
            lock.release()
    _held_over_fork.extend(held)


def _release_locks() -> None:
    for lock in _held_over_fork:
        lock.release()
    _held_over_fork.clear()
    _registering.release()


at_fork(
    before=_hold_locks, after_in_parent=_release_locks, after_in_child=_release_locks
)
