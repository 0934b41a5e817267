"""Keeps the owners of each session, counts messages and facts, and copies a session."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import MessageRole
from sqlalchemy import (
    Connection,
    bindparam,
    delete,
    insert,
    literal,
    select,
    update,
)

from llama_index_memory_ext.errors import SessionOwnerError, StoreError
from llama_index_memory_ext.store.runner import Database, reads, writes_session
from llama_index_memory_ext.store.tables import (
    ARCHIVED,
    DONE,
    EPOCHS,
    OF_NOBODY,
    OWN,
    ROWS,
    SHARED,
    SessionAccess,
    Statement,
    Tables,
    exists_within,
    namespace_of_session,
    one_of,
    upsert,
)
from llama_index_memory_ext.text.messages import (
    ID_KEY,
    message_id_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.store.facts import Facts


class Owners:
    """The owners of the sessions. Methods named ``..._within`` work in a transaction that has locked the session."""

    def __init__(self, database: Database, readers: Readers, facts: Facts) -> None:
        self.database = database
        self._tables = database.tables
        self._readers = readers
        self._facts = facts
        owners = self._tables.owners
        self._select_owners = select(owners.c.user_id, owners.c.kind).where(
            owners.c.key == bindparam("session")
        )
        self._put_owners = upsert(owners, database.backend, "kind")

    # ---- owners ----

    def claim_within(
        self,
        conn: Connection,
        key: str,
        access: SessionAccess,
        speakers: Collection[str],
        readers: Sequence[str],
    ) -> bool:
        """Make the user who opens a session, and its ``speakers``, its owners, and register their readers.

        Return whether the session has several users. A session without a user becomes
        the session of its first user, with its facts.

        Raises:
            SessionOwnerError: Another user owns it, and not both have opened it as
                shared.
        """
        epoch = conn.info[EPOCHS].get(key)
        if not access.shared:
            # A claim that this process has stored in this epoch is still true.
            claim = (key, epoch, access, *readers)
            if epoch is not None and claim in self.database.done:
                return False
            conn.info[DONE].append(claim)
        kinds = self.owners_within(conn, key, access)
        user_id = access.user_in(key)
        kind = access.kind or kinds.get(key, OF_NOBODY)
        users = {user_id, *speakers}
        self._store_owners(conn, key, users, kinds, kind)
        if kinds.get(namespace_of_session(key)) == OF_NOBODY:
            self._take_over(conn, key, user_id)
        earlier = [owner for owner in kinds if kinds[owner] != OF_NOBODY]
        users.update(earlier)
        has_several = len(users) > 1
        if has_several and len(earlier) <= 1:
            self._name_speaker(conn, key, next(iter(earlier), user_id))
        self._readers.register_within(conn, key, readers)
        return has_several

    def owners_within(
        self, conn: Connection, key: str, access: SessionAccess
    ) -> dict[str, str]:
        """Return how each owner has opened a session.

        Raises:
            SessionOwnerError: Another user owns it, and not both have opened it as
                shared.
        """
        kinds = self._kinds_within(conn, key)
        closed = {OWN} if access.shared else {OWN, SHARED}
        user_id = access.user_in(key)
        for owner, kind in kinds.items():
            if owner != user_id and kind in closed:
                raise SessionOwnerError(
                    f"Session {key!r} holds words of another user, and is not shared; nothing was read or written. "
                    "Open another session for this user, or give each memory of this session a user_id and "
                    "shared=True if all its users may read everything."
                )
        return kinds

    check = reads(owners_within)

    def _kinds_within(self, conn: Connection, key: str) -> dict[str, str]:
        """Return how each owner has opened a session, for any user."""
        result = conn.execute(self._select_owners, {"session": key})
        return {row.user_id: row.kind for row in result}

    def _store_owners(
        self,
        conn: Connection,
        key: str,
        users: Collection[str],
        kinds: Mapping[str, str],
        kind: str,
    ) -> None:
        """Store how users have opened a session, where that is not stored yet."""
        owners = [
            {"key": key, "user_id": user_id, "kind": kind}
            for user_id in users
            if kinds.get(user_id) != kind
        ]
        if owners:
            conn.execute(self._put_owners, owners)

    def _name_speaker(self, conn: Connection, key: str, user_id: str) -> None:
        """Write a user beside the messages that name no speaker; readers begin again to show the name."""
        rows = self._tables.rows
        unnamed = (
            rows.c.key == key,
            rows.c.role == MessageRole.USER.value,
            rows.c.user_id.is_(None),
        )
        conn.execute(update(rows).where(*unnamed).values(user_id=user_id))
        self._readers.renew_within(conn, key)

    def _take_over(self, conn: Connection, key: str, user_id: str) -> None:
        """Give the facts and cursors of a session without a user to its first user."""
        namespace = namespace_of_session(key)
        if user_id == namespace:
            return
        owners = self._tables.owners
        facts = self._tables.facts
        conn.execute(
            delete(owners).where(owners.c.key == key, owners.c.user_id == namespace)
        )
        for reader in self._readers.facts_readers_within(conn, key, namespace):
            new_name = reader.removesuffix(namespace) + user_id
            self._rename_reader(conn, key, reader, new_name)
        self._facts.move_within(conn, namespace, user_id)
        conn.execute(
            update(facts).where(facts.c.said_by == namespace).values(said_by=user_id)
        )
        self._readers.renew_within(conn, key)

    def _rename_reader(
        self, conn: Connection, key: str, reader: str, new_name: str
    ) -> None:
        """Rename a reader of a session, unless another reader has the new name."""
        cursors = self._tables.cursors
        of_session = cursors.c.key == key
        has_name = select(cursors.c.reader).where(
            of_session, cursors.c.reader == new_name
        )
        if conn.execute(has_name).first() is None:
            statement = update(cursors).where(of_session, cursors.c.reader == reader)
            conn.execute(statement.values(reader=new_name))

    @writes_session
    def claim(
        self,
        conn: Connection,
        key: str,
        access: SessionAccess,
        *,
        readers: Sequence[str],
        epoch: int,
    ) -> None:
        """As ``claim_within``, unless rows were deleted since ``epoch``; an owner stays as shared as before."""
        if not self._readers.is_current_within(conn, key, epoch):
            conn.rollback()
            return
        kinds = self._kinds_within(conn, key)
        is_shared = kinds.get(access.user_id or "") == SHARED
        self.claim_within(conn, key, access._replace(shared=is_shared), (), readers)

    @reads
    def users_of_session(self, conn: Connection, key: str) -> list[str]:
        """Return the users who own a session; [] for a session without a user."""
        kinds = self._kinds_within(conn, key)
        return [owner for owner in kinds if kinds[owner] != OF_NOBODY]

    @reads
    def sessions_of_user(self, conn: Connection, user_id: str) -> list[str]:
        """Return the sessions of a user, also those without a message."""
        owners = self._tables.owners
        query = select(owners.c.key).where(owners.c.user_id == user_id)
        return list(conn.scalars(query))

    @reads
    def anonymous_namespaces(
        self, conn: Connection, sessions: Sequence[str]
    ) -> list[str]:
        """Return the namespaces of the given sessions that were begun without a user."""
        owners = self._tables.owners
        query = select(owners.c.user_id).where(
            owners.c.kind == OF_NOBODY, one_of(owners.c.key, self.database.backend)
        )
        return list(conn.scalars(query, {"names": sessions}))

    # ---- copies ----

    @writes_session
    def branch(
        self,
        conn: Connection,
        key: str,
        new: str,
        access: SessionAccess,
        end: str | int | None,
        *,
        with_end: bool,
    ) -> None:
        """Copy a session into a new one, up to the message with the id ``end``, and ``with_end`` that too; None: all.

        The copy has the same owners and is all log. Each reader's cursor is at the
        corresponding row. The stored state of single rows is not copied.
        ``CondensedMemory.abranch`` lists the errors.
        """
        tables = self._tables
        rows = tables.rows
        self.database.lock(conn, [new], ())
        self.owners_within(conn, key, access)
        if exists_within(conn, new, rows, tables.owners):
            raise StoreError(
                f"Expected a new session; {new!r} was used before. Nothing was copied. Name another one."
            )
        copied = [rows.c.key == key]
        if end is not None:
            last = _row_of_message(conn, tables, key, end)
            copied.append(rows.c.id <= last if with_end else rows.c.id < last)
        row_ids = _copy_rows(conn, tables, new, copied)
        if not row_ids:
            conn.rollback()
            return
        _copy_message_ids(conn, tables, key, new, row_ids)
        owners = tables.owners
        copied_owners = select(literal(new), *owners.c["user_id", "kind"]).where(
            owners.c.key == key, owners.c.kind != OF_NOBODY
        )
        conn.execute(
            insert(owners).from_select(["key", "user_id", "kind"], copied_owners)
        )
        _copy_cursors(conn, tables, key, new, row_ids)


def _row_of_message(
    conn: Connection, tables: Tables, key: str, message_id: str | int
) -> int:
    """Return the row of a message of a session; a StoreError if no message has this id."""
    rows = tables.rows
    ids = tables.message_ids
    query = select(rows.c.id).where(
        rows.c.key == key,
        ids.c.key == key,
        ids.c.message_id == message_id_of({ID_KEY: message_id}),
        rows.c.id == ids.c.row_id,
    )
    row_id: int | None = conn.execute(query).scalar()
    if row_id is None:
        raise StoreError(
            f"Expected the message_id of a message of {key!r}; saw {message_id!r}. Nothing was copied."
        )
    return row_id


def _copy_rows(
    conn: Connection, tables: Tables, new: str, copied: Sequence[Statement]
) -> dict[int, int]:
    """Copy rows into the log of a new session; return the id of each copy by the id of its row, in their order."""
    rows = tables.rows
    old_ids = conn.scalars(select(rows.c.id).where(*copied).order_by(rows.c.id)).all()
    if not old_ids:
        return {}
    same = ("timestamp", "role", "data", "user_id")
    copies = (
        select(literal(new), literal(ARCHIVED), *rows.c[same])
        .where(*copied)
        .order_by(rows.c.id)
    )
    conn.execute(insert(rows).from_select(["key", "status", *same], copies))
    new_ids = conn.scalars(
        select(rows.c.id).where(rows.c.key == new).order_by(rows.c.id)
    )
    return dict(zip(old_ids, new_ids, strict=True))


def _copy_message_ids(
    conn: Connection, tables: Tables, key: str, new: str, row_ids: Mapping[int, int]
) -> None:
    ids = tables.message_ids
    query = select(ids.c.message_id, ids.c.row_id).where(ids.c.key == key)
    copies = [
        {"key": new, "message_id": row.message_id, "row_id": row_ids[row.row_id]}
        for row in conn.execute(query).all()
        if row.row_id in row_ids
    ]
    if copies:
        conn.execute(insert(ids), copies)


def _copy_cursors(
    conn: Connection, tables: Tables, key: str, new: str, row_ids: Mapping[int, int]
) -> None:
    """Copy the cursors of a session to the copies of their rows."""
    cursors = tables.cursors
    old_ids = list(row_ids)
    positions = [0, *row_ids.values()]
    query = select(*cursors.c["reader", "position", "state"]).where(
        cursors.c.key == key
    )
    for cursor in conn.execute(query).all():
        position = positions[bisect_right(old_ids, cursor.position)]
        state = cursor.state
        if state is not None and ROWS in state:
            state = None
        if state and cursor.position > old_ids[-1]:
            # The state covers messages that are not in the copy.
            position = 0
            state = None
        conn.execute(
            insert(cursors).values(
                key=new, reader=cursor.reader, position=position, state=state
            )
        )
