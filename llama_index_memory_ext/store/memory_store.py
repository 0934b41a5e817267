"""Keeps the log of each session and the cursors of its readers in one SQL database."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import Field, PrivateAttr, model_serializer
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import DEFAULT_ASYNC_DATABASE_URI, SQLAlchemyChatStore
from sqlalchemy import Table, delete, func, select, update
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.job_board import JobBoard
from llama_index_memory_ext.locks import lock_for, uninterrupted
from llama_index_memory_ext.store.embedding_table import EmbeddingTable
from llama_index_memory_ext.store.engine import (
    BUSY_SECONDS,
    check_backend,
    checked_url,
    in_transactions,
    is_in_memory,
    is_missing,
    open_anchor,
    open_engine,
    place_of,
    shown,
)
from llama_index_memory_ext.store.fact_table import FactTable
from llama_index_memory_ext.store.forgetting import delete_person, delete_sessions
from llama_index_memory_ext.store.log_counts import LogCounts
from llama_index_memory_ext.store.log_rows import LogPage, LogRow, Seen, Unread, message_of, new_row, page_of
from llama_index_memory_ext.store.schema import Tables, define_tables, make_ready, version_of
from llama_index_memory_ext.store.sessions import SessionInfo, read_sessions
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, FACTS, LOG, Statements, is_reader
from llama_index_memory_ext.store.vacuum import vacuum_tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncConnection

logger = logging.getLogger(__name__)

DEFAULT_TABLE_NAME = "llama_index_memory"

_LOCKED_SECONDS = 0.01
# The largest id that the host's column can hold.
_LAST_ID = 2**31 - 1


class MemoryStore(SQLAlchemyChatStore):
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

    async_database_uri: str = Field(
        default=DEFAULT_ASYNC_DATABASE_URI, repr=False, description="SQLAlchemy async connection URI"
    )

    _url: URL = PrivateAttr()
    _in_memory: bool = PrivateAttr(default=True)
    _identity: tuple[str, ...] = PrivateAttr(default=())
    _tables: Tables = PrivateAttr()
    _facts: FactTable = PrivateAttr()
    _embeddings: EmbeddingTable = PrivateAttr()
    _counts: LogCounts = PrivateAttr()
    _statements: Statements = PrivateAttr()
    _owns_engine: bool = PrivateAttr(default=False)
    _ready: bool = PrivateAttr(default=False)
    _anchor: Any = PrivateAttr(default=None)
    _board: JobBoard = PrivateAttr(default_factory=JobBoard)

    def __init__(
        self,
        async_database_uri: str | None = DEFAULT_ASYNC_DATABASE_URI,
        table_name: str = DEFAULT_TABLE_NAME,
        async_engine: AsyncEngine | None = None,
        db_data: list[dict[str, Any]] | None = None,
        db_schema: str | None = None,
    ) -> None:
        url = checked_url(async_database_uri) if async_engine is None else async_engine.url
        check_backend(url)
        super().__init__(
            table_name=table_name,
            # Nothing asks for it but people and dumps, who need not see the password.
            async_database_uri=shown(url),
            async_engine=async_engine,
            db_data=db_data,
            db_schema=db_schema,
        )
        self._url = url
        self._owns_engine = async_engine is None
        self._in_memory = is_in_memory(url)
        place = f"memory {id(async_engine or self)}" if self._in_memory else place_of(url)
        self._identity = (place, str(self.db_schema), table_name)
        backend = url.get_backend_name()
        self._tables = tables = define_tables(table_name, None if backend == "sqlite" else db_schema)
        self._table, self._metadata = tables.rows, tables.metadata
        self._embeddings = EmbeddingTable(self, tables.embeddings, tables.facts, backend)
        self._facts = FactTable(self, tables.facts, self._embeddings, backend)
        self._counts = LogCounts(self, tables.rows, tables.cursors, tables.facts)
        self._statements = Statements(tables.rows, tables.cursors, backend)

    # ---- what it is --------------------------------------------------------------------------------

    @property
    def is_in_memory(self) -> bool:
        """Whether everything is gone when this store is."""
        return self._in_memory

    @property
    def identity(self) -> tuple[str, ...]:
        """What two stores of one process have in common if they keep their rows in the same table."""
        return self._identity

    @property
    def address(self) -> str:
        """Where the database is: its address without the password and the options, which may hold one."""
        return DEFAULT_ASYNC_DATABASE_URI if self._in_memory else self._url.set(query={}).render_as_string()

    @property
    def counts(self) -> LogCounts:
        """How much is in this database."""
        return self._counts

    @property
    def board(self) -> JobBoard:
        """What memories on this store have under way beside the conversation."""
        return self._board

    @property
    def _uri_without_password(self) -> str:
        return DEFAULT_ASYNC_DATABASE_URI if self._in_memory else self.async_database_uri

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [("async_database_uri", self._uri_without_password), ("table_name", self.table_name)]

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> MemoryStore:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # An engine cannot travel and a password must not: the copy opens its own connections.
        return _reopen, (self._uri_without_password, self.table_name, self.db_schema)

    def __del__(self) -> None:
        private = getattr(self, "__pydantic_private__", None) or {}
        if private.get("_anchor") is not None:
            private["_anchor"].close()
        if private.get("_ready") and private.get("_owns_engine") and not self._in_memory:
            warnings.warn(
                f"{self!r} was not closed. Close it with `await store.aclose()`, a memory with "
                "`await memory.aclose()` or `async with memory:`.",
                ResourceWarning,
                stacklevel=2,
            )

    @model_serializer()
    def dump_store(self) -> dict[str, Any]:
        """The settings without the password, and the rows if they are kept in memory only."""
        dump: dict[str, Any] = {
            "table_name": self.table_name,
            "async_database_uri": self._uri_without_password,
            "db_schema": self.db_schema,
        }
        if self._in_memory:
            dump["db_data"] = asyncio_run(self._dump_db_data())
        return dump

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises this store."""
        return "MemoryStore"

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
        page = {"last_id": seen.last_id, "newest": _LAST_ID if before is None else before - 1, "most": limit + 1}
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
        statuses = [ARCHIVED, ACTIVE] if with_active else [ARCHIVED]
        wanted = {"session": key, "ids": list(ids), "statuses": statuses}
        async with self.reading() as connection:
            found = (await connection.execute(self._statements.rows, wanted)).all()
        return [LogRow(*row) for row in found]

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
        engine = await self._engine()
        try:
            async with self._alone():
                return await vacuum_tables(engine, self._tables)
        except (SQLAlchemyError, StoreError, OSError) as error:
            logger.warning(
                "The database was not vacuumed (%s); deleted rows are gone, but their words may still be in its files "
                "until `await store.vacuum()` is called while nobody else uses it.",
                type(error).__name__,
            )
            return False

    @uninterrupted
    async def read_schema_version(self) -> int | None:
        """Which version the tables of the database have, ``SCHEMA_VERSION`` once this store has used it.

        Nothing is made or changed by asking, and a version that is too new to be opened comes back too. None if
        there is no database file, or none of the tables of this package are there, as in a database of the plain host.
        """
        engine = self._async_engine
        if engine is None and is_missing(self._url):
            return None
        looking = engine or open_engine(self._url)
        try:
            async with self._alone() if self._in_memory else nullcontext(), looking.connect() as connection:
                return await connection.run_sync(version_of, self._tables)
        finally:
            if engine is None:
                await looking.dispose()

    async def aclose(self) -> None:
        """Close the engine if this store has opened it; a later call opens it again.

        What memories on this store have under way beside their conversations, in this event loop, is ended first, and
        taken up by the next memory of that session or user. An in-memory database is gone then.
        """
        await self._board.stop()
        if self._owns_engine and self._async_engine is not None:
            engine, self._async_engine = self._async_engine, None
            self._async_session_factory, self._ready = None, False
            await engine.dispose()
            if self._anchor is not None:
                self._anchor.close()
                self._anchor = None

    # ---- what the host asks of a chat store ------------------------------------------------------------

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
        query = query.limit(limit if limit is not None or not offset else _LAST_ID).offset(offset)
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

    async def set_messages(
        self, key: str, messages: Sequence[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Replace all messages of a session, the log's too."""
        archived = len(messages) if status == MessageStatus.ARCHIVED else 0
        await self.append(key, messages, lambda _: archived, replace=True)

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
        assert self._table is not None
        return self._table

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

    # ---- what the facts need ---------------------------------------------------------------------------

    @property
    def facts(self) -> FactTable:
        """The facts in this database."""
        return self._facts

    @property
    def embeddings(self) -> EmbeddingTable:
        """The embeddings of the facts in this database."""
        return self._embeddings

    async def start_epoch(self, connection: AsyncConnection, key: str, lock: str) -> None:
        """Tell all that remember rows under this lock that some of them were deleted."""
        cursors = self._tables.cursors
        await connection.execute(
            update(cursors).where(cursors.c.key == key, cursors.c.reader == lock).values(epoch=time.time_ns())
        )

    async def lock(self, connection: AsyncConnection, *places: tuple[str, str]) -> None:
        """Lock rows among the cursors, by key and reader, until the transaction ends; missing ones are made."""
        now = time.time_ns()
        rows = [{"key": key, "reader": reader, "position": 0, "epoch": now} for key, reader in places]
        await connection.execute(self._statements.lock, rows)

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

    @uninterrupted
    async def read_unread(
        self, key: str, reader: str, *, with_active: bool = False, after: int | None = None, limit: int
    ) -> Unread:
        """The oldest ``limit`` rows that this reader has not left behind; on request the active ones too.

        ``after`` is the id of a row behind which to begin, wherever the reader's cursor stands.
        """
        statuses = [ARCHIVED, ACTIVE] if with_active else [ARCHIVED]
        async with self.reading() as connection:
            cursor = (await connection.execute(self._statements.cursor, {"session": key, "by": reader})).one()
            last_id = cursor.position if after is None else after
            page = {"session": key, "last_id": last_id, "statuses": statuses, "most": limit}
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

    # ---- connections -----------------------------------------------------------------------------------

    def writing(self, key: str, lock: str = LOG) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction that no other writer of this session, or of these facts, can come between."""
        return self.locking((key, lock))

    @asynccontextmanager
    async def locking(self, *places: tuple[str, str]) -> AsyncIterator[AsyncConnection]:
        """A transaction that no other writer of these can come between, in any process.

        Its first statement writes the rows that serve as locks: that locks them on PostgreSQL, and makes
        SQLite take its write lock at once instead of failing when it would have to upgrade a read lock.
        """
        engine = await self._engine()
        async with self._alone(), engine.begin() as connection:
            await self._lock_patiently(connection, places)
            yield connection

    async def _lock_patiently(self, connection: AsyncConnection, places: Sequence[tuple[str, str]]) -> None:
        """Lock, and wait for a connection in memory that was thrown away while it was writing: it is being closed."""
        give_up = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return await self.lock(connection, *places)
            except OperationalError:  # noqa: PERF203 - it has to be tried again
                if self._anchor is None or time.monotonic() > give_up:
                    raise
                await asyncio.sleep(_LOCKED_SECONDS)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection to read with."""
        engine = await self._engine()
        # An in-memory database has one connection: its readers must not end a writer's transaction.
        async with self._alone() if self._in_memory else nullcontext(), engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """SQLite has one writer at a time: waiting here is cheaper than its own waiting by polling."""
        if self._url.get_backend_name() != "sqlite":
            yield
            return
        lock = lock_for("database", *self.identity)
        try:
            await lock.acquire(BUSY_SECONDS)
        except asyncio.TimeoutError:
            raise StoreError(
                f"The database was busy for {BUSY_SECONDS} s. A synchronous call (put, get, ...) within a running "
                "event loop waits for ever if a task of the same loop is writing: await aput, aget, ... there."
            ) from None
        try:
            yield
        finally:
            lock.release()

    async def _engine(self) -> AsyncEngine:
        if self._ready and self._async_engine is not None:
            return self._async_engine
        async with lock_for("setup", *self.identity):
            if self._ready and self._async_engine is not None:
                # Somebody else has opened it, and it must not be given the same options once more.
                return self._async_engine
            engine = in_transactions(self._async_engine or self._opened_engine(), lent=not self._owns_engine)
            try:
                await self._make_ready(engine)
            except BaseException:
                if self._async_engine is None:
                    await engine.dispose()
                raise
            self._async_engine, self._ready = engine, True
        return engine

    def _opened_engine(self) -> AsyncEngine:
        if self._in_memory and "mode" not in self._url.query:
            url, self._anchor = open_anchor()
            return open_engine(url)
        return open_engine(self._url)

    async def _initialize(self) -> tuple[Any, Table]:
        """The host's own door to the table, for its code that passes the methods above by."""
        engine = await self._engine()
        return async_sessionmaker(bind=engine, expire_on_commit=False), self._rows

    async def _make_ready(self, engine: AsyncEngine) -> None:
        # An engine in memory that was lent has one connection, which another store may be writing with.
        async with self._alone() if self._in_memory else nullcontext():
            await make_ready(engine, self._tables)
            if self._db_data:
                async with engine.begin() as connection:
                    await connection.execute(self._statements.insert, self._db_data)
                self._db_data = None


def _reopen(uri: str, table_name: str, db_schema: str | None) -> MemoryStore:
    return MemoryStore(uri, table_name=table_name, db_schema=db_schema)
