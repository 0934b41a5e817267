"""Runs calls of code without an event loop: all of them in one loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from concurrent.futures import Future, wait
from contextvars import Context, ContextVar, copy_context
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from llama_index_memory_ext.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")

# On Windows Ctrl-C does not reach a thread that waits without a timeout.
_WAIT_SECONDS = 0.2
# How long the end of the program waits for what is cancelled then.
_END_SECONDS = 5.0

# An event loop keeps no task alive, and the memory of a web request may be deleted before its jobs have ended.
_spawned: set[asyncio.Task[Any]] = set()
_of_parent: list[object] = []


def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Starts work that no call waits for. It is cancelled when the background loop in which it runs ends."""
    for task in [task for task in list(_spawned) if task.get_loop().is_closed()]:
        _spawned.discard(task)
    task = asyncio.get_running_loop().create_task(work)
    _spawned.add(task)
    task.add_done_callback(_spawned.discard)
    return task


class BackgroundLoop:
    """An event loop in a thread of its own; use it as a context manager.

    Tasks in the loop go on while the main thread does something else. Ctrl-C reaches the main thread only: it ends the
    call that the main thread waits for, and no other task. At the end of the block all tasks are cancelled.
    """

    def __init__(self) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._end = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="memory calls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        return self._started.result()

    @property
    def is_here(self) -> bool:
        """Whether this is the thread of the loop."""
        return threading.current_thread() is self._thread

    def run(self, call: Coroutine[Any, Any, T], context: Context | None = None) -> T:
        """Runs a coroutine in the loop, and returns its result; after Ctrl-C it was cancelled, and has ended.

        It sees the context variables of the caller, or those of the ``context``.
        """
        running = _Call(call, self._calls)
        try:
            self.loop.call_soon_threadsafe(running.start, context=context or copy_context())
            _wait_for(running.ended)
        except KeyboardInterrupt:
            self.loop.call_soon_threadsafe(running.cancel)
            _wait_for(running.ended)
            raise
        return running.result()

    def end(self, seconds: float | None = None) -> None:
        """Cancel all tasks, and wait until they have ended; at most so many seconds."""
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(seconds)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._started.set_result(loop)
        await self._end.wait()
        # These end what they have begun with the database. Then ``asyncio.run`` cancels the rest.
        await _cancelled([*self._calls, *(task for task in list(_spawned) if task.get_loop() is loop)])


class _Call(Generic[T]):
    """A coroutine that another thread waits for."""

    def __init__(self, call: Coroutine[Any, Any, T], calls: set[asyncio.Task[Any]]) -> None:
        self._call, self._calls = call, calls
        self._task: asyncio.Task[T] | None = None
        self.ended: Future[None] = Future()

    def start(self) -> None:
        if self.ended.done():
            return
        self._task = asyncio.get_running_loop().create_task(self._call)
        self._calls.add(self._task)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self.ended.done():
            self._call.close()
            self.ended.set_result(None)

    def result(self) -> T:
        if self._task is None:
            raise asyncio.CancelledError
        return self._task.result()

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._calls.discard(task)
        # Of one that was cancelled before it has begun.
        self._call.close()
        self.ended.set_result(None)


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)


def _wait_for(future: Future[Any]) -> None:
    while not future.done():
        wait([future], _WAIT_SECONDS)


# Whether this is a call, or a job, in the loop that all synchronous calls share: nothing in it may wait for that loop.
_is_within: ContextVar[bool] = ContextVar("is_within", default=False)


class _Shared:
    """The loop of all synchronous calls of this process: started at first use, ended with the program."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._loop: BackgroundLoop | None = None
        self._is_over = False

    def opened(self) -> BackgroundLoop | None:
        """The loop; None in its own calls and jobs, and at the end of the program."""
        with self._guard:
            if self._is_over or _is_within.get() or (self._loop is not None and self._loop.is_here):
                return None
            if self._loop is None:
                self._loop = BackgroundLoop().__enter__()
            return self._loop

    def other_than_running(self) -> asyncio.AbstractEventLoop | None:
        """The loop if there is one that a task here can wait for: in another loop, and not within a call of it."""
        if self._loop is None or self.opened() is None:
            return None
        return self._loop.loop

    def end(self) -> None:
        with self._guard:
            self._is_over = True
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.end(_END_SECONDS)


_shared = _Shared()


def _forget_loop() -> None:
    """No thread of the parent process runs in its child."""
    # Another thread of the parent may have held its guard. Its loop must not be collected: they share its selector.
    global _shared  # noqa: PLW0603 - one for each process
    _of_parent.extend([_shared, *_spawned])
    _shared = _Shared()
    _spawned.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop)


@atexit.register
def _end_loop() -> None:
    # Registered at the import, so that it runs after what the program registers.
    _shared.end()


def run(call: Coroutine[Any, Any, T]) -> T:
    """Returns what a call returns, from code without an event loop, or in one that is blocked meanwhile.

    All calls of the process share one loop, with its connections, locks and jobs. A call within such a call, in a
    model's callback for example, has a loop of its own, which ends with it. Ctrl-C cancels the call, and is raised when
    it has ended. A StoreError if the interpreter is ending.
    """
    if sys.is_finalizing():
        call.close()
        raise StoreError(
            "A synchronous call needs a thread, and the interpreter, which is ending, has none any more. Nothing was "
            "read or written. Call it before the program ends, or in a function given to `atexit.register`."
        )
    shared = _shared.opened()
    if shared is None:
        with BackgroundLoop() as own:
            return own.run(call)
    context = copy_context()
    context.run(_is_within.set, True)  # noqa: FBT003 - the value of a variable
    return shared.run(call, context)


def other_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of the synchronous calls, if there is one and it is not this one: a task here may wait for it."""
    return _shared.other_than_running()


def in_sync(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    *,
    after: Callable[[Any], Awaitable[object]] | None = None,
    note: str = "",
) -> Callable[Concatenate[Any, P], T]:
    """Returns the synchronous twin of a method, named without the ``a``; ``after`` it another call may follow."""

    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await getattr(self, method.__name__)(*args, **kwargs)
        if after is not None:
            await after(self)
        return result

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(call(self, *args, **kwargs))

    twin.__name__ = method.__name__.removeprefix("a")
    twin.__doc__ = f"As ``{method.__name__}``{note}."
    return twin
