"""Decides what is kept of messages and texts that are too long."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import LimitError
from llama_index_memory_ext.language.words import sentences_in
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES, Counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter


_BEFORE = "[...] "
_AFTER = " [...]"


@dataclass(frozen=True, slots=True)
class Limits:
    """Most tokens and messages, and how many are kept of more: ``keep_ratio`` of the tokens, and ``keep_messages``."""

    tokens: int = sys.maxsize
    keep_ratio: float = 1.0
    max_messages: int = sys.maxsize
    keep_messages: int = sys.maxsize

    @classmethod
    def checked(
        cls,
        tokens: int | None,
        most: int | None,
        keep: int | None,
        ratio: float = 1.0,
        *,
        include_system: bool = False,
    ) -> Limits:
        """Return the limits for options of a record or of ``trim``; raises a LimitError as they do."""
        for name, limit in {
            "token_limit": tokens,
            "max_messages": most,
            "keep_messages": keep,
        }.items():
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                raise LimitError(
                    f"{name} must be a whole number of at least 1, or None for no limit; it is {limit!r}."
                )
        if keep is not None and (most is None or keep > most):
            raise LimitError(
                f"keep_messages={keep} needs a max_messages of at least as many; it is {most}. "
                "Raise that one, or lower keep_messages."
            )
        if include_system and most == 1:
            raise LimitError(
                "include_system=True needs a max_messages of at least 2, for the system's message and one more; it is "
                "1. Raise it, or leave include_system out."
            )
        most = most or sys.maxsize
        return cls(
            tokens or sys.maxsize,
            ratio,
            most,
            keep or min(most, max(2, int(most * ratio))),
        )

    @property
    def kept(self) -> Limits:
        """The limits of what is kept when these limits are exceeded: at least one token, if there may be any."""
        tokens = max(int(self.tokens * self.keep_ratio), min(self.tokens, 1))
        return Limits(tokens, 1.0, self.keep_messages, self.keep_messages)


def plan_cut(
    messages: Sequence[Counted], limits: Limits, *, turn_starts: Collection[str] = ()
) -> int:
    """Return the index of the first message to keep, never that of a result; 0 if all are within the limits.

    Above a limit, the messages are cut down to ``keep_ratio`` and ``keep_messages`` at
    once. Then the beginning stays the same for many turns, and a provider's prompt
    cache can serve it.

    The newest message, or call with its results, always stays. A cut in front of a
    turn, which begins with a role of ``turn_starts``, is preferred unless it keeps less
    than half of what could be kept. Messages are counted from the newest one on, until
    a limit is exceeded.
    """
    newest = map(attrgetter("tokens"), islice(reversed(messages), limits.max_messages))
    # The tokens of the newest message, of the newest two, and so on.
    sums = list(takewhile(lambda tokens: tokens <= limits.tokens, accumulate(newest)))
    if len(sums) == len(messages):
        return 0
    fitting = min(bisect_right(sums, limits.kept.tokens), limits.keep_messages)
    starts = [
        i for i, message in enumerate(messages) if message.role not in RESULT_ROLES
    ]
    # The newest group stays even if it does not fit. Of results alone nothing is cut.
    cuts = [i for i in starts if i >= len(messages) - fitting] or starts[-1:] or [0]
    first = cuts[0]
    turn = next((i for i in cuts if messages[i].role in turn_starts), first)
    keeps_half = (
        turn == first
        or sums[len(messages) - turn - 1] * 2 >= sums[len(messages) - first - 1]
    )
    return turn if keeps_half else first


def share_out(tokens: Sequence[int], limit: int) -> list[int]:
    """Return the share of each message in a common limit: short ones get all they need, long ones equal parts.

    >>> share_out([10, 500, 900], 210)
    [10, 100, 100]
    """
    shares = [0] * len(tokens)
    left = limit
    for done, i in enumerate(sorted(range(len(tokens)), key=lambda i: tokens[i])):
        shares[i] = min(tokens[i], max(left, 0) // (len(tokens) - done))
        left -= shares[i]
    return shares


def excerpt(
    text: str,
    limit: int,
    counter: TokenCounter,
    wanted: Collection[str],
    terms: Callable[[str], Iterable[str]],
) -> str:
    """Return the run of sentences with most of the wanted terms, with "[...]" where text is left out.

    It has at most ``limit`` tokens. A text that fits is returned whole; one without any
    of the terms is clipped in its middle. ``terms`` gives the terms of a text.
    """
    if counter.count(text) <= limit:
        return text
    # A longer sentence is taken in pieces of 400 characters.
    pieces = [
        piece
        for sentence in sentences_in(text)
        for piece in re.findall(r"(?s).{1,400}", sentence)
    ]
    hits = [frozenset(wanted).intersection(terms(piece)) for piece in pieces]
    before = list(accumulate(map(counter.count, pieces), initial=0))
    room = limit - counter.count(_BEFORE + _AFTER)
    best = (0, 0)
    first = 0
    last = 0
    for end in range(1, len(before)):
        # The longest run that ends here; the best has most different terms, then most
        # tokens.
        start = bisect_left(before, before[end] - room, 0, end)
        score = len(frozenset().union(*hits[start:end])), before[end] - before[start]
        if score[0] and score > best:
            best = score
            first = start
            last = end
    if first == last:
        return counter.clip(text, limit)
    shown = (
        _BEFORE * (first > 0)
        + "".join(pieces[first:last]).strip()
        + _AFTER * (last < len(pieces))
    )
    # The tokens of pieces need not add up.
    return counter.clip(shown, limit)
