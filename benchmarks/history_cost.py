"""The time of one turn against the messages that are stored already: 100 to 10,000, and 50,000 for ours.

A turn is that of ``turn_cost.py``, with messages of 20 tokens: ``aput`` a question, ``aget``, ``aput`` the answer,
``aget``. All memories of ``contenders.py`` are measured as they come, each on a SQLite file of its own, but for the
two buffers, which by default keep their messages in the process. The models of ``stand_in.py`` answer at once: what a
real one takes comes on top. Ours extracts no facts here: that runs in the background.

A session grows from one size to the next, with an ``aget`` after each 1,000 messages, and at each size the sides take
turns. The median of the turns is given: 30,
or as many as a slow side gets done in three seconds, at least two. A side of which a turn takes over two seconds is
not measured at larger sizes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from llama_index.core.memory import BaseMemory, Memory

from benchmarks.command import shown
from benchmarks.contenders import OURS, Open, RememberingRecipeBlock, as_they_come, ours
from benchmarks.messages import sample_messages
from benchmarks.report import Measure, Series, publish
from benchmarks.turn_cost import turn

SIZES = (100, 300, 1_000, 3_000, 10_000, 50_000)
# Beyond this size only ours is measured: to fill another takes longer than all else here.
LONG = 10_000
TURNS, LEAST_TURNS, WARM_UP, CHUNK = 30, 2, 2, 100
# After so many new messages all of them are asked: sessions grow turn by turn, and ours indexes 4,000 in a second.
ASKED_AFTER = 1_000
MOST_SECONDS_OF_TURN, MOST_SECONDS = 2.0, 3.0

Seconds = dict[str, dict[int, list[float]]]


async def fill(memory: BaseMemory, held: int, size: int) -> None:
    """Put messages until there are ``size``; meanwhile the recipe counts nothing twice."""
    _remember(memory, remembers=True)
    for start in range(held, size, CHUNK):
        await memory.aput_messages(
            sample_messages(min(CHUNK, size - start), start=start)
        )
        if not (start - held) % ASKED_AFTER:
            await memory.aget()
    _remember(memory, remembers=False)


def _remember(memory: BaseMemory, *, remembers: bool) -> None:
    for block in memory.memory_blocks if isinstance(memory, Memory) else []:
        if isinstance(block, RememberingRecipeBlock):
            block.remembers = remembers


def wanted(side: str, size: int, seconds: Seconds) -> bool:
    """Whether a side is measured at this size."""
    if size > LONG and side != OURS:
        return False
    return all(
        median(taken) <= MOST_SECONDS_OF_TURN for taken in seconds[side].values()
    )


async def take_turns(
    memories: dict[str, BaseMemory], size: int, seconds: Seconds
) -> None:
    """Measure turns of each memory, which holds ``size`` messages before the first."""
    sides = list(memories)
    for number in range(WARM_UP + TURNS):
        for i in range(len(sides)):
            side = sides[(number + i) % len(sides)]
            taken = seconds[side][size]
            if len(taken) < LEAST_TURNS or sum(taken) < MOST_SECONDS:
                one = await turn(memories[side], size // 2 + number)
                taken += [one] if number >= WARM_UP else []


async def measure(folder: Path) -> Seconds:
    """The seconds of each turn by side and size."""
    seconds: Seconds = defaultdict(lambda: defaultdict(list))
    held: dict[str, int] = defaultdict(int)
    sides: dict[str, Open] = {
        **as_they_come(),
        OURS: partial(ours, extract_facts=False),
    }
    async with AsyncExitStack() as stack:
        memories: dict[str, BaseMemory] = {}
        for i, (side, opened) in enumerate(sides.items()):
            memories[side] = await stack.enter_async_context(
                opened(f"sqlite+aiosqlite:///{folder / f'{i}.db'}")
            )
        for size in shown(SIZES, "messages stored"):
            measured = {
                side: memory
                for side, memory in memories.items()
                if wanted(side, size, seconds)
            }
            for side, memory in measured.items():
                await fill(memory, held[side], size)
            await take_turns(measured, size, seconds)
            for side in measured:
                # A turn has put two messages.
                held[side] = size + 2 * (len(seconds[side][size]) + WARM_UP)
    return seconds


def main() -> int:
    """Measure, publish, and return the exit code."""
    with TemporaryDirectory() as folder:
        seconds = asyncio.run(measure(Path(folder)))
    turns = {
        side: {size: 1000 * median(taken) for size, taken in sizes.items()}
        for side, sizes in seconds.items()
    }
    measures = [
        Measure(f"one turn, {side} at {size:,} messages", taken, "ms")
        for side, sizes in turns.items()
        for size, taken in sizes.items()
    ]
    series = [
        Series(
            "time of a turn",
            "as they come",
            side,
            "messages stored",
            "ms",
            tuple(sizes.items()),
        )
        for side, sizes in turns.items()
    ]
    return publish("history_cost", measures, [], series)


if __name__ == "__main__":
    sys.exit(main())
