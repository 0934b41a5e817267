"""Decides what of a model's reply is stored: only what is based on the user's own words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain
from time import thread_time
from typing import TYPE_CHECKING

from llama_index_memory_ext.fact import (
    DEFAULT_MIN_CONFIDENCE,
    Fact,
    RetiredBy,
    normalised,
    raised,
    retire,
)
from llama_index_memory_ext.facts.checks import (
    CHECKS,
    DOUBTS,
    ENDING_CHECKS,
    MAX_FACT,
    Candidate,
    Ending,
    Rejection,
    UsersKeywords,
    first_rejection,
    is_asked_again,
    is_said_again,
    sentences_of,
    users_keywords,
)
from llama_index_memory_ext.facts.history import why_retired
from llama_index_memory_ext.facts.riders import has_rider, unsaid_addresses
from llama_index_memory_ext.facts.source import Place, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.facts.checks import Check
    from llama_index_memory_ext.facts.reply import ExtractionReply, NewFact, Retirement
    from llama_index_memory_ext.text.messages import Utterance

_UNKNOWN = Rejection("unknown_fact", "It names no fact that is known.")
_NO_TIME = Rejection(
    "too_long", "The reply has so many entries that there was no time left to check it."
)
# The time of the processor that the entries of a reply have: an ordinary reply takes
# less than a second.
_MOST_SECONDS = 10
_KNOWN = Rejection("duplicate", "It is known already.")


@dataclass(frozen=True, slots=True)
class ValidatedReply:
    """What of a reply is stored, and what is not. A retired fact is never also confirmed."""

    accepted: tuple[Fact, ...] = field(default=(), repr=False)
    confirmed: tuple[Fact, ...] = field(default=(), repr=False)
    retired: tuple[Fact, ...] = field(default=(), repr=False)
    rejected: tuple[Rejection, ...] = ()
    # What only its names or numbers speak against; a second reading may find the words
    # that say them.
    doubted: tuple[tuple[Fact, Rejection], ...] = field(default=(), repr=False)

    @property
    def claims(self) -> tuple[Fact, ...]:
        """What a second reading is asked about: the facts that are new, that are retired, and that are doubted."""
        return (*self.accepted, *self.retired, *(fact for fact, _ in self.doubted))

    @property
    def rejections(self) -> dict[str, int]:
        """The number of rejections for each reason; {} if there are none."""
        return dict(Counter(rejection.reason for rejection in self.rejected))


def validate_reply(
    reply: ExtractionReply,
    lines: Sequence[Utterance],
    known: Sequence[Fact],
    *,
    now: datetime,
    active: Sequence[Fact] = (),
    past: Sequence[Fact] = (),
    session_id: str | None = None,
    min_confidence: float = DEFAULT_MIN_CONFIDENCE,
    checks: Sequence[Check] = CHECKS,
    context: Sequence[Utterance] = (),
    others: str = "",
    retired_by: RetiredBy | None = None,
) -> ValidatedReply:
    """Check each entry of a reply against the conversation.

    Args:
        reply: The model's reply to an ``extraction_prompt`` with these lines.
        lines: The conversation.
        known: The facts that the reply names by their places in this list, from 1.
        now: When the conversation took place and new facts are created, with a time
            zone.
        active: Further active facts, so that none is stored twice.
        past: Facts that were true before, so that none is stored twice with the same
            last day.
        session_id: The session of new facts.
        min_confidence: 0..1; new facts with less are rejected.
        checks: What a new fact must pass, besides ``DOUBTS``.
        context: What was said right before, which nothing is quoted from, but which
            names and questions may come from.
        others: What tools and pages said, for ``TOOL_CHECKS``: no keyword of a new fact
            may be theirs alone.
        retired_by: By what facts are retired; None: by what the quote and the reason
            say. With "request", past facts can be retired, too.
    """
    gate = _Gate(
        Source(lines, context, others, now.date(), [*known, *active]),
        known,
        now,
        session_id,
        retired_by,
    )
    ends_at = thread_time() + _MOST_SECONDS
    for new in reply.new_facts:
        if thread_time() > ends_at:
            gate.rejected.append(_NO_TIME)
            continue
        gate.add(new, checks, min_confidence)
    quotes = Counter(entry.quote for entry in reply.retired)
    for entry in reply.retired:
        if thread_time() > ends_at:
            gate.rejected.append(_NO_TIME)
            continue
        gate.end(entry, is_only=quotes[entry.quote] == 1)
    for number in reply.confirmed:
        gate.confirm(number)
    return gate.reply(past)


@dataclass
class _Gate:
    """Takes the entries of a reply one after the other, new facts first, and holds what becomes of them.

    Of two new facts with one label it stands for the first, and for None if that was
    rejected.
    """

    source: Source
    known: Sequence[Fact]
    now: datetime
    session_id: str | None
    retired_by: RetiredBy | None
    accepted: list[Fact] = field(default_factory=list)
    confirmed: dict[str, Fact] = field(default_factory=dict)
    retired: dict[str, Fact] = field(default_factory=dict)
    rejected: list[Rejection] = field(default_factory=list)
    doubted: list[tuple[Fact, Rejection]] = field(default_factory=list)
    by_label: dict[str, Fact | None] = field(default_factory=dict)

    @cached_property
    def by_content(self) -> dict[str, Fact]:
        return {
            normalised(fact.content): fact
            for fact in reversed(self.source.known)
            if not fact.retired
        }

    @cached_property
    def users_keywords(self) -> UsersKeywords:
        lines = (line.text for line in self.source.lines if line.is_users)
        return users_keywords(chain.from_iterable(map(sentences_of, lines)))

    def add(self, new: NewFact, checks: Sequence[Check], min_confidence: float) -> None:
        content = normalised(new.content)
        place = self.source.find(new.quote)
        fact = None
        candidate = Candidate(new, place, min_confidence)
        rejection = first_rejection(candidate, self.source, checks)
        if place and not rejection:
            rejection = first_rejection(candidate, self.source, DOUBTS)
            known = self.by_content.get(content)
            if not known:
                made = self._made(new, place)
                if rejection:
                    self.doubted.append((made, rejection))
                else:
                    fact = self.by_content[content] = made
                    self.accepted.append(fact)
            elif not rejection:
                fact = known
                rejection = _KNOWN
                if not is_asked_again(fact, place):
                    self.confirmed[fact.id] = raised(fact, self.now)
        self.rejected += [rejection] if rejection else []
        self.by_label.setdefault(new.label, fact)

    def end(self, entry: Retirement, *, is_only: bool) -> None:
        is_asked = self.retired_by == "request"
        fact = self._known_fact(entry.number, past=is_asked)
        new = self.by_label.get(entry.replaced_by)
        if fact is None or fact.id in self.retired:
            self.rejected.append(
                Rejection("duplicate", "It is retired already.") if fact else _UNKNOWN
            )
            return
        ending = Ending(
            fact, entry, self.source.find(entry.quote), new, is_only, is_asked
        )
        if rejection := first_rejection(ending, self.source, ENDING_CHECKS):
            self.rejected.append(rejection)
            return
        reason = entry.reason[:MAX_FACT]
        said = f"{entry.quote}\n{fact.content}\n{new.content if new else ''}"
        # A model may copy an instruction into the reason.
        if (
            not reason
            or has_rider(reason, said, said)
            or unsaid_addresses(reason, self.source.said)
        ):
            reason = "The user said that it is true no longer."
        if entry.replaced_by and new is None:
            reason += " What is true instead was not stored."
        fact = fact.model_copy(
            update={
                "valid_until": self.source.day(entry.valid_until, 1) or fact.valid_until
            }
        )
        by = self.retired_by or why_retired(f"{entry.quote}\n{entry.reason}")
        at = max(fact.updated_at, self.now)
        replaced_by = new.id if new else None
        self.retired[fact.id] = retire(fact, reason, at, replaced_by, by=by)

    def confirm(self, number: int) -> None:
        fact = self._known_fact(number)
        if fact:
            rejection = is_said_again(fact, self.users_keywords)
        else:
            rejection = _UNKNOWN
        if rejection:
            self.rejected.append(rejection)
        elif fact:
            self.confirmed[fact.id] = raised(fact, self.now)

    def reply(self, past: Sequence[Fact]) -> ValidatedReply:
        """Return what is stored and what is not; of new facts, none that was true before, until the same day."""
        others = {*self.retired, *(fact.id for fact in self.accepted)}
        left = tuple(fact for fact in self.confirmed.values() if fact.id not in others)
        ended = {
            (normalised(fact.content), fact.valid_until)
            for fact in past
            if not fact.retired
        }
        stored = tuple(
            fact
            for fact in self.accepted
            if (normalised(fact.content), fact.valid_until) not in ended
        )
        rejected = (*self.rejected, *[_KNOWN] * (len(self.accepted) - len(stored)))
        return ValidatedReply(
            stored, left, tuple(self.retired.values()), rejected, tuple(self.doubted)
        )

    def _known_fact(self, number: int, *, past: bool = False) -> Fact | None:
        if 0 < number <= len(self.known):
            fact = self.known[number - 1]
        else:
            fact = None
        if fact and (not fact.retired or (past and fact.state(self.now) == "past")):
            return fact
        return None

    def _made(self, new: NewFact, place: Place) -> Fact:
        """Return a new fact as it is stored. Its source is the text of the lines with its quote and around them.

        What was said elsewhere stands in no row, and in no session.
        """
        places, text = self.source.around(place)
        valid_until = self.source.day(new.valid_until, 1)
        if new.said_as == "past":
            # It was over when it was said.
            day_before = self.source.said_on - timedelta(days=1)
            valid_until = min(valid_until or day_before, day_before)
        rows = tuple(self.source.lines[i].row_id for i in places)
        return Fact(
            **new.model_dump(
                include={"content", "category", "confidence", "said_as", "about"}
            ),
            quote=place.quote,
            valid_from=self.source.day(new.valid_from, 0),
            valid_until=valid_until,
            created_at=self.now,
            session_id=self.session_id if any(rows) else None,
            message_ids=rows if any(rows) else (),
            source=text,
        )
