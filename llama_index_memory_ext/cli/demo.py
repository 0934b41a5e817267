"""The demo, and what ``chat`` shares with it: the model that answers, and a calculator as tools."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import textwrap
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_index.core.agent.workflow import AgentInput, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, LLMMetadata
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import DEFAULT_TIMEOUT, TerminalError, model_host, one_line, open_store, pluralize
from llama_index_memory_ext.models.caching_openai import CachingOpenAI
from llama_index_memory_ext.models.offline import OfflineModel
from llama_index_memory_ext.text.messages import body_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from httpx import AsyncClient
    from llama_index.core.llms.function_calling import FunctionCallingLLM

# What the model was shown for a question, and the messages that it would be shown without this package.
_Prompt: TypeAlias = "tuple[Sequence[ChatMessage], Sequence[ChatMessage]]"

DEFAULT_MODEL = "gpt-4o-mini"
# The second process asks the rest, and one question in a new session.
_FIRST_QUESTIONS = (
    "My name is Logan.",
    "What is (3214 * 322) / 2?",
    "How did you go about answering that?",
    "What is 12 + 30?",
    "I live in Paris.",
)
_LAST_QUESTION = "How did you work out (3214 * 322) / 2?"
_NEW_QUESTION = "Where do I live?"
# Holds the database, whose address may have a password: others can see the arguments of a process.
_SECOND_PROCESS = "LLAMA_INDEX_MEMORY_EXT_DEMO_SECOND"
# The words below the closing table.
_BOUGHT = """\
In a conversation as short as this one the memory costs more tokens than the plain list: each message is put into
tags that say who said it. For that the model gets one message with all that was asked, done and answered, after a
restart too; it stays within a limit when the list goes on growing; and a new session begins with what is known
about the user."""


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


class OtherOpenAI(CachingOpenAI):
    """``CachingOpenAI`` for the models of others; each is taken for a chat model that may call tools."""

    context_window: int | None = None

    @property
    def metadata(self) -> LLMMetadata:
        """What is known of the model: LlamaIndex's class refuses names that it does not know."""
        window = self.context_window
        with suppress(ValueError):
            window = window or super().metadata.context_window
        return LLMMetadata(
            context_window=window or DEFAULT_CONTEXT_WINDOW,
            num_output=self.max_tokens or -1,
            is_chat_model=True,
            is_function_calling_model=True,
            model_name=self.model,
        )


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
    model = CachingOpenAI(**options)
    with suppress(ValueError):
        if model.metadata.is_function_calling_model:
            return model
    problem = f"{name!r} is not known to LlamaIndex's OpenAI class, or cannot call tools"
    raise TerminalError(f"the model {problem}. Set OPENAI_MODEL to another one, such as {DEFAULT_MODEL!r}.")


def _context_window() -> int | None:
    """Returns the tokens in ``OPENAI_CONTEXT_WINDOW``, None if it is not set; a TerminalError for anything else."""
    value = os.environ.get("OPENAI_CONTEXT_WINDOW", "").strip()
    tokens = value.replace("_", "")
    if value and not (tokens.isdecimal() and int(tokens)):
        expected = f"a whole number of tokens above 0, and is {one_line(value, 40)!r}"
        hint = "Say what the server was started with, such as 8192, or leave it out."
        raise TerminalError(f"OPENAI_CONTEXT_WINDOW must be {expected}. {hint}")
    return int(tokens) if tokens else None


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
    model, began_in = choose_model(timeout=timeout), os.environ.get(_SECOND_PROCESS)
    if began_in is not None:
        print(f"\n\nSECOND PROCESS (id {os.getpid()}), with the same database and session")
        asyncio.run(_converse_in(model, open_store(began_in), is_second=True))
        return 0
    db = db or str(Path(tempfile.mkdtemp(prefix="llama-index-memory-")) / "memory.db")
    store = open_store(db)
    print("A conversation over two processes, and what the model is shown in each turn\n")
    print(f"  model     {describe_model(model)}\n  database  {store.address}")
    print(f"\nFIRST PROCESS (id {os.getpid()})", flush=True)
    asyncio.run(_converse_in(model, store, is_second=False))
    sys.stdout.flush()
    command = [sys.executable, "-m", "llama_index_memory_ext", "demo", f"--timeout={timeout}"]
    environment = {**os.environ, _SECOND_PROCESS: db}
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own command


