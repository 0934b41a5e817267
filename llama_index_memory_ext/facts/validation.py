"""Decides what of a model's reply is kept: whatever does not stand on the user's own words is rejected."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from llama_index_memory_ext.fact import DEFAULT_MIN_CONFIDENCE, Fact, normalised
from llama_index_memory_ext.facts.grounding import Evidence, comparable, find_quote, telling_words
from llama_index_memory_ext.facts.offences import offence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import date, datetime

    from llama_index_memory_ext.facts.reply import ExtractionReply, NewFact, Retirement
    from llama_index_memory_ext.text.messages import Line

LONGEST_FACT = 500
LONGEST_QUOTE = 2_000

Kind = Literal["new_fact", "confirmation", "retirement"]
Reason = Literal[
    "duplicate",
    "echo",
    "instruction",
    "low_confidence",
    "name_not_said",
    "no_quote",
    "not_the_users_words",
    "number_not_said",
    "permission",
    "pinned",
    "quote_not_found",
    "replacement_rejected",
    "secret",
    "too_long",
    "unknown_fact",
    "unreadable",
]

# How far from the day of the conversation a date may lie that was worked out from "next March".
_DATES_REACH = timedelta(days=366)
_SOURCE_CHARACTERS = 2_000
_ALIKE = 0.6
_OFFENCES = {
    "secret": "It holds a password, a key or another secret.",
    "permission": "It would give the assistant a permission.",
    "instruction": "It is an instruction for a single answer, or against the assistant's own.",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """What was not kept, and why. ``reason`` is fit for logs and counts; the other texts hold words of the user's."""

    kind: Kind
    reason: Reason
    detail: str = field(repr=False)
    content: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class RetiredFact:
    """A known fact that is true no longer, why, and the id of the fact that holds instead, if one does."""

    fact_id: str
    reason: str = field(repr=False)
    replaced_by: str | None = None


@dataclass(frozen=True, slots=True)
class Gated:
    """What of a reply is kept (in the reply's order), and what is not. A retired fact is never also confirmed."""

    accepted: tuple[Fact, ...] = ()
    confirmed: tuple[str, ...] = ()
    retired: tuple[RetiredFact, ...] = ()
    rejected: tuple[Rejection, ...] = ()

    @property
    def rejections(self) -> dict[Reason, int]:
        """How many rejections there were for each reason; {} if everything was kept."""
        return dict(Counter(rejection.reason for rejection in self.rejected))


def gate(
    reply: ExtractionReply,
    lines: Sequence[Line],
    known: Sequence[Fact],
    *,
    now: datetime,
    new_id: Callable[[], str],
    active: Sequence[Fact] = (),
    injected: Iterable[str] = (),
    said_on: date | None = None,
    namespace: str = "",
    session_id: str | None = None,
    min_confidence: float = DEFAULT_MIN_CONFIDENCE,
    least_said: float = 0.0,
) -> Gated:
    """What of a reply may be stored.

    Args:
        reply: The model's reply to an ``extraction_prompt`` with these lines and known facts.
        lines: What was said.
        known: The facts that the reply names by their places in this list, from 1.
        now: When new facts were created, with a time zone.
        new_id: Gives each new fact its id.
        active: Further active facts, so that none is stored twice.
        injected: Contents of facts that the assistant was shown of late, besides the known and active ones.
        said_on: The day of the conversation, if it was not today.
        namespace: Whose facts they are.
        session_id: Where they were said.
        min_confidence: 0..1; new facts of less are rejected.
        least_said: 0..1; the share of a new fact's words that the user must have said, one of them in the quote. 0 for
            a model that is shown the conversation alone; one that reads web pages may be told what to report.
    """
    here = _Conversation(tuple(lines), said_on or now.date())
    shown = [*(fact.content for fact in (*known, *active)), *injected]
    new = _NewFacts(_ids_by_content([*known, *active]))
    for candidate in reply.new_facts:
        why = next(_complaints(candidate, here, shown, min_confidence), None)
        if why is None and least_said and not _is_the_users(candidate, here, least_said):
            why = "not_the_users_words", "Too few of its words are the user's own."
        if why:
            new.reject(candidate, *why)
        elif not new.repeats(candidate):
            fact = _fact(candidate, here, new_id(), now)
            new.keep(candidate, fact.model_copy(update={"namespace": namespace, "session_id": session_id}))
    retired, unfounded = _retirements(reply.retired, known, new.id_of_label, here)
    confirmed, unheard = _confirmations(reply.confirmed, known, here)
    gone = {entry.fact_id for entry in retired}
    return Gated(
        accepted=tuple(new.accepted),
        confirmed=tuple(dict.fromkeys(one for one in (*new.repeated, *confirmed) if one not in gone)),
        retired=tuple(retired),
        rejected=(*new.rejected, *unfounded, *unheard),
    )


