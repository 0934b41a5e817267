"""Reads the rows of sessions, and keeps the cursors of readers."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.rows import (
    ALL_STATUSES,
    NOTHING_SEEN,
    FactsVersion,
    LogPage,
    LogRow,
    ReadPosition,
    SessionAccess,
    Snapshot,
    readable,
)
from llama_index_memory_ext.store.tables import ARCHIVED, LAST_ID, OWN, SHARED
from llama_index_memory_ext.store.transaction import StorePart, Transaction, door
from llama_index_memory_ext.text.messages import Json, message_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence


logger = logging.getLogger(__name__)

_SELECT_ROWS = """
SELECT key, id, role, data, timestamp, status, user_id FROM {rows}
WHERE key = :key AND status IN :statuses AND id > :after
ORDER BY id LIMIT :limit OFFSET :offset
"""
_SELECT_ROWS_BY_ID = """
SELECT COALESCE(sessions.epoch, 0) AS epoch,
       message.key, message.id, message.role, message.data, message.timestamp, message.status, message.user_id
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {rows} AS message ON message.key = :key AND message.id {in_row_ids}
ORDER BY message.id
"""
_SELECT_ROWS_BY_MESSAGE_ID = """
SELECT ids.message_id, rows.key, rows.id, rows.role, rows.data, rows.timestamp, rows.status, rows.user_id
FROM {message_ids} AS ids JOIN {rows} AS rows ON rows.key = :key AND rows.id = ids.row_id
WHERE ids.key = :key AND ids.message_id {in_message_ids}
"""
_SELECT_CURSOR = """
SELECT COALESCE(sessions.epoch, 0) AS epoch, cursors.position, cursors.state
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {cursors} AS cursors ON cursors.key = :key AND cursors.reader = :reader
"""
# The newest rows of the log behind a cursor, or one row with the cursor alone. If
# LlamaIndex without this package deletes rows, the epoch does not change. So the query
# also returns the row that the reader has read last, without its message, if it exists.
# ``id`` has a single lower bound: for two, SQLite may walk through all rows of a status.
_SELECT_PAGE = """
SELECT COALESCE(sessions.epoch, 0) AS epoch, COALESCE(cursors.position, 0) AS position,
       COALESCE(users.epoch, 0) AS facts_epoch, COALESCE(users.change, 0) AS facts_change,
       message.key, message.id, message.role, message.data, message.timestamp, message.status, message.user_id
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {cursors} AS cursors ON cursors.key = :key AND cursors.reader = :reader
LEFT JOIN {users} AS users ON users.namespace = :watch
LEFT JOIN (
    SELECT key, id, role, timestamp, status, user_id, CASE WHEN id <> :last_id THEN data END AS data
    FROM {rows}
    WHERE key = :key AND status = 'archived' AND id <= :newest AND id >= (
        SELECT MAX(first_id) FROM (
            SELECT :last_id AS first_id
            UNION ALL SELECT position + 1 FROM {cursors} WHERE key = :key AND reader = :reader
        ) AS bounds
    )
    ORDER BY id DESC LIMIT :limit
) AS message ON 1 = 1
ORDER BY message.id
"""
# A prompt reads at most 40 rows of the log in one query. For more rows, a reader asks
# for pages that fit its limit. The active rows and the log are two queries, each along
# the index: SQLite reads the whole session for one with an OR. ``other_owners``: how
# many other users close the session. A session is open to two users if both share it.
_SELECT_SNAPSHOT = """
SELECT COALESCE(sessions.epoch, 0) AS epoch, COALESCE(cursors.position, 0) AS position,
       COALESCE(users.epoch, 0) AS facts_epoch, COALESCE(users.change, 0) AS facts_change,
       (SELECT MAX(id) FROM {rows} WHERE key = :key AND status = 'archived') AS newest,
       (SELECT COUNT(*) FROM {owners}
        WHERE key = :key AND user_id <> :user_id AND kind IN ('own', :closed)) AS other_owners,
       message.key, message.id, message.role, message.data, message.timestamp, message.status, message.user_id
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {cursors} AS cursors ON cursors.key = :key AND cursors.reader = :reader
LEFT JOIN {users} AS users ON users.namespace = :watch
LEFT JOIN (
    SELECT key, id, role, data, timestamp, status, user_id FROM {rows}
    WHERE key = :key AND status = 'active'
    UNION ALL
    SELECT key, id, role, CASE WHEN id <> :last_id THEN data END AS data, timestamp, status, user_id
    FROM {rows}
    WHERE key = :key AND status = 'archived' AND id >= :last_id AND id > COALESCE((
        SELECT id FROM {rows} WHERE key = :key AND status = 'archived'
        ORDER BY id DESC LIMIT 1 OFFSET 40
    ), 0)
) AS message ON 1 = 1
ORDER BY message.id
"""
_SELECT_TURNS = """
SELECT id, role, timestamp, status, user_id FROM {rows} WHERE key = :key ORDER BY id
"""
_SELECT_READERS = "SELECT reader FROM {cursors} WHERE key = :key ORDER BY reader"
_SELECT_SESSIONS = "SELECT key FROM {owners} WHERE user_id = :user_id"
_SELECT_SESSIONS_OF_READER = "SELECT key FROM {cursors} WHERE reader = :reader"
_SELECT_UNREAD_SESSIONS_OF_READER = """
SELECT key FROM {cursors} AS cursors
WHERE reader = :reader
  AND EXISTS (SELECT 1 FROM {rows} AS rows WHERE rows.key = cursors.key AND rows.id > cursors.position)
