"""Locks of tasks and of threads, also around a fork."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Hashable


# Takes functions to call around a fork; where processes cannot fork, never calls them.
at_fork = getattr(os, "register_at_fork", lambda **_: None)
# How many seconds a fork waits for other threads.
FORK_SECONDS = 2.0
# The seconds between two looks at a state that no event reports, or at a lock.
LOOK_SECONDS = 0.01

_locks: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakValueDictionary[Hashable, asyncio.Lock]
] = WeakKeyDictionary()


def lock_for(*name: Hashable) -> asyncio.Lock:
    """Return the lock of this name in this event loop: of the tasks that use it, one runs at a time, in their order."""
    locks = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return locks.setdefault(name, asyncio.Lock())


# All locks of ``thread_lock`` and ``import_lock``.
_thread_locks: WeakSet[Any] = WeakSet()
# Only the locks of ``import_lock``.
_import_locks: WeakSet[Any] = WeakSet()
# Held to register a lock.
_registering = threading.RLock()
# The locks that this process holds while it forks.
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


def import_lock() -> Any:
    """Return a lock to import a module in a thread, for which a fork waits as long as it takes.

    Otherwise, its child would wait for ever for the thread that imports.
    """
    lock = thread_lock()
    _import_locks.add(lock)
    return lock


def _hold_locks() -> None:
    """Acquire all locks; after ``FORK_SECONDS``, only the free locks and the import locks."""
    end = time.monotonic() + FORK_SECONDS
    while True:
        _registering.acquire()
        _held_over_fork.append(_registering)
        _held_over_fork.extend(
            lock for lock in _thread_locks if lock.acquire(timeout=LOOK_SECONDS)
        )
        missing = _missing_locks()
        if time.monotonic() > end:
            missing.intersection_update(_import_locks)
        if not missing:
            return
        # The thread that holds the missing lock may wait for one of the others.
        _release_locks()
        time.sleep(LOOK_SECONDS)


def _missing_locks() -> set[Any]:
    return set(_thread_locks).difference(_held_over_fork)


def _release_locks() -> None:
    for lock in _held_over_fork:
        lock.release()
    _held_over_fork.clear()


def _free_locks_in_child() -> None:
    """Release the locks, and reset each lock that a thread of the parent holds."""
    missing = _missing_locks()
    _release_locks()
    for lock in missing:
        lock._at_fork_reinit()  # noqa: SLF001 - as the locks of the standard library


at_fork(
    before=_hold_locks,
    after_in_parent=_release_locks,
    after_in_child=_free_locks_in_child,
)
