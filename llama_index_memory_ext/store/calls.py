"""Turns methods into calls of the store, which are bounded in time; a write goes on when its caller has gone."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from llama_index_memory_ext.errors import StoreTimeoutError
from llama_index_memory_ext.signatures import without_second
from llama_index_memory_ext.store.in_use import is_unbroken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy.ext.asyncio import AsyncConnection

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")

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

    @staticmethod
    def _stop(task: asyncio.Task[Any]) -> None:
        if not is_unbroken(task):
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


class UnchangedError(Exception):
    """Raised in a method that writes: its transaction is rolled back, and it returns the ``result``."""

    def __init__(self, result: object = None) -> None:
        self.result = result


def connected(
    connect: Callable[..., AbstractAsyncContextManager[AsyncConnection]],
    *,
    writes: bool = True,
    seconds: float | None = None,
) -> Callable[
    [Callable[Concatenate[Part, AsyncConnection, P], Awaitable[T]]],
    Callable[Concatenate[Part, P], Coroutine[None, None, T]],
]:
    """Call a method with the connection that ``connect`` opens for its arguments.

    The call is bounded by the ``operation_timeout`` of the store, or else by ``seconds``. If its caller is cancelled,
    it goes on; see ``Calls``.
    """

    def decorate(
        method: Callable[Concatenate[Part, AsyncConnection, P], Awaitable[T]],
    ) -> Callable[Concatenate[Part, P], Coroutine[None, None, T]]:
        async def call(part: Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                async with connect(part, *args, **kwargs) as conn:
                    return await method(part, conn, *args, **kwargs)
            except UnchangedError as unchanged:
                return cast("T", unchanged.result)

        @wraps(method)
        async def run(part: Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
            database = cast("Any", part).database
            # Making the tables may take longer.
            await database.opened()
            name = f"{type(part).__name__}.{run.__name__}"
            calls: Calls = database.calls
            return await calls.run(call(part, *args, **kwargs), name, writes=writes, seconds=seconds)

        vars(run)["__signature__"] = without_second(method)
        return run

    return decorate


# A method that reads, and methods that write to the session or the user that is their first argument.
reads = connected(lambda part, *_, **__: part.database.connection(), writes=False)
writes_session = connected(lambda part, key, *_, **__: part.database.writing(sessions=[key]))
writes_user = connected(lambda part, namespace, *_, **__: part.database.writing(users=[namespace]))
