"""Writes the messages of a memory, and moves whole turns out of its short-term memory into its blocks."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.background.jobs import log_failure
from llama_index_memory_ext.log_block import LogBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.memory import BaseMemoryBlock

    from llama_index_memory_ext.store import MemoryStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Flusher:
    """Writes to one session of a store, and passes on to the blocks of a memory what has left short-term memory."""

    store: MemoryStore
    session_id: str
    blocks: Sequence[BaseMemoryBlock[Any]]

    @property
    def log_blocks(self) -> list[LogBlock]:
        """The blocks that read the log of a store."""
        return [block for block in self.blocks if isinstance(block, LogBlock)]

    async def open(self) -> bool:
        """Let the blocks begin with the session; returns False if that has failed, which is logged."""
        try:
            for block in self.log_blocks:
                await block.aopen(self.session_id)
        except Exception as error:  # noqa: BLE001 - the message that is put now must be stored, whatever has failed
            outcome = "the next message tries again"
            log_failure("Unread messages of other sessions were not looked for", self.session_id, error, outcome)
            return False
        return True

    async def append(
        self,
        messages: Sequence[ChatMessage],
        plan: Callable[[Sequence[ChatMessage]], int] | None,
        *,
        replace: bool = False,
    ) -> None:
        """Write messages, and pass on those that leave by the plan; a block that fails is logged."""
        session_id = self.session_id
        flushed = await self.store.log.append(
            session_id,
            messages,
            plan,
            replace=replace,
            owners=[user_id for block in self.log_blocks for user_id in block.owners_of(session_id)],
            readers=[reader for block in self.log_blocks for reader in block.readers_of(session_id)],
        )
        if not flushed:
            return
        calls = (block.aput(list(flushed), from_short_term_memory=True, session_id=session_id) for block in self.blocks)
        results = await asyncio.gather(*calls, return_exceptions=True)
        for block, result in zip(self.blocks, results, strict=True):
            if isinstance(result, Exception):
                # The messages are stored.
                logger.warning("Block %r did not take %d messages: %r", block.name, len(flushed), type(result))