async def _converse_in(model: FunctionCallingLLM, store: ext.MemoryStore, *, is_second: bool) -> None:
    async with aclosing(store):
        if not is_second:
            await _converse(model, store, "demo", _FIRST_QUESTIONS)
            return
        last = await _converse(model, store, "demo", ["What is my name?", _LAST_QUESTION])
        print("\n\nA NEW SESSION of the same user")
        new = await _converse(model, store, "demo-2", [_NEW_QUESTION])
    print(f"\n\n{_closing(last, new)}\n\n{_BOUGHT}")


async def _converse(
    model: FunctionCallingLLM, store: ext.MemoryStore, session: str, questions: Iterable[str]
) -> _Prompt:
    """Asks the questions; prints what the model is shown first in each turn, the tools that it calls, its answer."""
    agent, shown, plain = FunctionAgent(tools=list(TOOLS), llm=model), list[ChatMessage](), list[ChatMessage]()
    async with ext.CondensedMemory.from_defaults(session, user_id="logan", llm=model, chat_store=store) as memory:
        print(f"  stored    {pluralize(len(await memory.aget_all()), 'message')} of the session {session!r}")
        for question in questions:
            plain = [*await memory.aget_all(), ChatMessage(question)]
            running = agent.run(question, memory=memory)
            events = [event async for event in running.stream_events()]
            shown = next(event.input for event in events if isinstance(event, AgentInput))
            print(f"\nQuestion: {question}\n  shown     {_size(shown)}:")
            for message in shown:
                print(f"    {message.role.value}:")
                print(textwrap.indent(body_of(message), "      | ", lambda _: True))
            for event in events:
                if isinstance(event, ToolCallResult):
                    print(f"  tool      {describe_call(event)}")
            print("  answer   ", str(await running).replace("\n", "\n            "))
    return shown, plain


def _closing(last: _Prompt, new: _Prompt) -> str:
    """Returns a table of what the memory costs and buys, at the last question and at the first of a new session."""
    rows = [
        ("WHAT IT COSTS, AND WHAT IT BUYS", "with this memory", "a plain list of all messages"),
        ("", "", ""),
        (f"{_LAST_QUESTION!r}", "", ""),
        ("  sent to the model", *map(_size, last)),
        ("  earlier messages of the user in it", *(_kept("user", one, last[1]) for one in last)),
        ("  results of tools in it", *(_kept("tool", one, last[1]) for one in last)),
        ("  facts about the user in it", *map(_facts, last)),
        ("  in a long session", f"at most {ext.CondensedMemoryBlock().token_limit:,} tokens", "more with each message"),
        ("", "", ""),
        (f"{_NEW_QUESTION!r}, in a new session", "", ""),
        ("  sent to the model", *map(_size, new)),
        ("  facts about the user in it", *map(_facts, new)),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _size(messages: Sequence[ChatMessage]) -> str:
    tokens = sum(ext.TokenCounter().count(body_of(message)) for message in messages)
    return f"{pluralize(len(messages), 'message')}, {pluralize(tokens, 'token')}"


def _kept(role: str, shown: Sequence[ChatMessage], plain: Sequence[ChatMessage]) -> str:
    """Returns how many of the earlier messages of a role stand in what was shown: "3 of 3"."""
    texts = [body_of(message) for message in plain[:-1] if message.role.value == role]
    return f"{sum(any(text in body_of(one) for one in shown) for text in texts)} of {len(texts)}"


def _facts(messages: Sequence[ChatMessage]) -> str:
    return str(sum(body_of(message).count("<fact ") for message in messages))
