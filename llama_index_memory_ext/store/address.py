"""Checks what a store is given, opens an engine for its address, and says in words what a driver has raised."""

from __future__ import annotations

import math
import re
import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from llama_index.core.storage.chat_store.sql import DEFAULT_ASYNC_DATABASE_URI
from pydantic import BaseModel, Field
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool, StaticPool

from llama_index_memory_ext.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_POOL_SIZE = 5

# The server ends a statement so much later than the caller stops waiting for it.
SERVER_GRACE_SECONDS = 1.0
# The name of the call that makes tables.
MAKING = "making the tables"
# The drivers that are used, whatever driver an address names.
_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
# Options of asyncpg by the names that libpq has for them, and those that have none: of
# its caches, mostly.
_RENAMED = {"ssl": "sslmode", "timeout": "connect_timeout", "database": "dbname"}
_OF_ASYNCPG = {
    "direct_tls",
    "async_fallback",
    "command_timeout",
    "statement_cache_size",
    "max_cacheable_statement_size",
}
_OF_ASYNCPG |= {
    "prepared_statement_cache_size",
    "prepared_statement_name_func",
    "max_cached_statement_lifetime",
}
# The options of sqlite3 and of SQLite's own addresses; the last one is that of
# aiosqlite alone.
_OF_SQLITE = {
    "uri",
    "timeout",
    "mode",
    "cache",
    "immutable",
    "nolock",
    "vfs",
    "psow",
    "check_same_thread",
}
_OF_SQLITE |= {
    "cached_statements",
    "isolation_level",
    "detect_types",
    "iter_chunk_size",
}

# What is surely meant as the path of a SQLite file.
_FILE = re.compile(r"(?:sqlite(?:\+\w+)?:(?://)?)?([\w./\\ -]{1,200}\.(?:db|sqlite3?))")


class Settings(BaseModel, strict=True, arbitrary_types_allowed=True):
    """What is checked of the arguments of a store by type and range."""

    table_name: str
    db_schema: str | None
    async_engine: AsyncEngine | None
    # The server and SQLite count milliseconds in 32 bits.
    operation_timeout: float = Field(
        DEFAULT_TIMEOUT_SECONDS,
        gt=0,
        le=1_000_000,
        description="Most seconds of a call.",
    )
    pool_size: int = Field(
        DEFAULT_POOL_SIZE,
        ge=1,
        description="Most connections; a server allows 100 in all.",
    )


def checked_url(uri: str | None, lent: AsyncEngine | None = None) -> URL:
    """Parse an address, None for a private database in memory; a StoreError if no log can be kept there."""
    try:
        if lent:
            url = lent.url
        else:
            url = make_url(DEFAULT_ASYNC_DATABASE_URI if uri is None else uri)
        if url.drivername == "postgres":
            # As hosts of databases spell it.
            url = url.set(drivername="postgresql")
        url.get_dialect()
        is_readable = url.get_backend_name() != "sqlite" or not url.host
    except (ArgumentError, NoSuchModuleError, ValueError):
        # The text of the error, and the address, may hold a password.
        is_readable = False
    if not is_readable:
        path = _FILE.fullmatch(str(uri))
        file = path[1] if path else "memory.db"
        raise StoreError(
            f"async_database_uri must be a SQLAlchemy address such as 'sqlite+aiosqlite:///{file}' or "
            "'postgresql+asyncpg://user@host/database'; what was given cannot be read as one."
        )
    if "@" in (url.host or ""):
        # It would be shown as a part of the host's name.
        raise StoreError(
            "There are two '@' in async_database_uri: in a user's name or a password, write '%40' for it."
        )
    if url.get_backend_name() not in _DRIVERS:
        raise StoreError(
            f"MemoryStore keeps its log in SQLite or PostgreSQL; the address names {url.get_backend_name()!r}. "
            "Use one of sqlite+aiosqlite, postgresql+asyncpg."
        )
    if lent is None:
        try:
            driver_url(url)
        except ImportError as error:
            raise in_words(url, error) from error
    return url


