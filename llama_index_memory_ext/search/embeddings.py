"""Keeps the vectors of texts, and compares them with the vector of a question."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from typing import TYPE_CHECKING, Protocol, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray

from llama_index_memory_ext.background.jobs import BackOff
from llama_index_memory_ext.background.locks import Recent, lock_for
from llama_index_memory_ext.background.loop import spawn
from llama_index_memory_ext.language.tokens import terms_of
from llama_index_memory_ext.search.tfidf import Document, FactRanker, TfidfRanker, divided_by_best, values_of

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Hashable, Iterable, Mapping, Sequence


Vector: TypeAlias = NDArray[np.float32]
logger = logging.getLogger(__name__)

# Of fewer texts the median says nothing.
_FEWEST_TEXTS = 10
_CALL_SECONDS = 120.0
_CACHED_QUERIES = 1_000
# Characters at each end of a long text. Models refuse texts beyond their limit, 8,192 tokens at most, or cut the end.
_END = 2_000


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
                if text is not None and digest == _digest_of(text) and vector.size == self._dimension:
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


def unit(vector: Sequence[float]) -> Vector:
    """Return the vector with the length 1, zeros as they are; raise ``ValueError`` if it is no vector of numbers."""
    numbers = np.asarray(vector, dtype=np.float64)
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
        raise ValueError(f"expected a vector of finite numbers, saw an array of shape {numbers.shape}")
    return (numbers / (np.linalg.norm(numbers) or 1.0)).astype(np.float32)


def model_key(model: BaseEmbedding) -> str:
    """Return what tells the vectors of one model from those of another: its class, its name and its dimension."""
    dimensions = getattr(model, "dimensions", None)
    return f"{model.class_name()} {model.model_name}{f' {dimensions}' if dimensions else ''}"


def _digest_of(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _ends_of(text: str) -> str:
    return text if len(text) <= 2 * _END else f"{text[:_END]}\n{text[-_END:]}"


class VectorKeeper(Protocol):
    """Stores vectors for all processes: by document id, the digest of the embedded text and the vector as bytes."""

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Identifies the storage; rankers with the same value embed one after the other."""

    async def read(self, ids: Sequence[str]) -> Mapping[str, tuple[str, bytes]]:
        """Returns what is stored for these documents."""

    async def write(self, vectors: Mapping[str, tuple[str, bytes]]) -> bool:
        """Stores vectors, and replaces those of the same documents; returns False if no document is valid any more."""


class QueryVectors:
    """The vectors of the last queries by one model. All rankers with this model share them."""

    def __init__(self, model: BaseEmbedding, retry_seconds: float) -> None:
        self.model, self.back_off = model, BackOff(retry_seconds)
        # Of the last vector; 0 before the first.
        self.dimension = 0
        self._vectors: Recent[str, Vector] = Recent(_CACHED_QUERIES)

    def get(self, query: str) -> Vector | None:
        """Returns the vector of a query; None if it is not known."""
        return self._vectors.get(query)

    def is_new(self, query: str) -> bool:
        """Whether a query is to be embedded; the similarities to one of stop words or emoji alone are arbitrary."""
        return query not in self._vectors and bool(terms_of(query))

    async def embed(self, queries: Sequence[str]) -> None:
        """Embeds what is new of these queries; after a failure there is a pause."""
        # The facts and the messages are ranked for the same question at the same time.
        async with lock_for("queries", id(self.model), *queries):
            new = list(filter(self.is_new, queries))
            if not new or self.back_off.pausing:
                return
            try:
                vectors = await _embed(self.model, new, as_queries=True)
            except Exception as error:  # noqa: BLE001 - a model may fail in any way, and no question may suffer from it
                _pause(self.model, self.back_off, type(error).__name__)
                return
            self.back_off.succeeded()
            if vectors[0].size != self.dimension:
                self.dimension, self._vectors = vectors[0].size, Recent(_CACHED_QUERIES)
            for query, vector in zip(new, vectors, strict=True):
                self._vectors.put(query, vector)


