"""Writes the messages of each session, and moves them from short-term memory into the log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage
from sqlalchemy import delete, func, select, update

from llama_index_memory_ext.store.database import shielded
from llama_index_memory_ext.store.readers import message_of
from llama_index_memory_ext.store.schema import ACTIVE, ARCHIVED, LAST_ID
from llama_index_memory_ext.text.messages import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.users import Users


class Log:
    """The rows of the chat table, within the transactions of a database.

    Rows of a session are written, archived and read in the order of their ids.
    """

    def __init__(self, database: Database, users: Users) -> None:
        self._database, self._users, self._tables = database, users, database.tables
        self._rows = database.tables.rows

    @shielded
    async def append(
        self,
        key: str,
        messages: Sequence[ChatMessage],
        plan_flush: Callable[[Sequence[ChatMessage]], int] | None,
        *,
        replace: bool = False,
        owners: Sequence[str] = (),
        readers: Sequence[str] = (),
    ) -> list[ChatMessage]:
        """Write messages after the active ones, and move what leaves short-term memory into the log.

        All of it is one transaction.

        Args:
            key: The session.
            messages: May be empty.
            plan_flush: Is given the active messages and then the new ones, oldest first, and says how many of the
                oldest go into the log. None: none.
            replace: Whether all messages of the session are deleted first.
            owners: Users whose session it is from now on.
            readers: Readers that ``Users.pending`` finds the session by from now on.

        Returns:
            The messages that went into the log, oldest first, as copies.
        """
        rows = [_new_row(key, message) for message in messages]
        async with self._database.writing(sessions=[key]) as connection:
            if replace:
                await self._clear(connection, key)
            active = await self._active_rows(connection, key) if plan_flush and not replace else []
            if not (rows or active or replace):
                await connection.rollback()
                return []
            await self._users.add(connection, key, owners, readers)
            old = [message_of(row) for row in active]
            flushed = plan_flush([*old, *messages]) if plan_flush else 0
            await self._archive(connection, key, active[:flushed])
            new = max(flushed - len(active), 0)
            await self._insert(connection, rows, archived=new)
        return [*old[:flushed], *(ChatMessage.model_validate(row["data"]) for row in rows[:new])]

    @shielded
    async def add(self, key: str, messages: Sequence[ChatMessage], *, archived: bool) -> None:
        """Write messages in one transaction, all active or all archived; none is fine."""
        rows = [_new_row(key, message) for message in messages]
        if rows:
            async with self._database.writing(sessions=[key]) as connection:
                await self._insert(connection, rows, archived=len(rows) if archived else 0)

    @shielded
    async def delete(self, key: str, status: str | None = None) -> None:
        """Delete the messages of a session; None: of any status."""
        async with self._database.writing(sessions=[key]) as connection:
            await self._clear(connection, key, status)

    @shielded
    async def delete_row(self, key: str, row_id: int) -> ChatMessage | None:
        """Delete one message and return it; None if the session has no such row."""
        this = (self._rows.c.key == key, self._rows.c.id == row_id)
        async with self._database.writing(sessions=[key]) as connection:
            row = (await connection.execute(select(self._rows.c.role, self._rows.c.data).where(*this))).first()
            if row is None:
                await connection.rollback()
                return None
            await connection.execute(delete(self._rows).where(*this))
            await self._start_epoch(connection, key)
        return message_of(row)

    @shielded
    async def take_oldest(self, key: str, count: int, *, archive: bool) -> list[ChatMessage]:
        """Archive the oldest active messages of a session, or delete them, and return them."""
        async with self._database.writing(sessions=[key]) as connection:
            rows = (await self._active_rows(connection, key))[:count]
            if archive:
                await self._archive(connection, key, rows)
            elif rows:
                ids = [row.id for row in rows]
                await connection.execute(delete(self._rows).where(self._rows.c.key == key, self._rows.c.id.in_(ids)))
        return [message_of(row) for row in rows]

    @shielded
    async def messages(
        self, key: str, status: str | None = None, limit: int | None = None, offset: int | None = None
    ) -> list[ChatMessage]:
        """The messages of a session, oldest first; None: of any status."""
        query = self._of(select(self._rows.c.role, self._rows.c.data), key, status).order_by(self._rows.c.id)
        # SQLite knows an offset only after a limit.
        query = query.limit(limit if limit is not None or not offset else LAST_ID).offset(offset)
        async with self._database.reading() as connection:
            return [message_of(row) for row in await connection.execute(query)]

    @shielded
    async def count(self, key: str, status: str | None = None) -> int:
        """The number of messages of a session; None: of any status."""
        query = self._of(select(func.count()).select_from(self._rows), key, status)
        async with self._database.reading() as connection:
            count: int = (await connection.execute(query)).scalar_one()
        return count

    @shielded
    async def keys(self) -> list[str]:
        """The ids of all sessions."""
        async with self._database.reading() as connection:
            return list((await connection.execute(select(self._rows.c.key).distinct())).scalars())

    @shielded
    async def dump(self) -> list[dict[str, Any]]:
        """All rows as LlamaIndex dumps them."""
        columns = [column for column in self._rows.c if column.name != "id"]
        async with self._database.reading() as connection:
            rows = await connection.execute(select(*columns).order_by(self._rows.c.id))
            return [dict(row) for row in rows.mappings()]

    # ---- within a transaction that has locked the session ------------------------------------------

    def _of(self, query: Any, key: str, status: str | None) -> Any:
        query = query.where(self._rows.c.key == key)
        return query if status is None else query.where(self._rows.c.status == status)

    async def _active_rows(self, connection: AsyncConnection, key: str) -> Sequence[Any]:
        query = select(self._rows.c.id, self._rows.c.role, self._rows.c.data).order_by(self._rows.c.id)
        return (await connection.execute(self._of(query, key, ACTIVE))).all()

    async def _archive(self, connection: AsyncConnection, key: str, rows: Sequence[Any]) -> None:
        if rows:
            active = self._of(update(self._rows), key, ACTIVE)
            await connection.execute(active.where(self._rows.c.id <= rows[-1].id).values(status=ARCHIVED))

    async def _insert(self, connection: AsyncConnection, rows: list[dict[str, Any]], *, archived: int) -> None:
        now = time.time_ns()
        for i, row in enumerate(rows):
            row.update(timestamp=now + i, status=ARCHIVED if i < archived else ACTIVE)
        if rows:
            await connection.execute(self._rows.insert(), rows)

    async def _clear(self, connection: AsyncConnection, key: str, status: str | None = None) -> None:
        await connection.execute(self._of(delete(self._rows), key, status))
        await self._start_epoch(connection, key)

    async def _start_epoch(self, connection: AsyncConnection, key: str) -> None:
        """Tell readers that rows of a session were deleted; all of them begin again."""
        sessions, cursors = self._tables.sessions, self._tables.cursors
        await connection.execute(delete(cursors).where(cursors.c.key == key))
        await connection.execute(update(sessions).where(sessions.c.key == key).values(epoch=time.time_ns()))


def _new_row(key: str, message: ChatMessage) -> dict[str, Any]:
    """A row for a message, still without its time and status."""
    return {"key": key, "role": message.role.value, "data": storable(message)}
