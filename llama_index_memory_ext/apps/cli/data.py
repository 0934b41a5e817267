"""The commands for stored data: lists, moves, deletes and encrypts sessions and facts."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from json import detect_encoding, dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.apps.cli import TerminalError, UsageError, pluralize
from llama_index_memory_ext.apps.cli import app as cli
from llama_index_memory_ext.apps.cli.app import (
    Agent,
    Db,
    Json,
    NoVacuum,
    Output,
    Session,
    TimeZone,
    User,
    Yes,
)
from llama_index_memory_ext.apps.cli.copies import (
    file_errors,
    import_copy,
    import_session,
    read_copy,
    write_copy,
    write_text,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
cli.app.add_typer(
    app, name="sessions", help="List the sessions.", epilog=cli.example("sessions list")
)


@app.command("list", epilog=cli.example("sessions list --sort messages --limit 20"))
def list_(
    *,
    user: User = None,
    sort: Annotated[
        Literal["used", "messages", "name"],
        typer.Option("--sort", metavar="ORDER", help="used, messages or name."),
    ] = "used",
    limit: Annotated[
        int, cli.option("--limit COUNT", "Most sessions.", min=1)
    ] = sys.maxsize,
    after: Annotated[
        str | None, cli.option("--after ID", "Only sessions after this session.")
    ] = None,
    time_zone: TimeZone = None,
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
            session_ids = [info.session_id for info in sessions]
            if after not in session_ids:
                raise _no_session(after)
            start = session_ids.index(after) + 1
        page = sessions[start : start + limit]
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
    is read whole; --user gives the data to another user. With --session, the file holds
    messages in the layout of LlamaIndex or OpenAI's API, and --user names their user.
    With --user alone, it holds facts in the layout of `export --user`. Facts of
    imported messages are extracted when the session is next used. The guide "Coming
    from elsewhere" has scripts that convert files of LangChain, LangGraph, mem0 and
    Zep.
    """
    file = file.expanduser()
    if file.is_dir() and session is None and agent is None:
        copy = read_copy(file)
        cli.run(
            db, lambda store: import_copy(store, copy, user), create=True, as_json=json
        )
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


# The search looks up this many bytes at once. A shorter text is too common to prove
# anything.
_KEY_BYTES = 8
# A database scatters a long text over several pages, so the search takes it in pieces.
_PIECE_BYTES = 48
_BLOCK_BYTES = 1 << 20


class _StoredData(NamedTuple):
    """The data that ``forget`` deletes.

    ``users``: the namespaces whose facts are deleted.
    """

    sessions: Sequence[ext.SessionInfo]
    users: list[str]
    facts: list[ext.Fact]

    @property
    def session_ids(self) -> list[str]:
        return [info.session_id for info in self.sessions]

    def __str__(self) -> str:
        messages = pluralize(sum(info.messages for info in self.sessions), "message")
        sessions = pluralize(len(self.sessions), "session")
        return f"{messages} in {sessions}, {pluralize(len(self.facts), 'fact')}."


