"""Decides what of a model's reply is stored: only what is based on the user's own words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from llama_index_memory_ext.fact import DEFAULT_MIN_CONFIDENCE, Fact, normalised, raised, retire
from llama_index_memory_ext.facts.checks import (
    CHECKS,
    CONFIRMATION_CHECKS,
    DOUBTS,
    ENDING_CHECKS,
    MAX_FACT,
    Candidate,
    Ending,
    Rejection,
    first_rejection,
)
from llama_index_memory_ext.facts.history import why_retired
from llama_index_memory_ext.facts.source import Source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from llama_index_memory_ext.fact import RetiredBy
    from llama_index_memory_ext.facts.checks import Check
    from llama_index_memory_ext.facts.reply import ExtractionReply, NewFact, Retirement
    from llama_index_memory_ext.facts.source import Place
    from llama_index_memory_ext.text.messages import Utterance

_UNKNOWN = Rejection("unknown_fact", "It names no fact that is known.")
_KNOWN = Rejection("duplicate", "It is known already.")


@dataclass(frozen=True, slots=True)
class ValidatedReply:
    """What of a reply is stored, and what is not. A retired fact is never also confirmed."""

    accepted: tuple[Fact, ...] = field(default=(), repr=False)
    confirmed: tuple[Fact, ...] = field(default=(), repr=False)
    retired: tuple[Fact, ...] = field(default=(), repr=False)
    rejected: tuple[Rejection, ...] = ()
    # What only its names or numbers speak against; a second reading may find the words that say them.
    doubted: tuple[tuple[Fact, Rejection], ...] = field(default=(), repr=False)

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
    """Checks each entry of a reply against the conversation.

    Args:
        reply: The model's reply to an ``extraction_prompt`` with these lines.
        lines: The conversation.
        known: The facts that the reply names by their places in this list, from 1.
        now: When the conversation took place and new facts are created, with a time zone.
        active: Further active facts, so that none is stored twice.
        past: Facts that were true before, so that none is stored twice with the same last day.
        session_id: The session of new facts.
        min_confidence: 0..1; new facts with less are rejected.
        checks: What a new fact must pass.
        context: What was said right before, which nothing is quoted from, but which names and questions may come from.
        others: What tools and pages said, for ``TOOL_CHECKS``: no keyword of a new fact may be theirs alone.
        retired_by: By what facts are retired; None: by what the quote and the reason say. With "request", past facts
            can be retired, too.
    """
    source = Source(lines, context, others, now.date(), [*known, *active])
    by_content = {normalised(fact.content): fact for fact in reversed(source.known) if not fact.retired}
    # What passes these is spoken against by its names and numbers alone.
    surer = [check for check in checks if check not in DOUBTS]
    # Of two new facts with one label it stands for the first, and for None if that was rejected.
    by_label: dict[str, Fact | None] = {}
    accepted: list[Fact] = []
    confirmed: dict[str, Fact] = {}
    retired: dict[str, Fact] = {}
    rejected: list[Rejection] = []
    doubted: list[tuple[Fact, Rejection]] = []

    for new in reply.new_facts:
        content, place = normalised(new.content), source.find(new.quote)
        candidate = Candidate(new, place, min_confidence)
        rejection = first_rejection(candidate, source, checks)
        fact = by_content.get(content) if place and not rejection else None
        if fact:
            confirmed[fact.id] = raised(fact, now)
            rejection = _KNOWN
        elif place and not rejection:
            fact = by_content[content] = _new_fact(new, place, source, now, session_id)
            accepted.append(fact)
        elif place and rejection and content not in by_content and not first_rejection(candidate, source, surer):
            doubted.append((_new_fact(new, place, source, now, session_id), rejection))
        rejected += [rejection] if rejection else []
        by_label.setdefault(new.label, fact)

    is_asked = retired_by == "request"
    quotes = Counter(entry.quote for entry in reply.retired)
    for entry in reply.retired:
        fact = _known_fact(entry.number, known, now, past=is_asked)
        if fact is None or fact.id in retired:
            rejected.append(_UNKNOWN if fact is None else Rejection("duplicate", "It is retired already."))
            continue
        instead = by_label.get(entry.replaced_by) if entry.replaced_by else None
        place, is_only = source.find(entry.quote), quotes[entry.quote] == 1
        ending = Ending(fact, entry.quote, place, instead, is_only, is_asked, entry.said_as)
        if rejection := first_rejection(ending, source, ENDING_CHECKS):
            rejected.append(rejection)
        else:
            fact = fact.model_copy(update={"valid_until": source.day(entry.valid_until, 1) or fact.valid_until})
            by = retired_by or why_retired(f"{entry.quote}\n{entry.reason}")
            retired[fact.id] = _ended(fact, instead, entry, max(fact.updated_at, now), by)

    for number in reply.confirmed:
        fact = _known_fact(number, known, now)
        rejection = first_rejection(fact, source, CONFIRMATION_CHECKS) if fact else _UNKNOWN
        if fact and not rejection:
            confirmed[fact.id] = raised(fact, now)
        rejected += [rejection] if rejection else []

    others_ids = {*retired, *(fact.id for fact in accepted)}
    left = tuple(fact for fact in confirmed.values() if fact.id not in others_ids)
    ended = {(normalised(fact.content), fact.valid_until) for fact in past if not fact.retired}
    stored = tuple(fact for fact in accepted if (normalised(fact.content), fact.valid_until) not in ended)
    rejected += [_KNOWN] * (len(accepted) - len(stored))
    return ValidatedReply(stored, left, tuple(retired.values()), tuple(rejected), tuple(doubted))


def _known_fact(number: int, known: Sequence[Fact], now: datetime, *, past: bool = False) -> Fact | None:
    fact = known[number - 1] if 0 < number <= len(known) else None
    return fact if fact and (not fact.retired or (past and fact.state(now) == "past")) else None


def _new_fact(new: NewFact, place: Place, source: Source, now: datetime, session_id: str | None) -> Fact:
    """Return a new fact as it is stored. Its source is the text of the lines with its quote and around them.

    What was said elsewhere stands in no row, and in no session.
    """
    places, text = source.around(place)
    valid_until = source.day(new.valid_until, 1)
    if new.said_as == "past":
        # It was over when it was said.
        day_before = source.said_on - timedelta(days=1)
        valid_until = min(valid_until or day_before, day_before)
    rows = tuple(source.lines[i].row_id for i in places)
    is_logged = any(rows)
    return Fact(
        content=new.content,
        category=new.category,
        confidence=new.confidence,
        quote=place.quote,
        said_as=new.said_as,
        about=new.about,
        valid_from=source.day(new.valid_from, 0),
        valid_until=valid_until,
        created_at=now,
        session_id=session_id if is_logged else None,
        message_ids=rows if is_logged else (),
        source=text,
    )


def _ended(fact: Fact, new: Fact | None, entry: Retirement, now: datetime, by: RetiredBy) -> Fact:
    """Return a fact as it is stored when the user's words have ended it, by the reason that the model gives."""
    reason = entry.reason[:MAX_FACT] or "The user said that it is true no longer."
    if entry.replaced_by and new is None:
        reason += " What is true instead was not stored."
    return retire(fact, reason, now, new.id if new else None, by=by)
