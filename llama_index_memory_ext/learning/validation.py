"""Validates a model's reply: returns the facts to store, confirm and retire, and the rejections."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING

from llama_index_memory_ext.checks.clauses import (
    count_shared,
    denies,
    statements_of,
    states_something,
    tells_past,
)
from llama_index_memory_ext.checks.comparison import says_more
from llama_index_memory_ext.checks.evidence import NOWHERE, Source
from llama_index_memory_ext.checks.secrets import holds_secret
from llama_index_memory_ext.events import Rejection
from llama_index_memory_ext.fact import (
    DEFAULT_MIN_CONFIDENCE,
    MAX_FACT,
    Fact,
    RetiredBy,
    SaidAs,
    confirm_again,
    duplicate_key,
    retire,
)
from llama_index_memory_ext.learning.rejections import (
    CHECKS,
    ENDING_CHECKS,
    STATED_CHECKS,
    Candidate,
    Check,
    Ending,
    first_rejection,
)
from llama_index_memory_ext.words import phrases, tokens_in, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.learning.reply import NewFact
    from llama_index_memory_ext.text.turns import Utterance


_NO_SUCH_FACT = Rejection("unknown_fact", "It names no active fact.")
_KNOWN_ALREADY = Rejection("duplicate", "It is known already.")
# The most words of a sentence that is stored, about 60 tokens.
_MOST_WORDS = 45
# Of a question that is stored with its answer, the last characters: both stay below
# ``MAX_FACT``.
_MOST_ASKED = 400


@dataclass(frozen=True, slots=True)
class ValidatedReply:
    """The facts that a reply changes, and the rejections of its other entries.

    Attributes:
        accepted: New facts.
        confirmed: Known facts that the user says again; none of them is retired.
        retired: Known facts that end.
        rejected: The reasons for entries that are not stored.
    """

    accepted: tuple[Fact, ...] = field(default=(), repr=False)
    confirmed: tuple[Fact, ...] = field(default=(), repr=False)
    retired: tuple[Fact, ...] = field(default=(), repr=False)
    rejected: tuple[Rejection, ...] = ()

    @property
    def rejections(self) -> dict[str, int]:
        """The number of rejections for each reason; {} if there are none."""
        return dict(Counter(rejection.reason for rejection in self.rejected))


def validate_reply(
    reply: Sequence[NewFact],
    lines: Sequence[Utterance],
    known_facts: Sequence[Fact],
    *,
    now: datetime,
    active: Sequence[Fact] = (),
    session_id: str | None = None,
    min_confidence: float = DEFAULT_MIN_CONFIDENCE,
    checks: Sequence[Check] = CHECKS,
    context: Sequence[Utterance] = (),
    tool_text: str = "",
    is_request: bool = False,
) -> ValidatedReply:
    """Check each entry of a reply against the conversation.

    Args:
        reply: The entries of the model's reply to an ``extraction_prompt`` with these
            lines.
        lines: The conversation.
        known_facts: The facts that the reply names by their places in this list, from 1.
        now: When the conversation took place and new facts are created, with a time
            zone.
        active: Further present and pending facts, so that none is stored twice.
        session_id: The session of new facts.
        min_confidence: 0..1; new facts with less are rejected.
        checks: The checks that a new fact must pass before ``STATED_CHECKS``.
        context: The messages right before the lines. Nothing is quoted from them, but
            names and questions may come from them.
        tool_text: The texts of tools and pages, for ``TOOL_CHECKS``: a new fact may have
            no keyword that only they have.
        is_request: Whether the entries come from a tool for requests to forget, which
            can retire past facts, too. Otherwise the quote of each entry tells why its
            fact ends.
    """
    validation = _Validation(
        Source(lines, context, tool_text, [*known_facts, *active]),
        known_facts,
        now,
        session_id,
        is_request,
    )
    quotes = Counter(entry.quote for entry in reply if entry.ends)
    for entry in reply:
        new = None
        if entry.content or not entry.ends:
            new = validation.add(entry, checks, min_confidence)
        if entry.ends:
            validation.end(entry, new, is_only=quotes[entry.quote] == 1)
    changed = {*validation.retired, *(fact.id for fact in validation.accepted)}
    confirmed = [
        fact for name, fact in validation.confirmed.items() if name not in changed
    ]
    return ValidatedReply(
        tuple(validation.accepted),
        tuple(confirmed),
        tuple(validation.retired.values()),
        tuple(validation.rejected),
    )


@dataclass
class _Validation:
    """Checks the entries of a reply, and collects the results.

    ``known_facts``: the facts that entries name by number; ``source.stored_facts`` also has
    the other present and pending facts.
    """

    source: Source
    known_facts: Sequence[Fact]
    now: datetime
    session_id: str | None
    is_request: bool
    accepted: list[Fact] = field(default_factory=list)
    confirmed: dict[str, Fact] = field(default_factory=dict)
    retired: dict[str, Fact] = field(default_factory=dict)
    rejected: list[Rejection] = field(default_factory=list)

    @cached_property
    def by_content(self) -> dict[str, Fact]:
        """The facts that hold or are pending, and the accepted facts, by their normalised contents."""
        return {
            duplicate_key(fact.content): fact
            for fact in reversed(self.source.stored_facts)
            if not fact.retired
        }

    def add(
        self, new: NewFact, checks: Sequence[Check], min_confidence: float
    ) -> Fact | None:
        """Return the new fact, or the known fact that it repeats; None if it is rejected."""
        place = self.source.find(new.quote) or self.source.find_copy(new.content)
        candidate = Candidate(
            self.source, new, new.content, place or NOWHERE, min_confidence
        )
        rejection = first_rejection(candidate, checks)
        if rejection is None:
            candidate = choose_wording(candidate)
            rejection = first_rejection(candidate, STATED_CHECKS)
        if rejection:
            self.rejected.append(_with_statement(rejection, new.content))
            return None
        return self._accept(candidate)

    def _accept(self, candidate: Candidate) -> Fact:
        """Return the new fact, or the known fact that says the same.

        A known fact is confirmed, and the entry counts as rejected.
        """
        content = duplicate_key(candidate.content)
        fact = self.by_content.get(content)
        if fact is None:
            fact = self._new_fact(candidate)
            self.by_content[content] = fact
            self.accepted.append(fact)
        else:
            self.rejected.append(_KNOWN_ALREADY)
            self.confirmed[fact.id] = confirm_again(fact, self.now)
        return fact

    def end(self, entry: NewFact, new: Fact | None, *, is_only: bool) -> None:
        """Retire a known fact, which a new one may replace, or reject its end."""
        fact = self._known_fact(entry.ends)
        if fact is None or fact.id in self.retired:
            self.rejected.append(_NO_SUCH_FACT)
            return
        place = self.source.find(entry.quote) or NOWHERE
        ending = Ending(self.source, fact, entry, place, new, is_only, self.is_request)
        rejection = first_rejection(ending, ENDING_CHECKS)
        if rejection:
            self.rejected.append(rejection)
            return
        reason = "The user said that it is no longer true."
        retired_by = why_retired(entry.quote)
        if self.is_request:
            reason = "The user asked to forget it."
            retired_by = "request"
        self.retired[fact.id] = retire(
            fact,
            reason,
            max(fact.updated_at, self.now),
            new.id if new else None,
            by=retired_by,
        )

    def _known_fact(self, number: int) -> Fact | None:
        """Return the fact that an entry names; None for a wrong number or a retired fact.

        A request can also end a fact of the past.
        """
        if not 0 < number <= len(self.known_facts):
            return None
        fact = self.known_facts[number - 1]
        is_past = fact.state(self.now) == "past"
        if not fact.retired or (self.is_request and is_past):
            return fact
        return None

    def _new_fact(self, new: Candidate) -> Fact:
        """Return a new fact with the text around its quote as its source.

        A quote that is in no row of the log, as in the text of a program, gives a fact
        without a session.
        """
        place = new.place
        said_as: SaidAs = "stated"
        last_day = None
        if tells_past(new.content, place.sentences):
            said_as = "past"
            last_day = self.now.date() - timedelta(days=1)
        quoted = self.source.quoted_lines(place)
        rows = tuple(self.source.lines[i].row_id for i in quoted)
        return Fact(
            content=new.content,
            category=new.reported.category,
            confidence=new.reported.confidence,
            said_as=said_as,
            quote=new.content if new.is_users_words else place.quote,
            valid_until=last_day,
            created_at=self.now,
            session_id=self.session_id if any(rows) else None,
            message_ids=rows if any(rows) else (),
            source=self.source.text_around(place),
        )


def _with_statement(rejection: Rejection, content: str) -> Rejection:
    """Return a rejection with the rejected statement.

    The statement is left out if it is too long or has a secret, or if a secret is the
    reason.
    """
    is_secret = rejection.reason == "secret"
    if is_secret or len(content) > MAX_FACT or holds_secret(content):
        return rejection
    return replace(rejection, content=visible(content))


def why_retired(text: str) -> RetiredBy:
    """Return why a fact ended, from the user's words.

    >>> why_retired("I moved to Rome"), why_retired("I never lived in Oslo"), why_retired("Forget where I live")
    ('change', 'correction', 'request')
    """
    straight = text.replace("\u2019", "'")
    if phrases("past", "forget").search(straight):
        return "request"
    if phrases("past", "never_true").search(straight):
        return "correction"
    return "change"


def choose_wording(candidate: Candidate) -> Candidate:
    """Return the candidate with its statements, or with the user's words if the statements say more than the user did.

    The user's words are the sentence of the quote that is closest to the fact; of a
    sentence over 45 words, only the quote. They are cut after 500 characters. A short
    answer is stored together with its question; an answer that denies is always stored
    so.
    """
    source = candidate.source
    place = candidate.place
    question = candidate.question
    statement = statements_of(candidate.content)
    words = source.words_at(place)
    is_no = bool(question) and denies(place.text)
    if statement and not is_no and not says_more(statement, words, source.facts_text):
        return candidate._replace(content=statement)
    if question:
        answer = (
            f'Asked "{question[-_MOST_ASKED:]}", the user said "{place.text.strip()}".'
        )
        return candidate._replace(content=answer[:MAX_FACT])
    stating = list(filter(states_something, place.sentences))
    sentence = max(
        stating or place.sentences,
        key=partial(count_shared, candidate.content),
        default="",
    )
    if len(tokens_in(sentence)) > _MOST_WORDS:
        sentence = place.quote
    return candidate._replace(content=sentence[:MAX_FACT], is_users_words=True)
