"""Reads the rows of each session for its readers, and keeps their cursors."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import (
    Connection,
    bindparam,
    case,
    func,
    literal,
    null,
    or_,
    select,
    true,
)

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.language.words import visible
from llama_index_memory_ext.store.runner import Database, reads
from llama_index_memory_ext.store.tables import (
    ACTIVE,
    ARCHIVED,
    LAST_ID,
    OWN,
    SHARED,
    LogPage,
    LogRow,
    Opening,
    Seen,
    Snapshot,
    Statement,
    upsert,
)
from llama_index_memory_ext.text.messages import spoken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.text.tool_calls import Json

logger = logging.getLogger(__name__)

_LOG_AND_ACTIVE = [ARCHIVED, ACTIVE]


class Readers:
    """The rows and the cursors of a store.

    The log of a session is its rows with the status ``archived``: they have left
    short-term memory. A reader of any name begins at the first row. Methods named
    ``..._within`` work in a transaction that has locked the session.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        rows = database.tables.rows
        cursors = database.tables.cursors
        users = database.tables.users
        owners = database.tables.owners
        sessions = database.tables.sessions
        # Statements of every turn are built once: building one costs as much as running
        # it.
        session: Statement = bindparam("session")
        last_id: Statement = bindparam("last_id")
        of_reader = (cursors.c.key == session, cursors.c.reader == bindparam("reader"))
        of_user = users.c.namespace == bindparam("watch")
        position = select(cursors.c.position).where(*of_reader).scalar_subquery()
        cursor = (
            select(sessions.c.epoch)
            .where(sessions.c.key == session)
            .scalar_subquery()
            .label("epoch"),
            position.label("position"),
            select(users.c.epoch).where(of_user).scalar_subquery().label("facts_epoch"),
            select(users.c.change)
            .where(of_user)
            .scalar_subquery()
            .label("facts_change"),
        )
        self._cursor = select(
            *cursor,
            select(cursors.c.state).where(*of_reader).scalar_subquery().label("state"),
        )
        self._put = upsert(cursors, database.backend, "position", "state")
        self._add = upsert(cursors, database.backend)

        def beside_cursor(found: Statement, *more: Statement) -> Statement:
            """Return a row for each message that was found, with the cursor; or one without a message."""
            each = found.subquery()
            one = select(literal(1).label("one")).subquery().outerjoin(each, true())
            return select(*each.c, *cursor, *more).select_from(one).order_by(each.c.id)

        # What is known of a row that was seen last is that it still exists.
        unseen = case((rows.c.id == last_id, null()), else_=rows.c.data).label("data")
        columns = (
            rows.c.id,
            rows.c.role,
            unseen,
            rows.c.timestamp,
            rows.c.status,
            rows.c.user_id,
        )
        archived = (rows.c.key == session, rows.c.status == ARCHIVED)
        behind = select(*columns).where(
            *archived, rows.c.id >= last_id, rows.c.id > func.coalesce(position, 0)
        )
        behind = behind.where(rows.c.id <= bindparam("newest")).order_by(
            rows.c.id.desc()
        )
        self._newest = beside_cursor(behind.limit(bindparam("most")))
        some = select(
            *rows.c["id", "role", "data", "timestamp", "status", "user_id"]
        ).order_by(rows.c.id)
        some = some.where(
            rows.c.key == session,
            rows.c.status.in_(bindparam("statuses", expanding=True)),
        )
        self._rows = some.where(rows.c.id.in_(bindparam("ids", expanding=True)))
        self._after = (
            some.where(rows.c.id > last_id)
            .limit(bindparam("most"))
            .offset(bindparam("skipped"))
        )

        # Of a session that is not shared by both, the words of another user are shown
        # to nobody else.
        closed = or_(owners.c.kind == OWN, owners.c.kind == bindparam("closed"))
        others = select(func.count()).where(
            owners.c.key == session, owners.c.user_id != bindparam("user"), closed
        )
        ids = select(rows.c.id).where(*archived).order_by(rows.c.id.desc())
        # Of more rows than 40, readers ask for as many as they have room for.
        before = func.coalesce(ids.limit(1).offset(40).scalar_subquery(), 0)
        active = select(*columns).where(rows.c.key == session, rows.c.status == ACTIVE)
        # Two queries, each along the index: SQLite reads the whole session for one with
        # an "or".
        found = active.union_all(
            select(*columns).where(*archived, rows.c.id >= last_id, rows.c.id > before)
        )
        newest = ids.limit(1).scalar_subquery().label("newest")
        count = others.scalar_subquery().label("others")
        self._glance = beside_cursor(found, newest, count)

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
        return [LogRow(*row) for row in conn.execute(self._after, page)]

    find = reads(find_within)

    @reads
    def glance(
        self,
        conn: Connection,
        key: str,
        reader: str,
        last_id: int,
        watch: str,
        opening: Opening,
    ) -> Snapshot:
        """What is active, and what the log has gained since the row ``last_id``, at most 40 rows; 0: not known.

        All that a prompt needs of a session of which the rows before are known.
        """
        given = {
            "session": key,
            "reader": reader,
            "watch": watch,
            "last_id": last_id or LAST_ID,
        }
        given |= {
            "user": opening.user_in(key),
            "closed": OWN if opening.shared else SHARED,
        }
        found = conn.execute(self._glance, given).all()
        now = found[0]
        page = _page_at(found[0])
        rows = [LogRow(*row[:6]) for row in found if row.id is not None]
        active, log = (
            tuple(row for row in rows if row.is_active is wanted)
            for wanted in (True, False)
        )
        flags = now.newest is None, bool(now.others)
        return Snapshot(page.epoch, page.position, page.facts, *flags, active, log)

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
        """Return the newest rows of the log that this reader has neither left behind nor seen, at most ``limit``.

        With ``before`` only rows with a smaller id, to turn the page. ``watch`` is a
        namespace of facts: the page says how far its changes have come, which saves a
        query.
        """
        newest = LAST_ID if before is None else before - 1
        last_id = seen.last_id
        given = {
            "session": key,
            "reader": reader,
            "watch": watch,
            "last_id": last_id,
            "newest": newest,
        }
        found = conn.execute(self._newest, {**given, "most": limit + 1}).all()
        page = _page_at(found[0])
        # The row that was seen last comes along as a witness that it still exists,
        # which the plain host does not tell.
        rows = [LogRow(*row[:6]) for row in found if row.id not in (None, last_id)]
        is_whole = (
            len(rows) > limit
            or last_id in [row.id for row in found]
            or last_id <= page.position
        )
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
        """Return the oldest rows of the log that this reader has not left behind, or those after the row ``after``.

        ``with_active`` adds the active rows.
        """
        page = self._cursor_of(conn, key, reader)
        if with_active:
            statuses = _LOG_AND_ACTIVE
        else:
            statuses = [ARCHIVED]
        return replace(
            page,
            rows=self.find_within(
                conn,
                key,
                statuses,
                page.position if after is None else after,
                limit=limit,
            ),
        )

    def rows_within(
        self, conn: Connection, key: str, ids: Sequence[int]
    ) -> list[LogRow]:
        """Return these rows of a session, active ones too, oldest first; rows that are gone are left out."""
        wanted = {"session": key, "ids": list(ids), "statuses": _LOG_AND_ACTIVE}
        return [LogRow(*row) for row in conn.execute(self._rows, wanted)]

    rows = reads(rows_within)

    def lines_within(self, conn: Connection, key: str) -> frozenset[str]:
        """Return the lines of all that is said in a session, as the text around a fact holds them."""
        rows = self.find_within(conn, key, _LOG_AND_ACTIVE)
        return frozenset(
            line for row in rows for line in visible(spoken(row.message)).splitlines()
        )

    @reads
    def rows_in(
        self, conn: Connection, key: str, ids: Sequence[int], epoch: int
    ) -> list[LogRow] | None:
        """As ``rows``; None if rows of the session were deleted since ``epoch``, so that ids may be those of others."""
        rows = self.rows_within(conn, key, ids)
        if self._cursor_of(conn, key, "").epoch == epoch:
            return rows
        return None

    @reads
    def state(self, conn: Connection, key: str, reader: str) -> tuple[int, Json]:
        """Return the position of a cursor, and the state that it was moved with."""
        page = self._cursor_of(conn, key, reader)
        return page.position, page.state

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
        """Move a reader's cursor from ``old`` to ``new``, the last row that is left behind, for every process.

        ``epoch`` is the one in which the reader has read. ``state`` is what it has made
        of the rows before, as JSON; it replaces the state before. If one of these rows
        is deleted, the reader begins again without a state. But a state with ``ROWS``,
        a list of ``[first row, last row, ...]``, is of these rows alone: it stays,
        without the rows that are gone. So does a cursor without a state.

        False if another process has moved the cursor, rows were deleted meanwhile, or
        the database is busy.
        """
        try:
            moved = {"epoch": epoch, "old": old, "new": new, "state": state}
            return await self.database.run(
                self.move_within, key, reader, sessions=[key], **moved
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
        conn.execute(
            self._put, {"key": key, "reader": reader, "position": new, "state": state}
        )
        return True

    @reads
    def names(self, conn: Connection, key: str) -> list[str]:
        """Return the readers of a session, by name."""
        cursors = self.database.tables.cursors
        return list(
            conn.scalars(
                select(cursors.c.reader)
                .where(cursors.c.key == key)
                .order_by(cursors.c.reader)
            )
        )

    def register_within(
        self, conn: Connection, key: str, readers: Sequence[str]
    ) -> None:
        """Store the cursors of readers, by which ``Users.pending`` knows them."""
        if readers:
            conn.execute(
                self._add,
                [
                    {"key": key, "reader": one, "position": 0, "state": None}
                    for one in readers
                ],
            )

    def is_current_within(
        self,
        conn: Connection,
        key: str,
        epoch: int,
        reader: str = "",
        position: int = 0,
    ) -> bool:
        """Return whether no row of the session was deleted since ``epoch``, and a reader is at ``position``."""
        now = self._cursor_of(conn, key, reader)
        # A log that only the plain host has written had no epoch before it was locked
        # just now.
        is_same = now.epoch == epoch or (
            epoch == 0 and bool(self.find_within(conn, key, _LOG_AND_ACTIVE, limit=1))
        )
        return is_same and now.position == position

    def _cursor_of(self, conn: Connection, key: str, reader: str) -> LogPage:
        found = conn.execute(
            self._cursor, {"session": key, "reader": reader, "watch": ""}
        ).one()
        return replace(_page_at(found), state=found.state)


def _page_at(now: Statement) -> LogPage:
    """Return a page without rows."""
    facts = (now.facts_epoch or 0, now.facts_change or 0)
    known = now.position is not None
    return LogPage(now.position or 0, now.epoch or 0, [], registered=known, facts=facts)
