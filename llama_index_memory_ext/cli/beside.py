"""Runs an event loop beside the thread that waits for what is typed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

T = TypeVar("T")

# On Windows nothing interrupts a thread that waits without end.
_LOOK_UP_SECONDS = 0.2


class Beside:
    """An event loop in a thread of its own: what is under way there goes on while somebody thinks and types.

    ``Ctrl-C`` reaches the main thread alone, so it ends what that waits for and nothing else.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of the work.

        Raises:
            KeyboardInterrupt: Somebody has pressed Ctrl-C. The work has been cancelled, and has ended.
        """
        started: Future[asyncio.Task[T]] = Future()
        done: Future[None] = Future()

        def start() -> None:
            task = self._loop.create_task(work)
            task.add_done_callback(lambda _: done.set_result(None))
            started.set_result(task)

        self._loop.call_soon_threadsafe(start)
        try:
            _wait_for(done)
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(started.result().cancel)
            _wait_for(done)
            raise
        return started.result().result()

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


def _wait_for(done: Future[Any]) -> None:
    while not done.done():
        wait([done], _LOOK_UP_SECONDS)
