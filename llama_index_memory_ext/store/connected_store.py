"""Opens a database, gives connections to it, and closes it."""

from __future__ import annotations

import asyncio
import time
import warnings
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from llama_index.core.async_utils import asyncio_run
from llama_index.core.bridge.pydantic import Field, PrivateAttr, model_serializer
from llama_index.core.storage.chat_store.sql import DEFAULT_ASYNC_DATABASE_URI, SQLAlchemyChatStore
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from llama_index_memory_ext.background.job_board import JobBoard
from llama_index_memory_ext.background.locks import lock_for, uninterrupted
from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.connections import Connections
from llama_index_memory_ext.store.engine import (
    BUSY_SECONDS,
    check_backend,
    checked_url,
    is_in_memory,
    is_missing,
    open_anchor,
    open_engine,
    place_of,
    shown,
)
from llama_index_memory_ext.store.schema import Tables, define_tables, make_ready, version_of
from llama_index_memory_ext.store.tables import LOG, Statements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sqlalchemy import Table
    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncConnection
    from typing_extensions import Self

_LOCKED_SECONDS = 0.01


class ConnectedStore(SQLAlchemyChatStore):
    """A SQL chat store of LlamaIndex's that takes care of its own connections, and of what may be shown of them."""

    async_database_uri: str = Field(
        default=DEFAULT_ASYNC_DATABASE_URI, repr=False, description="SQLAlchemy async connection URI"
    )

    _url: URL = PrivateAttr()
    _in_memory: bool = PrivateAttr(default=True)
    _identity: tuple[str, ...] = PrivateAttr(default=())
    _tables: Tables = PrivateAttr()
    _statements: Statements = PrivateAttr()
    _owns_engine: bool = PrivateAttr(default=False)
    _ready: Connections | None = PrivateAttr(default=None)
    _anchor: Any = PrivateAttr(default=None)
    _board: JobBoard = PrivateAttr(default_factory=JobBoard)

    def __init__(
        self,
        async_database_uri: str | None,
        table_name: str,
        async_engine: AsyncEngine | None,
        db_data: list[dict[str, Any]] | None,
        db_schema: str | None,
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
    def board(self) -> JobBoard:
        """What memories on this store have under way beside the conversation."""
        return self._board

    @property
    def _uri_without_password(self) -> str:
        return DEFAULT_ASYNC_DATABASE_URI if self._in_memory else self.async_database_uri

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [("async_database_uri", self._uri_without_password), ("table_name", self.table_name)]

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # An engine cannot travel and a password must not: the copy opens its own connections.
        return type(self), (self._uri_without_password, self.table_name, None, None, self.db_schema)

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
        connections = await self._connections()
        async with self._alone(), connections.begin() as connection:
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

    async def lock(self, connection: AsyncConnection, *places: tuple[str, str]) -> None:
        """Lock rows among the cursors, by key and reader, until the transaction ends; missing ones are made."""
        now = time.time_ns()
        rows = [{"key": key, "reader": reader, "position": 0, "epoch": now} for key, reader in places]
        await connection.execute(self._statements.lock, rows)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection to read with."""
        connections = await self._connections()
        # An in-memory database has one connection: its readers must not end a writer's transaction.
        async with self._alone() if self._in_memory else nullcontext(), connections.connect() as connection:
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

    # ---- opening and closing ----------------------------------------------------------------------------

    async def _connections(self) -> Connections:
        if self._ready is not None:
            return self._ready
        async with lock_for("setup", *self.identity):
            if self._ready is not None:
                return self._ready
            engine = self._async_engine or self._opened_engine()
            connections = Connections(engine, lent=not self._owns_engine)
            try:
                await self._make_ready(connections)
            except BaseException:
                if self._async_engine is None:
                    await engine.dispose()
                raise
            self._async_engine, self._ready = engine, connections
        return connections

    def _opened_engine(self) -> AsyncEngine:
        if self._in_memory and "mode" not in self._url.query:
            url, self._anchor = open_anchor()
            return open_engine(url)
        return open_engine(self._url)

    async def _initialize(self) -> tuple[Any, Table]:
        """The host's own door to the table, for its code that passes the methods above by."""
        connections = await self._connections()
        return async_sessionmaker(bind=connections.engine, expire_on_commit=False), self._tables.rows

    async def _make_ready(self, connections: Connections) -> None:
        # An engine in memory that was lent has one connection, which another store may be writing with.
        async with self._alone() if self._in_memory else nullcontext():
            await make_ready(connections, self._tables)
            if self._db_data:
                async with connections.begin() as connection:
                    await connection.execute(self._statements.insert, self._db_data)
                self._db_data = None

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
            self._async_session_factory, self._ready = None, None
            await engine.dispose()
            if self._anchor is not None:
                self._anchor.close()
                self._anchor = None
