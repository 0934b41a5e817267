"""The memory of a process that serves many users, each with a long session, on a SQLite file.

A web server has one store and makes a memory for each request. Each of 200 users has a session of 2,000 messages and
asks one question in it. All indexes of older messages are complete before the next user asks. The resident size is that
of the whole process, with Python, LlamaIndex and the vocabulary, as Linux reports it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.messages import sample_messages
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory, MemoryStore
from llama_index_memory_ext.store.cache import MOST_KEPT, size_of_caches

USERS, MESSAGES = 200, 2_000
MOST_MIB = 400
STATUS = Path("/proc/self/status")


def resident_mib() -> float:
    """The resident size of this process."""
    _, _, rest = STATUS.read_text().partition("VmRSS:")
    return int(rest.split()[0]) / 1024


def memory_of(store: MemoryStore, user: int) -> CondensedMemory:
    """The memory of a request of a user."""
    return CondensedMemory.from_defaults(
        f"chat-{user}", user_id=f"user-{user}", chat_store=store, extract_facts=False
    )


async def measure(file: Path) -> tuple[float, float]:
    """The largest resident size, and the most messages that were kept at a time."""
    store = MemoryStore(f"sqlite+aiosqlite:///{file}")
    for user in shown(range(USERS), "users"):
        await memory_of(store, user).aput_messages(sample_messages(MESSAGES))
    question = sample_messages(1, start=MESSAGES)
    largest = most_kept = 0.0
    for user in shown(range(USERS), "questions"):
        memory = memory_of(store, user)
        await memory.aput_messages(question)
        await memory.aget()
        await memory.condensed_block.await_jobs(memory.session_id)
        largest = max(largest, resident_mib())
        most_kept = max(most_kept, size_of_caches())
    await store.aclose()
    return largest, most_kept


def measured() -> tuple[list[Measure], list[Promise]]:
    """Measure the process."""
    with TemporaryDirectory() as folder:
        largest, most_kept = asyncio.run(measure(Path(folder, "memory.db")))
    what = f"a process with {USERS} users of {MESSAGES:,} messages"
    measures = [Measure(f"messages that are kept, {what}", most_kept)]
    promises = [
        Promise(f"messages that are kept, {what}", MOST_KEPT, most_kept),
        Promise(f"resident size, {what}", MOST_MIB, largest, "MiB"),
    ]
    return measures, promises


if __name__ == "__main__":
    if not STATUS.exists():
        print(f"{STATUS} is missing: only Linux reports the resident size there.")
        sys.exit(NOT_MEASURED)
    sys.exit(publish("process_size", *measured()))
