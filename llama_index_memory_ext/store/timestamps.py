"""Reads the time at which a row was written."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def written_at(timestamp: int | None) -> datetime | None:
    """When a row was written (UTC), by its nanoseconds since 1970; None if that is no time that a clock has shown.

    >>> written_at(1_700_000_000_000_000_000).isoformat(), written_at(0)
    ('2023-11-14T22:13:20+00:00', None)
    """
    if not timestamp or timestamp < 0:
        return None
    try:
        return _EPOCH + timedelta(microseconds=timestamp // 1_000)
    except OverflowError:
        return None
