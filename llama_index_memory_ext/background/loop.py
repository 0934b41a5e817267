"""Runs an event loop in a thread, so that the main thread can wait for it, or do something else."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from typing_extensions import Self

T = TypeVar("T")

# On Windows Ctrl-C does not reach a thread that waits without a timeout.
_WAIT_SECONDS = 0.2


class BackgroundLoop:
    """An event loop in a thread of its own; use it as a context manager.

    Tasks in the loop go on while the main thread does something else. Ctrl-C reaches the main thread only: it ends the
    call that the main thread waits for, and no other task. At the end of the block all tasks are cancelled.

    Examples:
        >>> with BackgroundLoop() as loop:
        ...     loop.run(asyncio.sleep(0, "done"))
        'done'
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._cancel_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop, and returns its result.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed. The coroutine was cancelled, and has ended.
        """
        started: Future[asyncio.Task[T]] = Future()
        ended: Future[None] = Future()

        def start() -> None:
            task = self._loop.create_task(call)
            task.add_done_callback(lambda _: ended.set_result(None))
            started.set_result(task)

        self._loop.call_soon_threadsafe(start)
        try:
            _wait_for(ended)
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(started.result().cancel)
            _wait_for(ended)
            raise
        return started.result().result()

    async def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


def _wait_for(future: Future[Any]) -> None:
    while not future.done():
        wait([future], _WAIT_SECONDS)
