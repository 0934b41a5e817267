"""Keeps an engine for each event loop where connections work in one loop only, and closes it with its loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from sqlalchemy import event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sqlalchemy.ext.asyncio import AsyncEngine

# How long a server may take to take leave of its connections.
_CLOSE_SECONDS = 2.0

# None: an engine for all event loops.
_Loop: TypeAlias = "asyncio.AbstractEventLoop | None"
_closing: set[asyncio.Task[None]] = set()


@dataclass(frozen=True)
class _Opened:
    """An engine with its connections, and the generator that closes it."""

    engine: AsyncEngine
    connections: WeakSet[Any]
    keeper: AsyncGenerator[None, None]


class Engines:
    """The engines of one database: one for each event loop that has asked, or one for all if it is ``shared``."""

    def __init__(self, open_one: Callable[[], AsyncEngine], *, shared: bool) -> None:
        self._open_one, self._shared = open_one, shared
        self._opened: dict[_Loop, _Opened] = {}
        self._guard = threading.Lock()

    @property
    def here(self) -> AsyncEngine | None:
        """The engine of this event loop; None before ``open`` and after ``aclose``."""
        opened = self._opened.get(self._loop)
        return opened.engine if opened else None

    @property
    def are_open(self) -> bool:
        """Whether a loop that still exists has an engine."""
        return any(loop is None or not loop.is_closed() for loop in self._opened)

    async def open(self) -> AsyncEngine:
        """The engine of this event loop, opened at the first call. Engines of closed loops are dropped then."""
        loop = self._loop
        with self._guard:
            opened = self._opened.get(loop)
            if opened is not None:
                return opened.engine
            gone = [one for one in self._opened if one is not None and one.is_closed()]
            for one in gone:
                _drop(self._opened.pop(one))
            opened = self._opened[loop] = _open(self._open_one(), self._opened, loop)
        if loop is not None:
            # From here on the loop closes the generator before itself.
            await opened.keeper.asend(None)
        return opened.engine

    async def aclose(self) -> None:
        """Close all engines; those of other event loops are closed there, for which a busy one is not waited long."""
        with self._guard:
            opened = dict(self._opened)
            self._opened.clear()
        for loop, one in opened.items():
            if loop is None or loop is asyncio.get_running_loop():
                await _end(one)
            elif loop.is_closed():
                _drop(one)
            else:
                await _close_in(loop, one)

    @property
    def _loop(self) -> _Loop:
        return None if self._shared else asyncio.get_running_loop()


def _open(engine: AsyncEngine, engines: dict[_Loop, _Opened], loop: _Loop) -> _Opened:
    connections: WeakSet[Any] = WeakSet()

    @event.listens_for(engine.sync_engine, "connect")
    def note(connection: Any, _: Any) -> None:
        if loop is not None:
            connections.add(connection.driver_connection)

    return _Opened(engine, connections, _keep(engines, loop))


async def _keep(engines: dict[_Loop, _Opened], loop: _Loop) -> AsyncGenerator[None, None]:
    """Close the engine of a loop when the loop ends: ``asyncio.run`` closes the generators that were begun in it."""
    try:
        while True:
            yield
    finally:
        opened = engines.pop(loop, None)
        if opened is not None:
            await _close(opened)


async def _close(opened: _Opened) -> None:
    """Close the connections that nobody uses; without an answer of the server they are cut off."""
    task = asyncio.ensure_future(opened.engine.dispose())
    done, _ = await asyncio.wait([task], timeout=_CLOSE_SECONDS)
    if not done:
        for connection in opened.connections:
            connection.terminate()
        await asyncio.wait([task], timeout=_CLOSE_SECONDS)


async def _end(opened: _Opened) -> None:
    await _close(opened)
    # It has nothing left to close.
    await opened.keeper.aclose()


async def _close_in(loop: asyncio.AbstractEventLoop, opened: _Opened) -> None:
    closed: Future[None] = Future()

    def close() -> None:
        task = loop.create_task(_end(opened))
        _closing.add(task)
        task.add_done_callback(_closing.discard)
        task.add_done_callback(lambda _: closed.set_result(None))

    loop.call_soon_threadsafe(close)
    if loop.is_running():
        await asyncio.wait([asyncio.wrap_future(closed)], timeout=_CLOSE_SECONDS)


def _drop(opened: _Opened) -> None:
    """Close the sockets of a loop that was closed without ``shutdown_asyncgens``: it can do nothing itself any more."""
    for connection in opened.connections:
        transport = getattr(connection, "_transport", None)
        transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)
        with suppress(Exception):
            connection.terminate()
        # What asyncio would call next in the loop; other event loops have no such method.
        close = getattr(transport, "_call_connection_lost", None)
        if close is not None:
            with suppress(Exception):
                close(None)
