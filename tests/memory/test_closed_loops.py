"""A loop that is closed in the middle of a call: a notebook's kernel, a window, a program that was interrupted."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Generator
from itertools import count
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
        self.loop.set_task_factory(lambda loop, coro, **options: asyncio.Task(self.counted(coro), loop=loop, **options))

    async def counted(self, coro: Any) -> Any:
        return await Awaited(self, coro)

    def run(self, call: Coroutine[Any, Any, Any]) -> bool:
        """Runs so many steps of a call, closes the loop, and returns whether the call has ended."""
        task = self.loop.create_task(call)
        task.add_done_callback(lambda _: self.loop.stop())
        self.loop.run_forever()
        self.loop.close()
        return task.done()


class Awaited:
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


@pytest.mark.parametrize("kind", ["aput", "aget", "the first aput"])
def test_the_next_loop_goes_on_wherever_one_was_closed(any_database_uri: str | None, kind: str) -> None:
    """Nothing that was confirmed is lost; also where the call was the first one of a memory."""

    def open_one(name: str) -> CondensedMemory:
        return CondensedMemory.from_defaults(name, async_database_uri=any_database_uri, extract_facts=False)

    memory, confirmed = open_one("chat"), ["first?", "yes"]
    asyncio.run(memory.aput_messages([user("first?"), assistant("yes")]))
    for steps in count(1):
        if kind == "the first aput":
            asyncio.run(memory.aclose())
            memory, confirmed = open_one(f"chat {steps}"), []
        call = memory.aget() if kind == "aget" else memory.aput(user(f"open {steps}"))
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
