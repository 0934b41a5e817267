"""Measures for how long the event loop is held up, by a task that ticks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

_EVERY = 0.002


class Ticks:
    """The seconds from the first tick to the last, and the longest time between two."""

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0

    async def run(self) -> None:
        before = perf_counter()
        while True:
            await asyncio.sleep(_EVERY)
            now = perf_counter()
            self.seconds += now - before
            self.longest = max(self.longest, now - before - _EVERY)
            before = now


@asynccontextmanager
async def ticking() -> AsyncIterator[Ticks]:
    """Ticks in the running loop until the block ends."""
    ticks = Ticks()
    task = asyncio.create_task(ticks.run())
    # The first tick begins before anything else.
    await asyncio.sleep(0)
    try:
        yield ticks
        await asyncio.sleep(2 * _EVERY)
    finally:
        task.cancel()
