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

A web server makes a memory for each request. So a request, which is ``aput`` a question, ``aget`` and ``aput`` the
answer, is measured with a new memory each time on a store that stays, beside a memory that is kept, and beside
LlamaIndex's Memory for each request: the processor time of the whole process, with and without 20 facts.

The processor time of the caller's event loop is that of its thread. Pauses of the event loop are measured on their own,
in turns of a session with 10,000 messages and 1,000 facts: a task that sleeps for a millisecond at a time notes how
long it was not let in. Python's garbage collector is off meanwhile, which stops all of a program at any time.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, thread_time
from typing import TYPE_CHECKING

from benchmarks.command import shown
from benchmarks.messages import put_facts, sample_messages
from benchmarks.pauses import ticking
from benchmarks.recipe import SESSION, RecipeBlock, host_memory
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory, MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from llama_index.core.memory import BaseMemory, Memory

ROUNDS, TURNS, WARM_UP = 10, 26, 4
LONG, SHORT = 10_000, 100
FACTS, WATCHED_TURNS = 1_000, 200
REQUEST_SIZES, REQUEST_FACTS, REQUESTS = (SHORT, 2_000, LONG), (0, 20), 40

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


@dataclass
class Requests:
    """The requests of a session: its messages and facts, and the milliseconds of the processor for each request."""

    messages: int
    facts: int
    store: MemoryStore
    with_new: list[float] = field(default_factory=list)
    with_kept: list[float] = field(default_factory=list)

    def memory(self) -> CondensedMemory:
        return CondensedMemory.from_defaults(
            SESSION, chat_store=self.store, extract_facts=False
        )

    def what(self, memory: str) -> str:
        facts = f" and {self.facts} facts" if self.facts else ""
        return f"the processor time of a request, {memory} memory, {self.messages:,} messages{facts}"


async def request(memory: BaseMemory, number: int) -> None:
    """What a web server does with a memory around a model's answer."""
    question, answer = sample_messages(2, start=2 * number)
    await memory.aput(question)
    await memory.aget()
    await memory.aput(answer)


async def measure_requests(folder: Path) -> tuple[list[Requests], list[float]]:
    """The requests of each session, and those to LlamaIndex's Memory."""
    sessions = []
    for messages in REQUEST_SIZES:
        for facts in REQUEST_FACTS:
            file = folder / f"requests-{messages}-{facts}.db"
            store = MemoryStore(f"sqlite+aiosqlite:///{file}")
            session = Requests(messages, facts, store)
            memory = session.memory()
            await memory.aput_messages(sample_messages(messages))
            await put_facts(memory, facts)
            await memory.aget()
            await memory.condensed_block.await_jobs(SESSION)
            sessions.append(session)
    kept = [session.memory() for session in sessions]
    host: list[float] = []
    uri = f"sqlite+aiosqlite:///{folder / 'requests.db'}"
    async with host_memory(uri) as memory_of_host:
        await memory_of_host.aput_messages(sample_messages(SHORT))
    for number in shown(range(WARM_UP + REQUESTS), "requests"):
        start = process_time()
        # The engine stays as the store does, so its connection costs nothing here.
        async with host_memory(uri) as memory_of_host:
            await request(memory_of_host, number)
        host.append(1000 * (process_time() - start))
        for session, kept_memory in zip(sessions, kept, strict=True):
            start = process_time()
            await request(session.memory(), 2 * number)
            session.with_new.append(1000 * (process_time() - start))
            start = process_time()
            await request(kept_memory, 2 * number + 1)
            session.with_kept.append(1000 * (process_time() - start))
    for session in sessions:
        await session.store.aclose()
    return sessions, host[WARM_UP:]


def requests_report(
    sessions: list[Requests], host: list[float]
) -> tuple[list[Measure], list[Promise]]:
    """The middle request of each session, and what is promised of it."""
    hosts = f"the processor time of a request, LlamaIndex's Memory, {SHORT} messages"
    measures = [Measure(hosts, median(host), "ms")]
    promises = []
    shortest: dict[int, float] = {}
    for session in sessions:
        new = median(session.with_new[WARM_UP:])
        kept = median(session.with_kept[WARM_UP:])
        measures.append(Measure(session.what("a new"), new, "ms"))
        measures.append(Measure(session.what("a kept"), kept, "ms"))
        shortest.setdefault(session.facts, new)
        what = session.what("a new")
        promises.append(
            Promise(f"{what}, against LlamaIndex's", 1.0, new / median(host))
        )
        if session.messages == REQUEST_SIZES[1]:
            ratio = new / shortest[session.facts]
            promises.append(Promise(f"{what}, against {SHORT}", 3.0, ratio))
    return measures, promises


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
        requests = asyncio.run(measure_requests(Path(folder)))
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
    measures_of_requests, promises_of_requests = requests_report(*requests)
    return measures + measures_of_requests, promises + promises_of_requests


if __name__ == "__main__":
    sys.exit(publish("turn_cost", *measured()))
