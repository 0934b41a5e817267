"""Keeps up with the facts of each user in this process, and ranks them for a question."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING

from llama_index_memory_ext.agent_view import SHARED
from llama_index_memory_ext.fact import utc_now
from llama_index_memory_ext.facts.history import is_later, past_facts, true_in
from llama_index_memory_ext.facts.period import period_asked
from llama_index_memory_ext.facts.ranking import RankedFacts
from llama_index_memory_ext.facts.scoring import Columns, Concerned, Scored, Weights, document_of, scored
from llama_index_memory_ext.log_block import sparing
from llama_index_memory_ext.search.concern import Asked
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.search.tfidf import Similarities, TfidfRanker
from llama_index_memory_ext.store.facts import NOTHING_READ
from llama_index_memory_ext.store.vectors import KeptVectors
from llama_index_memory_ext.text.tokens import TokenCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_memory_ext.agent_view import AgentView
    from llama_index_memory_ext.background.locks import Recent
    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.period import Period
    from llama_index_memory_ext.search.tfidf import FactRanker
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.facts import FactChanges


def ranker_in(make: Callable[[], FactRanker], languages: tuple[str, ...] | None) -> Callable[[], FactRanker]:
    """Returns what makes a ranker for questions in these languages; one of your own knows them itself."""
    return partial(TfidfRanker, languages=languages) if make is TfidfRanker and languages else make


@dataclass(frozen=True)
class Candidates:
    """The facts that may be shown for a question, past ones if it asks for a ``period``, and what ranks them."""

    user: UserFacts
    columns: Columns
    ranker: FactRanker | None
    period: Period | None = None
    past_ids: frozenset[str] = frozenset()

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts."""
        return self.columns.facts

    def similarities(self, query: str) -> Mapping[str, float]:
        """The similarity of each fact to a query, 0..1, by id; {} if there is no ranker, or it fails."""
        with self.user.sparing():
            found = self.ranker.similarities(query) if self.ranker else {}
            return found if isinstance(found, Similarities) else {name: float(one) for name, one in found.items()}
        return {}


