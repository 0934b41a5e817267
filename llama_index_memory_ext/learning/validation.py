"""Validates a model's reply: checks its entries, and tells which facts are stored, confirmed and retired.

A check is a function that returns a ``Rejection`` or None. New facts must pass
``CHECKS``, which are about the quote, and then, in the words that are stored,
``STATED_CHECKS``. Facts from an agent's tool must pass ``TOOL_CHECKS`` instead of
``CHECKS``, and entries that end a known fact ``ENDING_CHECKS``. The first rejection
counts, so the cheapest checks stand first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cached_property
from time import thread_time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from llama_index_memory_ext.checks.clauses import (
    closest_clause,
    denies,
    is_about_stranger,
    is_small_talk,
    is_taken_back,
    may_ask,
    sentences_at,
    speaks_to_listener,
    statements_of,
    states,
    tells_change,
    tells_past,
    terms_of_changes,
    unsaid_reason,
)
from llama_index_memory_ext.checks.comparison import (
    closest_sentence,
    says_more,
    shares_word,
)
from llama_index_memory_ext.checks.evidence import (
    NOWHERE,
    QuoteMatch,
    Source,
    excerpt,
    find_quote,
)
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
from llama_index_memory_ext.learning.reply import ExtractionReply, NewFact, Retirement
from llama_index_memory_ext.text.entries import escape_tags
from llama_index_memory_ext.words import (
    is_translation,
    may_be_english,
    pattern,
    phrases,
    script_of,
    tokens_in,
    visible,
)
from llama_index_memory_ext.words.tokens import keywords, overlaps, shared

if TYPE_CHECKING:
    from llama_index_memory_ext.text.turns import Utterance


# The longest quote and word, in characters.
_MAX_QUOTE = 2_000
_MAX_WORD = 50
# The least share of the user's words in a fact from an agent's tool: alone, and where
# tools and pages have texts, too.
_USERS_SHARE = 0.4
_USERS_SHARE_BESIDE_OTHERS = 0.6
# The most words of a sentence that is stored, about 60 tokens.
_MOST_WORDS = 45
# Characters that people do not see: tags (U+E0000 to U+E007F), and marks that turn the
# direction of a text.
_INVISIBLE = "[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
_LONG_WORD = rf"[A-Za-z]{{{_MAX_WORD + 1}}}"
_UNSAID = {
    "asked": "The user only asked it.",
    "supposed": "The user only supposed it.",
    "quoted": "The words are somebody else's.",
    "denied": "The user said that it is not so.",
}


class Candidate(NamedTuple):
    """A new fact to check.

    ``place``: where its quote lies in the user's lines, or ``NOWHERE``.
    ``min_confidence``: the least confidence that it needs.
    ``is_users_words``: its content is the user's own sentence.
    """

    new: NewFact
    place: QuoteMatch
    min_confidence: float = 0.0
    is_users_words: bool = False


class Ending(NamedTuple):
    """A known fact that an entry ends.

    ``place``: where the quote of the entry lies in the user's lines, or ``NOWHERE``.
    ``new``: the new fact that holds instead.
    ``is_only``: no other fact is ended by the same quote.
    ``is_request``: a model has read the user's request before.
    """

    fact: Fact
    entry: Retirement
    place: QuoteMatch
    new: Fact | None
    is_only: bool
    is_request: bool


# ---- new facts ----

Checked = TypeVar("Checked")
Check = Callable[[Candidate, Source], Rejection | None]


def first_rejection(
    entry: Checked,
    source: Source,
    checks: Iterable[Callable[[Checked, Source], Rejection | None]],
) -> Rejection | None:
    """Return the rejection by the first check that gives one; None if all pass."""
    for check in checks:
        rejection = check(entry, source)
        if rejection:
            return rejection
    return None


def reject_unreadable(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject contents that no person would write, or that a model reads in another way than a person.

    Hidden characters and the tags around memories in a prompt carry instructions. A
    very long word is an encoded text.
    """
    content = candidate.new.content
    quote = candidate.new.quote
    is_announcement = content.rstrip().endswith((":", "\uff1a"))
    is_empty = not any(map(str.isalnum, f"{content}{quote}"))
    if is_announcement or is_empty:
        return Rejection("unreadable", "There is no statement in it.")
    if pattern(_INVISIBLE).search(content):
        return Rejection("invisible", "It has invisible characters.")
    if escape_tags(content) != content:
        return Rejection("markup", "It has one of the tags around memories.")
    is_too_long = len(content) > MAX_FACT or len(quote) > _MAX_QUOTE
    if is_too_long or pattern(_LONG_WORD).search(content):
        return Rejection(
            "too_long",
            f"It has {len(content)} characters, and its quote {len(quote)}; a fact has {MAX_FACT} characters, "
            f"with words of at most {_MAX_WORD} letters, and its quote at most {_MAX_QUOTE}.",
        )
    return None


