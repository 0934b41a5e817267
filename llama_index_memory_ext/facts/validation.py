"""Decides what of a model's reply is stored: only what is based on the user's own words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from llama_index_memory_ext.fact import DEFAULT_MIN_CONFIDENCE, Fact, normalised, raised, retire
from llama_index_memory_ext.facts.checks import (
    MAX_FACT,
    Rejection,
    content_reasons,
    ending_reasons,
    form_reasons,
    quote_reasons,
    retirement_reasons,
)
from llama_index_memory_ext.facts.evidence import Evidence
from llama_index_memory_ext.facts.history import why_retired
from llama_index_memory_ext.grounding.words import keywords, shared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from llama_index_memory_ext.fact import RetiredBy
    from llama_index_memory_ext.facts.evidence import Place
    from llama_index_memory_ext.facts.reply import ExtractionReply, NewFact, Retirement
    from llama_index_memory_ext.text.messages import Utterance


@dataclass(frozen=True, slots=True)
class ValidatedReply:
    """What of a reply is stored, and what is not. A retired fact is never also confirmed."""

    accepted: tuple[Fact, ...] = field(default=(), repr=False)
    confirmed: tuple[Fact, ...] = field(default=(), repr=False)
    retired: tuple[Fact, ...] = field(default=(), repr=False)
    rejected: tuple[Rejection, ...] = ()

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
    session_id: str | None = None,
    min_confidence: float = DEFAULT_MIN_CONFIDENCE,
    min_keyword_share: float = 0.0,
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
        session_id: The session of new facts.
        min_confidence: 0..1; new facts with less are rejected.
        min_keyword_share: 0..1; the share of a new fact's keywords that the user must have used. 0 for a model that
            reads only the conversation, and no web pages.
        context: What was said right before, which nothing is quoted from, but which names and questions may come from.
        others: With ``min_keyword_share``, what tools and pages said: no keyword of a new fact may be theirs alone.
        retired_by: By what facts are retired; None: by what the quote and the reason say. With "request", past facts
            can be retired, too.
    """
    evidence = Evidence(lines, context, others, now.date(), [*known, *active])
    validation = _Validation(evidence, known, now, session_id, min_confidence, min_keyword_share, retired_by)
    for new in reply.new_facts:
        validation.add(new)
    quotes = Counter(entry.quote for entry in reply.retired)
    for entry in reply.retired:
        validation.retire(entry, quoted=quotes[entry.quote])
    for number in reply.confirmed:
        validation.confirm(number)
    return validation.result()


def without_repeats(valid: ValidatedReply, past: Sequence[Fact]) -> ValidatedReply:
    """The reply without new facts that have ended on the same day as a known one that says the same."""
    known = {(normalised(fact.content), fact.valid_until) for fact in past if not fact.retired}
    new = tuple(fact for fact in valid.accepted if (normalised(fact.content), fact.valid_until) not in known)
    repeats = (Rejection("duplicate", "It is known already."),) * (len(valid.accepted) - len(new))
    return replace(valid, accepted=new, rejected=(*valid.rejected, *repeats)) if repeats else valid


def owned(valid: ValidatedReply, agent_id: str | None) -> ValidatedReply:
    """The reply with new facts of an agent, None: shared ones. What takes the place of a shared fact is shared, too."""
    if agent_id is None:
        return valid
    shared_ids = {fact.replaced_by for fact in valid.retired if fact.agent_id is None}
    new = (fact if fact.id in shared_ids else fact.model_copy(update={"agent_id": agent_id}) for fact in valid.accepted)
    return replace(valid, accepted=tuple(new))