@dataclass(frozen=True)
class _Conversation:
    """The lines, and where a quote stands in them."""

    lines: tuple[Line, ...]
    said_on: date

    def find(self, quote: str, *, by_user: bool = True) -> list[tuple[Line, int]]:
        """The lines of the user (or of the others) that hold a quote, and about where."""
        places = [
            (line, find_quote(quote, text))
            for line, text in zip(self.lines, self._texts, strict=True)
            if line.is_users == by_user
        ]
        return [(line, place) for line, place in places if place >= 0]

    def around(self, said: Sequence[tuple[Line, int]]) -> str:
        """The words of the lines that were found, and of those beside them: by these a fact is found too."""
        places = {line.row_id: place for line, place in said}
        found = [i for i, line in enumerate(self.lines) if line.row_id in places]
        beside = self.lines[max(found[0] - 1, 0) : found[-1] + 2]
        return "\n".join(_part(line.text, places.get(line.row_id, 0)) for line in beside)

    @cached_property
    def evidence(self) -> Evidence:
        """What was said by anyone; a user may say yes to a name or a number."""
        return self._evidence(self.lines)

    @cached_property
    def users_words(self) -> Evidence:
        """What the user said."""
        return self._evidence([line for line in self.lines if line.is_users])

    @cached_property
    def _texts(self) -> list[str]:
        return [comparable(line.text) for line in self.lines]

    def _evidence(self, lines: Iterable[Line]) -> Evidence:
        text = "\n".join(line.text for line in lines)
        return Evidence(text, first_day=self.said_on - _DATES_REACH, last_day=self.said_on + _DATES_REACH)


@dataclass
class _NewFacts:
    """New facts as they pass one after the other, with the id of the fact that each label stands for.

    Of two candidates with one label it stands for the first, and for nothing if that was rejected.
    """

    known_ids: dict[str, str]
    accepted: list[Fact] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    id_of_label: dict[str, str | None] = field(default_factory=dict)

    def reject(self, candidate: NewFact, reason: Reason, detail: str) -> None:
        self.rejected.append(Rejection("new_fact", reason, detail, candidate.content))
        self.id_of_label.setdefault(candidate.label, None)

    def repeats(self, candidate: NewFact) -> bool:
        """Whether it is known already, or was in this reply before; then it confirms the known fact."""
        known_id = self.known_ids.get(normalised(candidate.content))
        if known_id is None:
            return False
        self.id_of_label.setdefault(candidate.label, known_id)
        self.reject(candidate, "duplicate", "It is known already.")
        if all(known_id != fact.id for fact in self.accepted):
            self.repeated.append(known_id)
        return True

    def keep(self, candidate: NewFact, fact: Fact) -> None:
        self.accepted.append(fact)
        self.known_ids[normalised(fact.content)] = fact.id
        self.id_of_label.setdefault(candidate.label, fact.id)


def _fact(new: NewFact, here: _Conversation, fact_id: str, now: datetime) -> Fact:
    said = here.find(new.quote)
    return Fact(
        id=fact_id,
        content=new.content,
        category=new.category,
        confidence=new.confidence,
        created_at=now,
        message_ids=tuple(line.row_id for line, _ in said),
        quote=new.quote,
        source=here.around(said),
    )


def _complaints(
    new: NewFact, here: _Conversation, shown: Sequence[str], min_confidence: float
) -> Iterator[tuple[Reason, str]]:
    """What speaks against a new fact, the cheapest to find first."""
    if not new.content:
        yield "unreadable", "There is no statement in it."
    if len(new.content) > LONGEST_FACT:
        yield "too_long", f"It has {len(new.content)} characters; a fact has at most {LONGEST_FACT}."
    if len(new.quote) > LONGEST_QUOTE:
        yield "too_long", f"Its quote has {len(new.quote)} characters; at most {LONGEST_QUOTE} are kept."
    if new.confidence < min_confidence:
        yield "low_confidence", f"Its confidence is {new.confidence:.2f}; at least {min_confidence:.2f} is needed."
    forbidden = offence(new.content) or offence(new.quote)
    if forbidden:
        yield forbidden, _OFFENCES[forbidden]
    if not new.quote.strip():
        yield "no_quote", "It names no words of the user's that say it."
    if not here.find(new.quote):
        yield _why_not_the_users(new, here, shown)
    numbers = here.evidence.unsaid_numbers(new.content)
    if numbers:
        yield "number_not_said", f"Nobody said {', '.join(numbers)}."
    names = here.evidence.unsaid_names(new.content)
    if names:
        yield "name_not_said", f"Nobody said {', '.join(names)}."