def driver_url(url: URL) -> URL:
    """Return the address for the driver that is used, with its names of the options; a StoreError for an unknown option."""
    backend = url.get_backend_name()
    known = _OF_SQLITE
    if backend == "postgresql":
        # Only where there is a server: it is an extra.
        from psycopg import pq

        known = _OF_ASYNCPG.union(
            _RENAMED, (option.keyword.decode() for option in pq.Conninfo.get_defaults())
        )
    for name in sorted(set(url.query) - known):
        from difflib import get_close_matches

        near = get_close_matches(name, known, 1, 0.5)
        if near:
            meant = f"Did you mean {near[0]!r}?"
        else:
            meant = f"It knows {', '.join(sorted(known))}."
        raise StoreError(
            f"The driver of {backend} knows no option {name!r}, which async_database_uri has behind its question mark. "
            f"{meant} What an address cannot say, an engine of your own can: async_engine=..."
        )
    if backend == "sqlite":
        return url.set(drivername="sqlite").difference_update_query(["iter_chunk_size"])
    query = {
        name: value for name, value in url.query.items() if name not in _OF_ASYNCPG
    }
    options: dict[str, Any] = {
        _RENAMED.get(name, name): value for name, value in query.items()
    }
    if url.query.get("direct_tls") in ("true", "1"):
        options["sslnegotiation"] = "direct"
    if options.get("sslmode") in ("true", "True", "1"):
        options["sslmode"] = "require"
    with suppress(KeyError, ValueError, TypeError):
        options["connect_timeout"] = str(math.ceil(float(options["connect_timeout"])))
    return url.set(drivername=_DRIVERS[backend], query=options)


def in_words(url: URL, error: Exception, name: str = "") -> StoreError:
    """Return the error for the call of this name that the database has refused; without a name, there is no connection."""
    reason = reason_of(error)
    is_file = url.get_backend_name() == "sqlite"
    if isinstance(error, ImportError):
        reason = f"it needs {error.name or 'libpq'}"
        hint = 'pip install "llama-index-memory-ext[postgres]"'
    elif not name and is_file:
        hint = (
            "See whether it is a database of SQLite, and whether you may read it and write to its folder; if you may "
            "not, sqlite:///file:...?immutable=1&uri=true opens a file that no other program writes to."
        )
    elif not name:
        hint = "See whether it is there, and whether the address, the user and the password are right."
    elif getattr(error, "connection_invalidated", False):
        hint = "The connection was lost: look whether it was stored before you repeat the call."
    elif "full" in reason and is_file:
        hint = "Nothing was changed. Free twice the size of its file, which to delete and to vacuum take."
    elif name == MAKING:
        hint = (
            "Its tables are missing or of an earlier version: open it once as a user who may make and change tables; "
            "afterwards reading and writing rows is all that is needed."
        )
    elif "readonly" in reason or "read-only" in reason:
        hint = "Nothing was changed: see who may write to the database, its file and folder (a temporary memory may not)."
    else:
        hint = "Nothing was changed. The call can be made again."
    if name:
        refused = f"has refused {name}"
    else:
        refused = "cannot be used"
    return StoreError(
        f"The database at {without_password(url)} {refused}: {reason}. {hint}"
    )


def reason_of(error: BaseException) -> str:
    """Return the first line of what the driver has said, without what was to be stored."""
    said = str(getattr(error, "orig", None) or error).strip()
    return said.partition("\n")[0].rstrip(".") or type(error).__name__


def without_password(url: URL) -> str:
    """Return the address as text: ``***`` for a password; one that is an option after the ``?`` is left out."""
    secret = [name for name in url.query if "password" in name.lower()]
    return url.difference_update_query(secret).render_as_string()


def is_in_memory(url: URL) -> bool:
    """Return whether the database is gone with its connection."""
    nameless = url.database in (None, "", ":memory:") or "mode=memory" in str(url)
    return url.get_backend_name() == "sqlite" and nameless


