"""What the first question of a process costs: CPU time, memory, and how long the event loop stands still.

Each number comes from a new process that opens a ``CondensedMemory`` on a SQLite file with one fact of the user, puts a
question (``aput``) and reads the memory (``aget``), which shows the fact. The process is measured right before the
``aput`` and right after the ``aget``. Facts are not extracted.

The first count of tokens in a process loads tiktoken's vocabulary, in this package as in LlamaIndex's own ``Memory``.
So each question is measured twice, in two processes: the promises are about a process that has loaded the vocabulary
before; the figures of one that loads it for the question are printed too.

CPU time is that of all threads. Memory is the resident set, read from ``/proc`` (Linux only). A task that sleeps for a
millisecond at a time measures the longest time for which the event loop did nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from benchmarks.command import shown
from benchmarks.pauses import ticking
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory, TokenCounter

ROUNDS = 9
WITH_VOCABULARY, WITHOUT_VOCABULARY = "with the vocabulary", "after the vocabulary"


def opened(file: Path, session_id: str) -> CondensedMemory:
    """A session of Ann's in this file."""
    return CondensedMemory.from_defaults(
        session_id,
        user_id="ann",
        async_database_uri=f"sqlite+aiosqlite:///{file}",
        extract_facts=False,
    )


async def write_fact(file: Path) -> None:
    """Store the one fact."""
    async with opened(file, "first") as memory:
        await memory.facts.aadd("Likes green tea")


def resident_bytes() -> int:
    """The memory of this process that is in use now."""
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def first_question(file: Path) -> dict[str, float]:
    """The CPU seconds, the additional resident bytes and the longest pause of the event loop, in seconds."""
    async with opened(file, "second") as memory:
        async with ticking() as pauses:
            resident, cpu = resident_bytes(), process_time()
            await memory.aput(
                ChatMessage(role=MessageRole.USER, content="Which tea do I like?")
            )
            messages = await memory.aget()
            measured = {
                "cpu": process_time() - cpu,
                "bytes": resident_bytes() - resident,
            }
        assert "Likes green tea" in str(messages[-1].content)
        return {**measured, "pause": max(pauses) / 1000}


def in_new_process(file: Path, side: str) -> dict[str, float]:
    """What ``first_question`` measures in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.first_question",
        "--measure",
        str(file),
        side,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> int:
    """Measure, publish, and return the exit code."""
    if sys.argv[1:2] == ["--measure"]:
        if sys.argv[3] == WITHOUT_VOCABULARY:
            TokenCounter().count("load the vocabulary")
        print(json.dumps(asyncio.run(first_question(Path(sys.argv[2])))))
        return 0
    taken: dict[str, list[dict[str, float]]] = {
        WITHOUT_VOCABULARY: [],
        WITH_VOCABULARY: [],
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "memory.db"
        asyncio.run(write_fact(file))
        for _ in shown(range(ROUNDS), "rounds"):
            for side, measured in taken.items():
                measured.append(in_new_process(file, side))
    medians = {
        side: {key: median(one[key] for one in taken[side]) for key in taken[side][0]}
        for side in taken
    }
    of, whole = medians[WITHOUT_VOCABULARY], medians[WITH_VOCABULARY]
    measures = [
        Measure(
            f"longest pause of the event loop, {WITHOUT_VOCABULARY}", of["pause"], "s"
        ),
        Measure(f"CPU time, {WITH_VOCABULARY}", whole["cpu"], "s"),
        Measure(f"memory, {WITH_VOCABULARY}", whole["bytes"] / 2**20, "MiB"),
        Measure(
            f"longest pause of the event loop, {WITH_VOCABULARY}", whole["pause"], "s"
        ),
    ]
    promises = [
        Promise(f"CPU time, {WITHOUT_VOCABULARY}", 0.4, of["cpu"], "s"),
        Promise(f"memory, {WITHOUT_VOCABULARY}", 40, of["bytes"] / 2**20, "MiB"),
    ]
    return publish("first_question", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
