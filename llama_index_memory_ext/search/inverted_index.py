"""Finds the documents that share terms with a query, and how near they are by TF-IDF."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import repeat
from math import log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_WORTH_COMPACTING = 64
# How far the logarithm of a term's rows may move before the rows that have it are brought up to date. One more row
# moves it by less once there are a thousand, and then the length of no row is off by more than this share.
_TOLERANCE = 1e-3
_DIGITS = 9


class Similarities(Mapping[str, float]):
    """How near rows are, in (0, 1], by id. It holds the rows that are near at all, and looks one up when it is asked.

    It may outlive a change of its index: rows that came later are not in it.
    """

    def __init__(self, ids: Sequence[str], rows: Mapping[str, int], near: NDArray[np.float64]) -> None:
        self._ids = ids
        self._rows = rows
        self._near = near

    def __getitem__(self, row_id: str) -> float:
        near: float | None = self.get(row_id)
        if near is None:
            raise KeyError(row_id)
        return near

    def get(self, row_id: str, default: Any = None) -> Any:
        """How near a row is, or the default."""
        # Written out because facts are looked up by the thousand.
        row = self._rows.get(row_id, -1)
        return self._near.item(row) or default if 0 <= row < self._near.size else default

    def of(self, ids: Sequence[str]) -> NDArray[np.float64]:
        """How near these rows are, in their order; 0 for one that is not near, or not there."""
        rows = np.fromiter(map(self._rows.get, ids, repeat(-1)), dtype=np.int64, count=len(ids))
        known = (rows >= 0) & (rows < self._near.size)
        near = np.zeros(len(ids))
        near[known] = self._near[rows[known]]
        return near

    def first(self, count: int) -> NDArray[np.float64]:
        """How near the rows are that were added first, in that order; 0 for one that is not near, or was removed."""
        return self._near[:count]

    def __iter__(self) -> Iterator[str]:
        return (self._ids[row] for row in np.flatnonzero(self._near).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._near))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)})"


class InvertedIndex:
    """Rows of weighted terms that can be added and removed at any time; every answer is that of the living rows.

    A term's weight in a row is ``weight * idf`` with the smoothed idf of scikit-learn's TfidfTransformer, ``1 +
    ln((1 + n) / (1 + df))``. As idf is ``a - l`` with ``a = 1 + ln(1 + n)`` and ``l = ln(1 + df)``, the square of
    a row's length is ``a^2 * sum(w^2) - 2a * sum(w^2 * l) + sum(w^2 * l^2)``. The three sums are kept for each row, and
    a new row changes them only in the rows that share a term with it: nothing is ever computed anew from the texts.
    The lengths are exact while no term is in more than 1,000 rows, and within a thousandth beyond that.

    Not safe for threads: the owner locks.

    Args:
        length_exponent: 0..1, the power of a row's length by which its product with the query is divided.
    """

    def __init__(self, length_exponent: float = 1.0) -> None:
        self.length_exponent = length_exponent
        self._postings: dict[str, _Posting] = {}
        self._rows: dict[str, int] = {}
        self._ids: list[str] = []
        self._terms: list[tuple[str, ...]] = []
        self._alive = array("b")
        self._sums = (array("d"), array("d"), array("d"))
        self._known_reciprocals: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row_id: object) -> bool:
        return row_id in self._rows

    def add(self, rows: Iterable[tuple[str, Mapping[str, float]]]) -> None:
        """Append rows of an id and the weights of its terms; an id that is there already is replaced."""
        changed: dict[str, None] = {}
        for row_id, weights in rows:
            if row_id in self._rows:
                changed.update(dict.fromkeys(self._bury(row_id)))
            number = len(self._ids)
            self._rows[row_id] = number
            self._ids.append(row_id)
            self._terms.append(tuple(weights))
            self._alive.append(1)
            sums = [0.0, 0.0, 0.0]
            for term, weight in weights.items():
                posting = self._postings.get(term)
                if posting is None:
                    posting = self._postings[term] = _Posting()
                posting.rows.append(number)
                posting.weights.append(weight)
                posting.living += 1
                # As it was stored, with fewer digits: the sums are changed later by what is read from there.
                square = posting.weights[-1] ** 2
                for power in range(3):
                    sums[power] += square * posting.settled_log**power
            for kept, value in zip(self._sums, sums, strict=True):
                kept.append(value)
            changed.update(dict.fromkeys(weights))
        self._settle(changed)

    def remove(self, ids: Iterable[str]) -> None:
        """Take rows away; ids that are not there are passed over."""
        changed: dict[str, None] = {}
        for row_id in ids:
            if row_id in self._rows:
                changed.update(dict.fromkeys(self._bury(row_id)))
        self._settle(changed)
        dead = len(self._ids) - len(self._rows)
        if dead > max(_WORTH_COMPACTING, len(self._rows)):
            self._compact()

    def nearest(self, query: Mapping[str, float]) -> Similarities:
        """How near each row is that shares a term with the query, in (0, 1]; terms that no row has do not count.

        With a length exponent of 1 these are cosines. Otherwise each cosine is multiplied by ``(length / longest)
        ** (1 - exponent)``, where the longest row is that of the whole index.
        """
        near = np.zeros(len(self._ids))
        query_square = 0.0
        for term, weight in query.items():
            posting = self._postings.get(term)
            if posting is not None and posting.living:
                idf = self._top - log(1 + posting.living)
                query_square += (weight * idf) ** 2
                near[_view(posting.rows)] += weight * idf * idf * _view(posting.weights)
        if query_square:
            near *= self._reciprocals()
            # Rounded, so that rows with the same words are equally near whatever came and went in between.
            near = np.minimum(np.round(near / sqrt(query_square), _DIGITS), 1.0)
        return Similarities(self._ids, self._rows, near)

    @property
    def _top(self) -> float:
        return 1 + log(1 + len(self._rows))

    def _reciprocals(self) -> NDArray[np.float64]:
        """What a row's product with the query is multiplied by, computed once after each change; 0 for dead rows."""
        if self._known_reciprocals is None:
            top, exponent = self._top, self.length_exponent
            first, second, third = map(_view, self._sums)
            lengths = np.sqrt(np.maximum(top * top * first - 2 * top * second + third, 0.0))
            lengths *= _view(self._alive)
            longest = lengths.max(initial=0.0)
            divisors = lengths**exponent * longest ** (1 - exponent)
            self._known_reciprocals = np.divide(1.0, divisors, out=np.zeros_like(lengths), where=lengths > 0)
        return self._known_reciprocals

    def _bury(self, row_id: str) -> Sequence[str]:
        """The terms of the row, which is dead from now on."""
        number = self._rows.pop(row_id)
        self._alive[number] = 0
        terms, self._terms[number] = self._terms[number], ()
        for term in terms:
            self._postings[term].living -= 1
        return terms

    def _settle(self, terms: Iterable[str]) -> None:
        """Bring the sums of all rows with one of these terms up to date."""
        self._known_reciprocals = None
        _, linear, square = map(_view, self._sums)
        for term in terms:
            posting = self._postings[term]
            if not posting.living:
                # Only dead rows are left in it, and their lengths are never asked for.
                del self._postings[term]
                continue
            now, before = log(1 + posting.living), posting.settled_log
            if abs(now - before) > _TOLERANCE:
                rows, squares = _view(posting.rows), np.square(_view(posting.weights), dtype=np.float64)
                linear[rows] += squares * (now - before)
                square[rows] += squares * (now * now - before * before)
                posting.settled_log = now

    def _compact(self) -> None:
        """Forget the dead rows."""
        self._known_reciprocals = None
        alive = _view(self._alive).astype(bool)
        numbers = (np.cumsum(alive) - 1).astype(np.intc)
        for posting in self._postings.values():
            rows = _view(posting.rows)
            kept = alive[rows]
            weights = _view(posting.weights)[kept]
            posting.rows = array("i", numbers[rows[kept]].tobytes())
            posting.weights = array("f", weights.tobytes())
        living = np.flatnonzero(alive).tolist()
        self._ids = [self._ids[row] for row in living]
        self._terms = [self._terms[row] for row in living]
        self._rows = {row_id: row for row, row_id in enumerate(self._ids)}
        first, second, third = (array("d", _view(sums)[alive].tobytes()) for sums in self._sums)
        self._sums = (first, second, third)
        self._alive = array("b", [1]) * len(living)


class _Posting:
    """The rows that hold a term, and its weight in each."""

    __slots__ = ("living", "rows", "settled_log", "weights")

    def __init__(self) -> None:
        self.rows = array("i")
        self.weights = array("f")
        self.living = 0
        # The logarithm with which the term is in the sums of its rows.
        self.settled_log = 0.0


def _view(values: array[Any]) -> NDArray[Any]:
    """The numbers of an array without a copy. An array cannot grow while a view of it is alive."""
    return np.frombuffer(values, dtype=values.typecode)