"""
# A session of several owners is left out: its words may be another user's.
_SELECT_UNREAD_ELSEWHERE = """
SELECT rows.key, rows.id, rows.role, rows.data, rows.timestamp, rows.status, rows.user_id
FROM {cursors} AS cursors JOIN {rows} AS rows ON rows.key = cursors.key AND rows.id > cursors.position
WHERE cursors.reader = :reader AND cursors.key <> :key AND rows.role = 'user'
  AND NOT EXISTS (
    SELECT 1 FROM {owners} AS owners WHERE owners.key = cursors.key AND owners.user_id <> :user_id
  )
ORDER BY rows.id DESC LIMIT :limit
"""
_MOST_UNREAD_ELSEWHERE = 200
_COUNT_UNREAD = """
SELECT COUNT(*) AS messages FROM {rows}
WHERE key = :key AND status IN :statuses AND id > :after AND id <= :last
  AND id > COALESCE((SELECT position FROM {cursors} WHERE key = :key AND reader = :reader), 0)
"""
_HAS_SESSION = """
SELECT EXISTS (SELECT 1 FROM {sessions} WHERE key = :key) OR EXISTS (SELECT 1 FROM {rows} WHERE key = :key)
"""
_PUT_CURSOR = """
INSERT INTO {cursors} (key, reader, position, state) VALUES (:key, :reader, :position, :state)
ON CONFLICT (key, reader) DO UPDATE SET position = excluded.position, state = excluded.state
"""
_REGISTER_READER = """
INSERT INTO {cursors} (key, reader, position) VALUES (:key, :reader, 0)
ON CONFLICT (key, reader) DO NOTHING
"""
_RENEW_SESSION = "UPDATE {sessions} SET epoch = :epoch WHERE key = :key"


# ---- rows ----


def find_rows(
    tx: Transaction,
    key: str,
    statuses: Sequence[str] = ALL_STATUSES,
    after: int = 0,
    *,
    limit: int = LAST_ID,
    offset: int = 0,
) -> list[LogRow]:
    """Return the oldest rows of a session with these statuses, oldest first."""
    rows = tx.rows(
        _SELECT_ROWS,
        key=key,
        statuses=statuses,
        after=after,
        limit=limit,
        offset=offset,
    )
    return [LogRow.from_query(tx, row) for row in rows]


def rows_by_id(tx: Transaction, key: str, ids: Sequence[int]) -> list[LogRow]:
    """Return the rows of a session with these ids, active ones too, oldest first; deleted rows are left out."""
    return rows_in_epoch(tx, key, ids) or []


def rows_in_epoch(
    tx: Transaction, key: str, ids: Sequence[int], epoch: int | None = None
) -> list[LogRow] | None:
    """As ``rows_by_id``; None if rows were deleted since ``epoch``, because later rows may have got their ids."""
    rows = tx.rows(_SELECT_ROWS_BY_ID, key=key, row_ids=list(ids))
    if epoch not in (None, rows[0].epoch):
        return None
    return [LogRow.from_query(tx, row) for row in rows if row.id is not None]


def rows_by_message_id(
    tx: Transaction, key: str, message_ids: Sequence[str]
) -> dict[str, LogRow]:
    """Return the rows of a session whose messages have these ids, by these ids."""
    rows = {}
    result = tx.rows(_SELECT_ROWS_BY_MESSAGE_ID, key=key, message_ids=message_ids)
    for stored in result:
        row = LogRow.from_query(tx, stored)
        # LlamaIndex without this package may have deleted or replaced the message.
        if message_id_of(row.data.get("additional_kwargs") or {}) == stored.message_id:
            rows[stored.message_id] = row
    return rows


def sessions_of_user(tx: Transaction, user_id: str) -> list[str]:
    """Return the sessions of a user, also those without a message."""
    return tx.scalars(_SELECT_SESSIONS, user_id=user_id)


def read_snapshot(
    tx: Transaction,
    key: str,
    reader: str,
    last_id: int,
    watch: str,
    access: SessionAccess,
) -> Snapshot:
    """Return the active rows of a session, and at most 40 rows of its log from the row ``last_id`` on.

    Without a ``last_id`` (0), the log of the snapshot is empty. A reader that knows
    the earlier rows needs no other query for a prompt. ``watch`` is the namespace of
    the facts whose version is read.
    """
    result = tx.rows(
        _SELECT_SNAPSHOT,
        key=key,
        reader=reader,
        watch=watch,
        last_id=last_id or LAST_ID,
        user_id=access.user_in(key),
        closed=OWN if access.shared else SHARED,
    )
    session = result[0]
    rows = [LogRow.from_query(tx, row) for row in result if row.id is not None]
    return Snapshot(
        epoch=session.epoch,
        position=session.position,
        facts=FactsVersion(session.facts_epoch, session.facts_change),
        is_empty=session.newest is None,
        is_closed=bool(session.other_owners),
        active=tuple(readable(row for row in rows if row.is_active)),
        log=tuple(row for row in rows if not row.is_active),
    )


def read_page(
    tx: Transaction,
    key: str,
    reader: str,
    seen: ReadPosition = NOTHING_SEEN,
    *,
    before: int | None = None,
    limit: int,
    watch: str = "",
) -> LogPage:
    """Return the newest rows of the log after the reader's cursor that it has not read, at most ``limit``.

    ``before`` turns the page: only rows with a smaller id. ``watch`` is a namespace
    of facts: the page has the version of its facts, which saves a query.
    """
    last_id = seen.last_id
    result = tx.rows(
        _SELECT_PAGE,
        key=key,
        reader=reader,
        watch=watch,
        last_id=last_id,
        newest=LAST_ID if before is None else before - 1,
        limit=limit + 1,
    )
    session = result[0]
    rows = [
        LogRow.from_query(tx, row) for row in result if row.id not in (None, last_id)
    ]
    has_more = len(rows) > limit
    # The row that the reader has read last is the oldest of the result, if it exists. It is
    # not in the result if the page is full, or if it is before the cursor.
    is_last_stored = session.id == last_id
    is_whole = is_last_stored or has_more or last_id <= session.position
    is_fresh = not last_id or (is_whole and session.epoch == seen.epoch)
    return LogPage(
        position=session.position,
        epoch=session.epoch,
        rows=rows[-limit:] if is_fresh else [],
        fresh=is_fresh,
        more=is_fresh and has_more,
        facts=FactsVersion(session.facts_epoch, session.facts_change),
    )


def read_unread(
    tx: Transaction,
    key: str,
    reader: str,
    *,
    with_active: bool = False,
    after: int | None = None,
    limit: int = LAST_ID,
) -> LogPage:
    """Return the oldest rows of the log after the reader's cursor, or after the row ``after``.

    ``with_active`` adds the active rows.
    """
    page = read_cursor(tx, key, reader)
    if after is None:
        after = page.position
    statuses = ALL_STATUSES if with_active else [ARCHIVED]
    rows = find_rows(tx, key, statuses, after, limit=limit)
    return replace(page, rows=rows)


def read_turns(tx: Transaction, key: str) -> list[list[Any]]:
    """Return the rows of each turn of a session; a turn begins with a message of a user, if there is one."""
    turns: list[list[Any]] = []
    for row in tx.rows(_SELECT_TURNS, key=key):
        if not turns or row.role == MessageRole.USER.value:
            turns.append([])
        turns[-1].append(row)
    return turns


# ---- cursors ----


def read_cursor(tx: Transaction, key: str, reader: str) -> LogPage:
    """Return a page without rows, and with the state of the cursor."""
    cursor = tx.execute(_SELECT_CURSOR, key=key, reader=reader).one()
    return LogPage(
        position=cursor.position or 0,
        epoch=cursor.epoch,
        rows=[],
        registered=cursor.position is not None,
        state=tx.read(cursor.state, f"The state of {reader!r} in session {key!r}"),
    )


def move_cursor(
    tx: Transaction,
    key: str,
    reader: str,
    seen: ReadPosition | LogPage,
    new: int,
    state: Json = None,
) -> bool:
    """Move a reader's cursor from ``seen`` to ``new``, the last row that the reader has processed.

    All processes share the cursor. ``state`` is the reader's result for the rows before,
    as JSON. It replaces the earlier state.

    A deletion of rows before the cursor resets the reader to the beginning, without a
    state. There are two exceptions, whose cursor moves to the last remaining row: a cursor
    without a state, and a state with the key ``ROWS``. ``ROWS`` is a list of
    ``[first row, last row, ...]``; an entry is removed if one of its two rows is deleted.

    False, and the transaction is rolled back, if another process has moved the cursor,
    or rows were deleted meanwhile.
    """
    if not is_current(tx, key, seen.epoch, reader, seen.position):
        tx.rollback()
        return False
    put_cursor(tx, key, reader, new, state)
    return True


def put_cursor(
    tx: Transaction, key: str, reader: str, position: int, state: Json
) -> None:
    """Store the cursor of a reader."""
    tx.execute(_PUT_CURSOR, key=key, reader=reader, position=position, state=state)


def register_readers(tx: Transaction, key: str, readers: Sequence[str]) -> None:
    """Store the cursors of readers, so that ``sessions_of_reader`` returns their session."""
    if readers:
        cursors = [{"key": key, "reader": reader} for reader in readers]
        tx.execute(_REGISTER_READER, cursors)


def renew_session(tx: Transaction, key: str) -> None:
    """Give a session a new epoch, so that its readers read it again."""
    tx.execute(_RENEW_SESSION, key=key, epoch=time.time_ns())


def is_current(
    tx: Transaction, key: str, epoch: int, reader: str = "", position: int = 0
) -> bool:
    """Return whether no row of the session was deleted since ``epoch``, and a reader is at ``position``."""
    cursor = read_cursor(tx, key, reader)
    is_same = cursor.epoch == epoch
    if epoch == 0 and not is_same:
        # In a log that only LlamaIndex has written, the lock of this transaction has
        # made the first epoch.
        is_same = bool(find_rows(tx, key, limit=1))
    return is_same and cursor.position == position


# ---- names and counts ----


def reader_names(tx: Transaction, key: str) -> list[str]:
    """Return the names of the readers of a session, sorted."""
    return tx.scalars(_SELECT_READERS, key=key)


def sessions_of_reader(
    tx: Transaction, reader: str, *, pending: bool = False
) -> list[str]:
    """Return the sessions in which this reader is registered; ``pending``: only with unread messages."""
    query = _SELECT_SESSIONS_OF_READER
    if pending:
        query = _SELECT_UNREAD_SESSIONS_OF_READER
    return tx.scalars(query, reader=reader)


def unread_elsewhere(
    tx: Transaction, key: str, reader: str, user_id: str
) -> list[LogRow]:
    """Return the newest 200 messages that the reader has not read in other sessions of the user, oldest first.

    They are the user's words, in sessions without another owner.
    """
    rows = tx.rows(
        _SELECT_UNREAD_ELSEWHERE,
        key=key,
        reader=reader,
        user_id=user_id,
        limit=_MOST_UNREAD_ELSEWHERE,
    )
    return [LogRow.from_query(tx, row) for row in rows][::-1]


def has_session(tx: Transaction, key: str) -> bool:
    """Return whether a message was ever stored in a session."""
    return bool(tx.scalar(_HAS_SESSION, key=key))


def count_messages(
    tx: Transaction,
    key: str,
    *,
    statuses: Sequence[str] = ALL_STATUSES,
    reader: str = "",
    after: int = 0,
    last: int = LAST_ID,
) -> int:
    """Return the number of messages after the row ``after``, up to ``last``, that a reader has not read."""
    count: int = tx.scalar(
        _COUNT_UNREAD,
        key=key,
        reader=reader,
        statuses=statuses,
        after=after,
        last=last,
    )
    return count


class Readers(StorePart):
    """The readers of the sessions of a store.

    The log of a session is its rows with the status ``archived``: they have left
    short-term memory. A reader of any name begins at the first row. The name ""
    stands for no reader: without a cursor, rows that readers have processed count, too.
    """

    find = door(find_rows)
    rows_by_id = door(rows_by_id)
    rows_in_epoch = door(rows_in_epoch)
    read_snapshot = door(read_snapshot)
    page = door(read_page)
    unread = door(read_unread)
    cursor = door(read_cursor)
    _move = door(move_cursor, "sessions")

    sessions_of_reader = door(sessions_of_reader)
    unread_elsewhere = door(unread_elsewhere)
    has_session = door(has_session)
    count_messages = door(count_messages)

    async def move(
        self,
        key: str,
        reader: str,
        seen: ReadPosition | LogPage,
        new: int,
        state: Json = None,
    ) -> bool:
        """As ``move_cursor``, but False also if the database is busy."""
        try:
            return await self._move(key, reader, seen, new, state)
        except StoreError as error:
            logger.warning(
                "The cursor of %s was not moved (%s); it is tried again.",
                reader,
                type(error).__name__,
            )
            return False
