"""Keeps the vectors of texts, and compares them with the vector of a question."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Vector: TypeAlias = NDArray[np.float32]
# Of fewer texts the median says nothing.
_FEWEST_TEXTS = 10


class VectorIndex:
    """Texts by id, each with a vector once it is embedded. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._texts: dict[str, str] = {}
        self._vectors: dict[str, Vector] = {}
        self._dimension = 0
        self._matrix: Vector | None = None  # The vectors in their order; None after a change.

    @property
    def is_complete(self) -> bool:
        """Whether all texts are embedded."""
        with self._lock:
            return len(self._vectors) == len(self._texts)

    def add(self, texts: Mapping[str, str]) -> None:
        """Adds texts by id; a known id keeps its vector if its text is the same."""
        with self._lock:
            self.remove([text_id for text_id, text in texts.items() if self._texts.get(text_id) != text])
            self._texts.update(texts)

    def remove(self, ids: Iterable[str]) -> None:
        """Removes texts; unknown ids are ignored."""
        with self._lock:
            for text_id in ids:
                self._texts.pop(text_id, None)
                if self._vectors.pop(text_id, None) is not None:
                    self._matrix = None

    def missing(self) -> dict[str, str]:
        """Returns the texts that are not embedded, by id, in the order in which to embed them."""
        with self._lock:
            return {text_id: text for text_id, text in self._texts.items() if text_id not in self._vectors}

    def put_last(self, ids: Iterable[str]) -> None:
        """Moves these texts behind all others."""
        with self._lock:
            self._texts |= {text_id: self._texts.pop(text_id) for text_id in ids if text_id in self._texts}

    def set_dimension(self, dimension: int) -> bool:
        """Drops all vectors if they have another dimension; returns whether they had."""
        with self._lock:
            if dimension == self._dimension:
                return False
            self._dimension, self._vectors, self._matrix = dimension, {}, None
            return True

    def put(self, vectors: Mapping[str, tuple[str, bytes]]) -> None:
        """Takes vectors by id with the digest of their text; ignores those of other texts or dimensions."""
        with self._lock:
            for text_id, (digest, stored) in vectors.items():
                text, vector = self._texts.get(text_id), np.frombuffer(stored, dtype="<f4")
                self._dimension = self._dimension or vector.size
                if text is not None and digest == digest_of(text) and vector.size == self._dimension:
                    self._vectors[text_id], self._matrix = vector, None

    def cosines(self, vector: Vector) -> dict[str, float]:
        """Returns the cosine (0..1) of each embedded text with a vector of length 1; {} for another dimension."""
        with self._lock:
            if vector.size != self._dimension or not self._vectors:
                return {}
            if self._matrix is None:
                self._matrix = np.concatenate(list(self._vectors.values())).reshape(-1, self._dimension)
                self._vectors = dict(zip(self._vectors, self._matrix, strict=True))  # So that none is kept twice.
            ids, found = list(self._vectors), (self._matrix @ vector).astype(np.float64)
        # Some models give any two texts a cosine of 0.7, so the lowest is subtracted: less of it with few texts.
        others = found[found != 0]
        if others.size:
            found[found != 0] -= max(float(others.min()), 0.0) * others.size / (others.size + 2)
        # Rounded, so that equal vectors are equally similar in whichever row they are.
        return dict(zip(ids, np.clip(np.round(found, 6), 0.0, 1.0).tolist(), strict=True))

    def closeness(self, vector: Vector) -> dict[str, float]:
        """Returns how much nearer each embedded text is than the median one, 0..1; {} as ``cosines``, or for few texts.

        Models differ in the cosine that they give two texts which have nothing to do with each other.
        """
        cosines = self.cosines(vector)
        if len(cosines) < _FEWEST_TEXTS:
            return {}
        values = np.array(list(cosines.values()))
        middle = float(np.median(values))
        near = np.clip(2 * (values - middle) / (1 - middle or 1.0), 0.0, 1.0)
        return dict(zip(cosines, near.tolist(), strict=True))


def unit(vector: Sequence[float]) -> Vector:
    """Returns the vector with the length 1, zeros as they are; raises ``ValueError`` if it is no vector of numbers."""
    numbers = np.asarray(vector, dtype=np.float64)
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
        raise ValueError(f"expected a vector of finite numbers, saw an array of shape {numbers.shape}")
    return (numbers / (np.linalg.norm(numbers) or 1.0)).astype(np.float32)


def digest_of(text: str) -> str:
    """Returns what tells a text from others."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
