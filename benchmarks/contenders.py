"""Opens the memories that are compared over one long conversation: ours, LlamaIndex's own, and the recipe.

They stand in two settings: as they come, and all told to keep to the same limit. LlamaIndex's blocks are in its
``Memory``. Where a model is needed it is the one of ``stand_in.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, lru_cache, partial
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import Field
from llama_index.core.memory import (
    BaseMemory,
    BaseMemoryBlock,
    ChatMemoryBuffer,
    ChatSummaryMemoryBuffer,
    FactExtractionMemoryBlock,
    Memory,
    VectorMemoryBlock,
)
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from llama_index.core.utils import get_tokenizer

from benchmarks.prompt_caches import lines_of
from benchmarks.recipe import SESSION, RecipeBlock, host_memory, o200k, plain_memory
from benchmarks.stand_in import HashedWords, StandInModel
from benchmarks.vector_store import TextVectorStore
from llama_index_memory_ext import CondensedMemory

OURS, RECALL, SUMMARY = (
    "CondensedMemory",
    "CondensedMemory with recall",
    "CondensedMemory with summary",
)
HOST, RECIPE = "LlamaIndex's Memory", "the recipe"
BUFFER, SUMMARY_BUFFER = "ChatMemoryBuffer", "ChatSummaryMemoryBuffer"
VECTORS, FACTS = "VectorMemoryBlock", "FactExtractionMemoryBlock"

Open = Callable[[str], AbstractAsyncContextManager[BaseMemory]]


@cache
def remembering_tokenizer() -> Callable[[str], list[Any]]:
    """LlamaIndex's default tokenizer, which encodes no line twice: the same tokens in less time."""
    encode = lru_cache(maxsize=100_000)(get_tokenizer())

    def tokens_of(text: str) -> list[Any]:
        if "\n" not in text:
            return encode(text)
        tokens = []
        for line in lines_of(text):
            tokens += encode(line)
        return tokens

    return tokens_of


@lru_cache(maxsize=100_000)
def _tokens_of(entry: str) -> int:
    return len(o200k().encode(entry))


class RememberingRecipeBlock(RecipeBlock):
    """The recipe, which while it remembers counts no entry twice: the same record in less time."""

    remembers: bool = True

    def _tokens(self) -> int:
        return (
            sum(map(_tokens_of, self.entries)) if self.remembers else super()._tokens()
        )


class ListStore(SQLAlchemyChatStore):
    """LlamaIndex's store of one session, which keeps its messages in a list: the same messages in less time."""

    active: list[ChatMessage] = Field(default_factory=list)

    async def add_message(
        self,
        key: str,
        message: ChatMessage,
        status: MessageStatus = MessageStatus.ACTIVE,
    ) -> None:
        self.active.append(_copied(message))

    async def add_messages(
        self,
        key: str,
        messages: list[ChatMessage],
        status: MessageStatus = MessageStatus.ACTIVE,
    ) -> None:
        for message in messages:
            await self.add_message(key, message)

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        return [_copied(message) for message in self.active]

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        archived = self.active[:n]
        del self.active[:n]
        return archived


def _copied(message: ChatMessage) -> ChatMessage:
    """A message that may be written into, as a memory and its blocks do."""
    own = {
        "blocks": list(message.blocks),
        "additional_kwargs": dict(message.additional_kwargs),
    }
    return message.model_copy(update=own)


def keep_in_process(memory: Memory) -> None:
    """Give LlamaIndex's Memory, which has no message yet, a ``ListStore`` and a tokenizer that remembers."""
    memory.sql_store = ListStore(table_name="no table")
    memory.tokenizer_fn = remembering_tokenizer()


@asynccontextmanager
async def in_process(
    opened: AbstractAsyncContextManager[Memory],
) -> AsyncIterator[Memory]:
    """LlamaIndex's Memory, kept in the process."""
    async with opened as memory:
        keep_in_process(memory)
        yield memory


