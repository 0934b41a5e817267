"""Keeps up with the facts of each user in this process, and ranks them for a question."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from llama_index_memory_ext.facts.ranking import best_first, document_of, rank, scores_of, similarities_of
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.store.facts import NOTHING_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.ranking import RankedFact
    from llama_index_memory_ext.search.tfidf import FactRanker
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.facts import FactChanges
    from llama_index_memory_ext.text.tokens import Recent


class CacheSettings(Protocol):
    """What the cache reads of a ``RelevantFactsBlock``'s fields."""

    similarity_weight: float
    confidence_weight: float
    embed_model: BaseEmbedding | None
    ranker_factory: Callable[[], FactRanker]


@dataclass
class UserFacts:
    """The facts of one user as this process knows them; the ranker, if there is one yet, holds the active ones."""

    ranker: FactRanker | None = None
    changes: FactChanges = NOTHING_READ
    facts: dict[str, Fact] = field(default_factory=dict)
    active: tuple[Fact, ...] = ()
    rendered: dict[str, tuple[str, int]] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def take(self, changes: FactChanges, make_ranker: Callable[[], FactRanker]) -> None:
        """Follow changes that were read. Threads may call it, and readers meanwhile see all of a change or nothing."""
        with self.guard:
            ranker = self.ranker or make_ranker()
            facts = dict(self.facts) if changes.fresh else {}
            ranker.remove([fact_id for fact_id in self.facts if fact_id not in facts])
            ranker.add([document_of(fact) for fact in changes.facts if not fact.retired])
            ranker.remove([fact.id for fact in changes.facts if fact.retired])
            facts.update((fact.id, fact) for fact in changes.facts)
            self.ranker, self.facts, self.rendered = ranker, facts, {}
            self.active = tuple(fact for fact in facts.values() if not fact.retired)


@dataclass(frozen=True)
class FactCache:
    """The facts of the users that were asked for last, from the store of a block."""

    store: MemoryStore
    settings: CacheSettings
    users: Recent[str, UserFacts]

    async def read(self, namespace: str, now: tuple[int, int] | None = None) -> UserFacts:
        """The facts of a user; ``now`` is the epoch and the last change, if the caller knows them."""
        known = self.users.get(namespace)
        if known is not None and now == (known.changes.epoch, known.changes.change):
            return known
        changes = await self.store.facts.read(namespace, known.changes if known else NOTHING_READ)
        known = known or UserFacts()
        if changes.facts or not changes.fresh:
            # Indexing many facts takes longer than the event loop should be blocked.
            await asyncio.to_thread(known.take, changes, partial(self._make_ranker, namespace))
        known.changes = changes
        self.users.put(namespace, known)
        return known

    async def prepare(self, known: UserFacts, queries: Sequence[str] = ()) -> bool:
        """Embed what is not embedded yet, where there is a model for it; False if facts are ranked without it now."""
        return await known.ranker.aprepare(queries) if isinstance(known.ranker, EmbeddingRanker) else True

    def best_first(self, known: UserFacts, question: str, context: Sequence[str]) -> list[Fact]:
        """The active facts in the order of ``ranked``, without their numbers, which take as long as all the rest."""
        facts = known.active
        ids = [fact.id for fact in facts]
        similarities = similarities_of(ids, question, context, known.ranker) if known.ranker else [0.0] * len(ids)
        scores = scores_of(facts, similarities, self.settings.similarity_weight, self.settings.confidence_weight)
        return [facts[i] for i in best_first(facts, scores)]

    def ranked(self, known: UserFacts, question: str, context: Sequence[str] = ()) -> list[RankedFact]:
        """The active facts, best first, with their numbers."""
        return rank(
            known.active,
            question,
            context,
            similarity_weight=self.settings.similarity_weight,
            confidence_weight=self.settings.confidence_weight,
            ranker=known.ranker,
        )

    async def stop(self) -> None:
        """Cancel what is being embedded in this event loop; the next question goes on with it."""
        for known in self.users.values():
            if isinstance(known.ranker, EmbeddingRanker):
                await known.ranker.stop()

    def _make_ranker(self, namespace: str) -> FactRanker:
        settings = self.settings
        ranker = settings.ranker_factory()
        if settings.embed_model is None:
            return ranker
        keeper = self.store.facts.vectors(namespace, model_key(settings.embed_model))
        embedding_ranker = EmbeddingRanker(settings.embed_model, lexical=ranker, keeper=keeper)
        self.store.jobs.watch(embedding_ranker)
        return embedding_ranker
