"""Decides how much of the log one request for facts holds, and when that was said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.store.timestamps import written_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime


def batch_end(
    starts_turn: Sequence[bool], tokens: Sequence[int], days: Sequence[date | None], *, token_limit: int
) -> int:
    """How many of the messages, oldest first, go into one batch: at least one if there is any, else 0.

    It ends where a turn does, if it can, in front of what would make it longer than ``token_limit``; and in front of
    the first turn of another day than its own first turn's: a relative date ("tomorrow") counts from one day.
    """
    total, turns = 0, 0
    first_day = None
    last_start = 0
    for i, starts in enumerate(starts_turn):
        total += tokens[i]
        if starts and turns and days[i] != first_day:
            return i
        if starts:
            first_day = first_day if turns else days[i]
            turns, last_start = turns + 1, i
        if i and total > token_limit:
            return last_start or i
    return len(starts_turn)


def said_at(starts_turn: Sequence[bool], timestamps: Sequence[int], now: datetime) -> datetime:
    """When a batch was said: when its last question was written, but never after ``now``, which stands in for no time.

    >>> said_at([True, False], [0, 0], written_at(10**18)).isoformat()
    '2001-09-09T01:46:40+00:00'
    """
    asked = [written_at(timestamp) for timestamp, starts in zip(timestamps, starts_turn, strict=True) if starts]
    return min(asked[-1] or now, now) if asked else now
