"""Reads all messages of a session, a page at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llama_index_memory_ext.store.schema import ACTIVE, ARCHIVED, LAST_ID

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.store.readers import Readers
    from llama_index_memory_ext.store.rows import LogRow

_PAGE_ROWS, _FEW_ROWS = 500, 50


async def each_message(
    readers: Readers, key: str, status: str | None = None, limit: int = LAST_ID, offset: int = 0
) -> AsyncIterator[ChatMessage]:
    """The messages of a session, oldest first; each page is read on its own, so that nothing waits for all of them."""
    statuses, last = [status] if status else [ARCHIVED, ACTIVE], 0
    while True:
        rows = await readers.find(key, statuses, last, limit=min(limit, _PAGE_ROWS), offset=offset)
        # Parsing a page takes longer than an event loop should be blocked.
        for message in await asyncio.to_thread(_parsed, rows) if len(rows) > _FEW_ROWS else _parsed(rows):
            yield message
        limit, offset = limit - len(rows), 0
        if len(rows) < _PAGE_ROWS or not limit:
            return
        last = rows[-1].id


def _parsed(rows: Sequence[LogRow]) -> list[ChatMessage]:
    return [row.as_put for row in rows]
