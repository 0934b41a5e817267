"""Ranks facts by their meaning as an embedding model sees it, together with their words."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.search.embedded_texts import EmbeddedTexts, to_keep
from llama_index_memory_ext.search.embedding_calls import LONGEST_CALL_SECONDS, EmbeddingCalls
from llama_index_memory_ext.search.tfidf import Document, FactRanker, TfidfRanker
from llama_index_memory_ext.search.tokenization import words_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_memory_ext.search.embedding_calls import Vector
    from llama_index_memory_ext.search.vectors import VectorKeeper

_REMEMBERED_QUERIES = 256


class EmbeddingRanker:
    """A ``FactRanker`` by embeddings and by words: the sum of the two similarities, each divided by its best.

    ``similarities`` only looks up what ``aprepare`` has embedded, and asks no model. A query that was not prepared, or
    that the model failed on, is answered by ``lexical`` alone.

    Args:
        embed_model: Any embedding model of LlamaIndex.
        lexical: The ranker by words; default: a new ``TfidfRanker``.
        keeper: Where vectors outlive this object; None: nowhere.
        wait_seconds: The longest time for which ``aprepare`` waits for queries, and for documents; what takes longer
            goes on beside.
        retry_seconds: The pause after a failure of the model; each further one makes it twice as long.
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
        # Two, so that a document which the model refuses does not keep questions from being embedded.
        self._asking = EmbeddingCalls(embed_model, retry_seconds)
        self._filling = EmbeddingCalls(embed_model, retry_seconds)
        self._lexical: FactRanker = TfidfRanker() if lexical is None else lexical
        self._keeper = keeper
        self._wait_seconds = wait_seconds
        self._texts = EmbeddedTexts()
        self._queries: OrderedDict[str, Vector] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._embedding: asyncio.Task[None] | None = None

    def add(self, documents: Iterable[Document]) -> None:
        """Take documents in; one is embedded by the next ``aprepare``, unless its text is that of before."""
        new = list(documents)
        self._lexical.add(new)
        self._texts.add((document.id, document.text) for document in new)

    def remove(self, ids: Iterable[str]) -> None:
        """Take documents out; unknown ids are passed over."""
        gone = list(ids)
        self._texts.remove(gone)
        self._lexical.remove(gone)

    def similarities(self, query: str) -> Mapping[str, float]:
        """How near each document is, 0..1; by words alone if the query was not prepared."""
        near = self._lexical.similarities(query)
        vector = self._queries.get(query)
        blended = None if vector is None else self._texts.blend(vector, near)
        return near if blended is None else blended

    async def aprepare(self, queries: Iterable[str] = ()) -> bool:
        """Embed these queries and the documents that were not embedded yet. Never fails for a model or a database.

        Returns:
            Whether all is embedded. If not, the model has failed or is slow: ask again later.
        """
        new = [query for query in dict.fromkeys(queries) if self._is_new(query)]
        if new and not await self._ask(new):
            return False
        if not (self._texts.complete or self._filling.pausing or self._is_embedding()):
            self._embedding = self._start(self._embed_documents(), self._filling)
            await asyncio.wait({self._embedding}, timeout=self._wait_seconds)
        return self._texts.complete

    async def stop(self) -> None:
        """End what is still being embedded on this event loop; what was embedded is kept."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._tasks if task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _is_new(self, query: str) -> bool:
        # Stop words and emoji alone are near to anything or nothing, as a model pleases.
        return query not in self._queries and any(True for _ in words_of(query, str))

    def _is_embedding(self) -> bool:
        task = self._embedding
        return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()

    async def _ask(self, queries: Sequence[str]) -> bool:
        if self._asking.pausing:
            return False
        asking = self._start(self._embed_queries(queries), self._asking)
        done, _ = await asyncio.wait({asking}, timeout=self._wait_seconds)
        if not done:
            self._asking.failed(f"slower than {self._wait_seconds:g} s")
        return not any(map(self._is_new, queries))

    def _start(self, work: Coroutine[Any, Any, None], calls: EmbeddingCalls) -> asyncio.Task[None]:
        task = asyncio.ensure_future(_try(work, calls))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _embed_queries(self, queries: Sequence[str]) -> None:
        vectors = await self._asking.queries(queries)
        self._asking.worked()
        if self._texts.expect(vectors[0].size):
            self._queries.clear()
        self._queries.update(zip(queries, vectors, strict=True))
        while len(self._queries) > _REMEMBERED_QUERIES:
            self._queries.popitem(last=False)

    async def _embed_documents(self) -> None:
        """Find the vectors that are kept, and ask for the others in batches, each of which is kept at once."""
        lock = lock_for("embeddings", *(self._keeper.door if self._keeper else (id(self),)))
        # Whoever else embeds the same documents in this process keeps what is then found here.
        await lock.acquire(LONGEST_CALL_SECONDS)
        try:
            if self._keeper is not None:
                kept = await self._keeper.read(list(self._texts.missing()))
                await asyncio.to_thread(self._texts.embed_kept, kept)
            missing, size = list(self._texts.missing().items()), self._filling.batch_size
            for start in range(0, len(missing), size):
                await self._embed_batch(dict(missing[start : start + size]))
        finally:
            lock.release()

    async def _embed_batch(self, texts: Mapping[str, str]) -> None:
        try:
            vectors = dict(zip(texts, await self._filling.texts(list(texts.values())), strict=True))
        except Exception:
            # It may be one of these that the model refuses.
            self._texts.put_last(texts)
            raise
        self._filling.worked()
        if self._keeper is not None:
            await self._keeper.write(to_keep(texts, vectors))
        self._texts.embed(texts, vectors)


async def _try(work: Coroutine[Any, Any, None], calls: EmbeddingCalls) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - models and databases fail in any way, and no answer may suffer
        calls.failed(type(error).__name__)
