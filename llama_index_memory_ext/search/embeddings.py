"""Ranks documents by embeddings and by words: makes, stores and compares their vectors."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING, Protocol, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray

from llama_index_memory_ext.background.failures import BackOff
from llama_index_memory_ext.background.locks import lock_for, thread_lock
from llama_index_memory_ext.background.loop import spawn
from llama_index_memory_ext.background.recent import Recent
from llama_index_memory_ext.events import MemoryFailure, is_handled
from llama_index_memory_ext.search.tfidf import (
    Document,
    FactRanker,
    Similarities,
    TfidfRanker,
    divided_by_best,
    values_of,
)
from llama_index_memory_ext.words import ends_of
from llama_index_memory_ext.words.asking import is_statement
from llama_index_memory_ext.words.tokens import terms_in

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Collection,
        Coroutine,
        Hashable,
        Iterable,
        Mapping,
        Sequence,
    )


Vector: TypeAlias = NDArray[np.float32]
logger = logging.getLogger(__name__)

_CALL_SECONDS = 120.0
_CACHED_QUERIES = 1_000
# The characters of a long text that are embedded at each end. Models refuse or cut a
# text beyond their limit, which is at most 8,192 tokens.
_END_CHARACTERS = 2_000


def model_key(model: BaseEmbedding) -> str:
    """Return the class, the name and the dimension of a model. Models with the same key make equal vectors."""
    dimensions = getattr(model, "dimensions", None)
    key = f"{model.class_name()} {model.model_name}"
    if dimensions:
        return f"{key} {dimensions}"
    return key


def _digest_of(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


class VectorKeeper(Protocol):
    """Stores the vectors of documents for all processes.

    For each document id, it stores the digest of the embedded text and the vector as
    bytes.
    """

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Identify the storage; rankers with the same value embed one after the other."""

    @property
    def owner(self) -> str:
        """The user or the session whose documents these are."""

    async def read(self, ids: Sequence[str]) -> Mapping[str, tuple[str, bytes]]:
        """Return the digests and vectors that are stored for these documents."""

    async def write(self, vectors: Mapping[str, tuple[str, bytes]]) -> bool:
        """Store vectors in place of earlier ones; return False if no document is valid any more."""


class QueryVectors:
    """The vectors of the last queries by one model, which all rankers with this model share."""

    def __init__(self, model: BaseEmbedding, retry_seconds: float) -> None:
        self.model = model
        self.back_off = BackOff(retry_seconds)
        # Of the last vector; 0 before the first.
        self.dimension = 0
        self.vectors: Recent[str, Vector] = Recent(_CACHED_QUERIES)

    def new_among(self, queries: Iterable[str]) -> list[str]:
        """Return the queries without a vector. A query of stop words or emoji alone needs none."""
        return [
            query
            for query in dict.fromkeys(queries)
            if query not in self.vectors and terms_in(query)
        ]

    async def embed(self, queries: Sequence[str]) -> None:
        """Embed the new queries among these; pause after a failure."""
        # The facts and the messages are ranked for the same question at the same time.
        async with lock_for("queries", id(self.model), *queries):
            new = self.new_among(queries)
            if not new or self.back_off.pausing:
                return
            try:
                vectors = await _embed(self.model, new, as_queries=True)
            except Exception as error:  # noqa: BLE001 - a model may raise any error, and words alone answer the question then
                _pause(self.model, self.back_off, type(error).__name__)
                return
            self.back_off.succeeded()
            if vectors[0].size != self.dimension:
                self.dimension = vectors[0].size
                self.vectors = Recent(_CACHED_QUERIES)
            for query, vector in zip(new, vectors, strict=True):
                self.vectors.put(query, vector)


# The key has the ``id`` of the model. The value refers to the model, so that Python does
# not reuse this id for another model.
_queries: WeakValueDictionary[tuple[int, float], QueryVectors] = WeakValueDictionary()