def reject_unsure(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject a fact that the model itself is not sure of."""
    confidence = candidate.new.confidence
    least = candidate.min_confidence
    if confidence >= least:
        return None
    return Rejection(
        "low_confidence",
        f"Its confidence is {confidence:.2f}; at least {least:.2f} is needed.",
    )


def reject_secret(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject passwords, keys and numbers of papers, because models and exports get the facts."""
    new = candidate.new
    if any(map(holds_secret, {new.content, new.quote, candidate.place.quote})):
        return Rejection("secret", "It holds a password, a key or another secret.")
    return None


def reject_unquoted(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact whose quote is not in the user's lines.

    The assistant repeats facts of the prompt, and invents some.
    """
    quote = candidate.new.quote
    if candidate.place is not NOWHERE:
        return None
    if not quote.strip():
        return Rejection("no_quote", "It names no words of the user's that say it.")
    for line in source.lines:
        if not line.is_users and find_quote(quote, line.text):
            return Rejection("not_the_users_words", "Only the assistant said it.")
    return Rejection("quote_not_found", "Its quote is not in the conversation.")


def reject_assistants_words(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a content that copies the assistant's words, behind a quote of the user's.

    A short answer may take over the words of its question.
    """
    is_answer = source.question(candidate.place)
    if not is_answer and source.is_the_assistants(candidate.new.content):
        return Rejection("not_the_users_words", "Only the assistant said it.")
    return None


def reject_small_talk(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject greetings, thanks and praise."""
    if is_small_talk(candidate.new.content):
        return Rejection("small_talk", "It says nothing of the user.")
    return None


def reject_unstated(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject a fact that the user's sentences only ask, suppose or quote, or that they take back."""
    content = candidate.new.content
    place = candidate.place
    reason = unsaid_reason(content, place.text, place.span)
    if not reason and is_taken_back(content, place.text, place.span):
        reason = "denied"
    if reason:
        return Rejection(reason, _UNSAID[reason])
    return None


def reject_others(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact about the assistant or an invented person, or about a person whom the words do not name."""
    place = candidate.place
    sentences = sentences_at(place.text, place.span)
    if not source.question(place) and all(map(speaks_to_listener, sentences)):
        return Rejection("other", "It is about the assistant, or about a text.")
    if candidate.is_users_words and is_about_stranger(sentences):
        return Rejection("other", "It is about somebody else, and does not say whom.")
    return None


def reject_few_users_words(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact with too few of the user's keywords, or with a keyword that only a tool's text has.

    A web page may tell an agent what to store.
    """
    if _is_users(candidate.new.content, candidate.place, source):
        return None
    return Rejection("not_the_users_words", "Too few of its words are the user's own.")


def reject_addition(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact of a tool that says more than the user did: its agent can try again.

    In scripts whose words are not stemmed, and in a translation, the user's sentence is
    stored instead.
    """
    place = candidate.place
    content = candidate.new.content
    words = f"{source.question(place)} {excerpt(place.text, place.span.start)}"
    if script_of(content) == "other" or is_translation(content, words):
        return None
    if not says_more(content, words, source.known_text, source.said_on):
        return None
    return Rejection("not_the_users_words", "It says more than the user did.")


def _is_users(content: str, place: QuoteMatch, source: Source) -> bool:
    words = keywords(content)
    answered = keywords(source.question(place))
    own = shared(words, source.users_keywords | answered)
    if not words:
        # Without keywords, the user must have said exactly this.
        return any(find_quote(content, text) for text in source.users_texts.values())
    if shared(words - own, keywords(source.tool_text)):
        return False
    if is_translation(content, place.text):
        # Words of two languages cannot be compared, and models often write English.
        return may_be_english(content)
    least = _USERS_SHARE_BESIDE_OTHERS if source.tool_text else _USERS_SHARE
    quoted = keywords(place.quote) | answered
    return len(own) >= least * len(words) and overlaps(words, quoted)


CHECKS = (
    reject_unreadable,
    reject_unsure,
    reject_secret,
    reject_unquoted,
    reject_assistants_words,
)
STATED_CHECKS = (
    reject_secret,
    reject_others,
    reject_unstated,
    reject_small_talk,
)
# An agent also reads the texts of tools and pages.
TOOL_CHECKS = (*CHECKS, reject_few_users_words, reject_addition)


# ---- in whose words a fact is stored ----


def in_said_words(candidate: Candidate, source: Source) -> Candidate:
    """Return a new fact without its questions, or in the user's words if it says more than the user did.

    The user's words are the sentence of the quote that is closest to the fact. A short
    answer is stored together with its question.
    """
    place = candidate.place
    question = source.question(place)
    statement = statements_of(candidate.new.content)
    around = excerpt(place.text, place.span.start)
    words = f"{question} {around}"
    names = f"{source.said}\n{source.known_text}"
    is_no = bool(question) and denies(place.text)
    if (
        statement
        and not is_no
        and not says_more(statement, words, names, source.said_on)
    ):
        return _with_content(candidate, statement)
    if question:
        answer = f'Asked "{question}", the user said "{place.text.strip()}".'
        return _with_content(candidate, answer)
    sentences = sentences_at(place.text, place.span)
    stating = list(filter(states, sentences))
    sentence = closest_sentence(candidate.new.content, stating or sentences)
    if len(tokens_in(sentence)) > _MOST_WORDS:
        sentence = place.quote[:MAX_FACT]
    in_users_words = candidate._replace(is_users_words=True)
    return _with_content(in_users_words, sentence)


def _stored_place(candidate: Candidate) -> QuoteMatch:
    """Return the place of the quote that is stored: of the whole sentence if that is the fact."""
    place = candidate.place
    if not candidate.is_users_words:
        return place
    sentence = candidate.new.content
    start = place.text.index(sentence)
    span = place.span._replace(start=start, end=start + len(sentence))
    return replace(place, span=span)


def _with_content(candidate: Candidate, content: str) -> Candidate:
    return candidate._replace(new=candidate.new.model_copy(update={"content": content}))


# ---- ends of known facts, and confirmations ----


def reject_pinned(ending: Ending, _: Source) -> Rejection | None:
    """Keep pinned facts."""
    if ending.fact.pinned:
        return Rejection("pinned", "A pinned fact stays until it is unpinned.")
    return None


def reject_repetition(ending: Ending, _: Source) -> Rejection | None:
    """Keep a fact whose replacement only repeats it."""
    if ending.new is not None and ending.new.id == ending.fact.id:
        return Rejection(
            "replacement_rejected", "The fact that should replace it says the same."
        )
    return None


def reject_unquoted_end(ending: Ending, _: Source) -> Rejection | None:
    """Keep a fact that the user's words do not end."""
    if not ending.entry.quote.strip():
        return Rejection("no_quote", "It names no words of the user's that end it.")
    if ending.place is not NOWHERE:
        return None
    return Rejection("quote_not_found", "Its quote is not in the user's words.")


def reject_uncontradicted(ending: Ending, source: Source) -> Rejection | None:
    """Keep a fact that the user's words do not contradict.

    Words that ask, suppose or quote contradict nothing. Other words end the fact in
    three cases: these words or the new fact share a word with the fact; they tell a
    change that ends no other fact or comes with a new fact; or a model has read the
    user's request before.
    """
    fact = ending.fact
    place = ending.place
    new = ending.new
    reason = unsaid_reason(fact.content, place.text, place.span)
    if reason:
        return Rejection(reason, _UNSAID[reason])
    sentences = " ".join(sentences_at(place.text, place.span))
    words = f"{sentences}\n{source.question(place)}\n{new.content if new else ''}"
    is_change = (ending.is_only or new is not None) and tells_change(sentences)
    if shares_word(fact.content, words) or is_change or ending.is_request:
        return None
    return Rejection("not_contradicted", "The user's words say nothing of it.")


ENDING_CHECKS = (
    reject_pinned,
    reject_repetition,
    reject_unquoted_end,
    reject_uncontradicted,
)


def reject_unrepeated(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject a confirmation whose words only ask or suppose the fact, or deny or end it."""
    content = candidate.new.content
    place = candidate.place
    sentences = sentences_at(place.text, place.span)
    if may_ask(closest_sentence(content, sentences)):
        return Rejection("asked", _UNSAID["asked"])
    if not (place.is_translated or shares_word(content, " ".join(sentences))):
        return Rejection("not_the_users_words", "The words say nothing of it.")
    clause = closest_clause(content, sentences).text
    is_denied = denies(clause) != denies(content)
    is_changed = tells_change(clause) and not overlaps(
        terms_of_changes(), keywords(content)
    )
    if is_denied or is_changed:
        return Rejection("denied", "The user's words deny it or end it.")
    return None


# ---- the whole reply ----

_UNKNOWN = Rejection("unknown_fact", "It names no known fact.")
_KNOWN = Rejection("duplicate", "It is known already.")
_RETIRED = Rejection("duplicate", "It is retired already.")
_NO_TIME = Rejection(
    "out_of_time",
    "The reply has so many entries that there was no time left to check it.",
)
# The most processor time for a reply. An ordinary reply takes less than a second.
_MOST_SECONDS = 10


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
    def claims(self) -> tuple[Fact, ...]:
        """The new and the retired facts."""
        return (*self.accepted, *self.retired)

    @property
    def rejections(self) -> dict[str, int]:
        """The number of rejections for each reason; {} if there are none."""
        return dict(Counter(rejection.reason for rejection in self.rejected))


def validate_reply(
    reply: ExtractionReply,
    lines: Sequence[Utterance],
    known_facts: Sequence[Fact],
    *,
    now: datetime,
    active: Sequence[Fact] = (),
    past: Sequence[Fact] = (),
    session_id: str | None = None,
    min_confidence: float = DEFAULT_MIN_CONFIDENCE,
    checks: Sequence[Check] = CHECKS,
    context: Sequence[Utterance] = (),
    tool_text: str = "",
    retired_by: RetiredBy | None = None,
) -> ValidatedReply:
    """Check each entry of a reply against the conversation.

    Args:
        reply: The model's reply to an ``extraction_prompt`` with these lines.
        lines: The conversation.
        known_facts: The facts that the reply names by their places in this list, from 1.
        now: When the conversation took place and new facts are created, with a time
            zone.
        active: Further present and pending facts, so that none is stored twice.
        past: Facts that were true before, so that none is stored twice with the same
            last day.
        session_id: The session of new facts.
        min_confidence: 0..1; new facts with less are rejected.
        checks: The checks that a new fact must pass before ``STATED_CHECKS``.
        context: The messages right before the lines. Nothing is quoted from them, but
            names and questions may come from them.
        tool_text: The texts of tools and pages, for ``TOOL_CHECKS``: a new fact may have
            no keyword that only they have.
        retired_by: Why facts end; if None, the quote and the reason of each entry tell.
            With "request", past facts can be retired, too.
    """
    validation = _Validation(
        Source(lines, context, tool_text, now.date(), [*known_facts, *active]),
        known_facts,
        now,
        session_id,
        retired_by,
    )
    quotes = Counter(entry.quote for entry in reply.retired)
    ends_at = thread_time() + _MOST_SECONDS
    entries: list[NewFact | Retirement] = [*reply.new_facts, *reply.retired]
    for entry in entries:
        if thread_time() > ends_at:
            rejection: Rejection | None = _NO_TIME
        elif isinstance(entry, NewFact):
            rejection = validation.add(entry, checks, min_confidence)
        else:
            rejection = validation.end(entry, is_only=quotes[entry.quote] == 1)
        if rejection:
            validation.rejected.append(rejection)
    return validation.result(past)


@dataclass
class _Validation:
    """Checks the entries of a reply, new facts first, and collects the results.

    ``by_label`` holds the first new fact of each label; None if it was not stored.
    """

    source: Source
    known_facts: Sequence[Fact]
    now: datetime
    session_id: str | None
    retired_by: RetiredBy | None
    accepted: list[Fact] = field(default_factory=list)
    confirmed: dict[str, Fact] = field(default_factory=dict)
    retired: dict[str, Fact] = field(default_factory=dict)
    rejected: list[Rejection] = field(default_factory=list)
    by_label: dict[str, Fact | None] = field(default_factory=dict)

    @cached_property
    def by_content(self) -> dict[str, Fact]:
        """The known facts and the accepted facts, by their normalised contents."""
        return {
            duplicate_key(fact.content): fact
            for fact in reversed(self.source.known_facts)
            if not fact.retired
        }

    def add(
        self, new: NewFact, checks: Sequence[Check], min_confidence: float
    ) -> Rejection | None:
        """Accept or reject a new fact, or confirm the known fact that it repeats."""
        place = self.source.find(new.quote) or self.source.find_copy(new.content)
        candidate = Candidate(new, place or NOWHERE, min_confidence)
        rejection = first_rejection(candidate, self.source, checks)
        if place and rejection is None:
            candidate = in_said_words(candidate, self.source)
            rejection = first_rejection(candidate, self.source, STATED_CHECKS)
            if rejection is None:
                return self._accept(candidate, _stored_place(candidate))
        self.by_label.setdefault(new.label, None)
        return rejection and _naming(rejection, new.content)

    def _accept(self, candidate: Candidate, place: QuoteMatch) -> Rejection | None:
        """Store a new fact, or confirm the known fact that says the same."""
        new = candidate.new
        content = duplicate_key(new.content)
        fact = self.by_content.get(content)
        rejection = None
        if fact is None:
            fact = self._new_fact(new, place)
            self.by_content[content] = fact
            self.accepted.append(fact)
        else:
            rejection = _KNOWN
            if reject_unrepeated(candidate, self.source) is None:
                self.confirmed[fact.id] = confirm_again(fact, self.now)
        self.by_label.setdefault(new.label, fact)
        return rejection

    def end(self, entry: Retirement, *, is_only: bool) -> Rejection | None:
        """Retire a known fact, or reject the entry that ends it."""
        is_request = self.retired_by == "request"
        fact = self._known_fact(entry.number)
        if fact is None:
            return _UNKNOWN
        if fact.id in self.retired:
            return _RETIRED
        new = self.by_label.get(entry.replaced_by)
        place = self.source.find(entry.quote)
        ending = Ending(fact, entry, place or NOWHERE, new, is_only, is_request)
        rejection = first_rejection(ending, self.source, ENDING_CHECKS)
        if rejection is None:
            self.retired[fact.id] = self._retired_fact(ending)
        return rejection

    def _retired_fact(self, ending: Ending) -> Fact:
        fact = ending.fact
        entry = ending.entry
        by = self.retired_by or why_retired(f"{entry.quote}\n{entry.reason}")
        # The reason of a model may hold an instruction; a tool writes our own reason.
        reason = "The user said that it is true no longer."
        if self.retired_by:
            reason = entry.reason
        if entry.replaced_by and ending.new is None:
            reason += " What is true instead was not stored."
        return retire(
            fact,
            reason,
            max(fact.updated_at, self.now),
            ending.new.id if ending.new else None,
            by=by,
        )

    def result(self, past: Sequence[Fact]) -> ValidatedReply:
        """Return the validated reply, without new facts that repeat a past one with the same last day."""
        changed = {*self.retired, *(fact.id for fact in self.accepted)}
        past_keys = {_past_key(fact) for fact in past if not fact.retired}
        stored = [fact for fact in self.accepted if _past_key(fact) not in past_keys]
        repeated = len(self.accepted) - len(stored)
        return ValidatedReply(
            tuple(stored),
            tuple(fact for fact in self.confirmed.values() if fact.id not in changed),
            tuple(self.retired.values()),
            (*self.rejected, *[_KNOWN] * repeated),
        )

    def _known_fact(self, number: int) -> Fact | None:
        if not 0 < number <= len(self.known_facts):
            return None
        fact = self.known_facts[number - 1]
        is_request = self.retired_by == "request"
        if not fact.retired or (is_request and fact.state(self.now) == "past"):
            return fact
        return None

    def _new_fact(self, new: NewFact, place: QuoteMatch) -> Fact:
        """Return a new fact with the text around its quote as its source.

        A quote that is in no row of the log, as in the text of a program, gives a fact
        without a session.
        """
        around = self.source.around(place)
        said_as: SaidAs = "stated"
        last_day = None
        if tells_past(new.content, sentences_at(place.text, place.span)):
            said_as = "past"
            last_day = self.source.said_on - timedelta(days=1)
        rows = tuple(self.source.lines[i].row_id for i in around.lines)
        return Fact(
            **new.model_dump(include={"content", "category", "confidence"}),
            said_as=said_as,
            about="user",
            quote=place.quote,
            valid_until=last_day,
            created_at=self.now,
            session_id=self.session_id if any(rows) else None,
            message_ids=rows if any(rows) else (),
            source=around.text,
        )


def _naming(rejection: Rejection, content: str) -> Rejection:
    """Return a rejection with the statement, unless that is too long or a secret is near."""
    is_secret = rejection.reason == "secret"
    if is_secret or len(content) > MAX_FACT or holds_secret(content):
        return rejection
    return replace(rejection, content=visible(content))


def _past_key(fact: Fact) -> tuple[str, date | None]:
    return duplicate_key(fact.content), fact.valid_until


def why_retired(text: str) -> RetiredBy:
    """Return why a fact ended, from the user's words and the reason of a model.

    >>> why_retired("I moved to Rome"), why_retired("I never lived in Oslo"), why_retired("Forget where I live")
    ('change', 'correction', 'request')
    """
    straight = text.replace("\u2019", "'")
    if phrases("past", "forget").search(straight):
        return "request"
    if phrases("past", "never_true").search(straight):
        return "correction"
    return "change"
