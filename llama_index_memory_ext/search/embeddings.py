"""Ranks facts by embeddings together with their words."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray

from llama_index_memory_ext.background.jobs import BackOff
from llama_index_memory_ext.background.locks import Recent, lock_for
from llama_index_memory_ext.search.tfidf import Document, FactRanker, TfidfRanker, divided_by_best, values_of
from llama_index_memory_ext.search.tokenization import terms_of

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Hashable, Iterable, Mapping, Sequence

logger = logging.getLogger(__name__)
Vector: TypeAlias = NDArray[np.float32]

_CALL_SECONDS = 120.0
_CACHED_QUERIES = 256
# Characters at each end of a long text. Models refuse texts beyond their limit, 8,192 tokens at most, or cut the end.
_END = 2_000


class VectorKeeper(Protocol):
    """Stores vectors for all processes: by document id, the digest of the embedded text and the vector as bytes."""

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Identifies the storage; rankers with the same value embed one after the other."""

    async def read(self, ids: Sequence[str]) -> Mapping[str, tuple[str, bytes]]:
        """Returns what is stored for these documents."""

    async def write(self, vectors: Mapping[str, tuple[str, bytes]]) -> None:
        """Stores vectors, and replaces those of the same documents."""


class EmbeddingRanker:
    """A ``FactRanker`` that adds up the similarities by embeddings and by words, each divided by its best.

    Args:
        embed_model: Any embedding model of LlamaIndex.
        lexical: The ranker by words; default: a new ``TfidfRanker``.
        keeper: Stores the vectors beyond the life of this object; None: they are not stored.
        wait_seconds: How long ``aprepare`` waits for queries, and for documents; the rest is done in the background.
        retry_seconds: The pause after a failure of the model; it doubles with each further failure.
    """

    def __init__(
        self,
        embed_model: BaseEmbedding,
        *,
        lexical: FactRanker | None = None,
        keeper: VectorKeeper | None = None,
        wait_seconds: float = 3.0,
        retry_seconds: float = 10.0,
    ) -> None:
        self._model = embed_model
        self._lexical: FactRanker = TfidfRanker() if lexical is None else lexical
        self._keeper = keeper
        self._wait_seconds = wait_seconds
        # Two, so that a document which the model refuses does not stop queries from being embedded.
        self._query_back_off, self._document_back_off = BackOff(retry_seconds), BackOff(retry_seconds)
        self._index = VectorIndex()
        self._queries: Recent[str, Vector] = Recent(_CACHED_QUERIES)
        self._tasks: dict[asyncio.Task[None], BackOff] = {}

    def add(self, documents: Iterable[Document]) -> None:
        """Adds documents; ``aprepare`` embeds those with a new text."""
        added = list(documents)
        self._lexical.add(added)
        self._index.add({document.id: document.text for document in added})

    def remove(self, ids: Iterable[str]) -> None:
        """Removes documents; unknown ids are ignored."""
        removed = list(ids)
        self._index.remove(removed)
        self._lexical.remove(removed)

    def similarities(self, query: str) -> Mapping[str, float]:
        """Returns the similarity of each document, 0..1, by id; by words alone if the query is not prepared."""
        lexical, vector = self._lexical.similarities(query), self._queries.get(query)
        cosines = {} if vector is None else self._index.cosines(vector)
        if not cosines:
            return lexical
        ids = list(dict.fromkeys([*cosines, *lexical]))
        total = (divided_by_best(values_of(cosines, ids)) + divided_by_best(values_of(lexical, ids))) / 2
        return {name: value for name, value in zip(ids, total.tolist(), strict=True) if value}

    async def aprepare(self, queries: Iterable[str] = ()) -> bool:
        """Embeds these queries and all documents; returns False, to try later, if a model or database fails."""
        new = [query for query in dict.fromkeys(queries) if self._is_new(query)]
        of_queries, of_documents = self._query_back_off, self._document_back_off
        if new and not of_queries.pausing and not await self._run(self._embed_queries(new), of_queries):
            self._pause(of_queries, f"slower than {self._wait_seconds:g} s")
        if any(map(self._is_new, new)):
            return False
        is_due = not (self._index.is_complete or of_documents.pausing)
        if is_due and of_documents not in map(self._tasks.get, asyncio.all_tasks()):
            await self._run(self._embed_documents(), of_documents)
        return self._index.is_complete

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Cancels what runs in the background on this event loop; finished vectors are kept."""
        tasks = [task for task in asyncio.all_tasks() if task in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_new(self, query: str) -> bool:
        # The similarities to a query without terms (only stop words or emoji) are arbitrary.
        return query not in self._queries and bool(terms_of(query))

    async def _run(self, work: Coroutine[None, None, None], back_off: BackOff) -> bool:
        """Works in the background, waits for it, and returns whether it ended in time."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = back_off
        task.add_done_callback(self._ended)
        await asyncio.wait({task}, timeout=self._wait_seconds)
        return task.done()

    def _ended(self, task: asyncio.Task[None]) -> None:
        back_off, error = self._tasks.pop(task), None if task.cancelled() else task.exception()
        if error is not None:
            self._pause(back_off, type(error).__name__)

    def _pause(self, back_off: BackOff, reason: str) -> None:
        if not back_off.pausing:
            message = "%s did not embed (%s); facts are ranked by their words, trying again in %g s."
            logger.warning(message, type(self._model).__name__, reason, back_off.failed())

    async def _embed_queries(self, queries: Sequence[str]) -> None:
        vectors = await _embed(self._model, queries, as_queries=True)
        self._query_back_off.succeeded()
        if self._index.set_dimension(vectors[0].size):
            self._queries = Recent(_CACHED_QUERIES)
        for query, vector in zip(queries, vectors, strict=True):
            self._queries.put(query, vector)

    async def _embed_documents(self) -> None:
        """Reads the stored vectors, and embeds the other texts in batches, each of which is stored at once."""
        # Other rankers of the same documents in this process wait, and then find what is stored here.
        async with lock_for("embeddings", *(self._keeper.identity if self._keeper else (id(self),))):
            if self._keeper is not None:
                stored = await self._keeper.read(list(self._index.missing()))
                await asyncio.to_thread(self._index.put, stored)
            missing = list(self._index.missing().items())
            # Smaller after each failure, so that a text which the model refuses is found.
            size = max(self._model.embed_batch_size >> self._document_back_off.failures, 1)
            for start in range(0, len(missing), size):
                await self._embed_batch(dict(missing[start : start + size]))

    async def _embed_batch(self, texts: Mapping[str, str]) -> None:
        try:
            vectors = await _embed(self._model, list(texts.values()), as_queries=False)
        except Exception:
            # The model may refuse one of these texts: all others come first.
            self._index.put_last(texts)
            raise
        self._document_back_off.succeeded()
        pairs = zip(texts.items(), vectors, strict=True)
        stored = {text_id: (_digest(text), vector.astype("<f4").tobytes()) for (text_id, text), vector in pairs}
        if self._keeper is not None:
            await self._keeper.write(stored)
        self._index.set_dimension(vectors[0].size)
        self._index.put(stored)


