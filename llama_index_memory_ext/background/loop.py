"""Locks and caches that threads share, and the event loop in which synchronous calls run."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from llama_index_memory_ext.errors import StoreError, TurnError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable

    from typing_extensions import Self


# How long a fork waits for other threads.
FORK_SECONDS = 2.0
_TRY_SECONDS = 0.02

K = TypeVar("K")
V = TypeVar("V")
Memory = TypeVar("Memory")

_locks: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakValueDictionary[Hashable, asyncio.Lock]
] = WeakKeyDictionary()


def lock_for(*name: Hashable) -> asyncio.Lock:
    """Return the lock of this name: all tasks of this event loop that use it wait for each other, in their order."""
    locks = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return locks.setdefault(name, asyncio.Lock())


# The tasks that run a turn now, in any event loop of this process.
_holders: dict[tuple[str, ...], asyncio.Task[Any] | None] = {}
_POLL_SECONDS = 0.02

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_holders.clear)


@asynccontextmanager
async def one_run(memory: Memory, name: tuple[str, ...]) -> AsyncIterator[Memory]:
    """Let one run of the session of this name through at a time, in this process.

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
                await asyncio.sleep(_POLL_SECONDS)
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
            while len(self._entries) > self.size:
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
            waited_in_vain.put(owner, value=True)
        await asyncio.sleep(_LOOK_SECONDS)


P = ParamSpec("P")
T = TypeVar("T")

# An event loop keeps no task alive, and the memory of a web request may be deleted
# before its jobs have ended.
_spawned: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work that no call waits for; it is cancelled when its background loop ends."""
    _spawned.difference_update(
        [task for task in list(_spawned) if task.get_loop().is_closed()]
    )
    task = asyncio.get_running_loop().create_task(work)
    _spawned.add(task)
    task.add_done_callback(_spawned.discard)
    return task


class BackgroundLoop:
    """An event loop in a separate thread, started at once; use it as a context manager.

    Tasks in the loop run beside the main thread. Ctrl-C reaches the main thread only:
    it ends the call that the main thread waits for, and no other task. At the end of
    the block all tasks are cancelled.
    """

    def __init__(self) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._end = asyncio.Event()
        self.thread = threading.Thread(
            None, asyncio.run, "memory calls", [self._serve(started)], daemon=True
        )
        self.thread.start()
        self.loop = started.result()

    async def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        started.set_result(asyncio.get_running_loop())
        await self._end.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, with the caller's context variables, and return its result.

        Ctrl-C cancels the coroutine, and is raised when it has ended.
        """
        try:
            running = asyncio.run_coroutine_threadsafe(call, self.loop)
            _wait_for(running)
        except KeyboardInterrupt:
            _wait_for(asyncio.run_coroutine_threadsafe(_cancel(call), self.loop))
            raise
        if running.cancelled():
            raise asyncio.CancelledError
        return running.result()

    def end(self, seconds: float | None = None) -> None:
        """Cancel all tasks, and wait until they have ended, at most so many ``seconds``."""
        self.loop.call_soon_threadsafe(self._end.set)
        self.thread.join(seconds)


def _wait_for(running: Future[Any]) -> None:
    while not running.done():
        # On Windows Ctrl-C does not reach a thread that waits without a timeout.
        wait([running], 0.2)


async def _cancel(call: Coroutine[Any, Any, Any]) -> None:
    """Cancel the task of a call, and wait for its end; Ctrl-C may have come before it had a task."""
    for task in asyncio.all_tasks():
        if task.get_coro() is call:
            task.cancel()
            await asyncio.wait([task])
    call.close()


# The loop of all synchronous calls of this process: started at its first use, ended
# with the program.
_shared: BackgroundLoop | None = None
_is_over = False
_guard = threading.RLock()
# Whether this is a call, or a job, in that loop: nothing in it may wait for the loop.
_is_within: ContextVar[bool] = ContextVar("is_within", default=False)
_of_parent: list[object] = []


def _shared_loop() -> BackgroundLoop | None:
    """Return the loop of all synchronous calls; None within its calls and jobs, and at the end of the program."""
    global _shared  # noqa: PLW0603 - one for each process
    with _guard:
        if (
            _is_over
            or _is_within.get()
            or (_shared is not None and _shared.thread is threading.current_thread())
        ):
            return None
        _shared = _shared or BackgroundLoop()
        return _shared


def _forget_loop() -> None:
    """Begin without a loop in a child process, in which no thread of the parent runs."""
    # Another thread of the parent may have held the guard. The parent's loop must not
    # be collected, because both processes share its selector.
    global _shared, _guard  # noqa: PLW0603 - one for each process
    _of_parent.extend([_shared, *_spawned])
    _shared = None
    _guard = threading.RLock()
    _spawned.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop)


@atexit.register
def _end_loop() -> None:
    # Registered at the import, so that it runs after the functions of the program.
    global _is_over  # noqa: PLW0603 - one for each process
    with _guard:
        _is_over = True
    if _shared is not None:
        # After this, the store waits for its writes.
        _shared.end(1.2)


def run(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, and return its result; a running event loop is blocked meanwhile.

    All calls of the process share one loop, with its connections, locks and jobs. A
    call within such a call, in a model's callback for example, has a separate loop,
    which ends with it. Ctrl-C cancels the call, and is raised when it has ended.

    Raises:
        StoreError: The interpreter is ending.
    """
    if sys.is_finalizing():
        call.close()
        raise StoreError(
            "A synchronous call needs a thread, and the interpreter, which is ending, has none any more. Nothing was "
            "read or written. Call it before the program ends, or in a function given to `atexit.register`."
        )
    shared = _shared_loop()
    if shared is None:
        with BackgroundLoop() as own:
            return own.run(call)
    context = copy_context()
    context.run(_is_within.set, True)  # noqa: FBT003 - the value of a variable
    return context.run(shared.run, call)


def other_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop of the synchronous calls, for which a task of this loop may wait.

    None if there is no such loop, or this is it.
    """
    shared = None if _shared is None else _shared_loop()
    return None if shared is None else shared.loop


def in_sync(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    *,
    after: Callable[[Any], Awaitable[object]] | None = None,
    note: str = "",
) -> Callable[Concatenate[Any, P], T]:
    """Return the synchronous twin of a method, named without the ``a``; the call ``after`` follows it."""

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def call() -> T:
            result: T = await getattr(self, method.__name__)(*args, **kwargs)
            if after is not None:
                await after(self)
            return result

        return run(call())

    twin.__name__ = method.__name__.removeprefix("a")
    twin.__doc__ = f"As ``{method.__name__}``{note}."
    return twin
