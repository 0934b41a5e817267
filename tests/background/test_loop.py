"""Calls without an event loop: each loop is in a thread, and all calls of a process share one."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from contextlib import closing
from contextvars import ContextVar

import pytest

from llama_index_memory_ext.background.loop import BackgroundLoop, run
from tests.forked import run_forked
from tests.signals import interruptible

SHOWN: ContextVar[str] = ContextVar("SHOWN", default="nothing")


async def here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


# ---- a loop in a thread -------------------------------------------------------------------------------


def test_a_call_that_was_cancelled_raises_what_a_task_raises() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with closing(BackgroundLoop()) as loop, pytest.raises(asyncio.CancelledError):
        loop.run(cancelled())


def test_tasks_go_on_between_calls_and_are_cancelled_at_the_end() -> None:
    async def start_task() -> asyncio.Task[bool]:
        return asyncio.ensure_future(asyncio.Event().wait())

    with closing(BackgroundLoop()) as loop:
        task = loop.run(start_task())
        loop.run(asyncio.sleep(0))
        assert not task.done()
    assert task.cancelled()


@pytest.mark.skipif(
    sys.platform == "win32", reason="no signal reaches a waiting thread there"
)
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

    with interruptible(), closing(BackgroundLoop()) as loop:
        presser = threading.Thread(target=press)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            loop.run(wait_for_ever())
        assert was_cancelled.is_set()
        assert loop.run(asyncio.sleep(0, "goes on")) == "goes on"
        presser.join()


# ---- the loop that all calls share --------------------------------------------------------------------


def test_calls_of_all_threads_run_in_the_same_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    threads = [
        threading.Thread(target=lambda: loops.append(run(here()))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert loops == [run(here())] * 5


async def test_a_call_in_a_running_loop_or_within_a_call_does_not_wait_for_itself() -> (
    None
):
    """Neither in the loop's own thread nor in one that the call waits for."""

    async def outer() -> bool:
        inner = [run(here()), await asyncio.to_thread(lambda: run(here()))]
        return asyncio.get_running_loop() in inner

    assert await outer() is False
    assert run(asyncio.wait_for(outer(), 30)) is False


def test_a_call_sees_the_callers_context() -> None:
    async def shown() -> str:
        return SHOWN.get()

    token = SHOWN.set("the caller's")
    assert run(shown()) == "the caller's"
    SHOWN.reset(token)
    assert run(shown()) == "nothing"


PROGRAM = """
import asyncio, atexit, contextlib, os, sys, threading, warnings

# From Python 3.12 on each fork of a program that has threads is warned of.
warnings.filterwarnings("ignore", "This process", DeprecationWarning)

def at_the_end():
    memory.put(ChatMessage(role="assistant", content="Goodbye."))
    print(len(memory.get_all()), flush=True)

atexit.register(at_the_end)
from llama_index.core.llms import ChatMessage
from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.background.loop import run, spawn

async def wait():
    spawn(asyncio.Event().wait())
    spawn(asyncio.to_thread(print, "in a thread", flush=True))

memory = CondensedMemory.from_defaults("chat", async_database_uri=sys.argv[1] or None, extract_facts=False)
memory.put(ChatMessage(role="user", content="Hello."))
run(wait())

def wait_in_a_thread():
    with contextlib.suppress(asyncio.CancelledError):
        run(asyncio.Event().wait())

threading.Thread(target=wait_in_a_thread, daemon=True).start()
child = os.fork()
if not child:
    memory.put(ChatMessage(role="assistant", content="From the child."))
    print([message.content for message in memory.get_all()], flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes do not fork there")
def test_a_program_ends_with_calls_jobs_and_connections_open_and_so_does_its_child(
    any_database_uri: str | None,
) -> None:
    """Nothing is said of it; what is put at the very end is stored."""
    done = run_forked(PROGRAM, any_database_uri or "")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "['Hello.', 'From the child.']" in lines
    assert lines[-1] == ("2" if any_database_uri is None else "3")


LATE = """
import asyncio
from llama_index_memory_ext.background.waiting import (JobKey)
from llama_index_memory_ext.background.registry import JobRegistry
from llama_index_memory_ext.background.loop import run

async def ask_in_threads():
    while True:
        await asyncio.to_thread(int)

async def begin():
    jobs = registry.jobs("facts", "Facts were not extracted")
    jobs.start(JobKey("chat", "reader"), ask_in_threads, 2.0)

registry = JobRegistry()
run(begin())
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_job_that_gets_no_thread_at_the_end_of_a_program_is_no_failure(
    attempt: int,
) -> None:
    done = run_forked(LATE)
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT_THREADS = """
import asyncio, atexit, threading
from llama_index_memory_ext.background.loop import run

def refuse_threads():
    def start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    threading.Thread.start = start

atexit.register(refuse_threads)
run(asyncio.to_thread(print, "in a thread", flush=True))
"""


def test_a_program_ends_silently_where_python_starts_no_thread_at_its_end() -> None:
    """Python 3.12 refuses new threads as soon as the main thread has ended."""
    done = run_forked(WITHOUT_THREADS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "in a thread\n", "")


STUBBORN = """
import asyncio, contextlib, threading, time
from llama_index_memory_ext.background.loop import run, spawn

started = threading.Event()

async def never_end():
    started.set()
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

async def begin():
    spawn(never_end())

run(begin())
started.wait()
print(time.time())
"""


def test_a_program_ends_soon_though_a_job_cannot_be_cancelled() -> None:
    done = run_forked(STUBBORN)
    # It waits a second for the job; a busy machine may take longer to end it.
    assert time.time() - float(done.stdout) < 30
    assert (done.returncode, done.stderr) == (0, "")
