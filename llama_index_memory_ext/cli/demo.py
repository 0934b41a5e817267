"""Shows a conversation over two processes, and what the model is shown in each turn."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import Field
from llama_index.core.instrumentation.events.llm import LLMChatStartEvent
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.event_handlers import BaseEventHandler

from llama_index_memory_ext.cli.offline_model import OfflineModel, as_dicts
from llama_index_memory_ext.cli.reasons import TerminalError, counted, model_host, reason_of
from llama_index_memory_ext.cli.terminal_model import terminal_model
from llama_index_memory_ext.memory.condensed_memory import CondensedMemory
from llama_index_memory_ext.text.tokens import TokenCounter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index.core.llms.function_calling import FunctionCallingLLM

FIRST_QUESTIONS = (
    "My name is Logan.",
    "What is (3214 * 322) / 2?",
    "How did you go about answering that?",
    "What is 12 + 30?",
    "I live in Paris.",
)
SECOND_QUESTIONS = ("What is my name?", "How did you go about answering that?")

_EARLIER_TURNS = "LLAMA_INDEX_MEMORY_EXT_DEMO_TURNS"
_LINES_SHOWN = 26
_COLUMNS = 88

_count = TokenCounter().count


class Sent(NamedTuple):
    """What the first call of a turn was sent, and what the plain list of all messages would have been."""

    question: str
    messages: int
    tokens: int
    plain_messages: int
    plain_tokens: int


class Listener(BaseEventHandler):
    """Keeps the messages of each call of a model, whichever model it is."""

    calls: list[list[ChatMessage]] = Field(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex knows this handler."""
        return "Listener"

    def handle(self, event: Any, **_: Any) -> None:
        """Take the messages of a call that is about to start, unless it extracts facts beside the conversation."""
        if isinstance(event, LLMChatStartEvent) and "<known_facts>" not in str(event.messages[-1].content)[:20]:
            self.calls.append(list(event.messages))


@contextmanager
def listening() -> Iterator[Listener]:
    """Hears every call of a model in this process until the block ends."""
    listener, handlers = Listener(), get_dispatcher().event_handlers
    handlers.append(listener)
    try:
        yield listener
    finally:
        handlers.remove(listener)


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


def run(database: Path | None, session: str, *, second_process: bool = False) -> int:
    """Hold the conversation and print it; returns the exit code, 1 if the model or the database has failed."""
    try:
        path, model = _database_path(database), terminal_model()
        _print_start(path, session, model, second_process=second_process)
        earlier = [Sent(*sent) for sent in json.loads(os.environ.get(_EARLIER_TURNS, "[]"))]
        turns = asyncio.run(
            _converse(model, path, session, SECOND_QUESTIONS if second_process else FIRST_QUESTIONS, earlier)
        )
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever has failed, a visitor reads one sentence
        print(f"\nThe demo stopped: {reason_of(error)}", file=sys.stderr)
        return 1
    if second_process:
        _print_table(turns)
        return 0
    return _run_second_process(path, session, turns)


def _run_second_process(path: Path, session: str, turns: Sequence[Sent]) -> int:
    sys.stdout.flush()
    options = ["demo", f"--database={path}", f"--session={session}", "--second-process"]
    # The table at the end needs the numbers of both; what was said travels through the database only.
    environment = {**os.environ, _EARLIER_TURNS: json.dumps(turns)}
    command = [sys.executable, "-m", "llama_index_memory_ext", *options]
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own command


# ---- the conversation --------------------------------------------------------------------------------


def _database_path(database: Path | None) -> Path:
    if database is None:
        return Path(tempfile.mkdtemp(prefix="llama-index-memory-")) / "memory.db"
    path = database.expanduser().absolute()
    if path.is_dir():
        raise TerminalError(f"--database must name a file, and {path} is a folder.")
    if not path.parent.is_dir():
        raise TerminalError(f"--database must be in a folder that exists, and {path.parent} does not.")
    return path


async def _converse(
    model: FunctionCallingLLM, path: Path, session: str, questions: Sequence[str], earlier: Sequence[Sent]
) -> list[Sent]:
    agent = FunctionAgent(tools=[add, subtract, multiply, divide], llm=model)
    turns = list(earlier)
    uri = f"sqlite+aiosqlite:///{path.as_posix()}"
    async with CondensedMemory.from_defaults(session_id=session, llm=model, async_database_uri=uri) as memory:
        print(f"  stored    {len(await memory.aget_all())} messages of this session")
        for question in questions:
            turns.append(await _ask(agent, memory, question, len(turns) + 1))
    return turns


