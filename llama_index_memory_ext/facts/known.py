"""Keeps up with the facts of each user in this process, and ranks them for a question."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING

from llama_index_memory_ext.facts.history import past_facts, period_asked, true_in
from llama_index_memory_ext.facts.ranking import ShowableFacts, counted_line, document_of
from llama_index_memory_ext.reader_block import sparing
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.store.facts import NOTHING_READ, KeptVectors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_memory_ext.background.locks import Recent
    from llama_index_memory_ext.fact import AgentView, Fact
    from llama_index_memory_ext.language.dates import Period
    from llama_index_memory_ext.search.tfidf import FactRanker
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.facts import FactChanges
    from llama_index_memory_ext.text.tokens import TokenCounter


@dataclass
class UserFacts:
    """The facts of one user that an agent sees, as this process knows them.

    The ranker, if there is one yet, holds the facts that hold: those of ``present``, until the time ``holds_until``.
    ``past`` are those that were true before; they are indexed when a question first asks for them, by a ranker that
    holds the others too. After a failure of a ranker, which are counted by type, there is none.
    """

    changes: FactChanges = NOTHING_READ
    facts: dict[str, Fact] = field(default_factory=dict)
    present: ShowableFacts = field(default_factory=ShowableFacts)
    past: tuple[Fact, ...] = ()
    holds_until: datetime | None = None
    ranker: FactRanker | None = None
    past_ranker: FactRanker | None = None
    failures: Counter[str] = field(default_factory=Counter)
    guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def version(self) -> tuple[object, ...]:
        """Differs where other facts may be shown for the same question."""
        return (self.changes.epoch, self.changes.change, self.holds_until, self.failures.total())

    @property
    def active(self) -> tuple[Fact, ...]:
        """The facts that hold: neither retired nor ended."""
        return self.present.facts

    def take(
        self, changes: FactChanges, make_ranker: Callable[[], FactRanker], now: datetime, counter: TokenCounter
    ) -> None:
        """Follow changes that were read, and the clock. Threads may call it.

        Readers meanwhile see all of a change or nothing.
        """
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
            kept = {name: line for name, line in self.present.lines.items() if changes.fresh and name not in changed}
            lines = {fact.id: kept.get(fact.id) or counted_line(fact, counter) for fact in active}
            self.present = ShowableFacts(active, self.ranker, lines=lines, sparing=self.sparing)
            self.facts, self.past = facts, past
            # When the next of them expires, or is true no longer.
            ends = [fact.expires_at for fact in facts.values() if fact.expires_at]
            days = [fact.valid_until for fact in facts.values() if fact.valid_until and not fact.retired]
            ends += [datetime.combine(day + timedelta(days=1), time(), timezone.utc) for day in days if day < date.max]
            self.holds_until = min((end for end in ends if end > now), default=None)

    def in_period(self, period: Period, make_ranker: Callable[[], FactRanker], counter: TokenCounter) -> ShowableFacts:
        """Return what may be shown for a question about the past: the past facts of that time, and those that hold.

        A fact that began to hold after that time is left out; where no beginning was said, it may have held before.
        """
        with self.guard:
            past = tuple(fact for fact in self.past if true_in(fact, period))
            active = (fact for fact in self.active if fact.pinned or (fact.valid_from or date.min) <= period.end)
            if past and self.past_ranker is None:
                with self.sparing():
                    ranker = make_ranker()
                    _follow(ranker, (), (*self.active, *self.past), set())
                    self.past_ranker = ranker
            return ShowableFacts(
                (*active, *past),
                self.past_ranker if past else self.ranker,
                lines={**self.present.lines, **{fact.id: counted_line(fact, counter) for fact in past}},
                period=period,
                past_ids={fact.id for fact in past},
                sparing=self.sparing,
            )

    def sparing(self) -> AbstractContextManager[None]:
        """A block in which rankers may fail: they are made anew then, and until then confidence decides."""
        return sparing(self.failures, "Facts were not ranked", self._drop)

    def _drop(self) -> None:
        self.ranker = self.past_ranker = self.present.ranker = None


def _follow(ranker: FactRanker, before: Sequence[Fact], now: Sequence[Fact], changed: Collection[str]) -> None:
    """Let a ranker that holds the facts ``before`` hold those of ``now``."""
    held = {fact.id for fact in before}
    ranker.remove(held - {fact.id for fact in now})
    ranker.add([document_of(fact) for fact in now if fact.id in changed or fact.id not in held])


@dataclass(frozen=True)
class FactCache:
    """The facts of the users that were asked for last, from the store of a block.

    ``view`` says which of them the agent of the block sees.
    """

    store: MemoryStore
    users: Recent[tuple[str, AgentView], UserFacts]
    make_ranker: Callable[[], FactRanker]
    embed_model: BaseEmbedding | None = field(repr=False)
    counter: TokenCounter
    clock: Callable[[], datetime]
    view: AgentView

    async def read(self, namespace: str, now: tuple[int, int] | None = None) -> UserFacts:
        """Return the facts of a user; ``now`` is the epoch and the last change, if the caller knows them."""
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

    async def select_known_facts(self, known: UserFacts, namespace: str, question: str) -> ShowableFacts:
        """Return the facts that may be shown for a question: those that hold, and past ones if it asks for the past."""
        # No time tells facts of one day apart.
        period = period_asked(question, self.clock().date()) if known.past or known.present.has_times else None
        if period is None:
            return known.present
        make = partial(self._make_ranker, namespace)
        return await asyncio.to_thread(known.in_period, period, make, self.counter)

    async def prepare(self, known: UserFacts | ShowableFacts, queries: Sequence[str] = ()) -> bool:
        """Embed what is not embedded yet, where there is a model; return False if facts are ranked without it now."""
        if isinstance(known.ranker, EmbeddingRanker):
            return await known.ranker.aprepare(queries)
        return known.ranker is not None

    async def refresh(self, namespace: str) -> None:
        """Embed the facts of a user that were just stored, before the next question has to wait for it."""
        if self.embed_model is not None:
            await self.prepare(await self.read(namespace))

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
        ranker = self.make_ranker()
        if self.embed_model is None:
            return ranker
        keeper = KeptVectors(self.store.database, namespace, model_key(self.embed_model))
        embedding_ranker = EmbeddingRanker(self.embed_model, lexical=ranker, keeper=keeper)
        self.store.jobs.watch(embedding_ranker)
        return embedding_ranker