@dataclass
class _Validation:
    """What was said, the facts that a reply names, and what of the reply is stored so far."""

    evidence: Evidence
    known: Sequence[Fact]
    now: datetime
    session_id: str | None
    min_confidence: float
    min_keyword_share: float
    retired_by: RetiredBy | None

    def __post_init__(self) -> None:
        known = (fact for fact in reversed(self.evidence.known) if not fact.retired)
        self._by_content = {normalised(fact.content): fact for fact in known}
        # Of two new facts with one label it stands for the first, and for None if that was rejected.
        self._by_label: dict[str, Fact | None] = {}
        self._accepted: list[Fact] = []
        self._confirmed: dict[str, Fact] = {}
        self._retired: dict[str, Fact] = {}
        self._rejected: list[Rejection] = []

    def add(self, new: NewFact) -> None:
        """Accepts a new fact unless it is rejected. If it is known already, that fact is confirmed."""
        content, fact = normalised(new.content), None
        place = self.evidence.find(new.quote)
        if not self._is_rejected(self._reasons(new, place)) and place:
            fact = self._by_content.get(content)
            if fact:
                self._confirm(fact)
                self._rejected.append(Rejection("duplicate", "It is known already."))
            else:
                fact = self._by_content[content] = self._fact(new, place)
                self._accepted.append(fact)
        self._by_label.setdefault(new.label, fact)

    def retire(self, entry: Retirement, *, quoted: int) -> None:
        """Retires a known fact unless something is wrong with the entry; ``quoted`` entries have the same quote."""
        is_asked = self.retired_by == "request"
        fact = self._known_fact(entry.number, past=is_asked)
        new = self._by_label.get(entry.replaced_by) if entry.replaced_by else None
        if fact is None:
            return
        place = self.evidence.find(entry.quote)
        ending = ending_reasons(fact, new, place, self.evidence, is_only=quoted == 1, is_asked=is_asked)
        again = [Rejection("duplicate", "It is retired already.")] if fact.id in self._retired else []
        if not self._is_rejected(chain(again, retirement_reasons(fact, new, entry), ending)):
            self._retired[fact.id] = self._ended(fact, new, entry)

    def confirm(self, number: int) -> None:
        """Confirms a known fact if the user used any of its keywords: the assistant repeats what it was shown."""
        fact = self._known_fact(number)
        if fact and not shared(keywords(fact.content), self.evidence.users_keywords):
            self._rejected.append(Rejection("not_the_users_words", "No word of it is in the user's words."))
        elif fact:
            self._confirm(fact)

    def result(self) -> ValidatedReply:
        """Returns everything so far; a fact that is new or retired is not also confirmed."""
        others = {*self._retired, *(fact.id for fact in self._accepted)}
        confirmed = (fact for fact in self._confirmed.values() if fact.id not in others)
        retired = self._retired.values()
        return ValidatedReply(tuple(self._accepted), tuple(confirmed), tuple(retired), tuple(self._rejected))

    def _confirm(self, fact: Fact) -> None:
        then = max(fact.updated_at, self.now)
        self._confirmed[fact.id] = fact.model_copy(update={"confidence": raised(fact.confidence), "updated_at": then})

    def _known_fact(self, number: int, *, past: bool = False) -> Fact | None:
        fact = self.known[number - 1] if 0 < number <= len(self.known) else None
        if fact and (not fact.retired or (past and fact.state(self.now) == "past")):
            return fact
        self._rejected.append(Rejection("unknown_fact", "It names no fact that is known."))
        return None

    def _is_rejected(self, reasons: Iterable[Rejection]) -> bool:
        first = list(islice(reasons, 1))
        self._rejected += first
        return bool(first)

    def _reasons(self, new: NewFact, place: Place | None) -> Iterator[Rejection]:
        """Yields everything that is wrong with a new fact, the cheapest checks first."""
        yield from form_reasons(new, self.min_confidence)
        if place is None:
            yield from quote_reasons(new, self.evidence)
            return
        yield from content_reasons(new, place, self.evidence)
        share = self.min_keyword_share
        if share and not self.evidence.is_the_users(new.content, place, share):
            yield Rejection("not_the_users_words", "Too few of its words are the user's own.")

    def _ended(self, fact: Fact, new: Fact | None, entry: Retirement) -> Fact:
        """Returns a fact as it is stored when the user's words have ended it."""
        reason = entry.reason[:MAX_FACT] or "The user said that it is true no longer."
        if entry.replaced_by and new is None:
            reason += " What is true instead was not stored."
        by = self.retired_by or why_retired(f"{entry.quote}\n{entry.reason}")
        ended = retire(fact, reason, max(fact.updated_at, self.now), new.id if new else None, by=by)
        valid_until = self.evidence.day(entry.valid_until, 1)
        return ended.model_copy(update={"valid_until": valid_until}) if valid_until else ended

    def _fact(self, new: NewFact, place: Place) -> Fact:
        """Returns a new fact as it is stored. Its source is the text of the lines with its quote and around them.

        What was said elsewhere stands in no row, and in no session.
        """
        evidence, places = self.evidence, self.evidence.lines_with(place)
        rows = tuple(evidence.lines[i].row_id for i in sorted(places))
        is_logged = any(rows)
        return Fact(
            content=new.content,
            category=new.category,
            confidence=new.confidence,
            quote=place.quote,
            valid_from=evidence.day(new.valid_from, 0),
            valid_until=evidence.day(new.valid_until, 1),
            created_at=self.now,
            session_id=self.session_id if is_logged else None,
            message_ids=rows if is_logged else (),
            source=evidence.source(places),
        )
