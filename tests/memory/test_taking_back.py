"""What was read for facts is not read again when a conversation is set anew, or its end is taken back."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import ChatResponse, MockLLM
from llama_index.core.storage.chat_store.base_db import MessageStatus

from llama_index_memory_ext import CondensedMemory
from tests.conversation import assistant
from tests.learning.learning import talk


class Listener(MockLLM):
    """Finds nothing, and counts how often it is asked about each of the user's words; may be disturbed meanwhile."""

    asked: Counter[str] = Field(default_factory=Counter)
    disturb: Callable[[], Awaitable[object]] | None = None

    async def achat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        words = re.findall(
            r"I like (\w+)", str(messages[-1].content).rpartition("<transcript>")[2]
        )
        disturb, self.disturb = self.disturb, None
        if disturb is None:
            self.asked.update(words)
        else:
            await disturb()
        return ChatResponse(message=assistant('{"new_facts": []}'))


NUMBERS = st.integers(min_value=0, max_value=9)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "take back", "same", "delete", "reset", "read", "read and delete"]
        ),
        NUMBERS,
    ),
    max_size=12,
)


@settings(max_examples=30)
@given(STEPS)
def test_every_word_that_stands_is_read_once(steps: list[tuple[str, int]]) -> None:
    """Whatever is deleted in between; a batch from which a row is deleted while it is read is read again."""

    async def run() -> None:
        llm = Listener(max_tokens=None)
        async with CondensedMemory.from_defaults(
            "chat", llm=llm, extract_every_turns=100
        ) as memory:
            for place, (step, number) in enumerate(steps):
                await take(memory, llm, step, number, f"w{place}")
            await memory.abackfill()
            standing = re.findall(
                r"I like (\w+)", str([one.content for one in await memory.aget_all()])
            )
            assert {word: llm.asked[word] for word in standing} == dict.fromkeys(
                standing, 1
            )
            assert max(llm.asked.values(), default=0) <= 1

    asyncio.run(run())


async def take(
    memory: CondensedMemory, llm: Listener, step: str, number: int, word: str
) -> None:
    """One step of a conversation, of which something is taken back now and then."""
    store, said = memory.sql_store, await memory.aget_all()

    async def delete() -> None:
        rows = (await store.readers.unread("chat", "", with_active=True)).rows
        if rows:
            await store.delete_message("chat", rows[number % len(rows)].id)

    if step == "put":
        await memory.aput_messages(
            talk(*(f"{word}x{i}" for i in range(number % 3 + 1)))
        )
    elif step in ("take back", "same"):
        await memory.aset(said[: -number - 1] if step == "take back" else said)
    elif step == "delete":
        await delete()
    elif step == "reset":
        await memory.areset(MessageStatus.ACTIVE)
    else:
        llm.disturb = delete if step == "read and delete" else None
        await memory.abackfill()
        llm.disturb = None
