"""Finds the part of a long text that has the words of a question."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter

# A sentence, a line, or what there is of one: pieces put together again are the text.
_PIECE = re.compile(r".{1,400}?(?:[.!?]\s+|[\u3002\uff01\uff1f]|\n+|\Z)|.{1,400}", re.DOTALL)
_BEFORE, _AFTER = "[...] ", " [...]"


def excerpt(
    text: str, limit: int, counter: TokenCounter, wanted: Collection[str], terms: Callable[[str], Iterable[str]]
) -> str:
    """The run of sentences with most of the wanted terms, of at most ``limit`` tokens; marked where it breaks off.

    A text that fits comes back whole. One with none of the terms is clipped in its middle.

    Args:
        text: Any.
        limit: Most tokens, marks included; 0 or less gives "".
        counter: Counts them.
        wanted: The terms of the question.
        terms: Takes a text apart into such terms.
    """
    if counter.count(text) <= limit:
        return text
    pieces = _PIECE.findall(text)
    hits = [frozenset(wanted).intersection(terms(piece)) for piece in pieces]
    first, last = _densest([counter.count(piece) for piece in pieces], hits, limit - counter.count(_BEFORE + _AFTER))
    while first < last:
        shown = "".join(pieces[first:last]).strip()
        shown = f"{_BEFORE if first else ''}{shown}{_AFTER if last < len(pieces) else ''}"
        if counter.count(shown) <= limit:
            return shown
        # Tokens of pieces need not add up.
        first, last = (first + 1, last) if len(hits[first]) < len(hits[last - 1]) else (first, last - 1)
    return counter.clip(text, limit)


def _densest(tokens: Sequence[int], hits: Sequence[Collection[str]], limit: int) -> tuple[int, int]:
    """The places of the run with most different terms within the limit, the longest of them; (0, 0) for none."""
    best, place, first, used = (0, 0), (0, 0), 0, 0
    for last, cost in enumerate(tokens, start=1):
        used += cost
        while first < last and used > limit:
            used -= tokens[first]
            first += 1
        found = len({term for piece in hits[first:last] for term in piece})
        if found and (found, used) > best:
            best, place = (found, used), (first, last)
    return place
