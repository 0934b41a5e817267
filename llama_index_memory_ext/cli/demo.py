"""The demo, and what ``chat`` shares with it: the model that answers, and a calculator as tools."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import textwrap
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.agent.workflow import AgentInput, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, LLMMetadata, TextBlock
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.memory import Memory
from pydantic import Field

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import TIMEOUT, model_host, open_store, pluralize
from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.models.caching_openai import CachingOpenAI
from llama_index_memory_ext.models.offline import OfflineModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from httpx import AsyncClient
    from llama_index.core.llms.function_calling import FunctionCallingLLM

# Between them lie turns of which nothing is asked later, so that what came first has left both memories.
_FIRST_QUESTIONS = ("My name is Logan.", "What is (3214 * 322) / 2?", "I'm allergic to peanuts.")
_BETWEEN = [
    (f"I pack {i} boxes with 7 pencils each for the school. How many pencils are that?", f"That makes {i * 7} pencils.")
    for i in range(11, 67)
]
_LAST_QUESTIONS = ("How did you work out (3214 * 322) / 2?",)
_IN_A_NEW_SESSION = ("What is my name?", "May I eat a peanut cake?")
# Tokens that the conversation may have in a prompt; LlamaIndex's own memory gets as many.
_LIMIT = 2_000
# Of a longer prompt the middle is left out.
_MOST_LINES = 24
# A cache such as OpenAI's finds the longest common beginning of two prompts, if it has so many tokens, for a tenth.
_LEAST_FOUND, _PRICE_OF_FOUND = 1_024, 0.1
# Names the file to the second process.
_SECOND_PROCESS = "LLAMA_INDEX_MEMORY_EXT_DEMO_SECOND"
_CLOSING = """

WHAT TO DO NEXT

  talk to it       python -m llama_index_memory_ext chat --user you      (pip install ".[cli]" first)
  put it to work   build one CondensedMemory, and pass memory=memory to agent.run(...): docs/quickstart.md
  look inside      python -m llama_index_memory_ext inspect              (pip install ".[inspect]" first)"""


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
        print(f"\n\nSECOND PROCESS (id {os.getpid()}), with the same database and user")
        asyncio.run(_converse(model, open_store(began_in), "demo-2", [_IN_A_NEW_SESSION]))
        print(_CLOSING)
        return 0
    file = str(Path(tempfile.mkdtemp(prefix="llama-index-memory-")) / "memory.db")
    print("A conversation of 60 turns in two processes, and what the model is shown\n")
    print(f"  model     {describe_model(model)}\n  database  {file}")
    print(f"  limit     {_LIMIT:,} tokens, for this memory and for LlamaIndex's own beside it")
    print(f"\nFIRST PROCESS (id {os.getpid()})", flush=True)
    asyncio.run(_converse(model, open_store(file), "demo", [_FIRST_QUESTIONS, _LAST_QUESTIONS]))
    sys.stdout.flush()
    command = [sys.executable, "-m", "llama_index_memory_ext", "demo"]
    return subprocess.run(command, env={**os.environ, _SECOND_PROCESS: file}, check=False).returncode  # noqa: S603 - our own command


async def _converse(
    model: FunctionCallingLLM, store: ext.MemoryStore, session: str, parts: Sequence[Sequence[str]]
) -> None:
    """Asks the questions of a session in parts, between which messages are put, this memory and LlamaIndex's own."""
    agent = FunctionAgent(tools=list(TOOLS), llm=model)
    limits: Any = {"condensed_token_limit": _LIMIT, "facts_token_limit": _LIMIT // 4, "token_limit": 2 * _LIMIT}
    async with aclosing(store):
        ours = ext.CondensedMemory.from_defaults(session, user_id="logan", llm=model, chat_store=store, **limits)
        plain = Memory.from_defaults(session, token_limit=_LIMIT)
        memories: dict[str, Memory] = {"LlamaIndex's Memory": plain, "this memory": ours}
        prompts: dict[str, list[str]] = {name: [] for name in memories}
        async with ours:
            print(f"\nSESSION {session!r} of the user 'logan'")
            for i, questions in enumerate(parts):
                if i:
                    print(f"\n... {pluralize(len(_BETWEEN), 'turn')} about something else ...")
                    for name, memory in memories.items():
                        for asked, told in _BETWEEN:
                            await memory.aput(ChatMessage(asked))
                            prompts[name].append("\n".join(_texts_of(await memory.aget())))
                            await memory.aput(ChatMessage(told, role="assistant"))
                for question in questions:
                    print(f"\nQuestion: {question}")
                    for name, memory in memories.items():
                        prompts[name] += await _ask(agent, memory, question, name)
        if len(parts) > 1:
            _print_cost(prompts)


def _print_cost(prompts: dict[str, list[str]]) -> None:
    """Prints the tokens of all prompts, and what they cost where a cache finds their common beginnings."""
    count = ext.TokenCounter().count
    print(f"\nAll prompts; what the one before began with is in a cache, for {_PRICE_OF_FOUND:.0%} of the price:")
    for name, texts in prompts.items():
        tokens, beginnings = [count(text) for text in texts], map(os.path.commonprefix, pairwise(texts))
        found = sum(n for n in map(count, beginnings) if n >= _LEAST_FOUND)
        paid = sum(tokens) - round(found * (1 - _PRICE_OF_FOUND))
        print(f"  {name + ':':21}{sum(tokens):8,} tokens, {found:7,} of them found; paid as {paid:7,}")


def _texts_of(messages: Sequence[ChatMessage]) -> list[str]:
    return ["".join(block.text for block in one.blocks if isinstance(block, TextBlock)) for one in messages]


async def _ask(agent: FunctionAgent, memory: Memory, question: str, name: str) -> list[str]:
    """Prints what a memory shows the model first, and the answer; returns the texts of all prompts.

    Of this memory's prompts the text is printed, of a long one without its middle.
    """
    running = agent.run(question, memory=memory)
    events = [event async for event in running.stream_events()]
    prompts = [_texts_of(event.input) for event in events if isinstance(event, AgentInput)]
    tokens = pluralize(sum(map(ext.TokenCounter().count, prompts[0])), "token")
    print(f"  {name}: {pluralize(len(prompts[0]), 'message')}, {tokens}")
    if isinstance(memory, ext.CondensedMemory):
        lines = "\n".join(prompts[0]).splitlines()
        if len(lines) > _MOST_LINES:
            left_out = f"... {len(lines) - _MOST_LINES} lines more ..."
            lines = [*lines[: _MOST_LINES // 3], left_out, *lines[-2 * _MOST_LINES // 3 :]]
        print(textwrap.indent("\n".join(lines), "    | ", lambda _: True))
    for event in events:
        if isinstance(event, ToolCallResult):
            print(f"    tool    {describe_call(event)}")
    print("    answer ", str(await running).replace("\n", "\n            "))
    return ["\n".join(texts) for texts in prompts]
