"""Reads the rows of each session for its readers, and keeps their cursors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, case, func, literal, null, or_, select, true

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.rows import LogPage, LogRow, Seen, Snapshot
from llama_index_memory_ext.store.runner import reads
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, LAST_ID, OWN, SHARED, upsert
from llama_index_memory_ext.store.transaction import UnchangedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.llms.types import ChatMessage
    from sqlalchemy import Connection

    from llama_index_memory_ext.store.rows import Opening
    from llama_index_memory_ext.store.runner import Database
    from llama_index_memory_ext.store.tables import Statement
    from llama_index_memory_ext.text.tool_calls import Json

logger = logging.getLogger(__name__)

# Under this key the state of a cursor lists what it says of single rows.
ROWS = "rows"
_LOG_AND_ACTIVE = [ARCHIVED, ACTIVE]
_GLANCE_ROWS = 40


class Readers:
    """The rows and the cursors of a store.

    The log of a session is its rows with the status ``archived``: they have left short-term memory. A reader of any
    name begins at the first row. Methods named ``..._within`` work in a transaction that has locked the session.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        tables = database.tables
        rows, cursors, users = tables.rows, tables.cursors, tables.users
        session: Statement = bindparam("session")
        last_id: Statement = bindparam("last_id")
        of_reader = (cursors.c.key == session, cursors.c.reader == bindparam("reader"))
        of_user = users.c.namespace == bindparam("watch")
        position = select(cursors.c.position).where(*of_reader).scalar_subquery()
        state = (
            _or_zero(select(tables.sessions.c.epoch).where(tables.sessions.c.key == session)).label("epoch"),
            position.label("position"),
            *(_or_zero(select(users.c[name]).where(of_user)).label(f"facts_{name}") for name in ("epoch", "change")),
        )
        # Statements of every turn are built once: building one costs as much as running it.
        made = select(cursors.c.state).where(*of_reader).scalar_subquery().label("state")
        self._cursor = select(null().label("id"), *state, made)
        # The last row that was seen comes along as a witness that it still exists.
        unseen = case((rows.c.id == last_id, null()), else_=rows.c.data).label("data")
        self._page = (
            select(rows.c.id, rows.c.role, unseen, rows.c.user_id, *state)
            .where(rows.c.key == session, rows.c.status == ARCHIVED, rows.c.id >= last_id)
            .where(rows.c.id > func.coalesce(position, 0), rows.c.id <= bindparam("newest"))
            .order_by(rows.c.id.desc())
            .limit(bindparam("most"))
        )
        columns = rows.c.id, rows.c.role, rows.c.data, rows.c.timestamp, rows.c.status, rows.c.user_id
        owners = tables.owners
        # Of a session that is not shared by both, the words of another user are shown to nobody else.
        others = (owners.c.key == session, owners.c.user_id != bindparam("user"))
        closed = or_(owners.c.kind == OWN, owners.c.kind == bindparam("closed"))
        count = select(func.count()).where(*others, closed).scalar_subquery().label("others")
        self._glance = _glance_of(rows, columns, (*state, count))
        some = select(*columns).order_by(rows.c.id)
        some = some.where(rows.c.key == session, rows.c.status.in_(bindparam("statuses", expanding=True)))
        self._rows = some.where(rows.c.id.in_(bindparam("ids", expanding=True)))
        self._after = some.where(rows.c.id > last_id).limit(bindparam("most")).offset(bindparam("skipped"))
        self._state = select(cursors.c.position, cursors.c.state).where(*of_reader)
        self._put = upsert(cursors, database.backend, "position", "state")
        self._add_reader = upsert(cursors, database.backend)

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
        """The oldest rows of a session with these statuses, oldest first."""
        page = {"session": key, "statuses": statuses, "last_id": after, "most": limit, "skipped": offset}
        return [LogRow(*row) for row in conn.execute(self._after, page)]

    find = reads(find_within)

    @reads
    def messages(
        self, conn: Connection, key: str, statuses: Sequence[str], after: int, *, limit: int, offset: int
    ) -> tuple[list[ChatMessage], int]:
        """The messages of ``find``, parsed where no event loop waits for them, and the id of the last row."""
        rows = self.find_within(conn, key, statuses, after, limit=limit, offset=offset)
        return [row.as_put for row in rows], rows[-1].id if rows else after

    @reads
    def glance(self, conn: Connection, key: str, reader: str, last_id: int, watch: str, opening: Opening) -> Snapshot:
        """What is active, and what the log has gained since the row ``last_id``, at most 40 rows; 0: not known.

        All that a prompt needs of a session of which the rows before are known.
        """
        given = {"session": key, "reader": reader, "watch": watch, "last_id": last_id or LAST_ID}
        given |= {"user": opening.user_in(key), "closed": OWN if opening.shared else SHARED}
        found = conn.execute(self._glance, given).all()
        now = found[0]
        rows = [LogRow(*(getattr(row, name) for name in LogRow.__slots__)) for row in found if row.id is not None]
        active, log = (tuple(row for row in rows if row.is_active is wanted) for wanted in (True, False))
        facts = (now.facts_epoch, now.facts_change)
        flags = (now.newest is None, bool(now.others))
        return Snapshot(now.epoch, now.position or 0, facts, *flags, active, log)

    @reads
    def page(
        self,
        conn: Connection,
        key: str,
        reader: str,
        seen: Seen,
        *,
        before: int | None = None,
        limit: int,
        watch: str = "",
    ) -> LogPage:
        """The newest rows of the log that this reader has neither left behind nor seen, at most ``limit``.

        With ``before`` only rows with a smaller id, to turn the page. ``watch`` is a namespace of facts: the page says
        how far its changes have come, which saves a query.
        """
        cursor = {"session": key, "reader": reader, "watch": watch}
        page = {"last_id": seen.last_id, "newest": LAST_ID if before is None else before - 1, "most": limit + 1}
        found = conn.execute(self._page, cursor | page).all()
        return _page_of(found or conn.execute(self._cursor, cursor).all(), seen, limit)

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
        """The oldest rows of the log that this reader has not left behind, or those after the row ``after``.

        ``with_active`` adds the active rows.
        """
        cursor = self._read_cursor(conn, key, reader)
        last_id = (cursor.position or 0) if after is None else after
        statuses = _LOG_AND_ACTIVE if with_active else [ARCHIVED]
        rows = self.find_within(conn, key, statuses, last_id, limit=limit)
        known = cursor.position is not None
        return LogPage(cursor.position or 0, cursor.epoch, rows, registered=known, state=cursor.state)

    def rows_within(self, conn: Connection, key: str, ids: Sequence[int]) -> list[LogRow]:
        """These rows of a session, active ones too, oldest first; rows that are gone are left out."""
        wanted = {"session": key, "ids": list(ids), "statuses": _LOG_AND_ACTIVE}
        return [LogRow(*row) for row in conn.execute(self._rows, wanted)]

    rows = reads(rows_within)

    @reads
    def rows_in(self, conn: Connection, key: str, ids: Sequence[int], epoch: int) -> list[LogRow] | None:
        """As ``rows``; None if rows of the session were deleted since ``epoch``, so that ids may be those of others."""
        rows = self.rows_within(conn, key, ids)
        return rows if (self._read_cursor(conn, key, "")).epoch == epoch else None

    @reads
    def state(self, conn: Connection, key: str, reader: str) -> tuple[int, Json]:
        """The position of a cursor, and the state that it was moved with."""
        row = conn.execute(self._state, {"session": key, "reader": reader}).first()
        return (0, None) if row is None else (row.position, row.state)

    async def move(self, key: str, reader: str, *, epoch: int, old: int, new: int, state: Json = None) -> bool:
        """Move a reader's cursor from ``old`` to ``new``, the last row that is left behind, for every process.

        ``epoch`` is the one in which the reader has read. ``state`` is what it has made of the rows before, as JSON; it
        replaces the state before. If one of these rows is deleted, the reader begins again without a state. But a
        state with ``ROWS``, a list of ``[first row, last row, ...]``, is of these rows alone: it stays, without the
        rows that are gone. So does a cursor without a state.

        False if another process has moved the cursor, rows were deleted meanwhile, or the database is busy.
        """
        try:
            moved = {"epoch": epoch, "old": old, "new": new, "state": state}
            return await self.database.run(self.move_within, key, reader, sessions=[key], **moved)
        except StoreError as error:
            logger.warning("The cursor of %s was not moved (%s); it is tried again.", reader, type(error).__name__)
            return False

    def move_within(
        self, conn: Connection, key: str, reader: str, *, epoch: int, old: int, new: int, state: Json = None
    ) -> bool:
        """As ``move``; the transaction is rolled back where it is False."""
        if self._position(conn, key, reader, epoch) != old:
            raise UnchangedError(result=False)
        conn.execute(self._put, {"key": key, "reader": reader, "position": new, "state": state})
        return True

    def register_within(self, conn: Connection, key: str, readers: Sequence[str]) -> None:
        """Store the cursors of readers, by which ``Users.pending`` knows them."""
        if readers:
            begin = [{"key": key, "reader": reader, "position": 0, "state": None} for reader in readers]
            conn.execute(self._add_reader, begin)

    def is_current_within(self, conn: Connection, key: str, epoch: int) -> bool:
        """Whether no row of the session was deleted since ``epoch``."""
        return self._position(conn, key, "", epoch) is not None

    def _position(self, conn: Connection, key: str, reader: str, epoch: int) -> int | None:
        """Where a cursor is; None if rows of the session were deleted since ``epoch``."""
        now = self._read_cursor(conn, key, reader)
        same = now.epoch == epoch
        if epoch == 0:
            # A log that only the plain host has written had no epoch before it was locked just now.
            same = bool(self.find_within(conn, key, _LOG_AND_ACTIVE, limit=1))
        return (now.position or 0) if same else None

    def _read_cursor(self, conn: Connection, key: str, reader: str) -> Statement:
        return conn.execute(self._cursor, {"session": key, "reader": reader, "watch": ""}).one()


