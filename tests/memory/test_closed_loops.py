"""A loop that is closed in the middle of a call: a notebook's kernel, a window, a program that was interrupted."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Coroutine, Generator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import CondensedMemory
from tests.conversation import assistant, sent_text, user

# Of tasks that never end, and threads of aiosqlite whose loop is gone.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning"),
    pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning"),
]


class Stepped:
    """Stops a loop after some steps of all its tasks."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(
            lambda loop, coro, **options: asyncio.Task(self._counted(coro), loop=loop, **options)
        )

    async def _counted(self, coro: Any) -> Any:
        return await _Awaited(self, coro)

    def run(self, call: Coroutine[Any, Any, Any]) -> bool:
        """Runs so many steps of a call, closes the loop, and returns whether the call has ended."""
        task = self.loop.create_task(call)
        task.add_done_callback(lambda _: self.loop.stop())
        self.loop.run_forever()
        self.loop.close()
        return task.done()


class _Awaited:
    def __init__(self, owner: Stepped, coro: Any) -> None:
        self.owner, self.coro = owner, coro

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self.coro.__await__()
        resume, value = steps.send, None
        while True:
            try:
                yielded = resume(value)
            except StopIteration as end:
                return end.value
            self.owner.left -= 1
            if self.owner.left == 0:
                self.owner.loop.stop()
            try:
                value, resume = (yield yielded), steps.send
            except BaseException as error:  # noqa: BLE001 - whatever it is goes on to the coroutine
                value, resume = error, steps.throw


async def put_and_ask(memory: CondensedMemory, message: ChatMessage) -> str:
    await memory.aput(message)
    return sent_text(await memory.aget())


@pytest.mark.parametrize("kind", ["aput", "aget"])
def test_the_next_loop_goes_on_wherever_one_was_closed(any_database_uri: str | None, kind: str) -> None:
    """Nothing that was confirmed is lost."""
    memory = CondensedMemory.from_defaults("chat", async_database_uri=any_database_uri, extract_facts=False)
    asyncio.run(memory.aput_messages([user("first?"), assistant("yes")]))
    confirmed = ["first?", "yes"]
    for steps in count(1):
        call = memory.aput(user(f"open {steps}")) if kind == "aput" else memory.aget()
        has_ended = Stepped(steps).run(call)
        text = asyncio.run(asyncio.wait_for(put_and_ask(memory, user(f"now {steps}?")), 20))
        assert f"now {steps}?" in text
        confirmed.append(f"now {steps}?")
        if has_ended:
            break
        gc.collect()
    rows = [message.content for message in asyncio.run(memory.aget_all())]
    assert [row for row in rows if not (row or "").startswith("open")] == confirmed
    asyncio.run(asyncio.wait_for(memory.aclose(), 20))
    gc.collect()


# Run in a process of its own, which ends at once if a call waits in vain: what waits would stop other tests, too.
CLOSED_IN_A_PUT = """
import asyncio, os, sys
from llama_index.core.llms import ChatMessage
from llama_index_memory_ext import CondensedMemory

async def put_and_ask(memory, text):
    await asyncio.wait_for(memory.aput(ChatMessage(text)), 5)
    await asyncio.wait_for(memory.aget(), 5)

loops = int(sys.argv[2])
for i in range(loops):
    uri = sys.argv[1].format(i=i) or None
    memory = CondensedMemory.from_defaults(f"chat-{i}", async_database_uri=uri, extract_facts=False)
    loop = asyncio.new_event_loop()
    task = loop.create_task(memory.aput(ChatMessage("open")))
    loop.call_later(i * 0.020 / loops, loop.stop)
    loop.run_forever()
    loop.close()
    try:
        asyncio.run(put_and_ask(memory, "now"))
    except asyncio.TimeoutError:
        print(f"loop {i} left the next one waiting", flush=True)
        os._exit(1)
print("all went on", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("database", ["file", "memory", "server"])
def test_a_loop_that_is_closed_in_the_middle_of_a_put_leaves_nobody_waiting(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Forty new memories, whose loops are closed 0 to 20 ms after the call."""
    uri = {"file": f"sqlite+aiosqlite:///{tmp_path}/{{i}}.db", "memory": ""}.get(database)
    uri = request.getfixturevalue("postgres_uri") if uri is None else uri
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CLOSED_IN_A_PUT, uri, "40"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all went on\n"), done.stdout + done.stderr
