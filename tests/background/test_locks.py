"""Locks of tasks and of jobs on a database, and caches of threads."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import pytest

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.background.recent import Recent
from tests.forked import run_forked


async def hold() -> None:
    async with lock_for("a"):
        await asyncio.Event().wait()


async def note(order: list[int], number: int) -> None:
    async with lock_for("a"):
        order.append(number)


async def test_tasks_that_name_the_same_lock_come_in_their_order() -> None:
    order: list[int] = []
    async with lock_for("a"):
        tasks = [asyncio.ensure_future(note(order, i)) for i in range(5)]
        async with lock_for("b"):
            await asyncio.sleep(0)
        assert order == []
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]


# A task of a closed loop is what this is about; Python tells of it when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_closed_loop_has_held_is_free() -> None:
    """Also where the next loop lies at the same place in memory."""
    order: list[int] = []
    for i in range(20):
        loop = asyncio.new_event_loop()
        holder = loop.create_task(hold())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        asyncio.run(asyncio.wait_for(note(order, i), 5))
        del loop, holder
    gc.collect()
    assert order == list(range(20))


def test_the_least_recently_used_entry_is_evicted() -> None:
    """Reading an entry is a use of it, looking whether it is there is none."""
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert (recent.get("a"), "b" in recent) == (1, True)
    recent.put("c", 3)
    assert [recent.get(name) for name in "bac"] == [None, 1, 3]


@pytest.mark.parametrize(
    "twin_of",
    [copy.copy, copy.deepcopy, lambda recent: pickle.loads(pickle.dumps(recent))],
)
def test_a_copy_of_a_cache_begins_empty(twin_of: Any) -> None:
    recent: Recent[str, int] = Recent(3)
    recent.put("a", 1)
    twin = twin_of(recent)
    assert (twin.get("a"), twin.size, recent.get("a")) == (None, 3, 1)


# A fork waits for locks of threads, which are free in the child.
FORKED = """
import os, threading, warnings
from llama_index_memory_ext.background.locks import thread_lock

warnings.filterwarnings("ignore", category=DeprecationWarning)
# Two threads take both in another order.
first, second = thread_lock(), thread_lock()
steps, is_held, is_forking = [], threading.Event(), threading.Event()

def hold():
    with second:
        steps.append("begun")
        is_held.set()
        is_forking.wait()
        with first:
            steps.append("complete")

holder = threading.Thread(target=hold)
holder.start()
is_held.wait()
os.register_at_fork(before=is_forking.set)
child = os.fork()
is_free = first.acquire(timeout=60) and second.acquire(timeout=60)
if child == 0:
    os._exit(0 if is_free and steps == ["begun", "complete"] else 1)
assert is_free
assert os.waitpid(child, 0)[1] == 0
"""
# A lock that a thread holds too long is free in the child only.
HELD_TOO_LONG = """
import os, signal, threading, warnings
from llama_index_memory_ext.background import locks

warnings.filterwarnings("ignore", category=DeprecationWarning)
locks.FORK_SECONDS = 0.05
lock, is_held, may_end = locks.thread_lock(), threading.Event(), threading.Event()

def hold():
    with lock:
        is_held.set()
        may_end.wait()

holder = threading.Thread(target=hold)
holder.start()
is_held.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    with lock:
        pass
    os._exit(0)
assert not lock.acquire(blocking=False)
may_end.set()
holder.join()
assert lock.acquire(blocking=False)
assert os.waitpid(child, 0)[1] == 0
"""
# A fork does not wait for a thread that makes a lock while it holds another one, as to open a second store.
REGISTERING = """
import os, signal, threading, time, warnings
from llama_index_memory_ext.background import locks

warnings.filterwarnings("ignore", category=DeprecationWarning)
# A fork that waited for its end would take longer than the test.
locks.FORK_SECONDS = 300
lock, is_over = locks.thread_lock(), threading.Event()

def register():
    while not is_over.is_set():
        with lock:
            locks.thread_lock()

thread = threading.Thread(target=register)
thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with lock:
            locks.thread_lock()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
is_over.set()
thread.join()
"""
# A fork waits for an import as long as it takes.
IMPORTING = """
import os, threading, warnings
from llama_index_memory_ext.background import locks

warnings.filterwarnings("ignore", category=DeprecationWarning)
locks.FORK_SECONDS = 0.05
lock, is_held, steps = locks.import_lock(), threading.Event(), []

def load():
    with lock:
        is_held.set()
        # Longer than a fork waits for other threads.
        threading.Event().wait(10 * locks.FORK_SECONDS)
        steps.append("loaded")

thread = threading.Thread(target=load)
thread.start()
is_held.wait()
child = os.fork()
if child == 0:
    os._exit(0 if steps and lock.acquire(blocking=False) else 1)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""


@pytest.mark.parametrize(
    "program", [FORKED, HELD_TOO_LONG, REGISTERING, IMPORTING], ids=range(4)
)
def test_locks_of_threads_are_as_the_program_says_on_both_sides_of_a_fork(
    tmp_path: Path, program: str
) -> None:
    done = run_forked(program, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
