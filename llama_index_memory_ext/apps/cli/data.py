"""The commands that list, export and import sessions and facts."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, NamedTuple

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.apps.cli import TerminalError, UsageError, plain, pluralize
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

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
cli.app.add_typer(
    app, name="sessions", help="List the sessions.", epilog=cli.example("sessions list")
)


@app.command("list", epilog=cli.example("sessions list --user ann"))
def list_(
    *,
    user: User = None,
    time_zone: TimeZone = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """List the sessions, most recent first."""

    async def read(store: ext.MemoryStore) -> Output:
        sessions = await store.sessions(user)
        rows = []
        for info in sessions:
            last_used = ""
            if info.last_at:
                last_used = f"{info.last_at.astimezone(time_zone):%Y-%m-%d %H:%M}"
            users = ", ".join(info.user_ids)
            rows.append((info.session_id, str(info.messages), users, last_used))
        columns = ["session", "messages", "user", "last used"]
        return Output(sessions, cli.table(columns, rows, empty="No sessions."))

    cli.run(db, read, as_json=as_json)


@cli.app.command(epilog=cli.example("export --user ann -o ann.json"))
def export(
    *,
    session: Session = None,
    user: User = None,
    output: Annotated[
        typer.FileBinaryWrite, cli.option("--output -o FILE", "The file; - for stdout.")
    ] = "-",  # type: ignore[assignment]  # Typer opens it
    db: Db = None,
) -> None:
    """Write the messages of a session, or all data of a user, as JSON.

    With --user, write a copy: the messages of all sessions of the user, and all facts,
    including retired facts.
    """
    cli.one_of(user, session)

    async def write(store: ext.MemoryStore) -> None:
        if session is None:
            text = await _copy_of(store, str(user))
        else:
            rows = await store.rows(session)
            text = ext.messages_to_json(
                [row.moved for row in rows if not row.is_damaged]
            )
            if text == "[]":
                raise TerminalError(
                    f"There is no session {session!r}. `sessions list` shows the sessions."
                )
        if output.isatty():
            text = plain(text)
        output.write(f"{text}\n".encode())

    cli.run(db, write)


async def _copy_of(store: ext.MemoryStore, user: str) -> str:
    facts = await cli.book_of(cli.memory_on(store, None, user)).aexport()
    sessions = {}
    unread = {}
    for info in await store.sessions(user):
        session = info.session_id
        shared = len(info.user_ids) > 1
        memory = _memory_of(store, session, user, shared=shared, extract_facts=True)
        sessions[session] = json.loads(await memory.aexport())
        unread[session] = (await memory.astats()).pending
    entries = [json.loads(line) for line in facts.strip().split("\n")]
    # The first entry is the version.
    if not sessions and len(entries) == 1:
        raise TerminalError(f"Nothing is stored about {user!r}.")
    copy = {"user": user, "sessions": sessions, "unread": unread, "facts": entries}
    return json.dumps(copy, ensure_ascii=False, indent=2)


@cli.app.command(
    "import", epilog=cli.example("import chat-17.json --session chat-17 --user ann")
)
def import_(
    file: Annotated[
        typer.FileBinaryRead,
        typer.Argument(metavar="FILE", help="The file to read; - for stdin."),
    ],
    *,
    session: Session = None,
    user: User = None,
    agent: Agent = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Add messages to a session, facts to a user, or a copy of both.

    A database that does not exist is created. With --session, the file holds messages
    in the layout of LlamaIndex or OpenAI's API, and --user names their user. With
    --user alone, it holds facts as JSON Lines. Without both, it is a copy that `export
    --user` has written. Facts of imported messages are extracted when the session is
    next used. The guide "Migrate from another memory" has scripts that convert files of
    LangChain, LangGraph, mem0 and Zep.
    """
    content = file.read()

    async def write(store: ext.MemoryStore) -> Output:
        if session is not None:
            kind = "message"
            count = await _import_session(store, session, user, content)
        elif user is not None:
            kind = "fact"
            memory = cli.memory_on(store, None, user, agent_id=agent)
            # Some editors write UTF-16.
            text = content.decode(json.detect_encoding(content))
            count = await cli.book_of(memory).aimport(text)
        else:
            return await _import_copy(store, _read_copy(content))
        done = f"Imported {pluralize(count, kind)} into {session or user}."
        return Output({f"{kind}s": count}, done)

    cli.run(db, write, create=True, as_json=as_json)


class _Copy(NamedTuple):
    """The data of a user: the messages of each session, and the lines of facts.

    ``unread``: by session, the number of its newest messages that were not read for
    facts. Without a number, no message was read.
    """

    user: str
    sessions: dict[str, list[Any]]
    facts: list[Any]
    unread: dict[str, int] | None = None


def _read_copy(content: bytes) -> _Copy:
    # Imported here: it takes a while, and the help does not need it.
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(_Copy).validate_python(json.loads(content))
    except ValueError:
        raise UsageError(
            "pass --session ID to import messages, or --user ID to import facts. Without both, the file must be a copy "
            "of a user's data, as `export --user ID` writes it."
        ) from None


async def _import_copy(store: ext.MemoryStore, copy: _Copy) -> Output:
    """Store a copy. Sessions that have messages here stay as they are."""
    book = cli.book_of(cli.memory_on(store, None, copy.user))
    # The facts come first: if a line of theirs is wrong, nothing is imported.
    facts = await book.aimport("\n".join(map(json.dumps, copy.facts)))
    skipped = [
        info.session_id
        for info in await store.sessions(session_ids=list(copy.sessions))
    ]
    unread = copy.unread or {}
    counts = {"messages": 0, "sessions": 0, "facts": facts}
    for session, messages in copy.sessions.items():
        if session not in skipped:
            counts["messages"] += await _import_session(
                store, session, copy.user, messages
            )
            counts["sessions"] += 1
    # What was read before the export is not read again: deleted facts would come back. The
    # messages of a shared session may have come with the copy of another user.
    for info in await store.sessions(copy.user):
        session = info.session_id
        if info.messages == len(copy.sessions.get(session, ())):
            block = _memory_of(store, session, copy.user).facts_block
            count = info.messages
            await block.askip(session, max(count - unread.get(session, count), 0))
    listed = [pluralize(count, kind[:-1]) for kind, count in counts.items()]
    text = f"Imported {', '.join(listed)} of {copy.user}."
    if skipped:
        text += f" Left out, because they have messages here: {', '.join(skipped)}."
    return Output({**counts, "skipped": skipped}, text)


async def _import_session(
    store: ext.MemoryStore, session: str, user: str | None, source: Any
) -> int:
    """Add messages to a session, and return their number.

    If the messages name speakers, the session is shared by them and the user.
    """
    messages = ext.messages_from_json(source)
    speakers = {message.additional_kwargs.get("user_id") for message in messages}
    if user is None:
        # Otherwise, all words would belong to the next user.
        user = min(filter(None, speakers), default=None)
    memory = _memory_of(store, session, user, shared=not speakers <= {None, user})
    return await memory.aimport(source, show_progress=sys.stderr.isatty())


def _memory_of(
    store: ext.MemoryStore, session: str, user: str | None, **settings: Any
) -> ext.CondensedMemory:
    memory = cli.memory_on(store, None, user, **settings)
    # LlamaIndex may have stored an id that ``from_defaults`` does not accept.
    memory.session_id = session
    return memory