async def _ask(agent: FunctionAgent, memory: CondensedMemory, question: str, number: int) -> Sent:
    plain = [*await memory.aget_all(), ChatMessage(content=question)]
    with listening() as listener:
        response: Any = await agent.run(question, memory=memory)
    first = listener.calls[0]
    sent = Sent(question, len(first), _tokens(first), len(plain), _tokens(plain))
    print(f"\nTurn {number}: {question}")
    print(f"  shown     {counted(sent.messages, 'message')}, {counted(sent.tokens, 'token')}")
    _print_messages(first)
    if listener.calls[1:]:
        more = len(listener.calls[-1]) - len(first)
        print(
            f"  later     {counted(len(listener.calls) - 1, 'more call')}; the last had {more} tool messages behind it"
        )
    for call in response.tool_calls:
        arguments = ", ".join(f"{name}={value}" for name, value in call.tool_kwargs.items())
        print(f"  tool      {call.tool_name}({arguments}) -> {call.tool_output.content}")
    answer = (response.response.content or "").splitlines()
    pieces = (piece for line in answer for piece in textwrap.wrap(line, _COLUMNS) or [""])
    print("  answer   ", "\n            ".join(pieces))
    return sent


def _tokens(messages: Sequence[ChatMessage]) -> int:
    """Exact tokens of what was said and of the calls; what a provider adds per message is not counted."""
    return sum(_count(text) for message in as_dicts(messages) for text in [_text(message), *_calls(message)])


def _text(message: dict[str, Any]) -> str:
    return message["content"] or ""


def _calls(message: dict[str, Any]) -> list[str]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [f"{function['name']}({function['arguments']})" for function in functions]


# ---- what is printed ---------------------------------------------------------------------------------


def _print_start(path: Path, session: str, model: FunctionCallingLLM, *, second_process: bool) -> None:
    if second_process:
        print(f"\n\nSECOND PROCESS (id {os.getpid()}), with the same file and session")
    else:
        print("A conversation over two processes, and what the model is shown in each turn\n")
        if isinstance(model, OfflineModel):
            print("  model     OfflineModel: OPENAI_API_KEY is not set, so a few rules answer, offline")
        else:
            print(f"  model     {model.metadata.model_name} at {model_host()}")
        print(f"  database  {path}")
        print(f"  session   {session}")
        print(f"\nFIRST PROCESS (id {os.getpid()})")


def _print_messages(messages: Sequence[ChatMessage]) -> None:
    for message in as_dicts(messages):
        print(f"    {message['role']}:")
        lines = [line for text in [*_text(message).splitlines(), *_calls(message)] for line in _wrapped(text)]
        left_out = len(lines) - _LINES_SHOWN
        if left_out > 0:
            half = _LINES_SHOWN // 2
            lines = [*lines[:half], f"  [... {left_out} lines are not printed here ...]", *lines[-half:]]
        print("\n".join(f"      {line}".rstrip() for line in lines))


def _wrapped(text: str) -> list[str]:
    """A line as it is, in pieces that fit the screen."""
    pieces = textwrap.wrap(text, _COLUMNS, drop_whitespace=False, replace_whitespace=False, expand_tabs=False)
    return [f"| {pieces[0] if pieces else ''}", *(f":     {piece}" for piece in pieces[1:])]


def _print_table(turns: Sequence[Sent]) -> None:
    print("\n\nSENT WITH THE FIRST CALL OF EACH TURN\n")
    print(f"{'':44}{'CondensedMemory':>20}{'plain list':>22}")
    print(f"turn  {'question':38}{'messages':>10}{'tokens':>10}{'messages':>12}{'tokens':>10}")
    for i, turn in enumerate(turns, start=1):
        print(f"{i:4}  {turn.question[:37]:38}", end="")
        print(f"{turn.messages:10}{turn.tokens:10}{turn.plain_messages:12}{turn.plain_tokens:10}")
    print(
        "\nThe plain list is what a memory would send that sends all messages as they are. The tags of the\n"
        "record cost tokens, which shows beside messages as short as these. It is one message, and never\n"
        "longer than its limit (condensed_token_limit, here 50,000 tokens)."
    )
