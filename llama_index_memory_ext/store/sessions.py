"""Knows whose the sessions of a store are, and counts what there is of each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import MessageRole
from sqlalchemy import bindparam, delete, exists, func, or_, select, update

from llama_index_memory_ext.errors import SessionOwnerError
from llama_index_memory_ext.fact import utc_now
from llama_index_memory_ext.store.rows import written_at
from llama_index_memory_ext.store.runner import reads, writes_session
from llama_index_memory_ext.store.tables import (
    ACTIVE,
    ARCHIVED,
    LAST_ID,
    OF_NOBODY,
    OWN,
    SHARED,
    one_of,
    upsert,
)
from llama_index_memory_ext.store.transaction import Locked, UnchangedError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement, Connection

    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.store.facts import Facts
    from llama_index_memory_ext.store.rows import Opening
    from llama_index_memory_ext.store.runner import Database
    from llama_index_memory_ext.store.tables import Statement
    from llama_index_memory_ext.text.tool_calls import Json


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
        self._readers, self._facts = readers, facts
        owners = tables.owners
        own = select(owners.c.key).where(owners.c.kind == OF_NOBODY)
        self._own_users = own.where(one_of(owners.c.key, database.backend))
        self._owners = select(owners.c.user_id, owners.c.kind).where(owners.c.key == bindparam("session"))
        self._put_owners = upsert(owners, database.backend, "kind")

    def claim_within(
        self, conn: Connection, key: str, opening: Opening, speakers: Collection[str], readers: Sequence[str]
    ) -> bool:
        """Make a session the user's who opens it, and of the ``speakers`` in it, and register their readers.

        Returns whether it is of several users. A session that was begun without a user becomes that of the first one,
        with its facts. Raises a SessionOwnerError if it is another user's, unless both have opened it as shared.
        """
        if not (opening.shared or Locked.by(conn).is_new(key, ("claimed", opening, *readers))):
            return False
        owners, user = self._owners_within(conn, key, opening), opening.user_in(key)
        kind = SHARED if opening.shared else OWN if opening.user_id is not None else owners.get(key, OF_NOBODY)
        new = [{"key": key, "user_id": one, "kind": kind} for one in {user, *speakers} if owners.get(one) != kind]
        if new:
            conn.execute(self._put_owners, new)
        before = [owner for owner, kind in owners.items() if kind != OF_NOBODY]
        if user != key and owners.get(key) == OF_NOBODY:
            self._take_over(conn, key, user)
        everyone = {user, *speakers, *before}
        if len(everyone) > 1 >= len(before):
            self._begin_sharing(conn, key, next(iter(before), user))
        self._readers.register_within(conn, key, readers)
        return len(everyone) > 1

    def _owners_within(self, conn: Connection, key: str, opening: Opening) -> dict[str, str]:
        """How each owner has opened a session; a SessionOwnerError if it is not open to this one."""
        owners = {row.user_id: row.kind for row in conn.execute(self._owners, {"session": key})}
        user = opening.user_in(key)
        if any(kind in (OWN, OWN if opening.shared else SHARED) for owner, kind in owners.items() if owner != user):
            raise SessionOwnerError(
                f"Session {key!r} holds words of another user, which nobody else is shown; nothing was read or "
                "written. Open a session of its own for each user, or give each memory of this session a user_id and "
                "shared=True if all who talk in it may read everything."
            )
        return owners

    def _take_over(self, conn: Connection, key: str, user_id: str) -> None:
        """Give what was learned in a session without a user to its first one."""
        owners, cursors = self._tables.owners, self._tables.cursors
        conn.execute(delete(owners).where(owners.c.key == key, owners.c.user_id == key))
        for reader, named in self.readers_of(conn, key, key):
            there = select(cursors.c.reader).where(cursors.c.key == key, cursors.c.reader == named + user_id)
            if conn.execute(there).first() is None:
                this = (cursors.c.key == key, cursors.c.reader == reader)
                conn.execute(update(cursors).where(*this).values(reader=named + user_id))
        self._facts.move_within(conn, key, user_id)
        self.renew_within(conn, key)

    def renew_within(self, conn: Connection, key: str) -> None:
        """Let all who know a session read it anew: another epoch tells them."""
        sessions = self._tables.sessions
        conn.execute(update(sessions).where(sessions.c.key == key).values(epoch=time.time_ns()))
        Locked.by(conn).epochs.pop(key, None)

    def readers_of(self, conn: Connection, key: str, user_id: str) -> list[tuple[str, str]]:
        """The readers of a user's facts in a session, each with its name up to the user."""
        cursors = self._tables.cursors
        found = conn.execute(select(cursors.c.reader).where(cursors.c.key == key)).scalars().all()
        return [(one, one[: -len(user_id)]) for one in found if one.endswith(f" of {user_id}")]

    def _begin_sharing(self, conn: Connection, key: str, user_id: str) -> None:
        """Write down who has said what a session of one user holds; readers begin again, to show it."""
        rows = self._tables.rows
        said = (rows.c.key == key, rows.c.role == MessageRole.USER.value, rows.c.user_id.is_(None))
        conn.execute(update(rows).where(*said).values(user_id=user_id))
        self.renew_within(conn, key)

    @writes_session
    def claim(self, conn: Connection, key: str, opening: Opening, *, readers: Sequence[str], epoch: int) -> None:
        """As ``claim_within``, unless rows were deleted since ``epoch``. One of its users is no other than before."""
        if not self._readers.is_current_within(conn, key, epoch):
            raise UnchangedError
        kinds = {row.user_id: row.kind for row in conn.execute(self._owners, {"session": key})}
        self.claim_within(conn, key, opening._replace(shared=kinds.get(opening.user_id) == SHARED), (), readers)

    @reads
    def check(self, conn: Connection, key: str, opening: Opening) -> None:
        """Raise a SessionOwnerError if a session is another user's, unless both have opened it as shared."""
        self._owners_within(conn, key, opening)

    @reads
    def owners(self, conn: Connection, key: str) -> list[str]:
        """The users whose session it is; [] for one of no user yet."""
        found = conn.execute(self._owners, {"session": key})
        return [row.user_id for row in found if row.kind != OF_NOBODY]

    @reads
    def knows(self, conn: Connection, key: str) -> bool:
        """Whether the store has ever been given a message of a session."""
        known = (exists().where(table.c.key == key) for table in (self._tables.sessions, self._tables.rows))
        return bool(conn.execute(select(or_(*known))).scalar_one())

    @reads
    def sessions(
        self, conn: Connection, user_id: str | None = None, session_ids: Collection[str] = ()
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
        for key, owner in conn.execute(owned):
            users.setdefault(key, []).append(owner)
        return [
            SessionInfo(key, count, tuple(sorted(users.get(key, ()))), written_at(oldest), written_at(newest))
            for key, count, oldest, newest in conn.execute(sessions)
        ]

    @reads
    def all_keys(self, conn: Connection) -> list[str]:
        """The sessions that have messages."""
        return list(conn.execute(select(self._tables.rows.c.key).distinct()).scalars())

    @reads
    def keys(self, conn: Connection, user_id: str) -> list[str]:
        """The sessions of a user, also those without a message."""
        owners = self._tables.owners
        return list(conn.execute(select(owners.c.key).where(owners.c.user_id == user_id)).scalars())

    @reads
    def own_users(self, conn: Connection, sessions: Sequence[str]) -> list[str]:
        """Those of these sessions that were begun without a user, and are users of themselves."""
        return list(conn.execute(self._own_users, {"names": sessions}).scalars())

    @reads
    def facts_of_each(self, conn: Connection) -> dict[str, int]:
        """How many facts each user has, retired ones too; users without a fact are left out."""
        namespace = self._tables.facts.c.namespace
        found = conn.execute(select(namespace, func.count()).group_by(namespace))
        return {row[0]: row[1] for row in found}

    @reads
    def pending(self, conn: Connection, reader: str) -> list[str]:
        """The sessions with messages, active ones too, that this reader is registered for and has not left behind."""
        rows, cursors = self._tables.rows, self._tables.cursors
        behind = exists().where(rows.c.key == cursors.c.key, rows.c.id > cursors.c.position)
        query = select(cursors.c.key).where(cursors.c.reader == reader, behind)
        return list(conn.execute(query).scalars())

    @reads
    def read_by(self, conn: Connection, reader: str) -> list[str]:
        """The sessions that this reader is registered for."""
        cursors = self._tables.cursors
        return list(conn.execute(select(cursors.c.key).where(cursors.c.reader == reader)).scalars())

    @reads
    def counts(
        self,
        conn: Connection,
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
        found = conn.execute(select(*(count.scalar_subquery().label(name) for name, count in counts.items())))
        return dict(found.mappings().one())

    @reads
    def count(
        self,
        conn: Connection,
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
        return conn.execute(counted).scalar_one()

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
