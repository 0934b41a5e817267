"""Opens the preset, and LlamaIndex's own ``Memory``, and closes them at the end of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from llama_index.core.memory import BaseMemoryBlock, Memory

from llama_index_memory_ext import CondensedMemory, CondensedMemoryBlock, MemoryStore

OpenMemory = Callable[..., CondensedMemory]
OpenPlainMemory = Callable[..., Memory]


def on(
    store: MemoryStore,
    session_id: str = "chat",
    user_id: str | None = "ann",
    **options: Any,
) -> CondensedMemory:
    """A memory on a store, which the caller closes; facts are extracted if there is a model."""
    options.setdefault("extract_facts", "llm" in options)
    return CondensedMemory.from_defaults(
        session_id, user_id=user_id, chat_store=store, **options
    )


def deleted(
    *, messages: int = 0, cursors: int = 0, facts: int = 0, embeddings: int = 0
) -> dict[str, int]:
    """The rows that the deletion of a person counts."""
    return {
        "messages": messages,
        "cursors": cursors,
        "facts": facts,
        "embeddings": embeddings,
    }


@pytest.fixture
async def open_memory(database_uri: str) -> AsyncIterator[OpenMemory]:
    """Opens memories on the test's database file, as a new process would, and closes them at the end."""
    async with AsyncExitStack() as stack:

        def open_one(session_id: str = "chat", **options: Any) -> CondensedMemory:
            if "chat_store" not in options:
                options.setdefault("async_database_uri", database_uri)
            # Most tests are not about facts, and have no model to extract them.
            options.setdefault("extract_facts", "llm" in options)
            memory = CondensedMemory.from_defaults(session_id=session_id, **options)
            stack.push_async_callback(memory.sql_store.aclose)
            return memory

        yield open_one


@pytest.fixture
async def open_plain_memory() -> AsyncIterator[OpenPlainMemory]:
    """Opens LlamaIndex's own Memory with the settings of the preset, and closes it at the end."""
    async with AsyncExitStack() as stack:

        def open_one(*blocks: BaseMemoryBlock[Any], **options: Any) -> Memory:
            settings = {
                "session_id": "chat",
                "chat_history_token_ratio": 0.0001,
                "insert_method": "user",
            }
            memory = Memory.from_defaults(
                memory_blocks=list(blocks), **{**settings, **options}
            )
            stack.push_async_callback(close_plain_memory, memory)
            return memory

        yield open_one


async def close_plain_memory(memory: Memory) -> None:
    """Closes what the host leaves open: its engine and the private stores of blocks."""
    for block in memory.memory_blocks:
        if isinstance(block, CondensedMemoryBlock):
            await block.aclose()
    engine = getattr(memory.sql_store, "_async_engine", None)
    if engine is not None:
        await engine.dispose()
