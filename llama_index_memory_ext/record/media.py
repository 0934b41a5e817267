"""Finds the media of the last turns, which a memory sends again behind the record."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, TextBlock

from llama_index_memory_ext.text.media import is_medium
from llama_index_memory_ext.text.tool_calls import ASSISTANT_ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index.core.base.llms.types import ContentBlock

    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.rows import LogRow
    from llama_index_memory_ext.text.messages import Entry

# Read at once. Of a turn with a picture for each call of a tool, only the newest have room.
_ROWS = 4


class MediaRows(NamedTuple):
    """Rows of the log with media, oldest first, each with whose they are, and the epoch in which they were read."""

    whose: Mapping[int, str]
    epoch: int


NO_MEDIA = MediaRows({}, 0)


def whose_media(entries: Sequence[Entry], turns: int) -> dict[int, str]:
    """Returns whose the media of the last ``turns`` turns are, by the row, oldest first; {} for 0 or less.

    Only of those to which the assistant has said something: others may have been refused, and would be again.
    """
    whose: dict[int, str] = {}
    ago, answered = 1, False
    for entry in reversed(entries):
        if ago > turns:
            break
        answered = answered or entry.role in ASSISTANT_ROLES
        if entry.has_media and answered:
            whose[entry.row_id] = f"the {entry.role}'s message, {ago} turn{'s' if ago > 1 else ''} ago"
        if entry.role == MessageRole.USER.value:
            ago, answered = ago + 1, False
    return dict(reversed(whose.items()))


async def read_media(
    store: MemoryStore, session_id: str, rows: MediaRows, room: int, tokens: Callable[[ChatMessage], int]
) -> list[ContentBlock]:
    """Returns the newest media of these rows within ``room`` tokens, oldest first, each behind a line that says whose.

    Older rows are not read than that takes, and nothing is kept.
    """
    shown: list[ContentBlock] = []
    ids = list(rows.whose)
    while ids:
        ids, chunk = ids[:-_ROWS], ids[-_ROWS:]
        found = await store.readers.rows_in(session_id, chunk, rows.epoch) or []
        # Megabytes are decoded, for which the event loop must not be blocked.
        for blocks, needed in reversed(await asyncio.to_thread(_counted, found, rows.whose, tokens)):
            room -= needed
            if room < 0:
                return shown
            shown = [*blocks, *shown]
    return shown


def _counted(
    rows: Sequence[LogRow], whose: Mapping[int, str], tokens: Callable[[ChatMessage], int]
) -> list[tuple[list[ContentBlock], int]]:
    """Returns each medium behind its line, with the tokens of both."""
    media = [(row, block) for row in rows for block in row.message.blocks if _can_be_sent(block)]
    lined = [[TextBlock(text=f"[{block.block_type} of {whose[row.id]}]\n"), block] for row, block in media]
    return [(blocks, tokens(ChatMessage(blocks=blocks))) for blocks in lined]


def _can_be_sent(block: ContentBlock) -> bool:
    """Whether it is a medium whose file is still there. A tool's bytes that are no picture were never sent as one."""
    path = getattr(block, "path", None)
    is_readable = not isinstance(block, ImageBlock) or block.image_mimetype or block.url
    return bool(is_medium(block) and is_readable and (not path or Path(path).exists()))