def is_missing(url: URL) -> bool:
    """Return whether opening the address would begin an empty database: no file yet, or one in memory."""
    name = str(url.database)
    file = Path(unquote(urlsplit(name).path) if name.startswith("file:") else name)
    return is_in_memory(url) or (
        url.get_backend_name() == "sqlite" and not file.is_file()
    )


def open_engine(url: URL, seconds: float, pool_size: int, set_up: str = "") -> Engine:
    """Return an engine whose errors quote no parameters; a StoreError if a folder is missing.

    No statement takes longer than ``seconds``. The engine has ``pool_size`` connections
    at most, for any thread; each begins with the statement ``set_up``.
    """
    options: dict[str, Any] = {
        "hide_parameters": True,
        "max_overflow": 0,
        "pool_size": pool_size,
    }
    # The connections that are not needed grow old, and the server may end them.
    options |= {
        "poolclass": QueuePool,
        "pool_timeout": seconds + SERVER_GRACE_SECONDS,
        "pool_use_lifo": True,
    }
    if url.get_backend_name() == "postgresql":
        for_driver = driver_url(url)
        wait = max(1, math.ceil(seconds))
        # A machine that has gone is given up after about this time.
        arguments: dict[str, Any] = {
            "connect_timeout": wait,
            "tcp_user_timeout": 1000 * wait,
            "keepalives_count": 2,
        }
        arguments |= {"keepalives_idle": 10, "keepalives_interval": wait}
        arguments = {
            name: value
            for name, value in arguments.items()
            if name not in for_driver.query
        }
        # A pooler between may give each transaction another connection of the server.
        arguments["prepare_threshold"] = None
        engine = create_engine(
            for_driver,
            isolation_level="READ COMMITTED",
            connect_args=arguments,
            **options,
        )
        limit = round(1000 * (seconds + SERVER_GRACE_SECONDS))
        # By a statement and not at the start of the connection, which poolers refuse.
        sets = f"SET statement_timeout = {limit}; SET idle_in_transaction_session_timeout = {limit}; {set_up}"
        event.listen(engine, "connect", partial(_set_up, [sets]))
        event.listen(engine, "checkout", _check)
        return engine
    if is_in_memory(url):
        options = {"hide_parameters": True, "poolclass": StaticPool}
    elif (
        "uri" not in url.query
        and not (folder := Path(url.database or "").expanduser().parent).is_dir()
    ):
        raise StoreError(
            f"The database file {url.database!r} needs a folder {str(folder)!r}: create it first."
        )
    # Transactions begin where the runner says so.
    settings = {"timeout": seconds, "check_same_thread": False, "isolation_level": None}
    engine = create_engine(driver_url(url), connect_args=settings, **options)
    # What was acknowledged survives a power cut.
    event.listen(
        engine,
        "connect",
        partial(_set_up, ["PRAGMA synchronous = FULL", set_up]),
        insert=True,
    )
    return engine


def _set_up(statements: Sequence[str], connection: Any, _record: Any) -> None:
    try:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    except Exception:
        connection.close()
        raise


def use_write_ahead_log(conn: Connection, seconds: float) -> None:
    """Let a file keep a write-ahead log, in which readers do not wait for a writer, if that can be had at once."""
    raw: Any = conn.connection.driver_connection
    # Another program may hold the file, which may be one that can only be read.
    with suppress(sqlite3.Error):
        raw.execute("PRAGMA busy_timeout = 0")
        raw.execute("PRAGMA journal_mode = WAL")
    raw.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")


def _check(connection: Any, _record: Any, _proxy: Any) -> None:
    """Replace a connection that was lost while it was idle."""
    with DefaultSelector() as said:
        # A server that ends a connection says so, and hardly anything else makes it say
        # something.
        if connection.closed or (
            said.register(connection, EVENT_READ) and said.select(0)
        ):
            raise DisconnectionError("The connection was lost while it was idle.")
