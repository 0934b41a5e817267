"""The commands ``forget``, which searches the file for what it has deleted, and ``retain``, for what is old."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import TerminalError, UsageError, pluralize
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Db, Json, Output, Session, User, Yes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

# The search looks up this many bytes at once; a shorter text is too common to prove
# anything.
_KEY_BYTES = 8
# A database scatters a long text over several pages, so it is searched in pieces.
_PIECE_BYTES = 48
_BLOCK_BYTES = 1 << 22
# Columns of names that are no user's and no session's.
_OTHER_NAMES = frozenset({"role", "status", "agent_id"})
_DAYS_HELP = "Delete turns with a message that was stored more than so many days ago."
_MESSAGES_HELP = (
    "Delete turns with a message that is not one of so many newest ones of its session."
)
_Days = Annotated[
    float | None, cli.option("--days", "NUMBER", _DAYS_HELP, min=0.001, max=36_500)
]
_Messages = Annotated[
    int | None, cli.option("--messages", "NUMBER", _MESSAGES_HELP, min=1)
]


@cli.app.command()
def forget(
    *,
    user: User = None,
    session: Session = None,
    yes: Yes = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Delete a person, or one session, for good.

    Of a person all facts and all sessions. It asks before it does. Afterwards the file
    is searched for the words that were deleted (SQLite only); exit code 1 if some are
    left.
    """
    name = cli.one_of(user, session)

    async def work(store: ext.MemoryStore) -> Output:
        # Imported here: it imports LlamaIndex.
        from llama_index_memory_ext.facts.book import FactBook

        infos = await store.sessions(
            user, session_ids=[] if session is None else [session]
        )
        # A session without a user has facts of its own.
        own = await store.users.own_users([info.session_id for info in infos])
        users = list(dict.fromkeys(own if user is None else [user, *own]))
        facts = list[ext.Fact]()
        for one in users:
            facts += await FactBook(store, one, scope="all").alist(state="all")
        if not (infos or facts):
            raise TerminalError(f"Nothing is stored about {name!r}.")
        if not (json and yes):
            messages = pluralize(sum(info.messages for info in infos), "message")
            counts = f"{messages} in {pluralize(len(infos), 'session')}, {pluralize(len(facts), 'fact')}."
            if users:
                hint = ""
            else:
                hint = "\nWhat is known of its user stays; `forget --user` deletes that too."
            cli.say(f"Stored about {name}: {counts}{hint}", stderr=True)
        if not yes:
            cli.confirm("Delete all of it for good?")
        return await _delete(store, [info.session_id for info in infos], users, facts)

    found = cli.run(db, work, as_json=json)["file"]
    if found and found["left"]:
        searched = pluralize(found["searched"], "text")
        raise TerminalError(
            f"Still in the file or in its journal: {found['left']} of {searched}."
        )


