"""The cost of one ``aput_messages`` with many messages of 20 tokens, each on a fresh SQLite file.

Every round puts each size once on each side; the recipe only at 1,000 and 2,000 messages, because at 6,000 it
needs a minute or two: ``--full`` measures it there too, once. All limits are the defaults, so the recipe begins to drop
messages at about 1,700. The messages are made before the clock starts. The first ``aget`` afterwards is
timed too, for what a put might have left undone.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.command import shown
from benchmarks.messages import sample_messages
from benchmarks.recipe import SESSION, RecipeBlock, host_memory
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from llama_index.core.memory import Memory

ROUNDS = 3
SIZES = (1_000, 2_000, 6_000, 12_500, 25_000, 50_000)
RECIPE_SIZES = (1_000, 2_000)
ASKED, LARGEST = 6_000, 50_000

OURS, AFTERWARDS, RECIPE = (
    "CondensedMemory",
    "CondensedMemory, first aget afterwards",
    "the recipe",
)


async def put(
    opened: AbstractAsyncContextManager[Memory], size: int
) -> tuple[float, float]:
    """The seconds of the put, and of the first ``aget`` after it."""
    messages = sample_messages(size)
    async with opened as memory:
        start = perf_counter()
        await memory.aput_messages(messages)
        done = perf_counter()
        await memory.aget()
        return done - start, perf_counter() - done


async def measure(
    folder: Path, recipe_once: tuple[int, ...]
) -> dict[tuple[str, int], list[float]]:
    """The seconds of each put by side and size."""
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for number in shown(range(ROUNDS), "rounds"):
        recipe_sizes = RECIPE_SIZES if number else (*RECIPE_SIZES, *recipe_once)
        for size in SIZES:
            uri = f"sqlite+aiosqlite:///{folder / f'{number}-{size}'}"
            ours = CondensedMemory.from_defaults(
                session_id=SESSION,
                async_database_uri=f"{uri}-ours.db",
                extract_facts=False,
            )
            taken, afterwards = await put(ours, size)
            seconds[OURS, size].append(taken)
            seconds[AFTERWARDS, size].append(afterwards)
            if size in recipe_sizes:
                taken, _ = await put(
                    host_memory(f"{uri}-recipe.db", RecipeBlock()), size
                )
                seconds[RECIPE, size].append(taken)
    return seconds


def main() -> int:
    """Measure, publish, and return the exit code."""
    with TemporaryDirectory() as folder:
        seconds = asyncio.run(
            measure(Path(folder), (ASKED,) if "--full" in sys.argv else ())
        )
    puts = {key: median(taken) for key, taken in sorted(seconds.items())}
    measures = [
        Measure(f"{side}, {size:,} messages", taken, "s")
        for (side, size), taken in puts.items()
    ]
    each = {size: puts[OURS, size] / size for size in SIZES}
    measures += [
        Measure(
            f"the recipe against CondensedMemory, {size:,} messages",
            taken / puts[OURS, size],
        )
        for (side, size), taken in puts.items()
        if side == RECIPE
    ]
    promises = [
        Promise(f"one put of {ASKED:,} messages", 0.3, puts[OURS, ASKED], "s"),
        Promise(
            f"time per message at {LARGEST:,} against {ASKED:,}",
            1.3,
            each[LARGEST] / each[ASKED],
        ),
    ]
    return publish("bulk_put", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
