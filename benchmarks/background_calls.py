"""Counts the tokens of the model calls that no answer waits for: facts and summaries.

    python -m benchmarks.background_calls [LOCOMO_JSON]

The conversations are LoCoMo's, put turn by turn, with a record of 8,000 tokens; the memory is closed at the end. Facts
are learned as by default, when they are needed: no other session asks, and no conversation is quiet. The model is the
stand-in of ``stand_in.py``: a statement for each message of the user, and 300 words for a summary. Tokens are o200k's,
the schema of the tool included. Nothing is timed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from llama_index.core.base.llms.types import MessageRole

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.locomo import Conversation, load_conversations, messages_of
from benchmarks.recipe import o200k
from benchmarks.report import Measure, publish
from benchmarks.stand_in import StandInModel
from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.learning.report import report_tool
from llama_index_memory_ext.models.ask import Usage

LIMIT = 8_000


@cache
def tool_text() -> str:
    """Return what a request for facts says of its tool."""
    return str(report_tool().metadata.fn_schema_str)


@dataclass
class Spent:
    """The calls of all conversations, and the turns in which they were made."""

    turns: int = 0
    facts: Usage = field(default_factory=Usage)
    summaries: Usage = field(default_factory=Usage)

    def add(self, other: Spent) -> None:
        """Add the calls of another conversation."""
        self.turns += other.turns
        self.facts += other.facts
        self.summaries += other.summaries


async def replay(conversation: Conversation) -> Spent:
    """Put a conversation into a new memory, and return the calls that it has made."""
    spent = Spent()
    memory = CondensedMemory.from_defaults(
        condensed_token_limit=LIMIT, llm=StandInModel(), summarize=True
    )
    async with memory:
        for message in messages_of(conversation):
            if message.role == MessageRole.USER:
                spent.turns += 1
            await memory.aput(message)
            await memory.aget()
            await memory.sql_store.jobs.wait_for_session(memory.session_id)
        await memory.aflush()
        usage = (await memory.astats()).usage
    spent.facts = usage["facts"]
    spent.summaries = usage["summary"]
    return spent


def measures_of(spent: Spent, tool_tokens: int) -> list[Measure]:
    """Return the calls and their tokens, per turn."""
    measures = [Measure("turns", spent.turns)]
    sent = spent.facts.prompt_tokens + tool_tokens * spent.facts.calls
    for kind, usage, prompt_tokens in (
        ("facts", spent.facts, sent),
        ("summaries", spent.summaries, spent.summaries.prompt_tokens),
    ):
        measures += [
            Measure(f"calls in a turn, {kind}", usage.calls / spent.turns),
            Measure(f"tokens sent in a turn, {kind}", prompt_tokens / spent.turns),
            Measure(
                f"tokens received in a turn, {kind}",
                usage.completion_tokens / spent.turns,
            ),
        ]
    return measures


async def replay_all(conversations: Sequence[Conversation]) -> Spent:
    """Return the calls of all conversations."""
    spent = Spent()
    for conversation in shown(conversations, "conversations"):
        spent.add(await replay(conversation))
    return spent


def main() -> int:
    """Measure, publish, and return the exit code."""
    conversations = load_conversations("background_calls")
    if not conversations:
        return NOT_MEASURED
    spent = asyncio.run(replay_all(conversations))
    tool_tokens = len(o200k().encode_ordinary(tool_text()))
    return publish("background_calls", measures_of(spent, tool_tokens), [])


if __name__ == "__main__":
    sys.exit(main())
