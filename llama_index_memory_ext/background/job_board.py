"""Knows what all memories on one store have under way, so that it is done once and can be ended together."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet, WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index_memory_ext.background.jobs import Jobs


class Stoppable(Protocol):
    """What may be under way in an event loop."""

    async def stop(self) -> None:
        """End what is under way in this event loop."""


class JobBoard:
    """What all memories on one store have under way, so that it is done once and can be ended together.

    A web application makes a memory for each request. With jobs of its own each would ask a failing model again
    and again.
    """

    def __init__(self) -> None:
        self._by_name: WeakValueDictionary[str, Jobs] = WeakValueDictionary()
        self._watched: WeakSet[Stoppable] = WeakSet()
        self._guard = threading.Lock()

    def jobs(self, name: str, make: Callable[[], Jobs]) -> Jobs:
        """The jobs of this name, the same for everyone who holds them at this time; made if nobody does."""
        with self._guard:
            jobs = self._by_name.get(name)
            if jobs is None:
                jobs = self._by_name[name] = make()
                self._watched.add(jobs)
            return jobs

    def watch(self, stoppable: Stoppable) -> None:
        """End this too when all is ended."""
        with self._guard:
            self._watched.add(stoppable)

    async def stop(self) -> None:
        """End all that is under way in this event loop."""
        with self._guard:
            watched = list(self._watched)
        for stoppable in watched:
            await stoppable.stop()
