"""Reads the rows of each session for its readers, and keeps their cursors."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import (
    Connection,
    bindparam,
    case,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    true,
    update,
)

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.runner import Database, reads
from llama_index_memory_ext.store.tables import (
    ACTIVE,
    ARCHIVED,
    EPOCHS,
    LAST_ID,
    OWN,
    SHARED,
    CursorState,
    FactsVersion,
    LogPage,
    LogRow,
    ReadPosition,
    SessionAccess,
    Snapshot,
    Statement,
    Tables,
    exists_within,
    upsert,
)
from llama_index_memory_ext.text.messages import (
    spoken,
)
from llama_index_memory_ext.words.forms import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.text.tool_calls import Json

logger = logging.getLogger(__name__)

_LOG_AND_ACTIVE = [ARCHIVED, ACTIVE]
# A prompt reads at most so many rows of the log in one query. For more rows, a reader
# asks for pages that fit its limit.
_GLANCE_ROWS = 40

_SESSION: Statement = bindparam("session")
_LAST_READ: Statement = bindparam("last_id")


class Readers:
    """The rows and the cursors of a store.

    The log of a session is its rows with the status ``archived``: they have left
    short-term memory. A reader of any name begins at the first row. Methods named
    ``..._within`` work in a transaction that has locked the session.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        tables = database.tables
        # Every turn runs these statements. To build one takes as long as to run it, so
        # they are built once.
        self._select_cursor = _select_cursor(tables)
        self._put_cursor = upsert(tables.cursors, database.backend, "position", "state")
        self._add_cursor = upsert(tables.cursors, database.backend)
        self._select_newest = _select_newest(tables)
        self._select_glance = _select_glance(tables)
        rows = tables.rows
        stored = (
            select(*rows.c["id", "role", "data", "timestamp", "status", "user_id"])
            .where(
                rows.c.key == _SESSION,
                rows.c.status.in_(bindparam("statuses", expanding=True)),
            )
            .order_by(rows.c.id)
        )
        self._select_by_id = stored.where(
            rows.c.id.in_(bindparam("ids", expanding=True))
        )
        self._select_after = (
            stored.where(rows.c.id > _LAST_READ)
            .limit(bindparam("most"))
            .offset(bindparam("skipped"))
        )

    def find_within(
        self,
        conn: Connection,
        key: str,
        statuses: Sequence[str],
        after: int = 0,
        *,
        limit: int = LAST_ID,
        offset: int = 0,
    ) -> list[LogRow]:
        """Return the oldest rows of a session with these statuses, oldest first."""
        page = {
            "session": key,
            "statuses": statuses,
            "last_id": after,
            "most": limit,
            "skipped": offset,
        }
        return [
            LogRow.from_query(row) for row in conn.execute(self._select_after, page)
        ]

    find = reads(find_within)

    @reads
    def glance(
        self,
        conn: Connection,
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
        parameters = {
            "session": key,
            "reader": reader,
            "watch": watch,
            "last_id": last_id or LAST_ID,
            "user": access.user_in(key),
            "closed": OWN if access.shared else SHARED,
        }
        result = conn.execute(self._select_glance, parameters).all()
        session = result[0]
        page = _page_without_rows(session)
        active: list[LogRow] = []
        log: list[LogRow] = []
        for row in result:
            if row.status == ACTIVE:
                active.append(LogRow.from_query(row))
            elif row.id is not None:
                log.append(LogRow.from_query(row))
        return Snapshot(
            epoch=page.epoch,
            position=page.position,
            facts=page.facts,
            is_empty=session.newest is None,
            is_closed=bool(session.other_owners),
            active=tuple(active),
            log=tuple(log),
        )

    @reads
    def page(
        self,
        conn: Connection,
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
        parameters = {
            "session": key,
            "reader": reader,
            "watch": watch,
            "last_id": last_id,
            "newest": LAST_ID if before is None else before - 1,
            "most": limit + 1,
        }
        result = conn.execute(self._select_newest, parameters).all()
        page = _page_without_rows(result[0])
        # The plain host deletes rows without a new epoch. So the query also returns the
        # row that the reader has read last, if it still exists.
        is_last_stored = False
        rows: list[LogRow] = []
        for row in result:
            if row.id == last_id:
                is_last_stored = True
            elif row.id is not None:
                rows.append(LogRow.from_query(row))
        is_whole = is_last_stored or len(rows) > limit or last_id <= page.position
        if last_id and not (is_whole and page.epoch == seen.epoch):
            return replace(page, fresh=False)
        return replace(page, rows=rows[-limit:], more=len(rows) > limit)

    @reads
    def unread(
        self,
        conn: Connection,
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
        page = self._cursor_of(conn, key, reader)
        if after is None:
            after = page.position
        statuses = _LOG_AND_ACTIVE if with_active else [ARCHIVED]
        rows = self.find_within(conn, key, statuses, after, limit=limit)
        return replace(page, rows=rows)

    def rows_within(
        self, conn: Connection, key: str, ids: Sequence[int]
    ) -> list[LogRow]:
        """Return the rows of a session with these ids, active ones too, oldest first; deleted rows are left out."""
        parameters = {"session": key, "ids": list(ids), "statuses": _LOG_AND_ACTIVE}
        result = conn.execute(self._select_by_id, parameters)
        return [LogRow.from_query(row) for row in result]

    rows = reads(rows_within)

    def lines_within(self, conn: Connection, key: str) -> frozenset[str]:
        """Return the lines of all messages of a session, as the ``source`` of a fact holds them."""
        lines: set[str] = set()
        for row in self.find_within(conn, key, _LOG_AND_ACTIVE):
            lines.update(visible(spoken(row.message)).splitlines())
        return frozenset(lines)

    @reads
    def rows_in(
        self, conn: Connection, key: str, ids: Sequence[int], epoch: int
    ) -> list[LogRow] | None:
        """As ``rows``; None if rows were deleted since ``epoch``, because later rows may have got their ids."""
        rows = self.rows_within(conn, key, ids)
        if self._cursor_of(conn, key, "").epoch == epoch:
            return rows
        return None

    @reads
    def state(self, conn: Connection, key: str, reader: str) -> CursorState:
        """Return the position of a cursor, and the state that was stored with it."""
        page = self._cursor_of(conn, key, reader)
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
        conn: Connection,
        key: str,
        reader: str,
        *,
        epoch: int,
        old: int,
        new: int,
        state: Json = None,
    ) -> bool:
        """As ``move``; the transaction is rolled back where it is False."""
        if not self.is_current_within(conn, key, epoch, reader, old):
            conn.rollback()
            return False
        cursor = {"key": key, "reader": reader, "position": new, "state": state}
        conn.execute(self._put_cursor, cursor)
        return True

    @reads
    def names(self, conn: Connection, key: str) -> list[str]:
        """Return the names of the readers of a session, sorted."""
        cursors = self.database.tables.cursors
        query = select(cursors.c.reader).where(cursors.c.key == key)
        return list(conn.scalars(query.order_by(cursors.c.reader)))

    @reads
    def has_session(self, conn: Connection, key: str) -> bool:
        """Return whether a message was ever stored in a session."""
        return exists_within(
            conn, key, self.database.tables.sessions, self.database.tables.rows
        )

    @reads
    def sessions_of_reader(
        self, conn: Connection, reader: str, *, pending: bool = False
    ) -> list[str]:
        """Return the sessions in which this reader is registered; ``pending``: only with unread messages."""
        rows = self.database.tables.rows
        cursors = self.database.tables.cursors
        query = select(cursors.c.key).where(cursors.c.reader == reader)
        if pending:
            unread = (rows.c.key == cursors.c.key, rows.c.id > cursors.c.position)
            query = query.where(exists().where(*unread))
        return list(conn.scalars(query))

    @reads
    def count_messages(
        self,
        conn: Connection,
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
        rows = self.database.tables.rows
        cursors = self.database.tables.cursors
        position = (
            select(cursors.c.position)
            .where(cursors.c.key == key, cursors.c.reader == reader)
            .scalar_subquery()
        )
        query = select(func.count()).where(
            rows.c.key == key,
            rows.c.id > func.coalesce(position, after),
            rows.c.id > after,
            rows.c.id <= last,
        )
        if status:
            query = query.where(rows.c.status == status)
        return conn.execute(query).scalar_one()

    def facts_readers_within(
        self, conn: Connection, key: str, user_id: str
    ) -> list[str]:
        """Return the names of the readers that extract a user's facts from a session."""
        cursors = self.database.tables.cursors
        names = conn.scalars(select(cursors.c.reader).where(cursors.c.key == key)).all()
        return [name for name in names if name.endswith(f" of {user_id}")]

    def register_within(
        self, conn: Connection, key: str, readers: Sequence[str]
    ) -> None:
        """Store the cursors of readers, so that ``sessions_of_reader`` returns their session."""
        if readers:
            cursors = [
                {"key": key, "reader": reader, "position": 0, "state": None}
                for reader in readers
            ]
            conn.execute(self._add_cursor, cursors)

    def renew_within(self, conn: Connection, key: str) -> None:
        """Give a session a new epoch, so that its readers read it again."""
        sessions = self.database.tables.sessions
        conn.execute(
            update(sessions).where(sessions.c.key == key).values(epoch=time.time_ns())
        )
        conn.info[EPOCHS].pop(key, None)

    def is_current_within(
        self,
        conn: Connection,
        key: str,
        epoch: int,
        reader: str = "",
        position: int = 0,
    ) -> bool:
        """Return whether no row of the session was deleted since ``epoch``, and a reader is at ``position``."""
        cursor = self._cursor_of(conn, key, reader)
        is_same = cursor.epoch == epoch
        if epoch == 0 and not is_same:
            # A log that only the plain host has written has got its epoch by the lock
            # of this transaction.
            is_same = bool(self.find_within(conn, key, _LOG_AND_ACTIVE, limit=1))
        return is_same and cursor.position == position

    def _cursor_of(self, conn: Connection, key: str, reader: str) -> LogPage:
        """Return a page without rows, and with the state of the cursor."""
        parameters = {"session": key, "reader": reader, "watch": ""}
        cursor = conn.execute(self._select_cursor, parameters).one()
        return replace(_page_without_rows(cursor), state=cursor.state)


def _page_without_rows(cursor: Statement) -> LogPage:
    return LogPage(
        position=cursor.position or 0,
        epoch=cursor.epoch or 0,
        rows=[],
        registered=cursor.position is not None,
        facts=FactsVersion(cursor.facts_epoch or 0, cursor.facts_change or 0),
    )


def _of_cursor(column: Statement) -> Statement:
    """Return a subquery for a column of the cursor of ``reader`` in ``session``."""
    cursors = column.table
    query = select(column).where(
        cursors.c.key == _SESSION, cursors.c.reader == bindparam("reader")
    )
    return query.scalar_subquery()


def _cursor_columns(tables: Tables) -> list[Statement]:
    """Return the epoch of ``session``, the position of ``reader``, and the version of the facts of ``watch``."""
    sessions = tables.sessions
    users = tables.users
    epoch = select(sessions.c.epoch).where(sessions.c.key == _SESSION)
    of_user = users.c.namespace == bindparam("watch")
    facts_epoch = select(users.c.epoch).where(of_user)
    facts_change = select(users.c.change).where(of_user)
    return [
        epoch.scalar_subquery().label("epoch"),
        _of_cursor(tables.cursors.c.position).label("position"),
        facts_epoch.scalar_subquery().label("facts_epoch"),
        facts_change.scalar_subquery().label("facts_change"),
    ]


def _select_cursor(tables: Tables) -> Statement:
    """Return the query for the cursor of a reader, with its state."""
    state = _of_cursor(tables.cursors.c.state).label("state")
    return select(*_cursor_columns(tables), state)


def _message_columns(tables: Tables) -> list[Statement]:
    rows = tables.rows
    # The reader has the message of the row that it has read last. The query only shows
    # whether that row still exists.
    unread = case((rows.c.id == _LAST_READ, null()), else_=rows.c.data)
    return [
        rows.c.id,
        rows.c.role,
        unread.label("data"),
        rows.c.timestamp,
        rows.c.status,
        rows.c.user_id,
    ]


def _beside_cursor(
    tables: Tables, messages: Statement, *columns: Statement
) -> Statement:
    """Return a query with the cursor beside each of the messages; one row with the cursor alone if there is none."""
    message = messages.subquery()
    cursor = select(literal(1).label("row")).subquery()
    return (
        select(*message.c, *_cursor_columns(tables), *columns)
        .select_from(cursor.outerjoin(message, true()))
        .order_by(message.c.id)
    )


def _select_newest(tables: Tables) -> Statement:
    """Return the query for the newest rows of the log behind a cursor, up to ``newest``."""
    rows = tables.rows
    unread = (
        select(*_message_columns(tables))
        .where(
            rows.c.key == _SESSION,
            rows.c.status == ARCHIVED,
            rows.c.id >= _LAST_READ,
            rows.c.id > func.coalesce(_of_cursor(tables.cursors.c.position), 0),
            rows.c.id <= bindparam("newest"),
        )
        .order_by(rows.c.id.desc())
        .limit(bindparam("most"))
    )
    return _beside_cursor(tables, unread)


def _select_glance(tables: Tables) -> Statement:
    """Return the query for the active rows, the newest rows of the log, and the owners who close the session."""
    rows = tables.rows
    owners = tables.owners
    in_log = (rows.c.key == _SESSION, rows.c.status == ARCHIVED)
    newest_ids = select(rows.c.id).where(*in_log).order_by(rows.c.id.desc()).limit(1)
    before = func.coalesce(newest_ids.offset(_GLANCE_ROWS).scalar_subquery(), 0)
    columns = _message_columns(tables)
    active = select(*columns).where(rows.c.key == _SESSION, rows.c.status == ACTIVE)
    log = select(*columns).where(*in_log, rows.c.id >= _LAST_READ, rows.c.id > before)
    # The words of another owner are shown only if both have opened the session as
    # shared.
    is_closed = or_(owners.c.kind == OWN, owners.c.kind == bindparam("closed"))
    other_owners = select(func.count()).where(
        owners.c.key == _SESSION, owners.c.user_id != bindparam("user"), is_closed
    )
    return _beside_cursor(
        tables,
        # Two queries, each along the index: SQLite reads the whole session for one with
        # an "or".
        active.union_all(log),
        newest_ids.scalar_subquery().label("newest"),
        other_owners.scalar_subquery().label("other_owners"),
    )
