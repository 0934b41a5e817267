"""The jobs of all memories on one store, and the sessions whose turns they have yet to read."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet, finalize

from llama_index_memory_ext.background.jobs import MOST_FAILURES, Jobs
from llama_index_memory_ext.background.loop import other_loop
from llama_index_memory_ext.background.recent import Recent
from llama_index_memory_ext.background.waiting import JobKey

if TYPE_CHECKING:
    from collections.abc import Collection

    from llama_index_memory_ext.events import JobFailedEvent

logger = logging.getLogger(__name__)


class Stoppable(Protocol):
    """An object with pending work in an event loop."""

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Cancel the work of these sessions or users in this event loop; None: all of it."""


class JobRegistry:
    """The jobs of all memories on one store, so that work is done once, and can be cancelled together.

    A web application makes a memory for each request. If each memory had separate jobs,
    each would call a failing model again.
    """

    def __init__(self) -> None:
        # Sessions of this process with finished turns that were not read for facts yet.
        self.unread: set[str] = set()
        # The last row of each session that has left the record, as this process shows it.
        self.last_left: Recent[str, int] = Recent(MOST_FAILURES)
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


def _tell_unread(sessions: set[str]) -> None:
    """Log one warning when a store is collected, or the program ends, before all turns were read for facts."""
    if sessions:
        logger.warning(
            "No facts were extracted from the last turns of session %r%s. They are stored, and the next start of a "
            "memory of this user reads them. To have them read at once, end with `await memory.aclose()`.",
            min(sessions),
            f" and {len(sessions) - 1} more" if len(sessions) > 1 else "",
        )
