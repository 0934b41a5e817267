"""Opens connections, and ends those that an event loop has left behind when it was closed."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sqlite3
from contextlib import asynccontextmanager, suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

_LOOK_SECONDS = 0.05
# Of all stores of this process: two may work on the same file.
_in_use: dict[int, tuple[asyncio.AbstractEventLoop, AsyncConnection]] = {}

_unbroken: set[asyncio.Task[Any] | None] = set()
_engines: WeakSet[AsyncEngine] = WeakSet()
_of_parent: list[object] = []


@asynccontextmanager
async def connect(engine: AsyncEngine, *, unbroken: bool = False) -> AsyncIterator[AsyncConnection]:
    """A connection; what a closed loop has left open is rolled back first, for its locks would stop this one.

    What this task does with an ``unbroken`` one is not cancelled when its time is over. A cancelled statement of SQLite
    goes on in its thread, and may take a lock for as long as its cursor exists.
    """
    for key, (loop, left) in list(_in_use.items()):
        if loop.is_closed() and _in_use.pop(key, None) is not None:
            await _end(left)
    _engines.add(engine)
    here, conn, task = asyncio.get_running_loop(), engine.connect(), asyncio.current_task()
    _in_use[id(conn)] = here, conn
    if unbroken:
        _unbroken.add(task)
    try:
        async with conn:
            yield conn
    finally:
        _unbroken.discard(task)
        # The garbage collector comes here too, and cannot close anything.
        if not here.is_closed():
            del _in_use[id(conn)]


def is_unbroken(task: asyncio.Task[Any]) -> bool:
    """Whether a task must not be cancelled now, because it works with a connection of SQLite."""
    return task in _unbroken


def _open_anew() -> None:
    """No connection works in a child process: threads and loops stay with the parent. Nor may any be closed there."""
    _of_parent.extend([*_in_use.values(), *(engine.sync_engine.pool for engine in _engines)])
    _in_use.clear()
    for engine in _engines:
        engine.sync_engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_anew)


async def _end(conn: AsyncConnection) -> None:
    """End a connection without its loop, which its own methods would wait for."""
    if conn.sync_connection is None:
        return
    # It was closed, or never opened.
    with suppress(SQLAlchemyError):
        pooled = conn.sync_connection.connection
        driver: Any = pooled.driver_connection
        if hasattr(driver, "_tx"):
            await _roll_back(driver)
        else:
            _hang_up(driver._transport)  # noqa: SLF001 - asyncpg has no other way
        # The pool opens another one instead.
        pooled.detach()


async def _roll_back(driver: Any) -> None:
    """Roll back and close a connection of aiosqlite, in its own thread or else, if that has ended, here.

    The thread ends when it cannot tell a closed loop a result; until then nobody else may touch the connection.
    """
    raw: sqlite3.Connection = driver._connection  # noqa: SLF001 - aiosqlite has no other way
    thread = driver if isinstance(driver, Thread) else driver._thread  # noqa: SLF001 - the same
    ended = asyncio.get_running_loop().create_future()
    driver._tx.put_nowait((ended, partial(_close, raw)))  # noqa: SLF001 - the same
    while thread.is_alive() and not ended.done():
        await asyncio.wait([ended], timeout=_LOOK_SECONDS)
    if not ended.done():
        _close(raw)
    driver._connection = None  # noqa: SLF001 - so that it does not tell of having been forgotten


def _close(raw: sqlite3.Connection) -> None:
    # A statement of which not all rows were read keeps its lock beyond the rollback and the end of the connection. Its
    # cursor is in a frame of the task, where nothing else finds it.
    cursors = [one for one in gc.get_objects() if type(one) is sqlite3.Cursor and one.connection is raw]
    for step in (*(cursor.close for cursor in cursors), raw.rollback, raw.close):
        # An engine that was lent may check the thread.
        with suppress(sqlite3.Error):
            step()


def _hang_up(transport: Any) -> None:
    """Let the server see that nobody is there. The socket is closed by whoever has opened it."""
    # uvloop closes what is open itself, and gives no socket for this.
    with suppress(OSError, TypeError, AttributeError):
        transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
