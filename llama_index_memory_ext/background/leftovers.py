"""Says at the end of a program that turns were not read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from weakref import finalize

if TYPE_CHECKING:
    from collections.abc import MutableSet

logger = logging.getLogger(__name__)


def tell_at_the_end(owner: object, sessions: MutableSet[str]) -> None:
    """Log one warning if there are sessions in this set when its owner is collected, or the program ends.

    They are those with finished turns that were not read for facts. No database is asked.
    """
    finalize(owner, _tell, sessions)


def _tell(sessions: MutableSet[str]) -> None:
    if sessions:
        first, more = min(sessions), len(sessions) - 1
        logger.warning(
            "No facts were extracted from the last turns of session %r%s. They are stored, and the next start of a "
            "memory of this user reads them. To have them read at once, end with `await memory.aclose()`.",
            first,
            f" and {more} more" if more else "",
        )