# By the identity of the model, which cannot be that of another one as long as the value exists.
_queries: WeakValueDictionary[tuple[int, float], QueryVectors] = WeakValueDictionary()
_queries_guard = threading.Lock()


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
        with _queries_guard:
            shared = _queries.get((id(embed_model), retry_seconds)) or QueryVectors(embed_model, retry_seconds)
            self._queries = _queries[id(embed_model), retry_seconds] = shared
        # Another than that of the queries, which a document that the model refuses must not stop.
        self._back_off, self._failures = BackOff(retry_seconds), 0
        self._index = VectorIndex()
        self._tasks: dict[asyncio.Task[None], BackOff] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all documents are embedded."""
        return self._index.is_complete

    def add(self, documents: Iterable[Document]) -> None:
        """Adds documents; ``aprepare`` embeds those with a new text."""
        added = list(documents)
        self._lexical.add(added)
        self._index.add({document.id: _ends_of(document.text) for document in added})

    def remove(self, ids: Iterable[str]) -> None:
        """Removes documents; unknown ids are ignored."""
        removed = list(ids)
        self._index.remove(removed)
        self._lexical.remove(removed)

    def similarities(self, query: str) -> Mapping[str, float]:
        """Returns the similarity of each document, 0..1, by id.

        If the query is not embedded, words alone decide; so they do for a document that is not embedded yet.
        """
        lexical, vector = self._lexical.similarities(query), self._queries.get(query)
        cosines = {} if vector is None else self._index.cosines(vector)
        if not cosines:
            return lexical
        # Those that are embedded come first.
        ids = list(dict.fromkeys([*cosines, *lexical]))
        by_meaning, by_words = (divided_by_best(values_of(each, ids)) for each in (cosines, lexical))
        by_meaning[len(cosines) :] = by_words[len(cosines) :]
        total = (by_meaning + by_words) / 2
        return {name: value for name, value in zip(ids, total.tolist(), strict=True) if value}

    def closeness(self, query: str) -> Mapping[str, float]:
        """Return how much nearer each embedded document is to a query than the median one, 0..1, by id.

        {} if the query is not embedded, or for few documents. Models differ in the cosine that they give two texts
        which have nothing to do with each other.
        """
        vector = self._queries.get(query)
        cosines = {} if vector is None else self._index.cosines(vector)
        middle = float(np.median(list(cosines.values()))) if len(cosines) >= _FEWEST_TEXTS else 1.0
        scale = 2 / (1 - middle) if middle < 1 else 0.0
        return {name: min(max(scale * (one - middle), 0.0), 1.0) for name, one in cosines.items() if scale}

    async def aprepare(self, queries: Iterable[str] = ()) -> bool:
        """Embeds these queries and all documents; returns False, to try later, if a model or database fails."""
        if not await self.prepare_queries(queries):
            return False
        is_due = not (self.is_complete or self._back_off.pausing)
        if is_due and self._back_off not in map(self._tasks.get, asyncio.all_tasks()):
            await self._run(self.embed_documents(), self._back_off)
        return self.is_complete

    async def prepare_queries(self, queries: Iterable[str]) -> bool:
        """Embeds these queries, and no documents; returns False, to try later, if the model fails or is slow."""
        new, back_off = list(filter(self._queries.is_new, dict.fromkeys(queries))), self._queries.back_off
        if new and not back_off.pausing and not await self._run(self._queries.embed(new), back_off):
            _pause(self._model, back_off, f"slower than {self._wait_seconds:g} s")
        if self._queries.dimension:
            self._index.set_dimension(self._queries.dimension)
        return not any(map(self._queries.is_new, new))

    async def load(self) -> None:
        """Reads the vectors that are stored of the documents."""
        missing = list(self._index.missing())
        if self._keeper is not None and missing:
            stored = await self._keeper.read(missing)
            await asyncio.to_thread(self._index.put, stored)

    async def embed_documents(self) -> None:
        """Embeds what is stored nowhere, in batches, each of which is stored at once; raises what the model raises."""
        # Other rankers of the same documents in this process wait, and then find what is stored here.
        async with lock_for("embeddings", *(self._keeper.identity if self._keeper else (id(self),))):
            await self.load()
            missing = list(self._index.missing().items())
            # Smaller after each failure, so that a text which the model refuses is found.
            size = max(self._model.embed_batch_size >> self._failures, 1)
            for start in range(0, len(missing), size):
                texts = dict(missing[start : start + size])
                try:
                    vectors = await _embed(self._model, list(texts.values()), dimension=self._queries.dimension)
                except Exception:
                    # The model may refuse one of these texts: all others come first.
                    self._index.put_last(texts)
                    self._failures += 1
                    raise
                self._back_off.succeeded()
                self._failures = 0
                pairs = zip(texts.items(), vectors, strict=True)
                stored = {name: (_digest_of(text), vector.astype("<f4").tobytes()) for (name, text), vector in pairs}
                if self._keeper is not None and not await self._keeper.write(stored):
                    # Those of documents that are valid no more are not kept here either.
                    return
                self._index.set_dimension(vectors[0].size)
                self._index.put(stored)

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Cancels what runs in the background on this event loop; finished vectors are kept."""
        tasks = [task for task in asyncio.all_tasks() if task in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, work: Coroutine[None, None, None], back_off: BackOff) -> bool:
        """Works in the background, waits for it, and returns whether it ended in time."""
        task = spawn(work)
        self._tasks[task] = back_off
        task.add_done_callback(self._ended)
        await asyncio.wait({task}, timeout=self._wait_seconds)
        return task.done()

    def _ended(self, task: asyncio.Task[None]) -> None:
        back_off, error = self._tasks.pop(task), None if task.cancelled() else task.exception()
        if error is not None:
            _pause(self._model, back_off, type(error).__name__)


