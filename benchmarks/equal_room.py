"""What the defaults find and cost, beside LlamaIndex's ``Memory`` with prompts of the same length.

    python -m benchmarks.equal_room [LOCOMO_JSON]

The conversations are LoCoMo's. Each message is put. Before each message of the user, the memory learns the facts of the
messages so far: LoCoMo's observations with the rows of their messages, as an extraction would have stored them. The
prompt of that turn is given to
the rule R1 of ``prompt_caches.py`` (OpenAI up to GPT-5.5). At the end each question is asked, as in
``evidence_in_prompt.py``: a message of the evidence counts if its text is in the prompt as it was said. With
"or a fact of it" a message counts, too, if the prompt has a fact that was learned from it.

The sides:

- ``with all defaults``: a record of at most 8,000 tokens, recall within it, and at most 2,000 tokens of facts.
- ``without facts``, and ``without facts and recall``.
- ``LlamaIndex's Memory``, as ``from_defaults`` makes it, with such a ``token_limit`` that its prompts are as long in
  the mean as ours: for the price, as long as ours in all turns, and as long as ours without facts and recall; for the
  evidence, as long as ours when the questions are asked.

What is paid is counted in tokens at the full price: a token from the cache counts a tenth. Nothing is timed, so the
in-memory database serves, and for LlamaIndex's ``Memory`` a list. Only counts are kept: the texts are not free for
every use.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import Memory

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.contenders import in_process
from benchmarks.locomo import Conversation, load_conversations, messages_of, prompt_text
from benchmarks.prompt_caches import Part, TokenPrefix, count_tokens, paid
from benchmarks.recipe import IN_MEMORY, plain_memory
from benchmarks.report import Measure, publish
from llama_index_memory_ext import CondensedMemory

LIMIT = 8_000
MOST_TRIES = 3
# A length that differs by less is the same.
NEAR = 0.02
# LlamaIndex's memory keeps this share of its limit, less half of what it lets go at once.
HOST_RATIO, HOST_FLUSH = 0.7, 3_000

DEFAULTS, NO_FACTS, RECORD = (
    "with all defaults",
    "without facts",
    "without facts and recall",
)
HOST, HOST_LIKE_RECORD = (
    "LlamaIndex's Memory, as long",
    "LlamaIndex's Memory, as long as the record",
)
HOST_ASKED = "LlamaIndex's Memory, as long when asked"

Open = Callable[[], AbstractAsyncContextManager[Memory]]


@dataclass
class Counts:
    """The prompts of one side, of all turns and of all questions."""

    turns: int = 0
    tokens: int = 0
    found: int = 0
    paid: float = 0.0
    question_tokens: list[int] = field(default_factory=list)
    evidence: list[float] = field(default_factory=list)
    evidence_or_facts: list[float] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Take the prompts of another conversation, too."""
        self.turns += other.turns
        self.tokens += other.tokens
        self.found += other.found
        self.paid += other.paid
        self.question_tokens += other.question_tokens
        self.evidence += other.evidence
        self.evidence_or_facts += other.evidence_or_facts

    @property
    def tokens_per_turn(self) -> float:
        return self.tokens / self.turns

    @property
    def tokens_per_question(self) -> float:
        return mean(self.question_tokens)

    def measures(self, side: str) -> list[Measure]:
        """The numbers of this side."""
        return [
            Measure(f"tokens of a prompt, {side}", self.tokens_per_turn),
            Measure(f"share from the cache, {side}", self.found / self.tokens),
            Measure(f"paid for a prompt, {side}", self.paid / self.turns),
            Measure(
                f"tokens of a prompt with a question, {side}", self.tokens_per_question
            ),
            Measure(f"mean over the questions, {side}", 100 * mean(self.evidence), "%"),
            Measure(
                f"mean over the questions, or a fact of it, {side}",
                100 * mean(self.evidence_or_facts),
                "%",
            ),
        ]


def mean(values: Sequence[float]) -> float:
    """The mean of some values."""
    return sum(values) / len(values)


def ours(**settings: Any) -> CondensedMemory:
    """Our memory, whose facts are added by hand."""
    return CondensedMemory.from_defaults(
        condensed_token_limit=LIMIT, extract_facts=False, **settings
    )


def host(token_limit: int) -> AbstractAsyncContextManager[Memory]:
    """LlamaIndex's memory, which counts by its own tokenizer."""
    return in_process(plain_memory(IN_MEMORY, token_limit=token_limit))


def replay(opened: Open, conversation: Conversation) -> Counts:
    """Put a conversation into a new memory, and count the prompts of its turns and questions."""
    return asyncio.run(_replay(opened, conversation))


async def _replay(opened: Open, conversation: Conversation) -> Counts:
    counts = Counts()
    async with opened() as memory:
        await put_all(memory, conversation, counts)
        await ask_all(memory, conversation, counts)
    return counts


