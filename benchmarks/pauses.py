"""How long the event loop stands still in calls with much to do, each in a process of its own.

``python -m benchmarks.pauses [MESSAGES]``: a message of 5 MB, in words and as one word; the first ``aget`` with 10,000
facts, the one after a change of them, and ``alist``; ``aget_all`` of a session with so many messages, 100,000 if not
said otherwise; the first extraction of facts, with a server on this machine as the model; the first count of tokens.

A task that sleeps for a millisecond at a time measures the longest time for which the event loop did nothing else. It
begins before the memory is made, as others are served while a web application makes one. Python's garbage collector is
off meanwhile, which stops all of a program at any time. The median of three processes counts.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from benchmarks.command import shown
from benchmarks.messages import put_facts, sample_messages
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory

MESSAGES, FACTS, CHARACTERS, ROUNDS = 100_000, 10_000, 5_000_000, 3
USER, FULL = "ann", "full"
MOST_MS, TICK_SECONDS = 50, 0.001


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """The milliseconds by which each sleep of a task was too long, until the end of the block."""
    pauses: list[float] = []

    async def tick() -> None:
        while True:
            start = perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            pauses.append(1000 * (perf_counter() - start - TICK_SECONDS))

    watch = asyncio.create_task(tick())
    await asyncio.sleep(10 * TICK_SECONDS)
    pauses.clear()
    yield pauses
    # The pause that is still going on ends here.
    await asyncio.sleep(2 * TICK_SECONDS)
    watch.cancel()


def opened(uri: str, session: str) -> CondensedMemory:
    """A session of Ann's, of which no facts are extracted."""
    return CondensedMemory.from_defaults(
        session, user_id=USER, async_database_uri=uri, extract_facts=False
    )


async def put_and_ask(uri: str, *, session: str, word: str = "") -> list[float]:
    """A question, of 5 MB if it is given a word that is said again and again, and the prompt with it."""
    long = ChatMessage(
        role=MessageRole.USER, content=word * (CHARACTERS // max(1, len(word)))
    )
    question = long if word else sample_messages(1)[0]
    async with ticking() as pauses, opened(uri, session) as memory:
        await memory.aput(question)
        await memory.aget()
    return pauses


async def ask_after_change(uri: str) -> list[float]:
    """A question after one of many facts has changed."""
    async with opened(uri, "facts") as memory:
        await memory.aput(sample_messages(1)[0])
        await memory.aget()
        async with ticking() as pauses:
            await memory.facts.aadd("Likes green tea")
            await memory.aget()
    return pauses


async def list_facts(uri: str) -> list[float]:
    """All facts."""
    async with ticking() as pauses, opened(uri, "facts") as memory:
        assert len(await memory.facts.alist()) >= FACTS
    return pauses


async def get_all(uri: str) -> list[float]:
    """All messages of the long session."""
    async with ticking() as pauses, opened(uri, FULL) as memory:
        assert await memory.aget_all()
    return pauses


async def extract(uri: str) -> list[float]:
    """The first extraction of facts in this process."""
    from llama_index.llms.openai import OpenAI  # noqa: PLC0415 - the others need no model

    llm = OpenAI(model="gpt-4o", api_base=f"{sys.argv[4]}/v1", api_key="none")
    opened_memory = partial(
        CondensedMemory.from_defaults, "extraction", async_database_uri=uri, llm=llm
    )
    async with ticking() as pauses, opened_memory() as memory:
        await memory.aput_messages(sample_messages(3))
        await memory.aflush()
    return pauses


CASES: dict[str, Callable[[str], Coroutine[None, None, list[float]]]] = {
    "a message of 5 MB in words": partial(
        put_and_ask, session="long message", word="word "
    ),
    "a message of 5 MB without spaces": partial(
        put_and_ask, session="long message", word="word"
    ),
    f"the first aget with {FACTS:,} facts": partial(put_and_ask, session="facts"),
    f"a change of {FACTS:,} facts and the aget after it": ask_after_change,
    f"alist of {FACTS:,} facts": list_facts,
    "aget_all of a long session": get_all,
    "the first extraction of facts": extract,
    "the first count of tokens": partial(put_and_ask, session="tokens"),
}


async def fill(uri: str, messages: int) -> None:
    """Store the long session and the facts."""
    async with opened(uri, FULL) as memory:
        await memory.aput_messages(sample_messages(messages))
        await put_facts(memory, FACTS)


def in_new_process(case: str, uri: str, server: str) -> float:
    """The longest pause of a case in a process of its own, in milliseconds; the model is at the server's address."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.pauses",
        "--measure",
        case,
        uri,
        server,
    ]
    return float(
        subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    )


def main() -> int:
    """Measure, publish, and return the exit code."""
    if sys.argv[1:2] == ["--measure"]:
        gc.disable()
        print(max(asyncio.run(CASES[sys.argv[2]](sys.argv[3]))))
        return 0
    from benchmarks.wire import listening  # noqa: PLC0415 - it imports the clients of models

    size = next(
        (int(argument) for argument in sys.argv[1:] if argument.isdecimal()), MESSAGES
    )
    pauses: dict[str, list[float]] = {case: [] for case in CASES}
    with TemporaryDirectory() as folder, listening() as server:
        uri = f"sqlite+aiosqlite:///{Path(folder, 'memory.db')}"
        # The model has found no facts.
        server.answer = ""
        asyncio.run(fill(uri, size))
        for _ in shown(range(ROUNDS), "rounds"):
            for case, measured in pauses.items():
                measured.append(in_new_process(case, uri, server.address))
    promises = [
        Promise(f"longest pause in {case}", MOST_MS, median(taken), "ms")
        for case, taken in pauses.items()
    ]
    return publish("pauses", [Measure("messages of the long session", size)], promises)


if __name__ == "__main__":
    sys.exit(main())
