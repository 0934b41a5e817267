"""Decides which messages of the log one request for facts contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.store.timestamps import written_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime


def batch_end(
    starts_turn: Sequence[bool], tokens: Sequence[int], days: Sequence[date | None], *, token_limit: int
) -> int:
    """The number of messages, oldest first, that go into one batch: 0 for no messages, else at least 1.

    A batch ends where a turn ends, if possible, before the message with which it would exceed ``token_limit``. It also
    ends before a turn that began on another day than its first turn: relative dates ("tomorrow") count from one day.
    """
    total, turns, last_start = 0, 0, 0
    first_day = None
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
    """The time at which the last question of a batch was written, at most ``now``; ``now`` if it is not known.

    >>> said_at([True, False], [0, 0], written_at(10**18)).isoformat()
    '2001-09-09T01:46:40+00:00'
    """
    asked = [written_at(timestamp) for timestamp, starts in zip(timestamps, starts_turn, strict=True) if starts]
    return min(asked[-1] or now, now) if asked else now
