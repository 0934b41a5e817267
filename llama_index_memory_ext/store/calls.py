"""Bounds how long a call of the store may take, and lets a write end whose caller has gone."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index_memory_ext.errors import StoreTimeoutError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass
class Calls:
    """The calls of a store that are under way. Each runs in a task of its own.

    A caller who is cancelled leaves at once. What it has called goes on until its end, or until its time is over:
    SQLAlchemy discards a connection when a statement on it is cancelled, and it is unknown what was stored.
    """

    seconds: float
    # An event loop keeps no task alive.
    _writes: set[asyncio.Task[Any]] = field(default_factory=set)
    _reads: set[asyncio.Task[Any]] = field(default_factory=set)
    _unbroken: set[asyncio.Task[Any] | None] = field(default_factory=set)

    async def run(self, call: Coroutine[Any, Any, T], name: str, *, writes: bool, seconds: float | None = None) -> T:
        """Returns the result of a call; a StoreTimeoutError if it takes longer than ``seconds``, or else the usual."""
        limit = self.seconds if seconds is None else seconds
        task = asyncio.ensure_future(call)
        tasks = self._writes if writes else self._reads
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        end = task.get_loop().time() + limit
        try:
            ended, _ = await asyncio.wait([task], timeout=limit)
        except asyncio.CancelledError:
            timer = task.get_loop().call_at(end, self._stop, task)
            task.add_done_callback(lambda _: timer.cancel())
            task.add_done_callback(partial(_tell_write if writes else _ignore, name))
            raise
        if not ended:
            self._stop(task)
            task.add_done_callback(partial(_tell_write if writes else _ignore, name))
            raise StoreTimeoutError(name, limit, writes=writes)
        return task.result()

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """What this task does now is not cancelled when its time is over; it ends by itself.

        A cancelled statement of SQLite goes on in its thread, and may take a lock for as long as its cursor exists.
        """
        task = asyncio.current_task()
        self._unbroken.add(task)
        try:
            yield
        finally:
            self._unbroken.discard(task)

    async def finish(self) -> None:
        """Wait for the writes of this event loop, within the time for one call; reads are cancelled."""
        loop = asyncio.get_running_loop()
        reads, writes = (
            [task for task in tasks.copy() if task.get_loop() is loop] for tasks in (self._reads, self._writes)
        )
        for task in reads:
            self._stop(task)
        if reads or writes:
            await asyncio.wait([*reads, *writes], timeout=self.seconds)

    def _stop(self, task: asyncio.Task[Any]) -> None:
        if task not in self._unbroken:
            task.cancel()


def _ignore(_: str, task: asyncio.Task[Any]) -> None:
    # Without this, asyncio logs an exception that nobody has looked at.
    if not task.cancelled():
        task.exception()


def _tell_write(name: str, task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        logger.warning("%s did not end after its caller had gone: it is unknown whether it was stored.", name)
    elif error := task.exception():
        logger.warning("%s failed after its caller had gone (%s): nothing was stored.", name, type(error).__name__)
    else:
        logger.info("%s was completed after its caller had gone: it was stored.", name)
