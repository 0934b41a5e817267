"""Locks that tasks of an event loop share, and locks and caches that threads share."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Hashable

# How long a fork waits for other threads.
FORK_SECONDS = 2.0
_TRY_SECONDS = 0.02

K = TypeVar("K")
V = TypeVar("V")

_locks: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakValueDictionary[Hashable, asyncio.Lock]
] = WeakKeyDictionary()


def lock_for(*name: Hashable) -> asyncio.Lock:
    """Return the lock of this name: all tasks of this event loop that use it wait for each other, in their order."""
    locks = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return locks.setdefault(name, asyncio.Lock())


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hold_locks,
        after_in_parent=_release_locks,
        after_in_child=_release_locks,
    )


class Recent(Generic[K, V]):
    """A cache of the ``size`` most recently used entries. Threads may share it. A copy or a pickle of it is empty."""

    def __init__(self, size: int = 128) -> None:
        self.size = size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = thread_lock()

    def get(self, key: K) -> V | None:
        """Return the value of a key, which counts as a use; None if there is none."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self.size:
                self._entries.popitem(last=False)

    def values(self) -> list[V]:
        """Return all values, the least recently used first."""
        with self._lock:
            return list(self._entries.values())

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __reduce__(self) -> tuple[type[Recent[K, V]], tuple[int]]:
        return type(self), (self.size,)


# The tasks of jobs in this process, in any event loop, that have not failed: the owner
# of the result, and the session.
at_work: dict[asyncio.Task[Any], tuple[tuple[str, ...], str]] = {}
# The owners whose last job has failed, or took longer than a question waits: no
# question waits until a job has succeeded.
waited_in_vain: Recent[tuple[str, ...], bool] = Recent(1_000)
_LOOK_SECONDS = 0.01

if hasattr(os, "register_at_fork"):
    # No job of the parent ends in its child.
    os.register_at_fork(after_in_child=at_work.clear)


async def wait_for_owner(owner: tuple[str, ...], seconds: float, *, but: str) -> None:
    """Wait until the jobs of an owner in this process have ended, except jobs of the session ``but``.

    The wait takes at most so many ``seconds``. After a job that has failed, or that
    took longer, no call waits until a job has succeeded.
    """
    tasks = [
        task
        for task, (whose, session_id) in list(at_work.items())
        if whose == owner and session_id != but
    ]
    end = time.monotonic() + seconds
    while any(task in at_work for task in tasks) and not waited_in_vain.get(owner):
        if time.monotonic() >= end:
            waited_in_vain.put(owner, True)  # noqa: FBT003 - the value of an entry
        await asyncio.sleep(_LOOK_SECONDS)
