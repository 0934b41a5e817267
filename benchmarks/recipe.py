"""The baselines: LlamaIndex's own Memory, and the public notebook recipe for a condensed memory on top of it.

The recipe does what people copy, with one difference in its favour: the vocabulary is read from the file that
llama-index-core ships, not from the network.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import tiktoken
from llama_index.core.base.llms.types import ChatMessage, TextBlock
from llama_index.core.bridge.pydantic import Field
from llama_index.core.memory import BaseMemoryBlock, InsertMethod, Memory
from sqlalchemy.ext.asyncio import create_async_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

SESSION = "session"
TOKEN_LIMIT = 60_000
IN_MEMORY = "sqlite+aiosqlite://"


@lru_cache(maxsize=1)
def o200k() -> tiktoken.Encoding:
    """The encoding that both sides count with, read from the file that llama-index-core ships."""
    os.environ["TIKTOKEN_CACHE_DIR"] = str(
        files("llama_index.core") / "_static" / "tiktoken_cache"
    )
    return tiktoken.get_encoding("o200k_base")


class RecipeBlock(BaseMemoryBlock[str]):
    """A list of strings; while it is over the limit the oldest one is dropped and the rest is counted anew."""

    name: str = "condensed_memory"
    token_limit: int = 50_000
    entries: list[str] = Field(default_factory=list)

    async def _aget(
        self, messages: list[ChatMessage] | None = None, **block_kwargs: Any
    ) -> str:
        return "\n".join(self.entries)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        for message in messages:
            content = "\n".join(
                block.text for block in message.blocks if isinstance(block, TextBlock)
            )
            kwargs = {
                key: value
                for key, value in message.additional_kwargs.items()
                if key != "session_id"
            }
            extra = f"\n({kwargs})" if kwargs else ""
            self.entries.append(
                f"<message role={message.role}>\n{content}{extra}\n</message>"
            )
        while self._tokens() > self.token_limit:
            self.entries = self.entries[1:]

    def _tokens(self) -> int:
        return sum(len(o200k().encode(entry)) for entry in self.entries)


@asynccontextmanager
async def plain_memory(uri: str, **settings: Any) -> AsyncIterator[Memory]:
    """LlamaIndex's Memory with these settings, and its own for all else."""
    engine = create_async_engine(uri)
    try:
        yield Memory.from_defaults(session_id=SESSION, async_engine=engine, **settings)
    finally:
        await engine.dispose()


def host_memory(
    uri: str, *blocks: BaseMemoryBlock[Any]
) -> AbstractAsyncContextManager[Memory]:
    """LlamaIndex's Memory, set as the recipe sets it: every turn but the newest goes to the blocks."""
    return plain_memory(
        uri,
        token_limit=TOKEN_LIMIT,
        chat_history_token_ratio=0.0001,
        insert_method=InsertMethod.USER,
        memory_blocks=list(blocks),
    )
