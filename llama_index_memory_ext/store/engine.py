"""Reads the address of a database, and opens an engine for it."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import unquote, urlsplit

from llama_index.core.storage.chat_store.sql import DEFAULT_ASYNC_DATABASE_URI
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, StaticPool

from llama_index_memory_ext.errors import StoreError

DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_POOL_SIZE = 10

# The server ends a statement so much later than we stop waiting for it.
_SERVER_GRACE_SECONDS = 1.0
# The server and SQLite count milliseconds in 32 bits.
_MOST_SECONDS = 1_000_000
_PING_AFTER_SECONDS = 10.0
_IDLE_SINCE = "llama_index_memory_ext idle since"
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
# In AUTOCOMMIT a failure would leave half of a change; a writer in an old snapshot would fail once it has its lock.
LEVELS = {"sqlite": "SERIALIZABLE", "postgresql": "READ COMMITTED"}


def checked_url(uri: str | None) -> URL:
    """Parse an address, None for a private database in memory; a StoreError if no log can be kept there."""
    try:
        url = make_url(DEFAULT_ASYNC_DATABASE_URI if uri is None else uri)
        is_async = url.get_dialect().is_async
    except (ArgumentError, NoSuchModuleError, ValueError):
        # The text of the error, and the address, may hold a password.
        # What is surely the path of a file.
        file = str(uri) if re.fullmatch(r"[\w./\\ -]{1,200}\.(?:db|sqlite3?)", str(uri)) else "memory.db"
        raise StoreError(
            f"async_database_uri must be a SQLAlchemy address such as 'sqlite+aiosqlite:///{file}' or "
            "'postgresql+asyncpg://user@host/database'; what was given cannot be read as one."
        ) from None
    if "@" in (url.host or ""):
        # It would be shown as a part of the host's name.
        raise StoreError("There are two '@' in async_database_uri: in a user's name or a password, write '%40' for it.")
    check_backend(url)
    if not is_async:
        wanted = _DRIVERS[url.get_backend_name()]
        raise StoreError(
            f"The database needs an async driver; {url.drivername!r} names none. "
            f"Write {wanted + '://'!r} instead of {url.drivername + '://'!r}."
        )
    try:
        url.get_dialect().import_dbapi()
    except ModuleNotFoundError as error:
        raise unusable(url, error) from error
    return url


def unusable(url: URL, error: Exception) -> StoreError:
    """Returns the error for a database to which there is no connection, by what the driver has raised."""
    reason = str(getattr(error, "orig", error)).partition("\n")[0].rstrip(".") or type(error).__name__
    hint = "See whether it is there, and whether the address, the user and the password are right."
    if isinstance(error, ModuleNotFoundError):
        reason, hint = f"it needs {error.name}", 'pip install "llama-index-memory-ext[postgres]"'
    return StoreError(f"The database at {without_password(url)} cannot be used: {reason}. {hint}")


def check_limits(operation_timeout: float, pool_size: int) -> None:
    """Refuse, by a StoreError, limits with which no call could ever succeed."""
    # Not a number is no number over 0, either.
    if (
        isinstance(operation_timeout, bool)
        or not isinstance(operation_timeout, (int, float))
        or not (0 < operation_timeout <= _MOST_SECONDS)
    ):
        raise StoreError(
            f"operation_timeout must be a number of seconds over 0 and up to {_MOST_SECONDS:,}; it is "
            f"{operation_timeout!r}. It bounds every call of the store."
        )
    if isinstance(pool_size, bool) or not isinstance(pool_size, int) or pool_size < 1:
        raise StoreError(
            f"pool_size must be a whole number of connections, 1 or more; it is {pool_size!r}. A server allows 100 of "
            "all its clients together by default."
        )


def check_place(table_name: object, db_schema: object, async_engine: object) -> None:
    """Refuse, by a StoreError, names of the table or its schema that are no texts, and what is no engine."""
    wanted = (
        ("table_name", table_name, str),
        ("db_schema", db_schema, str),
        ("async_engine", async_engine, AsyncEngine),
    )
    for name, value, kind in wanted:
        if not isinstance(value, kind) and (value is not None or name == "table_name"):
            raise StoreError(
                f"{name} must be {'a text' if kind is str else 'an AsyncEngine of SQLAlchemy'}; this is a "
                f"{type(value).__name__}. Leave it out for the default."
            )


def check_backend(url: URL) -> None:
    """Refuse, by a StoreError, a database whose locks the log does not know."""
    if url.get_backend_name() not in _DRIVERS:
        raise StoreError(
            f"MemoryStore keeps its log in SQLite or PostgreSQL; the address names {url.get_backend_name()!r}. "
            f"Use one of {', '.join(_DRIVERS.values())}."
        )


def without_password(url: URL) -> str:
    """The address as text: ``***`` for a password; one that is an option after the ``?`` is left out."""
    secret = [name for name in url.query if "password" in name.lower()]
    return url.difference_update_query(secret).render_as_string()


def is_in_memory(url: URL) -> bool:
    """Whether the database is gone with its connection."""
    nameless = url.database in (None, "", ":memory:") or "mode=memory" in str(url)
    return url.get_backend_name() == "sqlite" and nameless


def is_missing(url: URL) -> bool:
    """Whether opening the address would begin an empty database: no file yet, or one in memory."""
    if url.get_backend_name() != "sqlite" or is_in_memory(url):
        return is_in_memory(url)
    name = str(url.database)
    return not Path(unquote(urlsplit(name).path) if name.startswith("file:") else name).is_file()


def open_engine(url: URL, seconds: float, pool_size: int) -> AsyncEngine:
    """An engine whose errors quote no parameters; a StoreError if a folder is missing.

    No statement takes longer than ``seconds``. On PostgreSQL the engine has ``pool_size`` connections at most, which
    work in the event loop that has opened them.
    """
    if url.get_backend_name() == "postgresql":
        return _open_postgresql(url, seconds, pool_size)
    # Of any thread: what a closed event loop has left open is rolled back in another one.
    arguments = {"timeout": seconds, "check_same_thread": False}
    options: dict[str, Any] = {"hide_parameters": True, "connect_args": arguments}
    if is_in_memory(url):
        engine = create_async_engine(url, poolclass=StaticPool, **options)
        event.listen(engine.sync_engine, "connect", _read_without_locks)
        return engine
    folder = Path(url.database or "").expanduser().parent
    if not folder.is_dir() and "uri" not in url.query:
        raise StoreError(f"The database file {url.database!r} needs a folder {str(folder)!r}: create it first.")
    # A pool of limited size would have to wait in one event loop for a connection of another.
    return create_async_engine(url, poolclass=AsyncAdaptedQueuePool, max_overflow=-1, **options)


def _open_postgresql(url: URL, seconds: float, pool_size: int) -> AsyncEngine:
    engine = create_async_engine(
        url,
        hide_parameters=True,
        isolation_level=LEVELS["postgresql"],
        pool_size=pool_size,
        max_overflow=0,
        # Whoever waits for a connection is stopped from outside.
        pool_timeout=seconds + _SERVER_GRACE_SECONDS,
        # The connections that are not needed grow old, and the server may end them.
        pool_use_lifo=True,
        connect_args={} if "timeout" in url.query else {"timeout": seconds},
    )
    event.listen(engine.sync_engine, "connect", partial(_bound_statements, seconds + _SERVER_GRACE_SECONDS))
    event.listen(engine.sync_engine, "checkin", _note_time)
    event.listen(engine.sync_engine, "checkout", partial(_check, engine.dialect))
    return engine


def _bound_statements(seconds: float, connection: Any, _record: Any) -> None:
    """Let the server end what nobody waits for any more, and free its locks."""
    limit = round(1000 * seconds)
    settings = ("statement_timeout", "idle_in_transaction_session_timeout")
    # By a statement and not at the start of the connection, which poolers refuse.
    sets = "; ".join(f"SET {setting} = {limit}" for setting in settings)
    connection.run_async(lambda driver: driver.execute(sets))


def _note_time(_connection: Any, record: Any) -> None:
    record.info[_IDLE_SINCE] = monotonic()


def _check(dialect: Any, connection: Any, record: Any, _proxy: Any) -> None:
    """Replace a connection that was lost while nobody used it. The server is asked only after a pause."""
    idle = monotonic() - record.info.get(_IDLE_SINCE, monotonic())
    lost = connection.driver_connection.is_closed()
    if not lost and idle > _PING_AFTER_SECONDS:
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error:
            lost = True
    if lost:
        raise DisconnectionError("The connection was lost while it was idle.")


def _read_without_locks(connection: Any, _record: Any) -> None:
    """A statement of a discarded connection may not have ended: its locks must not stop the next one."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA read_uncommitted = 1")
    cursor.close()
