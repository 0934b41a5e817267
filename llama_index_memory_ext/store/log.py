"""The log: its rows, which it writes for each session and reads for readers, and the readers' cursors."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone, tzinfo
from json import dumps
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import ValidationError

from llama_index_memory_ext.errors import MessageError, StoreError
from llama_index_memory_ext.store.database import (
    ACTIVE,
    ARCHIVED,
    LAST_ID,
    OF_NOBODY,
    OWN,
    ROWS,
    SHARED,
    Database,
    Row,
    Transaction,
    namespace_of_session,
    reads,
    vectors_namespace,
    writes_session,
)
from llama_index_memory_ext.text.messages import (
    ID_KEY,
    RESULT_ROLES,
    SPEAKER_KEY,
    as_taken,
    cleaned,
    in_zone,
    is_printed,
    is_same,
    message_id_of,
    spoken,
    storable,
    times_in,
)
from llama_index_memory_ext.words import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from llama_index_memory_ext.text.messages import Json

    # Takes messages, oldest first, and returns how many of the oldest go into the log;
    # None: none.
    Plan = Callable[[Sequence[ChatMessage]], int] | None
    # ``Owners.claim_within``.
    Claim = Callable[
        [Transaction, str, "SessionAccess", Collection[str], Sequence[str]], bool
    ]

logger = logging.getLogger(__name__)

ALL_STATUSES = (ARCHIVED, ACTIVE)

# The last second of the year 9999, the last year of a datetime.
_LAST_SECOND = 253_402_300_799


class SessionAccess(NamedTuple):
    """How a memory opens a session.

    ``user_id``: None for a memory without a user. ``shared``: other users may read and
    write there.
    """

    user_id: str | None = None
    shared: bool = False

    def user_in(self, key: str) -> str:
        """Return the user, or the namespace of a session without a user."""
        if self.user_id is None:
            return namespace_of_session(key)
        return self.user_id

    @property
    def kind(self) -> str:
        """How the session is open to this user from now on."""
        if self.shared:
            return SHARED
        return OF_NOBODY if self.user_id is None else OWN


@dataclass(frozen=True, slots=True)
class LogRow:
    """One message of a session, parsed at its first use.

    ``id``: grows in the order of writing. ``timestamp``: the time of writing, in
    nanoseconds since 1970; 0 if the query has not read it. ``user_id``: the speaker in
    a session of several users, "" if unknown.
    """

    id: int
    role: str
    data: Json
    timestamp: int = 0
    status: str = ARCHIVED
    user_id: str | None = None

    @classmethod
    def from_query(cls, row: Any) -> LogRow:
        """Return the row of a query that has selected all columns of the chat table but the key."""
        return cls(row.id, row.role, row.data, row.timestamp, row.status, row.user_id)

    @property
    def speaker(self) -> str:
        """The name, or else the id, of the speaker in a session of several users; "" in any other session."""
        if not self.user_id:
            return ""
        kwargs = self.data.get("additional_kwargs") or {}
        return str(kwargs.get("name") or self.user_id)

    def said_at(self, zone: tzinfo | None = None) -> datetime | None:
        """Return the time in its ``additional_kwargs``, if that is not after the time of writing.

        Otherwise the time of writing (UTC); None if neither is known. A day alone is
        in the ``zone``.
        """
        times = times_in(self.data.get("additional_kwargs") or {}, zone)
        said_at = next(iter(times.values()), None)
        written = written_at(self.timestamp)
        if said_at and (written is None or said_at <= written):
            return said_at
        return written

    @property
    def is_active(self) -> bool:
        """Whether it belongs to the current turn, and is not in the log yet."""
        return self.status == ACTIVE

    @property
    def is_result(self) -> bool:
        """Whether it is a tool's result."""
        return self.role in RESULT_ROLES

    @property
    def is_printed(self) -> bool:
        """Whether it is a tool's result that was put as a user's message, as ``as_taken`` describes."""
        return self.is_result and self.data.get("role") == MessageRole.USER.value

    @property
    def characters(self) -> int:
        """The approximate length of its text."""
        blocks = self.data.get("blocks") or ()
        return sum(len(block.get("text") or "") for block in blocks)

    @property
    def message(self) -> ChatMessage:
        """The message with the role of the row."""
        message = self.as_put
        if self.is_printed:
            return message.model_copy(update={"role": MessageRole(self.role)})
        return message

    @property
    def as_put(self) -> ChatMessage:
        """The message as it was put; a placeholder if this version of LlamaIndex cannot read it."""
        try:
            return ChatMessage.model_validate(self.data)
        except ValidationError:
            # An unreadable row must not make its whole session unreadable.
            logger.warning(
                "A stored %s message cannot be read by this version of LlamaIndex.",
                self.role,
            )
            return ChatMessage(role=self.role, content="[unreadable message]")


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The position of a reader in a session: the epoch, its cursor, and the last row that it has read."""

    epoch: int = 0
    position: int = 0
    last_id: int = 0


class CursorState(NamedTuple):
    """The position of a cursor, and the state that was stored with it."""

    position: int
    state: Json


class FactsVersion(NamedTuple):
    """The version of a namespace of facts: ``epoch`` changes with a deletion, ``change`` grows with each change."""

    epoch: int
    change: int


_NO_FACTS = FactsVersion(epoch=0, change=0)


@dataclass(frozen=True, slots=True)
class LogPage:
    """Rows for a reader, oldest first.

    ``position``: the reader's cursor, the last row that it has processed; 0 at the
    beginning. ``epoch``: changes when rows are deleted. ``fresh``: false, and the page
    is empty, if rows were deleted since ``ReadPosition``; the reader must then begin again.
    ``more``: there are older rows before the page. ``registered``: the cursor is stored,
    read by ``unread`` only. ``facts``: the version of the watched facts. ``state``: the state of the
    cursor, read by ``unread`` only.
    """

    position: int
    epoch: int
    rows: list[LogRow]
    fresh: bool = True
    more: bool = False
    registered: bool = False
    facts: FactsVersion = _NO_FACTS
    state: Json = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a session at one moment, read in one query for a prompt.

    ``position``: the cursor of the record. ``facts``: the version of the user's facts.
    ``is_empty``: the log has no row. ``is_closed``: the session holds words of another
    user. ``active``: the active rows. ``log``: the newest rows of the log. Both are
    oldest first.
    """

    epoch: int
    position: int
    facts: FactsVersion
    is_empty: bool
    is_closed: bool
    active: tuple[LogRow, ...]
    log: tuple[LogRow, ...]

    def log_behind(self, seen: ReadPosition) -> list[LogRow] | None:
        """Return the rows of the log behind the last one that was read, oldest first; None if the log must be read."""
        last_id = seen.last_id
        is_complete = self.is_empty
        if last_id:
            has_last = any(row.id == last_id for row in self.log)
            is_complete = has_last and seen.epoch == self.epoch
        if not is_complete:
            return None
        return [row for row in self.log if row.id > last_id]


