"""Event loops and threads of a process: locks, a cache, synchronous calls, the threads of stores, early imports."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import wraps
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
)
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from llama_index_memory_ext.errors import StoreError, TurnError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable

    from sqlalchemy import Connection
    from typing_extensions import Self

logger = logging.getLogger(__name__)

# Takes functions to call around a fork; where processes cannot fork, never calls them.
at_fork = getattr(os, "register_at_fork", lambda **_: None)
# How many seconds a fork waits for other threads.
FORK_SECONDS = 2.0
_TRY_SECONDS = 0.02
# The seconds between two looks at a state that no event reports.
LOOK_SECONDS = 0.01

K = TypeVar("K")
V = TypeVar("V")
Memory = TypeVar("Memory")

# ---- locks of tasks and of threads ----

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


# ---- a cache that threads share ----


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


# ---- jobs that a question waits for ----

# The tasks of jobs in this process, in any event loop, that have neither ended nor
# failed, each with the owner of its result and its session.
running_jobs: dict[asyncio.Task[Any], tuple[tuple[str, ...], str]] = {}
# The owners whose last job has failed, or took longer than a question waits: no
# question waits until a job has succeeded.
owners_not_waited_for: Recent[tuple[str, ...], bool] = Recent(1_000)

# No job of the parent ends in its child.
at_fork(after_in_child=running_jobs.clear)


async def wait_for_owner(
    owner: tuple[str, ...], seconds: float, *, except_session: str | None = None
) -> None:
    """Wait until the jobs of an owner in this process have ended, except jobs of the session ``except_session``.

    The wait takes at most so many ``seconds``. After a job that has failed, or that
    took longer, no call waits until a job has succeeded.
    """
    tasks = [
        task
        for task, (whose, session_id) in list(running_jobs.items())
        if whose == owner and session_id != except_session
    ]
    end = time.monotonic() + seconds
    while any(task in running_jobs for task in tasks) and not owners_not_waited_for.get(
        owner
    ):
        if time.monotonic() >= end:
            owners_not_waited_for.put(owner, value=True)
        await asyncio.sleep(LOOK_SECONDS)


# ---- work without a caller, and synchronous calls ----

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
    """An event loop in a separate thread, started at once; use it as a context manager.

    Tasks in the loop run beside the main thread. Ctrl-C reaches the main thread only.
    There it ends the awaited call, and no other task. At the end of the block all
    tasks are cancelled.
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
# Held to begin the loop, to register threads and databases, and to count forks.
_guard = thread_lock()
# Whether this is a call or a job in that loop, which must not wait for the same loop.
_is_within: ContextVar[bool] = ContextVar("is_within", default=False)
# Objects of the parent process. Collected in a child, they would be closed for the
# parent, too.
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
    # The parent's loop must not be collected, because both processes share its selector.
    global _shared  # noqa: PLW0603 - one for each process
    _of_parent.extend([_shared, *_spawned])
    _shared = None
    _spawned.clear()


