"""Reads the log of each session for its readers, and keeps their cursors."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import ValidationError
from sqlalchemy import and_, bindparam, case, func, null, select
from sqlalchemy.exc import SQLAlchemyError

from llama_index_memory_ext.store.database import shielded
from llama_index_memory_ext.store.schema import ACTIVE, ARCHIVED, LAST_ID, upsert
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class LogRow:
    """One message of a session, parsed when it is asked for. ``id`` grows in the order of writing.

    ``timestamp`` is when it was written, in nanoseconds since 1970; 0 where the query did not ask for it.
    """

    id: int
    role: str
    data: Any
    timestamp: int = 0

    @property
    def written_at(self) -> datetime | None:
        """When it was written (UTC); None where that is unknown."""
        return written_at(self.timestamp)

    @property
    def is_result(self) -> bool:
        """Whether it is a tool's result."""
        return self.role in RESULT_ROLES

    @property
    def characters(self) -> int:
        """About how long its text is."""
        blocks = self.data.get("blocks") if isinstance(self.data, dict) else None
        return sum(len(block.get("text") or "") for block in blocks or () if isinstance(block, dict))

    @property
    def message(self) -> ChatMessage:
        """The message; a placeholder if this version of LlamaIndex cannot read it."""
        return message_of(self)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader remembers of a session: the epoch, its cursor, and the last row that it was given."""

    epoch: int = 0
    position: int = 0
    last_id: int = 0


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of the log for a reader, oldest row first.

    ``position`` is the reader's cursor: the last row that it has left behind, 0 at the beginning. ``epoch`` changes
    whenever rows were deleted. ``fresh`` is false, and the page empty, if that has happened since ``Seen``: what was
    remembered of the session is void then. ``more`` is true if there are older rows before the page. ``facts`` is the
    epoch and the last change of the facts that were watched.
    """

    position: int
    epoch: int
    fresh: bool
    more: bool
    rows: list[LogRow]
    facts: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """The oldest rows that a reader has not left behind, and its cursor."""

    position: int
    epoch: int
    rows: list[LogRow]


