"""Opens the database of a store, and gives connections and transactions."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
import warnings
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast
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
    without_password,
)
from llama_index_memory_ext.store.in_use import connect
from llama_index_memory_ext.store.schema import (
    SCHEMA_VERSION,
    Tables,
    create_missing,
    known_version,
    lock_rows,
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

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.01
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
) -> Callable[
    [Callable[Concatenate[Part, AsyncConnection, P], Awaitable[T]]],
    Callable[Concatenate[Part, P], Coroutine[None, None, T]],
]:
    """Call a method with the connection that ``connect`` opens for its arguments.

    The call runs to its end even if its caller is cancelled; the caller is cancelled afterwards. SQLAlchemy discards a
    connection when a statement on it is cancelled. With an in-memory database that is the whole database, and with any
    other it is unknown what was stored.
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
            task = asyncio.ensure_future(call(part, *args, **kwargs))
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                await asyncio.wait([task])
                if not task.cancelled() and task.exception() is not None:
                    logger.warning("%s failed after its caller was cancelled: %r", run.__name__, type(task.exception()))
                raise

        return run

    return decorate


# A method that reads, and methods that write to the session or the user that is their first argument.
reads = connected(lambda part, *_, **__: part.database.connection())
writes_session = connected(lambda part, key, *_, **__: part.database.writing(sessions=[key]))
writes_user = connected(lambda part, namespace, *_, **__: part.database.writing(users=[namespace]))


class Database:
    """The database of a store: a SQLite file or one in memory by aiosqlite, or PostgreSQL by asyncpg.

    The engine is opened at first use, and missing tables are made. A ``lent`` engine is used instead of the ``uri``,
    keeps its isolation level, and is never closed. A database in memory begins with ``rows`` of the chat table.
    """

    def __init__(
        self, uri: str | None, table_name: str, db_schema: str | None, lent: AsyncEngine | None, rows: list[Row] | None
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
        # None until all tables exist.
        self.engine: AsyncEngine | None = None
        self._lent, self._rows = lent, rows
        self._anchor: sqlite3.Connection | None = None
        self._lock_sessions = lock_rows(self.tables.sessions, self.backend)
        self._lock_users = lock_rows(self.tables.users, self.backend)

    @asynccontextmanager
    async def writing(
        self, *, sessions: Collection[str] = (), users: Collection[str] = ()
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction in which no other process writes to these sessions and users.

        Their rows are locked, and made where they are missing: raise ``UnchangedError`` if nothing is written, or a
        session that was forgotten would be known again. On SQLite the first statement locks the whole file.
        """
        async with self.connection(writes=True) as conn, conn.begin():
            await self._lock(conn, sessions, users)
            yield conn

    @asynccontextmanager
    async def connection(
        self, engine: AsyncEngine | None = None, *, writes: bool = False
    ) -> AsyncIterator[AsyncConnection]:
        """A connection to read with, or to write without locking a session or a user."""
        engine = engine or await self.opened()
        # An in-memory database has one connection: its readers must not end a writer's transaction.
        alone = self.in_memory or (writes and self.backend == "sqlite")
        async with self._alone() if alone else nullcontext(), connect(engine) as conn:
            if self._lent is not None:
                # The engine may have any isolation level, set in several ways; a connection's option overrides all.
                await conn.execution_options(isolation_level=LEVELS[self.backend])
            yield conn

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One task of this process at a time: on SQLite, waiting here is cheaper than SQLite's own by polling."""
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

    async def _lock(self, conn: AsyncConnection, sessions: Collection[str], users: Collection[str]) -> None:
        """Lock sessions before users, each in order, so that no two writers wait for each other."""
        give_up, now = time.monotonic() + BUSY_SECONDS, time.time_ns()
        of_sessions = [{"key": key, "epoch": now} for key in sorted(sessions)]
        of_users = [{"namespace": namespace, "epoch": now, "change": 0} for namespace in sorted(users)]
        for statement, rows in ((self._lock_sessions, of_sessions), (self._lock_users, of_users)):
            while rows:
                try:
                    await conn.execute(statement, rows)
                    break
                except OperationalError:
                    # A connection in memory that was discarded in the middle of a statement is about to be closed.
                    if self._anchor is None or time.monotonic() > give_up:
                        raise
                    await asyncio.sleep(_RETRY_SECONDS)

    async def opened(self) -> AsyncEngine:
        """The engine, with all tables made; a StoreError if the tables are newer, or cannot be made."""
        if self.engine is not None:
            return self.engine
        async with lock_for("setup", *self.identity):
            if self.engine is None:
                engine = self._lent or self._open_engine()
                try:
                    await self._make_ready(engine)
                except BaseException:
                    if self._lent is None:
                        await engine.dispose()
                    raise
                self.engine = engine
            return self.engine

    @asynccontextmanager
    async def _looking(self) -> AsyncIterator[AsyncConnection]:
        """A connection to a database in which nothing is made; an ``UnchangedError`` if there is none."""
        opened = self.engine or self._lent
        if opened is None and is_missing(self.url):
            raise UnchangedError
        engine = opened or open_engine(self.url)
        try:
            async with self.connection(engine) as conn:
                yield conn
        finally:
            if opened is None:
                await engine.dispose()

    @connected(_looking)
    async def read_version(self, conn: AsyncConnection) -> int | None:
        """As ``MemoryStore.read_schema_version``."""
        return await conn.run_sync(version_of, self.tables)

    async def aclose(self) -> None:
        """Close the engine, unless it was lent; a later call opens it again. A database in memory is gone."""
        if self._lent is None and self.engine is not None:
            engine, anchor, self.engine, self._anchor = self.engine, self._anchor, None, None
            await engine.dispose()
            if anchor is not None:
                anchor.close()

    def __del__(self) -> None:
        anchor = getattr(self, "_anchor", None)
        if anchor is not None:
            anchor.close()
        elif getattr(self, "engine", None) is not None and self._lent is None and not self.in_memory:
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
        # A database in memory is gone with its last connection, and SQLAlchemy discards one on which a statement was
        # cancelled, as at the end of asyncio.run. So one more connection stays open.
        name = f"file:{uuid4().hex}?mode=memory&cache=shared"
        self._anchor = sqlite3.connect(name, uri=True, check_same_thread=False)
        return open_engine(make_url(f"sqlite+aiosqlite:///{name}&uri=true"))

    async def _make_ready(self, engine: AsyncEngine) -> None:
        # Looking comes first: mostly all tables exist, and then a database user need not be allowed to make any.
        async with self.connection(engine) as conn:
            version = await conn.run_sync(known_version, self.tables)
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

    async def _lock_setup(self, conn: AsyncConnection) -> None:
        """Let one process at a time make tables: "if not exists" is not safe against itself."""
        if self.backend == "postgresql":
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
