"""Runs work in the background: one job at a time for each key, and again after a failure, with growing pauses."""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from llama_index_memory_ext.background.leftovers import tell_at_the_end
from llama_index_memory_ext.background.loop import other_loop, spawn
from llama_index_memory_ext.errors import NoModelError
from llama_index_memory_ext.events import JobFailedEvent, send, span

if TYPE_CHECKING:
    from collections.abc import Collection

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 300.0
# The longest pause is reached long before; a larger power of 2 may be no float.
_MOST_DOUBLINGS = 30
# The number of keys whose failures are remembered.
_MOST_FAILURES = 1_000

Work: TypeAlias = Callable[[], Awaitable[object]]


class JobKey(NamedTuple):
    """What a job belongs to: a session, and the reader of its log that the job works for."""

    session_id: str
    reader: str = ""


class Stoppable(Protocol):
    """Something that has work under way in an event loop."""

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Cancel the work of these sessions or users in this event loop; None: all of it."""


@dataclass
class BackOff:
    """Counts failures in a row; each pause is twice as long as the one before, up to 300 seconds."""

    first_pause_seconds: float
    failures: int = 0
    resume_at: float = 0.0

    @property
    def pausing(self) -> bool:
        """Whether a pause is under way."""
        return self.failures > 0 and time.monotonic() < self.resume_at

    def failed(self) -> float:
        """Count a failure, and return its pause in seconds."""
        pause = pause_seconds(self.first_pause_seconds, self.failures)
        self.failures += 1
        self.resume_at = time.monotonic() + pause
        return pause

    def succeeded(self) -> None:
        """Let the next pause be a short one again; within a pause nothing changes."""
        if not self.pausing:
            self.failures = 0


def pause_seconds(first: float, failures: int) -> float:
    """The pause after a failure, where there were ``failures`` in a row before it: at most 300 seconds."""
    return min(first * 2.0 ** min(failures, _MOST_DOUBLINGS), LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of a job: how many there were in a row, the type of the error, and when it was (UTC).

    The job is not tried again before ``retry_at``; None: the next start tries again.
    """

    failures: int
    error: str
    at: datetime
    retry_at: datetime | None = None


def _new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass
class _Job:
    """A job under way, with the work of the last start: an earlier one may have had a model that fails.

    ``again``: there was a start since the last attempt began. ``awaited``: a caller waits. ``attempt`` is done at the
    end of the attempt under way, ``following`` at the end of the next one.
    """

    work: Work
    pause_seconds: float
    task: asyncio.Task[None]
    again: bool = True
    pausing: bool = False
    awaited: bool = False
    attempt: asyncio.Future[None] = field(default_factory=_new_future)
    following: asyncio.Future[None] = field(default_factory=_new_future)