at_fork(after_in_child=_forget_loop)


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
    which ends with it. Ctrl-C cancels the call. When that has ended, KeyboardInterrupt
    is raised.

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
    note: str | None = "",
) -> Callable[Concatenate[Any, P], T]:
    """Return the synchronous twin of a method, named without the ``a``; the call ``after`` follows it.

    Without a ``note``, None, the twin has the docstring of the method.
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


# ---- the threads of stores: a queue of jobs for each database ----

# How long the end of the program waits for writes.
_END_SECONDS = 1.0
# How long a thread without a job stays.
_IDLE_SECONDS = 10.0


class Forkable(Protocol):
    """A database, as a fork of the process sees it."""

    def is_used_by_thread(self) -> bool:
        """Return whether the fork waits for a thread that works on this database."""

    def close_before_fork(self) -> None:
        """Close the connections that a child must not inherit."""

    def begin_in_child(self) -> object:
        """Begin anew in the child, and return an object of the parent that must not be collected."""


@dataclass(eq=False)
class Job:
    """Work on a database that a caller waits for.

    ``owner``: the id of the ``Database``.
    ``work``: runs the ``step`` in this thread.
    ``step``: a function of a connection.
    ``name``: the job in messages, as "Log.append".
    ``locks``: of the jobs that share a lock, one runs at a time.
    ``answer``: a future of the caller's loop.
    ``writes``: before the work, whether it may write; after it, whether it has stored.
    ``in_transaction``: whether a write runs in a transaction.
    ``context``: the context variables of the caller.
    """

    owner: int
    work: Callable[[Job], Any]
    step: Callable[[Connection], Any]
    name: str
    locks: set[Any]
    answer: asyncio.Future[Any]
    writes: bool
    in_transaction: bool
    context: Context = field(default_factory=copy_context)

    def run(self) -> None:
        """Do the work in this thread, and give the answer to the caller."""
        result = error = None
        try:
            result = self.context.run(self.work, self)
        except BaseException as raised:  # noqa: BLE001 - the caller gets any error
            error = raised
        pending.discard(self)
        # Once the caller has its answer, this thread must not hold the last reference to
        # the store.
        del self.work, self.step, self.context
        try:
            self.answer.get_loop().call_soon_threadsafe(self.deliver, result, error)
        except RuntimeError:
            # The loop was closed.
            self.deliver(None, error)

    def deliver(self, result: Any, error: BaseException | None) -> None:
        """Give the answer to the caller; if the caller has gone, log the outcome of a write."""
        if self.answer.done() or self.answer.get_loop().is_closed():
            if self.writes:
                self._log_outcome(error)
        elif error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)

    def _log_outcome(self, error: BaseException | None) -> None:
        if error is None:
            logger.info(
                "%s was completed after its caller had gone: it was stored.", self.name
            )
        elif isinstance(error, asyncio.CancelledError):
            logger.warning(
                "%s did not end after its caller had gone: it is unknown whether it was stored.",
                self.name,
            )
        else:
            logger.warning(
                "%s failed after its caller had gone (%s): nothing was stored.",
                self.name,
                type(error.__cause__ or error).__name__,
            )


# The jobs of this process that have not ended.
pending: set[Job] = set()


class Threads:
    """At most ``width`` threads for the jobs on one database; they do not delay the end of the program.

    Of the jobs that share a lock, one runs at a time, in the order of the calls. A
    waiting job takes no thread.
    """

    # The threads that fork this process now. No job begins meanwhile.
    forks_under_way: ClassVar[int] = 0

    def __init__(self, width: int) -> None:
        self._width = width
        # How many threads there are, how many wait for a job, and how many run a job.
        self._running = 0
        self._idle = 0
        self._working = 0
        self._changed = threading.Condition(thread_lock())
        self._waiting: deque[Job] = deque()
        self._locked: set[Any] = set()

    def enter(self, job: Job) -> None:
        """Run a job as soon as no running or earlier job holds its locks."""
        with self._changed:
            self._waiting.append(job)
            self._wake()

    def withdraw(self, job: Job) -> None:
        """Cancel a job that has not begun."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                pending.discard(job)

    def is_working(self) -> bool:
        """Return whether a thread runs a job."""
        with self._changed:
            return self._working > 0

    def go_on(self) -> None:
        """Begin the jobs that have waited for a fork."""
        with self._changed:
            if self._waiting:
                self._wake()

    def _wake(self) -> None:
        if self._idle:
            self._changed.notify()
        elif self._running < self._width:
            self._running += 1
            threading.Thread(
                target=self._work, name="memory store", daemon=True
            ).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                job = self._changed.wait_for(self._next, _IDLE_SECONDS)
                self._idle -= 1
                if job is None:
                    self._running -= 1
                    return
                self._waiting.remove(job)
                self._working += 1
                self._locked |= job.locks
                if self._next():
                    self._wake()
            job.run()
            with self._changed:
                self._working -= 1
                self._locked -= job.locks
            # An idle thread must not keep the answer alive.
            del job

    def _next(self) -> Job | None:
        """Return the first job whose locks no running or earlier job holds."""
        if Threads.forks_under_way:
            return None
        locked = set(self._locked)
        for job in self._waiting:
            if locked.isdisjoint(job.locks):
                return job
            locked |= job.locks
        return None


