"""What the first ``aget`` of a new process costs where the database holds 100,000 messages of the session.

Four databases, one SQLite file each: an empty one; a session of 2,000 messages and one of 100,000, written by
CondensedMemory in puts of 2,000 with an ``aget`` after each, as a long life would leave it; and 100,000 messages
as LlamaIndex's Memory leaves them, archived rows without a cursor or the package's index, written through its
own store. The limits are the defaults.

Each number comes from a new process on a fresh copy of the file: the vocabulary is loaded, a question is put, and
then the first ``aget`` is measured. The four take turns, round by round. Time, rows and memory come from
processes of their own, because counting and tracing slow the call down. Rows are the messages that are parsed;
what SQLite looks at without handing it over is only in the time. Memory is the peak of what Python allocates
from the beginning of the call on, without SQLite's own page cache. The put before it, which also has to make the
index in the host's database, is timed apart.

The garbage collector is left as Python starts it. Now and then it goes through all that was imported, and a call
that allocates more is more likely to meet that: such a pause is part of the time, and is printed apart too.
"""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING
from unittest.mock import patch

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.command import shown
from benchmarks.messages import sample_messages
from benchmarks.recipe import SESSION
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory, TokenCounter

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS, MEMORY_ROUNDS = 9, 3
LONG, SHORT, CHUNK = 100_000, 2_000, 2_000

FRESH, SHORT_SESSION, LONG_SESSION = (
    "a fresh session",
    f"{SHORT:,} messages",
    f"{LONG:,} messages",
)
HOST_SESSION = f"{LONG:,} messages of LlamaIndex's Memory"
SIDES = (FRESH, SHORT_SESSION, LONG_SESSION, HOST_SESSION)


def opened(file: Path) -> CondensedMemory:
    """The session in this file."""
    return CondensedMemory.from_defaults(
        session_id=SESSION,
        async_database_uri=f"sqlite+aiosqlite:///{file}",
        extract_facts=False,
    )


async def write_session(file: Path, count: int) -> None:
    """A session as CondensedMemory leaves it."""
    async with opened(file) as memory:
        for start in range(0, count, CHUNK):
            await memory.aput_messages(sample_messages(CHUNK, start=start))
            await memory.aget()


async def write_host_session(file: Path, count: int) -> None:
    """A session as LlamaIndex's Memory leaves it: the last turn active, all before it archived."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    store = SQLAlchemyChatStore(table_name="llama_index_memory", async_engine=engine)
    last_turn = count - 2
    for start in range(0, last_turn, CHUNK):
        messages = sample_messages(min(CHUNK, last_turn - start), start=start)
        await store.add_messages(SESSION, messages, MessageStatus.ARCHIVED)
    await store.add_messages(SESSION, sample_messages(2, start=last_turn))
    await engine.dispose()


@contextmanager
def full_collections() -> Iterator[list[float]]:
    """A list that adds up to the seconds of the garbage collector's full collections."""
    seconds: list[float] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            seconds.append(-perf_counter() if phase == "start" else perf_counter())

    gc.callbacks.append(note)
    try:
        yield seconds
    finally:
        gc.callbacks.remove(note)


async def first_aget(file: Path, what: str) -> dict[str, float]:
    """The put of a question and the first ``aget`` in this process: their seconds, or its rows, or its peak bytes."""
    TokenCounter().count("the vocabulary is loaded")
    async with opened(file) as memory:
        start = perf_counter()
        await memory.aput(
            ChatMessage(
                role=MessageRole.USER, content="What did we say about the house?"
            )
        )
        put_done = perf_counter()
        if what == "rows":
            with patch.object(
                ChatMessage, "model_validate", wraps=ChatMessage.model_validate
            ) as parse:
                await memory.aget()
            return {"rows": parse.call_count}
        if what == "bytes":
            tracemalloc.start()
            await memory.aget()
            return {"bytes": tracemalloc.get_traced_memory()[1]}
        with full_collections() as collections:
            await memory.aget()
        return {
            "put": put_done - start,
            "seconds": perf_counter() - put_done,
            "collections": sum(collections),
        }


def in_new_process(file: Path, what: str) -> dict[str, float]:
    """What ``first_aget`` measures on a copy of the file, in a process of its own."""
    copy = file.with_suffix(".copy")
    copy.unlink(missing_ok=True)
    if file.exists():
        shutil.copy(file, copy)
    command = [sys.executable, "-m", "benchmarks.restore", "--measure", str(copy), what]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """The median of each number of each side."""
    files = {side: folder / f"{i}.db" for i, side in enumerate(SIDES)}
    asyncio.run(write_session(files[SHORT_SESSION], SHORT))
    asyncio.run(write_session(files[LONG_SESSION], LONG))
    asyncio.run(write_host_session(files[HOST_SESSION], LONG))
    taken: dict[str, dict[str, list[float]]] = {side: {} for side in SIDES}
    for what in shown(
        ["seconds"] * ROUNDS + ["bytes"] * MEMORY_ROUNDS + ["rows"], "rounds"
    ):
        for side, file in files.items():
            for key, value in in_new_process(file, what).items():
                taken[side].setdefault(key, []).append(value)
    return {
        side: {key: median(values) for key, values in of.items()}
        for side, of in taken.items()
    }


def main() -> int:
    """Measure, publish, and return the exit code."""
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(asyncio.run(first_aget(Path(sys.argv[2]), sys.argv[3]))))
        return 0
    with TemporaryDirectory() as folder:
        taken = measure(Path(folder))
    measures, promises = [], []
    for side, of in taken.items():
        measures.append(Measure(f"put of the question, {side}", 1000 * of["put"], "ms"))
        measures.append(Measure(f"first aget, {side}", 1000 * of["seconds"], "ms"))
        measures.append(
            Measure(
                f"of it full garbage collections, {side}",
                1000 * of["collections"],
                "ms",
            )
        )
        measures.append(Measure(f"messages parsed, {side}", of["rows"]))
        measures.append(Measure(f"peak memory, {side}", of["bytes"] / 1e6, "MB"))
    for side in (LONG_SESSION, HOST_SESSION):
        more = 1000 * (taken[side]["seconds"] - taken[FRESH]["seconds"])
        promises.append(Promise(f"more than a fresh session, {side}", 100, more, "ms"))
        peak = taken[side]["bytes"] / taken[SHORT_SESSION]["bytes"]
        promises.append(
            Promise(f"peak memory against {SHORT_SESSION}, {side}", 1.3, peak)
        )
    return publish("restore", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
