"""Runs work in the background: one job at a time for each key, and again after a failure, with growing pauses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TypeAlias
from weakref import WeakValueDictionary

from llama_index_memory_ext.background.failures import (
    BackOff,
    Failure,
    log_failure,
    seconds_until_retry,
)
from llama_index_memory_ext.background.loop import spawn
from llama_index_memory_ext.background.recent import Recent
from llama_index_memory_ext.background.waiting import (
    JobKey,
    owners_not_waited_for,
    running_jobs,
)
from llama_index_memory_ext.errors import NoModelError, WorkError
from llama_index_memory_ext.events import JobFailedEvent, send, span

# The number of keys whose failures are remembered.
MOST_FAILURES = 1_000
# The jobs of an owner that work at once: a model on a small server refuses more calls.
_MOST_AT_ONCE = 8

Work: TypeAlias = Callable[[], Awaitable[object]]


@dataclass
class _Job:
    """A running job.

    ``work``: the work of the last start: the model of an earlier start may fail.
    ``pause_seconds``: the pause after a first failure.
    ``again``: there was a start since the last attempt began, or the attempt failed.
    ``pausing``: the job waits for its next attempt after a failure.
    ``awaited``: a caller waits, so the job ends instead of pausing.
    """

    work: Work
    pause_seconds: float
    task: asyncio.Task[None]
    again: bool = True
    pausing: bool = False
    awaited: bool = False


class Jobs:
    """Jobs of one kind, at most one for each key and event loop, and the last failure of each key.

    ``kind``: names their spans, and their failures in ``astats``.
    ``failed``: the text of a logged failure, such as "Facts were not extracted".
    ``event``: the event of a failure; None: no event is sent.
    """

    def __init__(
        self, kind: str, failed: str, event: type[JobFailedEvent] | None = None
    ) -> None:
        self.kind = kind
        self._failed = failed
        self._event = event
        # A loop is part of the key, because only tasks of that loop can wait for a job.
        self._jobs: dict[tuple[asyncio.AbstractEventLoop, JobKey], _Job] = {}
        self._failures: Recent[JobKey, Failure | None] = Recent(MOST_FAILURES)
        # The starts that wait for a quiet time. A timer keeps no event loop running.
        self._timers: dict[
            tuple[asyncio.AbstractEventLoop, JobKey], asyncio.TimerHandle
        ] = {}
        # Limits the jobs of an owner in an event loop, as long as one of them runs.
        self._slots: WeakValueDictionary[Hashable, asyncio.Semaphore] = (
            WeakValueDictionary()
        )
        # How often the work of a key was halved, because a model could not do all of it.
        self.halvings = Counter[JobKey]()

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
        running_jobs[job.task] = key

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
        """Call ``start`` after ``seconds``; a later call for this key in this event loop takes its place."""
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
        """Cancel the later starts of these keys in this event loop."""
        here = asyncio.get_running_loop()
        for key in keys:
            timer = self._timers.pop((here, key), None)
            if timer is not None:
                timer.cancel()

    def _drop_closed_loops(self) -> None:
        """Forget the jobs and the later starts of closed event loops, which never run."""
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

        A job that pauses after a failure is cancelled instead, and a job that fails is not
        tried again.
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

    async def _run(self, key: JobKey) -> None:
        """Attempt the work of a job until an attempt succeeds, and again after a later start; pause after failures."""
        loop = asyncio.get_running_loop()
        job = self._jobs[loop, key]
        # A job without an owner has a separate limit.
        place = (loop, key.owner or key)
        slots = self._slots.setdefault(place, asyncio.Semaphore(_MOST_AT_ONCE))
        while job.again:
            pause = seconds_until_retry(self._failures.get(key))
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
        # That there is no model is logged once, and not after each pause. That a program
        # ends is not logged.
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
