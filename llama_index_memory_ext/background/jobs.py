"""Runs work beside the conversation: one job at a time per session, again with growing pauses after a failure."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.events import JobFailedEvent, send, span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 300.0
# The pause is at its longest long before; 2 to the power of some days' failures is no float any more.
_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Failure:
    """How a job has failed: how often in a row, the type of the last error, and when that was (UTC).

    It is not tried again before ``retry_at``; None: whoever comes next tries again.
    """

    failures: int
    error: str
    at: datetime
    retry_at: datetime | None = None


# An event loop keeps no task alive, and the memory of a web request is gone before its jobs have ended.
_under_way: set[asyncio.Task[None]] = set()


@dataclass
class _Job:
    """What is under way for one session, as whoever came last does it: a model that fails may have been replaced.

    ``again``: the log has grown meanwhile. ``awaited``: somebody waits.
    """

    work: Callable[[str], Awaitable[None]]
    pause_seconds: float
    task: asyncio.Task[None]
    again: bool = False
    pausing: bool = False
    awaited: bool = False


@dataclass(eq=False)
class Jobs:
    """The jobs of blocks that do the same, and how each session has failed of late. A copy of it begins without any.

    ``failed`` is what the log says of a failure: "Facts were not extracted". ``event`` is sent then. ``name`` is in the
    names of the spans around the work.
    """

    failed: str
    name: str = "job"
    event: type[JobFailedEvent] | None = None
    jobs: dict[tuple[int, str], _Job] = field(default_factory=dict)
    failures: dict[str, tuple[Failure, float]] = field(default_factory=dict)

    def start(self, session_id: str, work: Callable[[str], Awaitable[None]], pause_seconds: float) -> None:
        """Work in the background; if that is under way already, once more afterwards."""
        job = self._running(session_id)
        if job is not None:
            job.work, job.pause_seconds, job.again = work, pause_seconds, True
            return
        task = asyncio.ensure_future(self._run(session_id))
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)
        here = _here(session_id)
        job = self.jobs[here] = _Job(work, pause_seconds, task)
        task.add_done_callback(lambda _: self._forget(here, job))

    def failure_of(self, session_id: str) -> Failure | None:
        """How the work for this session has failed since it last succeeded; None if it has not."""
        failure, _ = self.failures.get(session_id, (None, 0.0))
        return failure

    def failures_of(self, session_id: str) -> int:
        """How often the work for this session has failed since it last succeeded."""
        failure = self.failure_of(session_id)
        return failure.failures if failure else 0

    async def wait(self, session_id: str) -> None:
        """Wait until the job of a session has ended; one that pauses after a failure is ended."""
        job = self._running(session_id)
        if job is not None:
            job.awaited = True
            if job.pausing:
                job.task.cancel()
            await asyncio.wait([job.task])

    async def wait_for_all(self) -> None:
        """Wait likewise until all jobs of this event loop have ended."""
        await asyncio.gather(*map(self.wait, self._sessions()))

    async def finish(self, session_id: str, work: Callable[[str], Awaitable[None]]) -> None:
        """Work to the end now, behind what is under way; a failure is logged, and left to whoever comes next."""
        await self.wait(session_id)
        await self._attempt(session_id, work, None)

    async def stop(self, session_ids: Collection[str] | None = None) -> None:
        """End all jobs of this event loop, or those of some sessions."""
        chosen = self._sessions() if session_ids is None else session_ids
        jobs = [job for job in map(self._running, chosen) if job is not None]
        for job in jobs:
            job.task.cancel()
        if jobs:
            await asyncio.wait([job.task for job in jobs])

    def _sessions(self) -> set[str]:
        """Those that may have a job in this event loop."""
        return {session_id for _, session_id in list(self.jobs)}

    def _forget(self, here: tuple[int, str], job: _Job) -> None:
        # A task keeps its event loop alive.
        if self.jobs.get(here) is job:
            del self.jobs[here]

    def _running(self, session_id: str) -> _Job | None:
        job = self.jobs.get(_here(session_id))
        return job if job is not None and not job.task.done() else None

    async def _run(self, session_id: str) -> None:
        job = self.jobs[_here(session_id)]
        while True:
            _, not_before = self.failures.get(session_id, (None, 0.0))
            if time.monotonic() < not_before:
                if job.awaited:
                    return
                job.pausing = True
                await asyncio.sleep(not_before - time.monotonic())
            job.pausing = job.again = False
            succeeded = await self._attempt(session_id, job.work, job.pause_seconds)
            if job.awaited and not succeeded:
                return
            if succeeded and not job.again:
                return

    async def _attempt(
        self, session_id: str, work: Callable[[str], Awaitable[None]], pause_seconds: float | None
    ) -> bool:
        """Work once, and remember whether it has failed; without ``pause_seconds`` nobody is about to try again."""
        with span(f"memory {self.name}"):
            try:
                await work(session_id)
            except Exception as error:  # noqa: BLE001 - a model may fail in any way, and no turn may suffer from it
                self._fail(session_id, error, pause_seconds)
                return False
        self.failures.pop(session_id, None)
        return True

    def _fail(self, session_id: str, error: Exception, pause_seconds: float | None) -> None:
        earlier, not_before = self.failures.get(session_id, (None, 0.0))
        count, kind, at = self.failures_of(session_id) + 1, type(error).__name__, datetime.now(timezone.utc)
        if pause_seconds is None:
            pause, retry_at = None, earlier.retry_at if earlier else None
            outcome = "the next start of this session's memory tries again"
        else:
            pause = min(pause_seconds * 2 ** min(count - 1, _MOST_DOUBLINGS), LONGEST_PAUSE_SECONDS)
            retry_at, not_before = at + timedelta(seconds=pause), time.monotonic() + pause
            outcome = f"trying again in {pause:g} s"
        self.failures[session_id] = Failure(count, kind, at, retry_at), not_before
        log_failure(self.failed, session_id, error, outcome)
        if self.event is not None:
            send(self.event(session_id=session_id, error=kind, failures=count, retry_seconds=pause))

    def __deepcopy__(self, memo: dict[int, Any]) -> Jobs:
        return Jobs(self.failed, self.name, self.event)

    def __reduce__(self) -> tuple[type[Jobs], tuple[str, str, type[JobFailedEvent] | None]]:
        return Jobs, (self.failed, self.name, self.event)


def _here(session_id: str) -> tuple[int, str]:
    """A job belongs to its event loop: no other could wait for it."""
    return id(asyncio.get_running_loop()), session_id


def log_failure(failed: str, session_id: str, error: Exception, outcome: str) -> None:
    """One line; what the model or the user said is not in it."""
    logger.warning("%s (session %r, %s); nothing is lost, %s.", failed, session_id, type(error).__name__, outcome)
