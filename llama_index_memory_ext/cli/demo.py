"""The command ``demo``: a conversation over two processes, and what the model is shown in each turn."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    "How did you go about answering that?",
)
# The other process asks the rest.
_IN_FIRST_PROCESS = 5
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


def run(database: Path | None, timeout: float = DEFAULT_TIMEOUT) -> int:
    """Holds the conversation, the second part of it in another process; returns the exit code."""
    path = database or Path(tempfile.mkdtemp(prefix="llama-index-memory-")) / "memory.db"
    path = path.expanduser().absolute()
    if path.is_dir():
        raise TerminalError(f"--database must name a file, and {path} is a folder.")
    if not path.parent.is_dir():
        raise TerminalError(f"--database must be in a folder that exists, and {path.parent} does not.")
    model = choose_model(timeout=timeout)
    if _SECOND_PROCESS in os.environ:
        print(f"\n\nSECOND PROCESS (id {os.getpid()}), with the same file and session")
        asyncio.run(_converse(model, path, QUESTIONS[_IN_FIRST_PROCESS:]))
        return 0
    print("A conversation over two processes, and what the model is shown in each turn\n")
    print(f"  model     {describe_model(model)}\n  database  {path}")
    print(f"\nFIRST PROCESS (id {os.getpid()})")
    asyncio.run(_converse(model, path, QUESTIONS[:_IN_FIRST_PROCESS]))
    sys.stdout.flush()
    command = [sys.executable, "-m", "llama_index_memory_ext", "demo", f"--database={path}", f"--timeout={timeout}"]
    environment = {**os.environ, _SECOND_PROCESS: "1"}
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own command


async def _converse(model: FunctionCallingLLM, path: Path, questions: Iterable[str]) -> None:
    """Asks the questions; prints what the model is shown first in each turn, the tools that it calls, its answer."""
    agent = FunctionAgent(tools=list(TOOLS), llm=model)
    uri = f"sqlite+aiosqlite:///{path.as_posix()}"
    async with ext.CondensedMemory.from_defaults("demo", llm=model, async_database_uri=uri) as memory:
        print(f"  stored    {len(await memory.aget_all())} messages of this session")
        for question in questions:
            plain = [*await memory.aget_all(), ChatMessage(question)]
            running = agent.run(question, memory=memory)
            events = [event async for event in running.stream_events()]
            shown = next(event.input for event in events if isinstance(event, AgentInput))
            print(
                f"\nQuestion: {question}\n  shown     {_size(shown)}; all messages as they are would be {_size(plain)}"
            )
            for message in shown:
                print(f"    {message.role.value}:")
                print(textwrap.indent(body_of(message), "      | ", lambda _: True))
            for event in events:
                if isinstance(event, ToolCallResult):
                    print(f"  tool      {describe_call(event)}")
            print("  answer   ", str(await running).replace("\n", "\n            "))


def _size(messages: Sequence[ChatMessage]) -> str:
    tokens = sum(_count(body_of(message)) for message in messages)
    return f"{pluralize(len(messages), 'message')}, {pluralize(tokens, 'token')}"
