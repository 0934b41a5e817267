"""The command ``forget``: deletes a person or a session, and searches the file for what was deleted."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import TerminalError, pluralize
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Db, Json, Session, User, Yes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator

# The search looks up this many bytes at once; a shorter text is too common to prove anything.
_KEY_BYTES = 8
# A database scatters a long text over several pages, so it is searched in pieces.
_PIECE_BYTES = 48
_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class DeletionPlan:
    """What is to be deleted: sessions, users, and how many messages and facts they have."""

    sessions: list[str]
    users: list[str]
    messages: int
    facts: int
    is_person: bool

    def __str__(self) -> str:
        sessions = f" in {pluralize(len(self.sessions), 'session')}" if self.is_person else ""
        stays = "" if self.users else "\nWhat is known of its user stays; `forget --user` deletes that too."
        return f"{pluralize(self.messages, 'message')}{sessions}, {pluralize(self.facts, 'fact')}.{stays}"


@dataclass(frozen=True)
class DeletionResidue:
    """How many texts were searched, how many are left in the file, and how many are in rows of others."""

    searched: int
    left: int
    elsewhere: int


@cli.app.command()
def forget(*, user: User = None, session: Session = None, yes: Yes = False, db: Db = None, json: Json = False) -> None:
    """Delete a person, or one session, for good.

    Of a person all facts and all sessions. It asks before it does.
    Afterwards the file is searched for the words that were deleted (SQLite only); exit code 1 if some are left.
    """
    name, place = cli.one_of(user, session), cli.find_place(db)
    plan = asyncio.run(_plan(place, user, session))
    if not (plan.sessions or plan.facts):
        raise TerminalError(f"Nothing is stored about {name!r}.")
    if not (json and yes):
        cli.say(f"Stored about {name}: {plan}", stderr=True)
    if not yes:
        cli.confirm("Delete all of it for good?")
    with cli.waiting("Deleting, and searching the file for what was deleted"):
        deleted, residue = _delete(place, plan)
    if json:
        cli.show_json({"deleted": deleted, "file": asdict(residue) if residue else None})
    else:
        _show(deleted, residue)
    if residue and residue.left:
        raise typer.Exit(1)


async def _plan(place: cli.Place, user: str | None, session: str | None) -> DeletionPlan:
    async with cli.open_store(place) as store:
        infos = await store.sessions(user, session_ids=[session] if session else [])
        # A session without a user is a user of its own.
        own = [info.session_id for info in infos if info.session_id in info.user_ids]
        users = list(dict.fromkeys([user, *own] if user else own))
        facts = [len(await cli.memory_on(store, name).facts.alist(with_retired=True)) for name in users]
    sessions, messages = [info.session_id for info in infos], sum(info.messages for info in infos)
    return DeletionPlan(sessions, users, messages, sum(facts), is_person=user is not None)


def _delete(place: cli.Place, plan: DeletionPlan) -> tuple[dict[str, int], DeletionResidue | None]:
    """Returns the counts of the deleted rows, and, where there is a file to search, what is left in it."""
    deleted, texts = asyncio.run(_delete_rows(place, plan))
    return deleted, search_file(place.file, texts, {*plan.users, *plan.sessions}) if place.file else None


async def _delete_rows(place: cli.Place, plan: DeletionPlan) -> tuple[dict[str, int], set[str]]:
    """Returns the counts of the deleted rows, and, where there is a file to search, their texts."""
    async with cli.open_store(place) as store:
        texts = {text async for text in _texts(store, plan)} if place.file else set()
        if plan.users:
            return await store.forget_user(plan.users[0], session_ids=plan.sessions), texts
        deleted = await store.forget(plan.sessions[0])
        await store.vacuum()
    return deleted, texts


async def _texts(store: ext.MemoryStore, plan: DeletionPlan) -> AsyncIterator[str]:
    for name in plan.users:
        for fact in await cli.memory_on(store, name).facts.alist(with_retired=True):
            for text in (fact.content, fact.quote, fact.source, fact.retired_reason or ""):
                yield text
    # One session at a time: a parsed message takes much more memory than its text.
    for key in plan.sessions:
        for message in await store.get_messages(key, None):
            for block in message.blocks:
                for text in _strings(block.model_dump(exclude={"block_type"})):
                    yield text


def _strings(value: Any) -> Iterator[str]:
    """Yields the strings in a JSON value: text, and the arguments of calls."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _show(deleted: dict[str, int], residue: DeletionResidue | None) -> None:
    cli.say("Deleted " + ", ".join(pluralize(n, kind.removesuffix("s")) for kind, n in deleted.items()) + ".")
    if residue is None:
        cli.say("The files of a server cannot be searched from here; its log, replicas and backups are its operator's.")
        return
    searched = pluralize(residue.searched, "text")
    if residue.elsewhere:
        cli.say(f"Also said elsewhere, and kept there, in whole or in part: {pluralize(residue.elsewhere, 'text')}.")
    if residue.left:
        cli.say(f"Still in the file or in its journal: {residue.left} of {searched}.", stderr=True)
    else:
        cli.say(f"The file was searched: none of {searched} is left in it.")


