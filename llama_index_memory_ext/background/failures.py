"""Failures of work in the background: how long the work pauses after them, and how they are logged."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timezone

from llama_index_memory_ext.errors import NoModelError
from llama_index_memory_ext.events import MemoryFailure, is_handled

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 300.0


@dataclass
class BackOff:
    """Counts failures in a row; each failure doubles the pause, up to 300 seconds."""

    first_pause_seconds: float
    failures: int = 0
    resume_at: float = 0.0

    @property
    def pausing(self) -> bool:
        """Whether a pause is under way."""
        return time.monotonic() < self.resume_at

    def failed(self) -> float:
        """Count a failure, and return its pause in seconds."""
        # More failures do not lengthen the pause, and a larger power of 2 may be no
        # float.
        pause = min(
            self.first_pause_seconds * 2.0 ** min(self.failures, 30),
            LONGEST_PAUSE_SECONDS,
        )
        self.failures += 1
        self.resume_at = time.monotonic() + pause
        return pause

    def succeeded(self) -> None:
        """Let the next pause be a short one again; within a pause nothing changes."""
        if not self.pausing:
            self.failures = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of a job.

    ``failures``: the number of failures in a row.
    ``error``: the type of the error.
    ``at``: the time of the failure (UTC).
    ``retry_at``: the time (UTC) before which the job is not tried again; None: the next
    start tries again.
    """

    failures: int
    error: str
    at: datetime
    retry_at: datetime | None = None


def seconds_until_retry(failure: Failure | None) -> float:
    """Return the seconds until a job may run again; 0 or less: it may run now."""
    if failure is None or failure.retry_at is None:
        return 0
    seconds = (failure.retry_at - datetime.now(timezone.utc)).total_seconds()
    # The clock may have been set back.
    return min(seconds, LONGEST_PAUSE_SECONDS)


def log_failure(failed: str, session_id: str, error: Exception, outcome: str) -> None:
    """Pass a failure to ``on_error`` of the memory, or else log it in one line, without texts of messages.

    ``failed``: the work that failed, such as "Facts were not extracted".
    ``outcome``: what follows, such as "trying again in 2 s".
    """
    reason = type(error).__name__
    if is_handled(MemoryFailure(failed, reason, outcome, session_id)):
        return
    if isinstance(error, NoModelError):
        reason = str(error)
    logger.warning("%s (session %r, %s); %s.", failed, session_id, reason, outcome)