def written_at(timestamp: int | None) -> datetime | None:
    """Return the time (UTC) of nanoseconds since 1970; None if it is outside the years of a ``datetime``.

    >>> written_at(1_700_000_000_000_000_000).isoformat(), written_at(0)
    ('2023-11-14T22:13:20+00:00', None)
    """
    if timestamp is None or not 0 < timestamp < _LAST_SECOND * 10**9:
        return None
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(
        microseconds=timestamp // 1_000
    )


def times_of(
    rows: Iterable[LogRow], zone: tzinfo | None = None
) -> list[datetime | None]:
    """Return when the message of each row was said, in the time zone.

    Without a zone, a time has its own offset. A time in UTC has the offset of the
    message before it.
    """
    times: list[datetime | None] = []
    offset = zone
    for row in rows:
        said_at = row.said_at(zone)
        if said_at and zone is None and said_at.utcoffset():
            offset = said_at.tzinfo
        times.append(said_at and in_zone(said_at, offset))
    return times


def day_of(said_at: datetime | None) -> str:
    """Return the day of a time, as 2026-11-20; "" if the time is unknown."""
    return said_at.date().isoformat() if said_at else ""


_SELECT_ROWS = """
SELECT id, role, data, timestamp, status, user_id FROM {rows}
WHERE key = :key AND status IN :statuses AND id > :after
ORDER BY id LIMIT :limit OFFSET :offset
"""
_SELECT_ROWS_BY_ID = """
SELECT id, role, data, timestamp, status, user_id FROM {rows}
WHERE key = :key AND id {in_row_ids}
ORDER BY id
"""
_SELECT_LAST_ROW = """
SELECT id, role, data, timestamp, status, user_id FROM {rows}
WHERE key = :key ORDER BY id DESC LIMIT 1
"""
_SELECT_CURSOR = """
SELECT COALESCE(sessions.epoch, 0) AS epoch, cursors.position, cursors.state
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {cursors} AS cursors ON cursors.key = :key AND cursors.reader = :reader
"""
# The newest rows of the log behind a cursor, or one row with the cursor alone. The plain
# host deletes rows without a new epoch. So the query also returns the row that the
# reader has read last, without its message, if that row still exists.
_SELECT_PAGE = """
SELECT COALESCE(sessions.epoch, 0) AS epoch, COALESCE(cursors.position, 0) AS position,
       COALESCE(users.epoch, 0) AS facts_epoch, COALESCE(users.change, 0) AS facts_change,
       message.id, message.role, message.data, message.timestamp, message.status, message.user_id
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {cursors} AS cursors ON cursors.key = :key AND cursors.reader = :reader
LEFT JOIN {users} AS users ON users.namespace = :watch
LEFT JOIN (
    SELECT id, role, timestamp, status, user_id, CASE WHEN id <> :last_id THEN data END AS data
    FROM {rows}
    WHERE key = :key AND status = 'archived' AND id >= :last_id AND id <= :newest
      AND id > COALESCE((SELECT position FROM {cursors} WHERE key = :key AND reader = :reader), 0)
    ORDER BY id DESC LIMIT :limit
) AS message ON 1 = 1
ORDER BY message.id
"""
# A prompt reads at most 40 rows of the log in one query. For more rows, a reader asks
# for pages that fit its limit. The active rows and the log are two queries, each along
# the index: SQLite reads the whole session for one with an OR. ``other_owners``: the
# users that close the session, because not both have opened it as shared.
_SELECT_SNAPSHOT = """
SELECT COALESCE(sessions.epoch, 0) AS epoch, COALESCE(cursors.position, 0) AS position,
       COALESCE(users.epoch, 0) AS facts_epoch, COALESCE(users.change, 0) AS facts_change,
       (SELECT MAX(id) FROM {rows} WHERE key = :key AND status = 'archived') AS newest,
       (SELECT COUNT(*) FROM {owners}
        WHERE key = :key AND user_id <> :user_id AND kind IN ('own', :closed)) AS other_owners,
       message.id, message.role, message.data, message.timestamp, message.status, message.user_id
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {cursors} AS cursors ON cursors.key = :key AND cursors.reader = :reader
LEFT JOIN {users} AS users ON users.namespace = :watch
LEFT JOIN (
    SELECT id, role, data, timestamp, status, user_id FROM {rows}
    WHERE key = :key AND status = 'active'
    UNION ALL
    SELECT id, role, CASE WHEN id <> :last_id THEN data END AS data, timestamp, status, user_id
    FROM {rows}
    WHERE key = :key AND status = 'archived' AND id >= :last_id AND id > COALESCE((
        SELECT id FROM {rows} WHERE key = :key AND status = 'archived'
        ORDER BY id DESC LIMIT 1 OFFSET 40
    ), 0)
) AS message ON 1 = 1
ORDER BY message.id
"""
_SELECT_READERS = "SELECT reader FROM {cursors} WHERE key = :key ORDER BY reader"
_SELECT_SESSIONS_OF_READER = "SELECT key FROM {cursors} WHERE reader = :reader"
_SELECT_UNREAD_SESSIONS_OF_READER = """
SELECT key FROM {cursors} AS cursors
WHERE reader = :reader
  AND EXISTS (SELECT 1 FROM {rows} AS rows WHERE rows.key = cursors.key AND rows.id > cursors.position)
"""
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


