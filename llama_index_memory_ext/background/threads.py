"""The threads of stores: a queue of jobs for each database."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
from collections import deque
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from weakref import WeakSet, WeakValueDictionary

from llama_index_memory_ext.background.locks import (
    FORK_SECONDS,
    LOOK_SECONDS,
    at_fork,
    thread_lock,
)
from llama_index_memory_ext.background.loop import objects_of_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from sqlalchemy import Connection


logger = logging.getLogger(__name__)

# How long the end of the program waits for writes.
_END_SECONDS = 1.0
# How long a thread without a job stays.
_IDLE_SECONDS = 10.0


# Held to register threads and databases, and to count forks.
_guard = thread_lock()


class Forkable(Protocol):
    """A database, as a fork of the process sees it."""

    def close_before_fork(self) -> bool:
        """Close the connections that a child must not inherit; False as long as a thread uses them."""

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
    ``context``: the context variables of the caller.
    """

    owner: int
    work: Callable[[Job], Any]
    step: Callable[[Connection], Any]
    name: str
    locks: set[Any]
    answer: asyncio.Future[Any]
    writes: bool
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
        # How many threads there are, and how many of them run no job.
        self._running = 0
        self._idle = 0
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
            return self._running > self._idle

    def go_on(self) -> None:
        """Begin the jobs that have waited for a fork."""
        with self._changed:
            if self._waiting:
                self._wake()

    def _wake(self) -> None:
        if self._idle:
            self._changed.notify()
        elif self._running < self._width:
            threading.Thread(
                target=self._work, name="memory store", daemon=True
            ).start()
            self._running += 1
            self._idle += 1

    def _work(self) -> None:
        while True:
            with self._changed:
                job = self._changed.wait_for(self._next, _IDLE_SECONDS)
                self._idle -= 1
                if job is None:
                    self._running -= 1
                    return
                self._waiting.remove(job)
                self._locked |= job.locks
                if self._next():
                    self._wake()
            job.run()
            with self._changed:
                self._idle += 1
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


def _prepare_fork() -> None:
    """Begin no more jobs, wait a while for jobs on SQLite, and close the connections to SQLite files."""
    with _guard:
        Threads.forks_under_way += 1
        databases = list(_databases)
    end = time.monotonic() + FORK_SECONDS
    while databases and time.monotonic() < end:
        databases = [base for base in databases if not base.close_before_fork()]
        if databases:
            time.sleep(LOOK_SECONDS)


def _go_on_in_parent() -> None:
    with _guard:
        Threads.forks_under_way -= 1
        all_threads = list(_threads.values())
    for threads in all_threads:
        threads.go_on()


def _begin_in_child() -> None:
    Threads.forks_under_way = 0
    objects_of_parent.extend([*pending, *_threads.values()])
    pending.clear()
    _threads.clear()
    for database in _databases:
        objects_of_parent.append(database.begin_in_child())


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
