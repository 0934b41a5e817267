"""Reads the address of a database, and opens an engine for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from llama_index.core.storage.chat_store.sql import DEFAULT_ASYNC_DATABASE_URI
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool, StaticPool

from llama_index_memory_ext.errors import StoreError

BUSY_SECONDS = 30
# Threads: what a closed event loop has left open is rolled back in another one.
_SQLITE: dict[str, Any] = {"timeout": BUSY_SECONDS, "check_same_thread": False}

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
# In AUTOCOMMIT a failure would leave half of a change; a writer in an old snapshot would fail once it has its lock.
LEVELS = {"sqlite": "SERIALIZABLE", "postgresql": "READ COMMITTED"}


def checked_url(uri: str | None) -> URL:
    """Parse an address, None for a private database in memory; a StoreError if no log can be kept there."""
    try:
        url = make_url(uri or DEFAULT_ASYNC_DATABASE_URI)
        is_async = url.get_dialect().is_async
    except (ArgumentError, NoSuchModuleError, ValueError):
        # The text of the error, and the address, may hold a password.
        raise StoreError(
            "async_database_uri must be a SQLAlchemy address such as 'sqlite+aiosqlite:///memory.db'; "
            "what was given cannot be read as one."
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
    return url


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


def open_engine(url: URL) -> AsyncEngine:
    """An engine for several event loops, whose errors quote no parameters; a StoreError if a folder is missing."""
    if url.get_backend_name() == "postgresql":
        # A connection of asyncpg works in one event loop only, and each synchronous call has its own.
        return create_async_engine(url, hide_parameters=True, poolclass=NullPool, isolation_level=LEVELS["postgresql"])
    if is_in_memory(url):
        engine = create_async_engine(url, hide_parameters=True, connect_args=_SQLITE, poolclass=StaticPool)
        event.listen(engine.sync_engine, "connect", _read_without_locks)
        return engine
    folder = Path(url.database or "").expanduser().parent
    if not folder.is_dir() and "uri" not in url.query:
        raise StoreError(f"The database file {url.database!r} needs a folder {str(folder)!r}: create it first.")
    # A pool of limited size would have to wait in one event loop for a connection of another.
    pool: dict[str, Any] = {"poolclass": AsyncAdaptedQueuePool, "max_overflow": -1}
    return create_async_engine(url, hide_parameters=True, connect_args=_SQLITE, **pool)


def _read_without_locks(connection: Any, _record: Any) -> None:
    """A statement of a discarded connection may not have ended: its locks must not stop the next one."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA read_uncommitted = 1")
    cursor.close()
