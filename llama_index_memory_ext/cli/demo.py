"""The demo, and what ``chat`` shares with it: the model that answers, and a calculator as tools."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import textwrap
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.agent.workflow import AgentInput, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, LLMMetadata
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from pydantic import Field

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import TIMEOUT, model_host, open_store, pluralize
from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.models.caching_openai import CachingOpenAI
from llama_index_memory_ext.models.offline import OfflineModel
from llama_index_memory_ext.text.messages import body_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from httpx import AsyncClient
    from llama_index.core.llms.function_calling import FunctionCallingLLM

# The second process asks the rest, and one question in a new session.
_FIRST_QUESTIONS = (
    "My name is Logan.",
    "What is (3214 * 322) / 2?",
    "How did you go about answering that?",
    "What is 12 + 30?",
    "I live in Paris.",
)
_LAST_QUESTIONS = ("What is my name?", "How did you work out (3214 * 322) / 2?")
# Names the file to the second process.
_SECOND_PROCESS = "LLAMA_INDEX_MEMORY_EXT_DEMO_SECOND"
_CLOSING = """

WHAT IT COSTS, AND WHAT IT BUYS

In a conversation as short as this one the memory costs more tokens than a plain list of all messages: each message is
put into tags that say who said it. For that the model gets one message with all that was asked, done and answered,
after a restart too; it stays within {limit:,} tokens when the list goes on growing; and a new session begins with what
is known about the user."""


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


class AnyOpenAI(CachingOpenAI):
    """``CachingOpenAI`` for models of any name, also those of other servers; each may call tools."""

    context_window: int | None = Field(None, alias="OPENAI_CONTEXT_WINDOW", gt=0)

    @property
    def metadata(self) -> LLMMetadata:
        """What is known of the model; one that LlamaIndex's class does not know is taken for a chat model."""
        try:
            known = super().metadata
        except ValueError:
            known = LLMMetadata(context_window=DEFAULT_CONTEXT_WINDOW, is_chat_model=True, model_name=self.model)
        window = self.context_window or known.context_window
        return known.model_copy(update={"context_window": window, "is_function_calling_model": True})


def choose_model(
    name: str | None = None, http: AsyncClient | None = None, timeout: float | None = None
) -> FunctionCallingLLM:
    """Returns the model of this name (default: ``OPENAI_MODEL``); without a key the offline model.

    With an ``OPENAI_API_BASE`` of others it may have any name; ``OPENAI_CONTEXT_WINDOW`` says its window in tokens.
    ``timeout`` is in seconds (default: ``OPENAI_TIMEOUT``).
    """
    if not os.environ.get("OPENAI_API_KEY"):
        return OfflineModel()
    seconds = os.environ.get("OPENAI_TIMEOUT") or str(TIMEOUT)
    if not seconds.replace(".", "", 1).isdecimal():
        raise SettingError(f"OPENAI_TIMEOUT must be a number of seconds such as 30, not {seconds!r}.")
    options: dict[str, Any] = {
        "api_base": os.environ.get("OPENAI_API_BASE"),
        "OPENAI_CONTEXT_WINDOW": os.environ.get("OPENAI_CONTEXT_WINDOW") or None,
        "async_http_client": http,
        "timeout": timeout or float(seconds),
    }
    model = name or os.environ.get("OPENAI_MODEL") or "gpt-4o-mini"
    return AnyOpenAI(model=model, max_retries=1, **options)


def describe_model(model: FunctionCallingLLM) -> str:
    """Returns the name and the host of a model, or why the offline model answers."""
    if isinstance(model, OfflineModel):
        return "a small offline one that answers by rules, because OPENAI_API_KEY is not set"
    return f"{model.metadata.model_name} at {model_host()}"


def describe_call(call: ToolCallResult) -> str:
    """Returns the name, the arguments and the result of a tool call."""
    arguments = ", ".join(f"{name}={value}" for name, value in call.tool_kwargs.items())
    return f"{call.tool_name}({arguments}) -> {call.tool_output.content}"


def run() -> int:
    """Holds the conversation in a new file, the second part of it in another process; returns the exit code."""
    model, began_in = choose_model(), os.environ.get(_SECOND_PROCESS)
    if began_in is not None:
        print(f"\n\nSECOND PROCESS (id {os.getpid()}), with the same database and session")
        sessions = {"demo": _LAST_QUESTIONS, "demo-2": ("Where do I live?",)}
        asyncio.run(_converse(model, open_store(began_in), sessions))
        print(_CLOSING.format(limit=ext.CondensedMemoryBlock().token_limit))
        return 0
    file = str(Path(tempfile.mkdtemp(prefix="llama-index-memory-")) / "memory.db")
    print("A conversation over two processes, and what the model is shown in each turn\n")
    print(f"  model     {describe_model(model)}\n  database  {file}")
    print(f"\nFIRST PROCESS (id {os.getpid()})", flush=True)
    asyncio.run(_converse(model, open_store(file), {"demo": _FIRST_QUESTIONS}))
    sys.stdout.flush()
    command = [sys.executable, "-m", "llama_index_memory_ext", "demo"]
    return subprocess.run(command, env={**os.environ, _SECOND_PROCESS: file}, check=False).returncode  # noqa: S603 - our own command


async def _converse(model: FunctionCallingLLM, store: ext.MemoryStore, sessions: Mapping[str, Iterable[str]]) -> None:
    """Asks the questions of each session, in their order."""
    agent = FunctionAgent(tools=list(TOOLS), llm=model)
    async with aclosing(store):
        for session, questions in sessions.items():
            memory = ext.CondensedMemory.from_defaults(session, user_id="logan", llm=model, chat_store=store)
            async with memory:
                messages = pluralize(len(await memory.aget_all()), "message")
                print(f"\nSESSION {session!r} of the user 'logan', {messages} so far")
                for question in questions:
                    await _ask(agent, memory, question)


async def _ask(agent: FunctionAgent, memory: ext.CondensedMemory, question: str) -> None:
    """Prints what the model is shown first, the tools that it calls, and its answer."""
    plain = [*await memory.aget_all(), ChatMessage(question)]
    running = agent.run(question, memory=memory)
    events = [event async for event in running.stream_events()]
    shown = next(event.input for event in events if isinstance(event, AgentInput))
    print(f"\nQuestion: {question}\n  list      {_size(plain)}, without this package")
    print(f"  shown     {_size(shown)}:")
    for message in shown:
        print(f"    {message.role.value}:")
        print(textwrap.indent(body_of(message), "      | ", lambda _: True))
    for event in events:
        if isinstance(event, ToolCallResult):
            print(f"  tool      {describe_call(event)}")
    print("  answer   ", str(await running).replace("\n", "\n            "))


def _size(messages: Sequence[ChatMessage]) -> str:
    tokens = sum(ext.TokenCounter().count(body_of(message)) for message in messages)
    return f"{pluralize(len(messages), 'message')}, {pluralize(tokens, 'token')}"
