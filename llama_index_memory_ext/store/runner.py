"""Runs the functions of a store: in threads on connections of its own, or in the loop of an engine that was lent."""

from __future__ import annotations

import asyncio
import atexit
import os
import sqlite3
import threading
import time
import warnings
from contextlib import AsyncExitStack, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast
from weakref import WeakSet, WeakValueDictionary

from sqlalchemy import func, insert, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from llama_index_memory_ext.background.locks import Recent, lock_for
from llama_index_memory_ext.errors import StoreError, StoreTimeoutError
from llama_index_memory_ext.signatures import without_second
from llama_index_memory_ext.store.address import (
    check_backend,
    checked_url,
    is_in_memory,
    is_missing,
    open_engine,
    reason_of,
    refused,
    unusable,
    use_write_ahead_log,
    without_password,
)
from llama_index_memory_ext.store.tables import (
    SCHEMA_VERSION,
    Tables,
    create_missing,
    known_version,
    lock_rows,
    version_of,
)
from llama_index_memory_ext.store.threads import Job, Threads
from llama_index_memory_ext.store.transaction import Locked, UnchangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Hashable, Iterator

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from llama_index_memory_ext.store.tables import Row

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")

_MOST_DONE = 10_000
# Tables and indexes may be made for a table of the host's with many rows.
_SETUP_SECONDS = 600.0
# Any number that no other program takes for its own lock.
_SETUP_LOCK = 7_453_010_323_281_277_817
_INSUFFICIENT_PRIVILEGE = "42501"
# In AUTOCOMMIT a failure would leave half of a change; a writer in an old snapshot would fail once it has its lock.
_LEVELS = {"sqlite": "SERIALIZABLE", "postgresql": "READ COMMITTED"}
# How long the end of the program waits for writes.
_END_SECONDS, _LOOK_SECONDS = 1.0, 0.005


# One for all stores of this process on the same database.
_threads: WeakValueDictionary[Hashable, Threads] = WeakValueDictionary()
_databases: WeakSet[Database] = WeakSet()
_of_parent: list[object] = []