def _page_of(found: Statement, seen: Seen, limit: int) -> LogPage:
    """The page of these rows, which are newest first, without the row that was seen last."""
    newest = found[0]
    position, facts = newest.position or 0, (newest.facts_epoch, newest.facts_change)
    rows = [row for row in found if row.id not in (None, seen.last_id)]
    witnessed = len(rows) > limit or found[-1].id == seen.last_id or seen.last_id <= position
    if seen.last_id and (newest.epoch != seen.epoch or not witnessed):
        return LogPage(position, newest.epoch, [], fresh=False, facts=facts)
    shown = [LogRow(row.id, row.role, row.data, user_id=row.user_id) for row in reversed(rows[:limit])]
    return LogPage(position, newest.epoch, shown, more=len(rows) > limit, facts=facts)


def _glance_of(rows: Statement, columns: Sequence[Statement], state: Sequence[Statement]) -> Statement:
    """The query of ``Readers.glance``: a row for each message, or one without a message."""
    session: Statement = bindparam("session")
    archived = (rows.c.key == session, rows.c.status == ARCHIVED)
    ids = select(rows.c.id).where(*archived).order_by(rows.c.id.desc())
    newest = ids.limit(1).scalar_subquery()
    # Of more rows than these, readers ask for as many as they have room for.
    before = _or_zero(ids.limit(1).offset(_GLANCE_ROWS))
    last_id: Statement = bindparam("last_id")
    # The row that is known already says that it still exists.
    row_id, role, data, *others = columns
    shown = (row_id, role, case((rows.c.id == last_id, null()), else_=data).label("data"), *others)
    active = select(*shown).where(rows.c.key == session, rows.c.status == ACTIVE)
    # Two queries, each along the index: SQLite reads the whole session for one with an "or".
    found = active.union_all(select(*shown).where(*archived, rows.c.id >= last_id, rows.c.id > before)).subquery()
    one = select(literal(1).label("one")).subquery()
    query = select(*found.c, newest.label("newest"), *state)
    return query.select_from(one.outerjoin(found, true())).order_by(found.c.id)


def _or_zero(query: Statement) -> Statement:
    return func.coalesce(query.scalar_subquery(), 0)
