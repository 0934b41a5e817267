"""Does what LlamaIndex asks of a chat store, so that the readers of the log are told of what is deleted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy import Table, delete, func, select, update

from llama_index_memory_ext.background.locks import uninterrupted
from llama_index_memory_ext.store.connected_store import ConnectedStore
from llama_index_memory_ext.store.log_rows import message_of, new_row
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, LOG, is_reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.llms.types import ChatMessage
    from sqlalchemy.ext.asyncio import AsyncConnection

# The largest id that the host's column can hold.
LAST_ID = 2**31 - 1


class ChatRowStore(ConnectedStore):
    """The rows of the host's chat table, by the methods of a chat store."""

    @uninterrupted
    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """The messages of a session, in the order in which they were written."""
        query = self._where(select(self._rows.c.role, self._rows.c.data), key, status).order_by(self._rows.c.id)
        # SQLite knows an offset only behind a limit.
        query = query.limit(limit if limit is not None or not offset else LAST_ID).offset(offset)
        async with self.reading() as connection:
            return [message_of(row) for row in await connection.execute(query)]

    @uninterrupted
    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        """How many messages a session has."""
        query = self._where(select(func.count()).select_from(self._rows), key, status)
        async with self.reading() as connection:
            count: int = (await connection.execute(query)).scalar_one()
        return count

    async def add_message(self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE) -> None:
        """Write one message."""
        await self.add_messages(key, [message], status)

    @uninterrupted
    async def add_messages(
        self, key: str, messages: Sequence[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Write messages in one transaction; none is fine."""
        rows = [new_row(key, message) for message in messages]
        async with self.writing(key) as connection:
            await self._insert(connection, rows, archived=len(rows) if status == MessageStatus.ARCHIVED else 0)

    @uninterrupted
    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message with this row id and return it, or None if the session has none such."""
        this = (self._rows.c.key == key, self._rows.c.id == idx)
        async with self.writing(key) as connection:
            row = (await connection.execute(select(self._rows.c.role, self._rows.c.data).where(*this))).first()
            if row is None:
                return None
            await connection.execute(delete(self._rows).where(*this))
            await self._start_epoch(connection, key)
        return message_of(row)

    @uninterrupted
    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete the messages of a session."""
        async with self.writing(key) as connection:
            await self._delete(connection, key, status)

    @uninterrupted
    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest n active messages and return them."""
        async with self.writing(key) as connection:
            rows = (await self._active_rows(connection, key))[:n]
            if rows:
                await connection.execute(
                    self._where(delete(self._rows), key, MessageStatus.ACTIVE).where(self._rows.c.id <= rows[-1].id)
                )
        return [message_of(row) for row in rows]

    @uninterrupted
    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Move the oldest n active messages into the log and return them."""
        async with self.writing(key) as connection:
            rows = (await self._active_rows(connection, key))[:n]
            await self._archive(connection, key, rows)
        return [message_of(row) for row in rows]

    @uninterrupted
    async def get_keys(self) -> list[str]:
        """The ids of all sessions."""
        async with self.reading() as connection:
            return list((await connection.execute(select(self._rows.c.key).distinct())).scalars())

    @uninterrupted
    async def _dump_db_data(self) -> list[dict[str, Any]]:
        columns = [column for column in self._rows.c if column.name != "id"]
        async with self.reading() as connection:
            rows = await connection.execute(select(*columns).order_by(self._rows.c.id))
            return [dict(row) for row in rows.mappings()]

    # ---- statements ------------------------------------------------------------------------------------

    @property
    def _rows(self) -> Table:
        return self._tables.rows

    def _where(self, query: Any, key: str, status: MessageStatus | None) -> Any:
        query = query.where(self._rows.c.key == key)
        return query if status is None else query.where(self._rows.c.status == status.value)

    async def _active_rows(self, connection: AsyncConnection, key: str) -> Sequence[Any]:
        return (await connection.execute(self._statements.active, {"session": key})).all()

    async def _archive(self, connection: AsyncConnection, key: str, rows: Sequence[Any]) -> None:
        if rows:
            await connection.execute(self._statements.archive, {"session": key, "last_flushed": rows[-1].id})

    async def _insert(self, connection: AsyncConnection, rows: list[dict[str, Any]], *, archived: int) -> None:
        now = time.time_ns()
        for i, row in enumerate(rows):
            row.update(timestamp=now + i, status=ARCHIVED if i < archived else ACTIVE)
        if rows:
            await connection.execute(self._statements.insert, rows)

    async def _delete(self, connection: AsyncConnection, key: str, status: MessageStatus | None = None) -> None:
        await connection.execute(self._where(delete(self._rows), key, status))
        await self._start_epoch(connection, key)

    async def _start_epoch(self, connection: AsyncConnection, key: str) -> None:
        cursors = self._tables.cursors
        await connection.execute(delete(cursors).where(cursors.c.key == key, is_reader(cursors.c.reader)))
        await self.start_epoch(connection, key, LOG)

    async def start_epoch(self, connection: AsyncConnection, key: str, lock: str) -> None:
        """Tell all that remember rows under this lock that some of them were deleted."""
        cursors = self._tables.cursors
        await connection.execute(
            update(cursors).where(cursors.c.key == key, cursors.c.reader == lock).values(epoch=time.time_ns())
        )
