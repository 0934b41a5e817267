"""Tells which English words belong together: what a word is derived from, is called otherwise, or is a kind of."""

from __future__ import annotations

import os
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@lru_cache(maxsize=1_000)
def related_terms(term: str) -> tuple[str, ...]:
    """Return the terms of English words that belong to those of a term, in alphabetical order; () for none.

    The lines of the file are sorted, so that a line is found by bisection and the file
    is never loaded. Comments stand before all of them.

    >>> "allerg" in related_terms("allergi"), "daughter" in related_terms("child"), related_terms("xyzzy")
    (True, True, ())
    """
    if term.startswith("#"):
        return ()
    start = f"{term} ".encode("utf-8", "replace")
    with _file().open("rb") as file:
        low = 0
        high = file.seek(0, os.SEEK_END)
        # Of the lines that begin behind `low` and up to `high`, one may be the line of
        # the term.
        while low < high:
            middle = (low + high) // 2
            file.seek(middle)
            file.readline()
            line = file.readline()
            if line.startswith(start):
                return tuple(line[len(start) :].decode().split())
            if line and line < start:
                low = middle + 1
            else:
                high = middle
    return ()


@cache
def _file() -> Traversable:
    return files("llama_index_memory_ext.language") / "data" / "related.txt"
