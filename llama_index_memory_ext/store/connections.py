"""Gives connections with the transactions that the log needs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

# In AUTOCOMMIT a failure would leave half of a change; in a snapshot from before it had its lock a writer would fail.
LEVELS = {"sqlite": "SERIALIZABLE", "postgresql": "READ COMMITTED"}


class Connections:
    """The connections of an engine, which keeps its own isolation level for everybody else.

    Args:
        engine: Whose. One of ours has the right level already; one that was lent may have any, in any of several ways,
            and only a connection's own options count more than all of them.
        lent: Which of both it is.
    """

    def __init__(self, engine: AsyncEngine, *, lent: bool) -> None:
        self.engine = engine
        self.backend = engine.dialect.name
        self._level = LEVELS[self.backend] if lent else None

    def connect(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection to read with."""
        return self.engine.connect() if self._level is None else self._connect_at(self._level)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction, which is committed at the end of the block."""
        async with self.connect() as connection, connection.begin():
            yield connection

    @asynccontextmanager
    async def _connect_at(self, level: str) -> AsyncIterator[AsyncConnection]:
        async with self.engine.connect() as connection:
            yield await connection.execution_options(isolation_level=level)
