"""Writes the messages of each session, and moves them from short-term memory into the log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import ChatMessage
from sqlalchemy import String, cast, delete, insert, select, update

from llama_index_memory_ext.store.database import UnchangedError, writes_session
from llama_index_memory_ext.store.schema import ACTIVE, ARCHIVED, vectors_namespace
from llama_index_memory_ext.text.messages import storable
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.readers import LogRow, Readers
    from llama_index_memory_ext.store.schema import Row, Statement


class Log:
    """Writes the rows of the chat table; those of a session are written and archived in the order of their ids."""

    def __init__(self, database: Database, readers: Readers) -> None:
        self.database, self._readers, self._tables = database, readers, database.tables

    @writes_session
    async def append(
        self,
        conn: AsyncConnection,
        key: str,
        messages: Sequence[ChatMessage],
        plan_flush: Callable[[Sequence[ChatMessage]], int] | None,
        *,
        replace: bool = False,
        owners: Sequence[str] = (),
        readers: Sequence[str] = (),
    ) -> list[ChatMessage]:
        """Write messages after the active ones, and move what leaves short-term memory into the log.

        ``plan_flush`` is given the active messages and then the new ones, oldest first. It returns how many of the
        oldest go into the log; without it, none. With ``replace`` all messages of the session are deleted first.
        ``owners`` are users whose session it is from now on, and ``readers`` those by which ``Users.pending`` finds it.
        Returns copies of the messages that went into the log, oldest first.
        """
        if replace:
            await self._delete(conn, key)
        active = await self._readers.find_within(conn, key, [ACTIVE]) if plan_flush and not replace else []
        if not (messages or active or replace):
            raise UnchangedError(result=[])
        await self._readers.register_within(conn, key, owners, readers)
        old = [row.message for row in active]
        flushed = plan_flush([*old, *messages]) if plan_flush else 0
        await self._take(conn, key, active[:flushed], archive=True)
        new = max(flushed - len(old), 0)
        rows = await self._insert(conn, key, messages, archived=new)
        return [*old[:flushed], *(ChatMessage.model_validate(row["data"]) for row in rows[:new])]

    @writes_session
    async def delete_row(self, conn: AsyncConnection, key: str, row_id: int) -> ChatMessage | None:
        """Delete one message and return it; None if the session has no such row."""
        found = await self._readers.rows_within(conn, key, [row_id])
        if not found:
            raise UnchangedError
        rows, vectors = self._tables.rows, self._tables.embeddings
        # A result has been embedded together with its call, which comes before it.
        calls = select(rows.c.id).where(rows.c.key == key, rows.c.id <= row_id, rows.c.role.not_in(RESULT_ROLES))
        first = (await conn.execute(calls.order_by(rows.c.id.desc()).limit(1))).scalar()
        of_session = vectors.c.namespace == vectors_namespace(key)
        await conn.execute(delete(vectors).where(of_session, vectors.c.id == str(first)))
        await self._delete(conn, key, rows.c.id == row_id)
        return found[0].message

    @writes_session
    async def delete(self, conn: AsyncConnection, key: str, status: str | None = None) -> None:
        """Delete the messages of a session; None: of any status."""
        await self._delete(conn, key, *([self._tables.rows.c.status == status] if status else []))

    @writes_session
    async def take_oldest(self, conn: AsyncConnection, key: str, count: int, *, archive: bool) -> list[ChatMessage]:
        """Archive the oldest active messages of a session, or delete them, and return them."""
        oldest = await self._readers.find_within(conn, key, [ACTIVE], limit=count)
        await self._take(conn, key, oldest, archive=archive)
        return [row.message for row in oldest]

    async def _take(self, conn: AsyncConnection, key: str, oldest: Sequence[LogRow], *, archive: bool) -> None:
        if oldest:
            rows = self._tables.rows
            change = update(rows).values(status=ARCHIVED) if archive else delete(rows)
            these = (rows.c.key == key, rows.c.status == ACTIVE, rows.c.id <= oldest[-1].id)
            await conn.execute(change.where(*these))
            if not archive:
                await self._delete_vectors(conn, key)

    async def _insert(
        self, conn: AsyncConnection, key: str, messages: Sequence[ChatMessage], *, archived: int
    ) -> list[Row]:
        """Write messages, the first ones into the log; returns the rows."""
        now = time.time_ns()
        rows = [
            {
                "key": key,
                "timestamp": now + i,
                "role": message.role.value,
                "status": ARCHIVED if i < archived else ACTIVE,
                "data": storable(message),
            }
            for i, message in enumerate(messages)
        ]
        if rows:
            await conn.execute(insert(self._tables.rows), rows)
        return rows

    add = writes_session(_insert)

    async def _delete(self, conn: AsyncConnection, key: str, *conditions: Statement) -> None:
        """Delete rows of a session, and tell its readers, which begin again."""
        rows = self._tables.rows
        await conn.execute(delete(rows).where(rows.c.key == key, *conditions))
        await self._delete_vectors(conn, key)
        sessions, cursors = self._tables.sessions, self._tables.cursors
        await conn.execute(delete(cursors).where(cursors.c.key == key))
        await conn.execute(update(sessions).where(sessions.c.key == key).values(epoch=time.time_ns()))
        self.database.row_locks.begin_again(conn, key)

    async def _delete_vectors(self, conn: AsyncConnection, key: str) -> None:
        """Delete the vectors of messages that are gone."""
        rows, vectors = self._tables.rows, self._tables.embeddings
        left = select(cast(rows.c.id, String)).where(rows.c.key == key)
        of_session = vectors.c.namespace == vectors_namespace(key)
        await conn.execute(delete(vectors).where(of_session, vectors.c.id.not_in(left)))
