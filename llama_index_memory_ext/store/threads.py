"""Runs the work of a database in threads, and brings its results to the event loops of the callers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.store.transaction import UnchangedError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# How long a thread without work stays.
_IDLE_SECONDS = 10.0


@dataclass(eq=False)
class Job:
    """Work that a caller waits for; ``names`` are what it needs for itself alone.

    It leaves ``pending`` when it has ended. ``answer`` is of the caller's event loop, and ``timer`` ends the wait.
    """

    work: Callable[[], Any]
    name: str
    names: frozenset[Any]
    writes: bool
    answer: asyncio.Future[Any]
    pending: set[Job]
    timer: asyncio.TimerHandle | None = None
    context: Context = field(default_factory=copy_context)

    def run(self) -> None:
        """Do the work, and give the answer to the caller."""
        result = error = None
        try:
            result = self.context.run(self.work)
        except BaseException as raised:  # noqa: BLE001 - whatever it is belongs to the caller
            error = raised
        self.pending.discard(self)
        # Who is answered may be the last who knows the store.
        del self.work, self.context
        try:
            self.answer.get_loop().call_soon_threadsafe(self.deliver, result, error)
        except RuntimeError:
            # The loop was closed.
            self._tell(error)

    def deliver(self, result: Any, error: BaseException | None) -> None:
        """Give the caller the answer; where it has gone, the log says what has become of its write."""
        if self.timer is not None:
            self.timer.cancel()
        if self.answer.done():
            self._tell(error)
        elif error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)

    def _tell(self, error: BaseException | None) -> None:
        if not self.writes or isinstance(error, UnchangedError):
            return
        if error is None:
            logger.info("%s was completed after its caller had gone: it was stored.", self.name)
        elif isinstance(error, asyncio.CancelledError):
            logger.warning("%s did not end after its caller had gone: it is unknown whether it was stored.", self.name)
        else:
            kind = type(error.__cause__ or error).__name__
            logger.warning("%s failed after its caller had gone (%s): nothing was stored.", self.name, kind)


class Threads:
    """At most ``width`` threads for the jobs on one database; none of them holds up the end of the program.

    Of the jobs that share a name, one runs at a time, in the order of their coming. Those that wait take no thread.
    """

    def __init__(self, width: int) -> None:
        self._width, self._running, self._idle = width, 0, 0
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._taken: set[Any] = set()

    def enter(self, job: Job) -> None:
        """Run a job when its turn has come."""
        with self._changed:
            self._waiting.append(job)
            self._wake()

    def withdraw(self, job: Job) -> None:
        """Let a job that has not begun not begin."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                job.pending.discard(job)

    def _wake(self) -> None:
        if self._idle:
            self._changed.notify()
        elif self._running < self._width:
            self._running += 1
            threading.Thread(target=self._work, name="memory store", daemon=True).start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            with self._changed:
                self._taken -= job.names
            del job

    def _next(self) -> Job | None:
        """The next job that may begin; None if there was none for a while."""
        with self._changed:
            waited = False
            while True:
                before = set(self._taken)
                for job in self._waiting:
                    if before.isdisjoint(job.names):
                        self._waiting.remove(job)
                        self._taken |= job.names
                        if any(self._taken.isdisjoint(other.names) for other in self._waiting):
                            self._wake()
                        return job
                    # Those that come later wait for it, too.
                    before |= job.names
                if waited:
                    self._running -= 1
                    return None
                self._idle += 1
                waited = not self._changed.wait(_IDLE_SECONDS)
                self._idle -= 1