def _is_the_users(new: NewFact, here: _Conversation, least_said: float) -> bool:
    words = telling_words(new.content)
    if not words:
        # Nothing can be compared, so it must be what was said.
        return bool(here.find(new.content))
    in_quote = not words.isdisjoint(telling_words(new.quote))
    return in_quote and here.users_words.share_said(new.content) >= least_said


def _why_not_the_users(new: NewFact, here: _Conversation, shown: Sequence[str]) -> tuple[Reason, str]:
    if not here.find(new.quote, by_user=False):
        return "quote_not_found", "Its quote is not in the conversation."
    if any(_alike(new.content, content) for content in shown):
        return "echo", "Only the assistant said it, repeating what it was shown."
    return "not_the_users_words", "Only the assistant said it."


def _retirements(
    entries: Iterable[Retirement], known: Sequence[Fact], id_of_label: Mapping[str, str | None], here: _Conversation
) -> tuple[list[RetiredFact], list[Rejection]]:
    retired: dict[str, RetiredFact] = {}
    rejected = []
    for entry in entries:
        fact = _numbered(entry.number, known)
        if fact is None:
            rejected.append(Rejection("retirement", "unknown_fact", "It names no fact that is known."))
            continue
        new_id = id_of_label.get(entry.replaced_by) if entry.replaced_by else None
        why = next(_objections(entry, fact, new_id, here), None)
        if why is None and fact.id in retired:
            why = "duplicate", "It is retired already."
        if why:
            rejected.append(Rejection("retirement", *why, fact.content))
        else:
            reason = entry.reason[:LONGEST_FACT] or "The user said that it is true no longer."
            retired[fact.id] = RetiredFact(fact.id, reason, new_id)
    return list(retired.values()), rejected


def _objections(entry: Retirement, fact: Fact, new_id: str | None, here: _Conversation) -> Iterator[tuple[Reason, str]]:
    """What speaks against retiring a known fact."""
    if fact.pinned:
        yield "pinned", "A pinned fact stays until somebody unpins it."
    if entry.quote.strip() and not here.find(entry.quote):
        yield "quote_not_found", "Its quote is not in the user's words."
    if entry.replaced_by and new_id is None:
        yield "replacement_rejected", "The fact that should replace it was not accepted."
    if new_id == fact.id:
        yield "replacement_rejected", "The fact that should replace it says the same."


def _confirmations(
    numbers: Iterable[int], known: Sequence[Fact], here: _Conversation
) -> tuple[list[str], list[Rejection]]:
    confirmed, rejected = [], []
    for number in numbers:
        fact = _numbered(number, known)
        if fact is None:
            rejected.append(Rejection("confirmation", "unknown_fact", "It names no fact that is known."))
        elif not here.users_words.shares_words(fact.content):
            # Else the assistant, repeating what it was shown, would make the fact ever surer.
            why = "No word of it is in the user's words."
            rejected.append(Rejection("confirmation", "not_the_users_words", why, fact.content))
        else:
            confirmed.append(fact.id)
    return confirmed, rejected


def _numbered(number: int, known: Sequence[Fact]) -> Fact | None:
    fact = known[number - 1] if 1 <= number <= len(known) else None
    return None if fact is None or fact.retired else fact


def _ids_by_content(facts: Iterable[Fact]) -> dict[str, str]:
    ids: dict[str, str] = {}
    for fact in facts:
        if not fact.retired:
            ids.setdefault(normalised(fact.content), fact.id)
    return ids


def _alike(one: str, other: str) -> bool:
    words, others = telling_words(one), telling_words(other)
    fewest = min(len(words), len(others))
    return fewest > 0 and len(words & others) >= _ALIKE * fewest


def _part(text: str, place: int) -> str:
    """The words around a place: a fact is not found by the whole of a book."""
    start = max(0, min(place - _SOURCE_CHARACTERS // 2, len(text) - _SOURCE_CHARACTERS))
    return text[start : start + _SOURCE_CHARACTERS]