class Readers:
    """The rows and the cursors of a store.

    The log of a session is its rows with the status ``archived``: they have left
    short-term memory. A reader of any name begins at the first row. Methods named
    ``..._within`` work in a transaction that has locked the session.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    # ---- rows ----

    def find_within(
        self,
        tx: Transaction,
        key: str,
        statuses: Sequence[str] = ALL_STATUSES,
        after: int = 0,
        *,
        limit: int = LAST_ID,
        offset: int = 0,
    ) -> list[LogRow]:
        """Return the oldest rows of a session with these statuses, oldest first."""
        result = tx.execute(
            _SELECT_ROWS,
            key=key,
            statuses=statuses,
            after=after,
            limit=limit,
            offset=offset,
        )
        return [LogRow.from_query(row) for row in result]

    find = reads(find_within)

    def rows_within(
        self, tx: Transaction, key: str, ids: Sequence[int]
    ) -> list[LogRow]:
        """Return the rows of a session with these ids, active ones too, oldest first; deleted rows are left out."""
        result = tx.execute(_SELECT_ROWS_BY_ID, key=key, row_ids=list(ids))
        return [LogRow.from_query(row) for row in result]

    rows = reads(rows_within)

    @reads
    def rows_in(
        self, tx: Transaction, key: str, ids: Sequence[int], epoch: int
    ) -> list[LogRow] | None:
        """As ``rows``; None if rows were deleted since ``epoch``, because later rows may have got their ids."""
        rows = self.rows_within(tx, key, ids)
        if self._cursor_of(tx, key, "").epoch == epoch:
            return rows
        return None

    def lines_within(self, tx: Transaction, key: str) -> frozenset[str]:
        """Return the lines of all messages of a session, as the ``source`` of a fact holds them."""
        lines: set[str] = set()
        for row in self.find_within(tx, key):
            lines.update(visible(spoken(row.message)).splitlines())
        return frozenset(lines)

    @reads
    def glance(
        self,
        tx: Transaction,
        key: str,
        reader: str,
        last_id: int,
        watch: str,
        access: SessionAccess,
    ) -> Snapshot:
        """Return the active rows of a session, and at most 40 rows of its log from the row ``last_id`` on.

        Without a ``last_id`` (0), the log of the snapshot is empty. A reader that knows
        the earlier rows needs no other query for a prompt.
        """
        result = tx.execute(
            _SELECT_SNAPSHOT,
            key=key,
            reader=reader,
            watch=watch,
            last_id=last_id or LAST_ID,
            user_id=access.user_in(key),
            closed=OWN if access.shared else SHARED,
        ).all()
        session = result[0]
        active: list[LogRow] = []
        log: list[LogRow] = []
        for row in result:
            if row.status == ACTIVE:
                active.append(LogRow.from_query(row))
            elif row.id is not None:
                log.append(LogRow.from_query(row))
        return Snapshot(
            epoch=session.epoch,
            position=session.position,
            facts=FactsVersion(session.facts_epoch, session.facts_change),
            is_empty=session.newest is None,
            is_closed=bool(session.other_owners),
            active=tuple(active),
            log=tuple(log),
        )

    @reads
    def page(
        self,
        tx: Transaction,
        key: str,
        reader: str,
        seen: ReadPosition,
        *,
        before: int | None = None,
        limit: int,
        watch: str = "",
    ) -> LogPage:
        """Return the newest rows of the log behind the reader's cursor that it has not read, at most ``limit``.

        ``before`` turns the page: only rows with a smaller id. ``watch`` is a namespace
        of facts: the page has the version of its facts, which saves a query.
        """
        last_id = seen.last_id
        result = tx.execute(
            _SELECT_PAGE,
            key=key,
            reader=reader,
            watch=watch,
            last_id=last_id,
            newest=LAST_ID if before is None else before - 1,
            limit=limit + 1,
        ).all()
        session = result[0]
        rows = [
            LogRow.from_query(row) for row in result if row.id not in (None, last_id)
        ]
        has_more = len(rows) > limit
        # The row that the reader has read last is the oldest of the result, if it exists.
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

    @reads
    def unread(
        self,
        tx: Transaction,
        key: str,
        reader: str,
        *,
        with_active: bool = False,
        after: int | None = None,
        limit: int = LAST_ID,
    ) -> LogPage:
        """Return the oldest rows of the log behind the reader's cursor, or behind the row ``after``.

        ``with_active`` adds the active rows.
        """
        page = self._cursor_of(tx, key, reader)
        if after is None:
            after = page.position
        statuses = ALL_STATUSES if with_active else [ARCHIVED]
        rows = self.find_within(tx, key, statuses, after, limit=limit)
        return replace(page, rows=rows)

    # ---- cursors ----

    def _cursor_of(self, tx: Transaction, key: str, reader: str) -> LogPage:
        """Return a page without rows, and with the state of the cursor."""
        cursor = tx.execute(_SELECT_CURSOR, key=key, reader=reader).one()
        return LogPage(
            position=cursor.position or 0,
            epoch=cursor.epoch,
            rows=[],
            registered=cursor.position is not None,
            state=cursor.state,
        )

    @reads
    def state(self, tx: Transaction, key: str, reader: str) -> CursorState:
        """Return the position of a cursor, and the state that was stored with it."""
        page = self._cursor_of(tx, key, reader)
        return CursorState(page.position, page.state)

    async def move(
        self,
        key: str,
        reader: str,
        *,
        epoch: int,
        old: int,
        new: int,
        state: Json = None,
    ) -> bool:
        """Move a reader's cursor from ``old`` to ``new``, the last row that is processed, for every process.

        ``epoch`` is the session's epoch at the time of the reading. ``state`` is the
        reader's result for the rows before, as JSON. It replaces the earlier state. If
        one of these rows is deleted, the reader begins again without a state. A state
        with the key ``ROWS``, a list of ``[first row, last row, ...]``, concerns these
        rows alone: the deletion takes only the deleted rows from it. A cursor without a
        state keeps its position, too.

        False if another process has moved the cursor, rows were deleted meanwhile, or
        the database is busy.
        """
        try:
            return await self.database.run(
                self.move_within,
                key,
                reader,
                epoch=epoch,
                old=old,
                new=new,
                state=state,
                sessions=[key],
            )
        except StoreError as error:
            logger.warning(
                "The cursor of %s was not moved (%s); it is tried again.",
                reader,
                type(error).__name__,
            )
            return False

    def move_within(
        self,
        tx: Transaction,
        key: str,
        reader: str,
        *,
        epoch: int,
        old: int,
        new: int,
        state: Json = None,
    ) -> bool:
        """As ``move``; the transaction is rolled back where it is False."""
        if not self.is_current_within(tx, key, epoch, reader, old):
            tx.rollback()
            return False
        self.put_cursor_within(tx, key, reader, new, state)
        return True

    def put_cursor_within(
        self, tx: Transaction, key: str, reader: str, position: int, state: Json
    ) -> None:
        """Store the cursor of a reader."""
        tx.execute(_PUT_CURSOR, key=key, reader=reader, position=position, state=state)

    def register_within(
        self, tx: Transaction, key: str, readers: Sequence[str]
    ) -> None:
        """Store the cursors of readers, so that ``sessions_of_reader`` returns their session."""
        if readers:
            cursors = [{"key": key, "reader": reader} for reader in readers]
            tx.execute(_REGISTER_READER, cursors)

    def renew_within(self, tx: Transaction, key: str) -> None:
        """Give a session a new epoch, so that its readers read it again."""
        tx.execute(_RENEW_SESSION, key=key, epoch=time.time_ns())
        tx.epochs.pop(key, None)

    def is_current_within(
        self,
        tx: Transaction,
        key: str,
        epoch: int,
        reader: str = "",
        position: int = 0,
    ) -> bool:
        """Return whether no row of the session was deleted since ``epoch``, and a reader is at ``position``."""
        cursor = self._cursor_of(tx, key, reader)
        is_same = cursor.epoch == epoch
        if epoch == 0 and not is_same:
            # A log that only the plain host has written has got its epoch by the lock
            # of this transaction.
            is_same = bool(self.find_within(tx, key, limit=1))
        return is_same and cursor.position == position

    # ---- names and counts ----

    def names_within(self, tx: Transaction, key: str) -> list[str]:
        """Return the names of the readers of a session, sorted."""
        return tx.scalars(_SELECT_READERS, key=key)

    names = reads(names_within)

    @reads
    def sessions_of_reader(
        self, tx: Transaction, reader: str, *, pending: bool = False
    ) -> list[str]:
        """Return the sessions in which this reader is registered; ``pending``: only with unread messages."""
        query = _SELECT_SESSIONS_OF_READER
        if pending:
            query = _SELECT_UNREAD_SESSIONS_OF_READER
        return tx.scalars(query, reader=reader)

    @reads
    def has_session(self, tx: Transaction, key: str) -> bool:
        """Return whether a message was ever stored in a session."""
        return bool(tx.execute(_HAS_SESSION, key=key).scalar())

    @reads
    def count_messages(
        self,
        tx: Transaction,
        key: str,
        *,
        status: str | None = None,
        reader: str = "",
        after: int = 0,
        last: int = LAST_ID,
    ) -> int:
        """Return the number of messages behind the row ``after``, up to ``last``, that a reader has not read.

        Without a ``status``, messages of any status count.
        """
        count: int = tx.execute(
            _COUNT_UNREAD,
            key=key,
            reader=reader,
            statuses=[status] if status else ALL_STATUSES,
            after=after,
            last=last,
        ).scalar_one()
        return count


_INSERT_ROW = """
INSERT INTO {rows} (key, timestamp, role, status, data, user_id)
VALUES (:key, :timestamp, :role, :status, :data, :user_id)
"""
_ARCHIVE_ROWS = """
UPDATE {rows} SET status = 'archived' WHERE key = :key AND status = 'active' AND id <= :last
"""
_ACTIVATE_ROWS = """
UPDATE {rows} SET status = 'active' WHERE key = :key AND status = 'archived' AND id >= :first
"""
_SELECT_IDS = (
    "SELECT id FROM {rows} WHERE key = :key AND status IN :statuses ORDER BY id"
)
_DELETE_ROWS = "DELETE FROM {rows} WHERE key = :key AND id {in_row_ids}"
_DELETE_MESSAGE_IDS = (
    "DELETE FROM {message_ids} WHERE key = :key AND row_id {in_row_ids}"
)
_SELECT_CALL = """
SELECT id FROM {rows} WHERE key = :key AND id <= :row_id AND role NOT IN ('tool', 'function')
ORDER BY id DESC LIMIT 1
"""
_DELETE_VECTORS = (
    "DELETE FROM {embeddings} WHERE namespace = :namespace AND id {in_ids}"
)
_SELECT_CURSORS_BEHIND = """
SELECT reader, position, state FROM {cursors} WHERE key = :key AND position >= :first
"""
_SELECT_SPAN = """
SELECT COALESCE(MIN(id), 0) AS first_id, COALESCE(MAX(id), 0) AS last_id FROM {rows}
WHERE key = :key AND id BETWEEN :first AND :last
"""
_SELECT_TIMES = """
SELECT timestamp, id FROM {rows}
WHERE key = :key AND timestamp BETWEEN :first AND :last ORDER BY id
"""
_PUT_MESSAGE_ID = """
INSERT INTO {message_ids} (key, message_id, row_id) VALUES (:key, :message_id, :row_id)
ON CONFLICT (key, message_id) DO UPDATE SET row_id = excluded.row_id
"""
_SELECT_BY_MESSAGE_ID = """
SELECT ids.message_id, rows.data
FROM {message_ids} AS ids JOIN {rows} AS rows ON rows.key = :key AND rows.id = ids.row_id
WHERE ids.key = :key AND ids.message_id {in_message_ids}
"""


class Span(NamedTuple):
    """The ids of the first and the last row of a part of a session; 0 and 0 if it has no row."""

    first: int
    last: int


class Log:
    """Writes the rows of the chat table. The rows of a session are written and archived in the order of their ids."""

    def __init__(self, database: Database, readers: Readers, claim: Claim) -> None:
        self.database = database
        self._readers = readers
        self._claim = claim

    @writes_session
    def append(
        self,
        tx: Transaction,
        key: str,
        messages: Sequence[ChatMessage],
        plan_flush: Plan,
        *,
        replace: bool = False,
        access: SessionAccess | None = None,
        readers: Sequence[str] = (),
    ) -> list[ChatMessage]:
        """Write messages after the active messages, and move messages from short-term memory into the log.

        Return copies of the messages that newly went into the log, oldest first.

        Args:
            tx: A connection in a transaction that has locked the session.
            key: The session.
            messages: The new messages. Of messages with the same ``message_id``, only
                the first is written.
            plan_flush: Takes the active messages and then the new ones, oldest first,
                and returns how many of the oldest go into the log; None: none.
            replace: Whether the session then has no other messages. Its first messages
                that are the same keep their rows, with ids and times. All later rows
                are deleted.
            access: The user who becomes an owner of the session.
                ``Owners.claim_within`` may refuse it.
            readers: The readers that are registered for the session.
        """
        speakers = _speakers_in(messages, access)
        stored: list[LogRow] = []
        replaced: list[LogRow] = []
        if not replace:
            if plan_flush:
                stored = self._readers.find_within(tx, key, [ACTIVE])
            messages = self.unknown_within(tx, key, messages)
            if not (messages or stored):
                tx.rollback()
                return []
        user_id = self._claim_session(tx, key, access, speakers, readers)
        if replace:
            rows = self._readers.find_within(tx, key)
            same = _count_same(rows, messages)
            stored = rows[:same]
            replaced = rows[same:]
            self.delete_within(tx, key, [row.id for row in replaced])
            messages = self.unknown_within(tx, key, messages[same:])
        count = 0
        if plan_flush:
            before = [row.message for row in stored]
            count = plan_flush(as_taken([*before, *messages]))
        flushed = self._set_statuses(tx, key, stored, archived=count)
        new = self.insert_within(
            tx,
            key,
            messages,
            user_id,
            archived=count - len(stored),
            replaced=replaced,
        )
        return [*flushed, *new]

    def _claim_session(
        self,
        tx: Transaction,
        key: str,
        access: SessionAccess | None,
        speakers: Collection[str],
        readers: Sequence[str],
    ) -> str | None:
        """Make the user an owner of the session, and return the user if the session has several; otherwise None.

        A claim that this process has stored in this epoch of the session is still true,
        and is not stored again.
        """
        if access is None:
            return None
        epoch = tx.epochs.get(key)
        if not (access.shared or epoch is None):
            claim = (key, epoch, access, *readers)
            tx.claims.append(claim)
            if claim in self.database.claims:
                return None
        if self._claim(tx, key, access, speakers, readers):
            return access.user_id
        return None

    def _set_statuses(
        self, tx: Transaction, key: str, stored: Sequence[LogRow], *, archived: int
    ) -> list[ChatMessage]:
        """Put the first ``archived`` rows into the log, and make the later rows active.

        Return the messages that were not in the log before.
        """
        flushed = [row for row in stored[:archived] if row.is_active]
        if flushed:
            self.archive_within(tx, key, flushed[-1].id)
        reactivated = [row for row in stored[archived:] if not row.is_active]
        if reactivated:
            tx.execute(_ACTIVATE_ROWS, key=key, first=reactivated[0].id)
        return [row.as_put for row in flushed]

    def archive_within(self, tx: Transaction, key: str, last_id: int) -> None:
        """Move the active rows up to the row ``last_id`` into the log."""
        tx.execute(_ARCHIVE_ROWS, key=key, last=last_id)

    def insert_within(
        self,
        tx: Transaction,
        key: str,
        messages: Sequence[ChatMessage],
        user_id: str | None = None,
        *,
        archived: int,
        replaced: Sequence[LogRow] = (),
    ) -> list[ChatMessage]:
        """Write messages, the first ``archived`` of them into the log, and return copies of these.

        ``user_id`` is the default speaker of the user's messages in a session of
        several users. A message with the words of a ``replaced`` row keeps the speaker
        of that row.
        """
        if not messages:
            return []
        now = time.time_ns()
        roles = self._roles_of(tx, key, messages)
        speakers: dict[str, str] = {}
        for row in replaced:
            if user_id and row.user_id is not None:
                speakers[_words_of(row.data)] = row.user_id
        rows: list[Row] = []
        for i, message in enumerate(messages):
            data = storable(message)
            speaker = user_id
            if speakers:
                speaker = speakers.get(_words_of(data), user_id)
            rows.append(
                {
                    "key": key,
                    "timestamp": now + i,
                    "role": roles[i].role.value,
                    "status": ARCHIVED if i < archived else ACTIVE,
                    "data": data,
                    "user_id": _speaker_of(roles[i], speaker),
                }
            )
        tx.execute(_INSERT_ROW, rows)
        self._store_message_ids(tx, key, rows)
        flushed = rows[: max(archived, 0)]
        return [ChatMessage.model_validate(row["data"]) for row in flushed]

    def ids_within(
        self, tx: Transaction, key: str, statuses: Sequence[str] = ALL_STATUSES
    ) -> list[int]:
        """Return the ids of the rows of a session with these statuses."""
        return tx.scalars(_SELECT_IDS, key=key, statuses=statuses)

    def delete_within(self, tx: Transaction, key: str, ids: Sequence[int]) -> int:
        """Delete rows of a session, oldest first, and return their number.

        The session gets a new epoch, so that its readers read it again. A cursor behind
        a deleted row moves back to the last row that remains, because a later row may
        get the id of a deleted one. ``Readers.move`` describes its state.
        """
        count = 0
        if ids:
            self._delete_vectors(tx, key, ids)
            tx.execute(_DELETE_MESSAGE_IDS, key=key, row_ids=ids)
            count = tx.execute(_DELETE_ROWS, key=key, row_ids=ids).rowcount
            self._move_cursors_back(tx, key, ids[0])
        self._readers.renew_within(tx, key)
        return count

    def _delete_vectors(self, tx: Transaction, key: str, ids: Sequence[int]) -> None:
        """Delete the vectors of rows; a tool's result shares the vector of its call, which comes before it."""
        calls = tx.scalars(_SELECT_CALL, key=key, row_id=ids[0])
        tx.execute(
            _DELETE_VECTORS,
            namespace=vectors_namespace(key),
            ids=[str(row_id) for row_id in [*calls, *ids]],
        )

    def _move_cursors_back(self, tx: Transaction, key: str, first: int) -> None:
        """Move the cursors at or behind the row ``first`` to rows that remain."""
        for cursor in tx.execute(_SELECT_CURSORS_BEHIND, key=key, first=first).all():
            position = 0
            state = None
            old_state = cursor.state
            if old_state is None or ROWS in old_state:
                position = self._rows_between(tx, key, 0, cursor.position).last
            if old_state and ROWS in old_state:
                entries = self._remaining_entries(tx, key, old_state[ROWS])
                if position or entries:
                    state = {**old_state, ROWS: entries}
            self._readers.put_cursor_within(tx, key, cursor.reader, position, state)

    def _remaining_entries(
        self, tx: Transaction, key: str, entries: Iterable[Sequence[Json]]
    ) -> list[Json]:
        """Return the entries of a state that still have rows, each with the rows that remain."""
        remaining: list[Json] = []
        for first, last, *values in entries:
            span = self._rows_between(tx, key, first, last)
            if span.first:
                remaining.append([*span, *values])
        return remaining

    def _rows_between(self, tx: Transaction, key: str, first: int, last: int) -> Span:
        """Return the first and the last row of a session between two ids."""
        ids = tx.execute(_SELECT_SPAN, key=key, first=first, last=last).one()
        return Span(ids.first_id, ids.last_id)

    def _roles_of(
        self, tx: Transaction, key: str, messages: Sequence[ChatMessage]
    ) -> Sequence[ChatMessage]:
        """Return the messages with the roles of ``as_taken``, which may depend on the message before them."""
        if not is_printed(messages[0]):
            return as_taken(messages)
        row = tx.execute(_SELECT_LAST_ROW, key=key).first()
        if row is None:
            return as_taken(messages)
        last = LogRow.from_query(row).message
        return as_taken([last, *messages])[1:]

    def _store_message_ids(
        self, tx: Transaction, key: str, rows: Sequence[Row]
    ) -> None:
        """Store the ids that programs have given the messages of new rows."""
        message_ids: dict[int, str] = {}
        for row in rows:
            message_id = message_id_of(row["data"].get("additional_kwargs") or {})
            if message_id:
                message_ids[row["timestamp"]] = message_id
        if not message_ids:
            return
        # A clock may give an earlier row the same time; the newest row counts.
        row_ids: dict[int, int] = {}
        for written in tx.execute(
            _SELECT_TIMES,
            key=key,
            first=rows[0]["timestamp"],
            last=rows[-1]["timestamp"],
        ):
            row_ids[written.timestamp] = written.id
        new_ids = [
            {"key": key, "message_id": message_id, "row_id": row_ids[timestamp]}
            for timestamp, message_id in message_ids.items()
        ]
        tx.execute(_PUT_MESSAGE_ID, new_ids)

    def unknown_within(
        self, tx: Transaction, key: str, messages: Sequence[ChatMessage]
    ) -> Sequence[ChatMessage]:
        """Return the messages whose id neither the session nor an earlier message has.

        Raises:
            MessageError: An id is neither a text of at most 255 characters nor a
                number.
        """
        ids = [
            message_id_of({ID_KEY: cleaned(message.additional_kwargs.get(ID_KEY))})
            for message in messages
        ]
        if not any(ids):
            return messages
        stored = self._messages_by_id(tx, key, list(filter(None, ids)))
        new: list[ChatMessage] = []
        for message_id, message in zip(ids, messages, strict=True):
            if message_id is None:
                new.append(message)
            elif message_id not in stored:
                new.append(message)
                stored[message_id] = storable(message)
            elif not is_same(stored[message_id], storable(message)):
                logger.warning(
                    "A message of session %r was not stored: the first one with the same message_id, which has other "
                    "words, stays. Put new words with a new message_id.",
                    key,
                )
        return new

    def _messages_by_id(
        self, tx: Transaction, key: str, ids: Sequence[str]
    ) -> dict[str, Json]:
        """Return the stored messages that have these ids."""
        messages: dict[str, Json] = {}
        for row in tx.execute(_SELECT_BY_MESSAGE_ID, key=key, message_ids=ids):
            data = row.data
            stored_id = message_id_of(data.get("additional_kwargs") or {})
            # The plain host may have deleted or replaced the message meanwhile.
            if row.message_id == stored_id:
                messages[row.message_id] = data
        return messages


