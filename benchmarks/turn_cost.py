"""The cost of one turn: ``aput`` a question, ``aget``, ``aput`` the answer, ``aget``, on a SQLite file.

Five sides take turns, in an order that rotates: the package in a session of 10,000 messages with and without recall,
the package at 100, LlamaIndex's Memory of the same settings without any block at 100, and the recipe at 100. All other
limits are the defaults. Each side has its own database file. Messages have 20 tokens: short ones make the record long
in entries, which is the package's bad case. Their words are of few, so that each question matches all messages, which
is the worst case of recall.

Sessions grow while they are measured. Those of 100 messages are therefore begun anew in each of the rounds
and pass 100 by two messages a turn, up to 160. The sessions of 10,000 go on through all rounds, so that their
record is seen at every length between two cuts, and the cut itself too. The first turns of a round warm
the connections up and are not counted.

The processor time of the caller's event loop is that of its thread. Pauses of the event loop are measured on their own,
in turns of a session with 10,000 messages and 1,000 facts: a task that sleeps for a millisecond at a time notes how
long it was not let in. Python's garbage collector is off meanwhile, which stops all of a program at any time.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

from benchmarks.command import shown
from benchmarks.messages import put_facts, sample_messages
from benchmarks.pauses import ticking
from benchmarks.recipe import SESSION, RecipeBlock, host_memory
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from llama_index.core.memory import BaseMemory, Memory

ROUNDS, TURNS, WARM_UP = 10, 26, 4
LONG, SHORT = 10_000, 100
FACTS, WATCHED_TURNS = 1_000, 200

RECALLING = f"CondensedMemory at {LONG:,} messages"
LONG_SESSION = f"{RECALLING}, recall_token_limit=0"
SHORT_SESSION = f"CondensedMemory at {SHORT} messages"
HOST = f"Memory without blocks at {SHORT} messages"
RECIPE = f"the recipe at {SHORT} messages"
LONG_SESSIONS = (RECALLING, LONG_SESSION)
SIDES = (*LONG_SESSIONS, SHORT_SESSION, HOST, RECIPE)


@asynccontextmanager
async def session_of(side: str, file: Path) -> AsyncIterator[Memory]:
    """A side's memory with the messages that it begins with."""
    uri = f"sqlite+aiosqlite:///{file}"
    opened: AbstractAsyncContextManager[Memory]
    if side in (*LONG_SESSIONS, SHORT_SESSION):
        recall = 0 if side == LONG_SESSION else None
        opened = CondensedMemory.from_defaults(
            session_id=SESSION,
            async_database_uri=uri,
            extract_facts=False,
            recall_token_limit=recall,
        )
    else:
        opened = host_memory(uri, *([RecipeBlock()] if side == RECIPE else []))
    async with opened as memory:
        await memory.aput_messages(
            sample_messages(LONG if side in LONG_SESSIONS else SHORT)
        )
        yield memory


async def turn(memory: BaseMemory, number: int) -> float:
    """The seconds that one turn takes."""
    question, answer = sample_messages(2, start=2 * number)
    start = perf_counter()
    await memory.aput(question)
    await memory.aget()
    await memory.aput(answer)
    await memory.aget()
    return perf_counter() - start


async def measure(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """The seconds of each counted turn of each side, and those of the processor for the thread of the event loop."""
    seconds: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    async with (
        session_of(RECALLING, folder / "recalling.db") as recalling,
        session_of(LONG_SESSION, folder / "long.db") as long_session,
    ):
        for round_number in shown(range(ROUNDS), "rounds"):
            async with AsyncExitStack() as stack:
                memories: dict[str, Memory] = {
                    RECALLING: recalling,
                    LONG_SESSION: long_session,
                }
                for i, side in enumerate(SIDES[2:]):
                    file = folder / f"{round_number}-{i}.db"
                    memories[side] = await stack.enter_async_context(
                        session_of(side, file)
                    )
                for number in range(WARM_UP + TURNS):
                    for i in range(len(SIDES)):
                        side = SIDES[(number + i) % len(SIDES)]
                        before = thread_time()
                        taken = await turn(memories[side], number)
                        seconds[side] += (
                            [(taken, thread_time() - before)]
                            if number >= WARM_UP
                            else []
                        )
    return seconds


async def pauses_of_turns(file: Path) -> list[float]:
    """The longest pause of the event loop in each turn of a session with many messages and facts, in milliseconds."""
    longest = []
    async with session_of(RECALLING, file) as memory:
        assert isinstance(memory, CondensedMemory)
        await put_facts(memory, FACTS)
        for number in range(WARM_UP):
            await turn(memory, number)
        gc.disable()
        for number in shown(range(WATCHED_TURNS), "turns"):
            async with ticking() as pauses:
                await turn(memory, WARM_UP + number)
            longest.append(max(pauses))
        gc.enable()
    return longest


def measured() -> tuple[list[Measure], list[Promise]]:
    """Measure turns and pauses."""
    with TemporaryDirectory() as folder:
        seconds = asyncio.run(measure(Path(folder)))
        pauses = asyncio.run(pauses_of_turns(Path(folder, "pauses.db")))
    turns = {
        side: 1000 * median(wall for wall, _ in taken)
        for side, taken in seconds.items()
    }
    loop = {
        side: 1000 * median(processor for _, processor in taken)
        for side, taken in seconds.items()
    }
    measures = [
        Measure(f"one turn, {side}", taken, "ms") for side, taken in turns.items()
    ]
    measures += [
        Measure(f"the event loop's processor time, {side}", taken, "ms")
        for side, taken in loop.items()
    ]
    measures.append(Measure("turns measured on each side", ROUNDS * TURNS))
    measures.append(
        Measure("the recipe against Memory without blocks", turns[RECIPE] / turns[HOST])
    )
    measures.append(
        Measure(
            f"{LONG:,} messages with recall against {SHORT}",
            turns[RECALLING] / turns[SHORT_SESSION],
        )
    )
    held = f"{LONG:,} messages and {FACTS:,} facts"
    measures.append(
        Measure(
            f"longest pause in 99 of 100 turns, {held}",
            quantiles(pauses, n=100, method="inclusive")[-1],
            "ms",
        )
    )
    promises = [
        Promise(
            f"{LONG:,} messages without recall against {SHORT}",
            1.15,
            turns[LONG_SESSION] / turns[SHORT_SESSION],
        ),
        Promise(
            f"CondensedMemory against Memory without blocks at {SHORT}",
            0.38,
            turns[SHORT_SESSION] / turns[HOST],
        ),
        Promise(f"longest pause in a turn, {held}", 5, max(pauses), "ms"),
    ]
    return measures, promises


if __name__ == "__main__":
    sys.exit(publish("turn_cost", *measured()))
