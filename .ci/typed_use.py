"""Is checked by mypy against the installed package: its types must reach the programs of its users."""

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory
from typing_extensions import assert_type

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    Fact,
    MemoryStore,
    TokenCounter,
    trim,
)
from llama_index_memory_ext.facts.explanation import Explanation


async def use() -> None:
    """Each call that the README begins with."""
    async with CondensedMemory.from_defaults(
        "chat", user_id="ann", max_messages=20, max_facts=50
    ) as memory:
        assert_type(memory, CondensedMemory)
        assert_type(await memory.aget(), list[ChatMessage])
        assert_type(await memory.facts.alist(), list[Fact])
        assert_type(await memory.facts.aadd("Likes tea", confidence=0.9), Fact)
        assert_type(
            memory.facts.add("Likes tea", category="preference", pinned=True), Fact
        )
        assert_type(
            await memory.sql_store.forget_user("ann", vacuum=False), dict[str, int]
        )
        assert_type(
            await memory.facts_block.aexplain("What does Ann drink?"), Explanation
        )
    assert_type(trim([], token_limit=100), list[ChatMessage])
    assert_type(TokenCounter().count("Hello"), int)
    block: Any = CondensedMemoryBlock(store=MemoryStore(), token_limit=8_000)
    assert_type(Memory.from_defaults(session_id="s", memory_blocks=[block]), Memory)
