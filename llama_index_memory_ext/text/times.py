"""Reads when a message was said from what programs write beside it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The first one with a time counts. They are the names of many programs, of OpenAI's API, and of ChatGPT's exports.
TIME_KEYS = ("timestamp", "created_at", "create_time", "date")
# A smaller number is no time in seconds, but a place in a list or a duration.
_EARLIEST = datetime(1973, 3, 3, 10, tzinfo=timezone.utc)
_TIME = TypeAdapter(datetime)


def times_in(values: Mapping[str, object]) -> dict[str, datetime]:
    """Returns the times (UTC) among the ``TIME_KEYS`` of an object, each by its key, in the order of the keys.

    A time is a ``datetime``, an ISO text, or a Unix time in seconds or milliseconds; without a zone it is in UTC.
    Everything else is left out.

    >>> times_in({"date": "2023-05-08", "created_at": 1_683_554_400, "timestamp": "soon"})["created_at"].isoformat()
    '2023-05-08T14:00:00+00:00'
    """
    found = {key: _time_of(values[key]) for key in TIME_KEYS if key in values}
    return {key: time for key, time in found.items() if time is not None}


def _time_of(value: object) -> datetime | None:
    try:
        time = _TIME.validate_python(value)
        time = time.replace(tzinfo=time.tzinfo or timezone.utc).astimezone(timezone.utc)
    except (ValidationError, OverflowError):
        return None
    return time if time >= _EARLIEST else None