class AddingBuffer(ChatMemoryBuffer):
    """A ChatMemoryBuffer that adds up the counts of messages.

    As it comes it counts all that is left anew for each message that it drops: minutes for a question after 3,000
    messages. The counts differ by the space that it puts between two messages.
    """

    running: list[int] = Field(default_factory=lambda: [0])

    def _token_count_for_messages(self, messages: list[ChatMessage]) -> int:
        for message in self.get_all()[len(self.running) - 1 :]:
            self.running.append(
                self.running[-1] + len(remembering_tokenizer()(str(message.content)))
            )
        return self.running[-1] - self.running[-1 - len(messages)]


@asynccontextmanager
async def ours(uri: str, **settings: Any) -> AsyncIterator[BaseMemory]:
    """CondensedMemory with these settings."""
    async with CondensedMemory.from_defaults(
        session_id=SESSION, async_database_uri=uri, llm=StandInModel(), **settings
    ) as memory:
        yield memory


@asynccontextmanager
async def kept_in_process(
    make: Callable[..., BaseMemory], _uri: str, **settings: Any
) -> AsyncIterator[BaseMemory]:
    """A buffer of LlamaIndex's, which by default keeps its messages in the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        memory = make(**settings)
    yield memory


def with_block(
    make: Callable[[], BaseMemoryBlock[Any]], uri: str, **settings: Any
) -> Any:
    """LlamaIndex's Memory with one block of its own."""
    return plain_memory(uri, memory_blocks=[make()], **settings)


def vectors() -> VectorMemoryBlock:
    """The block as it comes, with a store in the process."""
    return VectorMemoryBlock(vector_store=TextVectorStore(), embed_model=HashedWords())


def extracted_facts() -> FactExtractionMemoryBlock:
    """The block as it comes."""
    return FactExtractionMemoryBlock(llm=StandInModel())


def as_they_come(**of_host: Any) -> dict[str, Open]:
    """All with their defaults; ``of_host`` are settings of LlamaIndex's own that change no result, only the time."""
    return {
        OURS: ours,
        HOST: partial(plain_memory, **of_host),
        BUFFER: partial(kept_in_process, ChatMemoryBuffer.from_defaults),
        SUMMARY_BUFFER: partial(
            kept_in_process,
            ChatSummaryMemoryBuffer.from_defaults,
            llm=StandInModel(),
            **of_host,
        ),
        RECIPE: lambda uri: host_memory(uri, RememberingRecipeBlock()),
        VECTORS: partial(with_block, vectors, **of_host),
        FACTS: partial(with_block, extracted_facts, **of_host),
    }


def within(limit: int, **of_host: Any) -> dict[str, Open]:
    """All told to keep to ``limit`` tokens; ours without facts, which would have a limit of their own."""
    record_only = partial(
        ours, condensed_token_limit=limit, facts_token_limit=0, extract_facts=False
    )
    limited = {"token_limit": limit, **of_host}
    return {
        OURS: record_only,
        RECALL: partial(record_only, recall_token_limit=limit // 4),
        SUMMARY: partial(record_only, summarize=True),
        HOST: partial(plain_memory, **limited),
        BUFFER: partial(
            kept_in_process, ChatMemoryBuffer.from_defaults, token_limit=limit
        ),
        SUMMARY_BUFFER: partial(
            kept_in_process,
            ChatSummaryMemoryBuffer.from_defaults,
            llm=StandInModel(),
            **limited,
        ),
        RECIPE: lambda uri: host_memory(uri, RememberingRecipeBlock(token_limit=limit)),
        VECTORS: partial(with_block, vectors, **limited),
        FACTS: partial(with_block, extracted_facts, **limited),
    }


async def put(memory: BaseMemory, messages: Sequence[ChatMessage]) -> None:
    """Put messages, and wait for the model calls in the background."""
    await memory.aput_messages(list(messages))
    if isinstance(memory, CondensedMemory):
        for block in (memory.condensed_block, memory.facts_block):
            await block.await_jobs(SESSION)
