"""Limits of messages and texts: where a record is cut, how long each message may be, which sentences are shown."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.errors import LimitError
from llama_index_memory_ext.text.messages import RESULT_ROLES, Counted
from llama_index_memory_ext.words import sentences_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter


# Most tokens of a prompt for a model with an unknown or a wide window.
DEFAULT_TOKEN_LIMIT = 60_000
_BEFORE = "... "
_AFTER = " ..."


@dataclass(frozen=True, slots=True)
class Limits:
    """The most tokens and messages, and how many stay once there are more.

    ``tokens``: most tokens.
    ``keep_ratio``: the share of ``tokens`` that stays.
    ``max_messages``: most messages.
    ``keep_messages``: the number of messages that stay.
    """

    tokens: int = sys.maxsize
    keep_ratio: float = 1.0
    max_messages: int = sys.maxsize
    keep_messages: int = sys.maxsize

    @property
    def kept(self) -> Limits:
        """The limits to cut down to once these limits are exceeded: at least one token, unless none may stay."""
        tokens = max(int(self.tokens * self.keep_ratio), min(self.tokens, 1))
        return Limits(tokens, 1.0, self.keep_messages, self.keep_messages)


def limits_of_messages(
    most: int | None, keep: int | None, ratio: float, *, include_system: bool
) -> Limits:
    """Return the limits for the options of a record, without a limit of tokens.

    Raises:
        LimitError: ``most`` leaves no room for ``keep`` messages, or beside a system's
            message.
    """
    if keep is not None and (most is None or keep > most):
        raise LimitError(
            f"keep_messages={keep} needs max_messages of at least {keep}; got {most}. "
            "Raise max_messages, or lower keep_messages."
        )
    if include_system and most == 1:
        raise LimitError(
            "include_system=True needs max_messages of at least 2, for the system's message and another; got 1. "
            "Raise max_messages, or leave include_system out."
        )
    most = most or sys.maxsize
    keep = keep or min(most, max(2, int(most * ratio)))
    return Limits(keep_ratio=ratio, max_messages=most, keep_messages=keep)


def plan_cut(messages: Sequence[Counted], limits: Limits) -> int:
    """Return the index of the first message to keep, which is never a result; 0 if all are within the limits.

    Above a limit, the messages are cut down to ``keep_ratio`` and ``keep_messages`` at
    once. Then the beginning stays the same for many turns, and a provider's prompt
    cache can serve it.

    The newest message, or call with its results, always stays. A cut in front of a
    message of the user is preferred unless it keeps less than half of the tokens that
    fit. Messages are counted from the newest one on, until a limit is exceeded.
    """
    # Lazily: the tokens of messages beyond a limit are not counted.
    newest = islice(reversed(messages), limits.max_messages)
    tokens = accumulate(message.tokens for message in newest)
    # ``sums[n - 1]`` are the tokens of the newest n messages.
    sums = list(takewhile(lambda total: total <= limits.tokens, tokens))
    if len(sums) == len(messages):
        return 0
    fitting = min(bisect_right(sums, limits.kept.tokens), limits.keep_messages)
    groups = [
        i for i, message in enumerate(messages) if message.role not in RESULT_ROLES
    ]
    # Without a call, results are not cut.
    if not groups:
        return 0
    cuts = groups[bisect_left(groups, len(messages) - fitting) :]
    # The newest group stays even if it does not fit.
    if not cuts:
        return groups[-1]
    first = cuts[0]
    for turn in cuts:
        if messages[turn].role == MessageRole.USER.value:
            most_tokens = sums[len(messages) - first - 1]
            if sums[len(messages) - turn - 1] * 2 >= most_tokens:
                return turn
            break
    return first


def share_out(tokens: Sequence[int], limit: int) -> list[int]:
    """Return the share of each message in a common limit: short ones get all they need, long ones equal parts.

    >>> share_out([10, 500, 900], 210)
    [10, 100, 100]
    """
    shares = [0] * len(tokens)
    rest = limit
    shortest_first = sorted(range(len(tokens)), key=tokens.__getitem__)
    for done, i in enumerate(shortest_first):
        equal_part = max(rest, 0) // (len(tokens) - done)
        shares[i] = min(tokens[i], equal_part)
        rest -= shares[i]
    return shares


def excerpt(
    text: str,
    limit: int,
    counter: TokenCounter,
    wanted: Collection[str],
    terms: Callable[[str], Iterable[str]],
) -> str:
    """Return the run of sentences with most of the wanted terms, with "..." where text is left out.

    It has at most ``limit`` tokens. Of a sentence that is longer, some words are shown.
    A text that fits is returned whole; a text without any of the terms begins with its
    first sentence. ``terms`` gives the terms of a text.
    """
    if counter.count(text) <= limit:
        return text
    room = limit - counter.count(_BEFORE + _AFTER)
    pieces = _pieces_of(text, room, counter)
    terms_of_pieces = [frozenset(wanted).intersection(terms(piece)) for piece in pieces]
    sums = list(accumulate(map(counter.count, pieces), initial=0))
    run = _best_run(terms_of_pieces, sums, room)
    passage = "".join(pieces[run]).strip()
    if not passage:
        return counter.clip(text, limit)
    if run.start > 0:
        passage = _BEFORE + passage
    if run.stop < len(pieces):
        passage += _AFTER
    # The tokens of pieces need not add up.
    return counter.clip(passage, limit)


def _pieces_of(text: str, limit: int, counter: TokenCounter) -> list[str]:
    """Return the sentences of a text; a sentence above the limit is cut between its words, if it has any."""
    characters = max(limit, 1)
    words = re.compile(rf"(?s).{{1,{characters}}}(?:\s+|$)|.{{1,{characters}}}")
    pieces: list[str] = []
    for sentence in sentences_in(text):
        if counter.count(sentence) <= limit:
            pieces.append(sentence)
        else:
            pieces += words.findall(sentence)
    return pieces


def _best_run(
    terms_of_pieces: Sequence[frozenset[str]], sums: Sequence[int], limit: int
) -> slice:
    """Return the run of pieces within the limit with most different terms, then most tokens.

    Without terms, return the first pieces. ``sums[n]`` are the tokens of the first n
    pieces.
    """
    best = slice(0, max(bisect_right(sums, limit) - 1, 0))
    best_score = (0, 0)
    for end in range(1, len(sums)):
        # The longest run that ends here.
        start = bisect_left(sums, sums[end] - limit, 0, end)
        terms = frozenset().union(*terms_of_pieces[start:end])
        score = (len(terms), sums[end] - sums[start])
        if terms and score > best_score:
            best = slice(start, end)
            best_score = score
    return best
