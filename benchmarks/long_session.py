"""What a session of 50,000 messages of 20 tokens takes against one of 1,000, and how long others wait for its export.

Both are in SQLite files of their own, and the calls take turns; the medians of nine are compared, of ``aforget`` one
call each. While ``aget_all`` and ``aexport`` run, another task asks for its turn again and again: its longest wait is
the longest pause of the event loop, and it is given as a share of the whole call, which is what others would wait if
the call let none of them in. Python's garbage collector is off meanwhile, which stops all of a program at any time.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.command import shown
from benchmarks.messages import sample_messages
from benchmarks.recipe import SESSION
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SHORT, LONG = 1_000, 50_000
ROUNDS = 9

Seconds = dict[tuple[str, int], list[float]]


async def seconds_of(call: Callable[[], Awaitable[object]]) -> float:
    """How long a call takes."""
    start = perf_counter()
    await call()
    return perf_counter() - start


async def longest_pause(call: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """The longest time for which the event loop lets nobody else in during a call, and that of the whole call."""
    pauses = [0.0]

    async def wait() -> None:
        while True:
            pauses.append(await seconds_of(partial(asyncio.sleep, 0)))

    gc.disable()
    waiting = asyncio.ensure_future(wait())
    whole = await seconds_of(call)
    waiting.cancel()
    gc.enable()
    return max(pauses), whole


async def measure(folder: Path) -> tuple[Seconds, dict[str, tuple[float, float]]]:
    """The seconds of each call by size, and the pauses of the calls that read all messages of the long session."""
    seconds: Seconds = defaultdict(list)
    async with AsyncExitStack() as stack:
        memories: dict[int, CondensedMemory] = {}
        for size in (SHORT, LONG):
            options: dict[str, Any] = {
                "async_database_uri": f"sqlite+aiosqlite:///{folder / f'{size}.db'}"
            }
            memory = CondensedMemory.from_defaults(
                SESSION, extract_facts=False, **options
            )
            memories[size] = await stack.enter_async_context(memory)
            await memory.aput_messages(sample_messages(size))
            await memory.aget()
        for number in shown(range(ROUNDS), "rounds"):
            for size, memory in memories.items():
                put = partial(
                    memory.aput_messages, sample_messages(2, start=size + 2 * number)
                )
                for name, call in (
                    ("aput_messages", put),
                    ("aget", memory.aget),
                    ("astats", memory.astats),
                ):
                    seconds[name, size].append(await seconds_of(call))
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "aget_all": memories[LONG].aget_all,
            "aexport": memories[LONG].aexport,
        }
        pauses = {name: await longest_pause(call) for name, call in calls.items()}
        for size, memory in memories.items():
            seconds["aforget", size].append(
                await seconds_of(partial(memory.aforget, vacuum=False))
            )
    return seconds, pauses


def main() -> int:
    """Measure, publish, and return the exit code."""
    with TemporaryDirectory() as folder:
        seconds, pauses = asyncio.run(measure(Path(folder)))
    taken = {key: median(some) for key, some in seconds.items()}
    measures = [
        Measure(f"{name}, {size:,} messages", one, "s")
        for (name, size), one in taken.items()
    ]
    for name, (pause, whole) in pauses.items():
        measures += [
            Measure(f"{name}, {LONG:,} messages", whole, "s"),
            Measure(f"longest pause of {name}", pause, "s"),
        ]
    ratios = {
        name: taken[name, LONG] / taken[name, SHORT]
        for name, size in taken
        if size == LONG
    }
    against = f"at {LONG:,} against {SHORT:,} messages"
    measures += [
        Measure(f"{name} {against}", ratios[name]) for name in ("astats", "aforget")
    ]
    promises = [
        Promise(f"{name} {against}", 2.0, ratios[name])
        for name in ("aput_messages", "aget")
    ]
    promises += [
        Promise(f"longest pause of {name} as a share of it", 0.1, pause / whole)
        for name, (pause, whole) in pauses.items()
    ]
    return publish("long_session", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
