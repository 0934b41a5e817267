"""Decides what of a model's reply is stored: only what is based on the user's own words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from llama_index_memory_ext.fact import DEFAULT_MIN_CONFIDENCE, Fact, RetiredBy, normalised, raised, retire
from llama_index_memory_ext.facts.checks import (
    CHECKS,
    DOUBTS,
    ENDING_CHECKS,
    MAX_FACT,
    Candidate,
    Ending,
    Rejection,
    first_rejection,
    is_said_again,
)
from llama_index_memory_ext.facts.history import why_retired
from llama_index_memory_ext.facts.source import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.facts.checks import Check
    from llama_index_memory_ext.facts.reply import ExtractionReply
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
        checks: What a new fact must pass, besides ``DOUBTS``.
        context: What was said right before, which nothing is quoted from, but which names and questions may come from.
        others: What tools and pages said, for ``TOOL_CHECKS``: no keyword of a new fact may be theirs alone.
        retired_by: By what facts are retired; None: by what the quote and the reason say. With "request", past facts
            can be retired, too.
    """
    source = Source(lines, context, others, now.date(), [*known, *active])
    by_content = {normalised(fact.content): fact for fact in reversed(source.known) if not fact.retired}
    # Of two new facts with one label it stands for the first, and for None if that was rejected.
    by_label: dict[str, Fact | None] = {}
    accepted, confirmed, retired = list[Fact](), dict[str, Fact](), dict[str, Fact]()
    rejected, doubted = list[Rejection | None](), list[tuple[Fact, Rejection]]()

    for new in reply.new_facts:
        content, candidate = normalised(new.content), Candidate(new, source.find(new.quote), min_confidence)
        fact, rejection = _judged(candidate, by_content.get(content), source, checks, now, session_id)
        if fact and rejection is _KNOWN:
            confirmed[fact.id] = raised(fact, now)
        elif fact and rejection:
            doubted.append((fact, rejection))
            fact = None
        elif fact:
            accepted.append(fact)
            by_content[content] = fact
        rejected.append(rejection)
        by_label.setdefault(new.label, fact)

    is_asked = retired_by == "request"
    quotes = Counter(entry.quote for entry in reply.retired)
    for entry in reply.retired:
        old, instead = _known_fact(entry.number, known, now, past=is_asked), by_label.get(entry.replaced_by)
        if old is None or old.id in retired:
            rejected.append(_UNKNOWN if old is None else Rejection("duplicate", "It is retired already."))
            continue
        ending = Ending(old, entry, source.find(entry.quote), instead, quotes[entry.quote] == 1, is_asked)
        rejection = first_rejection(ending, source, ENDING_CHECKS)
        if rejection is None:
            retired[old.id] = _ended(ending, source, now, retired_by)
        rejected.append(rejection)

    for number in reply.confirmed:
        again = _known_fact(number, known, now)
        rejection = is_said_again(again, source) if again else _UNKNOWN
        if again and rejection is None:
            confirmed[again.id] = raised(again, now)
        rejected.append(rejection)

    others_ids = {*retired, *(fact.id for fact in accepted)}
    left = tuple(fact for fact in confirmed.values() if fact.id not in others_ids)
    ended = {(normalised(fact.content), fact.valid_until) for fact in past if not fact.retired}
    stored = tuple(fact for fact in accepted if (normalised(fact.content), fact.valid_until) not in ended)
    rejected += [_KNOWN] * (len(accepted) - len(stored))
    return ValidatedReply(stored, left, tuple(retired.values()), tuple(filter(None, rejected)), tuple(doubted))


def _known_fact(number: int, known: Sequence[Fact], now: datetime, *, past: bool = False) -> Fact | None:
    fact = known[number - 1] if 0 < number <= len(known) else None
    return fact if fact and (not fact.retired or (past and fact.state(now) == "past")) else None


def _judged(
    candidate: Candidate,
    known: Fact | None,
    source: Source,
    checks: Sequence[Check],
    now: datetime,
    session_id: str | None,
) -> tuple[Fact | None, Rejection | None]:
    """Return the fact of a candidate, which may be ``known``, and why it is not stored as a new one.

    With a fact and a rejection it is known, or only its names and numbers speak against it. The source of a new one is
    the text of the lines with its quote and around them. What was said elsewhere stands in no row, and in no session.
    """
    new, place, _ = candidate
    rejection = first_rejection(candidate, source, checks)
    if rejection or place is None:
        return None, rejection
    doubt = first_rejection(candidate, source, DOUBTS)
    if known:
        return (None, doubt) if doubt else (known, _KNOWN)
    places, text = source.around(place)
    valid_until = source.day(new.valid_until, 1)
    if new.said_as == "past":
        # It was over when it was said.
        day_before = source.said_on - timedelta(days=1)
        valid_until = min(valid_until or day_before, day_before)
    rows = tuple(source.lines[i].row_id for i in places)
    fact = Fact(
        **new.model_dump(include={"content", "category", "confidence", "said_as", "about"}),
        quote=place.quote,
        valid_from=source.day(new.valid_from, 0),
        valid_until=valid_until,
        created_at=now,
        session_id=session_id if any(rows) else None,
        message_ids=rows if any(rows) else (),
        source=text,
    )
    return fact, doubt


def _ended(ending: Ending, source: Source, now: datetime, by: RetiredBy | None) -> Fact:
    """Return a fact as it is stored when the user's words have ended it, by the reason that the model gives."""
    fact, entry, _, new, *_ = ending
    reason = entry.reason[:MAX_FACT] or "The user said that it is true no longer."
    if entry.replaced_by and new is None:
        reason += " What is true instead was not stored."
    fact = fact.model_copy(update={"valid_until": source.day(entry.valid_until, 1) or fact.valid_until})
    by = by or why_retired(f"{entry.quote}\n{entry.reason}")
    return retire(fact, reason, max(fact.updated_at, now), new.id if new else None, by=by)
