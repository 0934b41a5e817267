"""The command ``demo``: a conversation over two processes, and what the model is shown in each turn."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.agent.workflow import AgentInput, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.openai import OpenAI

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import TerminalError, model_host, pluralize
from llama_index_memory_ext.cli.offline_model import OfflineModel, as_dicts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from httpx import AsyncClient
    from llama_index.core.llms.function_calling import FunctionCallingLLM

DEFAULT_MODEL = "gpt-4o-mini"
FIRST_QUESTIONS = (
    "My name is Logan.",
    "What is (3214 * 322) / 2?",
    "How did you go about answering that?",
    "What is 12 + 30?",
    "I live in Paris.",
)
SECOND_QUESTIONS = ("What is my name?", "How did you go about answering that?")

# Tells the second process what the first one has sent, for the table at the end.
_EARLIER_TURNS = "LLAMA_INDEX_MEMORY_EXT_DEMO_TURNS"

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


def choose_model(name: str | None = None, *, async_http_client: AsyncClient | None = None) -> FunctionCallingLLM:
    """Returns the model of OpenAI's of this name (default: ``OPENAI_MODEL``); without a key the offline model.

    Raises:
        TerminalError: LlamaIndex does not know the model, or it cannot call tools.
    """
    if not os.environ.get("OPENAI_API_KEY"):
        return OfflineModel()
    name = name or os.environ.get("OPENAI_MODEL") or DEFAULT_MODEL
    api_base = os.environ.get("OPENAI_API_BASE")
    model = OpenAI(model=name, api_base=api_base, timeout=30.0, max_retries=1, async_http_client=async_http_client)
    problem = "cannot call tools"
    try:
        if model.metadata.is_function_calling_model:
            return model
    except ValueError:
        problem = "is not known to LlamaIndex's OpenAI class"
    raise TerminalError(f"the model {name!r} {problem}. Set OPENAI_MODEL to another one, such as {DEFAULT_MODEL!r}.")


def run(database: Path | None, session: str) -> int:
    """Holds the conversation, the second part of it in another process; returns the exit code."""
    path = database or Path(tempfile.mkdtemp(prefix="llama-index-memory-")) / "memory.db"
    path = path.expanduser().absolute()
    if path.is_dir():
        raise TerminalError(f"--database must name a file, and {path} is a folder.")
    if not path.parent.is_dir():
        raise TerminalError(f"--database must be in a folder that exists, and {path.parent} does not.")
    model, earlier = choose_model(), os.environ.get(_EARLIER_TURNS)
    if earlier is not None:
        print(f"\n\nSECOND PROCESS (id {os.getpid()}), with the same file and session")
        turns = asyncio.run(_converse(model, path, session, SECOND_QUESTIONS, json.loads(earlier)))
        _print_table(turns)
        return 0
    shown = f"{model.metadata.model_name} at {model_host()}"
    if isinstance(model, OfflineModel):
        shown = "OfflineModel: OPENAI_API_KEY is not set, so a few rules answer, offline"
    print("A conversation over two processes, and what the model is shown in each turn\n")
    print(f"  model     {shown}\n  database  {path}\n  session   {session}\n\nFIRST PROCESS (id {os.getpid()})")
    turns = asyncio.run(_converse(model, path, session, FIRST_QUESTIONS, []))
    sys.stdout.flush()
    command = [sys.executable, "-m", "llama_index_memory_ext", "demo", f"--database={path}", f"--session={session}"]
    environment = {**os.environ, _EARLIER_TURNS: json.dumps(turns)}
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own command


async def _converse(
    model: FunctionCallingLLM, path: Path, session: str, questions: Sequence[str], turns: list[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """Asks the questions; returns all turns: the question, and messages and tokens, as sent and as a plain list."""
    agent = FunctionAgent(tools=list(TOOLS), llm=model)
    uri = f"sqlite+aiosqlite:///{path.as_posix()}"
    async with ext.CondensedMemory.from_defaults(session, llm=model, async_database_uri=uri) as memory:
        print(f"  stored    {len(await memory.aget_all())} messages of this session")
        for question in questions:
            print(f"\nTurn {len(turns) + 1}: {question}")
            plain = [*await memory.aget_all(), ChatMessage(content=question)]
            first = await _ask(agent, memory, question)
            turns.append((question, len(first), _tokens(first), len(plain), _tokens(plain)))
    return turns


async def _ask(agent: FunctionAgent, memory: ext.CondensedMemory, question: str) -> list[ChatMessage]:
    """Prints a turn; returns the messages of the first call of the model."""
    running = agent.run(question, memory=memory)
    calls = [event.input async for event in running.stream_events() if isinstance(event, AgentInput)]
    output: Any = await running
    first, *more = calls
    print(f"  shown     {pluralize(len(first), 'message')}, {pluralize(_tokens(first), 'token')}")
    for message in as_dicts(first):
        print(f"    {message['role']}:")
        print(textwrap.indent("\n".join(filter(None, _parts(message))), "      | ", lambda _: True))
    if more:
        behind = len(more[-1]) - len(first)
        print(f"  later     {pluralize(len(more), 'more call')}; the last had {behind} tool messages behind it")
    for call in output.tool_calls:
        arguments = ", ".join(f"{name}={value}" for name, value in call.tool_kwargs.items())
        print(f"  tool      {call.tool_name}({arguments}) -> {call.tool_output.content}")
    print("  answer   ", (output.response.content or "").replace("\n", "\n            "))
    return first


def _tokens(messages: Sequence[ChatMessage]) -> int:
    """Returns the tokens of the texts and of the calls, without what a provider adds to each message."""
    return sum(_count(part) for message in as_dicts(messages) for part in _parts(message))


def _parts(message: dict[str, Any]) -> list[str]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [message["content"] or "", *(f"{function['name']}({function['arguments']})" for function in functions)]


def _print_table(turns: Sequence[Sequence[Any]]) -> None:
    print("\n\nSENT WITH THE FIRST CALL OF EACH TURN\n")
    print(f"{'':44}{'CondensedMemory':>20}{'plain list':>22}")
    print(f"turn  {'question':38}{'messages':>10}{'tokens':>10}{'messages':>12}{'tokens':>10}")
    for i, (question, messages, tokens, plain_messages, plain_tokens) in enumerate(turns, start=1):
        print(f"{i:4}  {question[:37]:38}{messages:10}{tokens:10}{plain_messages:12}{plain_tokens:10}")
    print(
        "\nThe plain list is what a memory would send that sends all messages as they are. The tags of the\n"
        "record cost tokens, which shows beside messages as short as these. It is one message, and never\n"
        "longer than its limit (condensed_token_limit, here 50,000 tokens)."
    )
