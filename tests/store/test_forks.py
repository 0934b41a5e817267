"""What is stored on both sides of a fork: nothing that was acknowledged is lost, and no child waits for ever."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import aclosing
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from llama_index_memory_ext import MemoryStore
from tests.conversation import user
from tests.forked import python_command, run_forked

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

BEGIN = """
import asyncio, gc, os, signal, sys, threading, warnings
from llama_index.core.llms import ChatMessage
from llama_index_memory_ext import CondensedMemory, MemoryStore, StoreError

# From Python 3.12 on each fork of a program that has threads is warned of.
warnings.filterwarnings("ignore", category=DeprecationWarning)

# A question without an answer is warned of.
def note(text):
    return ChatMessage(text, role="assistant")

def open_memory(session="chat"):
    return CondensedMemory.from_defaults(session, async_database_uri=sys.argv[1] or None, extract_facts=False)

memory = open_memory()
"""


def run(code: str, uri: str | None, *arguments: str) -> str:
    done = run_forked(BEGIN + code, uri or "", *arguments, folder=Path.cwd())
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


async def count(uri: str) -> int:
    async with aclosing(MemoryStore(uri)) as store:
        return sum([info.messages for info in await store.sessions()])


CLOSED_BY_PARENT = """
memory.put(note("before"))
written, closed = os.pipe(), os.pipe()
if child := os.fork():
    os.read(written[0], 1)
    memory.close()
    os.write(closed[1], b".")
    assert os.waitpid(child, 0)[1] == 0
else:
    for i in range(3):
        memory.put(note(f"child {i}"))
    os.write(written[1], b".")
    os.read(closed[0], 1)
    for i in range(5):
        memory.put(note(f"child {i}"))
    os._exit(0)
"""


@pytest.mark.parametrize("any_database_uri", ["file", "postgres"], indirect=True)
async def test_what_a_child_writes_stays_when_its_parent_closes_the_memory(
    any_database_uri: str,
) -> None:
    await asyncio.to_thread(run, CLOSED_BY_PARENT, any_database_uri)
    assert await count(any_database_uri) == 9


DAEMON = """
written, listed = os.pipe(), os.pipe()
if program := os.fork():
    assert os.waitpid(program, 0)[1] == 0
    os.read(written[0], 1)

    async def list_sessions():
        store = MemoryStore(sys.argv[1])
        await store.sessions()
        await store.aclose()

    # As a command in a terminal does meanwhile.
    asyncio.run(list_sessions())
    os.write(listed[1], b".")
    os.read(written[0], 1)
else:
    memory.put(note("before"))
    other_memory = open_memory("other")
    other_memory.put(note("before"))
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for chat in [memory, other_memory] * 2:
            chat.put(note("daemon"))
        os.write(written[1], b".")
        os.read(listed[0], 1)
        for chat in [memory, other_memory] * 2:
            chat.put(note("daemon"))
        os.write(written[1], b".")
        os._exit(0)
    if sys.argv[2] == "at once":
        os._exit(0)
"""


@pytest.mark.parametrize("end", ["at once", "as programs do"])
async def test_a_program_that_makes_itself_a_daemon_loses_nothing(
    database_uri: str, end: str
) -> None:
    """It has two stores on the file, and another program opens and closes the file."""
    await asyncio.to_thread(run, DAEMON, database_uri, end)
    assert await count(database_uri) == 10


BUSY = """
is_over = threading.Event()

def write():
    busy = open_memory("busy")
    while not is_over.is_set():
        busy.put(note("busy"))

memory.put(note("before"))
writer = threading.Thread(target=write)
writer.start()
children = []
for i in range(6):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        memory.put(note(f"child {i}"))
        os._exit(0)
    children.append(child)
exits = [os.waitpid(child, 0)[1] for child in children]
is_over.set()
writer.join()
print(exits, len(memory.get_all()))
memory.close()
"""


@pytest.mark.parametrize("any_database_uri", ["file", "postgres"], indirect=True)
def test_a_child_that_is_forked_while_a_thread_writes_can_write(
    any_database_uri: str,
) -> None:
    assert run(BUSY, any_database_uri) == f"{[0] * 6} 7\n"


IN_MEMORY = """
busy = threading.Event()

def write():
    for i in range(100):
        memory.put(note("busy"))
        busy.set()

memory.put(note("before"))
writer = threading.Thread(target=write)
writer.start()
busy.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    before = len(memory.get_all())
    memory.put(note("child"))
    assert 2 <= before == len(memory.get_all()) - 1
    os._exit(0)
writer.join()
print(os.waitpid(child, 0)[1], len(memory.get_all()))
"""


def test_a_child_has_a_copy_of_a_database_in_memory_and_the_parent_keeps_it() -> None:
    assert run(IN_MEMORY, None) == "0 101\n"


LONG_CALL = """
from llama_index_memory_ext.background import threads

# Less than two seconds are enough for a call that does not end.
threads.FORK_SECONDS = 0.05
began, may_end = threading.Event(), threading.Event()

def work(connection):
    began.set()
    may_end.wait()

def call():
    asyncio.run(memory.sql_store.database.run(work))

memory.put(note("before"))
caller = threading.Thread(target=call)
caller.start()
began.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        open_memory().put(note("child"))
    except StoreError as error:
        assert "was still using" in str(error), error
        os._exit(7)
may_end.set()
caller.join()
memory.put(note("after"))
memory.close()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


async def test_a_child_refuses_a_file_that_a_long_call_of_its_parent_has_open(
    database_uri: str,
) -> None:
    """Locks of SQLite would not hold there; the parent goes on."""
    assert await asyncio.to_thread(run, LONG_CALL, database_uri) == "7\n"
    assert await count(database_uri) == 2


async def test_a_subprocess_leaves_connections_as_they_are(database_uri: str) -> None:
    async with aclosing(MemoryStore(database_uri)) as store:
        await store.add_message("chat", user("one"))
        engine = store.database.engine
        await asyncio.to_thread(
            subprocess.run, [sys.executable, "-S", "-c", ""], check=True
        )
        assert store.database.engine is engine is not None


APPLICATION = """
import os
from llama_index.core.llms import ChatMessage
from llama_index_memory_ext import CondensedMemory

memory = CondensedMemory.from_defaults("chat", async_database_uri=os.environ["URI"], extract_facts=False)
memory.put(ChatMessage("loaded", role="assistant"))

def app(environ, start_response):
    memory.put(ChatMessage("request", role="assistant"))
    start_response("200 OK", [])
    return [str(os.getpid()).encode()]
"""


class OnSocket(HTTPConnection):
    """A connection by a socket in a folder."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


async def test_an_application_that_gunicorn_loads_before_it_forks_loses_nothing(
    database_uri: str, tmp_path: Path
) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    # The path of a socket must be short, and those of pytest are long.
    with TemporaryDirectory() as folder:
        place = f"{folder}/socket"
        command = [
            *python_command(),
            "-m",
            "gunicorn",
            "--preload",
            "--workers=2",
            f"--bind=unix:{place}",
        ]
        command += [f"--chdir={tmp_path}", "application:app"]
        environment = {**os.environ, "URI": database_uri, "HOME": folder}
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        ) as server:
            assert server.stderr is not None
            next(line for line in server.stderr if "Listening at" in line)
            for _ in range(6):
                connection = OnSocket(place)
                connection.request("GET", "/")
                assert connection.getresponse().read().isdigit()
                connection.close()
            server.terminate()
            rest = server.stderr.read()
    assert server.returncode == 0, rest
    assert await count(database_uri) == 7
