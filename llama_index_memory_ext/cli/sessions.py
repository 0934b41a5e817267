"""The commands ``sessions``, ``export`` and ``import``: list sessions, write and read messages and facts."""

from __future__ import annotations

import sys
from json import detect_encoding
from pathlib import Path
from typing import Annotated, Literal

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import TerminalError, UsageError, plain, pluralize
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Agent, Db, Json, Output, Session, User

_Format = Annotated[
    Literal["llama_index", "openai"],
    typer.Option("--format", metavar="FORMAT", help="llama_index or openai."),
]
_Output = Annotated[
    typer.FileBinaryWrite,
    cli.option("--output -o FILE", "The file to write; - for stdout."),
]
_File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file to read; - for stdin.")
]
_Order = Annotated[
    Literal["used", "messages", "name"],
    typer.Option("--sort", metavar="ORDER", help="used, messages or name."),
]
_Limit = Annotated[int, cli.option("--limit COUNT", "Most sessions.", min=1)]
_After = Annotated[
    str | None, cli.option("--after ID", "Only sessions after this session.")
]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
cli.app.add_typer(
    app, name="sessions", help="List the sessions.", epilog=cli.example("sessions list")
)


@app.command("list", epilog=cli.example("sessions list --sort messages --limit 20"))
def list_(
    *,
    user: User = None,
    sort: _Order = "used",
    limit: _Limit = sys.maxsize,
    after: _After = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """List the sessions, the last used first."""

    async def read(store: ext.MemoryStore) -> Output:
        sessions = await store.sessions(user)
        if sort == "messages":
            sessions.sort(key=lambda info: -info.messages)
        elif sort == "name":
            sessions.sort(key=lambda info: info.session_id)
        start = 0
        if after is not None:
            start = _place_of(after, [info.session_id for info in sessions]) + 1
        page = sessions[start : start + limit]
        rows = [
            (
                info.session_id,
                str(info.messages),
                ", ".join(info.user_ids),
                f"{info.last_at.astimezone():%Y-%m-%d %H:%M}" if info.last_at else "",
            )
            for info in page
        ]
        columns = ["session", "messages", "user", "last used"]
        empty = "No sessions." if user is None else f"No sessions of {user}."
        return Output(page, cli.table(columns, rows, empty=empty))

    cli.run(db, read, as_json=json)


def _place_of(session: str, session_ids: list[str]) -> int:
    if session not in session_ids:
        raise TerminalError(
            f"There is no session {session!r}. `sessions list` shows the sessions."
        )
    return session_ids.index(session)


@cli.app.command(epilog=cli.example("export --user ann -o ann.jsonl"))
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


@cli.app.command(
    "import", epilog=cli.example("import chat-17.json --session chat-17 --user ann")
)
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
