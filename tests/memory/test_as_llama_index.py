"""Blocks of others in ``CondensedMemory``, as LlamaIndex's own ``Memory`` takes them; and where it differs, and why.

Where they differ:

- What is condensed stands in the message that asks, not in messages of their own: ``aget`` gives fewer messages, with
  the same texts. ``aget_all`` gives the messages as they were put.
- A limit cuts whole turns from the record, and nothing is cut by ``token_flush_size``.
- A block that fails does not end the turn where it is one of this package; a block of others does, as in ``Memory``.
- ``chat_store`` takes this package's ``MemoryStore`` only: another store knows no cursors of readers.
"""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    TextBlock,
    VideoBlock,
)
from llama_index.core.memory import BaseMemoryBlock, StaticMemoryBlock

from tests.conversation import assistant, sent_text, user
from tests.memories import OpenMemory

LOREM = "one two three four five six seven eight nine ten "


class Giving(BaseMemoryBlock[Any]):
    """Gives what it is made with; an error is raised."""

    content: Any

    async def _aget(
        self, messages: list[ChatMessage] | None = None, **options: Any
    ) -> Any:
        if isinstance(self.content, Exception):
            raise self.content
        return self.content

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Keeps nothing."""


class Unshortened(Giving):
    """Gives back as much as it was asked to shorten."""

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str:
        return content


class Reworded(Giving):
    """Is given back in other words that are as long."""

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str:
        return content.swapcase()


async def test_blocks_of_each_kind_are_shown_without_a_message(
    open_memory: OpenMemory,
) -> None:
    video = VideoBlock(url="https://example.com/video.mp4")
    media: list[ContentBlock] = [TextBlock(text="Media context"), video]
    history = [user("Historical question"), assistant("Historical answer")]
    blocks = [
        Giving(name="media", content=media, priority=1),
        Giving(name="historical", content=history, priority=2),
    ]
    shown = await open_memory(memory_blocks=blocks).aget()
    assert "Media context" in sent_text(shown)
    assert "Historical question" in sent_text(shown)
    assert video in [block for message in shown for block in message.blocks]


async def test_a_block_that_fails_ends_the_turn(open_memory: OpenMemory) -> None:
    failing = Giving(name="failing", content=RuntimeError("read failed"))
    with pytest.raises(RuntimeError, match="read failed"):
        await open_memory(memory_blocks=[failing]).aget()


async def test_blocks_over_the_limit_go_by_priority(open_memory: OpenMemory) -> None:
    """``Memory`` up to 0.14.25 leaves out the wrong one, or both."""
    blocks: list[BaseMemoryBlock[Any]] = [
        StaticMemoryBlock(
            name=name, static_content=[TextBlock(text=text)], priority=priority
        )
        for name, text, priority in (
            ("kept", f"Critical. {LOREM}", 1),
            ("gone", f"Disposable. {LOREM * 30}", 2),
        )
    ]
    memory = open_memory(token_limit=300, memory_blocks=blocks)
    text = sent_text(await memory.aget())
    assert ("Critical" in text, "Disposable" in text) == (True, False)


@pytest.mark.parametrize("kind", [Unshortened, Reworded])
async def test_a_block_that_does_not_become_shorter_is_left_out(
    open_memory: OpenMemory, kind: type[Giving]
) -> None:
    long = kind(name="long", content=f"Disposable. {LOREM * 30}", priority=1)
    memory = open_memory(token_limit=300, memory_blocks=[long])
    await memory.aput(user("Hello"))
    assert sent_text(await memory.aget()).strip() == "Hello"
