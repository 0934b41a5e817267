"""The commands that list, export and import sessions and facts."""

from __future__ import annotations

import sys
from json import detect_encoding
from pathlib import Path
from typing import Annotated, Literal

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.apps.cli import TerminalError, UsageError, pluralize
from llama_index_memory_ext.apps.cli import app as cli
from llama_index_memory_ext.apps.cli.app import (
    Agent,
    Db,
    Json,
    Output,
    Session,
    TimeZone,
    User,
)
from llama_index_memory_ext.apps.cli.copies import (
    file_errors,
    import_copy,
    import_session,
    read_copy,
    write_copy,
    write_text,
)

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
cli.app.add_typer(
    app, name="sessions", help="List the sessions.", epilog=cli.example("sessions list")
)


@app.command("list", epilog=cli.example("sessions list --limit 20"))
def list_(
    *,
    user: User = None,
    limit: Annotated[
        int, cli.option("--limit COUNT", "Most sessions.", min=1)
    ] = sys.maxsize,
    time_zone: TimeZone = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """List the sessions, the last used first."""

    async def read(store: ext.MemoryStore) -> Output:
        sessions = await store.sessions(user)
        page = sessions[:limit]
        rows = [
            (
                info.session_id,
                str(info.messages),
                ", ".join(info.user_ids),
                f"{info.last_at.astimezone(time_zone):%Y-%m-%d %H:%M}"
                if info.last_at
                else "",
            )
            for info in page
        ]
        columns = ["session", "messages", "user", "last used"]
        empty = "No sessions." if user is None else f"No sessions of {user}."
        return Output(page, cli.table(columns, rows, empty=empty))

    cli.run(db, read, as_json=json)


def _no_session(session: str) -> TerminalError:
    return TerminalError(
        f"There is no session {session!r}. `sessions list` shows the sessions."
    )


@cli.app.command(epilog=cli.example("export --user ann -o copy-of-ann"))
def export(
    *,
    session: Session = None,
    user: User = None,
    agent: Agent = None,
    layout: Annotated[
        Literal["llama_index", "openai"],
        typer.Option("--format", metavar="FORMAT", help="llama_index or openai."),
    ] = "llama_index",
    output: Annotated[
        Path,
        cli.option(
            "--output -o PATH",
            "The file of a session, or the new folder of a user; - for stdout.",
        ),
    ] = Path("-"),
    db: Db = None,
) -> None:
    """Write messages as JSON, or a complete copy of a user's data.

    With --session, write the messages of the session. With --user and --output, write a
    folder with the messages of all sessions and all facts, retired facts too. With
    --user alone, write the facts as JSON Lines; with --agent, only the facts that this
    agent sees.
    """
    cli.one_of(user, session)
    is_copy = user is not None and str(output) != "-"
    if is_copy and agent is not None:
        raise UsageError("--agent writes facts to stdout; leave out --output.")

    async def write(store: ext.MemoryStore) -> Output | None:
        if is_copy:
            return await write_copy(store, str(user), output)
        if session is None:
            text = await cli.book_of(cli.memory_on(store, None, user, agent)).aexport()
        else:
            rows = await store.rows(session)
            if not rows:
                raise _no_session(session)
            messages = [row.moved for row in rows if not row.is_damaged]
            text = ext.messages_to_json(messages, layout=layout) + "\n"
        write_text(output, text)
        return None

    cli.run(db, write)


@cli.app.command(
    "import", epilog=cli.example("import chat-17.json --session chat-17 --user ann")
)
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="The file to read, or the folder of a user; - for stdin.",
        ),
    ],
    *,
    session: Session = None,
    user: User = None,
    agent: Agent = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Add messages to a session, facts to a user, or a copy of both.

    A database that does not exist is created. A folder that `export --user` has written
    is read whole. With --session, the file holds
    messages in the layout of LlamaIndex or OpenAI's API, and --user names their user.
    With --user alone, it holds facts in the layout of `export --user`. Facts of
    imported messages are extracted when the session is next used. The guide "Coming
    from elsewhere" has scripts that convert files of LangChain, LangGraph, mem0 and
    Zep.
    """
    file = file.expanduser()
    if file.is_dir() and (session, user, agent) == (None, None, None):
        copy = read_copy(file)
        cli.run(db, lambda store: import_copy(store, copy), create=True, as_json=json)
        return
    if session is None and user is None:
        raise UsageError(
            "pass --session ID to import messages, or --user ID to import facts."
        )
    with file_errors(file):
        if str(file) == "-":
            content = sys.stdin.buffer.read()
        else:
            content = file.read_bytes()

    async def write(store: ext.MemoryStore) -> Output:
        if session is not None:
            kind = "message"
            count = await import_session(store, session, user, content)
        else:
            kind = "fact"
            memory = cli.memory_on(store, None, user, agent)
            # Some editors write UTF-16.
            text = content.decode(detect_encoding(content))
            count = await cli.book_of(memory).aimport(text)
        done = f"Imported {pluralize(count, kind)} into {session or user}."
        return Output({f"{kind}s": count}, done)

    cli.run(db, write, create=True, as_json=json)
