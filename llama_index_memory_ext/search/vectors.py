"""Holds vectors by the id of what they stand for, and says how near each is to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

_FIRST_ROWS = 64
_WORTH_COMPACTING = 64
_DIGITS = 6
_FEW = 2


class VectorKeeper(Protocol):
    """Keeps vectors as pairs of a content's digest and bytes, by document id, for all processes."""

    @property
    def door(self) -> tuple[Hashable, ...]:
        """What all who embed the same documents in this process have in common."""

    async def read(self, ids: Sequence[str]) -> Mapping[str, tuple[str, bytes]]:
        """Those of these documents' vectors that are kept."""

    async def write(self, vectors: Mapping[str, tuple[str, bytes]]) -> None:
        """Keep vectors, in the place of those that were kept for the same documents."""


class VectorIndex:
    """A row for each id, with a vector or still without one. Appending costs the same however many rows there are.

    Not safe for threads: the owner locks. ``ids`` and ``rows`` may be kept beside an answer of ``cosines``: rows that
    come later have numbers beyond it.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self._matrix = np.zeros((0, 0), dtype=np.float32)

    @property
    def dimension(self) -> int:
        """How many numbers a vector has; 0 as long as that is unknown."""
        return self._matrix.shape[1]

    def start(self, dimension: int) -> None:
        """Make room for vectors of this dimension; all rows are without one then."""
        self._matrix = np.zeros((max(len(self.ids), _FIRST_ROWS), dimension), dtype=np.float32)

    def add(self, row_id: str, vector: NDArray[np.float32] | None = None) -> None:
        """Give the row of an id this vector, of length 1, or none."""
        row = self.rows.get(row_id)
        if row is None:
            row = self.rows[row_id] = len(self.ids)
            self.ids.append(row_id)
        if row >= len(self._matrix):
            grown = np.zeros((max(2 * row, _FIRST_ROWS), self.dimension), dtype=np.float32)
            grown[: len(self._matrix)] = self._matrix
            self._matrix = grown
        self._matrix[row] = 0 if vector is None else vector

    def remove(self, ids: Iterable[str]) -> None:
        """Take rows away; ids that are not there are passed over."""
        for row_id in ids:
            row = self.rows.pop(row_id, None)
            if row is not None:
                self._matrix[row] = 0
        if len(self.ids) - len(self.rows) > max(_WORTH_COMPACTING, len(self.rows)):
            living = list(self.rows.values())
            self._matrix = self._matrix[living]
            self.ids = list(self.rows)
            self.rows = {row_id: row for row, row_id in enumerate(self.ids)}

    def cosines(self, vector: NDArray[np.float32]) -> NDArray[np.float64]:
        """The cosine of each row with a vector of length 1, in 0..1; 0 for what is opposed to it or has no vector.

        For some models any two texts have a cosine of 0.7. So the least cosine of all is taken off, nearly all of it
        where there are many rows, less where the least of a few says little.
        """
        found = (self._matrix[: len(self.ids)] @ vector).astype(np.float64)
        filled = found[found != 0]
        if filled.size:
            found[found != 0] -= max(float(filled.min()), 0.0) * filled.size / (filled.size + _FEW)
        # Rounded, so that equal vectors are equally near wherever they stand.
        return np.clip(np.round(found, _DIGITS), 0.0, 1.0)


def unit(vector: Sequence[float]) -> NDArray[np.float32]:
    """The vector with length 1, or all zeros.

    Raises:
        ValueError: It is empty, no vector, or holds what is no finite number.
    """
    numbers = np.asarray(vector, dtype=np.float64)
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
        raise ValueError(f"expected a vector of finite numbers, saw an array of shape {numbers.shape}")
    length = float(np.linalg.norm(numbers))
    return (numbers / length if length else numbers).astype(np.float32)


def packed(vector: NDArray[np.float32]) -> bytes:
    """The vector as bytes, the same on every machine."""
    return vector.astype("<f4").tobytes()


def unpacked(stored: bytes) -> NDArray[np.float32]:
    """The vector that was packed."""
    return np.frombuffer(stored, dtype="<f4").astype(np.float32)
