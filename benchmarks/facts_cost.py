"""What facts cost a turn: their ranking with 1,000 of them, and an extraction model that takes a second.

A turn is ``aput``, ``aget``, ``aput``, ``aget`` on a SQLite file, with the preset's defaults and no extraction, once
with 1,000 facts of the user and once with none, turn by turn in turns. The delay is the time from ``agent.run`` to the
start of its first call of the model, with an extraction model that takes one second and without extraction.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.bridge.pydantic import Field

from benchmarks.command import shown
from benchmarks.messages import put_facts
from benchmarks.report import Measure, Promise, publish
from benchmarks.turn_cost import turn
from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.offline_model import OfflineModel

FACTS, TURNS, WARM_UP = 1_000, 200, 10
RUNS = 30


class SlowExtractor(OfflineModel):
    """Takes a second for an extraction, and notes when it is asked for an answer."""

    asked: list[float] = Field(default_factory=list)

    async def achat_with_tools(self, tools: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait if facts are asked for."""
        await asyncio.sleep(1)
        return await super().achat_with_tools(tools, *args, **kwargs)

    async def astream_chat_with_tools(self, tools: Any, *args: Any, **kwargs: Any) -> Any:
        """An answer, as the agent asks for it."""
        self.asked.append(perf_counter())
        return await super().astream_chat_with_tools(tools, *args, **kwargs)


async def turns(folder: Path) -> tuple[list[float], list[float]]:
    """Seconds of each turn, without and with facts."""
    without = CondensedMemory.from_defaults(
        "without", extract_facts=False, async_database_uri=f"sqlite+aiosqlite:///{folder / 'without.db'}"
    )
    with_facts = CondensedMemory.from_defaults(
        "with", extract_facts=False, async_database_uri=f"sqlite+aiosqlite:///{folder / 'with.db'}"
    )
    await put_facts(with_facts, FACTS)
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    async with without, with_facts:
        for number in shown(range(WARM_UP + TURNS), "turns"):
            for memory in (without, with_facts) if number % 2 else (with_facts, without):
                taken = await turn(memory, number)
                seconds[memory.session_id] += [taken] if number >= WARM_UP else []
    return seconds["without"], seconds["with"]


async def delays(folder: Path, *, extract: bool) -> list[float]:
    """Seconds from the start of each run to its first call of the model."""
    llm = SlowExtractor()
    agent = FunctionAgent(llm=llm)
    taken = []
    uri = f"sqlite+aiosqlite:///{folder / f'delay-{extract}.db'}"
    async with CondensedMemory.from_defaults("chat", llm=llm, extract_facts=extract, async_database_uri=uri) as memory:
        for i in shown(range(RUNS), "runs"):
            llm.asked.clear()
            started = perf_counter()
            await agent.run(f"I like topic {i}.", memory=memory)
            taken.append(llm.asked[0] - started)
    return taken[3:]


def main() -> int:
    """Measure, publish, and return the exit code."""
    with TemporaryDirectory() as folder:
        without, with_facts = map(median, asyncio.run(turns(Path(folder))))
        plain = median(asyncio.run(delays(Path(folder), extract=False)))
        extracting = median(asyncio.run(delays(Path(folder), extract=True)))
    measures = [
        Measure("one turn, no facts", 1000 * without, "ms"),
        Measure(f"one turn, {FACTS:,} facts", 1000 * with_facts, "ms"),
        Measure("to the first call of the model, no extraction", 1000 * plain, "ms"),
        Measure("to the first call of the model, an extraction model of 1 s", 1000 * extracting, "ms"),
    ]
    promises = [
        Promise(f"a turn with {FACTS:,} facts against one without", 1.2, with_facts / without),
        Promise("the first call of the model comes later by", 10, 1000 * (extracting - plain), "ms"),
    ]
    return publish("facts_cost", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
