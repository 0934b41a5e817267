"""Many tasks, threads and processes on one session."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import BaseMemoryBlock

from llama_index_memory_ext import CondensedMemory, StoreTimeoutError, TurnError
from llama_index_memory_ext.store.message_rows import insert_messages
from llama_index_memory_ext.store.transaction import Transaction
from tests.conversation import assistant, record, sent_text, user
from tests.databases import OpenStore
from tests.memories import OpenMemory
from tests.openai_server import Message, call, say
from tests.scripted_models import StartModel

BIG: dict[str, Any] = {
    "token_limit": 100_000,
    "condensed_token_limit": 90_000,
    "extract_facts": False,
}


@pytest.fixture
async def memory(any_database_uri: str | None) -> AsyncIterator[CondensedMemory]:
    async with CondensedMemory.from_defaults(
        "chat", async_database_uri=any_database_uri, **BIG
    ) as memory:
        yield memory


async def test_no_concurrent_put_is_lost(memory: CondensedMemory) -> None:
    """20 at a time, and synchronous calls of four threads: each once in the record, in order, also for readers."""

    async def read() -> None:
        shown = [text for _, text in record(sent_text(await memory.aget()))]
        assert len(shown) == len(set(shown))

    def work(name: int) -> None:
        for i in range(5):
            memory.put(user(f"{name}-{i}"))
            memory.get()

    for round_number in range(5):
        await asyncio.gather(
            *(memory.aput(user(f"message {round_number}-{i}")) for i in range(20)),
            read(),
        )
    await asyncio.gather(*(asyncio.to_thread(work, name) for name in range(4)))
    rows = [message.content for message in await memory.aget_all()]
    assert len(rows) == len(set(rows)) == 120
    await memory.aflush()
    assert [text for _, text in record(sent_text(await memory.aget()))] == rows


async def test_a_writer_of_a_file_that_waits_takes_no_thread(
    database_uri: str, open_store: OpenStore
) -> None:
    """Two threads are enough: the first writer's, and the reader's. Writers go on in the order of their calls."""
    store = open_store(database_uri, pool_size=2)
    await store.add_message("chat", user("0"))
    begun = threading.Event()
    go_on = threading.Event()

    def hold(tx: Transaction) -> None:
        begun.set()
        assert go_on.wait(60)

    first = asyncio.create_task(store.database.run(hold))
    assert await asyncio.to_thread(begun.wait, 60)
    writers = []
    for number in range(1, 9):
        write = store.add_message("chat", user(str(number)))
        writers.append(asyncio.create_task(write))
    await asyncio.sleep(0)
    try:
        assert await asyncio.wait_for(store.count_messages("chat"), 10) == 1
    finally:
        go_on.set()
        await asyncio.gather(first, *writers)
    messages = await store.get_messages("chat")
    assert [message.content for message in messages] == list("012345678")


async def test_a_write_that_has_not_begun_in_time_is_not_stored_later(
    database_uri: str, open_store: OpenStore
) -> None:
    store = open_store(database_uri)
    await store.add_message("chat", user("one"))
    go_on = threading.Event()

    def hold(tx: Transaction) -> None:
        assert go_on.wait(60)

    def write(tx: Transaction) -> None:
        insert_messages(tx, "chat", [user("late")], archived=0, replaced=())

    first = asyncio.create_task(store.database.run(hold))
    await asyncio.sleep(0)
    with pytest.raises(StoreTimeoutError):
        await store.database.run(write, seconds=0.05)
    go_on.set()
    await first
    await store.add_message("chat", user("two"))
    messages = await store.get_messages("chat")
    assert [message.content for message in messages] == ["one", "two"]


def echo(text: str) -> str:
    """Say it again."""
    return text


async def test_within_turns_concurrent_runs_get_each_its_own_answer(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """Even with a tool call in each; and each finds the other's turn whole or not at all."""

    def model(messages: list[Message], tools: list[str]) -> Message:
        question = [message for message in messages if message["role"] == "user"][-1][
            "content"
        ].split("\n")[-1]
        if messages[-1]["role"] == "user":
            return call(("call_1", "echo", {"text": question}))
        return say(f"You asked: {messages[-1]['content']}")

    llm, server = start_model(model)
    memory, same = open_memory(), open_memory()
    agent = FunctionAgent(llm=llm, tools=[echo])

    async def ask(i: int) -> str:
        own = memory if i % 2 else same
        async with own.turn():
            return str(await agent.run(f"Number {i}?", memory=own))

    answers = await asyncio.gather(*(ask(i) for i in range(6)))
    assert answers == [f"You asked: Number {i}?" for i in range(6)]
    roles = [role for role, _ in record(server.requests[-1][0]["content"])]
    assert roles == ["user", "assistant", "tool", "assistant"] * 5
    assert server.refusals == []


