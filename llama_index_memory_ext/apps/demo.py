"""The demo, which compares two memories."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory

import llama_index_memory_ext as ext
from llama_index_memory_ext import OfflineModel, SettingError, body_of
from llama_index_memory_ext.apps.cli import (
    TIMEOUT,
    model_host,
    one_line,
    plain,
    pluralize,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.llms import LLM

_TOKEN_LIMIT = 3_000
# A long prompt is printed without its middle. A long line is printed without its end.
_FIRST_LINES = 4
_LAST_LINES = 15
_COLUMNS = 78
# US dollars for a million tokens, from https://developers.openai.com/api/docs/pricing
# in November 2026. A cached token costs 0.075 less.
_MODEL = "gpt-4o-mini"
_INPUT_PRICE = 0.15
_CACHE_DISCOUNT = 0.075
_OUTPUT_PRICE = 0.60
# OpenAI caches prompts from 1,024 tokens on, in steps of 128:
# https://developers.openai.com/api/docs/guides/prompt-caching
_LEAST_CACHED = 1_024
_CACHE_STEP = 128
_COUNTER = ext.TokenCounter()


class _Question(NamedTuple):
    """A question about the past.

    ``turn``: the number of the turn with the answer.
    ``label``: the name in the table.
    ``text``: the question.
    ``answer``: words that the right answer contains.
    """

    turn: int
    label: str
    text: str
    answer: str


# The messages have fixed days, so that each run sends prompts of the same length.
_CONVERSATION = json.loads(Path(__file__).with_name("conversation.json").read_bytes())
_QUESTIONS = [_Question(**fields) for fields in _CONVERSATION["questions"]]


def choose_model() -> LLM:
    """Return the model that the variables name; without ``OPENAI_API_KEY`` the offline model.

    ``OPENAI_MODEL``: any name with the server at ``OPENAI_API_BASE``.
    ``OPENAI_TIMEOUT``: in seconds; default 30.
    ``OPENAI_CONTEXT_WINDOW``: the window of the model, in tokens.
    """
    variables = os.environ
    if not variables.get("OPENAI_API_KEY"):
        return OfflineModel()
    seconds = variables.get("OPENAI_TIMEOUT") or str(TIMEOUT)
    if not seconds.replace(".", "", 1).isdecimal():
        raise SettingError(
            f"OPENAI_TIMEOUT must be a number of seconds such as 30; got {seconds!r}. Unset it for 30 seconds."
        )
    options: dict[str, Any] = {
        "model": variables.get("OPENAI_MODEL") or "gpt-4o-mini",
        "api_base": variables.get("OPENAI_API_BASE"),
        "OPENAI_CONTEXT_WINDOW": variables.get("OPENAI_CONTEXT_WINDOW") or None,
        "timeout": float(seconds),
    }
    return ext.AnyOpenAI(max_retries=1, **options)


def describe_model(model: LLM) -> str:
    """Return the name and the host of a model; of the offline model, why it answers."""
    if isinstance(model, OfflineModel):
        return "a small offline one that answers by rules, because OPENAI_API_KEY is not set"
    return f"{model.metadata.model_name} at {model_host()}"


@dataclass
class _Side:
    """A memory of the comparison, and the tokens of the model's calls with it.

    ``sent``, ``received``: tokens of the prompts and of the replies.
    ``cached``: tokens of the prompts that OpenAI's cache finds.
    ``answered``: for each question, whether the model answered it from the prompt.
    ``learning``: the price of the calls that learn facts, in millionths of a dollar.
    """

    name: str
    memory: Memory
    calls: int = 0
    sent: int = 0
    cached: int = 0
    received: int = 0
    last_prompt: str = ""
    answered: list[bool] = field(default_factory=list)
    learning: float = 0.0

    def add_call(self, prompt: str, reply: ChatMessage) -> None:
        """Add a call of the model. The cache finds the beginning that the prompt shares with the last prompt."""
        shared = _COUNTER.count(os.path.commonprefix([self.last_prompt, prompt]))  # noqa: RUF071 - texts, not paths
        if shared >= _LEAST_CACHED:
            self.cached += shared - shared % _CACHE_STEP
        self.calls += 1
        self.sent += _COUNTER.count(prompt)
        self.received += _COUNTER.count(body_of(reply))
        self.last_prompt = prompt


def run() -> int:
    """Hold a conversation with both memories, print the answers and the costs, and return the exit code."""
    model = choose_model()
    messages = ext.messages_from_json(_CONVERSATION)
    user_texts = [body_of(message) for message in messages if message.role == "user"]
    turns = len(user_texts) + len(_QUESTIONS)
    uri = f"sqlite+aiosqlite:///{Path(tempfile.mkdtemp(prefix='demo-')).as_posix()}/memory.db"
    print(
        f"A conversation of {turns} turns, with two memories that have token_limit={_TOKEN_LIMIT:,} each\n"
    )
    _print_labelled("model", describe_model(model))
    _print_labelled("database", uri)
    print(
        f"\n\nTURNS 1 TO {len(user_texts)}: orders of a fruit trader, and among them:\n"
    )
    for question in _QUESTIONS:
        _print_labelled(f"turn {question.turn}", user_texts[question.turn - 1])
    print(
        """
  These turns come with the demo. They are put into both memories with their
  answers, which takes some seconds. The model is asked for one thing only:
  which facts CondensedMemory should learn from each turn.""",
        flush=True,
    )
    _print_table(asyncio.run(_compare(model, uri, messages)), turns)
    return 0


async def _compare(
    model: LLM, uri: str, messages: Sequence[ChatMessage]
) -> list[_Side]:
    """Put the messages into both memories, ask each memory the questions, and return the results."""
    # By default LlamaIndex's Memory uses 70 % of its limit, and drops 3,000 tokens at
    # once.
    host_memory = Memory.from_defaults(
        token_limit=_TOKEN_LIMIT,
        chat_history_token_ratio=1,
        token_flush_size=_TOKEN_LIMIT // 10,
    )
    async with ext.CondensedMemory.from_defaults(
        "demo",
        user_id="logan",
        llm=model,
        async_database_uri=uri,
        token_limit=_TOKEN_LIMIT,
    ) as ours:
        sides = [
            _Side("LlamaIndex Memory", host_memory),
            _Side("CondensedMemory", ours),
        ]
        for number, message in enumerate(messages, 1):
            if sys.stdout.isatty():
                print(f"\r  {number} of {len(messages)} messages", end="", flush=True)
            for side in sides:
                if message.role == "assistant":
                    # An agent would have sent this prompt, and got this reply.
                    prompt = await side.memory.aget()
                    side.add_call("\n".join(map(body_of, prompt)), message)
                await side.memory.aput(message)
            # An agent need not wait. The demo waits, so that each run shows the same
            # facts in the same turn.
            await ours.facts_block.await_jobs("demo")
        print(
            f"\n\nTHE LAST {len(_QUESTIONS)} TURNS: the model answers from what each memory shows it"
        )
        for question in _QUESTIONS:
            print(f"\nQuestion: {question.text}")
            for side in sides:
                await _ask(model, side, question)
            await ours.facts_block.await_jobs("demo")
        usage = (await ours.astats()).usage["facts"]
        sides[1].learning = (
            usage.prompt_tokens * _INPUT_PRICE + usage.completion_tokens * _OUTPUT_PRICE
        )
    return sides


async def _ask(model: LLM, side: _Side, question: _Question) -> None:
    """Ask a question and print the answer; print the prompt of the first question, too."""
    await side.memory.aput(ChatMessage(question.text))
    messages = await side.memory.aget()
    response = await model.achat(messages)
    await side.memory.aput(response.message)
    prompt = "\n".join(map(body_of, messages))
    answer = body_of(response.message)
    if not side.answered:
        _print_prompt(f"{side.name}: {pluralize(len(messages), 'message')}", prompt)
    _print_labelled(side.name, answer)
    side.add_call(prompt, response.message)
    # A right guess does not count.
    is_in_prompt = question.answer in prompt
    side.answered.append(is_in_prompt and question.answer in answer.replace(",", ""))


def _print_prompt(title: str, prompt: str) -> None:
    """Print the beginning and the end of a long prompt, without blank lines."""
    print(f"\n  The prompt of {title}, {_COUNTER.count(prompt):,} tokens")
    lines = [one_line(line, _COLUMNS - 6) for line in prompt.splitlines() if line]
    for line in (*lines[:_FIRST_LINES], "...", *lines[-_LAST_LINES:]):
        print("    |", line)


def _print_table(sides: Sequence[_Side], turns: int) -> None:
    """Print the answers of each memory, and the costs of its prompts."""
    # From millionths of a dollar for all turns to cents for a thousand turns.
    scale = 0.1 / turns
    columns = [
        [
            "RESULT",
            *(question.label for question in _QUESTIONS),
            "questions answered",
            "mean tokens of a prompt",
            "share that a prompt cache finds",
            f"1,000 turns with {_MODEL}",
            "  of these for learning facts",
        ]
    ]
    for side in sides:
        talking = (
            side.sent * _INPUT_PRICE
            - side.cached * _CACHE_DISCOUNT
            + side.received * _OUTPUT_PRICE
        )
        columns.append(
            [
                side.name,
                *("yes" if is_answered else "no" for is_answered in side.answered),
                f"{sum(side.answered)} of {len(_QUESTIONS)}",
                f"{side.sent / side.calls:,.0f}",
                f"{side.cached / side.sent:.0%}",
                f"{(talking + side.learning) * scale:.0f} cents",
                f"{side.learning * scale:.0f} cents",
            ]
        )
    print("\n")
    for row in zip(*columns, strict=True):
        print("{:38}{:>20}{:>20}".format(*row))
    print("""
yes: the answer is right, and it stood in the prompt. Prices: November 2026.
CondensedMemory adds earlier messages that it finds for a question, which no
prompt cache holds, and calls of the model that learn facts (not with
extract_facts=False). Use it in your agent: docs/quickstart.md""")


def _print_labelled(label: str, text: str) -> None:
    labelled = plain(f"  {label:17}  {text}")
    print(
        textwrap.fill(
            labelled, _COLUMNS, subsequent_indent=" " * 21, break_on_hyphens=False
        )
    )
