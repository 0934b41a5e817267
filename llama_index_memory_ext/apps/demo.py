"""The demo: memories answer questions about the past, also after a killed process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import (
    FactExtractionMemoryBlock,
    Memory,
    VectorMemoryBlock,
)
from llama_index.core.utils import get_tqdm_iterable
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQueryResult
from pydantic import Field

import llama_index_memory_ext as ext
from llama_index_memory_ext import OfflineModel, body_of
from llama_index_memory_ext.apps.cli import model_host, one_line

if TYPE_CHECKING:
    from llama_index.core.llms import LLM

# Seconds for an answer of the model.
_TIMEOUT = 30.0
_TOKEN_LIMIT = 3_000
_COLUMNS = 78
_COUNTER = ext.TokenCounter()
_TOLD = "I'm allergic to nuts."
_ASKED = "May I have the nut cake?"
# The messages have fixed days, so that each run sends prompts of the same length. Each
# question has a label for the table, and words that the right answer contains.
_CONVERSATION = json.loads(Path(__file__).with_name("conversation.json").read_bytes())


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
        "timeout": variables.get("OPENAI_TIMEOUT") or _TIMEOUT,
    }
    return ext.AnyOpenAI(max_retries=1, **options)


def describe_model(model: LLM) -> str:
    """Return the name and the host of a model; of the offline model, why it answers."""
    name = model.metadata.model_name
    if isinstance(model, OfflineModel):
        return f"an {name}, because OPENAI_API_KEY is not set"
    return f"{name} at {model_host()}"


class _Words(SimpleVectorStore):
    """A vector store in memory that finds the texts with most words of the query, without a model."""

    stores_text: bool = True
    nodes: list[Any] = Field(default_factory=list)

    def add(self, nodes: Any, **_: Any) -> list[str]:
        self.nodes += nodes
        return []

    def query(self, query: Any, **_: Any) -> VectorStoreQueryResult:
        words = set(query.query_str.split())
        self.nodes.sort(key=lambda node: len(words.intersection(node.text.split())))
        best = self.nodes[-query.similarity_top_k :]
        return VectorStoreQueryResult(nodes=best, similarities=[1.0] * len(best))


class _Answer(NamedTuple):
    """The answer to a question, and the prompt that the model saw."""

    text: str
    prompt: str


@dataclass
class _Side:
    """A memory of the comparison, with the model that answers, and its answers.

    ``learning``: counts the tokens of the calls that learn facts.
    """

    name: str
    memory: Any
    model: LLM
    learning: TokenCountingHandler
    answers: list[_Answer] = field(default_factory=list)

    async def ask(self, question: str) -> None:
        """Ask a question as an agent does, and keep the answer."""
        await self.memory.aput(ChatMessage(question))
        messages = await self.memory.aget()
        response = await self.model.achat(messages)
        await self.memory.aput(response.message)
        prompt = "\n".join(map(body_of, messages))
        self.answers.append(_Answer(body_of(response.message), prompt))

    def print_answer(self, index: int) -> None:
        """Print an answer behind the name of the memory."""
        print(f"  {self.name:18}  {one_line(self.answers[index].text)}")


def _open_sides(folder: Path, session: str) -> list[_Side]:
    """Open a session of each memory; their databases are in the folder."""
    sides = []
    for name in ("Memory", "Memory, its blocks", "CondensedMemory"):
        handler = TokenCountingHandler(tokenizer=_COUNTER)
        model = choose_model(callback_manager=CallbackManager([handler]))
        options: dict[str, Any] = {
            "session_id": session,
            "token_limit": _TOKEN_LIMIT,
            "async_database_uri": f"sqlite+aiosqlite:///{folder.as_posix()}/{name}.db",
        }
        if name == "Memory, its blocks":
            options["memory_blocks"] = [
                FactExtractionMemoryBlock(llm=model),
                VectorMemoryBlock(vector_store=_Words(), embed_model=MockEmbedding(1)),
            ]
        memory: Any
        if name == "CondensedMemory":
            # In a new session, the question waits until the old session was read.
            memory = ext.CondensedMemory.from_defaults(
                **options, user_id="logan", llm=model, wait_for_facts=_TIMEOUT
            )
        else:
            # By default LlamaIndex's Memory drops 3,000 tokens at once.
            memory = Memory.from_defaults(
                **options, token_flush_size=_TOKEN_LIMIT // 10
            )
        sides.append(_Side(name, memory, choose_model(), handler))
    return sides


async def _close_sides(sides: list[_Side]) -> None:
    await sides[-1].memory.aclose()
    for side in sides[:-1]:
        # An interrupt would leave a thread of LlamaIndex's store at work.
        engine = side.memory.sql_store._async_engine  # noqa: SLF001
        if engine is not None:
            await engine.dispose()


def run(*, with_all: bool = False) -> None:
    """Compare the memories; ``with_all`` prints the answer to each question, too."""
    folder = Path(tempfile.mkdtemp(prefix="demo-"))
    print(f"Model: {describe_model(choose_model())}\nDatabases: {folder}\n")
    asyncio.run(_compare(folder, with_all=with_all))
    other_folder = Path(tempfile.mkdtemp(prefix="demo-", dir=folder))
    program = "import asyncio, sys; from llama_index_memory_ext.apps import demo; asyncio.run(demo.tell(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(other_folder)]
    subprocess.run(command, check=False)  # noqa: S603 - the command is this program
    asyncio.run(_ask_after_kill(other_folder))
    print("\n`demo --all` prints each answer. Use it in your agent: docs/quickstart.md")


async def _compare(folder: Path, *, with_all: bool) -> None:
    """Put the messages into each memory, ask the questions, and print a table of the right answers."""
    sides = _open_sides(folder, "demo")
    messages = ext.messages_from_json(_CONVERSATION)
    questions = _CONVERSATION["questions"]
    try:
        for message in get_tqdm_iterable(messages, sys.stderr.isatty(), "Messages"):
            for side in sides:
                await side.memory.aput(message)
            # An agent need not wait. The demo waits, so that each run learns the same
            # facts.
            await sides[-1].memory.facts_block.await_jobs("demo")
        for side in sides:
            for question in questions:
                await side.ask(question["text"])
        # Before a memory is closed, which learns from its last turns.
        columns = [_column(side, questions) for side in sides]
    finally:
        await _close_sides(sides)
    labels = [question["label"] for question in questions]
    labels += ["in all", "mean tokens of a prompt", "tokens to learn facts"]
    for row in zip(["RIGHT ANSWERS", *labels], *columns, strict=True):
        print("{:29}{:>8}{:>20}{:>17}".format(*row))
    if with_all:
        _print_answers(sides, questions)


def _print_answers(sides: list[_Side], questions: list[dict[str, str]]) -> None:
    for index, question in enumerate(questions):
        print(f"\n{question['text']}")
        for side in sides:
            side.print_answer(index)


def _column(side: _Side, questions: list[dict[str, str]]) -> list[str]:
    """Return the cells of a memory. A right guess does not count: the answer must stand in the prompt."""
    tokens = 0
    verdicts = []
    for question, answer in zip(questions, side.answers, strict=True):
        tokens += _COUNTER.count(answer.prompt)
        right = question["answer"]
        is_right = right in answer.prompt and right in answer.text.replace(",", "")
        verdicts.append("yes" if is_right else "no")
    return [
        side.name,
        *verdicts,
        f"{verdicts.count('yes')} of {len(questions)}",
        f"{tokens / len(questions):,.0f}",
        f"{side.learning.total_llm_token_count:,}",
    ]


async def tell(folder: str) -> None:
    """Tell each memory of the allergy, and kill this process: nothing is learned or closed."""
    for side in _open_sides(Path(folder), "monday"):
        await side.ask(_TOLD)
    os.kill(os.getpid(), signal.SIGTERM)


async def _ask_after_kill(folder: Path) -> None:
    """Ask each memory in a new session; print the answers, and the prompt of CondensedMemory."""
    print(f"\nA process hears {_TOLD!r} and is KILLED.\nA new session: {_ASKED}")
    sides = _open_sides(folder, "tuesday")
    for side in sides:
        await side.ask(_ASKED)
        side.print_answer(0)
    prompt = side.answers[0].prompt
    print(f"\nThe prompt of {side.name}, {_COUNTER.count(prompt)} tokens:")
    for line in prompt.splitlines():
        print("  |", one_line(line, _COLUMNS))
    for fact in await side.memory.facts.alist():
        print(f'The fact quotes the user: "{one_line(fact.quote)}"')
    await _close_sides(sides)