async def _embed(model: BaseEmbedding, texts: Sequence[str], *, as_queries: bool) -> list[Vector]:
    """Returns the vector of each text, of length 1; raises ``ValueError`` if a vector is missing or no vector.

    Models without asynchronous batches of their own are called in a thread, one call at a time: they compute inside
    their asynchronous methods too, and tokenizers of local models fail in two threads.
    """
    clipped = [text if len(text) <= 2 * _END else f"{text[:_END]}\n{text[-_END:]}" for text in texts]

    def compute() -> list[list[float]]:
        return [*map(model.get_query_embedding, clipped)] if as_queries else model.get_text_embedding_batch(clipped)

    if type(model)._aget_text_embeddings is not BaseEmbedding._aget_text_embeddings:  # noqa: SLF001 - no public way
        queries = asyncio.gather(*map(model.aget_query_embedding, clipped)) if as_queries else None
        found = await asyncio.wait_for(queries or model.aget_text_embedding_batch(clipped), _CALL_SECONDS)
    else:
        async with lock_for("embedding model", id(model)):
            found = await asyncio.wait_for(asyncio.to_thread(compute), _CALL_SECONDS)
    return [unit(vector) for _, vector in zip(texts, found, strict=True)]


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
                if text is not None and digest == _digest(text) and vector.size == self._dimension:
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


def model_key(model: BaseEmbedding) -> str:
    """Returns what tells the vectors of one model from those of another: its class, its name and its dimension."""
    dimensions = getattr(model, "dimensions", None)
    return f"{model.class_name()} {model.model_name}{f' {dimensions}' if dimensions else ''}"


def unit(vector: Sequence[float]) -> Vector:
    """Returns the vector with the length 1, zeros as they are; raises ``ValueError`` if it is no vector of numbers."""
    numbers = np.asarray(vector, dtype=np.float64)
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
        raise ValueError(f"expected a vector of finite numbers, saw an array of shape {numbers.shape}")
    return (numbers / (np.linalg.norm(numbers) or 1.0)).astype(np.float32)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
