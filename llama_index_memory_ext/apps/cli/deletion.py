"""The commands that delete, rewrite and encrypt stored data."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from json import dumps
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import llama_index_memory_ext as ext
from llama_index_memory_ext.apps.cli import TerminalError, UsageError, pluralize
from llama_index_memory_ext.apps.cli import app as cli
from llama_index_memory_ext.apps.cli.app import (
    Db,
    Json,
    NoVacuum,
    Output,
    Session,
    User,
    Yes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

# Of each text, the beginning: a database scatters a longer piece over several pages.
_PIECE_CHARACTERS = 40
# A shorter piece is too common to prove anything.
_SHORTEST_PIECE = 8


class _StoredData(NamedTuple):
    """The data that ``forget`` deletes.

    ``messages``: the number of messages of the sessions.
    ``users``: the namespaces whose facts are deleted.
    """

    session_ids: list[str]
    messages: int
    users: list[str]
    facts: list[ext.Fact]

    def __str__(self) -> str:
        messages = pluralize(self.messages, "message")
        sessions = pluralize(len(self.session_ids), "session")
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
    deletes. Then it rewrites a SQLite file, and searches it for the deleted texts; exit
    code 1 if the file still holds the beginning of a text that no row has.
    """
    name = cli.one_of(user, session)

    async def work(store: ext.MemoryStore) -> Output:
        stored = await _read_stored(store, user, session)
        if not (stored.session_ids or stored.facts):
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
        cli.option(
            "--messages COUNT", "Keep this many messages of each session.", min=1
        ),
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
    lose the words of the deleted messages. A current turn without an answer stays. The
    command asks before it deletes. Then it rewrites the file; exit code 1 if that
    fails.
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

    No other program may use the SQLite file, and the disk needs twice its size.
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

    Older keys follow, separated by blanks. First give the new key to all programs
    that use the database; afterwards, they need no older key.
    """

    async def work(store: ext.MemoryStore) -> Output:
        counts = await store.aencrypt()
        if counts["unreadable"] or not counts["vacuumed"]:
            raise TerminalError(
                f"{pluralize(counts['unreadable'], 'row')} cannot be read and stay as they are, or the file was "
                "not rewritten and may hold plain words. Run the command again, with all keys; "
                "the warnings name each row."
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
    return _StoredData(
        session_ids=[info.session_id for info in infos],
        messages=sum(info.messages for info in infos),
        users=users,
        facts=facts,
    )


async def _delete(
    store: ext.MemoryStore, stored: _StoredData, *, vacuum: bool
) -> Output:
    """Delete the data, rewrite the file with ``vacuum``, and search the file for the deleted texts."""
    file = store.file
    texts = await _texts_of(store, stored) if file else set()
    if stored.users:
        deleted = await store.forget_user(
            stored.users[0], session_ids=stored.session_ids, vacuum=False
        )
    else:
        deleted = await store.forget(stored.session_ids[0])
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
        text += "\nThe file was searched: none of the deleted texts is left in it, except in rows that stay."
    return Output({"deleted": deleted, "in_file": in_file}, text)


async def _texts_of(store: ext.MemoryStore, stored: _StoredData) -> set[str]:
    texts = {fact.content for fact in stored.facts}
    texts.update(fact.quote for fact in stored.facts)
    for session in stored.session_ids:
        async for message in store.iter_messages(session):
            texts.add(message.content or "")
    return texts


def holds_deleted(file: Path, texts: Iterable[str]) -> bool:
    """Return whether a SQLite file or its journals hold the beginning of a text that is in no row any more."""
    pieces = _pieces(texts)
    remaining = set()
    for ending in ("", "-wal", "-journal"):
        path = Path(f"{file}{ending}")
        if not path.exists() or not path.stat().st_size:
            continue
        with (
            path.open("rb") as opened,
            mmap(opened.fileno(), 0, access=ACCESS_READ) as content,
        ):
            for piece in pieces:
                if content.find(piece.encode(errors="replace")) >= 0:
                    remaining.add(piece)
    if remaining:
        with closing(sqlite3.connect(file)) as connection:
            for row in connection.iterdump():
                # In SQL, an apostrophe is doubled.
                text = row.replace("''", "'")
                remaining = {piece for piece in remaining if piece not in text}
    return bool(remaining)


def _pieces(texts: Iterable[str]) -> set[str]:
    """Return the beginnings of the texts, as they are and as a row holds them in JSON."""
    pieces = set()
    for text in texts:
        beginning = text.strip()[:_PIECE_CHARACTERS]
        if len(beginning) >= _SHORTEST_PIECE:
            pieces |= {beginning, dumps(beginning)[1:-1]}
    return pieces
