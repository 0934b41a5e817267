"""Locks, caches and event loops that tasks and threads of this process share."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Coroutine, Hashable

    from typing_extensions import Self

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

# On Windows Ctrl-C does not reach a thread that waits without a timeout.
_WAIT_SECONDS = 0.2


class SharedLock:
    """A first-come, first-served lock for tasks of any event loop in any thread.

    ``asyncio.Lock`` belongs to one event loop, and waiting for a ``threading.Lock`` blocks the whole loop. Here a
    waiter is a future that the releasing thread completes.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        # The first is the holder's.
        self._queue: deque[Future[None]] = deque()
        self.holder: asyncio.Task[object] | None = None

    async def acquire(self, seconds: float | None = None) -> None:
        """Wait until it is this task's turn; raises an ``asyncio.TimeoutError`` after so many ``seconds``."""
        waiter: Future[None] = Future()
        with self._mutex:
            self._queue.append(waiter)
            must_wait = len(self._queue) > 1
        if must_wait:
            try:
                await asyncio.wait_for(asyncio.wrap_future(waiter), seconds)
            except (asyncio.CancelledError, asyncio.TimeoutError):
                # If the lock was handed over in the moment of the cancellation, nobody else would release it.
                if not waiter.cancel():
                    self.release()
                raise
        self.holder = asyncio.current_task()

    def release(self) -> None:
        """Let the next task in."""
        self.holder = None
        with self._mutex:
            self._queue.popleft()
            while self._queue and not self._queue[0].set_running_or_notify_cancel():
                self._queue.popleft()
            if self._queue:
                self._queue[0].set_result(None)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


_locks: WeakValueDictionary[Hashable, SharedLock] = WeakValueDictionary()
_locks_guard = threading.Lock()


def lock_for(*name: Hashable) -> SharedLock:
    """The lock of this name: the same object for all tasks that hold it or wait for it at this time."""
    with _locks_guard:
        return _locks.setdefault(name, SharedLock())


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


class BackgroundLoop:
    """An event loop in a thread of its own; use it as a context manager.

    Tasks in the loop go on while the main thread does something else. Ctrl-C reaches the main thread only: it ends the
    call that the main thread waits for, and no other task. At the end of the block all tasks are cancelled.
    """

    def __init__(self) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.result().call_soon_threadsafe(self._end.set)
        self._thread.join()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop, and returns its result; after Ctrl-C it was cancelled, and has ended."""
        loop = self._started.result()
        started: Future[asyncio.Task[T]] = Future()
        ended: Future[None] = Future()

        def start() -> None:
            task = loop.create_task(call)
            task.add_done_callback(lambda _: ended.set_result(None))
            started.set_result(task)

        try:
            loop.call_soon_threadsafe(start)
            _wait_for(ended)
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(started.result().cancel)
            _wait_for(ended)
            raise
        return started.result().result()

    async def _serve(self) -> None:
        self._started.set_result(asyncio.get_running_loop())
        await self._end.wait()


def _wait_for(future: Future[Any]) -> None:
    while not future.done():
        wait([future], _WAIT_SECONDS)
