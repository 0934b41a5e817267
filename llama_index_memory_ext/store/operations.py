"""Turns the methods of a store's parts into calls with a connection, bounded in time."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")


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
            database: Database = cast("Any", part).database
            # Making the tables may take longer.
            await database.opened()
            name = f"{type(part).__name__}.{run.__name__}"
            return await database.calls.run(call(part, *args, **kwargs), name, writes=writes, seconds=seconds)

        return run

    return decorate


# A method that reads, and methods that write to the session or the user that is their first argument.
reads = connected(lambda part, *_, **__: part.database.connection(), writes=False)
writes_session = connected(lambda part, key, *_, **__: part.database.writing(sessions=[key]))
writes_user = connected(lambda part, namespace, *_, **__: part.database.writing(users=[namespace]))
