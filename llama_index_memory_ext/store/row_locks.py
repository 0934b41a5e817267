"""Locks the rows of sessions and users in a transaction, and tells what was done under an earlier lock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llama_index_memory_ext.background.locks import Recent
from llama_index_memory_ext.store.schema import lock_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Hashable

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.schema import Tables

_LOCKED = "llama_index_memory_ext locked"
_MOST_DONE = 10_000


@dataclass
class Locked:
    """The epochs of the sessions that a transaction has locked, and what is done when it is committed."""

    epochs: dict[str, int] = field(default_factory=dict)
    done: list[Hashable] = field(default_factory=list)


class RowLocks:
    """The locks of a database, by which processes write to a session or to a user one after the other."""

    def __init__(self, tables: Tables, backend: str) -> None:
        self._lock_sessions = lock_rows(tables.sessions, backend)
        if backend == "postgresql":
            # Only the newest SQLite can.
            self._lock_sessions = self._lock_sessions.returning(tables.sessions.c.key, tables.sessions.c.epoch)
        self._lock_users = lock_rows(tables.users, backend)
        self._done: Recent[Hashable, bool] = Recent(_MOST_DONE)

    async def lock(self, conn: AsyncConnection, sessions: Collection[str], users: Collection[str]) -> None:
        """Lock sessions before users, each in order, so that no two writers wait for each other."""
        now = time.time_ns()
        conn.info[_LOCKED] = locked = Locked()
        of_sessions = [{"key": key, "epoch": now} for key in sorted(sessions)]
        of_users = [{"namespace": namespace, "epoch": now, "change": 0} for namespace in sorted(users)]
        if of_sessions:
            found = await conn.execute(self._lock_sessions, of_sessions)
            if found.returns_rows:
                locked.epochs.update((row.key, row.epoch) for row in found)
        if of_users:
            await conn.execute(self._lock_users, of_users)

    async def once(self, conn: AsyncConnection, key: str, what: Hashable, do: Callable[[], Awaitable[None]]) -> None:
        """Do something in the transaction unless this process has done it since rows of the session were deleted.

        Only a server tells that with the lock; anywhere else it is done again.
        """
        locked: Locked = conn.info[_LOCKED]
        epoch = locked.epochs.get(key)
        if epoch is None or (key, epoch, what) not in self._done:
            await do()
            if epoch is not None:
                locked.done.append((key, epoch, what))

    def begin_again(self, conn: AsyncConnection, key: str) -> None:
        """Forget what was done for a session: its rows are deleted in this transaction."""
        conn.info[_LOCKED].epochs.pop(key, None)

    def committed(self, conn: AsyncConnection) -> None:
        """Remember what was done in the transaction."""
        for mark in conn.info[_LOCKED].done:
            self._done.put(mark, value=True)
