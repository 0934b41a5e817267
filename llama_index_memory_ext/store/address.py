"""Checks the settings of a store, opens an engine for its address, and explains the errors of drivers."""

from __future__ import annotations

import math
import re
import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from llama_index.core.storage.chat_store.sql import DEFAULT_ASYNC_DATABASE_URI
from pydantic import BaseModel, Field
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool, StaticPool

from llama_index_memory_ext.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

# A SQLAlchemy address, or a SQLite file; None: a private database in memory.
Address: TypeAlias = str | Path | None

DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_POOL_SIZE = 5

# The server ends a statement so much later than the caller stops waiting for it.
SERVER_GRACE_SECONDS = 1.0
# The name of the call that makes tables.
MAKING = "making the tables"
# The driver that is used for the driver in an address.
_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+aiosqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+asyncpg": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}

# The path of a SQLite file, with or without the beginning of an address.
_FILE = re.compile(r"(?:sqlite(?:\+\w+)?:(?://)?)?([\w./\\ -]{1,200}\.(?:db|sqlite3?))")


class Settings(BaseModel, strict=True, arbitrary_types_allowed=True):
    """The arguments of a store that are checked by type and range."""

    table_name: str
    db_schema: str | None
    async_engine: AsyncEngine | None
    # The server and SQLite count milliseconds in 32 bits.
    operation_timeout: float = Field(
        DEFAULT_TIMEOUT_SECONDS,
        gt=0,
        le=1_000_000,
        description="The longest time of a call in seconds.",
    )
    pool_size: int = Field(
        DEFAULT_POOL_SIZE,
        ge=1,
        description="The largest number of connections; a server allows 100 in all.",
    )


def checked_url(uri: Address, lent: AsyncEngine | None = None) -> URL:
    """Parse an address, None for a private database in memory; a StoreError if no log can be kept there."""
    url = lent.url if lent else _parsed(uri)
    if "@" in (url.host or ""):
        # The first part of the password would be shown as a part of the host's name.
        raise StoreError(
            "There are two '@' in async_database_uri: in a user's name or a password, write '%40' for it."
        )
    name = url.get_backend_name() if lent else url.drivername
    if name not in _DRIVERS:
        raise StoreError(
            f"MemoryStore keeps its log in SQLite or PostgreSQL; the address names {name!r}. "
            f"Use one of {', '.join(_DRIVERS)}."
        )
    if lent is None:
        try:
            driver_url(url).get_dialect().import_dbapi()
        except ImportError as error:
            raise in_words(url, error) from error
    return url


def _parsed(uri: Address) -> URL:
    """Parse an address; a StoreError, which does not quote it, if it cannot be read."""
    if isinstance(uri, Path):
        return URL.create("sqlite+aiosqlite", database=str(uri))
    try:
        url = make_url(DEFAULT_ASYNC_DATABASE_URI if uri is None else uri)
        is_readable = url.get_backend_name() != "sqlite" or not url.host
    except (ArgumentError, ValueError):
        # The text of the error, and the address, may hold a password.
        is_readable = False
    if not is_readable:
        path = _FILE.fullmatch(str(uri))
        file = path[1] if path else "memory.db"
        seen = "the given text cannot be read as an address"
        if uri == file:
            seen = f"saw the name of a file. Pass 'sqlite:///{file}', or a Path"
        raise StoreError(
            f"async_database_uri must be a SQLAlchemy address such as 'sqlite+aiosqlite:///{file}' or "
            f"'postgresql+asyncpg://user@host/database'; {seen}."
        )
    return url


def driver_url(url: URL) -> URL:
    """Return the address for the driver that is used."""
    return url.set(drivername=_DRIVERS[url.drivername])


def in_words(url: URL, error: Exception, name: str = "") -> StoreError:
    """Return a StoreError for the call of this name that the database has refused; without a name, for a connection."""
    reason = reason_of(error)
    if isinstance(error, ImportError):
        reason = f"it needs {error.name or 'libpq'}"
        hint = 'pip install "llama-index-memory-ext[postgres]"'
    elif name:
        hint = _hint_for_call(url, error, name)
    elif url.get_backend_name() == "sqlite":
        hint = (
            "See whether it is a database of SQLite, and whether you may read it and write to its folder; if you may "
            "not, sqlite:///file:...?immutable=1&uri=true opens a file that no other program writes to."
        )
    else:
        hint = (
            "See whether it is there, and whether the address, the user and the password are right. Options are "
            "libpq's, such as sslmode=require."
        )
    outcome = f"has refused {name}" if name else "cannot be used"
    return StoreError(
        f"The database at {without_password(url)} {outcome}: {reason}. {hint}"
    )


def _hint_for_call(url: URL, error: Exception, name: str) -> str:
    """Return the advice for a call that the database has refused."""
    reason = reason_of(error)
    if getattr(error, "connection_invalidated", False):
        return "The connection was lost: look whether it was stored before you repeat the call."
    if "full" in reason and url.get_backend_name() == "sqlite":
        return "Nothing was changed. Free twice the size of its file, which to delete and to vacuum take."
    if name == MAKING:
        return (
            "Its tables are missing or of an earlier version: open it once as a user who may make and change tables; "
            "afterwards reading and writing rows is all that is needed."
        )
    if "readonly" in reason or "read-only" in reason:
        return (
            "Nothing was changed: see who may write to the database, its file and folder (a temporary memory may "
            "not)."
        )
    return "Nothing was changed. The call can be made again."


