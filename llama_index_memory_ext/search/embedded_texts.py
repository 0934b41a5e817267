"""Holds texts by id, with the vectors of those that were embedded, and knows which were not."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from llama_index_memory_ext.search.inverted_index import Similarities
from llama_index_memory_ext.search.vectors import VectorIndex, packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray


class EmbeddedTexts:
    """Texts of which some are embedded. Threads may call it at the same time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._index = VectorIndex()
        self._texts: dict[str, str] = {}
        self._missing: dict[str, str] = {}

    @property
    def complete(self) -> bool:
        """Whether all are embedded."""
        return not self._missing

    def add(self, texts: Iterable[tuple[str, str]]) -> None:
        """Take texts in; one that is known under its id keeps its vector."""
        with self._guard:
            for text_id, text in texts:
                if self._texts.get(text_id) != text:
                    self._texts[text_id] = self._missing[text_id] = text
                    self._index.add(text_id)

    def remove(self, ids: Iterable[str]) -> None:
        """Take texts out; unknown ids are passed over."""
        with self._guard:
            for text_id in ids:
                self._texts.pop(text_id, None)
                self._missing.pop(text_id, None)
                self._index.remove([text_id])

    def missing(self) -> dict[str, str]:
        """The texts that are not embedded, by id, in the order in which to embed them."""
        with self._guard:
            return dict(self._missing)

    def put_last(self, ids: Iterable[str]) -> None:
        """Let other texts be embedded before these."""
        with self._guard:
            for text_id in ids:
                if text_id in self._missing:
                    self._missing[text_id] = self._missing.pop(text_id)

    def expect(self, dimension: int) -> bool:
        """Begin anew if the vectors have another dimension, as the model gives others now; whether that is so."""
        with self._guard:
            return self._expect(dimension)

    def embed(self, texts: Mapping[str, str], vectors: Mapping[str, NDArray[np.float32]]) -> None:
        """Take the vectors of these texts, as the model has just given them."""
        with self._guard:
            for text_id, vector in vectors.items():
                self._expect(vector.size)
                if self._missing.get(text_id) == texts[text_id]:
                    self._settle(text_id, vector)

    def embed_kept(self, kept: Mapping[str, tuple[str, bytes]]) -> None:
        """Take vectors that were kept, as ``to_keep`` made them, of those texts that are still the same."""
        with self._guard:
            for text_id, (digest, stored) in kept.items():
                if text_id in self._missing and digest == _digest(self._missing[text_id]):
                    vector = unpacked(stored)
                    if not self._index.dimension:
                        self._expect(vector.size)
                    if vector.size == self._index.dimension:
                        self._settle(text_id, vector)

    def blend(self, vector: NDArray[np.float32], near: Mapping[str, float]) -> Mapping[str, float] | None:
        """Half the cosine with a vector and half of what is given, each divided by its best; None without vectors."""
        with self._guard:
            if vector.size != self._index.dimension:
                return None
            total, rows = self._index.cosines(vector), self._index.rows
            total /= total.max(initial=0.0) or 1.0
            best = max(near.values(), default=0.0) or 1.0
            for text_id, value in near.items():
                row = rows.get(text_id, -1)
                if row >= 0:
                    total[row] += value / best
            return Similarities(self._index.ids, rows, total / 2)

    def _expect(self, dimension: int) -> bool:
        if dimension == self._index.dimension:
            return False
        self._index.start(dimension)
        self._missing = dict(self._texts)
        return True

    def _settle(self, text_id: str, vector: NDArray[np.float32]) -> None:
        self._index.add(text_id, vector)
        del self._missing[text_id]


def to_keep(texts: Mapping[str, str], vectors: Mapping[str, NDArray[np.float32]]) -> dict[str, tuple[str, bytes]]:
    """The vectors as bytes, each with a digest of its text, for a ``VectorKeeper``."""
    return {text_id: (_digest(texts[text_id]), packed(vector)) for text_id, vector in vectors.items()}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