async def put_all(memory: Memory, conversation: Conversation, counts: Counts) -> None:
    """Put the messages, and count the prompt of each turn."""
    cache = TokenPrefix()
    waiting = list(conversation["pools"]["observations"])
    rows: dict[str, int] = {}
    for item, message in zip(
        conversation["pools"]["turns"], messages_of(conversation), strict=True
    ):
        is_question = message.role == MessageRole.USER
        if is_question and isinstance(memory, CondensedMemory):
            waiting = await learn(memory, waiting, rows)
        await memory.aput(message)
        # A new database counts its rows from 1.
        rows[item["id"]] = len(rows) + 1
        if is_question:
            usage = cache.serve(parts_of(await memory.aget()))
            counts.turns += 1
            counts.tokens += usage.prompt
            counts.found += usage.found
            counts.paid += paid(usage, cache)
    if isinstance(memory, CondensedMemory):
        await learn(memory, waiting, rows)
        await memory.condensed_block.await_jobs(memory.session_id)


async def learn(
    memory: CondensedMemory, waiting: list[dict[str, Any]], rows: dict[str, int]
) -> list[dict[str, Any]]:
    """Store the facts whose messages were all said, with their rows; return the others."""
    later = []
    for fact in waiting:
        if rows.keys() >= set(fact["source"]):
            await memory.facts.aadd(
                fact["text"],
                confidence=fact.get("confidence", 1.0),
                session_id=memory.session_id,
                message_ids=[rows[turn] for turn in fact["source"]],
            )
        else:
            later.append(fact)
    return later


async def ask_all(memory: Memory, conversation: Conversation, counts: Counts) -> None:
    """Ask each question, and count how much of its evidence is in the prompt."""
    texts = {turn["id"]: turn["text"] for turn in conversation["pools"]["turns"]}
    facts = conversation["pools"]["observations"]
    for question in conversation["questions"]:
        if question["adversarial"]:
            continue
        prompt = prompt_text(await memory.aget(input=question["text"]))
        in_prompt = {turn for turn in question["evidence"] if texts[turn] in prompt}
        of_facts = {
            turn for fact in facts if fact["text"] in prompt for turn in fact["source"]
        }
        with_facts = in_prompt | of_facts.intersection(question["evidence"])
        counts.question_tokens.append(count_tokens(prompt))
        counts.evidence.append(len(in_prompt) / len(question["evidence"]))
        counts.evidence_or_facts.append(len(with_facts) / len(question["evidence"]))


def parts_of(prompt: Iterable[ChatMessage]) -> list[Part]:
    """The messages of a prompt as a cache sees them."""
    return [Part(prompt_text([message])) for message in prompt]


class Replays:
    """The replays of all conversations, each of which has a process of its own."""

    def __init__(self, conversations: Sequence[Conversation], pool: Executor) -> None:
        self.conversations = conversations
        self.pool = pool
        self.hosts: dict[int, Counts] = {}

    def of(self, opened: Open) -> Counts:
        """The counts of one side."""
        counts = Counts()
        for part in self.pool.map(partial(replay, opened), self.conversations):
            counts.add(part)
        return counts

    def host_like(self, wanted: float, length: Callable[[Counts], float]) -> Counts:
        """LlamaIndex's memory with a limit by which its prompts are most nearly as long as wanted."""
        limit = round((wanted + HOST_FLUSH / 2) / HOST_RATIO)
        for _ in range(MOST_TRIES):
            if limit not in self.hosts:
                self.hosts[limit] = self.of(partial(host, limit))
            reached = length(self.hosts[limit])
            if abs(reached / wanted - 1) < NEAR:
                break
            limit += round((wanted - reached) / HOST_RATIO)
        return min(self.hosts.values(), key=lambda counts: abs(length(counts) - wanted))


def per_turn(counts: Counts) -> float:
    """The length of the prompts of the turns."""
    return counts.tokens_per_turn


def per_question(counts: Counts) -> float:
    """The length of the prompts of the questions."""
    return counts.tokens_per_question


def measure(replays: Replays) -> dict[str, Counts]:
    """The counts of each side."""
    settings: dict[str, dict[str, Any]] = {
        DEFAULTS: {},
        NO_FACTS: {"facts_token_limit": 0},
        RECORD: {"facts_token_limit": 0, "recall_token_limit": 0},
    }
    counts = {}
    for side, of_side in shown(settings.items(), "sides"):
        counts[side] = replays.of(partial(ours, **of_side))
    counts[HOST] = replays.host_like(per_turn(counts[DEFAULTS]), per_turn)
    counts[HOST_LIKE_RECORD] = replays.host_like(per_turn(counts[RECORD]), per_turn)
    counts[HOST_ASKED] = replays.host_like(per_question(counts[DEFAULTS]), per_question)
    return counts


def measures_of(counts: dict[str, Counts]) -> list[Measure]:
    """The numbers of all sides, and what a turn costs relative to LlamaIndex's memory."""
    measures = [
        Measure("turns", counts[DEFAULTS].turns),
        Measure("questions", len(counts[DEFAULTS].evidence)),
    ]
    for side, of_side in counts.items():
        measures += of_side.measures(side)
    for side in (DEFAULTS, NO_FACTS, RECORD):
        for to in (HOST, HOST_LIKE_RECORD):
            measures.append(
                Measure(
                    f"price of a turn, {side}, to {to}",
                    counts[side].paid / counts[to].paid,
                )
            )
    return measures


def main() -> int:
    """Measure, publish, and return the exit code."""
    conversations = load_conversations("equal_room")
    if not conversations:
        return NOT_MEASURED
    with ProcessPoolExecutor(len(conversations), get_context("spawn")) as pool:
        counts = measure(Replays(conversations, pool))
    return publish("equal_room", measures_of(counts), [])


if __name__ == "__main__":
    sys.exit(main())