async def test_a_turn_within_itself_is_refused(open_memory: OpenMemory) -> None:
    """It would wait for its own end. Sessions do not wait for each other."""
    memory = open_memory()
    async with memory.turn(), open_memory("bob").turn():
        with pytest.raises(TurnError, match=r"inside memory\.turn"):
            async with memory.turn():
                pass
    async with memory.turn() as same:
        assert same is memory


async def test_a_reset_waits_for_a_put_under_way(open_memory: OpenMemory) -> None:
    """Otherwise blocks would be given messages that are deleted already."""
    entered, leave = asyncio.Event(), asyncio.Event()

    class SlowBlock(BaseMemoryBlock[str]):
        name: str = "slow"

        async def _aget(self, messages: Any = None, **options: Any) -> str:
            return ""

        async def _aput(self, messages: list[ChatMessage]) -> None:
            entered.set()
            await leave.wait()

    memory, other = open_memory(memory_blocks=[SlowBlock()]), open_memory("other")
    await memory.aput_messages([user("one"), assistant("two")])
    put = asyncio.ensure_future(memory.aput(user("three")))
    await entered.wait()
    reset = asyncio.ensure_future(memory.areset())
    # Writers of one database go first come, first served.
    await other.areset()
    assert len(await memory.aget_all()) == 3
    leave.set()
    await asyncio.gather(put, reset)
    assert await memory.aget_all() == []


async def test_a_turn_is_alone_in_every_thread(open_memory: OpenMemory) -> None:
    """Tasks of one loop have their turns in the order of asking."""
    memory, inside = open_memory(), list[str]()

    async def hold(name: str) -> None:
        async with memory.turn():
            inside.append(f"{name} in")
            for _ in range(20):
                await asyncio.sleep(0)
            inside.append(f"{name} out")

    await asyncio.gather(
        *(asyncio.to_thread(asyncio.run, hold(str(i))) for i in range(5)),
        *map(hold, "abc"),
    )
    assert len(inside) == 16
    entered = [one for one in inside if one in ("a in", "b in", "c in")]
    assert entered == ["a in", "b in", "c in"]
    assert all(
        out == into.replace("in", "out")
        for into, out in zip(inside[::2], inside[1::2], strict=True)
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_turn_of_a_loop_that_was_closed_is_over(
    open_memory: OpenMemory,
) -> None:
    memory, entered = open_memory(), list[object]()

    async def stay() -> None:
        async with memory.turn():
            entered.append(asyncio.current_task())
            await asyncio.Event().wait()

    def begin_and_close() -> None:
        loop = asyncio.new_event_loop()
        entered.append(loop.create_task(stay()))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    await asyncio.to_thread(begin_and_close)
    async with memory.turn():
        assert len(entered) == 2
    entered.clear()
    gc.collect()
    async with memory.turn():
        pass


async def test_a_synchronous_call_does_not_wait_for_the_loop_that_it_blocks(
    memory: CondensedMemory,
) -> None:
    """Whatever its tasks are doing: what they have begun in the database ends without them."""
    for steps in range(8):
        task = asyncio.ensure_future(memory.aput(user(f"{steps} awaited")))
        for _ in range(steps):
            await asyncio.sleep(0)
        memory.put(user(f"{steps} put"))
        await task
    rows = [message.content for message in await memory.aget_all()]
    assert sorted(filter(None, rows)) == [
        f"{i} {how}" for i in range(8) for how in ("awaited", "put")
    ]


async def test_a_cancelled_put_keeps_its_message_and_the_session(
    memory: CondensedMemory,
) -> None:
    """Whenever the cancellation comes."""
    for steps in range(12):
        task = asyncio.ensure_future(memory.aput(user(f"message {steps}")))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await memory.aput(user("last"))
    rows = [message.content for message in await memory.aget_all()]
    assert rows[-1] == "last"
    assert [text for _, text in record(sent_text(await memory.aget()))] == rows[:-1]
