"""Checks the settings of a store, opens an engine for its address, and explains the errors of drivers."""

from __future__ import annotations

import math
import os
import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_index.core.storage.chat_store.sql import DEFAULT_ASYNC_DATABASE_URI
from pydantic import BaseModel, Field
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import StaticPool

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
# The statement with which the connections of a store that only reads begin.
READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET default_transaction_read_only = on",
}
# What to do about a connection that cannot be opened, and about a refused call.
_CONNECTION_HINTS = {
    "sqlite": "See whether it is a database of SQLite, and whether you may read it and write to its folder.",
    "postgresql": (
        "See whether it is there, and whether the address, the user and the password are right. Options are libpq's, "
        "such as sslmode=require."
    ),
}
_CALL_HINT = (
    "Nothing was changed, and the call can be made again. Its disk may be full, or you may not write to it, as a "
    "temporary memory may not."
)
_MAKING_HINT = (
    "Its tables are missing or of an earlier version: open it once as a user who may make and change tables; "
    "afterwards reading and writing rows is all that is needed."
)
_LOST_HINT = (
    "The connection was lost: check whether it was stored before you repeat the call."
)


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
    """Parse an address, None for a private database in memory.

    Raises:
        StoreError: It cannot be read, or no log can be kept there. The error does not
            quote it, because it may hold a password.
    """
    url = lent.url if lent else _parsed(uri)
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
            raise StoreError(
                f"The database at {without_password(url)} cannot be used: it needs {error.name or 'libpq'}. "
                'pip install "llama-index-memory-ext[postgres]"'
            ) from error
    return url


def _parsed(uri: Address) -> URL:
    if isinstance(uri, Path):
        return URL.create("sqlite+aiosqlite", database=str(uri))
    with suppress(ArgumentError, ValueError):
        url = make_url(DEFAULT_ASYNC_DATABASE_URI if uri is None else uri)
        # With a second '@', a part of the password would be shown as the host's name.
        is_sqlite = url.get_backend_name() == "sqlite"
        is_no_file = is_sqlite and (url.host or {"uri", "mode"} & url.query.keys())
        if "@" not in (url.host or "") and not is_no_file:
            return url
    # Raised outside the block, so that the error has no context with the address.
    raise StoreError(
        "async_database_uri must be a SQLAlchemy address such as 'sqlite:///memory.db' or "
        "'postgresql://user@host/database', with '%40' for an '@' in a password; got another text. Pass a file "
        "of SQLite as a Path, or after 'sqlite:///', without uri= and mode=."
    )


def driver_url(url: URL) -> URL:
    """Return the address for the driver that is used."""
    return url.set(drivername=_DRIVERS[url.drivername])


def connection_error(url: URL, error: Exception) -> StoreError:
    """Return a StoreError for a connection that could not be opened."""
    return StoreError(
        f"The database at {without_password(url)} cannot be used: {reason_of(error)}. "
        f"{_CONNECTION_HINTS[url.get_backend_name()]}"
    )


def call_error(url: URL, error: Exception, name: str) -> StoreError:
    """Return a StoreError for the call of this name that the database has refused."""
    hint = _MAKING_HINT if name == MAKING else _CALL_HINT
    if getattr(error, "connection_invalidated", False):
        hint = _LOST_HINT
    return StoreError(
        f"The database at {without_password(url)} has refused {name}: {reason_of(error)}. {hint}"
    )


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
    is_nameless = url.database in (None, "", ":memory:")
    return url.get_backend_name() == "sqlite" and is_nameless


def is_missing(url: URL) -> bool:
    """Return whether opening the address would begin an empty database: a new file, or a database in memory."""
    is_file = Path(str(url.database)).is_file()
    return url.get_backend_name() == "sqlite" and not is_file


def file_id(place: str) -> int:
    """Return the number of a file on its disk; 0 for a missing file, or a place that is no file."""
    with suppress(OSError):
        return os.stat(place).st_ino  # noqa: PTH116 - each call of a store asks, and a Path takes three times as long
    return 0


def open_engine(url: URL, seconds: float, pool_size: int, set_up: str = "") -> Engine:
    """Return an engine whose errors quote no parameters; a StoreError if a folder is missing.

    No statement takes longer than ``seconds``. The engine has at most ``pool_size``
    connections, for any thread; each begins with the statement ``set_up``.
    """
    pool: dict[str, Any] = {"poolclass": StaticPool}
    if not is_in_memory(url):
        pool = {
            "pool_size": pool_size,
            "max_overflow": 0,
            "pool_timeout": seconds + SERVER_GRACE_SECONDS,
        }
    if url.get_backend_name() == "postgresql":
        # A connection that was lost while it was idle is replaced.
        pool["pool_pre_ping"] = True
        milliseconds = round(1000 * (seconds + SERVER_GRACE_SECONDS))
        arguments = _server_limits(url, seconds)
        # Statements, because poolers refuse settings at the start of the connection.
        statements = [
            f"SET statement_timeout = {milliseconds}",
            f"SET idle_in_transaction_session_timeout = {milliseconds}",
        ]
    else:
        folder = Path(url.database or "").expanduser().parent
        if not folder.is_dir():
            raise StoreError(
                f"The database file {url.database!r} needs a folder {str(folder)!r}: create it first."
            )
        # ``Database`` begins and ends transactions, in any thread.
        pool["pool_reset_on_return"] = None
        arguments = {
            "timeout": seconds,
            "check_same_thread": False,
            "isolation_level": None,
        }
        # Stored messages survive a power cut, and deleted ones are overwritten.
        statements = ["PRAGMA synchronous = FULL", "PRAGMA secure_delete = ON"]
    engine = create_engine(
        driver_url(url), connect_args=arguments, hide_parameters=True, **pool
    )
    begin = partial(_set_up, [*statements, set_up])
    event.listen(engine, "connect", begin, insert=True)
    return engine


def _server_limits(url: URL, seconds: float) -> dict[str, Any]:
    """Return the arguments by which a server that does not answer is given up after about this time."""
    wait = max(1, math.ceil(seconds))
    limits: dict[str, Any] = {
        "connect_timeout": wait,
        "tcp_user_timeout": 1000 * wait,
        "keepalives_count": 2,
        "keepalives_idle": 10,
        "keepalives_interval": wait,
        # A pooler in between may give each transaction another connection of the server.
        "prepare_threshold": None,
    }
    return {name: limits[name] for name in limits.keys() - url.query.keys()}


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
