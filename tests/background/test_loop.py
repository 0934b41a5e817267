"""An event loop in a thread, which the main thread waits for."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading

import pytest

from llama_index_memory_ext.background.loop import BackgroundLoop
from tests.signals import interruptible


def test_the_result_or_the_error_of_a_coroutine_comes_back() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with BackgroundLoop() as loop:
        assert loop.run(asyncio.sleep(0, 7)) == 7
        with pytest.raises(ValueError, match="no"):
            loop.run(fail())


def test_a_call_that_was_cancelled_raises_what_a_task_raises() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with BackgroundLoop() as loop, pytest.raises(asyncio.CancelledError):
        loop.run(cancelled())


def test_tasks_go_on_between_calls_and_are_cancelled_at_the_end() -> None:
    async def start_task() -> asyncio.Task[bool]:
        return asyncio.ensure_future(asyncio.Event().wait())

    with BackgroundLoop() as loop:
        task = loop.run(start_task())
        loop.run(asyncio.sleep(0))
        assert not task.done()
    assert task.cancelled()


@pytest.mark.skipif(sys.platform == "win32", reason="no signal reaches a waiting thread there")
def test_ctrl_c_cancels_the_call_and_nothing_else() -> None:
    is_waiting, was_cancelled = threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        is_waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    def press() -> None:
        is_waiting.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with interruptible(), BackgroundLoop() as loop:
        presser = threading.Thread(target=press)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            loop.run(wait_for_ever())
        assert was_cancelled.is_set()
        assert loop.run(asyncio.sleep(0, "goes on")) == "goes on"
        presser.join()