class Database:
    """The database of a store: SQLite by sqlite3, or PostgreSQL by psycopg, whatever driver the ``uri`` names.

    The engine is opened at first use, and missing tables are made. A ``lent`` engine is used instead of the ``uri``, in
    the event loop of each caller, keeps its isolation level, and is never closed. A database in memory begins with
    ``rows`` of the chat table.
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
        self.seconds = seconds
        self._lent, self._rows, self._pool_size = lent, rows, pool_size
        self._engine: Engine | None = None
        # The statement with which each connection begins.
        self.set_up = ""
        self._threads, self._guard = _threads_of(place, pool_size), threading.Lock()
        self._pending: set[Job] = set()
        self._done: Recent[Hashable, bool] = Recent(_MOST_DONE)
        # Whether all tables exist; whether what was in memory is gone.
        self._is_ready = self.is_gone = False
        sessions, users = self.tables.sessions, self.tables.users
        self._lock_sessions = lock_rows(sessions, self.backend)
        if self.backend == "postgresql" or sqlite3.sqlite_version_info >= (3, 35):
            self._lock_sessions = self._lock_sessions.returning(sessions.c.key, sessions.c.epoch)
        self._lock_users = lock_rows(users, self.backend)
        _databases.add(self)

    @property
    def engine(self) -> Engine | AsyncEngine | None:
        """The engine that was opened or lent; None before the first use."""
        return self._lent if self._is_ready and self._lent else self._engine

    async def run(
        self,
        function: Callable[..., T],
        *args: Any,
        sessions: Collection[str] = (),
        users: Collection[str] = (),
        writes: bool = True,
        in_transaction: bool = True,
        seconds: float | None = None,
        **options: Any,
    ) -> T:
        """Call a function with a connection and these arguments, and return its result.

        It runs in one transaction, in which no other process writes to these ``sessions`` and ``users``: their rows are
        locked, and made where they are missing. Raise ``UnchangedError`` there if nothing is written, or a session that
        was forgotten would be known again. Without ``writes`` each statement sees what is stored when it begins.

        A caller who is cancelled, or whose loop is closed, leaves at once; a write goes on to its end.

        Raises:
            StoreTimeoutError: It took longer than ``seconds``, by default the time for one call.
            StoreError: There is no connection, or the database has refused what the function has asked for.
        """
        if not self._is_ready:
            await self._open()
        locked = Locked(self._done)

        def step(conn: Connection) -> T:
            locked.begin(conn)
            self.lock(conn, sessions, users)
            return function(conn, *args, **options)

        names = {("session", key) for key in sessions} | {("user", namespace) for namespace in users}
        # As a reader of the code knows it: "Log.append".
        name = function.__qualname__.partition(".<locals>")[0].replace("._", ".")
        how: Any = {"writes": writes, "in_transaction": in_transaction}
        try:
            result = await self._call(step, name, names, seconds or self.seconds, **how)
        except UnchangedError as unchanged:
            return cast("T", unchanged.result)
        locked.end()
        return result

    def lock(self, conn: Connection, sessions: Collection[str], users: Collection[str]) -> None:
        """Lock sessions before users, each in order, so that no two writers wait for each other."""
        now = time.time_ns()
        if sessions:
            rows = conn.execute(self._lock_sessions, [{"key": key, "epoch": now} for key in sorted(sessions)])
            Locked.by(conn).epochs.update((row[0], row[1]) for row in (rows if rows.returns_rows else ()))
        if users:
            conn.execute(self._lock_users, [{"namespace": one, "epoch": now, "change": 0} for one in sorted(users)])

    async def read_version(self) -> int | None:
        """As ``MemoryStore.read_schema_version``."""
        if self.engine is None and self._lent is None and is_missing(self.url):
            return None
        was_open = self._engine is not None
        try:
            look = partial(version_of, tables=self.tables)
            return await self._call(look, "read_schema_version", set(), self.seconds, writes=False)
        finally:
            if not (was_open or self._is_ready):
                self._close()

    async def aclose(self) -> None:
        """Close the engine, unless it was lent; a later call opens it again. A database in memory is gone for good.

        Writes that are under way are waited for, within the time for one call; those of a lent engine in this loop.
        """
        await self.finish()
        if self._lent is None:
            self.is_gone = self.in_memory and "mode" not in self.url.query
            await asyncio.to_thread(self._close)

    async def finish(self) -> None:
        """Wait until what is under way has ended, within the time for one call. Reads that wait do not begin."""
        for job in list(self._pending):
            if not job.writes:
                self._threads.withdraw(job)
        here, end = asyncio.get_running_loop(), time.monotonic() + self.seconds
        while any(self._lent is None or job.answer.get_loop() is here for job in list(self._pending)):
            if time.monotonic() > end:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _close(self) -> None:
        with self._guard:
            self._is_ready, engine, self._engine = False, self._engine, None
        if engine is not None:
            engine.dispose()

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is None:
            return
        self._close()
        if not self.in_memory:
            warnings.warn(
                f"MemoryStore(async_database_uri={self.shown_uri!r}, table_name={self.tables.rows.name!r}) was not "
                "closed. Close it with `await store.aclose()`, a memory with `await memory.aclose()` or "
                "`async with memory:`.",
                ResourceWarning,
                stacklevel=2,
            )

    async def _open(self) -> None:
        """Make all tables ready; a StoreError if they are newer, or cannot be made."""
        names = {("setup",)}
        try:
            # Looking comes first: mostly all tables exist, and then a database user need not be allowed to make any.
            version = await self._call(self._look, "opening", names, self.seconds, writes=False)
            if version != SCHEMA_VERSION or self._rows:
                make = partial(self._make, version)
                await self._call(make, "making the tables", names, max(self.seconds, _SETUP_SECONDS), writes=True)
        except StoreTimeoutError:
            # A connection is still in use.
            raise
        except StoreError:
            self._close()
            raise
        self._is_ready = True

    def _look(self, conn: Connection) -> int | None:
        version = known_version(conn, self.tables)
        if self.backend == "sqlite" and not (self._lent or self.in_memory or self.set_up):
            use_write_ahead_log(conn, self.seconds)
        return version

    def _make(self, version: int | None, conn: Connection) -> None:
        try:
            if self.backend == "postgresql":
                # An index of a large table takes longer than a statement may; "if not exists" is not safe against
                # itself, so that one process at a time makes tables.
                conn.exec_driver_sql("SET LOCAL statement_timeout = 0")
                conn.execute(select(func.pg_advisory_xact_lock(_SETUP_LOCK)))
            create_missing(conn, self.tables)
            if self._rows:
                conn.execute(insert(self.tables.rows), self._rows)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE and "readonly" not in str(error.orig):
                raise
            raise StoreError(
                f"The tables of {self.tables.rows.fullname!r} have schema version {version} (None: there are none) and "
                f"version {SCHEMA_VERSION} is needed, but this database user may not make or change tables. Open the "
                "database once as a user who may; afterwards reading and writing rows is all that is needed."
            ) from None
        self._rows = None

    async def _call(
        self,
        step: Callable[[Connection], T],
        name: str,
        names: Collection[tuple[str, ...]],
        seconds: float,
        *,
        writes: bool,
        in_transaction: bool = True,
    ) -> T:
        """The result of a step on a connection; a StoreTimeoutError after so many seconds."""
        if self.backend == "sqlite":
            # SQLite lets one writer in at a time, and not in their order. In memory there is one connection.
            names = {("file",)} if writes or self.in_memory else set()
        alone = frozenset((*self.identity[:1], *one) if one[0] == "file" else (*self.identity, *one) for one in names)
        loop = asyncio.get_running_loop()
        in_thread = partial(self._in_thread, step, name, writes=writes, in_transaction=in_transaction)
        job = Job(in_thread, name, alone, writes, loop.create_future(), self._pending)
        self._pending.add(job)
        task = None
        if self._lent is None:
            self._threads.enter(job)
        else:
            task = loop.create_task(self._in_loop(self._lent, job, step, in_transaction=in_transaction))

        def give_up() -> None:
            if not job.answer.done():
                job.answer.set_exception(StoreTimeoutError(name, seconds, writes=writes))
            if task is None:
                self._threads.withdraw(job)
            elif self.backend == "postgresql":
                # A cancelled statement of SQLite goes on in its thread, and would keep its lock.
                task.cancel()

        job.timer = loop.call_later(seconds, give_up)
        try:
            return cast("T", await job.answer)
        except asyncio.CancelledError:
            if not writes:
                self._threads.withdraw(job)
            raise

    def _in_thread(self, step: Callable[[Connection], T], name: str, *, writes: bool, in_transaction: bool) -> T:
        """The result of a step on a connection of the pool, in this thread."""
        with self._guard:
            engine = self._engine = self._engine or self._opened()
        try:
            conn = engine.connect()
        except Exception as error:  # each driver has errors of its own
            raise self._in_words(error, name, writes=writes, begun=False) from error
        with conn, self._told(name, writes=writes):
            if not (writes and in_transaction):
                if self.backend == "postgresql":
                    # Spares BEGIN and ROLLBACK.
                    conn.execution_options(isolation_level="AUTOCOMMIT")
                return step(conn)
            with conn.begin():
                if self.backend == "sqlite":
                    raw: Any = conn.connection.driver_connection
                    # What another thread has left open when the process was forked.
                    raw.rollback()
                    raw.execute("BEGIN IMMEDIATE")
                return step(conn)

    async def _in_loop(
        self, lent: AsyncEngine, job: Job, step: Callable[[Connection], T], *, in_transaction: bool
    ) -> None:
        """The same on a lent engine, whose connections belong to the loop of the caller."""
        result = error = None
        try:
            async with AsyncExitStack() as stack:
                for name in sorted(job.names):
                    await stack.enter_async_context(lock_for("lent", *name))
                for is_last in (False, True):
                    try:
                        conn = await stack.enter_async_context(lent.connect())
                        break
                    except Exception as raised:
                        # asyncpg may tell of a lost one by an error that a pool takes for another; the next one is new.
                        if is_last:
                            raise self._in_words(raised, job.name, writes=job.writes, begun=False) from raised
                stack.enter_context(self._told(job.name, writes=job.writes))
                # The engine may have any isolation level, set in several ways; a connection's option overrides all.
                level = _LEVELS[self.backend] if in_transaction else "AUTOCOMMIT"
                await conn.execution_options(isolation_level=level)
                if in_transaction:
                    await stack.enter_async_context(conn.begin())
                if job.writes and in_transaction and self.backend == "sqlite":
                    driver: Any = (await conn.get_raw_connection()).driver_connection
                    if not driver.in_transaction:
                        await conn.exec_driver_sql("BEGIN IMMEDIATE")
                result = await conn.run_sync(step)
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - whatever it is belongs to the caller
            error = raised
        finally:
            # Also where the loop was closed, and the collector ends this.
            self._pending.discard(job)
        job.deliver(result, error)

    @contextmanager
    def _told(self, name: str, *, writes: bool) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise self._in_words(error, name, writes=writes, begun=True) from error

    def _in_words(self, error: Exception, name: str, *, writes: bool, begun: bool) -> StoreError:
        """What the driver has raised, as an error of ours; ``begun``: there was a connection."""
        if isinstance(error, StoreError):
            return error
        if "is locked" in reason_of(error):
            return StoreTimeoutError(name, self.seconds, writes=writes)
        return refused(self.url, error, name) if begun else unusable(self.url, error)

    def _opened(self) -> Engine:
        if self.is_gone:
            raise StoreError(
                "This database was in memory and was closed: what it held is gone. Close it when nothing uses it any "
                'more, or keep it in a file: async_database_uri="sqlite+aiosqlite:///memory.db".'
            )
        return open_engine(self.url, self.seconds, self._pool_size, self.set_up)

    def begin_in_child(self) -> None:
        """Begin anew after a fork: threads and connections stay with the parent, and none may be closed here."""
        self._guard, self._threads = threading.Lock(), _threads_of(self.identity[0], self._pool_size)
        _of_parent.append((list(self._pending), self._engine and self._engine.pool))
        self._pending.clear()
        if self._engine is not None and not self.in_memory:
            self._engine.dispose(close=False)


def _threads_of(place: str, width: int) -> Threads:
    return _threads.setdefault((place, width), Threads(width))


def _begin_in_child() -> None:
    _of_parent.append(dict(_threads))
    _threads.clear()
    for database in list(_databases):
        database.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


@atexit.register
def _finish_writes() -> None:
    """Let writes end before the program does, unless the database does not answer."""
    end = time.monotonic() + _END_SECONDS
    while time.monotonic() < end and any(job.writes for one in list(_databases) for job in list(one._pending)):  # noqa: SLF001
        time.sleep(_LOOK_SECONDS)


def _run_by(
    whose: Callable[[Any], dict[str, Any]],
) -> Callable[[Callable[Concatenate[Part, Connection, P], T]], Callable[Concatenate[Part, P], Coroutine[Any, Any, T]]]:
    """Make a method that takes a connection one that the database of its object runs."""

    def decorate(
        method: Callable[Concatenate[Part, Connection, P], T],
    ) -> Callable[Concatenate[Part, P], Coroutine[Any, Any, T]]:
        @wraps(method)
        async def run(part: Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
            database: Database = cast("Any", part).database
            options: Any = {**whose(args), **kwargs}
            return cast("T", await database.run(cast("Any", method).__get__(part), *args, **options))

        vars(run)["__signature__"] = without_second(method)
        return run

    return decorate


# A method that reads, and methods that write to the session or the user that is their first argument.
reads = _run_by(lambda _: {"writes": False})
writes_session = _run_by(lambda args: {"sessions": [args[0]]})
writes_user = _run_by(lambda args: {"users": [args[0]]})
