"""Decides which lines fit into a number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter

FIRST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was chosen: indexes of lines in their order, and the tokens of the kept lines as one text."""

    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    tokens: int


def fit(lines: Sequence[str], limit: int, counter: TokenCounter, *, least: int = 1) -> Fitted:
    """The lines that fit into ``limit`` tokens, best line first: what does not fit is skipped, and on it goes.

    Args:
        lines: Whole lines, best first, each with its newline. A line must begin with "<" and end with
            ">" and a newline, so that the tokens of lines add up to those of the text.
        limit: Most tokens of all kept lines together; 0 or less keeps nothing.
        counter: Counts the tokens. For one whose counts do not add up, the text is counted as a whole.
        least: The tokens of the shortest possible line: nothing is counted once less than that is left.

    Returns:
        Kept and dropped indexes, both ascending; together they are all indexes.
    """
    kept: list[int] = []
    text, used = "", 0
    for i, line in enumerate(lines):
        if limit - used < least:
            break
        tokens = used + counter.count(line) if counter.adds_up else counter.count(text + line)
        if tokens <= limit:
            kept.append(i)
            text, used = text + line, tokens
    chosen = set(kept)
    return Fitted(tuple(kept), tuple(i for i in range(len(lines)) if i not in chosen), used)


def fit_tokens(tokens: Iterable[int], limit: int, *, least: int = 1) -> list[int]:
    """The places of the lines that fit into ``limit``, best line first, where the tokens of lines add up.

    ``least`` is the tokens of the shortest possible line: no more lines are asked for once less is left.

    >>> fit_tokens([5, 9, 4, 1], 10)
    [0, 2, 3]
    """
    kept, left = [], limit
    for i, cost in enumerate(tokens):
        if cost <= left:
            kept.append(i)
            left -= cost
        if left < least:
            break
    return kept


def put_first(tokens: Sequence[int], first: Sequence[bool], limit: int, share: float = FIRST_SHARE) -> list[int]:
    """The order in which marked entries (pinned facts, corrections) come before all others.

    Marked entries move to the front while they fit into ``share`` of ``limit`` together; one that does
    not fit keeps its place behind the better ones, and the next is tried. Otherwise the order stays.

    Args:
        tokens: The tokens of each entry, best first. Those of unmarked entries are not looked at.
        first: True for each marked entry.
        limit: Tokens that all entries may have together.
        share: 0..1 of the limit.

    >>> put_first([10, 20, 10], first=[False, True, True], limit=50)
    [2, 0, 1]
    """
    room = share * limit
    front = []
    for i, marked in enumerate(first):
        if marked and tokens[i] <= room:
            front.append(i)
            room -= tokens[i]
    moved = set(front)
    return front + [i for i in range(len(first)) if i not in moved]