class EmbeddingRanker:
    """A ``FactRanker`` that adds up the similarities by embeddings and by words, each divided by its best.

    Args:
        embed_model: Any embedding model of LlamaIndex.
        lexical: The ranker by words; default: a new ``TfidfRanker``.
        keeper: Stores the vectors beyond the life of this object; None: no vector is
            stored.
        wait_seconds: How long ``aprepare`` waits for the embedding of queries, and then
            of documents. The embedding continues in the background.
        retry_seconds: The pause after a failure of the model; it doubles with each
            further failure.
        statement_weight: The weight of the similarity by words if the query is a
            statement; the weight is 1 for any other query.
    """

    def __init__(
        self,
        embed_model: BaseEmbedding,
        *,
        lexical: FactRanker | None = None,
        keeper: VectorKeeper | None = None,
        wait_seconds: float = 3.0,
        retry_seconds: float = 10.0,
        statement_weight: float = 1.0,
    ) -> None:
        self._model = embed_model
        self._keeper = keeper
        self._wait_seconds = wait_seconds
        self._statement_weight = statement_weight
        self._lexical = TfidfRanker() if lexical is None else lexical
        shared = QueryVectors(embed_model, retry_seconds)
        self._queries = _queries.setdefault((id(embed_model), retry_seconds), shared)
        # A document that the model refuses must not stop the queries, so they have a
        # back-off that is separate.
        self._back_off = BackOff(retry_seconds)
        self._failures = 0
        self._tasks: dict[asyncio.Task[None], BackOff] = {}
        self._lock = thread_lock()
        self._texts: dict[str, str] = {}
        self._vectors: dict[str, Vector] = {}
        self._dimension = 0
        # The vectors in their order; None after a change.
        self._matrix: Vector | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all documents are embedded."""
        with self._lock:
            return len(self._vectors) == len(self._texts)

    def add(self, documents: Iterable[Document]) -> None:
        """Add documents; ``aprepare`` embeds the documents with a new text."""
        added = list(documents)
        self._lexical.add(added)
        with self._lock:
            for document in added:
                text = ends_of(document.text, _END_CHARACTERS)
                if (
                    self._texts.get(document.id) != text
                    and self._vectors.pop(document.id, None) is not None
                ):
                    self._matrix = None
                self._texts[document.id] = text

    def remove(self, ids: Iterable[str]) -> None:
        """Remove documents; unknown ids are ignored."""
        removed = list(ids)
        with self._lock:
            for name in removed:
                self._texts.pop(name, None)
                if self._vectors.pop(name, None) is not None:
                    self._matrix = None
        self._lexical.remove(removed)

    def similarities(self, query: str) -> Mapping[str, float]:
        """Return the similarity of each document, 0..1, by id.

        Words alone decide for a query or a document that is not embedded.
        """
        lexical = self._lexical.similarities(query)
        cosines = self._cosines(query)
        if not cosines:
            return lexical
        ids = tuple(dict.fromkeys([*cosines, *lexical]))
        by_meaning = divided_by_best(values_of(cosines, ids))
        by_words = divided_by_best(values_of(lexical, ids))
        # The embedded documents come first.
        by_meaning[len(cosines) :] = by_words[len(cosines) :]
        weight = self._statement_weight if is_statement(query) else 1.0
        total = (by_meaning + weight * by_words) / (1 + weight)
        return Similarities(ids, total)

    def _cosines(self, query: str) -> dict[str, float]:
        """Return the cosine of each embedded document with a query, scaled to 0..1; {} without a query vector."""
        vector = self._queries.vectors.get(query)
        with self._lock:
            if vector is None or vector.size != self._dimension or not self._vectors:
                return {}
            if self._matrix is None:
                vectors = np.concatenate(list(self._vectors.values()))
                self._matrix = vectors.reshape(-1, self._dimension)
                # Rows of the matrix replace the vectors, so that memory holds each once.
                self._vectors = dict(zip(self._vectors, self._matrix, strict=True))
            ids = list(self._vectors)
            cosines = (self._matrix @ vector).astype(np.float64)
        # Some models give any two texts a cosine of 0.7, so the lowest cosine is
        # subtracted, in part if there are few texts.
        is_set = cosines != 0
        count = np.count_nonzero(is_set)
        if count:
            lowest = max(float(cosines[is_set].min()), 0.0)
            cosines[is_set] -= lowest * count / (count + 2)
        # Rounded, so that equal vectors are equally similar in any row.
        rounded = np.clip(np.round(cosines, 6), 0.0, 1.0)
        return dict(zip(ids, rounded.tolist(), strict=True))

    async def aprepare(self, queries: Iterable[str] = ()) -> bool:
        """Embed these queries and all documents; return False, to try later, if a model or database fails."""
        if not await self.prepare_queries(queries):
            return False
        is_due = not (self.is_complete or self._back_off.pausing)
        # By identity: the back-off of queries has equal numbers until one of both fails.
        is_running = any(
            self._tasks.get(task) is self._back_off for task in asyncio.all_tasks()
        )
        if is_due and not is_running:
            await self._run(self.embed_documents(), self._back_off)
        return self.is_complete

    async def prepare_queries(self, queries: Iterable[str]) -> bool:
        """Embed these queries, and no documents; return False, to try later, if the model fails or is slow."""
        new = self._queries.new_among(queries)
        back_off = self._queries.back_off
        if (
            new
            and not back_off.pausing
            and not await self._run(self._queries.embed(new), back_off)
        ):
            _pause(self._model, back_off, f"slower than {self._wait_seconds:g} s")
        self._use_dimension(self._queries.dimension)
        return not self._queries.new_among(new)

    async def load(self) -> None:
        """Read the stored vectors of the documents."""
        missing = list(self._missing())
        if self._keeper is not None and missing:
            stored = await self._keeper.read(missing)
            await asyncio.to_thread(self._add_vectors, stored)

    async def embed_documents(self) -> None:
        """Embed the documents without a stored vector, and store each batch at once; raise errors of the model."""
        # Other rankers of the same documents in this process wait, and then read these
        # vectors.
        identity = self._keeper.identity if self._keeper else (id(self),)
        async with lock_for("embeddings", *identity):
            await self.load()
            missing = list(self._missing().items())
            # Batches shrink with each failure until a text that the model refuses is
            # alone.
            size = max(self._model.embed_batch_size >> self._failures, 1)
            for start in range(0, len(missing), size):
                texts = dict(missing[start : start + size])
                try:
                    vectors = await _embed(
                        self._model,
                        list(texts.values()),
                        dimension=self._queries.dimension,
                    )
                except Exception:
                    self._failures += 1
                    self._move_to_end(texts)
                    raise
                self._back_off.succeeded()
                self._failures = 0
                pairs = zip(texts.items(), vectors, strict=True)
                stored = {
                    name: (_digest_of(text), vector.astype("<f4").tobytes())
                    for (name, text), vector in pairs
                }
                if self._keeper is not None and not await self._keeper.write(stored):
                    # The documents were deleted, so their vectors go, too.
                    return
                self._use_dimension(vectors[0].size)
                self._add_vectors(stored)

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Cancel the background tasks of this event loop; finished vectors stay.

        With ``names``, nothing is cancelled if the documents belong to another user or
        session.
        """
        if (
            names is not None
            and self._keeper is not None
            and self._keeper.owner not in names
        ):
            return
        tasks = [task for task in asyncio.all_tasks() if task in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _move_to_end(self, names: Iterable[str]) -> None:
        """Embed these documents last, because the model may refuse one of them."""
        with self._lock:
            for name in names:
                if name in self._texts:
                    self._texts[name] = self._texts.pop(name)

    def _missing(self) -> dict[str, str]:
        """Return the texts that are not embedded, by id, in the order in which to embed them."""
        with self._lock:
            return {
                name: text
                for name, text in self._texts.items()
                if name not in self._vectors
            }

    def _use_dimension(self, dimension: int) -> None:
        """Drop all vectors of another dimension; 0 stands for any dimension."""
        with self._lock:
            if dimension not in (0, self._dimension):
                self._dimension = dimension
                self._vectors = {}
                self._matrix = None

    def _add_vectors(self, stored: Mapping[str, tuple[str, bytes]]) -> None:
        """Add stored vectors, if their text and their dimension are current."""
        with self._lock:
            for name, (digest, packed) in stored.items():
                text = self._texts.get(name)
                vector = np.frombuffer(packed, dtype="<f4")
                self._dimension = self._dimension or vector.size
                if (
                    text is not None
                    and digest == _digest_of(text)
                    and vector.size == self._dimension
                ):
                    self._vectors[name] = vector
                    self._matrix = None

    async def _run(self, work: Coroutine[None, None, None], back_off: BackOff) -> bool:
        """Start work in the background, wait for it, and return whether it ended in time."""

        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            error = None if task.cancelled() else task.exception()
            if error is not None:
                _pause(self._model, back_off, type(error).__name__)

        task = spawn(work)
        self._tasks[task] = back_off
        task.add_done_callback(ended)
        await asyncio.wait({task}, timeout=self._wait_seconds)
        return task.done()


def _pause(model: BaseEmbedding, back_off: BackOff, reason: str) -> None:
    if back_off.pausing:
        return
    failed = f"{model.__class__.__name__} did not embed"
    outcome = f"words alone rank until it does, trying again in {back_off.failed():g} s"
    if not is_handled(MemoryFailure(failed, reason, outcome)):
        logger.warning("%s (%s); %s.", failed, reason, outcome)


async def _embed(
    model: BaseEmbedding,
    texts: Sequence[str],
    *,
    as_queries: bool = False,
    dimension: int = 0,
) -> list[Vector]:
    """Return the vector of each text, of length 1.

    A ValueError if a vector is missing, has no finite number, or has another
    ``dimension``; 0 stands for any dimension. A model without asynchronous batches is
    called in a thread, one call at a time. Such models compute inside their
    asynchronous methods, too, and tokenizers of local models fail in two threads.
    """
    # No server takes half of a surrogate pair.
    clipped = []
    for text in texts:
        ends = ends_of(text, _END_CHARACTERS)
        clipped.append(ends.encode("utf-8", "replace").decode())

    def compute() -> list[list[float]]:
        if as_queries:
            return [*map(model.get_query_embedding, clipped)]
        return model.get_text_embedding_batch(clipped)

    if model.__class__._aget_text_embeddings is not BaseEmbedding._aget_text_embeddings:  # noqa: SLF001 - no public way
        if as_queries:
            call: Awaitable[list[list[float]]] = asyncio.gather(
                *map(model.aget_query_embedding, clipped)
            )
        else:
            call = model.aget_text_embedding_batch(clipped)
        rows = await asyncio.wait_for(call, _CALL_SECONDS)
    else:
        async with lock_for("embedding model", id(model)):
            rows = await asyncio.wait_for(asyncio.to_thread(compute), _CALL_SECONDS)
    vectors = np.array(rows, dtype=np.float64)
    dimension = dimension or max(vectors.shape[-1], 1)
    shape = (len(texts), dimension)
    if vectors.shape != shape or not np.isfinite(vectors).all():
        raise ValueError(
            f"expected {len(texts)} vectors of {dimension} finite numbers, got {vectors.shape}"
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return list((vectors / np.where(norms, norms, 1.0)).astype(np.float32))
