"""The event loops of this process: work without a caller, and synchronous calls."""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from contextvars import ContextVar, copy_context
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from llama_index_memory_ext.background.locks import at_fork, thread_lock
from llama_index_memory_ext.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")

# An event loop keeps no task alive, and the memory of a web request may be deleted
# before its jobs have ended.
_spawned: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work that no call waits for; the work is cancelled when its background loop ends."""
    _spawned.difference_update(
        [task for task in list(_spawned) if task.get_loop().is_closed()]
    )
    task = asyncio.get_running_loop().create_task(work)
    _spawned.add(task)
    task.add_done_callback(_spawned.discard)
    return task


class BackgroundLoop:
    """An event loop in a separate thread, started at once.

    Tasks in the loop run beside the main thread. Ctrl-C reaches the main thread only.
    There it ends the awaited call, and no other task.
    """

    def __init__(self) -> None:
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._end = asyncio.Event()
        self.thread = threading.Thread(None, self._run, "memory calls", daemon=True)
        self.thread.start()
        self.loop = self._started.result()

    def _run(self) -> None:
        # At the end of a program Python 3.12 refuses the thread in which asyncio ends the
        # loop's executor. No task runs at that time.
        with suppress(RuntimeError):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._started.set_result(asyncio.get_running_loop())
        await self._end.wait()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, with the caller's context variables, and return its result.

        Ctrl-C cancels the coroutine. When that has ended, KeyboardInterrupt is raised.
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

    def close(self, seconds: float | None = None) -> None:
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
# Held to begin the loop.
_guard = thread_lock()
# Whether this is a call or a job in that loop, which must not wait for the same loop.
_is_within: ContextVar[bool] = ContextVar("is_within", default=False)
# Objects of the parent process. Collected in a child, they would be closed for the
# parent, too.
objects_of_parent: list[object] = []


def _shared_loop() -> BackgroundLoop | None:
    """Return the loop of all synchronous calls; None within its calls and jobs, and at the end of the program."""
    global _shared  # noqa: PLW0603 - one for each process
    with _guard:
        if (
            _is_over
            or _is_within.get()
            or (_shared and _shared.thread is threading.current_thread())
        ):
            return None
        _shared = _shared or BackgroundLoop()
        return _shared


def _forget_loop() -> None:
    """Begin without a loop in a child process, in which no thread of the parent runs."""
    # The parent's loop must not be collected, because both processes share its selector.
    global _shared  # noqa: PLW0603 - one for each process
    objects_of_parent.extend([_shared, *_spawned])
    _shared = None
    _spawned.clear()


at_fork(after_in_child=_forget_loop)


@atexit.register
def _end_loop() -> None:
    # Registered at the import, so that it runs after the functions of the program.
    global _is_over  # noqa: PLW0603 - one for each process
    with _guard:
        _is_over = True
    if _shared:
        # After this, the store waits for its writes.
        _shared.close(1.2)


def run(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, and return its result; a running event loop is blocked meanwhile.

    All calls of the process share one loop, with its connections, locks and jobs. A
    call within such a call, in a model's callback for example, has a separate loop,
    which ends with it. Ctrl-C cancels the call. When that has ended, KeyboardInterrupt
    is raised.

    Raises:
        StoreError: The interpreter is ending.
    """
    if sys.is_finalizing():
        call.close()
        raise StoreError(
            "A synchronous call needs a thread, and the interpreter is shutting down. Nothing was "
            "read or written. Call it before the program ends, or in a function given to `atexit.register`."
        )
    shared = _shared_loop()
    if shared is None:
        with closing(BackgroundLoop()) as own:
            return own.run(call)
    context = copy_context()
    context.run(_is_within.set, True)  # noqa: FBT003 - the value of a variable
    return context.run(shared.run, call)


def other_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop of the synchronous calls, for which a task of this loop may wait.

    None if there is no such loop, or this is it.
    """
    shared = _shared and _shared_loop()
    return shared.loop if shared else None


def in_sync(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    *,
    after: Callable[[Any], Awaitable[object]] | None = None,
    note: str | None = "",
) -> Callable[Concatenate[Any, P], T]:
    """Return the synchronous twin of a method, named without the ``a``.

    ``after``: a call that follows the method. ``note``: the end of the twin's docstring;
    None: the twin has the docstring of the method.
    """

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def call() -> T:
            result: T = await getattr(self, method.__name__)(*args, **kwargs)
            if after is not None:
                await after(self)
            return result

        return run(call())

    twin.__name__ = method.__name__.removeprefix("a")
    if note is not None:
        twin.__doc__ = f"As ``{method.__name__}``{note}."
    return twin
