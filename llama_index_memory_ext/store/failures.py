"""Tells a failure of the database from all other errors, without a word of what was stored or asked."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from llama_index_memory_ext.errors import MemoryExtError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

# The network and the disk; rows that are none any more.
_FAILURES = (SQLAlchemyError, OSError, asyncio.TimeoutError, ValidationError, json.JSONDecodeError, UnicodeError)
# What these raise while a connection is made, SQLAlchemy hands on as it is.
_DRIVERS = frozenset({"aiosqlite", "asyncpg", "sqlite3"})


@contextmanager
def telling_failures(what: str, so: str) -> Iterator[None]:
    """Within it, a failure of the database is a StoreError: ``what`` did not happen, and ``so`` what follows from it.

    The error that was raised may quote what was stored, so only the name of its type is told. This package's own errors
    and whatever has nothing to do with a database come as they are.
    """
    try:
        yield
    except MemoryExtError:
        raise
    except Exception as error:
        if not _is_failure(error):
            raise
        raise StoreError(f"{what} (database failed: {type(error).__name__}). {so}") from None


def _is_failure(error: Exception) -> bool:
    modules = {base.__module__.partition(".")[0] for base in type(error).__mro__}
    return isinstance(error, _FAILURES) or not _DRIVERS.isdisjoint(modules)