# All stores of this process on the same database share their threads.
_threads: WeakValueDictionary[Hashable, Threads] = WeakValueDictionary()
_databases: WeakSet[Forkable] = WeakSet()


def threads_for(place: str, width: int, database: Forkable) -> Threads:
    """Return the threads of this process for a database, and let the database know of forks."""
    with _guard:
        _databases.add(database)
        return _threads.setdefault((place, width), Threads(width))


def _all_databases() -> list[Forkable]:
    with _guard:
        return list(_databases)


def _prepare_fork() -> None:
    """Begin no more jobs, wait a while for jobs on SQLite, and close the connections to SQLite files."""
    with _guard:
        Threads.forks_under_way += 1
    end = time.monotonic() + FORK_SECONDS
    databases = _all_databases()
    while time.monotonic() < end and any(
        database.is_used_by_thread() for database in databases
    ):
        time.sleep(LOOK_SECONDS)
    for database in _all_databases():
        database.close_before_fork()


def _go_on_in_parent() -> None:
    with _guard:
        Threads.forks_under_way -= 1
        all_threads = list(_threads.values())
    for threads in all_threads:
        threads.go_on()


def _begin_in_child() -> None:
    Threads.forks_under_way = 0
    _of_parent.extend([list(pending), list(_threads.values())])
    pending.clear()
    _threads.clear()
    for database in _all_databases():
        engine = database.begin_in_child()
        _of_parent.append(engine)


# Registered after ``_hold_locks``, so that ``_prepare_fork`` runs before it: jobs that
# end need the locks.
at_fork(
    before=_prepare_fork,
    after_in_parent=_go_on_in_parent,
    after_in_child=_begin_in_child,
)


@atexit.register
def _finish_writes() -> None:
    """Let writes end before the program does, unless the database does not answer."""
    end = time.monotonic() + _END_SECONDS
    while time.monotonic() < end and any(job.writes for job in list(pending)):
        time.sleep(LOOK_SECONDS)


# ---- modules that are imported early ----

# The modules of the first extraction. With their data, they take a second of processor
# time. Each module is imported by itself, so that a fork waits for one import at most.
# py3langid needs the encodings.
_MODULES = (
    "encodings.ascii",
    "encodings.cp437",
    "py3langid.langid",
    "rapidfuzz.fuzz",
    "rapidfuzz.distance",
)

# Held during an import and during a fork: a child of the fork would never get the module
# that another thread is importing.
_importing = threading.RLock()
_loaders: list[threading.Thread] = []

at_fork(
    before=_importing.acquire,
    after_in_parent=_importing.release,
    after_in_child=_importing.release,
)
# The thread of the parent does not go on in its child.
at_fork(after_in_child=_loaders.clear)


def start_loading(*modules: str) -> None:
    """Start a thread, once in a process, that imports ``modules`` and the modules of the first extraction.

    The thread does not delay the end of the program.
    """
    if not _loaders:
        # The thread suppresses errors, because the extraction raises them again.
        thread = threading.Thread(
            target=_load, args=(modules,), name="language", daemon=True
        )
        _loaders.append(thread)
        # A program that ends starts no thread any more.
        with suppress(RuntimeError):
            thread.start()


async def wait_until_loaded() -> None:
    """Wait until the thread has loaded all modules; return at once if none runs."""
    for thread in _loaders:
        # A waiting thread of an executor would delay the end of the program.
        while thread.is_alive():  # noqa: ASYNC110 - it ends in no event loop
            await asyncio.sleep(LOOK_SECONDS)


def _load(modules: tuple[str, ...]) -> None:
    with suppress(Exception):
        for name in (*modules, *_MODULES):
            with _importing:
                import_module(name)
        with _importing:
            # By name, because these modules import this file.
            tokens = import_module("llama_index_memory_ext.words.tokens")
            comparison = import_module("llama_index_memory_ext.checks.comparison")
        words = "I moved to Oslo three weeks ago, with my two cats."
        statement = "Moved to Oslo on 3 May 2023 with 2 cats"
        tokens.keywords(words)
        comparison.says_more(statement, words, "", datetime.now(timezone.utc).date())
