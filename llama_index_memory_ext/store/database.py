"""Opens the database of a store, and gives connections and transactions."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import warnings
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from uuid import uuid4

from sqlalchemy import func, insert, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from llama_index_memory_ext.background.locks import Recent, lock_for
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
    from collections.abc import AsyncIterator, Collection, Hashable

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from llama_index_memory_ext.store.schema import Row

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")

_LOCKED = "llama_index_memory_ext locked"
_MOST_DONE = 10_000
_RETRY_SECONDS = 0.01
# Tables and indexes may be made for a table of the host's with many rows.
_SETUP_SECONDS = 600.0
# Any number that no other program takes for its own lock.
_SETUP_LOCK = 7_453_010_323_281_277_817
_INSUFFICIENT_PRIVILEGE = "42501"


@dataclass
class Locked:
    """The epochs of the sessions that a transaction has locked, and what is done when it is committed."""

    epochs: dict[str, int] = field(default_factory=dict)
    done: list[Hashable] = field(default_factory=list)

    @staticmethod
    def begin_again(conn: AsyncConnection, key: str) -> None:
        """Forget what was done for a session: its rows are deleted in this transaction."""
        conn.info[_LOCKED].epochs.pop(key, None)


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
        self._done: Recent[Hashable, bool] = Recent(_MOST_DONE)
        # Whether all tables exist.
        self._is_ready = False
        self._anchor: sqlite3.Connection | None = None
        self._lock_sessions = lock_rows(self.tables.sessions, self.backend)
        if self.backend == "postgresql":
            # Only the newest SQLite can.
            self._lock_sessions = self._lock_sessions.returning(
                self.tables.sessions.c.key, self.tables.sessions.c.epoch
            )
        self._lock_users = lock_rows(self.tables.users, self.backend)

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
                conn.info[_LOCKED] = locked = Locked()
                await self.lock(conn, sessions, users)
                yield conn
            for mark in locked.done:
                self._done.put(mark, value=True)

    def is_new(self, conn: AsyncConnection, key: str, what: Hashable) -> bool:
        """Whether something is still to be done in this transaction; once it is committed, it is new no longer.

        It is new again where rows of the session were deleted. Only a server tells that with the lock; anywhere else it
        is always new.
        """
        locked: Locked = conn.info[_LOCKED]
        epoch = locked.epochs.get(key)
        if epoch is None:
            return True
        locked.done.append((key, epoch, what))
        return (key, epoch, what) not in self._done

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
            conn = await stack.enter_async_context(connect(engine, unbroken=is_sqlite))
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

    async def lock(self, conn: AsyncConnection, sessions: Collection[str], users: Collection[str]) -> None:
        """Lock sessions before users, each in order, so that no two writers wait for each other."""
        give_up, now = time.monotonic() + self.calls.seconds, time.time_ns()
        of_sessions = [{"key": key, "epoch": now} for key in sorted(sessions)]
        of_users = [{"namespace": namespace, "epoch": now, "change": 0} for namespace in sorted(users)]
        for statement, rows in ((self._lock_sessions, of_sessions), (self._lock_users, of_users)):
            while rows:
                try:
                    found = await conn.execute(statement, rows)
                    if found.returns_rows:
                        conn.info[_LOCKED].epochs.update((row[0], row[1]) for row in found)
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
