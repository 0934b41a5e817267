"""Knows whose the sessions of a store are, who reads them, and how much there is of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, exists, func, or_, select

from llama_index_memory_ext.store.database import shielded
from llama_index_memory_ext.store.readers import written_at
from llama_index_memory_ext.store.schema import ACTIVE, ARCHIVED, upsert

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.readers import Readers


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What is known of a session without reading its messages.

    ``messages`` counts all of them, active ones and the log. ``user_ids`` are the users who have written to it,
    sorted: the session's own id where a memory had no ``user_id``, and none where only a plain ``Memory`` has written.
    ``first_at`` and ``last_at`` are when its oldest and its newest message were written (UTC); None if unknown.
    """

    session_id: str
    messages: int
    user_ids: tuple[str, ...]
    first_at: datetime | None
    last_at: datetime | None


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is of a session and of its user's facts; 0 of each where nothing is known.

    ``messages`` are all rows, ``active`` those that are not in the log. The record's reader has left ``left`` rows
    behind, and the facts' reader not yet ``unread`` ones. ``facts`` are not retired.
    """

    messages: int
    active: int
    left: int
    unread: int
    facts: int
    retired: int


class Users:
    """The sessions of users, within the transactions of a database."""

    def __init__(self, database: Database, readers: Readers) -> None:
        self._database, self._readers, self._tables = database, readers, database.tables
        rows, cursors = self._tables.rows, self._tables.cursors
        self._add_owner = upsert(self._tables.owners, database.backend).on_conflict_do_nothing()
        self._add_reader = upsert(cursors, database.backend).on_conflict_do_nothing()
        behind = exists().where(rows.c.key == cursors.c.key, rows.c.id > cursors.c.position)
        self._pending = select(cursors.c.key).where(cursors.c.reader == bindparam("by"), behind)

    @shielded
    async def knows(self, key: str) -> bool:
        """Whether the store has ever been given a message of a session."""
        tables = self._tables
        async with self._database.reading() as connection:
            for table in (tables.sessions, tables.rows):
                if (await connection.execute(select(table.c.key).where(table.c.key == key).limit(1))).first():
                    return True
        return False

    @shielded
    async def sessions(self, user_id: str | None = None, session_ids: Collection[str] = ()) -> list[SessionInfo]:
        """The sessions that have messages, the one that was written to last first; [] if there is none.

        With a ``user_id``, only those of this user, and those of the ``session_ids``.
        """
        rows, owners = self._tables.rows, self._tables.owners
        first, last = func.min(rows.c.timestamp), func.max(rows.c.timestamp)
        sessions = select(rows.c.key, func.count(), first, last).group_by(rows.c.key).order_by(last.desc(), rows.c.key)
        owned = select(owners.c.key, owners.c.user_id)
        if user_id is not None or session_ids:
            chosen: list[Any] = [session_ids] if user_id is None else [session_ids, self.keys_of(user_id)]
            sessions = sessions.where(or_(*(rows.c.key.in_(keys) for keys in chosen)))
            owned = owned.where(or_(*(owners.c.key.in_(keys) for keys in chosen)))
        users: dict[str, list[str]] = {}
        async with self._database.reading() as connection:
            for key, owner in await connection.execute(owned):
                users.setdefault(key, []).append(owner)
            found = (await connection.execute(sessions)).all()
        return [
            SessionInfo(key, count, tuple(sorted(users.get(key, ()))), written_at(oldest), written_at(newest))
            for key, count, oldest, newest in found
        ]

    def keys_of(self, user_id: str) -> Any:
        """The query for the sessions of a user."""
        return select(self._tables.owners.c.key).where(self._tables.owners.c.user_id == user_id)

    @shielded
    async def register(
        self, key: str, *, owners: Sequence[str] = (), readers: Sequence[str] = (), epoch: int | None = None
    ) -> bool:
        """Note users whose session it is, and readers that ``pending`` finds it by.

        False, and nothing is noted, if an ``epoch`` is given and rows were deleted since.
        """
        async with self._database.writing(sessions=[key]) as connection:
            same = epoch is None or await self._readers.is_same_log(connection, key, epoch)
            if same:
                await self.add(connection, key, owners, readers)
            else:
                await connection.rollback()
        return same

    async def add(self, connection: AsyncConnection, key: str, owners: Sequence[str], readers: Sequence[str]) -> None:
        """As ``register``, within a transaction that has locked the session."""
        if owners:
            await connection.execute(self._add_owner, [{"key": key, "user_id": user_id} for user_id in owners])
        if readers:
            begin = [{"key": key, "reader": reader, "position": 0, "state": None} for reader in readers]
            await connection.execute(self._add_reader, begin)

    @shielded
    async def pending(self, reader: str) -> list[str]:
        """The sessions with messages, active ones too, that this reader is registered for and has not left behind."""
        async with self._database.reading() as connection:
            return list((await connection.execute(self._pending, {"by": reader})).scalars())

    @shielded
    async def counts(self, key: str, *, record: str, extraction: str, namespace: str) -> Counts:
        """Count by indexes; no message is read.

        Args:
            key: The session.
            record: The reader of the record.
            extraction: The reader of the facts.
            namespace: Whose facts are counted.
        """
        rows, facts = self._tables.rows, self._tables.facts
        of_session, in_log = rows.c.key == key, rows.c.status == ARCHIVED
        known, retired_at = facts.c.namespace == namespace, facts.c.data["retired_at"].as_string()
        conditions = (
            (of_session,),
            (of_session, rows.c.status == ACTIVE),
            (of_session, in_log, rows.c.id <= self._position(key, record)),
            (of_session, rows.c.id > self._position(key, extraction)),
            (known, retired_at.is_(None)),
            (known, retired_at.is_not(None)),
        )
        return Counts(*await self._count(*conditions))

    async def count_unread(self, key: str, reader: str) -> int:
        """The number of messages of a session, active ones too, that this reader has not left behind."""
        rows = self._tables.rows
        (count,) = await self._count((rows.c.key == key, rows.c.id > self._position(key, reader)))
        return count

    async def count_between(self, key: str, after: int, last: int) -> int:
        """The number of rows of the log of a session after the row ``after``, up to the row ``last``."""
        rows = self._tables.rows
        between = (rows.c.key == key, rows.c.status == ARCHIVED, rows.c.id > after, rows.c.id <= last)
        (count,) = await self._count(between)
        return count

    @shielded
    async def _count(self, *conditions: Sequence[Any]) -> Sequence[int]:
        counts = (select(func.count()).where(*condition).scalar_subquery() for condition in conditions)
        async with self._database.reading() as connection:
            return tuple((await connection.execute(select(*counts))).one())

    def _position(self, key: str, reader: str) -> Any:
        cursors = self._tables.cursors
        query = select(cursors.c.position).where(cursors.c.key == key, cursors.c.reader == reader)
        return func.coalesce(query.scalar_subquery(), 0)