def _count_same(rows: Sequence[LogRow], messages: Sequence[ChatMessage]) -> int:
    """Return how many messages at the beginning are the same as the stored ones."""
    count = 0
    for row, message in zip(rows, messages, strict=False):
        if not is_same(row.data, storable(message)):
            break
        count += 1
    return count


def _words_of(data: Json) -> str:
    """Return a stored message without its ids and times, as a text that can be compared."""
    return dumps([data.get("role"), data.get("blocks")], sort_keys=True)


def _speaker_of(message: ChatMessage, user_id: str | None) -> str | None:
    """Return the user whom a message names, or else the given user; None for a message that is not a user's."""
    if user_id is None or message.role != MessageRole.USER:
        return None
    return message_id_of(cleaned(message.additional_kwargs), SPEAKER_KEY) or user_id


def _speakers_in(
    messages: Sequence[ChatMessage], access: SessionAccess | None
) -> set[str]:
    """Return the users whom messages name, except the user who opens the session.

    Without a user, no message names one. A MessageError if a message names another user
    in a session that is not shared.
    """
    if access is None or access.user_id is None:
        return set()
    user_id = access.user_id
    speakers = {_speaker_of(message, user_id) for message in messages}
    speakers -= {user_id, None}
    if speakers and not access.shared:
        raise MessageError(
            f"Expected additional_kwargs[{SPEAKER_KEY!r}] of a message to be the user_id of the memory; saw another "
            "one, whose words would become facts of that user. Open the session with shared=True."
        )
    return {speaker for speaker in speakers if speaker}
