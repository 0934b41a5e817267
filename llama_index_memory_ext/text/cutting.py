"""Decides where to cut: what leaves the record, and what leaves short-term memory."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")


def plan_cut(
    tokens: Sequence[int],
    *,
    turn_starts: Sequence[bool],
    results: Sequence[bool],
    token_limit: int,
    keep_tokens: int,
    max_messages: int | None = None,
    keep_messages: int | None = None,
    only_at_starts: bool = False,
) -> int:
    """The index of the first message to keep, oldest first; 0 while nothing has to go.

    Nothing goes until the messages pass ``token_limit`` or ``max_messages``. Then they are cut down to
    ``keep_tokens`` and ``keep_messages`` at once, so that the text in front of the next messages stays
    the same for many turns and a provider's prompt cache can serve it.

    Args:
        tokens: The tokens of each message.
        turn_starts: True for each message of a user. A cut in front of one is preferred, unless it
            would keep less than half of what may be kept.
        results: True for each tool's result, which is never parted from the messages before it.
        token_limit: Most tokens before a cut.
        keep_tokens: Most tokens after it.
        max_messages: Most messages before a cut; None for any number.
        keep_messages: Most messages after it.
        only_at_starts: Whether a cut is made nowhere else than at ``turn_starts``, as long as one of them fits.

    The newest message always stays, with the call that it answers, even if that is over ``keep_tokens``
    or ``keep_messages``: see to it beforehand that no message and its results pass ``token_limit``.
    """
    count = len(tokens)
    if sum(tokens) <= token_limit and (max_messages is None or count <= max_messages):
        return 0
    kept = list(accumulate(reversed(tokens)))[::-1]
    most = count if keep_messages is None else keep_messages
    cuts = [i for i in range(count) if not results[i] or i == 0]
    fitting = [i for i in cuts if kept[i] <= keep_tokens and count - i <= most]
    if not fitting:
        return cuts[-1] if cuts else 0
    turns = [i for i in fitting if turn_starts[i]]
    if turns and (only_at_starts or kept[turns[0]] * 2 >= min(keep_tokens, kept[fitting[0]])):
        return turns[0]
    return fitting[0]


def plan_flush(tokens: Sequence[int], *, turn_starts: Sequence[bool], limit: int, flush_size: int = 0) -> int:
    """How many of the oldest messages leave short-term memory: whole turns, and never the newest turn.

    Nothing leaves while the messages have at most ``limit`` tokens. Then turns leave until the rest is
    within the limit and at least ``flush_size`` tokens are gone.
    """
    starts = [i for i, starts_turn in enumerate(turn_starts) if starts_turn]
    left = sum(tokens)
    if left <= limit or not starts:
        return 0
    gone = 0
    for i in starts:
        flushed = sum(tokens[gone:i])
        left, flush_size, gone = left - flushed, flush_size - flushed, i
        if left <= limit and flush_size <= 0:
            break
    return gone


def with_results(items: Iterable[T], is_result: Callable[[T], bool]) -> list[list[T]]:
    """The items in groups that must not be parted: each with the results of tools behind it.

    >>> with_results("urrar", lambda item: item == "r")
    [['u', 'r', 'r'], ['a', 'r']]
    """
    groups: list[list[T]] = []
    for item in items:
        if is_result(item) and groups:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def share_out(tokens: Sequence[int], limit: int) -> list[int]:
    """What each of several messages may have of a common limit: the short ones whole, the long ones equally.

    >>> share_out([10, 500, 900], 210)
    [10, 100, 100]
    >>> share_out([10, 20], 100)
    [10, 20]
    """
    shares = [0] * len(tokens)
    left = limit
    for done, i in enumerate(sorted(range(len(tokens)), key=lambda i: tokens[i])):
        shares[i] = min(tokens[i], max(left, 0) // (len(tokens) - done))
        left -= shares[i]
    return shares
