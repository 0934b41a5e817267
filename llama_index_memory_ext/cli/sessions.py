"""The commands ``sessions``, ``export`` and ``import``: look at conversations, take them out, and put them in."""

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
    typer.Option("--format", help="How messages are written."),
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
cli.app.add_typer(app, name="sessions", help="The conversations: list them.")


@app.command("list")
def list_(*, user: User = None, db: Db = None, json: Json = False) -> None:
    """List the sessions, the one that was used last first."""

    async def read(store: ext.MemoryStore) -> Output:
        found = await store.sessions(user)
        rows = [
            (
                info.session_id,
                str(info.messages),
                ", ".join(info.user_ids),
                _time(info.last_at),
            )
            for info in found
        ]
        if user is None:
            empty = "No sessions."
        else:
            empty = f"No sessions of {user}."
        return found, cli.table(
            ["session", "messages", "user", "last used"], rows, empty=empty
        )

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

    With --session the messages of the session, with --user all that is known about the
    user, retired facts too, of all agents or, with --agent, what this one sees.
    """
    cli.one_of(user, session)

    async def write(store: ext.MemoryStore) -> None:
        if session is None:
            text = await cli.book_of(cli.memory_on(store, None, user, agent)).aexport()
        elif messages := await store.get_messages(session, None):
            text = ext.messages_to_json(messages, layout=layout) + "\n"
        else:
            raise TerminalError(
                f"There is no session {session!r}. `sessions list` shows those that there are."
            )
        output.write((plain(text) if output.isatty() else text).encode())

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

    A database that does not exist is created. With --session the file holds messages as
    LlamaIndex or OpenAI's API write them, and --user says whose they are. With --user
    alone it holds facts as `export --user` writes them. Facts of imported messages are
    extracted when the session is next used. The guide "Coming from elsewhere" has
    scripts that convert what LangChain, LangGraph, mem0 and Zep write.
    """
    if session is None and user is None:
        raise UsageError("say --session ID for messages, or --user ID for facts.")
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
            count = await memory.aimport(content, show_progress=sys.stderr.isatty())
            kind = "message"
        else:
            # Some editors write UTF-16.
            count = await cli.book_of(memory).aimport(
                content.decode(detect_encoding(content))
            )
            kind = "fact"
        return {
            f"{kind}s": count
        }, f"Imported {pluralize(count, kind)} into {session or user}."

    cli.run(db, write, create=True, as_json=json)


def _time(time: datetime | None) -> str:
    if time:
        return f"{time.astimezone():%Y-%m-%d %H:%M}"
    return ""