def _pause(model: BaseEmbedding, back_off: BackOff, reason: str) -> None:
    if not back_off.pausing:
        message = "%s did not embed (%s); words alone rank until it does, trying again in %g s."
        logger.warning(message, model.__class__.__name__, reason, back_off.failed())


async def _embed(
    model: BaseEmbedding, texts: Sequence[str], *, as_queries: bool = False, dimension: int = 0
) -> list[Vector]:
    """Returns the vector of each text, of length 1.

    Raises ``ValueError`` if a vector is missing or no vector, or if not all have the same ``dimension``, 0 for any.
    Models without asynchronous batches of their own are called in a thread, one call at a time: they compute inside
    their asynchronous methods too, and tokenizers of local models fail in two threads.
    """
    # Half of a surrogate pair is no text that could be sent.
    clipped = [_ends_of(text).encode("utf-8", "replace").decode() for text in texts]

    def compute() -> list[list[float]]:
        return [*map(model.get_query_embedding, clipped)] if as_queries else model.get_text_embedding_batch(clipped)

    if model.__class__._aget_text_embeddings is not BaseEmbedding._aget_text_embeddings:  # noqa: SLF001 - no public way
        queries = asyncio.gather(*map(model.aget_query_embedding, clipped)) if as_queries else None
        found = await asyncio.wait_for(queries or model.aget_text_embedding_batch(clipped), _CALL_SECONDS)
    else:
        async with lock_for("embedding model", id(model)):
            found = await asyncio.wait_for(asyncio.to_thread(compute), _CALL_SECONDS)
    vectors = [unit(vector) for _, vector in zip(texts, found, strict=True)]
    expected = dimension or vectors[0].size
    if {vector.size for vector in vectors} != {expected}:
        raise ValueError(f"expected vectors of {expected} numbers")
    return vectors
