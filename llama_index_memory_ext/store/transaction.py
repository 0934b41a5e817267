"""A transaction on the tables of a store, and methods that run in one."""

from __future__ import annotations

import logging
import time
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from llama_index_memory_ext.errors import EncryptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from llama_index_memory_ext.store.schema import Tables
    from llama_index_memory_ext.store.tables import Row


logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_SELECT_MARK = "SELECT encryption FROM {schema}"
# A row that is set to its own value stays locked until the transaction ends, also if it
# is new.
_LOCK_SESSION = """
INSERT INTO {sessions} AS stored (key, epoch) VALUES (:key, :epoch)
ON CONFLICT (key) DO UPDATE SET epoch = stored.epoch
RETURNING (SELECT encryption FROM {schema}) AS mark
"""
_LOCK_USER = """
INSERT INTO {users} AS stored (namespace, epoch, change) VALUES (:namespace, :epoch, 0)
ON CONFLICT (namespace) DO UPDATE SET epoch = stored.epoch
"""


class Transaction:
    """A connection within ``Database.run``, for the statements of the store."""

    def __init__(self, connection: sa.Connection, tables: Tables) -> None:
        self.connection = connection
        self.tables = tables

    def execute(
        self, statement: str, rows: Sequence[Row] = (), /, **parameters: Any
    ) -> sa.CursorResult[Any]:
        """Run a statement as ``Tables.sql`` describes it, once or for each of the ``rows``.

        Texts and vectors among the parameters are encrypted if the store has a key.
        """
        if self.tables.cipher.is_set:
            rows = [self._encrypted(row) for row in rows]
            parameters = self._encrypted(parameters)
        text = self.tables.sql(statement)
        result = self.connection.execute(text, rows or parameters)
        if isinstance(text, sa.TextualSelect) and not text.positional:
            self.tables.note_columns(statement, result.keys())
        return result

    def rows(self, statement: str, **parameters: Any) -> Sequence[Any]:
        """Run a query, and return its rows.

        All rows are read at once: SQLite vacuums no file that a statement is reading.
        """
        return self.execute(statement, **parameters).all()

    def scalar(self, statement: str, **parameters: Any) -> Any:
        """Run a query, and return the first column of its first row; None without a row."""
        return self.execute(statement, **parameters).scalar()

    def check_key(self) -> bool:
        """Return whether the database is marked as encrypted; an EncryptionError for another key, or for no key."""
        mark = self.scalar(_SELECT_MARK)
        self.tables.cipher.check_mark(mark)
        return mark is not None

    def read(self, value: Any, place: str) -> Any:
        """Return a value of a query; None, with a warning that names its place, if it cannot be decrypted.

        Raises:
            EncryptionError: The store does not have the key of the database.
        """
        if not isinstance(value, EncryptionError):
            return value
        self.check_key()
        logger.warning("%s cannot be read, and is left out: %s", place, value)
        return None

    def _encrypted(self, row: Row) -> Row:
        """Return the parameters of a statement with encrypted texts and vectors."""
        encrypted = dict(row)
        for name, column in self.tables.encrypted_columns.items():
            if row.get(name) is not None:
                encrypted[name] = column.encrypt(row[name])
        return encrypted

    def scalars(self, statement: str, **parameters: Any) -> list[Any]:
        """Run a statement, and return the first column of its rows."""
        return list(self.execute(statement, **parameters).scalars())

    def rollback(self) -> None:
        """Undo all changes and release the locks; the function of ``Database.run`` can still return a result."""
        self.connection.rollback()

    def lock(self, sessions: Collection[str], users: Collection[str]) -> None:
        """Lock sessions before users, each in order, so that no two writers wait for each other.

        Raises:
            EncryptionError: The store does not have the key of the database. This is
                checked if there is a session to lock.
        """
        epoch = time.time_ns()
        for key in sorted(sessions):
            mark = self.scalar(_LOCK_SESSION, key=key, epoch=epoch)
            self.tables.cipher.check_mark(mark)
        for namespace in sorted(users):
            self.execute(_LOCK_USER, namespace=namespace, epoch=epoch)


def door(
    function: Callable[Concatenate[Transaction, P], T], locks: str = ""
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that runs a function of a transaction in the database of its part.

    ``locks``: "sessions" or "users"; the first argument names the session or user to lock.
    "" if the function only reads.
    """

    @wraps(function)
    async def run(part: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        access: Any = {locks: args[:1]} if locks else {"writes": False}
        result: T = await part.database.run(function, *args, **access, **kwargs)
        return result

    return run


class StorePart:
    """A part of a store, whose methods are functions of a transaction."""

    def __init__(self, database: Any) -> None:
        self.database = database
