"""Reads a session at one moment, for the current turn and for both blocks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from llama_index_memory_ext.log_block import glanced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.facts.block import RelevantFactsBlock
    from llama_index_memory_ext.record.block import CondensedMemoryBlock
    from llama_index_memory_ext.store import MemoryStore


@asynccontextmanager
async def looking(
    store: MemoryStore, session_id: str, record: CondensedMemoryBlock, facts: RelevantFactsBlock
) -> AsyncIterator[list[ChatMessage]]:
    """Gives the messages of the current turn; what the blocks read within is as old as these, and mostly no query."""
    last_id, namespace = record.last_seen(session_id), facts.namespace_of(session_id)
    glance = await store.glances.take(session_id, record.name, last_id=last_id, watch=namespace)
    with glanced(store, session_id, glance):
        yield [row.message for row in glance.active]
