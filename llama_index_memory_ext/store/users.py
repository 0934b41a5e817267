"""Knows whose the sessions of a store are, counts what there is of each, and deletes sessions and users."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import MessageRole
from sqlalchemy import bindparam, delete, exists, func, or_, select, text, update

from llama_index_memory_ext.errors import SessionOwnerError
from llama_index_memory_ext.fact import utc_now
from llama_index_memory_ext.store.calls import UnchangedError, connected, reads, writes_session
from llama_index_memory_ext.store.deletions import Deletions
from llama_index_memory_ext.store.rows import written_at
from llama_index_memory_ext.store.schema import (
    ACTIVE,
    ARCHIVED,
    LAST_ID,
    OF_NOBODY,
    OWN,
    SHARED,
    one_of,
    upsert,
    vectors_namespace,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement
    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.facts import Facts
    from llama_index_memory_ext.store.readers import Readers
    from llama_index_memory_ext.store.rows import Opening
    from llama_index_memory_ext.store.schema import Statement
    from llama_index_memory_ext.text.tool_calls import Json

logger = logging.getLogger(__name__)

# So many turns are deleted by one statement.
_DELETED_TURNS = 200
# As long as a large database may take.
VACUUM_SECONDS = 3600.0
# A server skips a table that one may not vacuum with no more than a notice, which drivers do not hand on.
_MAY_VACUUM = text(
    "SELECT pg_has_role(relowner, 'USAGE') OR (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database "
    "WHERE datname = current_database()) FROM pg_class WHERE oid = to_regclass(:name)"
)


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


class Users:
    """The sessions of users."""

    def __init__(self, database: Database, readers: Readers, facts: Facts) -> None:
        tables = database.tables
        self.database, self._tables = database, tables
        self._readers, self._facts, self._rows = readers, facts, Deletions(database)
        owners = tables.owners
        own = select(owners.c.key).where(owners.c.kind == OF_NOBODY)
        self._own_users = own.where(one_of(owners.c.key, database.backend))
        self._owners = select(owners.c.user_id, owners.c.kind).where(owners.c.key == bindparam("session"))
        others = (owners.c.user_id != bindparam("user"), owners.c.kind != OF_NOBODY)
        self._of_others = select(owners.c.key).where(*others, one_of(owners.c.key, database.backend))
        self._put_owners = upsert(owners, database.backend, "kind")
        # A session's row, a user's, and the id of a message are no rows that the result counts.
        kinds = (
            ("messages", tables.rows.c.key),
            ("cursors", tables.cursors.c.key),
            ("cursors", owners.c.key),
            ("", tables.message_ids.c.key),
            ("", tables.sessions.c.key),
            ("facts", tables.facts.c.namespace),
            ("embeddings", tables.embeddings.c.namespace),
            ("", tables.users.c.namespace),
        )
        self._deletions = [
            (kind, column.name, delete(column.table).where(one_of(column, database.backend))) for kind, column in kinds
        ]

    async def claim_within(
        self, conn: AsyncConnection, key: str, opening: Opening, speakers: Collection[str], readers: Sequence[str]
    ) -> bool:
        """Make a session the user's who opens it, and of the ``speakers`` in it, and register their readers.

        Returns whether it is of several users. A session that was begun without a user becomes that of the first one,
        with its facts. Raises a SessionOwnerError if it is another user's, unless both have opened it as shared.
        """
        if not (opening.shared or self.database.is_new(conn, key, ("claimed", opening, *readers))):
            return False
        owners, user = await self._owners_within(conn, key, opening), opening.user_in(key)
        kind = SHARED if opening.shared else OWN if opening.user_id is not None else owners.get(key, OF_NOBODY)
        new = [{"key": key, "user_id": one, "kind": kind} for one in {user, *speakers} if owners.get(one) != kind]
        if new:
            await conn.execute(self._put_owners, new)
        before = [owner for owner, kind in owners.items() if kind != OF_NOBODY]
        if user != key and owners.get(key) == OF_NOBODY:
            await self._take_over(conn, key, user)
        everyone = {user, *speakers, *before}
        if len(everyone) > 1 >= len(before):
            await self._begin_sharing(conn, key, next(iter(before), user))
        await self._readers.register_within(conn, key, readers)
        return len(everyone) > 1

    async def _owners_within(self, conn: AsyncConnection, key: str, opening: Opening) -> dict[str, str]:
        """How each owner has opened a session; a SessionOwnerError if it is not open to this one."""
        owners = {row.user_id: row.kind for row in await conn.execute(self._owners, {"session": key})}
        user = opening.user_in(key)
        if any(kind in (OWN, OWN if opening.shared else SHARED) for owner, kind in owners.items() if owner != user):
            raise SessionOwnerError(
                f"Session {key!r} holds words of another user, which nobody else is shown; nothing was read or "
                "written. Open a session of its own for each user, or give each memory of this session a user_id and "
                "shared=True if all who talk in it may read everything."
            )
        return owners

    async def _take_over(self, conn: AsyncConnection, key: str, user_id: str) -> None:
        """Give what was learned in a session without a user to its first one."""
        owners, cursors = self._tables.owners, self._tables.cursors
        await conn.execute(delete(owners).where(owners.c.key == key, owners.c.user_id == key))
        for reader, named in await self._readers_of(conn, key, key):
            there = select(cursors.c.reader).where(cursors.c.key == key, cursors.c.reader == named + user_id)
            if (await conn.execute(there)).first() is None:
                this = (cursors.c.key == key, cursors.c.reader == reader)
                await conn.execute(update(cursors).where(*this).values(reader=named + user_id))
        await self._facts.move_within(conn, key, user_id)
        await self._rows.renew_within(conn, key)

    async def _readers_of(self, conn: AsyncConnection, key: str, user_id: str) -> list[tuple[str, str]]:
        """The readers of a user's facts in a session, each with its name up to the user."""
        cursors = self._tables.cursors
        found = (await conn.execute(select(cursors.c.reader).where(cursors.c.key == key))).scalars().all()
        return [(one, one[: -len(user_id)]) for one in found if one.endswith(f" of {user_id}")]

    async def _begin_sharing(self, conn: AsyncConnection, key: str, user_id: str) -> None:
        """Write down who has said what a session of one user holds; readers begin again, to show it."""
        rows = self._tables.rows
        said = (rows.c.key == key, rows.c.role == MessageRole.USER.value, rows.c.user_id.is_(None))
        await conn.execute(update(rows).where(*said).values(user_id=user_id))
        await self._rows.renew_within(conn, key)

    @writes_session
    async def claim(
        self, conn: AsyncConnection, key: str, opening: Opening, *, readers: Sequence[str], epoch: int
    ) -> None:
        """As ``claim_within``, unless rows were deleted since ``epoch``. One of its users is no other than before."""
        if not await self._readers.is_current_within(conn, key, epoch):
            raise UnchangedError
        kinds = {row.user_id: row.kind for row in await conn.execute(self._owners, {"session": key})}
        await self.claim_within(conn, key, opening._replace(shared=kinds.get(opening.user_id) == SHARED), (), readers)

    @reads
    async def check(self, conn: AsyncConnection, key: str, opening: Opening) -> None:
        """Raise a SessionOwnerError if a session is another user's, unless both have opened it as shared."""
        await self._owners_within(conn, key, opening)

    @reads
    async def owners(self, conn: AsyncConnection, key: str) -> list[str]:
        """The users whose session it is; [] for one of no user yet."""
        found = await conn.execute(self._owners, {"session": key})
        return [row.user_id for row in found if row.kind != OF_NOBODY]

    @reads
    async def knows(self, conn: AsyncConnection, key: str) -> bool:
        """Whether the store has ever been given a message of a session."""
        known = (exists().where(table.c.key == key) for table in (self._tables.sessions, self._tables.rows))
        return bool((await conn.execute(select(or_(*known)))).scalar_one())

    @reads
    async def sessions(
        self, conn: AsyncConnection, user_id: str | None = None, session_ids: Collection[str] = ()
    ) -> list[SessionInfo]:
        """As ``MemoryStore.sessions``."""
        rows, owners = self._tables.rows, self._tables.owners
        first, last = func.min(rows.c.timestamp), func.max(rows.c.timestamp)
        sessions = select(rows.c.key, func.count(), first, last).group_by(rows.c.key).order_by(last.desc(), rows.c.key)
        owned = select(owners.c.key, owners.c.user_id).order_by(owners.c.user_id)
        if user_id is not None or session_ids:
            mine = select(owners.c.key).where(owners.c.user_id == user_id)
            sessions = sessions.where(or_(rows.c.key.in_(session_ids), rows.c.key.in_(mine)))
            owned = owned.where(or_(owners.c.key.in_(session_ids), owners.c.key.in_(mine)))
        users: dict[str, list[str]] = {}
        for key, owner in await conn.execute(owned):
            users.setdefault(key, []).append(owner)
        return [
            SessionInfo(key, count, tuple(sorted(users.get(key, ()))), written_at(oldest), written_at(newest))
            for key, count, oldest, newest in await conn.execute(sessions)
        ]

    @reads
    async def all_keys(self, conn: AsyncConnection) -> list[str]:
        """The sessions that have messages."""
        return list((await conn.execute(select(self._tables.rows.c.key).distinct())).scalars())

    @reads
    async def keys(self, conn: AsyncConnection, user_id: str) -> list[str]:
        """The sessions of a user, also those without a message."""
        owners = self._tables.owners
        return list((await conn.execute(select(owners.c.key).where(owners.c.user_id == user_id))).scalars())

    @reads
    async def own_users(self, conn: AsyncConnection, sessions: Sequence[str]) -> list[str]:
        """Those of these sessions that were begun without a user, and are users of themselves."""
        return list((await conn.execute(self._own_users, {"names": sessions})).scalars())

    @reads
    async def facts_of_each(self, conn: AsyncConnection) -> dict[str, int]:
        """How many facts each user has, retired ones too; users without a fact are left out."""
        namespace = self._tables.facts.c.namespace
        found = await conn.execute(select(namespace, func.count()).group_by(namespace))
        return {row[0]: row[1] for row in found}

    @reads
    async def pending(self, conn: AsyncConnection, reader: str) -> list[str]:
        """The sessions with messages, active ones too, that this reader is registered for and has not left behind."""
        rows, cursors = self._tables.rows, self._tables.cursors
        behind = exists().where(rows.c.key == cursors.c.key, rows.c.id > cursors.c.position)
        query = select(cursors.c.key).where(cursors.c.reader == reader, behind)
        return list((await conn.execute(query)).scalars())

    @reads
    async def read_by(self, conn: AsyncConnection, reader: str) -> list[str]:
        """The sessions that this reader is registered for."""
        cursors = self._tables.cursors
        return list((await conn.execute(select(cursors.c.key).where(cursors.c.reader == reader))).scalars())

    @reads
    async def counts(
        self,
        conn: AsyncConnection,
        key: str,
        *,
        record: str,
        extraction: str,
        namespace: str,
        agents: Collection[str] = ("",),
    ) -> dict[str, Json]:
        """Count by indexes, without reading a message; ``record`` and ``extraction`` are the names of readers.

        ``messages`` are all of the session, ``active`` those that are not in the log. The record's reader has left
        ``left`` messages behind, and the facts' reader not yet ``unread`` ones. ``facts`` of these ``agents`` hold now:
        they are not retired, have not expired, and are not past. ``state`` is what the facts' reader has
        stored with its cursor.
        """
        rows, facts, cursors = self._tables.rows, self._tables.facts, self._tables.cursors
        of_session = select(func.count()).where(rows.c.key == key)
        known = select(func.count()).where(facts.c.namespace == namespace, facts.c.agent_id.in_(agents))
        retired_at = facts.c.data["retired_at"].as_string()
        counts = {
            "messages": of_session,
            "active": of_session.where(rows.c.status == ACTIVE),
            "left": of_session.where(rows.c.status == ARCHIVED, rows.c.id <= self._position(key, record)),
            "unread": of_session.where(rows.c.id > self._position(key, extraction)),
            "facts": known.where(retired_at.is_(None), *_holds(facts.c.data, utc_now())),
            "retired": known.where(retired_at.is_not(None)),
            "state": select(cursors.c.state).where(cursors.c.key == key, cursors.c.reader == extraction),
        }
        found = await conn.execute(select(*(count.scalar_subquery().label(name) for name, count in counts.items())))
        return dict(found.mappings().one())

    @reads
    async def count(
        self,
        conn: AsyncConnection,
        key: str,
        *,
        status: str | None = None,
        reader: str = "",
        after: int = 0,
        last: int = LAST_ID,
    ) -> int:
        """The number of messages of a session after the row ``after``, up to ``last``, that a reader has not read.

        With any ``status`` if that is None.
        """
        rows = self._tables.rows
        unread = (rows.c.key == key, rows.c.id > self._position(key, reader), rows.c.id > after, rows.c.id <= last)
        counted = select(func.count()).where(*unread, *([rows.c.status == status] if status else []))
        return (await conn.execute(counted)).scalar_one()

    @connected(lambda part, keys, namespaces=(), *_: part.database.writing(sessions=keys, users=namespaces))
    async def delete(
        self,
        conn: AsyncConnection,
        keys: Sequence[str],
        namespaces: Sequence[str] = (),
        user_id: str | None = None,
    ) -> dict[str, int]:
        """Delete sessions, and the facts of users, in one transaction; returns the number of deleted rows by kind.

        The embeddings of both go with them. Of a session that others own too, only the turns of the ``user_id`` go.
        """
        counts = Counter(messages=0, cursors=0, facts=0, embeddings=0)
        if user_id is not None:
            of_others = set((await conn.execute(self._of_others, {"names": keys, "user": user_id})).scalars())
            for key in of_others:
                await self._leave_within(conn, key, user_id, counts)
            keys = [key for key in keys if key not in of_others]
        for kind, column, deletion in self._deletions:
            names = keys if column == "key" else namespaces
            if kind == "embeddings":
                names = [*namespaces, *map(vectors_namespace, keys)]
            if names:
                counts[kind] += (await conn.execute(deletion, {"names": names})).rowcount
        del counts[""]
        return dict(counts)

    async def _leave_within(self, conn: AsyncConnection, key: str, user_id: str, counts: Counter[str]) -> None:
        """Delete what a user has said, with the answers, from a session that others own."""
        owner = (self._tables.owners.c.key == key, self._tables.owners.c.user_id == user_id)
        if was_owner := (await conn.execute(delete(self._tables.owners).where(*owner))).rowcount:
            counts["cursors"] += was_owner
            rows = self._tables.rows
            asked = select(rows.c.id, rows.c.user_id).where(rows.c.key == key, rows.c.role == MessageRole.USER.value)
            found = [(one.id, one.user_id or user_id) for one in await conn.execute(asked.order_by(rows.c.id))]
            ends = [*(row_id for row_id, _ in found[1:]), LAST_ID]
            turns = [
                (rows.c.id >= first) & (rows.c.id < end)
                for (first, who), end in zip(found, ends, strict=True)
                if who == user_id
            ]
            for start in range(0, len(turns), _DELETED_TURNS):
                gone = or_(*turns[start : start + _DELETED_TURNS])
                counts["messages"] += await self._rows.delete_within(conn, key, gone)
        for reader, _ in await self._readers_of(conn, key, user_id):
            cursor = (self._tables.cursors.c.key == key, self._tables.cursors.c.reader == reader)
            counts["cursors"] += (await conn.execute(delete(self._tables.cursors).where(*cursor))).rowcount

    @connected(lambda part: part.database.connection(writes=True), seconds=VACUUM_SECONDS)
    async def vacuum(self, conn: AsyncConnection) -> bool:
        """Vacuum the file or, on a server, the tables; False, and a warning in the log, if something is left."""
        await conn.execution_options(isolation_level="AUTOCOMMIT")
        if self.database.backend != "sqlite":
            await conn.exec_driver_sql("SET statement_timeout = 0")
            try:
                return await self._vacuum_on_server(conn)
            finally:
                # Nobody else may get a connection with this setting.
                await conn.invalidate()
        await conn.exec_driver_sql("VACUUM")
        # What was deleted may still be in the write-ahead log, if there is one.
        busy = (await conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")).scalar()
        if busy:
            logger.warning(
                "The write-ahead log of the database could not be emptied, because another connection is reading: what "
                "was deleted may be in it until `await store.vacuum()` is called once more, or the last connection is "
                "closed."
            )
        return not busy

    async def _vacuum_on_server(self, conn: AsyncConnection) -> bool:
        forbidden = []
        for table in self.database.tables.rows.metadata.sorted_tables:
            name = conn.dialect.identifier_preparer.format_table(table)
            if (await conn.execute(_MAY_VACUUM, {"name": name})).scalar():
                await conn.exec_driver_sql(f"VACUUM {name}")
            else:
                forbidden.append(name)
        if forbidden:
            logger.warning(
                "This database user may not vacuum %s: what was deleted stays in the files of the server until its "
                "owner or autovacuum does.",
                ", ".join(forbidden),
            )
        return not forbidden

    def _position(self, key: str, reader: str) -> Statement:
        cursors = self._tables.cursors
        query = select(cursors.c.position).where(cursors.c.key == key, cursors.c.reader == reader)
        return func.coalesce(query.scalar_subquery(), 0)


def _holds(fact: ColumnElement[Any], now: datetime) -> tuple[Statement, ...]:
    """What is true of the JSON of a fact that has neither expired nor ended, to the second."""
    expires_at, valid_until = fact["expires_at"].as_string(), fact["valid_until"].as_string()
    return (
        or_(expires_at.is_(None), func.substr(expires_at, 1, 19) > f"{now:%Y-%m-%dT%H:%M:%S}"),
        or_(valid_until.is_(None), valid_until >= f"{now:%Y-%m-%d}"),
    )
