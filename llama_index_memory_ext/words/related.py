"""Related words of English: derivations, synonyms and broader words, from WordNet."""

from __future__ import annotations

import os
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@lru_cache(maxsize=1_000)
def related_terms(term: str) -> tuple[str, ...]:
    """Return the terms of related English words, in alphabetical order; () for none.

    The lines of the file are sorted, so that bisection finds a line without loading the
    file. Comments stand before all lines.

    >>> "allerg" in related_terms("allergi"), "daughter" in related_terms("child"), related_terms("xyzzy")
    (True, True, ())
    """
    if term.startswith("#"):
        return ()
    start = f"{term} ".encode("utf-8", "replace")
    with _file().open("rb") as file:
        low = 0
        high = file.seek(0, os.SEEK_END)
        # The line of the term begins behind `low` and up to `high`, if it exists.
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
    return files("llama_index_memory_ext.words") / "data" / "related.txt"
