"""Talks with a person at a terminal, or answers the lines of a pipe: the command ``chat``."""

from __future__ import annotations

import io
import logging
import sys
from datetime import datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer
from typing_extensions import Self

from llama_index_memory_ext.cli.beside import Beside
from llama_index_memory_ext.cli.database import existing_or_new, place_of
from llama_index_memory_ext.cli.options import Database, Session, User
from llama_index_memory_ext.cli.plain import one_line, plain
from llama_index_memory_ext.cli.reasons import model_host, reason_of
from llama_index_memory_ext.cli.screen import is_terminal, say, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index_memory_ext.cli.conversation import Conversation
    from llama_index_memory_ext.cli.database import Place

Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="One of OpenAI's; default: OPENAI_MODEL, or gpt-4o-mini.")
]

_PROMPT = "\nyou> "


def chat(*, session: Session = None, user: User = None, db: Database = None, model: Model = None) -> None:
    """Talk with an agent that remembers.

    With OPENAI_API_KEY set a model of OpenAI's answers (OPENAI_API_BASE for another address), else a small offline one.
    Type /help for what else can be done. Ctrl-C interrupts an answer, Ctrl-D or /quit ends the conversation. Lines that
    come through a pipe are answered one by one.
    """
    if session == "" or user == "":
        raise typer.BadParameter("--session and --user must not be empty.")
    place = place_of(db)
    session = session or f"chat-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}-{token_hex(2)}"
    with _Notices() as notices, Beside() as beside:
        conversation = _begin(beside, place, session, user, model)
        try:
            failures = _talk(beside, conversation, notices)
        finally:
            _end(beside, conversation)
            notices.show()
    if failures and not is_terminal():
        raise typer.Exit(1)


def _begin(beside: Beside, place: Place, session: str, user: str | None, model_name: str | None) -> Conversation:
    with waiting("Starting"):
        # Imported here: it starts LlamaIndex.
        from llama_index_memory_ext.cli.conversation import opened

        beside.run(_check(place))
        conversation, messages = beside.run(opened(model_name, place, session_id=session, user_id=user))
    _show_start(conversation, place, user, messages)
    return conversation


async def _check(place: Place) -> None:
    """Tell at once, by an error, that the database cannot be used."""
    async with existing_or_new(place):
        pass


def _show_start(conversation: Conversation, place: Place, user: str | None, messages: int) -> None:
    session = conversation.memory.session_id
    if conversation.is_offline:
        model = "a small offline one that answers by rules, because OPENAI_API_KEY is not set"
    else:
        model = f"{conversation.model.metadata.model_name} at {model_host()}"
    whose = (
        f"{user}, in all sessions" if user else "this session's alone; --user NAME keeps facts for all of your sessions"
    )
    so_far = f", {messages} messages so far" if messages else ", new"
    lines = ("model    " + model, "database " + place.name, f"session  {session}{so_far}", "facts    " + whose)
    say("\n".join(lines), style="dim", stderr=True)
    if is_terminal():
        say("/help lists the commands, /quit ends.", style="dim", stderr=True)


def _talk(beside: Beside, conversation: Conversation, notices: _Notices) -> int:
    """Answer until the end; how many questions got no answer."""
    from llama_index_memory_ext.cli.slash import obey

    failures = 0
    for line in _lines(notices):
        if line.startswith("/"):
            if not obey(line, beside, conversation):
                return failures
        elif not _answer(beside, conversation, line):
            failures += 1
    return failures


def _lines(notices: _Notices) -> Iterator[str]:
    """What is typed or comes through the pipe, without empty lines."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not is_terminal():
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    _edit_lines()
    while True:
        notices.show()
        try:
            line = input(_PROMPT).strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            say("\n/quit or Ctrl-D ends the conversation.", style="dim", stderr=True)
            continue
        if line:
            yield line


def _edit_lines() -> None:
    try:
        # Arrow keys and a history; where Python has it.
        import readline  # noqa: F401
    except ImportError:
        return


def _answer(beside: Beside, conversation: Conversation, question: str) -> bool:
    """Print the answer as it comes; whether there was one. The question is kept in any case."""
    try:
        beside.run(_stream(conversation, question))
    except KeyboardInterrupt:
        if not is_terminal():
            raise
        say("\n(interrupted; the question is kept)", style="dim", stderr=True)
        return False
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever fails, the conversation goes on
        say(f"No answer: {reason_of(error).rstrip('.')}. The question is kept.", style="red", stderr=True)
        return False
    return True


async def _stream(conversation: Conversation, question: str) -> None:
    from llama_index.core.agent.workflow import AgentStream

    at_line_start = True
    async for event in conversation.answer(question):
        if isinstance(event, AgentStream):
            text = plain(event.delta)
            print(text, end="", flush=True)
            at_line_start = text.endswith("\n") if text else at_line_start
        elif is_terminal():
            arguments = ", ".join(f"{name}={value}" for name, value in event.tool_kwargs.items())
            result = one_line(str(event.tool_output.content))
            say(f"{event.tool_name}({one_line(arguments)}) -> {result}", style="dim", stderr=True)
    if not at_line_start:
        print(flush=True)


def _end(beside: Beside, conversation: Conversation) -> None:
    """Close; whoever does not want to wait for the facts of the last turn presses Ctrl-C."""
    try:
        with waiting("Extracting facts from what was said last (Ctrl-C leaves that for the next time)"):
            beside.run(conversation.close())
    except KeyboardInterrupt:
        say("Facts of what was said last are extracted when this session is next talked in.", style="dim", stderr=True)
        beside.run(conversation.leave())


class _Notices(logging.Handler):
    """What the package logs meanwhile, shown when no answer is being written."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[str] = []
        self._logger = logging.getLogger("llama_index_memory_ext")

    def __enter__(self) -> Self:
        # Nobody else should print it, in the middle of an answer.
        self._propagated, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self._kept.append(record.getMessage())

    def show(self) -> None:
        """Print what has come since, each thing once."""
        kept, self._kept = self._kept, []
        for notice in dict.fromkeys(kept):
            say(f"({one_line(notice)})", style="dim", stderr=True)
