"""The commands ``sessions``, ``export`` and ``import``: list sessions, write and read messages and facts."""

from __future__ import annotations

import sys
from json import detect_encoding
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import TerminalError, UsageError, plain, pluralize
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Agent, Db, Json, Output, Session, User

if TYPE_CHECKING:
    from datetime import datetime

_Format = Annotated[
    Literal["llama_index", "openai"],
    typer.Option("--format", help="The layout of the messages."),
]
_To = typer.Option(
    "--output",
    "-o",
    metavar="FILE",
    help="The file to write; - for stdout.",
    show_default=False,
)
_Output = Annotated[typer.FileBinaryWrite, _To]
_File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file to read; - for stdin.")
]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
cli.app.add_typer(app, name="sessions", help="List the sessions.")


@app.command("list")
def list_(*, user: User = None, db: Db = None, json: Json = False) -> None:
    """List the sessions, the last used first."""

    async def read(store: ext.MemoryStore) -> Output:
        sessions = await store.sessions(user)
        rows = [
            (
                info.session_id,
                str(info.messages),
                ", ".join(info.user_ids),
                _time(info.last_at),
            )
            for info in sessions
        ]
        columns = ["session", "messages", "user", "last used"]
        empty = "No sessions." if user is None else f"No sessions of {user}."
        return Output(sessions, cli.table(columns, rows, empty=empty))

    cli.run(db, read, as_json=json)


@cli.app.command()
def export(
    *,
    session: Session = None,
    user: User = None,
    agent: Agent = None,
    layout: _Format = "llama_index",
    output: _Output = "-",  # type: ignore[assignment] # Typer opens it
    db: Db = None,
) -> None:
    """Write messages as JSON, or facts as JSON Lines.

    With --session, write the messages of the session. With --user, write all facts of
    the user, retired facts too. With --agent, write only the facts that this agent
    sees.
    """
    cli.one_of(user, session)

    async def write(store: ext.MemoryStore) -> None:
        if session is None:
            text = await cli.book_of(cli.memory_on(store, None, user, agent)).aexport()
        else:
            messages = await store.get_messages(session, None)
            if not messages:
                raise TerminalError(
                    f"There is no session {session!r}. `sessions list` shows the sessions."
                )
            text = ext.messages_to_json(messages, layout=layout) + "\n"
        if output.isatty():
            text = plain(text)
        output.write(text.encode())

    cli.run(db, write)


@cli.app.command("import")
def import_(
    file: _File,
    *,
    session: Session = None,
    user: User = None,
    agent: Agent = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Add messages to a session, or facts to a user.

    A database that does not exist is created. With --session, the file holds messages
    in the layout of LlamaIndex or OpenAI's API, and --user names their user. With
    --user alone, it holds facts in the layout of `export --user`. Facts of imported
    messages are extracted when the session is next used. The guide "Coming from
    elsewhere" has scripts that convert files of LangChain, LangGraph, mem0 and Zep.
    """
    if session is None and user is None:
        raise UsageError(
            "pass --session ID to import messages, or --user ID to import facts."
        )
    try:
        if str(file) == "-":
            content = sys.stdin.buffer.read()
        else:
            content = file.expanduser().read_bytes()
    except OSError as error:
        raise TerminalError(f"{file} cannot be read: {error.strerror}.") from None

    async def write(store: ext.MemoryStore) -> Output:
        memory = cli.memory_on(store, session, user, agent)
        if session is not None:
            kind = "message"
            count = await memory.aimport(content, show_progress=sys.stderr.isatty())
        else:
            kind = "fact"
            # Some editors write UTF-16.
            text = content.decode(detect_encoding(content))
            count = await cli.book_of(memory).aimport(text)
        done = f"Imported {pluralize(count, kind)} into {session or user}."
        return Output({f"{kind}s": count}, done)

    cli.run(db, write, create=True, as_json=json)


def _time(time: datetime | None) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M}" if time else ""
