"""The facts of a user in this process: reads changes from the store, and keeps lines and rankers ready."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING

from llama_index_memory_ext.background.locks import thread_lock
from llama_index_memory_ext.background.recent import Recent
from llama_index_memory_ext.facts.history import past_facts
from llama_index_memory_ext.facts.ranking import (
    RecordInPrompt,
    ShowableFacts,
    document_of,
)
from llama_index_memory_ext.search.tfidf import FactRanker, suppress_failures
from llama_index_memory_ext.store.facts import NOTHING_READ, FactChanges
from llama_index_memory_ext.store.rows import ReadPosition
from llama_index_memory_ext.text.messages import in_zone, now_in
from llama_index_memory_ext.words.dates import Period, period_asked

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Sequence,
    )
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from llama_index_memory_ext.agent_view import AgentView
    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.rows import FactsVersion
    from llama_index_memory_ext.text.parts import Part


class UserFacts:
    """The facts of one user that an agent sees, in the state that this process has read.

    ``changes``: the last changes that were read, with the version of the facts.
    ``facts``: all facts by id, retired facts too.
    ``present``: the facts that hold until ``_holds_until``, with their ranker.
    ``past``: the facts that were true before.
    ``time_zone``: tells today; None: UTC.

    The ranker holds present and past facts. If it fails, the failure is counted by type,
    and it is made anew.
    """

    def __init__(
        self,
        store: MemoryStore,
        namespace: str,
        view: AgentView,
        make_ranker: Callable[[], FactRanker],
        line_of: Callable[[Fact], Part],
        time_zone: tzinfo | None = None,
    ) -> None:
        self.store = store
        self.namespace = namespace
        self.view = view
        self._make_ranker = make_ranker
        self._line_of = line_of
        self.time_zone = time_zone
        self.changes = NOTHING_READ
        self.facts: dict[str, Fact] = {}
        self.past: tuple[Fact, ...] = ()
        self.present = ShowableFacts()
        self._holds_until: datetime | None = None
        self._ranker: FactRanker | None = None
        self._failures = Counter[str]()
        # The facts of profiles, by the reader, the session, and the cursor of the record.
        self._choices: Recent[tuple[object, ...], list[str]] = Recent()
        self._guard = thread_lock()

    @property
    def version(self) -> tuple[object, ...]:
        """A value that changes when other facts may be shown for the same question."""
        return (
            self.changes.epoch,
            self.changes.change,
            self._holds_until,
            self._failures.total(),
        )

    @property
    def active(self) -> tuple[Fact, ...]:
        """The present facts: neither retired, past, expired nor pending."""
        return self.present.facts

    @property
    def pending(self) -> list[Fact]:
        """The facts that are not yet approved."""
        return [
            fact for fact in self.facts.values() if fact.pending and not fact.retired
        ]

    @property
    def rejected(self) -> list[Fact]:
        """The facts that a person has rejected."""
        return [fact for fact in self.facts.values() if fact.retired_by == "rejected"]

    async def read(self, stored: FactsVersion | None = None) -> Self:
        """Read changes from the store, and follow the clock.

        No query is made if the ``stored`` version of the facts was read before; None: it
        is unknown.
        """
        while stored != (self.changes.epoch, self.changes.change):
            seen = self.changes
            changes = await self.store.facts.read(self.namespace, seen, view=self.view)
            if changes.fresh and not changes.facts:
                self.changes = changes
                break
            # Another task may have taken newer changes meanwhile.
            if await asyncio.to_thread(self.apply, changes, seen):
                break
        has_ended = self._holds_until and self._holds_until <= now_in()
        if has_ended or (self.facts and self._ranker is None):
            seen = self.changes
            nothing = seen._replace(fresh=True, facts=[])
            await asyncio.to_thread(self.apply, nothing, seen)
        return self

    async def showable_for(self, question: str) -> ShowableFacts:
        """Return the facts that hold, and past facts if the question asks for the past."""
        period = None
        if self.past or self.present.has_times:
            period = period_asked(question, self._now().date())
        if period is None:
            return self.present
        return await asyncio.to_thread(self._in_period, period)

    async def profile(
        self,
        reader: str,
        record: RecordInPrompt,
        limit: int,
    ) -> list[Fact]:
        """Return the facts of the profile that hold: pinned facts, then the facts that were chosen for this record.

        The choice is stored under the name ``reader`` once for each position of the
        record. So every process shows the same profile until the record is cut.
        """
        key = (reader, record.session_id, record.cursor)
        chosen_ids = self._choices.get(key)
        if chosen_ids is None:
            fact_ids = self.present.profile(record, limit)
            # An empty choice is not kept: the first facts enter the profile at once.
            if not fact_ids:
                return []
            chosen_ids = await self._store_choice(reader, record, fact_ids)
            self._choices.put(key, chosen_ids)
        # Another thread may replace both meanwhile.
        facts = self.facts
        present = self.present
        names = dict.fromkeys([*present.pinned_ids, *chosen_ids])
        return [
            facts[name] for name in names if name in facts and name in present.lines
        ]

    async def _store_choice(
        self, reader: str, record: RecordInPrompt, fact_ids: list[str]
    ) -> list[str]:
        """Store a choice for the position of a record, and return it, or the choice that another process has stored."""
        epoch, position = record.cursor
        # At least 1: the cursor of the record may be 0, which means that no choice is
        # stored.
        position += 1
        session_id = record.session_id
        stored = await record.readers.cursor(session_id, reader)
        if stored.position != position:
            await record.readers.move(
                session_id,
                reader,
                ReadPosition(epoch, stored.position),
                position,
                {"profile": fact_ids},
            )
            # Another process may have stored its choice first.
            stored = await record.readers.cursor(session_id, reader)
        if stored.position == position and stored.state:
            fact_ids = stored.state["profile"]
        return fact_ids

    def apply(self, changes: FactChanges, seen: FactChanges) -> bool:
        """Apply the changes since ``seen``, in a thread: indexing many facts takes long enough to block the event loop.

        Other threads see all of a change or nothing. Return False, and do nothing, if other
        changes were applied since.
        """
        with self._guard:
            if self.changes is not seen:
                return False
            now = self._now()
            changed = {fact.id: fact for fact in changes.facts}
            facts = changed
            if changes.fresh:
                facts = {**self.facts, **changed}
            active = tuple(
                fact for fact in facts.values() if fact.state(now) == "present"
            )
            past = tuple(past_facts(facts, now))
            self._follow((*active, *past), changed)
            lines = {}
            for fact in active:
                line = self.present.lines.get(fact.id)
                if line is None or fact.id in changed:
                    line = self._line_of(fact)
                lines[fact.id] = line
            self.present = ShowableFacts(
                active,
                self._ranker,
                lines=lines,
                suppress_failures=self._suppress_failures,
            )
            self.facts = facts
            self.past = past
            self._holds_until = _next_end(facts.values(), now, self.time_zone)
            self.changes = changes
            return True

    def _now(self) -> datetime:
        return now_in(self.time_zone)

    def _follow(self, facts: Sequence[Fact], changed: Collection[str]) -> None:
        """Update the ranker to these facts, or make it."""
        with self._suppress_failures():
            held = set[str]()
            if self._ranker is None:
                self._ranker = self._make_ranker()
            else:
                held.update(fact.id for fact in (*self.active, *self.past))
            self._ranker.remove(held - {fact.id for fact in facts})
            new = [fact for fact in facts if fact.id in changed or fact.id not in held]
            self._ranker.add([document_of(fact) for fact in new])

    def _in_period(self, period: Period) -> ShowableFacts:
        """Return the past facts of a period, and the facts that hold.

        A fact that began to hold after the period is left out. A fact without a stated
        beginning may have held before.
        """
        with self._guard:
            past = tuple(fact for fact in self.past if true_in(fact, period))
            active = [
                fact
                for fact in self.active
                if fact.pinned or (fact.valid_from or date.min) <= period.end
            ]
            lines = {fact.id: self._line_of(fact) for fact in past}
            return ShowableFacts(
                (*active, *past),
                self._ranker,
                lines={**self.present.lines, **lines},
                period=period,
                past_ids={fact.id for fact in past},
                suppress_failures=self._suppress_failures,
            )

    def _suppress_failures(self) -> AbstractContextManager[None]:
        """Return a context in which rankers may fail. Until a new ranker is made, confidence ranks the facts."""

        def drop() -> None:
            self._ranker = None
            self.present.ranker = None

        return suppress_failures(self._failures, "Facts were not ranked", drop)


def true_in(fact: Fact, period: Period) -> bool:
    """Return whether a past fact was true on a day of a period.

    A fact without a known beginning was true at all times before its end.
    """
    end = fact.ends or date.max
    start = fact.began
    if start > end:
        # The fact became known after its end.
        start = date.min
    return start <= period.end and end >= period.start


def _next_end(
    facts: Iterable[Fact], now: datetime, zone: tzinfo | None
) -> datetime | None:
    """Return the next known time at which a fact expires or stops being true, at the end of a day in the zone."""
    ends = []
    for fact in facts:
        if fact.expires_at:
            ends.append(fact.expires_at)
        if fact.valid_until and fact.valid_until < date.max and not fact.retired:
            day_after = fact.valid_until + timedelta(days=1)
            # A midnight that daylight saving skips is the end of the day, too.
            midnight = datetime.combine(day_after, time(), zone or timezone.utc)
            ends.append(in_zone(midnight))
    return min((end for end in ends if end > now), default=None)
