"""Runs extractions beside the conversation: one at a time per session, again with growing pauses after a failure."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 300.0


@dataclass
class _Job:
    """What is under way for one session. ``again`` is set when the log has grown meanwhile."""

    task: asyncio.Task[None]
    again: bool = False
    pausing: bool = False
    failures: int = 0


@dataclass
class ExtractionJobs:
    """The jobs of one block. A copy of it begins without any."""

    jobs: dict[str, _Job] = field(default_factory=dict)

    def start(self, session_id: str, extract: Callable[[str], Awaitable[None]], pause_seconds: float) -> None:
        """Extract in the background; if that is under way already, once more afterwards."""
        job = self.jobs.get(session_id)
        if job is not None and not job.task.done() and job.task.get_loop() is asyncio.get_running_loop():
            job.again = True
            return
        task = asyncio.ensure_future(self._run(session_id, extract, pause_seconds))
        self.jobs[session_id] = _Job(task)

    async def wait(self, session_id: str) -> None:
        """Wait until the job of a session has ended; one that pauses after a failure is ended."""
        job = self.jobs.get(session_id)
        if job is None or job.task.done() or job.task.get_loop() is not asyncio.get_running_loop():
            return
        if job.pausing:
            job.task.cancel()
        await asyncio.wait([job.task])

    async def stop(self) -> None:
        """End all jobs of this event loop."""
        loop = asyncio.get_running_loop()
        tasks = [job.task for job in self.jobs.values() if not job.task.done() and job.task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.jobs.clear()

    async def _run(self, session_id: str, extract: Callable[[str], Awaitable[None]], pause_seconds: float) -> None:
        failures = 0
        while True:
            self._set(session_id, again=False, pausing=False)
            try:
                await extract(session_id)
            except Exception as error:  # noqa: BLE001 - a model may fail in any way, and no turn may suffer from it
                pause = min(pause_seconds * 2**failures, LONGEST_PAUSE_SECONDS)
                failures += 1
                log_failure(session_id, error, f"trying again in {pause:g} s")
                self._set(session_id, again=True, pausing=True)
                await asyncio.sleep(pause)
                continue
            job = self.jobs.get(session_id)
            if job is None or not job.again:
                return
            failures = 0

    def _set(self, session_id: str, *, again: bool, pausing: bool) -> None:
        job = self.jobs.get(session_id)
        if job is not None:
            job.again, job.pausing = again, pausing

    def __deepcopy__(self, memo: dict[int, Any]) -> ExtractionJobs:
        return ExtractionJobs()

    def __reduce__(self) -> tuple[type[ExtractionJobs], tuple[()]]:
        return ExtractionJobs, ()


def log_failure(session_id: str, error: Exception, outcome: str) -> None:
    """One line; what the model or the user said is not in it."""
    logger.warning(
        "Facts of session %r were not extracted (%s); nothing is lost, %s.", session_id, type(error).__name__, outcome
    )
