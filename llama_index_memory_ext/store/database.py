"""Opens the database of a store, and gives connections and transactions."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import warnings
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta, timezone
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast
from uuid import uuid4

from sqlalchemy import func, insert, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.errors import StoreError, StoreTimeoutError
from llama_index_memory_ext.store.calls import Calls
from llama_index_memory_ext.store.engine import (
    LEVELS,
    check_backend,
    checked_url,
    is_in_memory,
    is_missing,
    open_engine,
    without_password,
)
from llama_index_memory_ext.store.engines import Engines
from llama_index_memory_ext.store.row_locks import RowLocks
from llama_index_memory_ext.store.schema import (
    SCHEMA_VERSION,
    Tables,
    create_missing,
    known_version,
    version_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from llama_index_memory_ext.store.schema import Row

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")

_RETRY_SECONDS = 0.01
# Tables and indexes may be made for a table of the host's with many rows.
_SETUP_SECONDS = 600.0
# Any number that no other program takes for its own lock.
_SETUP_LOCK = 7_453_010_323_281_277_817
_INSUFFICIENT_PRIVILEGE = "42501"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class UnchangedError(Exception):
    """Raised in a method that writes: its transaction is rolled back, and it returns the ``result``."""

    def __init__(self, result: object = None) -> None:
        self.result = result


def connected(
    connect: Callable[..., AbstractAsyncContextManager[AsyncConnection]],
    *,
    writes: bool = True,
    seconds: float | None = None,
) -> Callable[
    [Callable[Concatenate[Part, AsyncConnection, P], Awaitable[T]]],
    Callable[Concatenate[Part, P], Coroutine[None, None, T]],
]:
    """Call a method with the connection that ``connect`` opens for its arguments.

    The call is bounded by the ``operation_timeout`` of the store, or else by ``seconds``. If its caller is cancelled,
    it goes on; see ``Calls``.
    """

    def decorate(
        method: Callable[Concatenate[Part, AsyncConnection, P], Awaitable[T]],
    ) -> Callable[Concatenate[Part, P], Coroutine[None, None, T]]:
        async def call(part: Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                async with connect(part, *args, **kwargs) as conn:
                    return await method(part, conn, *args, **kwargs)
            except UnchangedError as unchanged:
                return cast("T", unchanged.result)

        @wraps(method)
        async def run(part: Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
            database: Database = cast("Any", part).database
            # Making the tables may take longer.
            await database.opened()
            name = f"{type(part).__name__}.{run.__name__}"
            return await database.calls.run(call(part, *args, **kwargs), name, writes=writes, seconds=seconds)

        return run

    return decorate


# A method that reads, and methods that write to the session or the user that is their first argument.
reads = connected(lambda part, *_, **__: part.database.connection(), writes=False)
writes_session = connected(lambda part, key, *_, **__: part.database.writing(sessions=[key]))
writes_user = connected(lambda part, namespace, *_, **__: part.database.writing(users=[namespace]))


class Database:
    """The database of a store: a SQLite file or one in memory by aiosqlite, or PostgreSQL by asyncpg.

    The engine is opened at first use, and missing tables are made. A ``lent`` engine is used instead of the ``uri``,
    keeps its isolation level, and is never closed. A database in memory begins with ``rows`` of the chat table.
    """

    def __init__(
        self,
        uri: str | None,
        table_name: str,
        db_schema: str | None,
        lent: AsyncEngine | None,
        rows: list[Row] | None,
        *,
        seconds: float,
        pool_size: int,
    ) -> None:
        self.url = checked_url(uri) if lent is None else lent.url
        check_backend(self.url)
        self.backend = self.url.get_backend_name()
        self.in_memory = is_in_memory(self.url)
        self.shown_uri = without_password(checked_url(None) if self.in_memory else self.url)
        self.tables = Tables(table_name, None if self.backend == "sqlite" else db_schema)
        place = os.path.realpath(self.url.database or "") if self.backend == "sqlite" else self.shown_uri
        if self.in_memory:
            place = f"memory {id(lent or self)}"
        # Equal for two stores of a process that keep their rows in the same table.
        self.identity = (place, str(db_schema), table_name)
        self.calls = Calls(seconds)
        self._engines = Engines(self._open_engine, shared=self.backend == "sqlite")
        self._lent, self._rows, self._pool_size = lent, rows, pool_size
        # Whether all tables exist.
        self._is_ready = False
        self._anchor: sqlite3.Connection | None = None
        self.row_locks = RowLocks(self.tables, self.backend)

    @property
    def engine(self) -> AsyncEngine | None:
        """The engine of this event loop; None before the first use."""
        return self._lent if self._is_ready and self._lent else self._engines.here

    @asynccontextmanager
    async def writing(
        self, *, sessions: Collection[str] = (), users: Collection[str] = ()
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction in which no other process writes to these sessions and users.

        Their rows are locked, and made where they are missing: raise ``UnchangedError`` if nothing is written, or a
        session that was forgotten would be known again. On SQLite the first statement locks the whole file.
        """
        async with self._in_order(sessions, users), self.connection(writes=True) as conn:
            async with conn.begin():
                await self._lock(conn, sessions, users)
                yield conn
            self.row_locks.committed(conn)

    @asynccontextmanager
    async def connection(
        self, engine: AsyncEngine | None = None, *, writes: bool = False
    ) -> AsyncIterator[AsyncConnection]:
        """A connection to read with, or to write without locking a session or a user.

        Each statement that reads sees what is stored when it begins, in a transaction of its own.
        """
        engine = engine or await self.opened()
        # An in-memory database has one connection: its readers must not end a writer's transaction. A lock of this
        # process is first come, first served, and SQLite's own is not.
        is_sqlite = self.backend == "sqlite"
        async with AsyncExitStack() as stack:
            if self.in_memory or (writes and is_sqlite):
                await stack.enter_async_context(lock_for("database", *self.identity))
            if is_sqlite:
                stack.enter_context(self.calls.unbroken())
            conn = await stack.enter_async_context(engine.connect())
            if self._lent is not None:
                # The engine may have any isolation level, set in several ways; a connection's option overrides all.
                await conn.execution_options(isolation_level=LEVELS[self.backend])
            elif not (writes or is_sqlite):
                # Spares BEGIN and ROLLBACK.
                await conn.execution_options(isolation_level="AUTOCOMMIT")
            yield conn

    @asynccontextmanager
    async def _in_order(self, sessions: Collection[str], users: Collection[str]) -> AsyncIterator[None]:
        """Let writes of this event loop come in the order of their calls, also behind one whose caller has gone.

        Whoever waits holds no connection of a pool meanwhile. SQLite lets one writer in at a time anyway.
        """
        names = [("session", key) for key in sorted(sessions)] + [("user", namespace) for namespace in sorted(users)]
        async with AsyncExitStack() as stack:
            for name in names if self.backend == "postgresql" else ():
                loop = id(asyncio.get_running_loop())
                await stack.enter_async_context(lock_for("writing", loop, *self.identity, *name))
            yield

    async def _lock(self, conn: AsyncConnection, sessions: Collection[str], users: Collection[str]) -> None:
        give_up = time.monotonic() + self.calls.seconds
        while True:
            try:
                await self.row_locks.lock(conn, sessions, users)
                break
            except OperationalError:
                # A connection in memory that was discarded in the middle of a statement is about to be closed.
                if self._anchor is None or time.monotonic() > give_up:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)

    async def opened(self) -> AsyncEngine:
        """The engine, with all tables made; a StoreError if the tables are newer, or cannot be made."""
        if not self._is_ready:
            await self.calls.run(self._open(), "making the tables", writes=True, seconds=_SETUP_SECONDS)
        return self._lent or self._engines.here or await self._engines.open()

    async def _open(self) -> None:
        async with lock_for("setup", *self.identity):
            if not self._is_ready:
                try:
                    await self._make_ready(self._lent or await self._engines.open())
                except StoreTimeoutError:
                    # A connection is still in use.
                    raise
                except BaseException:
                    await self._close_engines()
                    raise
                self._is_ready = True

    async def read_version(self) -> int | None:
        """As ``MemoryStore.read_schema_version``."""
        return await self.calls.run(self._look(), "read_schema_version", writes=False)

    async def _look(self) -> int | None:
        """The version of a database in which nothing is made."""
        opened = self.engine or self._lent
        if opened is None and is_missing(self.url):
            return None
        engine = opened or self._open_engine()
        try:
            async with self.connection(engine) as conn:
                return await conn.run_sync(version_of, self.tables)
        finally:
            if opened is None:
                await engine.dispose()

    async def aclose(self) -> None:
        """Close the engines, unless one was lent; a later call opens one again. A database in memory is gone.

        Writes that are under way in this event loop are waited for, within the time for one call.
        """
        await self.calls.finish()
        if self._lent is None:
            await self._close_engines()

    async def _close_engines(self) -> None:
        self._is_ready, anchor, self._anchor = False, self._anchor, None
        await self._engines.aclose()
        if anchor is not None:
            anchor.close()

    def __del__(self) -> None:
        anchor = getattr(self, "_anchor", None)
        if anchor is not None:
            anchor.close()
        elif getattr(self, "_engines", None) is not None and self._engines.are_open and not self.in_memory:
            warnings.warn(
                f"MemoryStore(async_database_uri={self.shown_uri!r}, table_name={self.tables.rows.name!r}) was not "
                "closed. Close it with `await store.aclose()`, a memory with `await memory.aclose()` or "
                "`async with memory:`.",
                ResourceWarning,
                stacklevel=2,
            )

    def _open_engine(self) -> AsyncEngine:
        if not self.in_memory or "mode" in self.url.query:
            return open_engine(self.url, self.calls.seconds, self._pool_size)
        # A database in memory is gone with its last connection, and SQLAlchemy discards one on which a statement was
        # cancelled, as at the end of asyncio.run. So one more connection stays open.
        name = f"file:{uuid4().hex}?mode=memory&cache=shared"
        self._anchor = sqlite3.connect(name, uri=True, check_same_thread=False)
        return open_engine(make_url(f"sqlite+aiosqlite:///{name}&uri=true"), self.calls.seconds, self._pool_size)

    async def _make_ready(self, engine: AsyncEngine) -> None:
        # Looking comes first: mostly all tables exist, and then a database user need not be allowed to make any.
        version = await self.calls.run(self._known_version(engine), "opening", writes=False)
        if version == SCHEMA_VERSION and not self._rows:
            return
        try:
            async with self.connection(engine, writes=True) as conn, conn.begin():
                await self._lock_setup(conn)
                await conn.run_sync(create_missing, self.tables)
                if self._rows:
                    await conn.execute(insert(self.tables.rows), self._rows)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE and "readonly" not in str(error.orig):
                raise
            raise StoreError(
                f"The tables of {self.tables.rows.fullname!r} have schema version {version} (None: there are none) and "
                f"version {SCHEMA_VERSION} is needed, but this database user may not make or change tables. Open the "
                "database once as a user who may; afterwards reading and writing rows is all that is needed."
            ) from None
        self._rows = None

    async def _known_version(self, engine: AsyncEngine) -> int | None:
        async with self.connection(engine) as conn:
            return await conn.run_sync(known_version, self.tables)

    async def _lock_setup(self, conn: AsyncConnection) -> None:
        """Let one process at a time make tables: "if not exists" is not safe against itself."""
        if self.backend == "postgresql":
            # An index of a large table takes longer than a statement may.
            await conn.exec_driver_sql("SET LOCAL statement_timeout = 0")
            await conn.execute(select(func.pg_advisory_xact_lock(_SETUP_LOCK)))
            return
        driver = (await conn.get_raw_connection()).driver_connection
        # The driver begins a transaction before it changes rows, but not before it changes tables.
        if driver is not None and not driver.in_transaction:
            await conn.exec_driver_sql("BEGIN IMMEDIATE")


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
