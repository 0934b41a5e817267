"""Locks and caches that tasks and threads of this process share."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import OrderedDict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K")
V = TypeVar("V")

# How often a waiter looks whether the loop of another task was closed.
_LOOK_SECONDS = 0.2


class SharedLock:
    """A first-come, first-served lock for tasks of any event loop in any thread.

    ``asyncio.Lock`` belongs to one event loop, and waiting for a ``threading.Lock`` blocks the whole loop. A holder or
    a waiter whose event loop is closed counts as gone. Each use needs an object of its own: ``lock_for`` makes them.
    """

    def __init__(self, queue: _Queue | None = None) -> None:
        self._queue = queue or _Queue()
        self._ticket: _Ticket | None = None

    @property
    def holder(self) -> asyncio.Task[object] | None:
        """The task that holds the lock now; None if none does."""
        first = self._queue.first()
        return first.task if first else None

    async def acquire(self, seconds: float | None = None) -> None:
        """Wait until it is this task's turn; raises an ``asyncio.TimeoutError`` after so many ``seconds``."""
        self._ticket = ticket = _Ticket()
        self._queue.join(ticket)
        give_up = math.inf if seconds is None else time.monotonic() + seconds
        is_ours = False
        try:
            while not (is_ours := self._queue.first() is ticket) and (left := give_up - time.monotonic()) > 0:
                # Nothing says that a loop was closed: its tasks stay as they are.
                await asyncio.wait([ticket.called], timeout=min(left, _LOOK_SECONDS))
        finally:
            if not is_ours:
                self._queue.leave(ticket)
        if not is_ours:
            raise asyncio.TimeoutError

    def release(self) -> None:
        """Let the next task in; no more than that if this lock was taken from a loop that is closed."""
        if self._ticket is not None:
            self._queue.leave(self._ticket)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


class _Ticket:
    """The place of a task in a queue; ``called`` is done when its turn may have come."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.task: asyncio.Task[object] | None = asyncio.current_task()
        self.called = self.loop.create_future()

    def call(self) -> None:
        """Let the task look whether it is its turn."""
        # If the loop is closed in this moment, whoever looks next leaves the ticket out.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._call)

    def _call(self) -> None:
        if not self.called.done():
            self.called.set_result(None)


class _Queue:
    """Tickets in the order of their coming; the first holds the lock."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may end a frame that holds the lock while this is held.
        self._mutex = threading.RLock()
        self._tickets: deque[_Ticket] = deque()

    def join(self, ticket: _Ticket) -> None:
        with self._mutex:
            self._tickets.append(ticket)

    def first(self) -> _Ticket | None:
        """The holder's ticket, after those of closed loops are left out; None if there is none."""
        with self._mutex:
            while self._tickets and self._tickets[0].loop.is_closed():
                self._tickets.popleft()
            return self._tickets[0] if self._tickets else None

    def leave(self, ticket: _Ticket) -> None:
        with self._mutex:
            if ticket in self._tickets:
                self._tickets.remove(ticket)
            first = self.first()
        if first is not None:
            first.call()


_locks: WeakValueDictionary[Hashable, _Queue] = WeakValueDictionary()
_locks_guard = threading.RLock()


def lock_for(*name: Hashable) -> SharedLock:
    """The lock of this name, for one use: all tasks that name it wait for each other."""
    with _locks_guard:
        return SharedLock(_locks.setdefault(name, _Queue()))


def _forget_locks() -> None:
    """No task of the parent process runs in its child."""
    # Another thread of the parent may have held the guard.
    global _locks, _locks_guard
    _locks, _locks_guard = WeakValueDictionary(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


class Recent(Generic[K, V]):
    """A cache of the ``size`` entries that were used last. Threads may share it. A copy or a pickle of it is empty."""

    def __init__(self, size: int = 128) -> None:
        self.size = size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Returns the value of a key, which counts as a use; None if there is none."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Sets the value of a key."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self.size:
                self._entries.popitem(last=False)

    def values(self) -> list[V]:
        """Returns all values, the least recently used first."""
        with self._lock:
            return list(self._entries.values())

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __reduce__(self) -> tuple[type[Recent[K, V]], tuple[int]]:
        return type(self), (self.size,)
