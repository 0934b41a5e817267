"""Reads in one query what the next prompt needs of a session that is known up to a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import and_, bindparam, case, func, literal, null, or_, select

from llama_index_memory_ext.store.database import reads
from llama_index_memory_ext.store.readers import LogPage, LogRow
from llama_index_memory_ext.store.schema import ACTIVE, ARCHIVED, LAST_ID

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.readers import Readers, Seen
    from llama_index_memory_ext.store.schema import Statement

_MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Glance:
    """What a session holds at one moment.

    ``active`` are its active rows, and ``log`` the newest rows of its log from a known row on, both oldest first;
    ``is_empty``: there is no log. ``position`` is the cursor of the ``reader``. ``facts`` is the epoch and the last
    change of the namespace ``watch``, and ``epoch`` that of the session, as in ``LogPage``.
    """

    reader: str
    watch: str
    epoch: int
    position: int
    facts: tuple[int, int]
    is_empty: bool
    active: tuple[LogRow, ...]
    log: tuple[LogRow, ...]

    def page(self, reader: str, seen: Seen, *, limit: int, watch: str = "") -> LogPage | None:
        """What ``Readers.page`` would return now; None where only a query tells.

        That is where the row that was seen last is not in ``log``, where rows were deleted since, and for another
        reader or another namespace. "" is a reader without a cursor, or no namespace.
        """
        if reader not in ("", self.reader) or watch not in ("", self.watch):
            return None
        is_known = seen.epoch == self.epoch and any(row.id == seen.last_id for row in self.log)
        if not (is_known if seen.last_id else self.is_empty):
            return None
        position = self.position if reader else 0
        rows = [row for row in self.log if row.id > max(seen.last_id, position)]
        return LogPage(position, self.epoch, rows[-limit:], more=len(rows) > limit, facts=self.facts)


class Glances:
    """Takes glances at sessions."""

    def __init__(self, database: Database, readers: Readers) -> None:
        self.database = database
        rows = database.tables.rows
        session: Statement = bindparam("session")
        last_id: Statement = bindparam("last_id")
        log = select(rows.c.id).where(rows.c.key == session, rows.c.status == ARCHIVED).order_by(rows.c.id.desc())
        # Of more rows than these, readers ask for as many as they have room for.
        before = func.coalesce(log.limit(1).offset(_MOST_ROWS).scalar_subquery(), 0)
        gained = and_(rows.c.status == ARCHIVED, rows.c.id >= last_id, rows.c.id > before)
        wanted = and_(rows.c.key == session, or_(rows.c.status == ACTIVE, gained))
        # The last row that was seen comes along as a witness that it still exists.
        unseen = case((rows.c.id == last_id, null()), else_=rows.c.data).label("data")
        newest = log.limit(1).scalar_subquery().label("newest")
        # A row for each message, or one without a message.
        one = select(literal(1).label("one")).subquery()
        columns = rows.c.id, rows.c.role, unseen, rows.c.timestamp, rows.c.status
        found = select(*columns, newest, *readers.now).select_from(one.outerjoin(rows, wanted))
        self._query = found.order_by(rows.c.id)

    @reads
    async def take(self, conn: AsyncConnection, key: str, reader: str, *, last_id: int, watch: str) -> Glance:
        """The active rows, and what the log has gained since the row ``last_id``, 0 if that is not known."""
        given = {"session": key, "reader": reader, "watch": watch, "last_id": last_id or LAST_ID}
        found = (await conn.execute(self._query, given)).all()
        rows = [LogRow(row.id, row.role, row.data, row.timestamp, row.status) for row in found if row.id is not None]
        now = found[0]
        return Glance(
            reader=reader,
            watch=watch,
            epoch=now.epoch,
            position=now.position or 0,
            facts=(now.facts_epoch, now.facts_change),
            is_empty=now.newest is None,
            active=tuple(row for row in rows if row.is_active),
            log=tuple(row for row in rows if not row.is_active),
        )
