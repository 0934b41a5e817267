"""The database of a store: its connections, and its calls."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import warnings
from contextlib import AsyncExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from llama_index_memory_ext.background.locks import (
    FORK_SECONDS,
    LOOK_SECONDS,
    lock_for,
    thread_lock,
)
from llama_index_memory_ext.background.threads import Job, pending, threads_for
from llama_index_memory_ext.errors import StoreError, StoreTimeoutError
from llama_index_memory_ext.store import address, versions
from llama_index_memory_ext.store.marks import mark
from llama_index_memory_ext.store.schema import tables_for
from llama_index_memory_ext.store.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from sqlalchemy.ext.asyncio import AsyncEngine

    from llama_index_memory_ext.store.encryption import Cipher
    from llama_index_memory_ext.store.tables import Row


T = TypeVar("T")

# The isolation level of a transaction. In AUTOCOMMIT, a failure would leave half of a
# change. A writer in an old snapshot would fail once it has its lock.
_LEVELS = {"sqlite": "SERIALIZABLE", "postgresql": "READ COMMITTED"}
# To make an index of a large table takes minutes.
_MAKING_SECONDS = 600.0
_SELECT_DATA = """
SELECT key, timestamp, role, status, data, user_id FROM {rows} ORDER BY id
"""
_INSERT_DATA = """
INSERT INTO {rows} (key, timestamp, role, status, data, user_id)
VALUES (:key, :timestamp, :role, :status, :data, :user_id)
"""
# Any number that no other program uses for an advisory lock.
_MAKING_LOCK = 7_453_010_323_281_277_817
# The places of the SQLite databases that the parent was using when it forked this
# process.
_in_use_by_parent: set[str] = set()


def read_data(tx: Transaction) -> list[Row]:
    """Return the rows of the chat table, as ``db_data`` holds them for another store."""
    rows = [dict(row) for row in tx.execute(_SELECT_DATA).mappings()]
    for row in rows:
        # The host's table has no such column.
        if not row["user_id"]:
            del row["user_id"]
    return rows


class DatabaseIdentity(NamedTuple):
    """Where a store keeps its rows; equal for two stores of this process with the same table."""

    place: str
    db_schema: str
    table_name: str


class Database:
    """The database of a store: SQLite by sqlite3, or PostgreSQL by psycopg.

    The first use opens the engine and makes missing tables. A lent engine, the
    ``async_engine`` of the ``settings``, replaces the ``uri``. It is used in the event
    loop of each caller, keeps its isolation level, and is never closed. A database in
    memory begins with ``rows`` of the chat table.
    """

    def __init__(
        self,
        settings: address.Settings,
        uri: address.Address,
        rows: list[Row] | None,
        cipher: Cipher,
    ) -> None:
        lent = settings.async_engine
        table_name = settings.table_name
        self.url = address.checked_url(uri, lent)
        self.backend = self.url.get_backend_name()
        self.in_memory = address.is_in_memory(self.url)
        self.shown_uri = address.without_password(
            address.checked_url(None) if self.in_memory else self.url
        )
        place = self.shown_uri
        if self.in_memory:
            place = f"memory {id(lent or self)}"
        elif self.backend == "sqlite":
            place = os.path.realpath(self.url.database or "")
        db_schema = settings.db_schema
        self.identity = DatabaseIdentity(place, str(db_schema), table_name)
        self.tables = tables_for(table_name, db_schema, self.backend, cipher)
        self.seconds = settings.operation_timeout
        self._lent = lent
        self._rows = rows
        self._pool_size = settings.pool_size
        # None before the first use, and after a close.
        self.engine: Engine | None = None
        # Open connections to SQLite that no job uses: to take one from the pool and to
        # give it back takes longer than a statement.
        self._idle: list[Connection] = []
        # The statement that makes each connection read-only; "" for a store that writes.
        self.set_up = ""
        # Held to open and to close the engine, and to take an idle connection.
        self._guard = thread_lock()
        # Whether all tables exist.
        self._is_ready = False
        # The file in which the tables are; 0 once it was deleted or replaced.
        self._file_id = 0
        # Whether a database in memory was closed.
        self.is_gone = False
        self._threads = threads_for(place, self._pool_size, self)

    async def run(
        self,
        function: Callable[..., T],
        *args: Any,
        sessions: Collection[str] = (),
        users: Collection[str] = (),
        writes: bool = True,
        seconds: float = 0,
        **options: Any,
    ) -> T:
        """Call a function with a transaction and these arguments, and return its result.

        The rows of these ``sessions`` and ``users`` are locked, and made if they are
        missing, so that no other process writes to them. A function that has nothing to
        write rolls back, so that no lock brings a deleted session back. Without
        ``writes`` there is no transaction: each statement reads the newest rows.

        A caller that is cancelled, or whose loop is closed, leaves at once; a write
        goes on to its end.

        Raises:
            StoreTimeoutError: The call took longer than ``seconds``; 0: the time for
                one call.
            StoreError: There is no connection, or the database has refused a statement
                of the function.
        """
        if not self._is_ready:
            await self._open()
        file_id = self._file_id

        def step(conn: Connection) -> T:
            if file_id != self._file_id:
                raise StoreError(
                    f"The file of {self.shown_uri} was deleted or replaced while this program used it: its rows are "
                    "lost, and this call has stored nothing. Restore the file from a copy; the next call opens the "
                    "file that is there, or makes an empty one."
                )
            transaction = Transaction(conn, self.tables)
            transaction.lock(sessions, users)
            if writes and not sessions:
                # Another program may have changed the key. The locks of sessions
                # check it, too. ``mark`` waits for all locks.
                transaction.check_key()
            return function(transaction, *args, **options)

        # As callers know the function: "KeptVectors.write".
        name = function.__qualname__.partition(".<locals>")[0].replace("._", ".")
        return await self._call(step, name, seconds, sessions, users, writes=writes)

    async def read_version(self) -> int | None:
        """As ``MemoryStore.read_schema_version``."""
        if self.engine is None and self._lent is None and address.is_missing(self.url):
            return None
        return await self._call(
            partial(versions.version_of, tables=self.tables),
            "read_schema_version",
            writes=False,
        )

    async def aclose(self) -> None:
        """Close the engine, unless it was lent; a later call opens it again. A database in memory is gone for good.

        Pending calls are awaited first, within the time for one call; with a lent
        engine, only the calls of this loop.
        """
        end = time.monotonic() + self.seconds
        while self._has_jobs() and time.monotonic() <= end:  # noqa: ASYNC110 - jobs end in threads
            await asyncio.sleep(LOOK_SECONDS)
        if self._lent is None:
            self.is_gone = self.in_memory
            await asyncio.to_thread(self._close)

    def _has_jobs(self) -> bool:
        """Return whether a job is pending that ``aclose`` awaits; with a lent engine, a job of this loop."""
        here = asyncio.get_running_loop()
        return any(
            job.owner == id(self)
            and (self._lent is None or job.answer.get_loop() is here)
            for job in list(pending)
        )

    def _close(self) -> None:
        self._is_ready = False
        self._dispose()

    def _dispose(self) -> None:
        with self._guard:
            for conn in self._idle:
                conn.close()
            self._idle.clear()
            engine = self.engine
            self.engine = None
            if engine is not None:
                engine.dispose()

    def __del__(self) -> None:
        if getattr(self, "engine", None) is None:
            return
        self._close()
        if not self.in_memory:
            warnings.warn(
                f"MemoryStore(async_database_uri={self.shown_uri!r}, table_name={self.tables.name!r}) was not "
                "closed. Close it with `await store.aclose()`, a memory with `await memory.aclose()` or "
                "`async with memory:`.",
                ResourceWarning,
                stacklevel=2,
            )

    async def _open(self) -> None:
        """Check all tables, and make missing ones; a StoreError if they are newer, or cannot be made."""
        try:
            # A database user need not be allowed to make tables if all of them exist.
            is_made = await self._call(self._check_tables, "opening", writes=False)
            if self._rows or not is_made:
                seconds = max(self.seconds, _MAKING_SECONDS)
                await self._call(self._make, address.MAKING, seconds, writes=True)
        except StoreTimeoutError:
            # A connection is still in use.
            raise
        except StoreError:
            self._close()
            raise
        self._file_id = address.file_id(self.identity.place)
        self._is_ready = True

    def _check_tables(self, conn: Connection) -> bool:
        """Return whether there is nothing to make; an EncryptionError for a wrong key."""
        version = versions.supported_version_of(conn, self.tables)
        is_own_file = not (self._lent or self.in_memory or self.set_up)
        if self.backend == "sqlite" and is_own_file:
            address.use_write_ahead_log(conn, self.seconds)
        if version != versions.SCHEMA_VERSION:
            return False
        if Transaction(conn, self.tables).check_key():
            return True
        # A store that only reads, by its ``set_up``, cannot mark the database.
        return bool(self.set_up) or not self.tables.cipher.is_set

    def _make(self, conn: Connection) -> None:
        if self.backend == "postgresql":
            conn.exec_driver_sql("SET LOCAL statement_timeout = 0")
            # Two processes that "create if not exists" at the same time may fail, so
            # one makes tables at a time.
            conn.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING_LOCK)))
        versions.create_missing(conn, self.tables)
        tx = Transaction(conn, self.tables)
        mark(tx)
        if self._rows:
            rows = [{"user_id": None, **row} for row in self._rows]
            tx.execute(_INSERT_DATA, rows)
        self._rows = None

    def _locks_for(
        self,
        sessions: Collection[str],
        users: Collection[str],
        *,
        writes: bool,
    ) -> set[tuple[str, ...]]:
        """Return the locks of a job on these sessions and users."""
        if self.backend == "sqlite":
            # SQLite lets one writer in at a time, and not in the order of the calls. In
            # memory there is one connection.
            return {(self.identity.place,)} if writes or self.in_memory else set()
        of_sessions = {(*self.identity, "session", key) for key in sessions}
        of_users = {(*self.identity, "user", namespace) for namespace in users}
        return of_sessions | of_users

    async def _call(
        self,
        step: Callable[[Connection], T],
        name: str,
        seconds: float = 0,
        sessions: Collection[str] = (),
        users: Collection[str] = (),
        *,
        writes: bool,
    ) -> T:
        """Run a step on a connection under the locks of these sessions and users, and return its result.

        Raises a StoreTimeoutError after ``seconds``; 0: the time for one call.
        """
        seconds = seconds or self.seconds
        locks = self._locks_for(sessions, users, writes=writes)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        job = Job(id(self), self._work, step, name, locks, answer, writes)
        pending.add(job)
        task = None
        if self._lent is None:
            self._threads.enter(job)
        else:
            task = loop.create_task(self._in_loop(self._lent, job))

        def expire() -> None:
            if answer.done():
                return
            answer.set_exception(StoreTimeoutError(name, seconds, writes=writes))
            self._threads.withdraw(job)
            if task and self.backend == "postgresql":
                # A cancelled statement of SQLite goes on in its thread, and would keep
                # its lock.
                task.cancel()

        timer = loop.call_later(seconds, expire)
        try:
            return await answer
        finally:
            timer.cancel()
            answer.cancel()
            # The write of a cancelled caller goes on to its end.
            if not writes:
                self._threads.withdraw(job)

    def _work(self, job: Job) -> Any:
        """Do a job on a connection, in this thread."""
        conn = self._connection(job)
        try:
            result = self._transact(conn, job)
            # SQLAlchemy begins a transaction for a read, too.
            conn.rollback()
        except BaseException:
            conn.close()
            raise
        with self._guard:
            if conn.engine is not self.engine:
                # Its pool was disposed, and would never close it.
                conn.invalidate()
            elif self.backend == "sqlite":
                self._idle.append(conn)
                return result
        # A server may end an idle connection, which only the pool notices.
        conn.close()
        return result

    def _connection(self, job: Job) -> Connection:
        """Return a connection that no other job uses, of an engine that is open."""
        with self._guard:
            if self.identity.place in _in_use_by_parent:
                raise StoreError(
                    f"The parent process was still using {self.shown_uri} {FORK_SECONDS:g} s after the fork was "
                    "requested, so SQLite cannot lock the file here. Nothing was read or written. Fork "
                    'while no long call is under way, or start processes by "spawn".'
                )
            if self._is_ready and self._file_id != address.file_id(self.identity.place):
                # Connections would go on with the deleted file. Each call that waits fails.
                self._close()
                self._file_id = 0
            if self.engine is None:
                if self.is_gone:
                    raise StoreError(
                        "This database was in memory and was closed: its rows are gone. Close it when nothing uses it "
                        'any more, or keep it in a file: async_database_uri="sqlite+aiosqlite:///memory.db".'
                    )
                self.engine = address.open_engine(
                    self.url, self.seconds, self._pool_size, self.set_up
                )
            if self._idle:
                return self._idle.pop()
            engine = self.engine
        with self._raising_store_errors(job, begun=False):
            return engine.connect()

    async def _in_loop(self, lent: AsyncEngine, job: Job) -> None:
        """Do a job on a lent engine, whose connections belong to the loop of the caller."""
        result = error = None
        try:
            async with AsyncExitStack() as stack:
                for name in sorted(job.locks):
                    await stack.enter_async_context(lock_for("lent", *name))
                try:
                    conn = await stack.enter_async_context(lent.connect())
                except Exception:  # noqa: BLE001 - a pool may misread asyncpg's error for a lost connection
                    with self._raising_store_errors(job, begun=False):
                        conn = await stack.enter_async_context(lent.connect())
                result = await conn.run_sync(self._transact, job)
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - the caller gets any error
            error = raised
        finally:
            # Also if the loop was closed, and the collector ends this coroutine.
            pending.discard(job)
        job.deliver(result, error)

    def _transact(self, conn: Connection, job: Job) -> Any:
        """Do a job on a connection: a write in a transaction, a read without one."""
        with self._raising_store_errors(job, begun=True):
            if self.backend == "postgresql" or self._lent is not None:
                level = _LEVELS[self.backend]
                if self.backend == "postgresql" and not job.writes:
                    # Reads on a server are spared BEGIN and ROLLBACK. In SQLite, these
                    # statements might end a transaction of the program.
                    level = "AUTOCOMMIT"
                # A lent engine may have any isolation level, set in several ways. The
                # option of a connection overrides all of them.
                conn.execution_options(isolation_level=level)
            if not job.writes:
                return job.step(conn)
            # Closing a transaction rolls back what was not committed.
            with closing(conn.begin()) as transaction:
                if self.backend == "sqlite":
                    self._begin_immediate(conn)
                result = job.step(conn)
                job.writes = transaction.is_active
                if job.writes:
                    transaction.commit()
            return result

    def _begin_immediate(self, conn: Connection) -> None:
        """Begin a transaction of SQLite with its lock."""
        driver: Any = conn.connection.driver_connection
        if self._lent is None:
            # Another thread may have left a transaction open when the process was
            # forked.
            driver.rollback()
            driver.execute("BEGIN IMMEDIATE")
        elif not driver.in_transaction:
            conn.exec_driver_sql("BEGIN IMMEDIATE")

    @contextmanager
    def _raising_store_errors(self, job: Job, *, begun: bool) -> Iterator[None]:
        """Raise an error of the driver as a StoreError; before the job has ``begun``, any error is the driver's."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            if begun and not isinstance(
                error, (SQLAlchemyError, sqlite3.Error, OSError)
            ):
                raise
            if "is locked" in address.reason_of(error):
                raise StoreTimeoutError(
                    job.name, self.seconds, writes=job.writes
                ) from error
            if begun:
                raise address.call_error(self.url, error, job.name) from error
            raise address.connection_error(self.url, error) from error

    def close_before_fork(self) -> bool:
        """Close the connections to a SQLite file; the next job opens them again. False: a thread uses them.

        SQLite keeps in the process which locks its connections have. A child that
        inherits a connection takes no lock for its own connections, and would lose its
        writes. A database in memory is copied instead.
        """
        if self.backend != "sqlite":
            return True
        if self._threads.is_working():
            return False
        if not self.in_memory:
            self._dispose()
        return True

    def begin_in_child(self) -> object:
        """Begin anew after a fork, and return the parent's connections, which may not be collected here."""
        parents = (self.engine, self._idle)
        keeps_engine = self.in_memory and not self._threads.is_working()
        if not keeps_engine:
            if self.backend == "sqlite" and self.engine is not None:
                _in_use_by_parent.add(self.identity.place)
            self.engine = None
            self._idle = []
        self._threads = threads_for(self.identity.place, self._pool_size, self)
        return parents
