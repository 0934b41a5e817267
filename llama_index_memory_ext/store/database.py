"""Opens the database of a store, and gives connections and transactions."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
import warnings
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import uuid4

from sqlalchemy import func, insert, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.engine import (
    BUSY_SECONDS,
    LEVELS,
    check_backend,
    checked_url,
    is_in_memory,
    is_missing,
    open_engine,
    place_of,
    without_password,
)
from llama_index_memory_ext.store.schema import (
    SCHEMA_VERSION,
    create_missing,
    define_tables,
    refuse_newer,
    upsert,
    version_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine

    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.01
# Any number that no other program takes for its own lock.
_SETUP_LOCK = 7_453_010_323_281_277_817
_INSUFFICIENT_PRIVILEGE = "42501"


def shielded(
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a coroutine function run to its end even if its caller is cancelled; the caller is cancelled afterwards.

    SQLAlchemy discards a connection when a statement on it is cancelled. With an in-memory database
    that is the whole database, and with any other it is unknown what was stored.
    """

    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.ensure_future(function(*args, **kwargs))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                logger.warning("%s failed after its caller was cancelled: %r", run.__name__, type(task.exception()))
            raise

    run.__doc__ = function.__doc__
    run.__name__ = getattr(function, "__name__", "run")
    return run