class Jobs:
    """Jobs of one kind, at most one for each key and event loop, and the last failure of each key.

    ``kind`` names their spans and their failures in ``astats``. The log says ``failed`` of a failure: "Facts were not
    extracted".
    """

    def __init__(self, kind: str, failed: str, event: type[JobFailedEvent] | None = None) -> None:
        self.kind = kind
        self._failed = failed
        self._event = event
        self._jobs: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[JobKey, _Job]] = WeakKeyDictionary()
        self._failures: dict[JobKey, Failure] = {}
        # How often the work of a key was halved, because it was too much for a model.
        self.halvings: Counter[JobKey] = Counter()

    def start(self, key: JobKey, work: Work, pause_seconds: float) -> None:
        """Run the work in the background, or once more after the job of this key that is under way.

        ``pause_seconds`` is the pause after a first failure.
        """
        job = self._running(key)
        if job is not None:
            job.work, job.pause_seconds, job.again = work, pause_seconds, True
            return
        for reference in self._jobs.keyrefs():
            loop = reference()
            if loop is not None and loop.is_closed():
                self._jobs.pop(loop, None)
        task = spawn(self._run(key))
        job = self._jobs.setdefault(task.get_loop(), {})[key] = _Job(work, pause_seconds, task)
        task.add_done_callback(partial(self._remove, key, job))

    def failure_of(self, key: JobKey) -> Failure | None:
        """The last failure since the last success; None if there is none."""
        return self._failures.get(key)

    def failures_of(self, key: JobKey) -> int:
        """The number of failures since the last success."""
        failure = self._failures.get(key)
        return failure.failures if failure else 0

    async def wait(self, key: JobKey) -> None:
        """Wait until the job of a key has ended; a job that pauses after a failure is cancelled instead."""
        job = self._awaited(key)
        if job is not None:
            await asyncio.wait([job.task])

    async def wait_for_started(self, session_id: str) -> None:
        """Wait until the jobs of a session have done, or failed to do, what was started so far; more may follow."""
        jobs = [self._awaited(key) for key in list(self._here()) if key.session_id == session_id]
        for job in filter(None, jobs):
            await asyncio.wait([job.task, job.following if job.again else job.attempt], return_when=FIRST_COMPLETED)

    async def finish(self, key: JobKey, work: Work) -> None:
        """Run the work now, after the job that is under way; a failure is logged, and the next start tries again."""
        await self.wait(key)
        await self._attempt(key, work, None)

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Cancel the jobs of these sessions in this event loop; None: all."""
        jobs = [job for key, job in self._here().items() if names is None or key.session_id in names]
        for job in jobs:
            job.task.cancel()
        if jobs:
            await asyncio.wait([job.task for job in jobs])

    def _here(self) -> dict[JobKey, _Job]:
        """The jobs that are under way in this event loop: no other loop could wait for them."""
        return self._jobs.get(asyncio.get_running_loop(), {})

    def _running(self, key: JobKey) -> _Job | None:
        job = self._here().get(key)
        return job if job is not None and not job.task.done() else None

    def _awaited(self, key: JobKey) -> _Job | None:
        """The job of a key, for which a caller is about to wait; None if none is under way."""
        job = self._running(key)
        if job is not None:
            job.awaited = True
            if job.pausing:
                job.task.cancel()
        return job

    def _remove(self, key: JobKey, job: _Job, _: asyncio.Task[None]) -> None:
        # A task keeps its event loop alive. Another job of the key may have begun before this callback.
        if self._here().get(key) is job:
            del self._here()[key]

    async def _run(self, key: JobKey) -> None:
        job = self._here()[key]
        while True:
            failure, now = self.failure_of(key), datetime.now(timezone.utc)
            if failure and failure.retry_at and failure.retry_at > now:
                if job.awaited:
                    return
                job.pausing = True
                # The clock may have been set back.
                await asyncio.sleep(min((failure.retry_at - now).total_seconds(), LONGEST_PAUSE_SECONDS))
            job.pausing = job.again = False
            job.attempt, job.following = job.following, _new_future()
            succeeded = await self._attempt(key, job.work, job.pause_seconds)
            job.attempt.set_result(None)
            if job.awaited and not succeeded:
                return
            if succeeded and not job.again:
                return

    async def _attempt(self, key: JobKey, work: Work, pause: float | None) -> bool:
        """Run the work once, and remember a failure; without a ``pause`` nothing is about to try again."""
        with span(f"memory {self.kind}"):
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - a model may fail in any way, and no turn may suffer from it
                self._remember(key, error, pause)
                return False
        self._failures.pop(key, None)
        return True

    def _remember(self, key: JobKey, error: Exception, first_pause: float | None) -> None:
        earlier = self._failures.pop(key, None)
        failures = earlier.failures if earlier else 0
        at = datetime.now(timezone.utc)
        pause, outcome = None, "the next start of this session's memory tries again"
        retry_at = earlier.retry_at if earlier else None
        if first_pause is not None:
            pause = pause_seconds(first_pause, failures)
            retry_at, outcome = at + timedelta(seconds=pause), f"trying again in {pause:g} s"
        failure = Failure(failures + 1, type(error).__name__, at, retry_at)
        self._failures[key] = failure
        # That there is no model is said once, and not again with each pause.
        if not (earlier and earlier.error == failure.error == NoModelError.__name__):
            log_failure(self._failed, key.session_id, error, outcome)
        if len(self._failures) > _MOST_FAILURES:
            del self._failures[next(iter(self._failures))]
        if self._event is not None:
            number = failure.failures
            send(self._event(session_id=key.session_id, error=failure.error, failures=number, retry_seconds=pause))


class JobRegistry:
    """The jobs of all memories on one store, so that work is done once, and can be cancelled together.

    A web application makes a memory for each request. With jobs of its own each would call a failing model again.
    """

    def __init__(self) -> None:
        # Sessions with finished turns that were not read for facts yet, as far as this process knows.
        self.unread: set[str] = set()
        tell_at_the_end(self, self.unread)
        self._jobs: dict[str, Jobs] = {}
        self._watched: WeakSet[Stoppable] = WeakSet()

    def jobs(self, kind: str, failed: str, event: type[JobFailedEvent] | None = None) -> Jobs:
        """The jobs of a kind, the same object in each call."""
        return self._jobs.setdefault(kind, Jobs(kind, failed, event))

    def watch(self, work: Stoppable) -> None:
        """Let ``stop`` cancel this too, as long as it exists."""
        self._watched.add(work)

    async def wait_for_started(self, session_id: str) -> None:
        """Wait until the jobs of a session in this event loop have done, or failed to do, what was started so far."""
        await asyncio.gather(*(jobs.wait_for_started(session_id) for jobs in list(self._jobs.values())))

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Cancel what is under way for these sessions and users, here and in synchronous calls; None: all of it."""
        await self._stop_here(names)
        other = other_loop()
        if other is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._stop_here(names), other))

    async def _stop_here(self, names: Collection[str] | None) -> None:
        for work in [*self._jobs.values(), *self._watched]:
            await work.stop(names)


def log_failure(failed: str, session_id: str, error: Exception, outcome: str) -> None:
    """Log a failure in one line, without texts."""
    reason = error if isinstance(error, NoModelError) else type(error).__name__
    logger.warning("%s (session %r, %s); nothing is lost, %s.", failed, session_id, reason, outcome)
