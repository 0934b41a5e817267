"""What becomes of threads and connections where a process ends, or may not write."""

from __future__ import annotations

import asyncio
import subprocess
import traceback
from contextlib import aclosing
from pathlib import Path

import pytest

from llama_index_memory_ext import CondensedMemory, MemoryStore, StoreError
from tests.conversation import assistant, record, sent_text, user
from tests.forked import python_command, run_forked
from tests.store.frozen import OwnServer, own_server

__all__ = ["own_server"]


LEFT = """
import asyncio, sys
from llama_index.core.llms import ChatMessage
from llama_index_memory_ext import CondensedMemory

async def main():
    memory = CondensedMemory.from_defaults("chat", async_database_uri=sys.argv[1], extract_facts=False)
    await memory.aput(ChatMessage("first"))
    task = asyncio.ensure_future(memory.aput_messages([ChatMessage(f"message {i}") for i in range(300)]))
    # It has been given to a thread then.
    for _ in range(20):
        await asyncio.sleep(0)

asyncio.run(main())
"""


async def test_a_write_under_way_is_stored_at_the_end_of_the_program(
    database_uri: str,
) -> None:
    done = await asyncio.to_thread(run_forked, LEFT, database_uri)
    assert (done.returncode, done.stderr) == (0, "")
    async with aclosing(MemoryStore(database_uri)) as store:
        # The program waits a second for its writes, in which a busy machine does not store thousands of messages.
        assert await store.count_messages("chat", None) == 301


FROZEN = """
import asyncio, atexit, sys, time

# What is registered first is called last: after all that waits at the end of the program.
atexit.register(lambda: print(time.monotonic() - began_to_end, flush=True))

from llama_index.core.llms import ChatMessage
from llama_index_memory_ext import CondensedMemory

async def main():
    memory = CondensedMemory.from_defaults("chat", async_database_uri=sys.argv[1], extract_facts=False)
    await memory.aput(ChatMessage("first"))
    print("ready", flush=True)
    sys.stdin.readline()
    for call in (memory.aget(), memory.aput(ChatMessage("second"))):
        try:
            await asyncio.wait_for(call, 0.2)
        except asyncio.TimeoutError:
            pass

asyncio.run(main())
began_to_end = time.monotonic()
"""


async def test_a_frozen_server_does_not_hold_up_the_end_of_the_program(
    own_server: OwnServer,
) -> None:
    """It waits a second for the write, and not for the timeout of 30 seconds."""
    command = [*python_command(), "-W", "ignore", "-c", FROZEN, own_server.uri]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert (await asyncio.to_thread(process.stdout.readline)) == "ready\n"
        with own_server.frozen():
            process.stdin.write("\n")
            process.stdin.flush()
            assert float(await asyncio.to_thread(process.stdout.readline)) < 20
            assert await asyncio.to_thread(process.wait, 60) == 0


async def test_a_memory_reads_a_database_that_may_only_be_read_and_a_write_says_so(
    tmp_path: Path,
) -> None:
    file = tmp_path / "memory.db"
    async with CondensedMemory.from_defaults(
        "chat", async_database_uri=f"sqlite:///{file}", extract_facts=False
    ) as memory:
        await memory.aput_messages([user("one"), assistant("two")])
    store = MemoryStore(f"sqlite:///{file}")
    reader = store.read_only()
    async with CondensedMemory.from_defaults(
        "chat", chat_store=reader, extract_facts=False
    ) as memory:
        assert record(sent_text(await memory.aget()))[-1] == ("assistant", "two")
    with pytest.raises(
        StoreError,
        match=r"has refused append_messages: attempt to write a readonly database\. .*may not write",
    ):
        async with CondensedMemory.from_defaults(
            "chat", chat_store=reader, extract_facts=False
        ) as memory:
            await memory.aput(user("three"))
    await reader.aclose()


async def test_a_full_disk_refuses_a_call_and_loses_nothing(database_uri: str) -> None:
    """Nor does the error quote it. A file that may not grow is as full as a disk."""
    store = MemoryStore(database_uri)
    store.database.set_up = "PRAGMA max_page_count = 60"
    memory = CondensedMemory.from_defaults(
        "chat", user_id="ann", chat_store=store, extract_facts=False
    )
    await memory.aput_messages([user("one"), assistant("two")])
    with pytest.raises(
        StoreError,
        match=r"append_messages: database or disk is full\. Nothing was changed, .*disk may be full",
    ) as error:
        await memory.aput(user("long " * 100_000))
    assert "long long" not in "".join(traceback.format_exception(error.value))
    await memory.aput(user("three"))
    contents = [message.content for message in await memory.aget_all()]
    assert contents == ["one", "two", "three"]
    assert (await memory.aforget())["messages"] == 3
    await store.aclose()