@dataclass
class UserFacts:
    """The facts of one user that an agent sees, as this process knows them.

    The ranker, if there is one yet, holds the active ones. After one of its ``failures``, which are counted by type,
    there is none.

    Until the time ``holds_until``, ``columns`` are of those that hold, and ``past`` those that were true before. These
    are indexed when a question first asks for them, by a ranker that holds the active ones too.
    """

    ranker: FactRanker | None = None
    changes: FactChanges = NOTHING_READ
    facts: dict[str, Fact] = field(default_factory=dict)
    columns: Columns = field(default_factory=lambda: Columns(()))
    past: tuple[Fact, ...] = ()
    holds_until: datetime | None = None
    past_ranker: FactRanker | None = None
    failures: Counter[str] = field(default_factory=Counter)
    # Counts the lines in the columns.
    counter: TokenCounter = field(default_factory=TokenCounter)
    guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def version(self) -> tuple[object, ...]:
        """Differs where other facts may be shown for the same question."""
        return (self.changes.epoch, self.changes.change, self.holds_until, self.failures.total())

    @property
    def present(self) -> Candidates:
        """What may be shown for a question that is not about the past."""
        return Candidates(self, self.columns, self.ranker)

    @property
    def active(self) -> tuple[Fact, ...]:
        """The current facts: neither retired nor ended."""
        return self.columns.facts

    def take(
        self,
        changes: FactChanges,
        make_ranker: Callable[[], FactRanker],
        now: datetime | None = None,
        counter: TokenCounter | None = None,
    ) -> None:
        """Follow changes that were read, and the clock. Threads may call it.

        Readers meanwhile see all of a change or nothing.
        """
        now, counter = now or utc_now(), counter or self.counter
        with self.guard:
            facts = {**(self.facts if changes.fresh else {}), **{fact.id: fact for fact in changes.facts}}
            active = tuple(fact for fact in facts.values() if fact.state(now) == "present")
            past = tuple(past_facts(facts, now))
            changed = {fact.id for fact in changes.facts}
            with self.sparing():
                held, self.ranker = self.active if self.ranker else (), self.ranker or make_ranker()
                _follow(self.ranker, held, active, changed)
                if self.past_ranker:
                    _follow(self.past_ranker, (*self.active, *self.past), (*active, *past), changed)
            # What is shown stays as it is until it changes. Readers may have the lines of before.
            kept = self.columns.rendered if changes.fresh and counter is self.counter else {}
            columns = Columns.shown(active, counter, {name: kept[name] for name in kept.keys() - changed})
            self.facts, self.columns, self.past, self.counter = facts, columns, past, counter
            self.holds_until = _next_end(facts.values(), now)

    def in_period(self, period: Period, make_ranker: Callable[[], FactRanker]) -> Candidates:
        """What may be shown for a question about the past: the past facts of that time, and those that hold.

        A fact that began to hold after that time is left out; where no beginning was said, it may have held before.
        """
        with self.guard:
            past = tuple(fact for fact in self.past if true_in(fact, period))
            active = tuple(fact for fact in self.active if fact.pinned or not is_later(fact, period))
            if past and self.past_ranker is None:
                with self.sparing():
                    ranker = make_ranker()
                    _follow(ranker, (), (*self.active, *self.past), set())
                    self.past_ranker = ranker
            ranks = self.past_ranker if past else self.ranker
            columns = Columns.shown((*active, *past), self.counter, self.columns.rendered)
            return Candidates(self, columns, ranks, period, frozenset(fact.id for fact in past))

    def sparing(self) -> AbstractContextManager[None]:
        """A block in which rankers may fail: they are made anew then, and until then confidence decides."""
        return sparing(self.failures, "Facts were not ranked", self._drop)

    def _drop(self) -> None:
        self.ranker = self.past_ranker = None


def _follow(ranker: FactRanker, before: Sequence[Fact], now: Sequence[Fact], changed: Collection[str]) -> None:
    """Let a ranker that holds the facts ``before`` hold those of ``now``."""
    held = {fact.id for fact in before}
    ranker.remove(held - {fact.id for fact in now})
    ranker.add([document_of(fact) for fact in now if fact.id in changed or fact.id not in held])


def _next_end(facts: Iterable[Fact], now: datetime) -> datetime | None:
    """When the next of these facts expires, or is true no longer; None if no such time is known."""
    ends = [fact.expires_at for fact in facts if fact.expires_at]
    days = [fact.valid_until for fact in facts if fact.valid_until and not fact.retired]
    ends += [datetime.combine(day + timedelta(days=1), time(), timezone.utc) for day in days if day < date.max]
    return min((end for end in ends if end > now), default=None)


