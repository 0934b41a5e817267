"""The demo: two memories answer questions about the past, also after a killed process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory
from llama_index.core.utils import get_tqdm_iterable

import llama_index_memory_ext as ext
from llama_index_memory_ext import OfflineModel, body_of
from llama_index_memory_ext.apps.cli import TIMEOUT, model_host, one_line, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.llms import LLM

_TOKEN_LIMIT = 3_000
_COLUMNS = 78
_COUNTER = ext.TokenCounter()
_TOLD = "I'm allergic to nuts."
_ASKED = "May I have the nut cake?"


class _Question(NamedTuple):
    """A question about the past.

    ``label``: the name in the table.
    ``text``: the question.
    ``answer``: words that the right answer contains.
    """

    label: str
    text: str
    answer: str


# The messages have fixed days, so that each run sends prompts of the same length.
_CONVERSATION = json.loads(Path(__file__).with_name("conversation.json").read_bytes())
_QUESTIONS = [_Question(**fields) for fields in _CONVERSATION["questions"]]


def choose_model(**options: Any) -> LLM:
    """Return the model that the variables name; without ``OPENAI_API_KEY`` the offline model.

    ``OPENAI_MODEL``: any name with the server at ``OPENAI_API_BASE``.
    ``OPENAI_TIMEOUT``: in seconds; default 30.
    ``OPENAI_CONTEXT_WINDOW``: the window of the model, in tokens.
    """
    variables = os.environ
    if not variables.get("OPENAI_API_KEY"):
        return OfflineModel(**options)
    options |= {
        "model": variables.get("OPENAI_MODEL") or "gpt-4o-mini",
        "api_base": variables.get("OPENAI_API_BASE"),
        "OPENAI_CONTEXT_WINDOW": variables.get("OPENAI_CONTEXT_WINDOW") or None,
        "timeout": variables.get("OPENAI_TIMEOUT") or TIMEOUT,
    }
    return ext.AnyOpenAI(max_retries=1, **options)


def describe_model(model: LLM) -> str:
    """Return the name and the host of a model; of the offline model, why it answers."""
    name = model.metadata.model_name
    if isinstance(model, OfflineModel):
        return f"an {name}, because OPENAI_API_KEY is not set"
    return f"{name} at {model_host()}"


class _Answer(NamedTuple):
    """The answer to a question, and the prompt that the model saw."""

    text: str
    prompt: str


@dataclass
class _Side:
    """A memory of the comparison; ``learning`` counts the tokens of the calls that learn facts."""

    name: str
    memory: Any
    learning: TokenCountingHandler
    prompt_tokens: list[int] = field(default_factory=list)
    answers: list[_Answer] = field(default_factory=list)

    async def ask(self, model: LLM, question: str) -> _Answer:
        """Ask a question as an agent does, and return the answer."""
        await self.memory.aput(ChatMessage(question))
        messages = await self.memory.aget()
        response = await model.achat(messages)
        await self.memory.aput(response.message)
        return _Answer(body_of(response.message), "\n".join(map(body_of, messages)))

    def is_right(self, index: int) -> bool:
        """Return whether an answer is right and stood in the prompt; a right guess does not count."""
        answer = self.answers[index]
        right = _QUESTIONS[index].answer
        return right in answer.prompt and right in answer.text.replace(",", "")


def _open_sides(folder: Path, session: str) -> list[_Side]:
    """Open a session of each memory; their databases are in the folder."""
    sides = []
    for name in ("Memory", "CondensedMemory"):
        handler = TokenCountingHandler(tokenizer=_COUNTER)
        options: dict[str, Any] = {
            "session_id": session,
            "token_limit": _TOKEN_LIMIT,
            "async_database_uri": f"sqlite+aiosqlite:///{folder.as_posix()}/{name}.db",
        }
        memory: Any
        if name == "Memory":
            # By default LlamaIndex's Memory drops 3,000 tokens at once.
            memory = Memory.from_defaults(
                **options, token_flush_size=_TOKEN_LIMIT // 10
            )
        else:
            model = choose_model(callback_manager=CallbackManager([handler]))
            # In a new session, the question waits until the old session was read.
            memory = ext.CondensedMemory.from_defaults(
                **options, user_id="logan", llm=model, wait_for_facts=TIMEOUT
            )
        sides.append(_Side(name, memory, handler))
    return sides


def run(*, with_all: bool = False) -> int:
    """Compare the memories, print the answers, and return the exit code; ``with_all`` adds each answer."""
    folder = Path(tempfile.mkdtemp(prefix="demo-"))
    model = choose_model()
    _print_labelled("Model", describe_model(model))
    _print_labelled("Databases", str(folder))
    print()
    messages = ext.messages_from_json(_CONVERSATION)
    sides = asyncio.run(_compare(model, folder, messages))
    _print_table(sides)
    other_folder = Path(tempfile.mkdtemp(prefix="demo-", dir=folder))
    _kill_after_telling(other_folder)
    asyncio.run(_ask_after_kill(model, other_folder))
    if with_all:
        _print_all(sides)
    print("\n`demo --all` prints each answer. Use it in your agent: docs/quickstart.md")
    return 0


async def _compare(
    model: LLM, folder: Path, messages: Sequence[ChatMessage]
) -> list[_Side]:
    """Put the messages into each memory, and ask the questions."""
    sides = _open_sides(folder, "demo")
    ours = sides[-1].memory
    try:
        await _tell_and_ask(model, sides, messages)
    finally:
        await ours.aclose()
        # An interrupt would leave a thread of LlamaIndex's store at work.
        engine = sides[0].memory.sql_store._async_engine  # noqa: SLF001
        if engine is not None:
            await engine.dispose()
    return sides


async def _tell_and_ask(
    model: LLM, sides: Sequence[_Side], messages: Sequence[ChatMessage]
) -> None:
    ours = sides[-1].memory
    for message in get_tqdm_iterable(messages, sys.stderr.isatty(), "Messages"):
        for side in sides:
            if message.role == "assistant":
                # An agent would have sent this prompt, and got this reply.
                prompt = await side.memory.aget()
                texts = "\n".join(map(body_of, prompt))
                side.prompt_tokens.append(_COUNTER.count(texts))
            await side.memory.aput(message)
        # An agent need not wait. The demo waits, so that each run learns the same facts.
        await ours.facts_block.await_jobs("demo")
    for question in _QUESTIONS:
        for side in sides:
            answer = await side.ask(model, question.text)
            side.answers.append(answer)
            side.prompt_tokens.append(_COUNTER.count(answer.prompt))


def _print_table(sides: Sequence[_Side]) -> None:
    """Print which answers of each memory are right, and the tokens of a turn."""
    columns = [
        [
            "RIGHT ANSWERS",
            *(question.label for question in _QUESTIONS),
            "in all",
            "mean tokens of a prompt",
            "tokens a turn to learn facts",
        ]
    ]
    for side in sides:
        turns = len(side.prompt_tokens)
        verdicts = [side.is_right(index) for index in range(len(_QUESTIONS))]
        columns.append(
            [
                side.name,
                *("yes" if verdict else "no" for verdict in verdicts),
                f"{sum(verdicts)} of {len(verdicts)}",
                f"{sum(side.prompt_tokens) / turns:,.0f}",
                f"{side.learning.total_llm_token_count / turns:,.0f}",
            ]
        )
    for row in zip(*columns, strict=True):
        print("{:32}{:>8}{:>18}".format(*row))


def _kill_after_telling(folder: Path) -> None:
    """Tell each memory of the allergy in another process, and kill it."""
    program = "import asyncio, sys; from llama_index_memory_ext.apps import demo; asyncio.run(demo.tell(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(folder)]
    subprocess.run(command, check=False)  # noqa: S603 - the command is this program


async def tell(folder: str) -> None:
    """Tell each memory of the allergy, and kill this process: nothing is learned or closed."""
    model = choose_model()
    for side in _open_sides(Path(folder), "monday"):
        await side.ask(model, _TOLD)
    os.kill(os.getpid(), signal.SIGTERM)


async def _ask_after_kill(model: LLM, folder: Path) -> None:
    """Ask each memory in a new session; print the answers, and the prompt of CondensedMemory."""
    print(f"\nA process hears {_TOLD!r} and is KILLED.\nA new session: {_ASKED}")
    sides = _open_sides(folder, "tuesday")
    for side in sides:
        answer = await side.ask(model, _ASKED)
        _print_labelled(side.name, answer.text)
    tokens = _COUNTER.count(answer.prompt)
    print(f"\nThe prompt of {side.name}, {tokens} tokens:")
    for line in answer.prompt.splitlines():
        print("  |", one_line(line, _COLUMNS))
    for fact in await side.memory.facts.alist():
        print(f'The fact quotes the user: "{one_line(fact.quote)}"')
    await side.memory.aclose()


def _print_all(sides: Sequence[_Side]) -> None:
    """Print each question and its answers."""
    for index, question in enumerate(_QUESTIONS):
        print()
        _print_labelled("Question", question.text)
        for side in sides:
            _print_labelled(side.name, side.answers[index].text)


def _print_labelled(label: str, text: str) -> None:
    labelled = plain(f"  {label:18}  {text}")
    print(
        textwrap.fill(
            labelled, _COLUMNS, subsequent_indent=" " * 22, break_on_hyphens=False
        )
    )
