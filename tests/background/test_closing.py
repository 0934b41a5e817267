"""Whatever is closed while a job connects to its model, no connection stays open."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path

import httpx
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext import CondensedMemory, MemoryStore
from tests.conversation import assistant, user
from tests.openai_server import Message, call
from tests.scripted_models import starting

# A request connects in fewer steps of the event loop.
STEPS = range(0, 14, 4)


def learn_nothing(_: list[Message], __: list[str]) -> Message:
    return call(("c", "report_facts", {"facts": []}))


async def learn_until_connecting(store: MemoryStore, llm: OpenAI, steps: int) -> None:
    """Start a job that asks the model, and return so many steps of the event loop after its request began."""
    began = asyncio.Event()

    async def note(_: httpx.Request) -> None:
        began.set()

    client = llm._async_http_client
    assert client is not None
    client.event_hooks = {"request": [note]}
    for session in ("monday", "friday"):
        memory = CondensedMemory.from_defaults(
            session, user_id="ann", llm=llm, chat_store=store, wait_for_facts=0
        )
        await memory.aput_messages([user("I like tea."), assistant("Fine.")])
    await memory.aput(user("What do I like?"))
    await memory.aget()
    await began.wait()
    for _ in range(steps):
        await asyncio.sleep(0)


async def test_a_store_that_closes_leaves_no_connection_open(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for steps in STEPS:
            store = MemoryStore(tmp_path / f"{steps}.db")
            async with starting() as start:
                llm, _ = start(OpenAI, learn_nothing)
                await learn_until_connecting(store, llm, steps)
                await store.aclose()
            del llm
            gc.collect()
    assert [str(warning.message) for warning in caught] == []
