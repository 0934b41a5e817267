"""What facts cost a turn: their ranking with 1,000 of them, and an extraction model that takes a second.

A turn is ``aput``, ``aget``, ``aput``, ``aget`` on a SQLite file, with the preset's defaults and no extraction, once
with 1,000 facts of the user and once with none, and with LlamaIndex's Memory without blocks, turn by turn in turns.
What facts add is compared with a turn of that Memory, which does not change with this package. The delay is the time
from ``agent.run`` to the start of its first call of the model, with an extraction model that takes one second and
without extraction.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.bridge.pydantic import Field

from benchmarks.command import shown
from benchmarks.messages import put_facts
from benchmarks.recipe import host_memory
from benchmarks.report import Measure, Promise, publish
from benchmarks.turn_cost import turn
from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.models.offline import OfflineModel

FACTS, TURNS, WARM_UP = 1_000, 200, 10
RUNS = 30


class SlowExtractor(OfflineModel):
    """Takes a second for an extraction, and notes when it is asked for an answer."""

    asked: list[float] = Field(default_factory=list)

    async def achat_with_tools(self, tools: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait if facts are asked for."""
        await asyncio.sleep(1)
        return await super().achat_with_tools(tools, *args, **kwargs)

    async def astream_chat_with_tools(
        self, tools: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """An answer, as the agent asks for it."""
        self.asked.append(perf_counter())
        return await super().astream_chat_with_tools(tools, *args, **kwargs)


async def turns(folder: Path) -> dict[str, list[float]]:
    """Seconds of each turn: of LlamaIndex's Memory, without facts and with facts."""
    uris = {
        name: f"sqlite+aiosqlite:///{folder / name}.db"
        for name in ("host", "without", "with")
    }
    opened: dict[str, Any] = {"host": host_memory(uris["host"])}
    for name in ("without", "with"):
        opened[name] = CondensedMemory.from_defaults(
            name, extract_facts=False, async_database_uri=uris[name]
        )
    seconds: dict[str, list[float]] = {name: [] for name in opened}
    names = [*opened]
    async with AsyncExitStack() as stack:
        memories = {
            name: await stack.enter_async_context(memory)
            for name, memory in opened.items()
        }
        await put_facts(memories["with"], FACTS)
        for number in shown(range(WARM_UP + TURNS), "turns"):
            for name in names:
                seconds[name].append(await turn(memories[name], number))
            # Each comes first as often as the others.
            names.append(names.pop(0))
    return {name: taken[WARM_UP:] for name, taken in seconds.items()}


async def delays(folder: Path, *, extract: bool) -> list[float]:
    """Seconds from the start of each run to its first call of the model."""
    llm = SlowExtractor()
    agent = FunctionAgent(llm=llm)
    taken = []
    uri = f"sqlite+aiosqlite:///{folder / f'delay-{extract}.db'}"
    async with CondensedMemory.from_defaults(
        "chat", llm=llm, extract_facts=extract, async_database_uri=uri
    ) as memory:
        for i in shown(range(RUNS), "runs"):
            llm.asked.clear()
            started = perf_counter()
            await agent.run(f"I like topic {i}.", memory=memory)
            taken.append(llm.asked[0] - started)
    return taken[3:]


def measured() -> tuple[list[Measure], list[Promise]]:
    """Measure turns and delays."""
    with TemporaryDirectory() as folder:
        host, without, with_facts = map(
            median, asyncio.run(turns(Path(folder))).values()
        )
        plain = median(asyncio.run(delays(Path(folder), extract=False)))
        extracting = median(asyncio.run(delays(Path(folder), extract=True)))
    measures = [
        Measure("one turn, LlamaIndex's Memory without blocks", 1000 * host, "ms"),
        Measure("one turn, no facts", 1000 * without, "ms"),
        Measure(f"one turn, {FACTS:,} facts", 1000 * with_facts, "ms"),
        Measure(
            f"a turn with {FACTS:,} facts against one without", with_facts / without
        ),
        Measure("to the first call of the model, no extraction", 1000 * plain, "ms"),
        Measure(
            "to the first call of the model, an extraction model of 1 s",
            1000 * extracting,
            "ms",
        ),
    ]
    promises = [
        Promise(
            f"what {FACTS:,} facts add, against a turn of LlamaIndex's Memory",
            0.25,
            (with_facts - without) / host,
        ),
        Promise(
            "the first call of the model comes later by",
            10,
            1000 * (extracting - plain),
            "ms",
        ),
    ]
    return measures, promises


if __name__ == "__main__":
    sys.exit(publish("facts_cost", *measured()))
