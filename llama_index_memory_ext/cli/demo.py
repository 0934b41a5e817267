"""The command ``demo``: a conversation over two processes, what the model is shown in each turn, and what it buys."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.agent.workflow import AgentInput, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import DEFAULT_TIMEOUT, TerminalError, model_host, one_line, pluralize
from llama_index_memory_ext.cli.other_model import OtherOpenAI
from llama_index_memory_ext.offline_model import OfflineModel
from llama_index_memory_ext.text.messages import body_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from httpx import AsyncClient
    from llama_index.core.llms.function_calling import FunctionCallingLLM

DEFAULT_MODEL = "gpt-4o-mini"
QUESTIONS = (
    "My name is Logan.",
    "What is (3214 * 322) / 2?",
    "How did you go about answering that?",
    "What is 12 + 30?",
    "I live in Paris.",
    "What is my name?",
    "How did you work out (3214 * 322) / 2?",
)
# The other process asks the rest, and this in a new session.
_IN_FIRST_PROCESS = 5
_IN_NEW_SESSION = "Where do I live?"
_USER, _SESSIONS = "logan", ("demo", "demo-2")
# Holds the address of the database, which may have a password: others can see the arguments of a process.
_SECOND_PROCESS = "LLAMA_INDEX_MEMORY_EXT_DEMO_SECOND"

_count = ext.TokenCounter().count


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def subtract(a: float, b: float) -> float:
    """Subtract the second number from the first."""
    return a - b


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


def divide(a: float, b: float) -> float:
    """Divide the first number by the second."""
    return a / b


# The words below the closing table.
_BOUGHT = """\
In a conversation as short as this one the memory costs more tokens than the plain list: each message is put into
tags that say who said it. For that the model gets one message with all that was asked, done and answered, after a
restart too; it stays within a limit when the list goes on growing; and a new session begins with what is known
about the user."""

TOOLS = (add, subtract, multiply, divide)


def choose_model(
    name: str | None = None, http: AsyncClient | None = None, timeout: float = DEFAULT_TIMEOUT
) -> FunctionCallingLLM:
    """Returns the model of this name (default: ``OPENAI_MODEL``); without a key the offline model.

    With an ``OPENAI_API_BASE`` of others it may have any name, and has the window of ``OPENAI_CONTEXT_WINDOW``.
    ``timeout`` is in seconds.
    """
    if not os.environ.get("OPENAI_API_KEY"):
        return OfflineModel()
    name = name or os.environ.get("OPENAI_MODEL") or DEFAULT_MODEL
    options: dict[str, Any] = {"api_base": os.environ.get("OPENAI_API_BASE"), "timeout": timeout, "max_retries": 1}
    options |= {"model": name, "async_http_client": http}
    if not f".{model_host().partition(':')[0]}".endswith(".openai.com"):
        return OtherOpenAI(context_window=_context_window(), **options)
    model = ext.CachingOpenAI(**options)
    with suppress(ValueError):
        if model.metadata.is_function_calling_model:
            return model
    problem = f"{name!r} is not known to LlamaIndex's OpenAI class, or cannot call tools"
    raise TerminalError(f"the model {problem}. Set OPENAI_MODEL to another one, such as {DEFAULT_MODEL!r}.")


def _context_window() -> int | None:
    """Returns the tokens in ``OPENAI_CONTEXT_WINDOW``, None if it is not set; a TerminalError for anything else."""
    value = os.environ.get("OPENAI_CONTEXT_WINDOW", "").strip()
    if not value:
        return None
    with suppress(ValueError):
        if (tokens := int(value.replace("_", ""))) > 0:
            return tokens
    raise TerminalError(
        f"OPENAI_CONTEXT_WINDOW must be a whole number of tokens above 0, and is {one_line(value, 40)!r}. "
        "Say what the server was started with, such as 8192, or leave it out."
    )


def describe_model(model: FunctionCallingLLM) -> str:
    """Returns the name and the host of a model, or why the offline model answers."""
    if isinstance(model, OfflineModel):
        return "a small offline one that answers by rules, because OPENAI_API_KEY is not set"
    return f"{model.metadata.model_name} at {model_host()}"


def describe_call(call: ToolCallResult) -> str:
    """Returns the name, the arguments and the result of a tool call."""
    arguments = ", ".join(f"{name}={value}" for name, value in call.tool_kwargs.items())
    return f"{call.tool_name}({arguments}) -> {call.tool_output.content}"


def run(db: str | None, timeout: float = DEFAULT_TIMEOUT) -> int:
    """Holds the conversation, the second part of it in another process; returns the exit code.

    ``db`` is a SQLite file or a SQLAlchemy address; None: a file in a new folder.
    """
    address = os.environ.get(_SECOND_PROCESS)
    model = choose_model(timeout=timeout)
    if address is not None:
        asyncio.run(_go_on(model, address))
        return 0
    address = _address_of(db)
    print("A conversation over two processes, and what the model is shown in each turn\n")
    print(f"  model     {describe_model(model)}\n  database  {ext.MemoryStore(address).address}")
    print(f"\nFIRST PROCESS (id {os.getpid()})")
    asyncio.run(_begin(model, address))
    sys.stdout.flush()
    command = [sys.executable, "-m", "llama_index_memory_ext", "demo", f"--timeout={timeout}"]
    environment = {**os.environ, _SECOND_PROCESS: address}
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own command


def _address_of(db: str | None) -> str:
    """Returns the SQLAlchemy address of ``--db``; a TerminalError if no second process could open it."""
    if db and "://" in db:
        if ext.MemoryStore(db).database.in_memory:
            raise TerminalError("--db must name a file or a server: a database in memory ends with its process.")
        return db
    path = Path(db) if db else Path(tempfile.mkdtemp(prefix="llama-index-memory-")) / "memory.db"
    path = path.expanduser().absolute()
    if path.is_dir():
        raise TerminalError(f"--db must name a file, and {path} is a folder.")
    if not path.parent.is_dir():
        raise TerminalError(f"--db must be in a folder that exists, and {path.parent} does not.")
    return f"sqlite+aiosqlite:///{path.as_posix()}"


async def _begin(model: FunctionCallingLLM, address: str) -> None:
    async with _memory(model, address, _SESSIONS[0]) as memory:
        await _converse(model, memory, QUESTIONS[:_IN_FIRST_PROCESS])


async def _go_on(model: FunctionCallingLLM, address: str) -> None:
    print(f"\n\nSECOND PROCESS (id {os.getpid()}), with the same database and session")
    async with _memory(model, address, _SESSIONS[0]) as memory:
        last = await _converse(model, memory, QUESTIONS[_IN_FIRST_PROCESS:])
        limit = memory.condensed_block.token_limit
    print("\n\nA NEW SESSION of the same user")
    async with _memory(model, address, _SESSIONS[1]) as memory:
        first = await _converse(model, memory, [_IN_NEW_SESSION])
    print(f"\n\n{_closing(last, first, limit)}")


def _memory(model: FunctionCallingLLM, address: str, session: str) -> ext.CondensedMemory:
    return ext.CondensedMemory.from_defaults(session, user_id=_USER, llm=model, async_database_uri=address)


class _Prompt(NamedTuple):
    """What the model was shown for a question, and the messages that it would be shown without this package."""

    shown: Sequence[ChatMessage]
    plain: Sequence[ChatMessage]

    def parts(self, role: str) -> str:
        """Returns how many of the earlier messages of a role stand in what was shown: "3 of 3"."""
        texts = [body_of(message) for message in self.plain[:-1] if message.role.value == role]
        stands = [text for text in texts if any(text in body_of(one) for one in self.shown)]
        return f"{len(stands)} of {len(texts)}"

    @property
    def facts(self) -> int:
        """How many facts about the user were shown."""
        return sum(body_of(message).count("<fact ") for message in self.shown)


async def _converse(model: FunctionCallingLLM, memory: ext.CondensedMemory, questions: Iterable[str]) -> _Prompt:
    """Asks the questions; prints what the model is shown first in each turn, the tools that it calls, its answer."""
    agent = FunctionAgent(tools=list(TOOLS), llm=model)
    print(f"  stored    {pluralize(len(await memory.aget_all()), 'message')} of the session {memory.session_id!r}")
    prompt = _Prompt((), ())
    for question in questions:
        plain = [*await memory.aget_all(), ChatMessage(question)]
        running = agent.run(question, memory=memory)
        events = [event async for event in running.stream_events()]
        prompt = _Prompt(next(event.input for event in events if isinstance(event, AgentInput)), plain)
        print(f"\nQuestion: {question}\n  shown     {_size(prompt.shown)}:")
        for message in prompt.shown:
            print(f"    {message.role.value}:")
            print(textwrap.indent(body_of(message), "      | ", lambda _: True))
        for event in events:
            if isinstance(event, ToolCallResult):
                print(f"  tool      {describe_call(event)}")
        print("  answer   ", str(await running).replace("\n", "\n            "))
    return prompt


def _closing(last: _Prompt, first: _Prompt, limit: int) -> str:
    """Returns a table of what the memory costs and buys, at the last question and at the first of a new session."""
    rows = [
        ("WHAT IT COSTS, AND WHAT IT BUYS", "with this memory", "a plain list of all messages"),
        ("", "", ""),
        (f"{QUESTIONS[-1]!r}", "", ""),
        ("  sent to the model", _size(last.shown), _size(last.plain)),
        ("  earlier messages of the user in it", last.parts("user"), _Prompt(last.plain, last.plain).parts("user")),
        ("  results of tools in it", last.parts("tool"), _Prompt(last.plain, last.plain).parts("tool")),
        ("  facts about the user in it", str(last.facts), "0"),
        ("  in a long session", f"at most {limit:,} tokens", "more with each message"),
        ("", "", ""),
        (f"{_IN_NEW_SESSION!r}, in a new session", "", ""),
        ("  sent to the model", _size(first.shown), _size(first.plain)),
        ("  facts about the user in it", str(first.facts), "0"),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    table = "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return f"{table}\n\n{_BOUGHT}"


def _size(messages: Sequence[ChatMessage]) -> str:
    tokens = sum(_count(body_of(message)) for message in messages)
    return f"{pluralize(len(messages), 'message')}, {pluralize(tokens, 'token')}"
