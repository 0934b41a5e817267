"""Keeps up with the facts of each user in this process, and ranks them for a question."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from llama_index_memory_ext.facts.ranking import document_of, ordered, rank, shares_of
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.search.tfidf import TfidfRanker
from llama_index_memory_ext.store.facts import NOTHING_READ, KeptVectors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_memory_ext.background.locks import Recent
    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.ranking import RankedFact
    from llama_index_memory_ext.search.tfidf import FactRanker
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.facts import FactChanges
    from llama_index_memory_ext.text.tokens import CountedText


@dataclass
class UserFacts:
    """The facts of one user as this process knows them; the ranker, if there is one yet, holds the active ones."""

    ranker: FactRanker | None = None
    changes: FactChanges = NOTHING_READ
    facts: dict[str, Fact] = field(default_factory=dict)
    active: tuple[Fact, ...] = ()
    rendered: dict[str, CountedText] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def take(self, changes: FactChanges, make_ranker: Callable[[], FactRanker]) -> None:
        """Follow changes that were read. Threads may call it, and readers meanwhile see all of a change or nothing."""
        with self.guard:
            facts = {**(self.facts if changes.fresh else {}), **{fact.id: fact for fact in changes.facts}}
            active = tuple(fact for fact in facts.values() if not fact.retired)
            ranker = self.ranker or make_ranker()
            ranker.remove(self.facts.keys() - {fact.id for fact in active})
            ranker.add([document_of(fact) for fact in changes.facts if not fact.retired])
            self.ranker, self.facts, self.active, self.rendered = ranker, facts, active, {}


@dataclass(frozen=True)
class FactCache:
    """The facts of the users that were asked for last, from the store of a block, ranked by the block's settings."""

    store: MemoryStore
    users: Recent[str, UserFacts]
    ranker_factory: Callable[[], FactRanker]
    embed_model: BaseEmbedding | None
    similarity_weight: float
    confidence_weight: float

    async def read(self, namespace: str, now: tuple[int, int] | None = None) -> UserFacts:
        """The facts of a user; ``now`` is the epoch and the last change, if the caller knows them."""
        known = self.users.get(namespace) or UserFacts()
        if now is None or now != (known.changes.epoch, known.changes.change):
            changes = await self.store.facts.read(namespace, known.changes)
            if changes.facts or not changes.fresh:
                # Indexing many facts takes longer than the event loop should be blocked.
                await asyncio.to_thread(known.take, changes, partial(self._make_ranker, namespace))
            known.changes = changes
            self.users.put(namespace, known)
        return known

    async def prepare(self, known: UserFacts, queries: Sequence[str] = ()) -> bool:
        """Embed what is not embedded yet, where there is a model for it; False if facts are ranked without it now."""
        return await known.ranker.aprepare(queries) if isinstance(known.ranker, EmbeddingRanker) else True

    async def refresh(self, namespace: str) -> None:
        """Embed the facts of a user that were just stored, before the next question has to wait for it."""
        if self.embed_model is not None:
            await self.prepare(await self.read(namespace))

    def best_first(self, known: UserFacts, question: str, context: Sequence[str] = ()) -> list[Fact]:
        """The active facts in the order of ``ranked``, without their numbers, which take as long as all the rest."""
        shares = shares_of(self.similarity_weight, self.confidence_weight)
        order, *_ = ordered(known.active, question, context, known.ranker or TfidfRanker(), shares)
        return [known.active[i] for i in order]

    async def ranked(self, namespace: str, question: str, context: Sequence[str] = ()) -> list[RankedFact]:
        """The active facts of a user, best first, with their numbers."""
        known = await self.read(namespace)
        await self.prepare(known, [question, *context])
        weights = {"similarity_weight": self.similarity_weight, "confidence_weight": self.confidence_weight}
        return rank(known.active, question, context, ranker=known.ranker, **weights)

    async def stop(self) -> None:
        """Cancel what is being embedded in this event loop; the next question goes on with it."""
        for known in self.users.values():
            if isinstance(known.ranker, EmbeddingRanker):
                await known.ranker.stop()

    def _make_ranker(self, namespace: str) -> FactRanker:
        ranker = self.ranker_factory()
        if self.embed_model is None:
            return ranker
        keeper = KeptVectors(self.store.database, namespace, model_key(self.embed_model))
        embedding_ranker = EmbeddingRanker(self.embed_model, lexical=ranker, keeper=keeper)
        self.store.jobs.watch(embedding_ranker)
        return embedding_ranker
