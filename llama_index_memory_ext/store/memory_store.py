"""Keeps the log of each session and the cursors of its readers in one SQL database."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import Field, PrivateAttr, ValidationError, model_serializer
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import DEFAULT_ASYNC_DATABASE_URI, SQLAlchemyChatStore
from sqlalchemy import MetaData, Table, delete, func, select, text, update
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.schema import CreateIndex, CreateTable

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.locks import lock_for, uninterrupted
from llama_index_memory_ext.store.embedding_table import EmbeddingTable, define_embeddings
from llama_index_memory_ext.store.engine import (
    BUSY_SECONDS,
    check_backend,
    checked_url,
    is_in_memory,
    open_anchor,
    open_engine,
    place_of,
    shown,
)
from llama_index_memory_ext.store.fact_table import FactTable, define_facts
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, FACTS, LOG, Statements, define_cursors, define_rows
from llama_index_memory_ext.transcript import RESULT_ROLES, storable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncConnection

logger = logging.getLogger(__name__)

DEFAULT_TABLE_NAME = "llama_index_memory"

_LOCKED_SECONDS = 0.01
# The largest id that the host's column can hold.
_LAST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LogRow:
    """One message of the log, parsed when it is asked for. ``id`` grows in the order of writing.

    ``timestamp`` is when it was written, in nanoseconds since 1970; 0 where nobody asked for it.
    """

    id: int
    role: str
    data: Any
    timestamp: int = 0

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
        """The message; a stand-in if this version of the host cannot read it."""
        return _message(self)


@dataclass(frozen=True, slots=True)
class LogPage:
    """What a reader is given: its cursor, and a page of the log behind it, oldest row first.

    ``position`` is the last row that the reader has left behind, 0 at the beginning. ``epoch`` changes
    whenever rows were deleted. ``fresh`` is false, and the page empty, if that has happened since ``Seen``:
    what was remembered of the session is void then. ``more`` is true if there are older rows before the page.
    ``facts`` is the epoch and the last change of the facts that were watched.
    """

    position: int
    epoch: int
    fresh: bool
    more: bool
    rows: list[LogRow]
    facts: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """The oldest rows that a reader has not left behind, and where its cursor stands."""

    position: int
    epoch: int
    rows: list[LogRow]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader remembers of a session: the epoch, its cursor, and the last row that it was given."""

    epoch: int = 0
    position: int = 0
    last_id: int = 0


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
    _cursors: Table = PrivateAttr()
    _facts: FactTable = PrivateAttr()
    _embeddings: EmbeddingTable = PrivateAttr()
    _statements: Statements = PrivateAttr()
    _owns_engine: bool = PrivateAttr(default=False)
    _ready: bool = PrivateAttr(default=False)
    _anchor: Any = PrivateAttr(default=None)

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
        self._metadata = MetaData(schema=None if url.get_backend_name() == "sqlite" else db_schema)
        self._table = define_rows(table_name, self._metadata)
        self._cursors = define_cursors(table_name, self._metadata)
        backend = url.get_backend_name()
        facts, embeddings = define_facts(table_name, self._metadata), define_embeddings(table_name, self._metadata)
        self._embeddings = EmbeddingTable(self, embeddings, facts, backend)
        self._facts = FactTable(self, facts, self._embeddings, backend)
        self._statements = Statements(self._table, self._cursors, backend)

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
    ) -> list[ChatMessage]:
        """Write messages behind the active ones and move what leaves short-term memory into the log.

        ``plan_flush`` is given the active messages with the new ones behind them, oldest first, and says
        how many of the oldest go into the log; without it none does. ``replace`` deletes all that the session
        had before. All of it is one transaction.

        Returns:
            The messages that went into the log, oldest first, as copies.
        """
        rows = [_new_row(key, message) for message in messages]
        async with self.writing(key) as connection:
            if replace:
                await self._delete(connection, key)
            active = await self._active_rows(connection, key) if plan_flush and not replace else []
            old = [_message(row) for row in active]
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
        return _page(found, seen, limit)

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
    async def read_rows(self, key: str, ids: Sequence[int]) -> list[LogRow]:
        """These rows of the log, oldest first; those that are not there any more are left out."""
        async with self.reading() as connection:
            found = (await connection.execute(self._statements.rows, {"session": key, "ids": list(ids)})).all()
        return [LogRow(*row) for row in found]

    @uninterrupted
    async def knows(self, key: str) -> bool:
        """Whether this store has ever been given a message of the session."""
        for table in (self._cursors, self._rows):
            async with self.reading() as connection:
                if (await connection.execute(select(table.c.key).where(table.c.key == key).limit(1))).first():
                    return True
        return False

    @uninterrupted
    async def forget(self, key: str) -> dict[str, int]:
        """Delete a session: its messages and the cursors of its readers. Returns the counts per kind."""
        counts = {}
        async with self.writing(key) as connection:
            for kind, table in (("messages", self._rows), ("cursors", self._cursors)):
                query = delete(table).where(table.c.key == key)
                if table is self._cursors:
                    query = query.where(table.c.reader != FACTS)
                counts[kind] = (await connection.execute(query)).rowcount
        # The row that this very call has locked is nobody's.
        counts["cursors"] -= 1
        return counts

    async def aclose(self) -> None:
        """Close the engine if this store has opened it; a later call opens it again.

        An in-memory database is gone then.
        """
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
            return [_message(row) for row in await connection.execute(query)]

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
        rows = [_new_row(key, message) for message in messages]
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
        return _message(row)

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
        return [_message(row) for row in rows]

    @uninterrupted
    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Move the oldest n active messages into the log and return them."""
        async with self.writing(key) as connection:
            rows = (await self._active_rows(connection, key))[:n]
            await self._archive(connection, key, rows)
        return [_message(row) for row in rows]

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
        cursors = self._cursors
        await connection.execute(delete(cursors).where(cursors.c.key == key, cursors.c.reader.not_in((LOG, FACTS))))
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
        cursors = self._cursors
        await connection.execute(
            update(cursors).where(cursors.c.key == key, cursors.c.reader == lock).values(epoch=time.time_ns())
        )

    async def lock(self, connection: AsyncConnection, key: str, reader: str) -> None:
        """Lock a row among the cursors until the transaction ends; it is made if there is none."""
        row = {"key": key, "reader": reader, "position": 0, "epoch": time.time_ns()}
        await connection.execute(self._statements.lock, row)

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
        # A log that only the plain host has written had no epoch before it was locked just now.
        return current.position == old and epoch in (0, current.epoch)

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
    async def register(self, key: str, reader: str) -> None:
        """Make a reader of a session known, so that ``pending`` finds it."""
        async with self.writing(key) as connection:
            await self.lock(connection, key, reader)

    @uninterrupted
    async def pending(self, reader: str) -> list[str]:
        """The sessions that have messages, active ones too, which this reader has not left behind."""
        async with self.reading() as connection:
            return list((await connection.execute(self._statements.pending, {"by": reader})).scalars())

    # ---- connections -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def writing(self, key: str, lock: str = LOG) -> AsyncIterator[AsyncConnection]:
        """A transaction that no other writer of this session can come between, in any process.

        Its first statement writes the session's log row: that locks the row on PostgreSQL, and makes
        SQLite take its write lock at once instead of failing when it would have to upgrade a read lock.
        """
        engine = await self._engine()
        async with self._alone(), engine.begin() as connection:
            await self._lock_patiently(connection, key, lock)
            yield connection

    async def _lock_patiently(self, connection: AsyncConnection, key: str, lock: str) -> None:
        """Lock, and wait for a connection in memory that was thrown away while it was writing: it is being closed."""
        give_up = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return await self.lock(connection, key, lock)
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
            engine = self._async_engine or self._opened_engine()
            if not self._ready:
                try:
                    await self._create_tables(engine)
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

    async def _create_tables(self, engine: AsyncEngine) -> None:
        # "if not exists" rather than looking first: two processes may be starting at the same time.
        async with engine.begin() as connection:
            if self._metadata.schema is not None:
                await connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{self._metadata.schema}"'))
            for table in self._metadata.sorted_tables:
                await connection.execute(CreateTable(table, if_not_exists=True))
                for index in sorted(table.indexes, key=lambda index: str(index.name)):
                    await connection.execute(CreateIndex(index, if_not_exists=True))
            if self._db_data:
                await connection.execute(self._statements.insert, self._db_data)
                self._db_data = None


def _reopen(uri: str, table_name: str, db_schema: str | None) -> MemoryStore:
    return MemoryStore(uri, table_name=table_name, db_schema=db_schema)


def _page(found: Sequence[Any], seen: Seen, limit: int) -> LogPage:
    """The page that was found, newest row first, without the row that was seen last."""
    epoch, position = found[0].epoch, found[0].position
    facts = (found[0].facts_epoch, found[0].facts_change) if "facts_epoch" in found[0]._fields else None
    rows = [row for row in found if row.id not in (None, seen.last_id)]
    witnessed = len(rows) > limit or found[-1].id == seen.last_id or seen.last_id <= position
    if seen.last_id and (epoch != seen.epoch or not witnessed):
        return LogPage(position, epoch, fresh=False, more=False, rows=[], facts=facts)
    shown = [LogRow(row.id, row.role, row.data) for row in reversed(rows[:limit])]
    return LogPage(position, epoch, fresh=True, more=len(rows) > limit, rows=shown, facts=facts)


def _new_row(key: str, message: ChatMessage) -> dict[str, Any]:
    return {"key": key, "role": message.role.value, "data": storable(message)}


def _message(row: Any) -> ChatMessage:
    try:
        return ChatMessage.model_validate(row.data)
    except ValidationError:
        # One row that this version of the host cannot read must not make a whole session unreadable.
        logger.warning("A stored %s message cannot be read by this version of LlamaIndex.", row.role)
        return ChatMessage(role=row.role, content="[unreadable message]")
