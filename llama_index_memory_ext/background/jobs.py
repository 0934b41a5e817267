"""Runs work in the background: one job at a time for each key, and again after a failure, with growing pauses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, Protocol, TypeAlias
from weakref import WeakSet, WeakValueDictionary, finalize

from llama_index_memory_ext.background.locks import LOOK_SECONDS, at_fork
from llama_index_memory_ext.background.loop import other_loop, spawn
from llama_index_memory_ext.background.recent import Recent
from llama_index_memory_ext.errors import NoModelError, WorkError
from llama_index_memory_ext.events import (
    JobFailedEvent,
    MemoryFailure,
    is_handled,
    send,
    span,
)

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 300.0
# The number of keys whose failures are remembered.
_MOST_FAILURES = 1_000
# The jobs of an owner that work at once: a model on a small server refuses more calls.
_MOST_AT_ONCE = 8

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


Work: TypeAlias = Callable[[], Awaitable[object]]


class JobKey(NamedTuple):
    """The session of a job, the reader of its log that the job works for, and the owner of the result.

    Questions of the ``owner`` can wait for the job (``wait_for_owner``); (): no owner.
    """

    session_id: str
    reader: str = ""
    owner: tuple[str, ...] = ()


class Stoppable(Protocol):
    """An object with pending work in an event loop."""

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Cancel the work of these sessions or users in this event loop; None: all of it."""