def reason_of(error: BaseException) -> str:
    """Return the first line of the driver's message, which holds no stored text."""
    message = str(getattr(error, "orig", None) or error).strip()
    return message.partition("\n")[0].rstrip(".") or type(error).__name__


def without_password(url: URL) -> str:
    """Return the address as text, with ``***`` for a password, and without a password after the ``?``."""
    secret = [name for name in url.query if "password" in name.lower()]
    return url.difference_update_query(secret).render_as_string()


def is_in_memory(url: URL) -> bool:
    """Return whether the database is deleted with its connection."""
    nameless = url.database in (None, "", ":memory:") or "mode=memory" in str(url)
    return url.get_backend_name() == "sqlite" and nameless


def is_missing(url: URL) -> bool:
    """Return whether opening the address would begin an empty database: a new file, or a database in memory."""
    if is_in_memory(url):
        return True
    name = str(url.database)
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    return url.get_backend_name() == "sqlite" and not Path(name).is_file()


def open_engine(url: URL, seconds: float, pool_size: int, set_up: str = "") -> Engine:
    """Return an engine whose errors quote no parameters; a StoreError if a folder is missing.

    No statement takes longer than ``seconds``. The engine has at most ``pool_size``
    connections, for any thread; each begins with the statement ``set_up``.
    """
    if is_in_memory(url):
        return _open_sqlite(url, seconds, set_up, {"poolclass": StaticPool})
    pool: dict[str, Any] = {
        "poolclass": QueuePool,
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": seconds + SERVER_GRACE_SECONDS,
        # The connections that are not needed grow old, and the server may end them.
        "pool_use_lifo": True,
    }
    if url.get_backend_name() == "postgresql":
        return _open_server(url, seconds, set_up, pool)
    folder = Path(url.database or "").expanduser().parent
    if "uri" not in url.query and not folder.is_dir():
        raise StoreError(
            f"The database file {url.database!r} needs a folder {str(folder)!r}: create it first."
        )
    return _open_sqlite(url, seconds, set_up, pool)


def _open_server(url: URL, seconds: float, set_up: str, pool: dict[str, Any]) -> Engine:
    for_driver = driver_url(url)
    wait = max(1, math.ceil(seconds))
    # After about this time, a machine that does not answer is given up.
    limits: dict[str, Any] = {
        "connect_timeout": wait,
        "tcp_user_timeout": 1000 * wait,
        "keepalives_count": 2,
        "keepalives_idle": 10,
        "keepalives_interval": wait,
    }
    arguments = {
        name: value for name, value in limits.items() if name not in for_driver.query
    }
    # A pooler in between may give each transaction another connection of the server.
    arguments["prepare_threshold"] = None
    engine = create_engine(
        for_driver,
        isolation_level="READ COMMITTED",
        connect_args=arguments,
        hide_parameters=True,
        **pool,
    )
    milliseconds = round(1000 * (seconds + SERVER_GRACE_SECONDS))
    # A statement, because poolers refuse settings at the start of the connection.
    limits_statement = (
        f"SET statement_timeout = {milliseconds}; "
        f"SET idle_in_transaction_session_timeout = {milliseconds}; {set_up}"
    )
    event.listen(engine, "connect", partial(_set_up, [limits_statement]))
    event.listen(engine, "checkout", _check)
    return engine


def _open_sqlite(url: URL, seconds: float, set_up: str, pool: dict[str, Any]) -> Engine:
    arguments: dict[str, Any] = {
        "timeout": seconds,
        "check_same_thread": False,
        # The runner begins transactions.
        "isolation_level": None,
    }
    engine = create_engine(
        driver_url(url), connect_args=arguments, hide_parameters=True, **pool
    )
    # Stored messages survive a power cut, and deleted ones are overwritten.
    statements = ["PRAGMA synchronous = FULL", "PRAGMA secure_delete = ON", set_up]
    event.listen(engine, "connect", partial(_set_up, statements), insert=True)
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
    """Switch a file to a write-ahead log, so that readers do not wait for a writer, unless the file is busy."""
    raw: Any = conn.connection.driver_connection
    # Another program may hold the file, or the file may be read-only.
    with suppress(sqlite3.Error):
        raw.execute("PRAGMA busy_timeout = 0")
        raw.execute("PRAGMA journal_mode = WAL")
    raw.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")


def _check(connection: Any, _record: Any, _proxy: Any) -> None:
    """Replace a connection that was lost while it was idle."""
    is_lost = bool(connection.closed)
    if not is_lost:
        with DefaultSelector() as selector:
            selector.register(connection, EVENT_READ)
            # An idle connection has data to read when the server has ended it, and for
            # hardly any other reason.
            is_lost = bool(selector.select(0))
    if is_lost:
        raise DisconnectionError("The connection was lost while it was idle.")