@cli.app.command(epilog=cli.example("forget --user ann"))
def forget(
    *,
    user: User = None,
    session: Session = None,
    no_vacuum: NoVacuum = False,
    yes: Yes = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Delete a person, or one session, for good.

    For a person, all facts and all sessions are deleted. The command asks before it
    deletes. Then it rewrites a SQLite file, and searches it for the deleted words; exit
    code 1 if the file still holds some.
    """
    name = cli.one_of(user, session)

    async def work(store: ext.MemoryStore) -> Output:
        stored = await _read_stored(store, user, session)
        if not (stored.sessions or stored.facts):
            raise TerminalError(f"Nothing is stored about {name!r}.")
        if not (json and yes):
            hint = ""
            if not stored.users:
                hint = "\nThe facts of its user stay; `forget --user` deletes them too."
            cli.say(f"Stored about {name}: {stored}{hint}", stderr=True)
        if not yes:
            cli.confirm("Delete all of it for good?")
        return await _delete(store, stored, vacuum=not no_vacuum)

    if cli.run(db, work, as_json=json)["in_file"]:
        raise TerminalError(
            "The file or its journal still holds deleted texts. Run `llama-index-memory vacuum` when no other program "
            "uses the database."
        )


@cli.app.command(epilog=cli.example("retain --days 90"))
def retain(
    *,
    days: Annotated[
        float | None,
        cli.option(
            "--days DAYS", "Delete turns older than this.", min=0.001, max=36_500
        ),
    ] = None,
    messages: Annotated[
        int | None,
        cli.option("--messages COUNT", "Keep so many messages of each session.", min=1),
    ] = None,
    session: Session = None,
    user: User = None,
    no_vacuum: NoVacuum = False,
    yes: Yes = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Delete old messages for good; facts stay.

    Messages of all sessions, of one session, or of a user's sessions are deleted. Facts
    lose the words of the deleted messages. The current turn stays. The command asks
    before it deletes. Then it rewrites the file; exit code 1 if that fails.
    """
    if days is None and messages is None:
        raise UsageError(
            "say which messages are old: --days NUMBER, --messages NUMBER, or both."
        )
    if not yes:
        cli.confirm("Delete these messages for good?")

    async def work(store: ext.MemoryStore) -> Output:
        infos = await store.sessions(
            user, session_ids=[] if session is None else [session]
        )
        deleted = await store.aretain(
            days=days,
            messages=messages,
            session_ids=[info.session_id for info in infos],
            vacuum=False,
        )
        if not (no_vacuum or await store.vacuum()):
            raise TerminalError(
                "The messages are deleted, but the file was not rewritten. Run `llama-index-memory vacuum`."
            )
        text = f"Deleted {pluralize(deleted['messages'], 'message')}."
        if deleted["unread"]:
            text += f" {deleted['unread']} stay until facts are extracted from them."
        text += f" Facts that have lost words: {deleted['facts']}."
        return Output(deleted, text)

    cli.run(db, work, as_json=json)


@cli.app.command(epilog=cli.example("vacuum --db memory.db"))
def vacuum(*, db: Db = None, json: Json = False) -> None:
    """Rewrite the database, so that its files hold no deleted words.

    A SQLite file must be used by no other program, and the disk needs twice its size.
    """

    async def work(store: ext.MemoryStore) -> Output:
        if not await store.vacuum():
            raise TerminalError(
                "The database was not rewritten. Run the command again when no other program uses the database."
            )
        return Output({"vacuumed": True}, "The database was rewritten.")

    cli.run(db, work, as_json=json)


@cli.app.command(epilog=cli.example("encrypt --db memory.db"))
def encrypt(*, db: Db = None, json: Json = False) -> None:
    """Encrypt all rows with the first key in LLAMA_INDEX_MEMORY_KEY.

    Further keys, behind a blank, are older keys. First give the new key to all programs
    that use the database; afterwards, they need no older key.
    """

    async def work(store: ext.MemoryStore) -> Output:
        counts = await store.aencrypt()
        if counts["unreadable"] or not counts["vacuumed"]:
            raise TerminalError(
                f"{pluralize(counts['unreadable'], 'row')} cannot be read and stay, or the file was not rewritten and "
                "may hold plain words. Run the command again, with all keys; the warnings name each row."
            )
        return Output(
            counts,
            f"The rows of {counts['encrypted']} sessions and users have the newest key.",
        )

    cli.run(db, work, as_json=json)


async def _read_stored(
    store: ext.MemoryStore, user: str | None, session: str | None
) -> _StoredData:
    infos = await store.sessions(user, session_ids=[] if session is None else [session])
    # A session without a user owns its facts.
    users = [
        info.own_namespace for info in infos if info.own_namespace in info.namespaces
    ]
    if user is not None:
        users = list(dict.fromkeys([user, *users]))
    facts = []
    for namespace in users:
        facts += await ext.FactBook(store, namespace, scope="all").alist(state="all")
    return _StoredData(infos, users, facts)


async def _delete(
    store: ext.MemoryStore, stored: _StoredData, *, vacuum: bool
) -> Output:
    """Delete the data, rewrite the file with ``vacuum``, and search the file for the deleted texts."""
    session_ids = stored.session_ids
    file = store.file
    texts = set()
    if file:
        texts = await _texts(store, session_ids, stored.facts)
    if stored.users:
        deleted = await store.forget_user(
            stored.users[0], session_ids=session_ids, vacuum=False
        )
    else:
        deleted = await store.forget(session_ids[0])
    if vacuum:
        await store.vacuum()
    counts = [
        pluralize(count, kind.removesuffix("s")) for kind, count in deleted.items()
    ]
    text = f"Deleted {', '.join(counts)}."
    if not file:
        text += "\nThe files of a server cannot be searched from here; its operator has its log and its backups."
        return Output({"deleted": deleted, "in_file": None}, text)
    await store.aclose()
    in_file = holds_deleted(file, texts)
    if not in_file:
        text += "\nThe file was searched: none of the deleted texts is left in it."
    return Output({"deleted": deleted, "in_file": in_file}, text)


async def _texts(
    store: ext.MemoryStore, sessions: Iterable[str], facts: Iterable[ext.Fact]
) -> set[str]:
    """Return the texts of the sessions' messages and of the facts."""
    texts = set()
    for fact in facts:
        texts |= {fact.content, fact.quote, fact.source, fact.retired_reason or ""}
        texts.update(past.retired_reason or "" for past in fact.past_retirements)
    # One session at a time: a parsed message takes much more memory than its text.
    for session in sessions:
        for message in await store.get_messages(session, None):
            for block in message.blocks:
                texts.update(_strings(block.model_dump(exclude={"block_type"})))
    return texts


def _strings(value: object) -> Iterator[str]:
    """Yield the strings in a JSON value: text, and the arguments of calls."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings(list(value.values()))
    elif isinstance(value, list):
        for entry in value:
            yield from _strings(entry)


def holds_deleted(file: Path, texts: Iterable[str]) -> bool:
    """Return whether a SQLite file or its journals hold a text of 8 bytes or more that is in no row any more."""
    pieces = set().union(*map(_pieces, texts))
    remaining: set[bytes] = set()
    for ending in ("", "-wal", "-journal"):
        remaining |= find_pieces(Path(f"{file}{ending}"), pieces)
    if remaining:
        for row in _rows(file):
            remaining = {piece for piece in remaining if piece not in row}
    return bool(remaining)


def _pieces(text: str) -> set[bytes]:
    """Return the pieces of both forms in which a database may hold a text; none for a text that is too short."""
    pieces = set()
    in_json = dumps(text)[1:-1].encode()
    for form in (in_json, text.encode(errors="replace")):
        for start in range(0, len(form), _PIECE_BYTES):
            pieces.add(form[start : start + _PIECE_BYTES])
    return {piece for piece in pieces if len(piece.strip()) >= _KEY_BYTES}


def find_pieces(path: Path, pieces: Collection[bytes]) -> set[bytes]:
    """Return the pieces (8 to 48 bytes) that are in a file, in one pass over the file."""
    # Imported here: it takes a while, and only this command needs it.
    import numpy as np
    from numpy.lib.stride_tricks import sliding_window_view

    found_pieces: set[bytes] = set()
    if not path.exists() or path.stat().st_size < _KEY_BYTES:
        return found_pieces
    by_key: dict[int, list[bytes]] = {}
    for piece in pieces:
        key = int.from_bytes(piece[:_KEY_BYTES], "little")
        by_key.setdefault(key, []).append(piece)
    keys = np.array(list(by_key), dtype="<u8")
    content = np.memmap(path, mode="r")
    # Blocks overlap by a piece, so that each piece is whole in one of them.
    for block_start in range(0, len(content) - _KEY_BYTES + 1, _BLOCK_BYTES):
        block = content[block_start : block_start + _BLOCK_BYTES + _PIECE_BYTES]
        text = block.tobytes()
        # The key at each byte of the block.
        numbers = sliding_window_view(block, _KEY_BYTES).copy().view("<u8").ravel()
        for start in np.flatnonzero(np.isin(numbers, keys)).tolist():
            for piece in by_key[int(numbers[start])]:
                if text.startswith(piece, start):
                    found_pieces.add(piece)
    return found_pieces


def _rows(file: Path) -> Iterator[bytes]:
    """Yield the texts and bytes of each row of all tables, and of the table of tables."""
    address = f"{file.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        connection.text_factory = bytes
        for table in ("sqlite_master", *(name for (name,) in tables)):
            quoted = table.replace('"', '""')
            for row in connection.execute(f'SELECT * FROM "{quoted}"'):  # noqa: S608 - a name from the database itself
                yield b"\n".join(value for value in row if isinstance(value, bytes))
