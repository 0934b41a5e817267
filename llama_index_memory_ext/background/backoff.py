"""Decides how long to pause after failures."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_PAUSE_SECONDS = 300.0
# The pause is at its longest long before; 2 to the power of thousands of failures is no float any more.
_MOST_DOUBLINGS = 30


class BackOff:
    """Pauses that double with each failure in a row, up to 300 seconds.

    Args:
        first_pause_seconds: The pause after the first failure.
        now: A monotonic clock, in seconds.
    """

    def __init__(self, first_pause_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        self._first_pause_seconds = first_pause_seconds
        self._now = now
        self._resume_at = -inf

    @property
    def pausing(self) -> bool:
        """Whether a pause is under way."""
        return self._now() < self._resume_at

    def failed(self) -> float:
        """Begins a pause and returns its seconds; during a pause, returns the rest of it and changes nothing."""
        rest = self._resume_at - self._now()
        if rest > 0:
            return rest
        pause = min(self._first_pause_seconds * 2.0 ** min(self.failures, _MOST_DOUBLINGS), LONGEST_PAUSE_SECONDS)
        self.failures += 1
        self._resume_at = self._now() + pause
        return pause

    def succeeded(self) -> None:
        """Makes the next pause a short one again; ignored during a pause."""
        if not self.pausing:
            self.failures = 0
