"""Keeps the log of each session and the cursors of its readers in one SQL database."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import DEFAULT_ASYNC_DATABASE_URI
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from llama_index_memory_ext.background.locks import uninterrupted
from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.chat_row_store import LAST_ID, ChatRowStore
from llama_index_memory_ext.store.connected_store import ConnectedStore
from llama_index_memory_ext.store.embedding_table import EmbeddingTable
from llama_index_memory_ext.store.fact_table import FactTable
from llama_index_memory_ext.store.forgetting import delete_person, delete_sessions
from llama_index_memory_ext.store.log_counts import LogCounts
from llama_index_memory_ext.store.log_rows import LogPage, LogRow, Seen, Unread, message_of, new_row, page_of
from llama_index_memory_ext.store.sessions import SessionInfo, read_sessions
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, FACTS, LOG
from llama_index_memory_ext.store.vacuum import vacuum_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

logger = logging.getLogger(__name__)

DEFAULT_TABLE_NAME = "llama_index_memory"


class MemoryStore(ChatRowStore):
    """LlamaIndex's SQL chat store with a log that blocks read by cursors.

    The chat table is the host's own, with the same columns, so an existing database keeps working; rows
    with the status ``archived`` are the log. Beside it stands ``<table_name>_cursors``. Rows of a
    session are written, archived and read in the order of their ids.

    Args:
        async_database_uri: A SQLAlchemy address with an async driver: SQLite by aiosqlite (the default is
            a private in-memory database) or PostgreSQL by asyncpg, with a new connection per transaction.
        table_name: The host's chat table.
        async_engine: An engine of your own instead of an address, with a pool as you like it. It is used as
            it is and never closed.
        db_schema: The schema of the tables, where the database has schemas.

    Raises:
        StoreError: The address cannot be read, or names a database or a driver that cannot keep the log.
    """

    _facts: FactTable = PrivateAttr()
    _embeddings: EmbeddingTable = PrivateAttr()
    _counts: LogCounts = PrivateAttr()

    def __init__(
        self,
        async_database_uri: str | None = DEFAULT_ASYNC_DATABASE_URI,
        table_name: str = DEFAULT_TABLE_NAME,
        async_engine: AsyncEngine | None = None,
        db_data: list[dict[str, Any]] | None = None,
        db_schema: str | None = None,
    ) -> None:
        # To a type checker, super() has a constructor that takes the fields.
        ConnectedStore.__init__(self, async_database_uri, table_name, async_engine, db_data, db_schema)
        tables, backend = self._tables, self._url.get_backend_name()
        self._embeddings = EmbeddingTable(self, tables.embeddings, tables.facts, backend)
        self._facts = FactTable(self, tables.facts, self._embeddings, backend)
        self._counts = LogCounts(self, tables.rows, tables.cursors, tables.facts)

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises this store."""
        return "MemoryStore"

    @property
    def facts(self) -> FactTable:
        """The facts in this database."""
        return self._facts

    @property
    def embeddings(self) -> EmbeddingTable:
        """The embeddings of the facts in this database."""
        return self._embeddings

    @property
    def counts(self) -> LogCounts:
        """How much is in this database."""
        return self._counts

    # ---- the log -----------------------------------------------------------------------------------

    @uninterrupted
    async def append(
        self,
        key: str,
        messages: Sequence[ChatMessage],
        plan_flush: Callable[[Sequence[ChatMessage]], int] | None,
        *,
        replace: bool = False,
        readers: Sequence[str] = (),
    ) -> list[ChatMessage]:
        """Write messages behind the active ones and move what leaves short-term memory into the log.

        ``plan_flush`` is given the active messages with the new ones behind them, oldest first, and says
        how many of the oldest go into the log; without it none does. ``replace`` deletes all that the session
        had before. ``readers`` are made known with the session, its owner among them. All of it is one transaction.

        Returns:
            The messages that went into the log, oldest first, as copies.
        """
        rows = [new_row(key, message) for message in messages]
        async with self.locking((key, LOG), *((key, reader) for reader in readers)) as connection:
            if replace:
                await self._delete(connection, key)
            active = await self._active_rows(connection, key) if plan_flush and not replace else []
            if not (rows or active or replace):
                # There is nothing to write: a session that was forgotten must not be known again by its lock.
                await connection.rollback()
                return []
            old = [message_of(row) for row in active]
            flushed = plan_flush([*old, *messages]) if plan_flush else 0
            await self._archive(connection, key, active[:flushed])
            new = max(flushed - len(active), 0)
            await self._insert(connection, rows, archived=new)
        return [*old[:flushed], *(ChatMessage.model_validate(row["data"]) for row in rows[:new])]

    async def set_messages(
        self, key: str, messages: Sequence[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Replace all messages of a session, the log's too."""
        archived = len(messages) if status == MessageStatus.ARCHIVED else 0
        await self.append(key, messages, lambda _: archived, replace=True)

    @uninterrupted
    async def read_log(
        self, key: str, reader: str, seen: Seen, *, before: int | None = None, limit: int, watch: str | None = None
    ) -> LogPage:
        """The newest ``limit`` rows of the log that this reader has neither left behind nor seen.

        ``before`` turns the page: only rows with a smaller id. ``watch`` names a namespace of facts: the page says
        how far its changes have come, which saves asking for them.
        """
        sql = self._statements
        cursor = {"session": key, "by": reader, **({} if watch is None else {"namespace": watch})}
        page = {"last_id": seen.last_id, "newest": LAST_ID if before is None else before - 1, "most": limit + 1}
        async with self.reading() as connection:
            found = (await connection.execute(sql.page if watch is None else sql.watching_page, cursor | page)).all()
            if not found:
                found = (await connection.execute(sql.cursor if watch is None else sql.watching_cursor, cursor)).all()
        return page_of(found, seen, limit)

    @uninterrupted
    async def move_cursor(
        self, key: str, reader: str, *, epoch: int, old: int, new: int, state: dict[str, Any] | None = None
    ) -> bool:
        """Move a reader's cursor from ``old`` to ``new``, for every worker.

        ``state`` is what the reader has made of the rows that it leaves behind, as JSON; it replaces the state before.
        False if another worker has moved it or the log was reset meanwhile, or if the database is busy.
        """
        try:
            async with self.writing(key) as connection:
                if not await self.may_move(connection, key, reader, epoch=epoch, old=old):
                    # A session that was forgotten meanwhile must not be known again by its lock.
                    await connection.rollback()
                    return False
                await self.move(connection, key, reader, epoch=epoch, position=new, state=state)
        except SQLAlchemyError as error:
            logger.warning("The cursor of %s was not moved (%s); it is tried again.", reader, type(error).__name__)
            return False
        return True

    @uninterrupted
    async def read_state(self, key: str, reader: str) -> tuple[int, dict[str, Any] | None]:
        """Where a reader's cursor stands, and the state that it was given when it was moved there."""
        async with self.reading() as connection:
            row = (await connection.execute(self._statements.row, {"session": key, "by": reader})).first()
        return (0, None) if row is None else (row.position, row.state)

    @uninterrupted
    async def read_rows(self, key: str, ids: Sequence[int], *, with_active: bool = False) -> list[LogRow]:
        """These rows of the log, on request active ones too, oldest first; those not there any more are left out."""
        wanted = {"session": key, "ids": list(ids), "statuses": _statuses(with_active=with_active)}
        async with self.reading() as connection:
            found = (await connection.execute(self._statements.rows, wanted)).all()
        return [LogRow(*row) for row in found]

    @uninterrupted
    async def read_unread(
        self, key: str, reader: str, *, with_active: bool = False, after: int | None = None, limit: int = LAST_ID
    ) -> Unread:
        """The oldest ``limit`` rows that this reader has not left behind, or all; on request the active ones too.

        ``after`` is the id of a row behind which to begin, wherever the reader's cursor stands.
        """
        async with self.reading() as connection:
            cursor = (await connection.execute(self._statements.cursor, {"session": key, "by": reader})).one()
            last_id = cursor.position if after is None else after
            page = {"session": key, "last_id": last_id, "statuses": _statuses(with_active=with_active), "most": limit}
            found = (await connection.execute(self._statements.unread, page)).all()
        return Unread(cursor.position, cursor.epoch, [LogRow(*row) for row in found])

    @uninterrupted
    async def register(self, key: str, *readers: str, epoch: int | None = None) -> bool:
        """Make readers of a session known, so that ``pending`` finds it, and ``forget_user`` by its owner.

        False if an ``epoch`` is given and the log is not that of it any more: nothing is made known then.
        """
        async with self.locking((key, LOG), *((key, reader) for reader in readers)) as connection:
            now, _ = await self.position_of(connection, key, LOG)
            same = epoch is None or await self._is_same_log(connection, key, epoch, now)
            if not same:
                await connection.rollback()
        return same

    @uninterrupted
    async def pending(self, reader: str) -> list[str]:
        """The sessions that have messages, active ones too, which this reader has not left behind."""
        async with self.reading() as connection:
            return list((await connection.execute(self._statements.pending, {"by": reader})).scalars())

    @uninterrupted
    async def count_unread(self, key: str, reader: str) -> int:
        """How many messages of a session, active ones too, this reader has not left behind."""
        async with self.reading() as connection:
            count: int = (await connection.execute(self._statements.count, {"session": key, "by": reader})).scalar_one()
        return count

    # ---- its sessions --------------------------------------------------------------------------------------

    @uninterrupted
    async def knows(self, key: str) -> bool:
        """Whether this store has ever been given a message of the session."""
        cursors, rows = self._tables.cursors, self._rows
        # A user whose id is that of the session has facts under the same key.
        of_session = (cursors.c.key == key, cursors.c.reader != FACTS)
        for query in (select(cursors.c.key).where(*of_session), select(rows.c.key).where(rows.c.key == key)):
            async with self.reading() as connection:
                if (await connection.execute(query.limit(1))).first():
                    return True
        return False

    @uninterrupted
    async def sessions(self, user_id: str | None = None, *, session_ids: Collection[str] = ()) -> list[SessionInfo]:
        """The sessions that have messages, that which was written to last first; [] if there is none.

        With a ``user_id`` only those that are known as theirs, and those of the ``session_ids``.
        """
        async with self.reading() as connection:
            return await read_sessions(connection, self._tables, user_id, session_ids)

    @uninterrupted
    async def forget(self, key: str) -> dict[str, int]:
        """Delete a session: its messages and the cursors of its readers. Returns the counts per kind."""
        counts = await delete_sessions(self, self._tables, [key])
        return {kind: counts[kind] for kind in ("messages", "cursors")}

    @uninterrupted
    async def forget_user(
        self, user_id: str, *, session_ids: Collection[str] = (), vacuum: bool = True
    ) -> dict[str, int]:
        """Delete a person: the facts, retired ones too, their embeddings, and every session that is known as theirs.

        A session is theirs if a memory with their ``user_id`` has ever written to it or has extracted their facts from
        it. If somebody else has talked in it too, it is deleted all the same, and the other's facts stay.

        Args:
            user_id: Whose. A session to which a memory without a ``user_id`` has written is its own user.
            session_ids: Further sessions that are theirs, such as those of a plain ``Memory``.
            vacuum: Whether ``vacuum`` follows, without which deleted words may still be in the file.

        Returns:
            How many rows were deleted of ``"messages"``, ``"cursors"``, ``"facts"`` and ``"embeddings"``; 0 each if
            nothing is known.

        Raises:
            StoreError: The arguments are no ids; nothing is deleted then.
        """
        counts = await delete_person(self, self._tables, user_id, session_ids)
        if vacuum:
            await self.vacuum()
        return counts

    @uninterrupted
    async def vacuum(self) -> bool:
        """Rewrite the database, so that what was deleted is not in its files any more.

        SQLite rewrites the whole file, for which nobody else may read or write, and which takes up to twice its size
        on the disk. A PostgreSQL server frees the space of the rows for new ones; its write-ahead log, replicas and
        backups are its operator's. A database in memory has no files.

        Returns:
            False if that could not be done; a warning in the log says why. Call it again then.
        """
        if self._in_memory:
            return True
        connections = await self._connections()
        try:
            async with self._alone():
                return await vacuum_tables(connections.engine, self._tables)
        except (SQLAlchemyError, StoreError, OSError) as error:
            logger.warning(
                "The database was not vacuumed (%s); deleted rows are gone, but their words may still be in its files "
                "until `await store.vacuum()` is called while nobody else uses it.",
                type(error).__name__,
            )
            return False

    # ---- its cursors ---------------------------------------------------------------------------------------

    async def position_of(self, connection: AsyncConnection, key: str, reader: str) -> tuple[int, int]:
        """The epoch and the position of a row among the cursors; (0, 0) if there is none."""
        row = (await connection.execute(self._statements.row, {"session": key, "by": reader})).first()
        return (0, 0) if row is None else (row.epoch, row.position)

    async def move(
        self,
        connection: AsyncConnection,
        key: str,
        reader: str,
        *,
        epoch: int,
        position: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        """Set the position and the state of a row among the cursors."""
        row = {"key": key, "reader": reader, "position": position, "epoch": epoch, "state": state}
        await connection.execute(self._statements.move, row)

    async def may_move(self, connection: AsyncConnection, key: str, reader: str, *, epoch: int, old: int) -> bool:
        """Whether a reader's cursor is still where it was, on the same log."""
        current = (await connection.execute(self._statements.cursor, {"session": key, "by": reader})).one()
        return bool(current.position == old) and await self._is_same_log(connection, key, epoch, current.epoch)

    async def _is_same_log(self, connection: AsyncConnection, key: str, seen: int, now: int) -> bool:
        if seen == 0:
            # A log that only the plain host has written had no epoch before it was locked just now.
            return (await connection.execute(self._statements.any, {"session": key})).first() is not None
        return seen == now


def _statuses(*, with_active: bool) -> list[str]:
    return [ARCHIVED, ACTIVE] if with_active else [ARCHIVED]
