"""A memory that was closed: what was in memory is gone, and nobody goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    MemoryStore,
    RelevantFactsBlock,
    StoreError,
)
from tests.conversation import assistant, user
from tests.memories import OpenPlainMemory

GONE = r"was in memory and was closed: its rows are gone\. .* keep it in a file: async_database_uri="
USES: dict[str, Callable[[CondensedMemory], Awaitable[Any]]] = {
    "aput": lambda memory: memory.aput(user("And now?")),
    "aget": lambda memory: memory.aget("And now?"),
    "aget_all": lambda memory: memory.aget_all(),
    "aset": lambda memory: memory.aset([user("And now?")]),
    "areset": lambda memory: memory.areset(),
    "aflush": lambda memory: memory.aflush(),
    "asearch": lambda memory: memory.asearch("tea"),
    "astats": lambda memory: memory.astats(),
    "aexport": lambda memory: memory.aexport(),
    "aforget": lambda memory: memory.aforget(),
    "facts": lambda memory: memory.facts.alist(),
    "aadd": lambda memory: memory.facts.aadd("Likes tea"),
    "store": lambda memory: memory.sql_store.get_messages("chat"),
}


def open_one(**options: Any) -> CondensedMemory:
    return CondensedMemory.from_defaults("chat", extract_facts=False, **options)


@pytest.mark.parametrize("use", USES)
async def test_a_closed_memory_in_memory_says_that_it_is_gone_and_one_on_a_file_is_opened(
    database_uri: str, use: str
) -> None:
    async with (
        open_one() as memory,
        open_one(async_database_uri=database_uri) as lasting,
    ):
        for one in (memory, lasting):
            await one.aput_messages([user("I like tea."), assistant("Noted.")])
    with pytest.raises(StoreError, match=GONE):
        await USES[use](memory)
    await USES[use](lasting)
    await lasting.aclose()


async def test_closing_twice_is_no_error(any_database_uri: str | None) -> None:
    async with open_one(async_database_uri=any_database_uri) as memory:
        await memory.aput(user("I like tea."))
        await memory.aclose()
    await memory.aclose()
    await memory.sql_store.aclose()
    async with memory:
        pass


async def test_a_store_that_was_lent_is_closed_by_whoever_has_opened_it() -> None:
    store = MemoryStore()
    memory = open_one(chat_store=store)
    await memory.aput(user("I like tea."))
    await memory.aclose()
    await memory.aput(user("And coffee."))
    assert await store.count_messages("chat", None) == 2
    await store.aclose()
    for call in (
        memory.aget(),
        open_one(chat_store=store).aput(user("Hello?")),
        store.count_messages("chat"),
    ):
        with pytest.raises(StoreError, match=GONE):
            await call
    await memory.aclose()


async def test_the_private_stores_of_blocks_are_gone_with_them(
    open_plain_memory: OpenPlainMemory,
) -> None:
    blocks = CondensedMemoryBlock(), RelevantFactsBlock(extract_facts=False)
    memory = open_plain_memory(*blocks, token_limit=30, token_flush_size=10)
    await memory.aput_messages(
        [user("I like tea. " * 9), assistant("Noted. " * 9), user("And now?")]
    )
    for block in blocks:
        await block.aclose()
        await block.aclose()
        with pytest.raises(StoreError, match=GONE):
            await block.aget(session_id="chat")
    with pytest.raises(StoreError, match=GONE):
        await memory.aput_messages([assistant("Noted. " * 9), user("And then?")])