class Readers:
    """The rows and the cursors of a store, within the transactions of its database.

    The log of a session is its rows with the status ``archived``: they have left short-term memory. A reader of any
    name begins at the first row.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        tables = database.tables
        rows, cursors, users = tables.rows, tables.cursors, tables.users
        session: Any = bindparam("session")
        last_id: Any = bindparam("last_id")
        of_reader = (cursors.c.key == session, cursors.c.reader == bindparam("by"))
        of_user = users.c.namespace == bindparam("namespace")
        epoch = _value(tables.sessions.c.epoch, tables.sessions.c.key == session).label("epoch")
        position = _value(cursors.c.position, *of_reader).label("position")
        watched = [_value(column, of_user) for column in (users.c.epoch, users.c.change)]
        labelled = [column.label(name) for column, name in zip(watched, ("facts_epoch", "facts_change"), strict=True)]
        # Statements of every turn are built once: building one costs as much as running it.
        self._active = select(rows.c.role, rows.c.data).where(rows.c.key == session, rows.c.status == ACTIVE)
        self._active = self._active.order_by(rows.c.id)
        self._cursor = select(null().label("id"), epoch, position)
        # The last row that was seen comes along as a witness that it still exists.
        unseen = case((rows.c.id == last_id, null()), else_=rows.c.data).label("data")
        self._page = (
            select(rows.c.id, rows.c.role, unseen, epoch, position)
            .where(rows.c.key == session, rows.c.status == ARCHIVED)
            .where(rows.c.id >= last_id, rows.c.id > position, rows.c.id <= bindparam("newest"))
            .order_by(rows.c.id.desc())
            .limit(bindparam("most"))
        )
        self._watching = {False: (self._page, self._cursor)}
        self._watching[True] = (self._page.add_columns(*labelled), self._cursor.add_columns(*labelled))
        columns = (rows.c.id, rows.c.role, rows.c.data, rows.c.timestamp)
        chosen = and_(rows.c.key == session, rows.c.status.in_(bindparam("statuses", expanding=True)))
        self._rows = select(*columns).where(chosen, rows.c.id.in_(bindparam("ids", expanding=True))).order_by(rows.c.id)
        self._unread = select(*columns).where(chosen, rows.c.id > last_id).order_by(rows.c.id).limit(bindparam("most"))
        self._any = select(rows.c.id).where(rows.c.key == session).limit(1)
        self._state = select(cursors.c.position, cursors.c.state).where(*of_reader)
        put = upsert(cursors, database.backend)
        moved = {"position": put.excluded.position, "state": put.excluded.state}
        self._put = put.on_conflict_do_update(index_elements=["key", "reader"], set_=moved)

    # ---- rows --------------------------------------------------------------------------------------

    @shielded
    async def active(self, key: str) -> list[ChatMessage]:
        """The messages of a session that are not in the log yet, oldest first."""
        async with self._database.reading() as connection:
            return [message_of(row) for row in await connection.execute(self._active, {"session": key})]

    @shielded
    async def page(
        self, key: str, reader: str, seen: Seen, *, before: int | None = None, limit: int, watch: str | None = None
    ) -> LogPage:
        """The newest rows of the log that this reader has neither left behind nor seen.

        Args:
            key: The session.
            reader: Whose cursor is looked at.
            seen: What the reader remembers of the session.
            before: Only rows with a smaller id, to turn the page; None: from the newest on.
            limit: Most rows.
            watch: A namespace of facts: the page says how far its changes have come, which saves a query.
        """
        cursor = {"session": key, "by": reader, **({} if watch is None else {"namespace": watch})}
        page = {"last_id": seen.last_id, "newest": LAST_ID if before is None else before - 1, "most": limit + 1}
        query, empty = self._watching[watch is not None]
        async with self._database.reading() as connection:
            found = (await connection.execute(query, cursor | page)).all()
            if not found:
                found = (await connection.execute(empty, cursor)).all()
        return _page_of(found, seen, limit)

    @shielded
    async def unread(
        self, key: str, reader: str, *, with_active: bool = False, after: int | None = None, limit: int = LAST_ID
    ) -> Unread:
        """The oldest rows that this reader has not left behind, on request also the active ones.

        Args:
            key: The session.
            reader: Whose cursor is looked at.
            with_active: Whether active messages are rows, too.
            after: The id of a row to begin after, wherever the reader's cursor is.
            limit: Most rows.
        """
        async with self._database.reading() as connection:
            cursor = (await connection.execute(self._cursor, {"session": key, "by": reader})).one()
            last_id = cursor.position if after is None else after
            page = {"session": key, "last_id": last_id, "statuses": _statuses(with_active=with_active), "most": limit}
            found = (await connection.execute(self._unread, page)).all()
        return Unread(cursor.position, cursor.epoch, [LogRow(*row) for row in found])

    @shielded
    async def rows(self, key: str, ids: Sequence[int], *, with_active: bool = False) -> list[LogRow]:
        """These rows of the log, on request also active ones, oldest first; rows that are gone are left out."""
        wanted = {"session": key, "ids": list(ids), "statuses": _statuses(with_active=with_active)}
        async with self._database.reading() as connection:
            return [LogRow(*row) for row in await connection.execute(self._rows, wanted)]

    # ---- cursors -----------------------------------------------------------------------------------

    @shielded
    async def state(self, key: str, reader: str) -> tuple[int, dict[str, Any] | None]:
        """The position of a cursor, and the state that it was moved with."""
        async with self._database.reading() as connection:
            row = (await connection.execute(self._state, {"session": key, "by": reader})).first()
        return (0, None) if row is None else (row.position, row.state)

    @shielded
    async def move(
        self, key: str, reader: str, *, epoch: int, old: int, new: int, state: dict[str, Any] | None = None
    ) -> bool:
        """Move a cursor from ``old`` to ``new``, for every process.

        Args:
            key: The session.
            reader: Whose cursor it is.
            epoch: The epoch in which the reader has read.
            old: Where the reader has seen its cursor.
            new: The last row that is left behind.
            state: What the reader has made of the rows before, as JSON; it replaces the state before.

        Returns:
            False if another process has moved it, rows were deleted meanwhile, or the database is busy.
        """
        try:
            async with self._database.writing(sessions=[key]) as connection:
                moved = await self.move_within(connection, key, reader, epoch=epoch, old=old, new=new, state=state)
                if not moved:
                    await connection.rollback()
        except SQLAlchemyError as error:
            logger.warning("The cursor of %s was not moved (%s); it is tried again.", reader, type(error).__name__)
            return False
        return moved

    async def move_within(
        self,
        connection: AsyncConnection,
        key: str,
        reader: str,
        *,
        epoch: int,
        old: int,
        new: int,
        state: dict[str, Any] | None = None,
    ) -> bool:
        """As ``move``, within a transaction that has locked the session; the caller rolls back where it is False."""
        now = (await connection.execute(self._cursor, {"session": key, "by": reader})).one()
        if now.position != old or not await self.is_same_log(connection, key, epoch, now.epoch):
            return False
        await connection.execute(self._put, {"key": key, "reader": reader, "position": new, "state": state})
        return True

    async def is_same_log(self, connection: AsyncConnection, key: str, seen: int, now: int | None = None) -> bool:
        """Whether no rows of a session were deleted since the epoch ``seen``; ``now`` is the epoch, if it is known."""
        if seen == 0:
            # A log that only the plain host has written had no epoch before it was locked just now.
            return (await connection.execute(self._any, {"session": key})).first() is not None
        if now is None:
            now = (await connection.execute(self._cursor, {"session": key, "by": ""})).one().epoch
        return seen == now


def written_at(timestamp: int | None) -> datetime | None:
    """When a row was written (UTC), from nanoseconds since 1970; None if that is no time of a clock.

    >>> written_at(1_700_000_000_000_000_000).isoformat(), written_at(0)
    ('2023-11-14T22:13:20+00:00', None)
    """
    if not timestamp or timestamp < 0:
        return None
    try:
        return _EPOCH + timedelta(microseconds=timestamp // 1_000)
    except OverflowError:
        return None


def message_of(row: Any) -> ChatMessage:
    """The message of a row; a placeholder if this version of LlamaIndex cannot read it."""
    try:
        return ChatMessage.model_validate(row.data)
    except ValidationError:
        # One such row must not make a whole session unreadable.
        logger.warning("A stored %s message cannot be read by this version of LlamaIndex.", row.role)
        return ChatMessage(role=row.role, content="[unreadable message]")


def _page_of(found: Sequence[Any], seen: Seen, limit: int) -> LogPage:
    """The page of these rows, which are newest first, without the row that was seen last."""
    epoch, position = found[0].epoch, found[0].position
    facts = (found[0].facts_epoch, found[0].facts_change) if "facts_epoch" in found[0]._fields else None
    rows = [row for row in found if row.id not in (None, seen.last_id)]
    witnessed = len(rows) > limit or found[-1].id == seen.last_id or seen.last_id <= position
    if seen.last_id and (epoch != seen.epoch or not witnessed):
        return LogPage(position, epoch, fresh=False, more=False, rows=[], facts=facts)
    shown = [LogRow(row.id, row.role, row.data) for row in reversed(rows[:limit])]
    return LogPage(position, epoch, fresh=True, more=len(rows) > limit, rows=shown, facts=facts)


def _statuses(*, with_active: bool) -> list[str]:
    return [ARCHIVED, ACTIVE] if with_active else [ARCHIVED]


def _value(column: Any, *where: Any) -> Any:
    return func.coalesce(select(column).where(*where).scalar_subquery(), 0)
