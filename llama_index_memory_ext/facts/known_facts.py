"""Keeps up with what is known about each user, and ranks it for a question."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_index.core.base.embeddings.base import BaseEmbedding  # noqa: TC002 - pydantic reads it too
from llama_index.core.bridge.pydantic import Field, PrivateAttr

from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.facts.ranking import (
    CONFIDENCE_WEIGHT,
    SIMILARITY_WEIGHT,
    RankedFact,
    best_first,
    document_of,
    rank,
    scores_of,
    similarities_of,
)
from llama_index_memory_ext.log_block import DEFAULT_SESSION_ID, LogBlock, Remembered
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.search.tfidf import FactRanker, TfidfRanker
from llama_index_memory_ext.store.fact_table import NOTHING_READ, FactChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index_memory_ext.fact import Fact


@dataclass
class Known:
    """What this process remembers of a namespace: its facts by id, and the index of those that hold, if any do."""

    ranker: FactRanker | None = None
    changes: FactChanges = NOTHING_READ
    facts: dict[str, Fact] = field(default_factory=dict)
    active: tuple[Fact, ...] = ()
    rendered: dict[str, tuple[str, int]] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def take(self, changes: FactChanges, make_ranker: Callable[[], FactRanker]) -> None:
        """Follow the changes that were read; in a thread, so one at a time, and what is read meanwhile stays whole."""
        with self.guard:
            self.ranker = self.ranker or make_ranker()
            facts = dict(self.facts) if changes.fresh else {}
            self.ranker.remove([fact_id for fact_id in self.facts if fact_id not in facts])
            self.ranker.add([document_of(fact) for fact in changes.facts if not fact.retired])
            self.ranker.remove([fact.id for fact in changes.facts if fact.retired])
            facts.update((fact.id, fact) for fact in changes.facts)
            self.facts, self.rendered = facts, {}
            self.active = tuple(fact for fact in facts.values() if not fact.retired)


class KnownFacts(LogBlock):
    """A block that knows the facts of the users whose sessions it serves."""

    user_id: str | None = Field(default=None, description="Whose facts these are; None: those of each session.")
    similarity_weight: float = Field(default=SIMILARITY_WEIGHT, ge=0, description="Divided by the sum of both.")
    confidence_weight: float = Field(default=CONFIDENCE_WEIGHT, ge=0, description="Divided by the sum of both.")
    embed_model: BaseEmbedding | None = Field(
        default=None, exclude=True, repr=False, description="Ranks facts together with their words; None: words alone."
    )
    ranker_factory: Any = Field(default=TfidfRanker, exclude=True, repr=False, description="Makes a FactRanker.")

    _known: Remembered[str, Known] = PrivateAttr(default_factory=Remembered)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state["__dict__"] = {**state["__dict__"], "embed_model": None}
        return state

    def namespace_of(self, session_id: str) -> str:
        """Whose facts a session's are."""
        return self.user_id if self.user_id is not None else session_id

    def book(self, session_id: str = DEFAULT_SESSION_ID) -> FactBook:
        """The facts of a session's user, to look at and to change."""
        return FactBook(self._log, self.namespace_of(session_id))

    async def asearch(self, question: str, *, session_id: str = DEFAULT_SESSION_ID) -> list[RankedFact]:
        """The facts that have something in common with a question, best first; [] if none has.

        With an ``embed_model`` nearly every fact has. Nothing that was said before the question is looked at.
        """
        known = await self._read_known(self.namespace_of(session_id))
        await self._prepare(known, [question])
        return [entry for entry in self._ranked(known, question, []) if entry.similarity > 0]

    async def aclose(self) -> None:
        """Close the private store, and end what is under way there; what was not extracted stays unread."""
        await self.stop_embedding()
        await super().aclose()

    async def stop_embedding(self) -> None:
        """End what is being embedded on this event loop; the next question goes on with it."""
        for known in list(self._known.values()):
            if isinstance(known.ranker, EmbeddingRanker):
                await known.ranker.stop()

    async def _read_known(self, namespace: str, now: tuple[int, int] | None = None) -> Known:
        """The facts of a namespace; ``now`` is the epoch and the last change, if the caller knows them."""
        known = self._known.get(namespace)
        if known is not None and now == (known.changes.epoch, known.changes.change):
            return known
        changes = await self._log.facts.read(namespace, known.changes if known else NOTHING_READ)
        known = known or Known()
        if changes.facts or not changes.fresh:
            # Indexing many facts would block the event loop.
            await asyncio.to_thread(known.take, changes, partial(self._make_ranker, namespace))
        known.changes = changes
        self._known.put(namespace, known)
        return known

    def _make_ranker(self, namespace: str) -> FactRanker:
        ranker: FactRanker = self.ranker_factory()
        if self.embed_model is None:
            return ranker
        keeper = self._log.embeddings.of(namespace, model_key(self.embed_model))
        embedding_ranker = EmbeddingRanker(self.embed_model, lexical=ranker, keeper=keeper)
        self._log.board.watch(embedding_ranker)
        return embedding_ranker

    async def _prepare(self, known: Known, queries: Sequence[str] = ()) -> bool:
        """Embed what is not yet, where there is a model for it; False if facts are ranked by less than that for now."""
        return await known.ranker.aprepare(queries) if isinstance(known.ranker, EmbeddingRanker) else True

    def _best_first(self, known: Known, question: str, context: Sequence[str]) -> list[Fact]:
        """The same order as that of ``_ranked``, without the marks of each fact, which take as long as all the rest."""
        facts, ranker = known.active, known.ranker
        near = (
            similarities_of([fact.id for fact in facts], question, context, ranker)
            if ranker is not None
            else [0.0] * len(facts)
        )
        scores = scores_of(facts, near, self.similarity_weight, self.confidence_weight)
        return [facts[i] for i in best_first(facts, scores)]

    def _ranked(self, known: Known, question: str, context: Sequence[str]) -> list[RankedFact]:
        if not known.active:
            return []
        return rank(
            known.active,
            question,
            context,
            similarity_weight=self.similarity_weight,
            confidence_weight=self.confidence_weight,
            ranker=known.ranker,
        )
