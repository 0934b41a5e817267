"""The text blocks of a record, and the cache points between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    ContentBlock,
    TextBlock,
)

from llama_index_memory_ext.settings import Switch

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from llama_index_memory_ext.text.entries import Entry
    from llama_index_memory_ext.text.parts import CacheMark, Section

# A block has at least this part of the record's room, which bounds the number of blocks.
# More blocks leave less text behind the last one, which is paid in full each time. How
# far caches look does not matter (OpenAI at the latest 80 marks, Anthropic at 20 blocks
# before a mark): a request marks where the request before has ended.
MOST_BLOCKS = 256
# Anthropic refuses a request with more, and OpenAI writes no more.
MOST_CACHE_POINTS = 4

CachePoints: TypeAlias = Switch | CacheControl


def block_ends(entries: Sequence[Entry], room: int) -> list[int]:
    """Return the rows behind which text blocks end.

    A block ends with the first entry with which it has its least number of tokens. So
    ends stay where they are when entries follow, and are the same in every process.
    """
    rows = []
    tokens = 0
    for entry in entries:
        tokens += entry.tokens
        if tokens * MOST_BLOCKS >= room:
            rows.append(entry.row_id)
            tokens = 0
    return rows


def cache_marks(
    rows: Sequence[int], earlier_ends: Container[int], last_turn: int
) -> dict[int, CacheMark]:
    """Return the marks of the rows behind which blocks end.

    Cache points stand behind the newest row, the last row before the last turn, and the
    last row with which an earlier request has ended.
    """
    marks: dict[int, CacheMark] = dict.fromkeys(rows, "block")
    before_turn = [row_id for row_id in rows if row_id < last_turn]
    of_earlier_requests = [row_id for row_id in rows[:-1] if row_id in earlier_ends]
    for row_id in (*rows[-1:], *before_turn[-1:], *of_earlier_requests[-1:]):
        marks[row_id] = "point"
    return marks


def content_blocks(
    record: Section, cache_points: CachePoints, used_points: int
) -> list[ContentBlock]:
    """Return a text block for each text of a record, with cache points at the newest marks.

    Without cache points, return the record as one block. The prompt holds
    ``used_points`` already, and never more than four.
    """
    if not cache_points:
        return [TextBlock(text=record.text)]
    marks = enumerate(record.cache_marks.values())
    places = [place for place, mark in marks if mark == "point"]
    points_left = MOST_CACHE_POINTS - used_points
    if points_left <= 0:
        places = []
    content: list[ContentBlock] = []
    for place, text in enumerate(record.texts):
        content.append(TextBlock(text=text))
        if place in places[-points_left:]:
            content.append(cache_point(cache_points))
    return content


def cache_point(cache_points: CachePoints) -> CachePoint:
    """Return a cache point with the control of the option, or by default for five minutes."""
    if isinstance(cache_points, CacheControl):
        control = cache_points
    else:
        control = CacheControl(type="ephemeral")
    # One integration of LlamaIndex writes to the control, so no two points share it.
    return CachePoint(cache_control=control.model_copy())


def cache_points_in(messages: Iterable[ChatMessage]) -> int:
    """Return the number of cache points in the messages."""
    return sum(
        isinstance(block, CachePoint)
        for message in messages
        for block in message.blocks
    )