def search_file(file: Path, texts: Iterable[str], owners: Collection[str]) -> DeletionResidue:
    """Searches a SQLite file and its journals for texts, byte by byte.

    Args:
        file: The SQLite file.
        texts: The deleted texts. Blank texts and those of less than eight bytes are left out.
        owners: The deleted users and sessions: a row that names one of them belongs to nobody else.
    """
    searched = [pieces for text in texts if text.strip() and (pieces := set(_pieces(text)))]
    found = set[bytes]()
    for ending in ("", "-wal", "-journal"):
        found |= find_pieces(Path(f"{file}{ending}"), set().union(*searched))
    deleted = found - _pieces_of_others(file, found, owners)
    left = len([pieces for pieces in searched if pieces & deleted])
    return DeletionResidue(len(searched), left, len([pieces for pieces in searched if pieces & found]) - left)


def find_pieces(path: Path, pieces: Collection[bytes]) -> set[bytes]:
    """Returns which of the pieces (8 to 48 bytes) are in a file, in one pass over the file."""
    # Imported here: it takes a while, and only this command needs it.
    import numpy as np

    if not path.exists() or path.stat().st_size < _KEY_BYTES:
        return set()
    by_key: dict[int, list[bytes]] = {}
    for piece in pieces:
        by_key.setdefault(int.from_bytes(piece[:_KEY_BYTES], "little"), []).append(piece)
    keys = np.array(list(by_key), dtype="<u8")
    content, found = np.memmap(path, mode="r"), set[bytes]()
    # Blocks overlap by a piece, so that each piece is whole in one of them.
    for block_start in range(0, len(content), _BLOCK_BYTES):
        block = content[block_start : block_start + _BLOCK_BYTES + _PIECE_BYTES].tobytes()
        for shift in range(_KEY_BYTES):
            numbers = np.frombuffer(block, "<u8", (len(block) - shift) // _KEY_BYTES, shift)
            for place in np.flatnonzero(np.isin(numbers, keys)):
                start = int(place) * _KEY_BYTES + shift
                found.update(piece for piece in by_key[int(numbers[place])] if block.startswith(piece, start))
    return found


def _pieces(text: str) -> Iterator[bytes]:
    """Yields the pieces of a text in the forms in which the database may hold it: JSON and UTF-8."""
    for form in {json.dumps(text)[1:-1].encode(), text.encode(errors="replace")}:
        pieces = (form[start : start + _PIECE_BYTES] for start in range(0, len(form), _PIECE_BYTES))
        yield from (piece for piece in pieces if len(piece) >= _KEY_BYTES)


def _pieces_of_others(file: Path, pieces: Collection[bytes], owners: Collection[str]) -> set[bytes]:
    """Returns the pieces that are in rows of others, or in the names of the tables."""
    kept, gone = set[bytes](), set(owners)
    for row in _rows(file) if pieces else ():
        # A user may be called "assistant".
        if gone.isdisjoint(value for column, value in row.items() if column not in {"role", "status"}):
            content = b"\n".join(map(_as_bytes, row.values()))
            kept.update(piece for piece in pieces if piece in content)
    return kept


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yields all rows of all tables, by their columns."""
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in ("sqlite_master", *tables):
            quoted = table.replace('"', '""')
            rows = connection.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608 - a name from the database itself
            columns = [column[0] for column in rows.description]
            yield from (dict(zip(columns, row, strict=True)) for row in rows)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")
