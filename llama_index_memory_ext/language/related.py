"""Tells which English words belong together: what a word is derived from, is called otherwise, or is a kind of."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def related_terms(term: str) -> Sequence[str]:
    """Return the terms of English words that belong to those of a term, in alphabetical order; [] for none.

    >>> "allerg" in related_terms("allergi"), "daughter" in related_terms("child"), related_terms("xyzzy")
    (True, True, [])
    """
    return _lines().get(term, "").split()


@cache
def _lines() -> Mapping[str, str]:
    # A line is split when it is asked for: all words of all lines would take ten times as long, and as much memory.
    text = (
        files("llama_index_memory_ext.language") / "data" / "related.txt"
    ).read_text("utf-8")
    return dict(
        line.split(" ", 1) for line in text.splitlines() if not line.startswith("#")
    )
