"""Measures for how long the event loop is held up, by a task that ticks.

It counts processor time of this process: programs that run beside it hold up the task, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import process_time

_EVERY = 0.002


class Ticks:
    """The processor seconds from the first tick to the last, and the most between two."""

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0

    async def run(self) -> None:
        before = process_time()
        while True:
            await asyncio.sleep(_EVERY)
            now = process_time()
            self.seconds += now - before
            self.longest = max(self.longest, now - before)
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
