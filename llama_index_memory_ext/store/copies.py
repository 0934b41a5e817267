"""Copies a session, up to a message, into a new session."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.database import Database, writes_session
from llama_index_memory_ext.store.tables import LAST_ID, ROWS, SessionAccess
from llama_index_memory_ext.text.messages import ID_KEY, message_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from llama_index_memory_ext.store.log import Readers
    from llama_index_memory_ext.store.owners import Owners

_IS_USED = """
SELECT EXISTS (SELECT 1 FROM {rows} WHERE key = :new) OR EXISTS (SELECT 1 FROM {owners} WHERE key = :new)
"""
_SELECT_ROW_OF_MESSAGE = """
SELECT rows.id FROM {message_ids} AS ids JOIN {rows} AS rows ON rows.key = :key AND rows.id = ids.row_id
WHERE ids.key = :key AND ids.message_id = :message_id
"""
_SELECT_IDS = "SELECT id FROM {rows} WHERE key = :key AND id <= :last ORDER BY id"
_COPY_ROWS = """
INSERT INTO {rows} (key, status, timestamp, role, data, user_id)
SELECT :new, 'archived', timestamp, role, data, user_id FROM {rows}
WHERE key = :key AND id <= :last ORDER BY id
"""
_SELECT_MESSAGE_IDS = "SELECT message_id, row_id FROM {message_ids} WHERE key = :key"
_INSERT_MESSAGE_ID = """
INSERT INTO {message_ids} (key, message_id, row_id) VALUES (:key, :message_id, :row_id)
"""
_COPY_OWNERS = """
INSERT INTO {owners} (key, user_id, kind)
SELECT :new, user_id, kind FROM {owners} WHERE key = :key AND kind <> 'nobody'
"""
_SELECT_CURSORS = "SELECT reader, position, state FROM {cursors} WHERE key = :key"


class Copies:
    """Copies of sessions."""

    def __init__(self, database: Database, readers: Readers, owners: Owners) -> None:
        self.database = database
        self._sql = database.tables.sql
        self._readers = readers
        self._owners = owners

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
        self.database.lock(conn, [new], ())
        self._owners.owners_within(conn, key, access)
        if conn.execute(self._sql(_IS_USED), {"new": new}).scalar():
            raise StoreError(
                f"Expected a new session; {new!r} was used before. Nothing was copied. Name another one."
            )
        last = LAST_ID
        if end is not None:
            last = self._row_of_message(conn, key, end)
            if not with_end:
                last -= 1
        row_ids = self._copy_rows(conn, key, new, last)
        if not row_ids:
            conn.rollback()
            return
        self._copy_message_ids(conn, key, new, row_ids)
        conn.execute(self._sql(_COPY_OWNERS), {"key": key, "new": new})
        self._copy_cursors(conn, key, new, row_ids)

    def _row_of_message(self, conn: Connection, key: str, message_id: str | int) -> int:
        """Return the row of a message of a session; a StoreError if no message has this id."""
        parameters = {"key": key, "message_id": message_id_of({ID_KEY: message_id})}
        query = self._sql(_SELECT_ROW_OF_MESSAGE)
        row_id: int | None = conn.execute(query, parameters).scalar()
        if row_id is None:
            raise StoreError(
                f"Expected the message_id of a message of {key!r}; saw {message_id!r}. Nothing was copied."
            )
        return row_id

    def _copy_rows(
        self, conn: Connection, key: str, new: str, last: int
    ) -> dict[int, int]:
        """Copy rows into the log of a new session; return the id of each copy by the id of its row, in their order."""
        copied = {"key": key, "new": new, "last": last}
        query = self._sql(_SELECT_IDS)
        old_ids = conn.scalars(query, {"key": key, "last": last}).all()
        conn.execute(self._sql(_COPY_ROWS), copied)
        new_ids = conn.scalars(query, {"key": new, "last": LAST_ID})
        return dict(zip(old_ids, new_ids, strict=True))

    def _copy_message_ids(
        self, conn: Connection, key: str, new: str, row_ids: Mapping[int, int]
    ) -> None:
        copies = [
            {"key": new, "message_id": row.message_id, "row_id": row_ids[row.row_id]}
            for row in conn.execute(self._sql(_SELECT_MESSAGE_IDS), {"key": key})
            if row.row_id in row_ids
        ]
        if copies:
            conn.execute(self._sql(_INSERT_MESSAGE_ID), copies)

    def _copy_cursors(
        self, conn: Connection, key: str, new: str, row_ids: Mapping[int, int]
    ) -> None:
        """Copy the cursors of a session to the copies of their rows."""
        old_ids = list(row_ids)
        positions = [0, *row_ids.values()]
        for cursor in conn.execute(self._sql(_SELECT_CURSORS), {"key": key}).all():
            position = positions[bisect_right(old_ids, cursor.position)]
            state = cursor.state
            if state is not None and ROWS in state:
                state = None
            if state and cursor.position > old_ids[-1]:
                # The state covers messages that are not in the copy.
                position = 0
                state = None
            self._readers.put_cursor_within(conn, new, cursor.reader, position, state)