class Database:
    """The database of a store: a SQLite file or one in memory by aiosqlite, or PostgreSQL by asyncpg.

    The engine is opened at first use, with the tables that are missing. A lent engine is used as it is and never
    closed; its isolation level stays its own.

    Args:
        uri: A SQLAlchemy address with an async driver; None: a private database in memory.
        table_name: The host's chat table, with whose name all others begin.
        db_schema: The schema of the tables, on PostgreSQL.
        engine: An engine to use instead of the address.
        rows: Rows of the chat table that a database in memory begins with.

    Raises:
        StoreError: The address cannot be read, or names a database or a driver that cannot keep the log.
    """

    def __init__(
        self,
        uri: str | None,
        table_name: str,
        db_schema: str | None,
        engine: AsyncEngine | None,
        rows: list[dict[str, Any]] | None = None,
    ) -> None:
        self.url = checked_url(uri) if engine is None else engine.url
        check_backend(self.url)
        self.backend = self.url.get_backend_name()
        self.in_memory = is_in_memory(self.url)
        self.tables = define_tables(table_name, None if self.backend == "sqlite" else db_schema)
        place = f"memory {id(engine or self)}" if self.in_memory else place_of(self.url)
        # Equal for two stores of a process that keep their rows in the same table.
        self.identity = (place, str(db_schema), table_name)
        self._lent, self._engine, self._rows = engine is not None, engine, rows
        self._is_ready = False
        self._anchor: sqlite3.Connection | None = None
        self._lock_sessions = _locking(self.tables.sessions, "key", self.backend)
        self._lock_users = _locking(self.tables.users, "namespace", self.backend)

    @property
    def shown_uri(self) -> str:
        """The address without a password."""
        return without_password(checked_url(None) if self.in_memory else self.url)

    @property
    def is_open(self) -> bool:
        """Whether the engine is open and the tables exist."""
        return self._is_ready

    # ---- connections -------------------------------------------------------------------------------

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection to read with."""
        engine = self._engine if self._engine is not None and self._is_ready else await self.opened()
        # An in-memory database has one connection: its readers must not end a writer's transaction.
        async with self.alone() if self.in_memory else nullcontext(), self._connected(engine) as connection:
            yield connection

    @asynccontextmanager
    async def writing(
        self, *, sessions: Collection[str] = (), users: Collection[str] = ()
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction that holds the locks of these sessions and users, so that no other process writes to them.

        The locks are rows, which are made where they are missing: roll back if nothing is to be written, or a session
        that was forgotten would be known again. On SQLite the first statement takes the lock of the whole file.
        """
        engine = await self.opened()
        async with self.alone(), self._connected(engine) as connection, connection.begin():
            await self._lock(connection, sessions, users)
            yield connection

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """On SQLite, one writer of this process at a time: waiting here is cheaper than SQLite's own by polling."""
        if self.backend != "sqlite":
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

    @asynccontextmanager
    async def _connected(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        async with engine.connect() as connection:
            if self._lent:
                # The engine may have any isolation level, set in several ways; a connection's option overrides all.
                await connection.execution_options(isolation_level=LEVELS[self.backend])
            yield connection

    async def _lock(self, connection: AsyncConnection, sessions: Collection[str], users: Collection[str]) -> None:
        """Lock sessions before users, each in order, so that no two writers wait for each other."""
        give_up, now = time.monotonic() + BUSY_SECONDS, time.time_ns()
        while True:
            try:
                if sessions:
                    keys = [{"key": key, "epoch": now} for key in sorted(sessions)]
                    await connection.execute(self._lock_sessions, keys)
                if users:
                    names = [{"namespace": name, "epoch": now, "change": 0} for name in sorted(users)]
                    await connection.execute(self._lock_users, names)
            except OperationalError:  # noqa: PERF203 - it is tried again
                # A connection in memory that was discarded in the middle of a statement is about to be closed.
                if self._anchor is None or time.monotonic() > give_up:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    # ---- opening and closing -----------------------------------------------------------------------

    async def opened(self) -> AsyncEngine:
        """The engine, with all tables made; a StoreError if the tables are newer, or cannot be made."""
        async with nullcontext() if self._is_ready else lock_for("setup", *self.identity):
            if self._engine is not None and self._is_ready:
                return self._engine
            engine = self._engine or self._open_engine()
            try:
                # A lent engine in memory has one connection, which another store may be writing with.
                async with self.alone() if self.in_memory else nullcontext():
                    await self._make_ready(engine)
            except BaseException:
                if not self._lent:
                    await engine.dispose()
                raise
            self._engine, self._is_ready = engine, True
            return engine

    @shielded
    async def read_version(self) -> int | None:
        """The version of the tables, ``SCHEMA_VERSION`` once this store has used them; nothing is made or changed.

        None if there is no database file, or none of the tables of this package.
        """
        engine = self._engine
        if engine is None and is_missing(self.url):
            return None
        looking = engine or open_engine(self.url)
        try:
            async with self.alone() if self.in_memory else nullcontext(), looking.connect() as connection:
                return await connection.run_sync(version_of, self.tables)
        finally:
            if engine is None:
                await looking.dispose()

    async def aclose(self) -> None:
        """Close the engine, unless it was lent; a later call opens it again. A database in memory is gone."""
        if self._lent or self._engine is None:
            return
        engine, self._engine, self._is_ready = self._engine, None, False
        await engine.dispose()
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None

    def __del__(self) -> None:
        if getattr(self, "_anchor", None) is not None:
            self._anchor.close()  # type: ignore[union-attr]  # it is not None
        elif getattr(self, "_is_ready", False) and not self._lent and not self.in_memory:
            warnings.warn(
                f"MemoryStore(async_database_uri={self.shown_uri!r}, table_name={self.tables.rows.name!r}) was not "
                "closed. Close it with `await store.aclose()`, a memory with `await memory.aclose()` or "
                "`async with memory:`.",
                ResourceWarning,
                stacklevel=2,
            )

    def _open_engine(self) -> AsyncEngine:
        if not self.in_memory or "mode" in self.url.query:
            return open_engine(self.url)
        # A database in memory is gone when its last connection is closed, and SQLAlchemy discards a connection on which
        # a statement was cancelled, as at the end of asyncio.run. So one more connection stays open.
        name = f"file:{uuid4().hex}?mode=memory&cache=shared"
        self._anchor = sqlite3.connect(name, uri=True, check_same_thread=False)
        return open_engine(make_url(f"sqlite+aiosqlite:///{name}&uri=true"))

    async def _make_ready(self, engine: AsyncEngine) -> None:
        # Looking comes first: mostly all tables exist, and then a database user need not be allowed to make any.
        async with self._connected(engine) as connection:
            version = await connection.run_sync(version_of, self.tables)
        refuse_newer(version, self.tables)
        try:
            if version != SCHEMA_VERSION:
                async with self._connected(engine) as connection, connection.begin():
                    await self._lock_setup(connection)
                    await connection.run_sync(create_missing, self.tables)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE and "readonly" not in str(error.orig):
                raise
            raise StoreError(
                f"The tables of {self.tables.name!r} have schema version {version} (None: there are none) and version "
                f"{SCHEMA_VERSION} is needed, but this database user may not make or change tables. Open the database "
                "once as a user who may; afterwards reading and writing rows is all that is needed."
            ) from None
        if self._rows:
            async with self._connected(engine) as connection, connection.begin():
                await connection.execute(insert(self.tables.rows), self._rows)
            self._rows = None

    async def _lock_setup(self, connection: AsyncConnection) -> None:
        """Let one process at a time make tables: "if not exists" is not safe against itself."""
        if self.backend == "postgresql":
            await connection.execute(select(func.pg_advisory_xact_lock(_SETUP_LOCK)))
            return
        driver: Any = (await connection.get_raw_connection()).driver_connection
        if not driver.in_transaction:
            # The driver begins a transaction before it changes rows, but not before it changes tables.
            await connection.exec_driver_sql("BEGIN IMMEDIATE")


def _locking(table: Table, key: str, backend: str) -> Any:
    """A statement that locks rows of a table until the transaction ends, and makes those that are missing."""
    return upsert(table, backend).on_conflict_do_update(index_elements=[key], set_={"epoch": table.c.epoch})