@dataclass
class BackOff:
    """Counts failures in a row; each failure doubles the pause, up to 300 seconds."""

    first_pause_seconds: float
    failures: int = 0
    resume_at: float = 0.0

    @property
    def pausing(self) -> bool:
        """Whether a pause is under way."""
        return time.monotonic() < self.resume_at

    def failed(self) -> float:
        """Count a failure, and return its pause in seconds."""
        # More failures do not lengthen the pause, and a larger power of 2 may be no
        # float.
        pause = min(
            self.first_pause_seconds * 2.0 ** min(self.failures, 30),
            LONGEST_PAUSE_SECONDS,
        )
        self.failures += 1
        self.resume_at = time.monotonic() + pause
        return pause

    def succeeded(self) -> None:
        """Let the next pause be a short one again; within a pause nothing changes."""
        if not self.pausing:
            self.failures = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of a job.

    ``failures``: the number in a row. ``error``: the type of the error. ``at``: the
    time (UTC). ``retry_at``: the job is not tried again before; None: the next start
    tries again.
    """

    failures: int
    error: str
    at: datetime
    retry_at: datetime | None = None


@dataclass
class _Job:
    """A running job, with the work of the last start: the model of an earlier start may fail.

    ``again``: there was a start since the last attempt began. ``awaited``: a caller
    waits, so the job does not pause.
    """

    work: Work
    pause_seconds: float
    task: asyncio.Task[None]
    again: bool = True
    pausing: bool = False
    awaited: bool = False


class Jobs:
    """Jobs of one kind, at most one for each key and event loop, and the last failure of each key.

    ``kind`` names their spans and their failures in ``astats``. ``failed`` is the text
    of a failure in the log: "Facts were not extracted".
    """

    def __init__(
        self, kind: str, failed: str, event: type[JobFailedEvent] | None = None
    ) -> None:
        self.kind = kind
        self._failed = failed
        self._event = event
        # A loop is part of the key, because only tasks of that loop can wait for a job.
        self._jobs: dict[tuple[asyncio.AbstractEventLoop, JobKey], _Job] = {}
        self._failures: Recent[JobKey, Failure | None] = Recent(_MOST_FAILURES)
        # The starts that wait for a quiet time. A timer keeps no event loop running.
        self._timers: dict[
            tuple[asyncio.AbstractEventLoop, JobKey], asyncio.TimerHandle
        ] = {}
        # Limits the jobs of an owner in an event loop, as long as one of them runs.
        self._slots: WeakValueDictionary[Hashable, asyncio.Semaphore] = (
            WeakValueDictionary()
        )
        # How often the work of a key was halved, because a model could not do all of it.
        self.halvings: Counter[JobKey] = Counter()

    def start(self, key: JobKey, work: Work, pause_seconds: float) -> None:
        """Run the work in the background; if a job of this key runs, run the work after it.

        ``pause_seconds`` is the pause after a first failure.
        """
        here = asyncio.get_running_loop(), key
        job = self._jobs.get(here)
        if job is not None and not job.task.done():
            job.work = work
            job.pause_seconds = pause_seconds
            job.again = True
            return
        self._drop_closed_loops()
        self._jobs[here] = job = _Job(work, pause_seconds, spawn(self._run(key)))
        running_jobs[job.task] = (key.owner, key.session_id)

        def remove(task: asyncio.Task[None]) -> None:
            running_jobs.pop(task, None)
            # A task keeps its event loop alive. Before this callback, another job of the
            # key may have begun.
            if here in self._jobs and self._jobs[here].task is task:
                del self._jobs[here]

        job.task.add_done_callback(remove)

    def start_later(
        self, key: JobKey, start: Callable[[], object], seconds: float
    ) -> None:
        """Call ``start`` after so many seconds; a later call for this key in this event loop takes its place."""
        self._drop_closed_loops()
        self._cancel_timers([key])
        here = asyncio.get_running_loop(), key

        def begin() -> None:
            del self._timers[here]
            start()

        self._timers[here] = here[0].call_later(seconds, begin)

    @property
    def waiting(self) -> list[JobKey]:
        """The keys whose start waits for a quiet time, in any event loop."""
        return [key for _, key in list(self._timers)]

    def _cancel_timers(self, keys: Collection[JobKey]) -> None:
        here = asyncio.get_running_loop()
        for key in keys:
            timer = self._timers.pop((here, key), None)
            if timer is not None:
                timer.cancel()

    def _drop_closed_loops(self) -> None:
        for place in [*self._jobs, *self._timers]:
            if place[0].is_closed():
                self._timers.pop(place, None)
                abandoned = self._jobs.pop(place, None)
                if abandoned is not None:
                    running_jobs.pop(abandoned.task, None)

    def failure_of(self, key: JobKey) -> Failure | None:
        """Return the last failure since the last success; None if there is none."""
        return self._failures.get(key)

    async def wait(self, key: JobKey) -> None:
        """Wait until the job of a key has ended; without a reader, all jobs of the session.

        A job that pauses after a failure is cancelled instead.
        """
        for job_key, job in self._here([key.session_id]).items():
            if key.reader in ("", job_key.reader):
                job.awaited = True
                if job.pausing:
                    job.task.cancel()
                await asyncio.wait([job.task])

    async def finish(self, key: JobKey, work: Work) -> None:
        """Run the work now, after the job that runs; a failure is logged, and the next start tries again."""
        self._cancel_timers([key])
        await self.wait(key)
        await self._attempt(key, work, None)

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Cancel the jobs of these sessions in this event loop, also the later starts; None: all."""
        self._cancel_timers(
            [key for key in self.waiting if names is None or key.session_id in names]
        )
        tasks = [job.task for job in self._here(names).values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _here(self, names: Collection[str] | None) -> dict[JobKey, _Job]:
        """Return the jobs of these sessions, or all, in this event loop."""
        here = asyncio.get_running_loop()
        jobs = list(self._jobs.items())
        return {
            key: job
            for (loop, key), job in jobs
            if loop is here and (names is None or key.session_id in names)
        }

    def _slots_of(self, key: JobKey) -> asyncio.Semaphore:
        """Return the limit of the jobs of an owner in this event loop; a key without an owner has a limit alone."""
        place = (asyncio.get_running_loop(), key.owner or key)
        return self._slots.setdefault(place, asyncio.Semaphore(_MOST_AT_ONCE))

    async def _run(self, key: JobKey) -> None:
        job = self._jobs[asyncio.get_running_loop(), key]
        slots = self._slots_of(key)
        while job.again:
            pause = _seconds_until_retry(self._failures.get(key))
            if pause > 0:
                if job.awaited:
                    return
                job.pausing = True
                await asyncio.sleep(pause)
            job.pausing = job.again = False
            async with slots:
                succeeded = await self._attempt(key, job.work, job.pause_seconds)
            if not succeeded:
                running_jobs.pop(job.task, None)
                job.again = not job.awaited

    async def _attempt(
        self, key: JobKey, work: Work, first_pause: float | None
    ) -> bool:
        """Run the work once, and remember a failure; without a ``first_pause``, no retry is planned."""
        with span(f"memory {self.kind}"):
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - a model may fail in any way, and no turn may suffer from it
                owners_not_waited_for.put(key.owner, value=True)
                failure = error if isinstance(error, WorkError) else WorkError(error)
                self._note_failure(key, failure, first_pause)
                return False
            owners_not_waited_for.put(key.owner, value=False)
            # Successes alone would take the room of failures.
            if key in self._failures:
                self._failures.put(key, None)
            return True

    def _note_failure(
        self, key: JobKey, failure: WorkError, first_pause: float | None
    ) -> None:
        """Remember, log and announce a failure."""
        error = failure.error
        name = type(error).__name__
        now = datetime.now(timezone.utc)
        earlier = self._failures.get(key)
        failures = earlier.failures if earlier else 0
        retry_at = earlier.retry_at if earlier else None
        pause = None
        outcome = "the next start of this session's memory tries again"
        if first_pause is not None:
            pause = BackOff(first_pause, failures).failed()
            retry_at = now + timedelta(seconds=pause)
            outcome = f"trying again in {pause:g} s"
        failures += 1
        self._failures.put(key, Failure(failures, name, now, retry_at))
        # The log says once, and not after each pause, that there is no model. That a
        # program ends is no failure.
        is_known = earlier and earlier.error == name == NoModelError.__name__
        if not (is_known or _is_of_ending(error)):
            log_failure(self._failed, key.session_id, error, outcome)
        if self._event is not None:
            event = self._event(
                session_id=key.session_id,
                error=name,
                failures=failures,
                retry_seconds=pause,
                prompt_tokens=failure.prompt_tokens,
                completion_tokens=failure.completion_tokens,
            )
            send(event)


def _is_of_ending(error: Exception) -> bool:
    """Return whether Python has refused a thread because the program ends."""
    return isinstance(error, RuntimeError) and "shutdown" in str(error)


class JobRegistry:
    """The jobs of all memories on one store, so that work is done once, and can be cancelled together.

    A web application makes a memory for each request. If each memory had separate jobs,
    each would call a failing model again.
    """

    def __init__(self) -> None:
        # Sessions of this process with finished turns that were not read for facts yet.
        self.unread: set[str] = set()
        # The last row of each session that has left the record, as this process shows it.
        self.last_left: Recent[str, int] = Recent(_MOST_FAILURES)
        # Sessions of this process whose last question has no answer yet.
        self.asked: set[str] = set()
        # The jobs that read all that is unread at their next run.
        self.needed: set[JobKey] = set()
        finalize(self, _tell_unread, self.unread)
        self._jobs: dict[str, Jobs] = {}
        self._watched: WeakSet[Stoppable] = WeakSet()

    def jobs(
        self, kind: str, failed: str, event: type[JobFailedEvent] | None = None
    ) -> Jobs:
        """Return the jobs of a kind, the same object in each call."""
        return self._jobs.setdefault(kind, Jobs(kind, failed, event))

    def watch(self, work: Stoppable) -> None:
        """Let ``stop`` cancel this work too, as long as its object exists."""
        self._watched.add(work)

    async def wait_for_session(self, session_id: str) -> None:
        """Wait until the jobs of a session in this event loop have ended; a pausing job is cancelled."""
        await asyncio.gather(
            *(jobs.wait(JobKey(session_id)) for jobs in list(self._jobs.values()))
        )

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Cancel the work of these sessions and users, here and in synchronous calls; None: all work."""

        async def stop_here() -> None:
            for work in [*self._jobs.values(), *self._watched]:
                await work.stop(names)

        await stop_here()
        loop = other_loop()
        if loop is not None:
            await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(stop_here(), loop)
            )


def log_failure(failed: str, session_id: str, error: Exception, outcome: str) -> None:
    """Pass a failure to ``on_error`` of the memory, or else log it in one line, without texts."""
    reason = type(error).__name__
    if is_handled(MemoryFailure(failed, reason, outcome, session_id)):
        return
    if isinstance(error, NoModelError):
        reason = str(error)
    logger.warning("%s (session %r, %s); %s.", failed, session_id, reason, outcome)


def _tell_unread(sessions: set[str]) -> None:
    """Log one warning when a store is collected, or the program ends, before all turns were read for facts."""
    if sessions:
        logger.warning(
            "No facts were extracted from the last turns of session %r%s. They are stored, and the next start of a "
            "memory of this user reads them. To have them read at once, end with `await memory.aclose()`.",
            min(sessions),
            f" and {len(sessions) - 1} more" if len(sessions) > 1 else "",
        )


def _seconds_until_retry(failure: Failure | None) -> float:
    """Return the seconds until a job may run again; 0 or less: it may run now."""
    if failure is None or failure.retry_at is None:
        return 0
    seconds = (failure.retry_at - datetime.now(timezone.utc)).total_seconds()
    # The clock may have been set back.
    return min(seconds, LONGEST_PAUSE_SECONDS)
