"""How an agent with a small model and the memory by default does in three sessions, with a restart between them.

    python -m benchmarks.live_agent --base-url=URL [--model=NAME] [--answers=FILE]

A ``ReActAgent`` with three tools talks with a user for 30 turns. The sentences are written by hand
(``live_agent.json``). Each session has a memory that is opened anew on the same SQLite file, as after a restart. Some
turns tell something, some need a tool, some need nothing, and some ask for what the user has said, in the same session
or an earlier session. An answer is right if it has one of the words that are expected.

Each reply of the model is appended to FILE, so that a run that was stopped goes on where it ended.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llama_index.core.agent.workflow import ReActAgent, ToolCallResult
from llama_index.core.memory import BaseMemory

from benchmarks.answer_talks import has_word
from benchmarks.asked_model import AskedModel, asked_model
from benchmarks.command import NOT_MEASURED
from benchmarks.report import Measure, publish
from llama_index_memory_ext import CondensedMemory

SCRIPT = Path(__file__).with_name("live_agent.json")
TELLING, TOOL, GENERAL, SAME, EARLIER = (
    "tells something",
    "needs a tool",
    "needs nothing",
    "asks for the same session",
    "asks for an earlier session",
)
USER = "user"
_TAG = re.compile(r"</?[a-z_]+\b[^<>]*>")
_MOST_ROUNDS = 4


@dataclass(frozen=True)
class Reply:
    """The answer of the agent to a turn of a kind, whether it is right, and the tools that were called."""

    kind: str
    text: str
    right: bool
    tools: tuple[str, ...]


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def weather(town: str) -> str:
    """Tell the weather of today in a town."""
    return f"{town}: 12 degrees, fog"


async def answer(agent: ReActAgent, memory: BaseMemory, turn: dict[str, Any]) -> Reply:
    """Run a turn; a turn that fails has the error for an answer."""
    handler = agent.run(turn["said"], memory=memory, max_iterations=_MOST_ROUNDS)
    events = [event async for event in handler.stream_events()]
    tools = [event.tool_name for event in events if isinstance(event, ToolCallResult)]
    try:
        text = str(await handler)
    # The agent raises errors of many classes; the benchmark counts them as wrong answers.
    except Exception as error:  # noqa: BLE001
        text = f"{type(error).__name__}: {error}"
    right = has_word(text, tuple(turn.get("gold", ())))
    return Reply(turn["kind"], text, right, tuple(tools))


async def talk(llm: AskedModel, folder: Path) -> list[Reply]:
    """Run all sessions, and return the replies."""
    agent = ReActAgent(llm=llm, tools=[multiply, add, weather], streaming=False)
    replies = []
    sessions = json.loads(SCRIPT.read_text(encoding="utf-8"))
    for number, turns in enumerate(sessions, 1):
        async with CondensedMemory.from_defaults(
            f"session {number}",
            user_id=USER,
            llm=llm,
            async_database_uri=f"sqlite+aiosqlite:///{folder / 'live.db'}",
        ) as memory:
            for turn in turns:
                reply = await answer(agent, memory, turn)
                replies.append(reply)
                mark = "right" if reply.right else "-"
                print(
                    f"{number} {turn['said']}\n    {reply.text!r} {reply.tools} {mark}",
                    flush=True,
                )
    return replies


def measures_of(replies: Sequence[Reply]) -> list[Measure]:
    """What is published of the replies."""
    lines = []
    for kind in (SAME, EARLIER, TOOL, GENERAL):
        of_kind = [reply for reply in replies if reply.kind == kind]
        right = sum(reply.right for reply in of_kind)
        lines.append(Measure(f"right answers, {kind}", right, f"of {len(of_kind)}"))
    needless = [reply for reply in replies if reply.kind != TOOL]
    with_tools = sum(bool(reply.tools) for reply in needless)
    with_tags = sum(bool(_TAG.search(reply.text)) for reply in replies)
    lines += [
        Measure(
            "turns with a tool that was not needed", with_tools, f"of {len(needless)}"
        ),
        Measure("answers with tags", with_tags, f"of {len(replies)}"),
    ]
    return lines


def main() -> int:
    """Measure with the model of the command, and return the exit code."""
    llm = asked_model("live_agent")
    if llm is None:
        return NOT_MEASURED
    with TemporaryDirectory() as folder:
        replies = asyncio.run(talk(llm, Path(folder)))
    return publish("live_agent", measures_of(replies), [])


if __name__ == "__main__":
    sys.exit(main())
