"""Keeps which documents have a term, and how often."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# So many rows are removed one by one.
_FEW = 64


class Posting:
    """The rows with a term, in ascending order, and how often each has it."""

    __slots__ = ("counts", "rows")

    def __init__(self) -> None:
        self.rows, self.counts = array("i"), array("d")

    def append(self, row: int, count: float) -> None:
        """Adds a row behind all others."""
        self.rows.append(row)
        self.counts.append(count)

    def count_in(self, row: int) -> float:
        """Returns how often a row has the term, which it must have."""
        return self.counts[bisect_left(self.rows, row)]

    def remove(self, rows: Sequence[int]) -> None:
        """Removes rows, which must have the term."""
        if len(rows) <= _FEW:
            for row in rows:
                place = bisect_left(self.rows, row)
                del self.rows[place], self.counts[place]
            return
        kept = np.isin(view(self.rows), rows, invert=True)
        self.rows = array("i", view(self.rows)[kept].tobytes())
        self.counts = array("d", view(self.counts)[kept].tobytes())


def merged(postings: Sequence[Posting]) -> tuple[NDArray[np.intc], NDArray[np.float64]]:
    """Returns the rows with any of these terms, each once, and how often each has them all together."""
    first = postings[0] if postings else Posting()
    rows, counts = view(first.rows), view(first.counts)
    if len(postings) > 1:
        all_rows, all_counts = (
            np.concatenate([view(getattr(one, name)) for one in postings]) for name in ("rows", "counts")
        )
        rows, places = np.unique(all_rows, return_inverse=True)
        counts = np.bincount(places, weights=all_counts)
    return rows, counts


def view(values: array[Any]) -> NDArray[Any]:
    """Returns the numbers of an array without a copy. An array cannot grow while a view of it is in use."""
    return np.frombuffer(values, dtype=values.typecode)
