"""Keeps up with the facts of a user in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import date, datetime, time, timedelta, timezone
from itertools import chain
from typing import TYPE_CHECKING

from llama_index_memory_ext.background.locks import thread_lock
from llama_index_memory_ext.fact import AgentView, Fact, utc_now
from llama_index_memory_ext.facts.history import past_facts, period_asked, true_in
from llama_index_memory_ext.facts.ranking import ShowableFacts, document_of
from llama_index_memory_ext.search.embeddings import EmbeddingRanker
from llama_index_memory_ext.search.tfidf import FactRanker, sparing
from llama_index_memory_ext.store.facts import NOTHING_READ, FactChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from llama_index_memory_ext.language.dates import Period
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.text.tokens import CountedText


class UserFacts:
    """The facts of one user that an agent sees, as this process knows them.

    The ranker, if there is one yet, holds the facts that hold: those of ``present``,
    until the time ``holds_until``. ``past`` are those that were true before; they are
    indexed when a question first asks for them, by a ranker that holds the others too.
    ``pending`` wait for somebody's yes, and ``rejected`` have got a no. After a failure
    of a ranker, which are counted by type, there is none.
    """

    def __init__(
        self,
        store: MemoryStore,
        namespace: str,
        view: AgentView,
        make_ranker: Callable[[], FactRanker],
        line_of: Callable[[Fact], CountedText],
    ) -> None:
        self.store = store
        self.namespace = namespace
        self.view = view
        self._make_ranker = make_ranker
        self._line_of = line_of
        self.changes = NOTHING_READ
        self.facts: dict[str, Fact] = {}
        self.past: tuple[Fact, ...] = ()
        self.pending: list[Fact] = []
        self.rejected: list[Fact] = []
        self.present = ShowableFacts()
        self._holds_until: datetime | None = None
        self._ranker: FactRanker | None = None
        self._past_ranker: FactRanker | None = None
        self._failures = Counter[str]()
        self._guard = thread_lock()

    @property
    def version(self) -> tuple[object, ...]:
        """Differs where other facts may be shown for the same question."""
        return (
            self.changes.epoch,
            self.changes.change,
            self._holds_until,
            self._failures.total(),
        )

    @property
    def active(self) -> tuple[Fact, ...]:
        """The facts that hold: neither retired nor ended."""
        return self.present.facts

    async def read(self, now: tuple[int, int] | None = None) -> Self:
        """Follow what was stored, and the clock; ``now`` is the epoch and the last change, if the caller knows them."""
        if now is None or now != (self.changes.epoch, self.changes.change):
            changes = await self.store.facts.read(
                self.namespace, self.changes, view=self.view
            )
            if changes.facts or not changes.fresh:
                await asyncio.to_thread(self._take, changes)
            self.changes = changes
        has_ended = self._holds_until and self._holds_until <= utc_now()
        if has_ended or (self.facts and self._ranker is None):
            await asyncio.to_thread(self._take, NOTHING_READ)
        return self

    async def asked(self, question: str) -> ShowableFacts:
        """Return the facts that may be shown for a question: those that hold, and past ones if it asks for the past."""
        # No time tells facts of one day apart.
        if self.past or self.present.has_times:
            period = period_asked(question, utc_now().date())
        else:
            period = None
        if period is None:
            return self.present
        return await asyncio.to_thread(self._in_period, period)

    async def refresh(self, *, is_read: bool = False) -> None:
        """Embed the facts that were just stored, and read already or not, before the next question has to wait."""
        if isinstance(self._ranker, EmbeddingRanker):
            if not is_read:
                await self.read()
            await self.present.prepare()

    async def stop(self) -> None:
        """Cancel what is being embedded in this event loop; the next question goes on with it."""
        for ranker in (self._ranker, self._past_ranker):
            if isinstance(ranker, EmbeddingRanker):
                await ranker.stop()

    def _take(self, changes: FactChanges) -> None:
        """Follow changes, in a thread: indexing many facts takes longer than the event loop should be blocked.

        Readers meanwhile see all of a change or nothing.
        """
        with self._guard:
            now = utc_now()
            facts = dict(self.facts) if changes.fresh else {}
            facts |= {fact.id: fact for fact in changes.facts}
            active = tuple(
                fact for fact in facts.values() if fact.state(now) == "present"
            )
            past = tuple(past_facts(facts, now))
            changed = {fact.id for fact in changes.facts}
            with self._sparing():
                held = self.active if self._ranker else ()
                self._ranker = self._ranker or self._make_ranker()
                _follow(self._ranker, held, active, changed)
                if self._past_ranker:
                    _follow(
                        self._past_ranker,
                        (*self.active, *self.past),
                        (*active, *past),
                        changed,
                    )
            # What is shown stays as it is until it changes. Readers may have the lines
            # of before.
            kept = {
                name: line
                for name, line in self.present.lines.items()
                if changes.fresh and name not in changed
            }
            lines = {
                fact.id: kept.get(fact.id) or self._line_of(fact) for fact in active
            }
            self.present = ShowableFacts(
                active, self._ranker, lines=lines, sparing=self._sparing
            )
            self.facts = facts
            self.past = past
            self.pending = [
                fact for fact in facts.values() if fact.pending and not fact.retired
            ]
            self.rejected = [
                fact for fact in facts.values() if fact.retired_by == "rejected"
            ]
            ends = [
                end
                for end in chain.from_iterable(map(_ends_of, facts.values()))
                if end > now
            ]
            self._holds_until = min(ends, default=None)

    def _in_period(self, period: Period) -> ShowableFacts:
        """Return what may be shown for a question about the past: the past facts of that time, and those that hold.

        A fact that began to hold after that time is left out; where no beginning was
        said, it may have held before.
        """
        with self._guard:
            past = tuple(fact for fact in self.past if true_in(fact, period))
            active = (
                fact
                for fact in self.active
                if fact.pinned or (fact.valid_from or date.min) <= period.end
            )
            if past and self._past_ranker is None:
                with self._sparing():
                    ranker = self._make_ranker()
                    _follow(ranker, (), (*self.active, *self.past), set())
                    self._past_ranker = ranker
            return ShowableFacts(
                (*active, *past),
                self._past_ranker if past else self._ranker,
                lines={
                    **self.present.lines,
                    **{fact.id: self._line_of(fact) for fact in past},
                },
                period=period,
                past_ids={fact.id for fact in past},
                sparing=self._sparing,
            )

    def _sparing(self) -> AbstractContextManager[None]:
        """Return a block in which rankers may fail: they are made anew then, and until then confidence decides."""

        def drop() -> None:
            self._ranker = self._past_ranker = self.present.ranker = None

        return sparing(self._failures, "Facts were not ranked", drop)


def _ends_of(fact: Fact) -> Iterator[datetime]:
    """Yield when a fact expires, and is true no longer, as far as that is known."""
    if fact.expires_at:
        yield fact.expires_at
    if fact.valid_until and fact.valid_until < date.max and not fact.retired:
        yield datetime.combine(
            fact.valid_until + timedelta(days=1), time(), timezone.utc
        )


def _follow(
    ranker: FactRanker,
    before: Sequence[Fact],
    now: Sequence[Fact],
    changed: Collection[str],
) -> None:
    """Let a ranker that holds the facts ``before`` hold those of ``now``."""
    held = {fact.id for fact in before}
    ranker.remove(held - {fact.id for fact in now})
    ranker.add(
        [document_of(fact) for fact in now if fact.id in changed or fact.id not in held]
    )