@dataclass(frozen=True)
class FactCache:
    """The facts of the users that were asked for last, from the store of a block, ranked by the block's settings.

    ``view`` says which of them the agent of the block sees.
    """

    store: MemoryStore
    users: Recent[tuple[str, AgentView], UserFacts]
    ranker_factory: Callable[[], FactRanker]
    embed_model: BaseEmbedding | None
    counter: TokenCounter
    weights: Weights
    min_similarity: float = 0.0
    general_facts: int = 0
    clock: Callable[[], datetime] = utc_now
    view: AgentView = SHARED
    languages: tuple[str, ...] | None = None

    async def read(self, namespace: str, now: tuple[int, int] | None = None) -> UserFacts:
        """The facts of a user; ``now`` is the epoch and the last change, if the caller knows them."""
        key = (namespace, self.view)
        known = self.users.get(key) or UserFacts()
        if now is None or now != (known.changes.epoch, known.changes.change):
            changes = await self.store.facts.read(namespace, known.changes, view=self.view)
            if changes.facts or not changes.fresh:
                await self._take(known, namespace, changes)
            known.changes = changes
            self.users.put(key, known)
        has_ended = known.holds_until and known.holds_until <= self.clock()
        if has_ended or (known.facts and known.ranker is None):
            await self._take(known, namespace, NOTHING_READ)
        return known

    async def candidates(self, known: UserFacts, namespace: str, question: str) -> Candidates:
        """The facts that may be shown for a question: those that hold, and past ones if it asks for the past."""
        # No time tells facts of one day apart.
        period = period_asked(question, self.clock().date()) if known.past or known.columns.has_times else None
        if period is None:
            return known.present
        return await asyncio.to_thread(known.in_period, period, partial(self._make_ranker, namespace))

    async def prepare(self, known: UserFacts | Candidates, queries: Sequence[str] = ()) -> bool:
        """Embed what is not embedded yet, where there is a model for it; False if facts are ranked without it now."""
        if isinstance(known.ranker, EmbeddingRanker):
            return await known.ranker.aprepare(queries)
        return known.ranker is not None

    async def refresh(self, namespace: str) -> None:
        """Embed the facts of a user that were just stored, before the next question has to wait for it."""
        if self.embed_model is not None:
            await self.prepare(await self.read(namespace))

    def scored(self, asked: Candidates, question: str, context: Sequence[str] = ()) -> Scored:
        """The candidates with their numbers; where their ranker fails, similarities are 0."""
        how = partial(scored, asked.columns, question, context, weights=self.weights, period=asked.period)
        with asked.user.sparing():
            return how(ranker=asked.ranker)
        return how(ranker=None)

    def shown(
        self, asked: Candidates, question: str, context: Sequence[str] = ()
    ) -> tuple[Iterator[Fact], Iterator[Fact]]:
        """The facts that may be shown for a question, best first; and those that come before all others."""
        facts, concerned = self.scored(asked, question, context), self.concerned(asked, question, context)
        found = facts.best_first(), iter(facts.first())
        return found if concerned is None else (concerned.among(found[0]), concerned.among(found[1]))

    def concerned(self, asked: Candidates, question: str, context: Sequence[str] = ()) -> Concerned | None:
        """Which of the candidates may be shown for a question; None, without ``min_similarity``: all."""
        if not self.min_similarity:
            return None
        close = asked.ranker.closeness(question) if isinstance(asked.ranker, EmbeddingRanker) else {}
        return Concerned(Asked(question, context, self.languages), self.min_similarity, self.general_facts, close)

    async def ranked(
        self, namespace: str, question: str, context: Sequence[str] = ()
    ) -> tuple[RankedFacts, Concerned | None]:
        """The facts of a user that may be shown for a question, best first; and which of them concern it."""
        asked = await self.candidates(await self.read(namespace), namespace, question)
        await self.prepare(asked, [question, *context])
        numbers = self.scored(asked, question, context)
        found = RankedFacts(numbers, (question, *context), asked.past_ids, self.languages)
        return found, self.concerned(asked, question, context)

    async def stop(self) -> None:
        """Cancel what is being embedded in this event loop; the next question goes on with it."""
        for known in self.users.values():
            for ranker in (known.ranker, known.past_ranker):
                if isinstance(ranker, EmbeddingRanker):
                    await ranker.stop()

    async def _take(self, known: UserFacts, namespace: str, changes: FactChanges) -> None:
        # Indexing many facts takes longer than the event loop should be blocked.
        make = partial(self._make_ranker, namespace)
        await asyncio.to_thread(known.take, changes, make, self.clock(), self.counter)

    def _make_ranker(self, namespace: str) -> FactRanker:
        ranker = self.ranker_factory()
        if self.embed_model is None:
            return ranker
        keeper = KeptVectors(self.store.database, namespace, model_key(self.embed_model))
        embedding_ranker = EmbeddingRanker(self.embed_model, lexical=ranker, keeper=keeper)
        self.store.jobs.watch(embedding_ranker)
        return embedding_ranker