@cli.app.command()
def retain(
    *,
    days: _Days = None,
    messages: _Messages = None,
    session: Session = None,
    user: User = None,
    yes: Yes = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Delete old messages for good, of all sessions, of one, or of a user's.

    Facts stay, without the words of these messages. The turn that goes on stays. It
    asks before it does, and then rewrites the file; exit code 1 if that fails.
    """
    if days is messages is None:
        raise UsageError(
            "say which messages are old: --days NUMBER, --messages NUMBER, or both."
        )
    if not yes:
        cli.confirm("Delete these messages for good?")

    async def work(store: ext.MemoryStore) -> Output:
        infos = await store.sessions(
            user, session_ids=[] if session is None else [session]
        )
        names = [info.session_id for info in infos]
        deleted = await store.aretain(
            days=days, messages=messages, session_ids=names, vacuum=False
        )
        if not await store.vacuum():
            raise TerminalError(
                "The messages are deleted, but the file was not rewritten. Run the command again."
            )
        if deleted["unread"]:
            kept = f" {deleted['unread']} stay until facts are extracted from them."
        else:
            kept = ""
        text = f"Deleted {pluralize(deleted['messages'], 'message')}.{kept}"
        return deleted, f"{text} Facts that have lost words: {deleted['facts']}."

    cli.run(db, work, as_json=json)


async def _delete(
    store: ext.MemoryStore, sessions: list[str], users: list[str], facts: list[ext.Fact]
) -> Output:
    """Delete all of it, rewrites the file, and searches it for what was deleted."""
    file = cli.file_of(store)
    if file:
        texts = await _texts(store, sessions, facts)
    else:
        texts = set()
    if users:
        deleted = await store.forget_user(users[0], session_ids=sessions, vacuum=False)
    else:
        deleted = await store.forget(sessions[0])
    await store.vacuum()
    text = f"Deleted {', '.join(pluralize(n, kind.removesuffix('s')) for kind, n in deleted.items())}."
    residue = None
    if file:
        # Of a session that others share, what they have said stays.
        kept = [
            one.session_id
            for one in await store.sessions()
            if one.session_id in sessions
        ]
        texts -= await _texts(store, kept, ())
        await store.aclose()
        residue = search_file(file, texts, {*users, *sessions}.difference(kept))
        if residue["elsewhere"]:
            again = pluralize(residue["elsewhere"], "text")
            text += (
                f"\nSaid elsewhere too, and kept there, in whole or in part: {again}."
            )
        if not residue["left"]:
            text += f"\nThe file was searched: none of {pluralize(residue['searched'], 'text')} is left in it."
    else:
        text += "\nThe files of a server cannot be searched from here; its log and backups are its operator's."
    return {"deleted": deleted, "file": residue}, text


async def _texts(
    store: ext.MemoryStore, sessions: Iterable[str], facts: Iterable[ext.Fact]
) -> set[str]:
    texts = {
        text
        for fact in facts
        for text in (fact.content, fact.quote, fact.source, fact.retired_reason or "")
    }
    texts.update(
        past.retired_reason or "" for fact in facts for past in fact.past_retirements
    )
    # One session at a time: a parsed message takes much more memory than its text.
    for session in sessions:
        for message in await store.get_messages(session, None):
            texts.update(
                *(
                    _strings(block.model_dump(exclude={"block_type"}))
                    for block in message.blocks
                )
            )
    return texts


def _strings(value: object) -> Iterator[str]:
    """Yield the strings in a JSON value: text, and the arguments of calls."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def search_file(
    file: Path, texts: Iterable[str], owners: Collection[str]
) -> dict[str, int]:
    """Search a SQLite file and its journals, byte by byte, for texts of 8 bytes or more.

    Returns how many texts were searched, how many are left in the file, and how many
    are in rows of others.

    A row that names one of the deleted users and sessions, the ``owners``, is no
    other's.
    """
    searched = []
    for text in filter(str.strip, texts):
        # The forms in which the database may hold a text: JSON and UTF-8.
        forms = {dumps(text)[1:-1].encode(), text.encode(errors="replace")}
        starts = [
            (form, start)
            for form in forms
            for start in range(0, len(form), _PIECE_BYTES)
        ]
        pieces = {
            form[start : start + _PIECE_BYTES]
            for form, start in starts
            if len(form) - start >= _KEY_BYTES
        }
        searched += [pieces] if pieces else []
    found = set[bytes]()
    for ending in ("", "-wal", "-journal"):
        found |= find_pieces(Path(f"{file}{ending}"), set().union(*searched))
    deleted = set(found)
    for row in _rows(file) if found else ():
        # A user may be called "assistant", or as another one's agent.
        if not any(
            value in owners
            for column, value in row.items()
            if column not in _OTHER_NAMES
        ):
            content = b"\n".join(
                one if isinstance(one, bytes) else str(one).encode()
                for one in row.values()
            )
            deleted -= {piece for piece in deleted if piece in content}
    left = len([pieces for pieces in searched if pieces & deleted])
    elsewhere = len([pieces for pieces in searched if pieces & found]) - left
    return {"searched": len(searched), "left": left, "elsewhere": elsewhere}


def find_pieces(path: Path, pieces: Collection[bytes]) -> set[bytes]:
    """Return which of the pieces (8 to 48 bytes) are in a file, in one pass over the file."""
    # Imported here: it takes a while, and only this command needs it.
    import numpy as np

    if not path.exists() or path.stat().st_size < _KEY_BYTES:
        return set()
    by_key: dict[int, list[bytes]] = {}
    for piece in pieces:
        by_key.setdefault(int.from_bytes(piece[:_KEY_BYTES], "little"), []).append(
            piece
        )
    keys = np.array(list(by_key), dtype="<u8")
    content = np.memmap(path, mode="r")
    found = set[bytes]()
    # Blocks overlap by a piece, so that each piece is whole in one of them.
    for block_start in range(0, len(content), _BLOCK_BYTES):
        block = content[
            block_start : block_start + _BLOCK_BYTES + _PIECE_BYTES
        ].tobytes()
        for shift in range(_KEY_BYTES):
            numbers = np.frombuffer(
                block, "<u8", (len(block) - shift) // _KEY_BYTES, shift
            )
            for place in np.flatnonzero(np.isin(numbers, keys)):
                start = int(place) * _KEY_BYTES + shift
                found.update(
                    piece
                    for piece in by_key[int(numbers[place])]
                    if block.startswith(piece, start)
                )
    return found


def _rows(file: Path) -> Iterator[dict[str, object]]:
    """Yield all rows of all tables, by their columns, and those that name the tables."""
    with closing(
        sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    ) as connection:
        connection.row_factory = sqlite3.Row
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            )
        ]
        for table in ("sqlite_master", *tables):
            quoted = table.replace('"', '""')
            rows = connection.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608 - a name from the database itself
            yield from map(dict, rows)
