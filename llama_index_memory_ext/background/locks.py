"""Lets one task at a time through a door that tasks, event loops and threads of this process share."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from types import TracebackType

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class SharedLock:
    """A first-come, first-served lock for tasks of any event loop in any thread.

    ``asyncio.Lock`` belongs to one event loop, and a blocked ``threading.Lock`` stops a whole loop;
    here a waiter is a future that the releasing thread completes.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiters: deque[Future[None]] = deque()
        self._held = False
        self.holder: asyncio.Task[object] | None = None

    async def acquire(self, seconds: float | None = None) -> None:
        """Wait until it is this task's turn.

        Raises:
            asyncio.TimeoutError: It was not within so many ``seconds``.
        """
        waiter = self._queue_up()
        if waiter is not None:
            try:
                await asyncio.wait_for(asyncio.wrap_future(waiter), seconds)
            except (asyncio.CancelledError, asyncio.TimeoutError):
                self._give_up(waiter)
                raise
        self.holder = asyncio.current_task()

    def release(self) -> None:
        """Let the next task in."""
        self.holder = None
        self._pass_on()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _queue_up(self) -> Future[None] | None:
        with self._mutex:
            if not self._held:
                self._held = True
                return None
            waiter: Future[None] = Future()
            self._waiters.append(waiter)
            return waiter

    def _give_up(self, waiter: Future[None]) -> None:
        with self._mutex:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                return
        # The lock was handed over in the moment of the cancellation: nobody else would release it.
        if not waiter.cancelled():
            self._pass_on()

    def _pass_on(self) -> None:
        with self._mutex:
            while self._waiters:
                waiter = self._waiters.popleft()
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(None)
                    return
            self._held = False


_locks: WeakValueDictionary[Hashable, SharedLock] = WeakValueDictionary()
_locks_guard = threading.Lock()


def lock_for(*door: Hashable) -> SharedLock:
    """The lock of this door, the same object for everyone who holds or awaits it at this time."""
    with _locks_guard:
        lock = _locks.get(door)
        if lock is None:
            lock = _locks[door] = SharedLock()
        return lock


def uninterrupted(
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Run a coroutine function to its end even if its caller is cancelled; the caller is cancelled then.

    SQLAlchemy throws a connection away when a statement on it is cancelled. With an in-memory database
    that is the whole database, and with any other it is unknown what was stored.
    """

    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.ensure_future(function(*args, **kwargs))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                logger.warning("%s failed after its caller was cancelled: %r", run.__name__, type(task.exception()))
            raise

    run.__doc__ = function.__doc__
    run.__name__ = getattr(function, "__name__", "run")
    return run
