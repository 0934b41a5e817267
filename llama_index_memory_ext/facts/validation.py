"""Decides what of a model's reply is stored: only what is based on the user's own words."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from llama_index_memory_ext.fact import DEFAULT_MIN_CONFIDENCE, Fact, normalised, raised, retire
from llama_index_memory_ext.facts.history import why_retired
from llama_index_memory_ext.grounding.dates import ages_in, missing_dates, period_of, without_dates
from llama_index_memory_ext.grounding.language import is_translation, language_of, may_be_english
from llama_index_memory_ext.grounding.names import missing_names, shares_name
from llama_index_memory_ext.grounding.negation import denies
from llama_index_memory_ext.grounding.numbers import has_numbers, missing_numbers
from llama_index_memory_ext.grounding.quotes import TOKEN, Span, find_quote
from llama_index_memory_ext.grounding.secrets import holds_secret
from llama_index_memory_ext.grounding.statement import unsaid_reason
from llama_index_memory_ext.grounding.words import keywords, shared
from llama_index_memory_ext.text.messages import escape_tags

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date, datetime

    from llama_index_memory_ext.fact import RetiredBy
    from llama_index_memory_ext.facts.reply import ExtractionReply, NewFact, Retirement
    from llama_index_memory_ext.text.messages import Utterance

# In characters.
_MAX_FACT, _MAX_QUOTE, _MAX_EXCERPT, _MAX_TRANSLATED, _MAX_WORD = 500, 2_000, 2_000, 300, 50
_SIMILAR_SHARE = 0.6
# The least share of a fact's keywords that must be the user's where tools and pages have said something, too.
_SHARE_BESIDE_OTHERS = 0.6
# A message of at most so many words, or characters of a script without spaces, can be the answer to a question.
_LONGEST_ANSWER = 6
# Words that end a fact are a statement of at least so many words or characters.
_SHORTEST_STATEMENT = 2
_QUESTION_MARK = re.compile("[?\uff1f]|か。?\\s*$")
# What nobody sees: tags (U+E0000 to U+E007F), and marks that turn the direction of a text.
_INVISIBLE = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
_NOTHING = re.compile(r"(?i)[\W_]*(?:null|none|nil|nan|n/a|undefined|unknown)?[\W_]*")
_ADDRESS_OR_TAG = re.compile(r"\w+://\S+|</?[A-Za-z][\w-]*")
_UNSAID = {
    "question": "The user only asked it.",
    "hypothesis": "The user only supposed it.",
    "quoted": "The user only quoted it.",
    "negated": "The user said the opposite.",
    "past": "The user said it of the past.",
    "other_subject": "The user said it of somebody else.",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an entry of a reply is not stored. ``detail`` may contain words of the user, so ``repr`` leaves it out."""

    reason: str
    detail: str = field(repr=False)


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
    limits = min_confidence, min_keyword_share
    validation = _Validation(lines, known, now, active, session_id, *limits, context, others, retired_by)
    for new in reply.new_facts:
        validation.add(new)
    quotes = Counter(entry.quote for entry in reply.retired)
    for entry in reply.retired:
        validation.retire(entry, quoted=quotes[entry.quote])
    for number in reply.confirmed:
        validation.confirm(number)
    return validation.result()


def question_before(lines: Sequence[Utterance], i: int) -> str:
    """Returns the question of the assistant that the line ``i`` answers in a few words; "" if it does not."""
    asked = lines[i - 1].text if i and not lines[i - 1].is_users else ""
    is_short = len(TOKEN.findall(lines[i].text)) <= _LONGEST_ANSWER
    return asked if is_short and lines[i].is_users and _QUESTION_MARK.search(asked) else ""


def without_repeats(valid: ValidatedReply, past: Sequence[Fact]) -> ValidatedReply:
    """The reply without new facts that have ended on the same day as a known one that says the same."""
    known = {(normalised(fact.content), fact.valid_until) for fact in past if not fact.retired}
    new = tuple(fact for fact in valid.accepted if (normalised(fact.content), fact.valid_until) not in known)
    repeats = (Rejection("duplicate", "It is known already."),) * (len(valid.accepted) - len(new))
    return replace(valid, accepted=new, rejected=(*valid.rejected, *repeats)) if repeats else valid


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a quote lies: the line, and the part of it. ``is_translated``: it is in another language there."""

    line: int
    span: Span
    is_translated: bool = False


@dataclass
class _Validation:
    """The conversation and the facts that a reply is about, and what of the reply is stored so far."""

    lines: Sequence[Utterance]
    known: Sequence[Fact]
    now: datetime
    active: Sequence[Fact]
    session_id: str | None
    min_confidence: float
    min_keyword_share: float
    context: Sequence[Utterance]
    others: str
    retired_by: RetiredBy | None

    def __post_init__(self) -> None:
        # A user may say yes to a name or a number of the assistant's.
        self._said = "\n".join(line.text for line in (*self.context, *self.lines))
        self._users_keywords = keywords("\n".join(line.text for line in self.lines if line.is_users))
        self._others_keywords = keywords(self.others)
        self._facts = [*self.known, *self.active]
        self._by_content = {normalised(fact.content): fact for fact in reversed(self._facts) if not fact.retired}
        # Of two new facts with one label it stands for the first, and for None if that was rejected.
        self._by_label: dict[str, Fact | None] = {}
        self._accepted: list[Fact] = []
        self._confirmed: dict[str, Fact] = {}
        self._retired: dict[str, Fact] = {}
        self._rejected: list[Rejection] = []

    def add(self, new: NewFact) -> None:
        """Accepts a new fact unless it is rejected. If it is known already, that fact is confirmed."""
        content, fact = normalised(new.content), None
        place = self._find(new.quote)
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
        fact = self._known_fact(entry.number, past=self.retired_by == "request")
        new = self._by_label.get(entry.replaced_by) if entry.replaced_by else None
        if fact and not self._is_rejected(self._retirement_reasons(entry, fact, new, quoted)):
            reason = entry.reason[:_MAX_FACT] or "The user said that it is true no longer."
            if entry.replaced_by and new is None:
                reason += " What is true instead was not stored."
            by = self.retired_by or why_retired(f"{entry.quote}\n{entry.reason}")
            ended = retire(fact, reason, max(fact.updated_at, self.now), new.id if new else None, by=by)
            valid_until = self._said_day(entry.valid_until, 1)
            self._retired[fact.id] = ended.model_copy(update={"valid_until": valid_until}) if valid_until else ended

    def confirm(self, number: int) -> None:
        """Confirms a known fact if the user used any of its keywords: the assistant repeats what it was shown."""
        fact = self._known_fact(number)
        if fact and not shared(keywords(fact.content), self._users_keywords):
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

    def _is_rejected(self, reasons: Iterator[Rejection]) -> bool:
        first = list(islice(reasons, 1))
        self._rejected += first
        return bool(first)

    def _reasons(self, new: NewFact, place: _Place | None) -> Iterator[Rejection]:
        """Yields everything that is wrong with a new fact, the cheapest checks first."""
        yield from _form_reasons(new, self.min_confidence)
        if not place:
            yield from self._quote_reasons(new)
            return
        text = self.lines[place.line].text
        if holds_secret(place.span.of(text)):
            yield _SECRET
        yield from self._unsaid_reasons(new, place)
        if not place.is_translated and (reason := unsaid_reason(new.content, text, place.span)):
            yield Rejection(reason, _UNSAID[reason])
        if escape_tags(new.content) != new.content:
            yield Rejection("markup", "It has one of the tags between which memories are shown.")
        if missing := [found for found in _ADDRESS_OR_TAG.findall(new.content) if found not in self._said]:
            yield Rejection("not_said", f"Nobody said {', '.join(missing)}.")
        day = self.now.date()
        if dates := missing_dates(new.content, self._said, day):
            yield Rejection("date_not_said", f"Nobody said {', '.join(dates)}.")
        if numbers := missing_numbers(without_dates(new.content), self._said, also=ages_in(self._said, day)):
            yield Rejection("number_not_said", f"Nobody said {', '.join(numbers)}.")
        if names := missing_names(new.content, self._said, self._known_text):
            yield Rejection("name_not_said", f"Nobody said {', '.join(names)}.")
        if self.min_keyword_share and not self._is_the_users(new, place):
            yield Rejection("not_the_users_words", "Too few of its words are the user's own.")

    @cached_property
    def _known_text(self) -> str:
        """What is known of the user, as evidence of names."""
        return "\n".join(fact.content for fact in self._facts)

    def _quote_reasons(self, new: NewFact) -> Iterator[Rejection]:
        """Yields why a quote that is not in the user's words is none."""
        others = [line.text for line in self.lines if not line.is_users]
        if not any(find_quote(new.quote, text) for text in others):
            yield Rejection("quote_not_found", "Its quote is not in the conversation.")
        if any(_are_similar(new.content, fact.content) for fact in self._facts):
            yield Rejection("echo", "Only the assistant said it, repeating what it was shown.")
        yield Rejection("not_the_users_words", "Only the assistant said it.")

    def _unsaid_reasons(self, new: NewFact, place: _Place) -> Iterator[Rejection]:
        """Yields what a new fact lacks of the message that its quote is in, or of the question that this answers."""
        text, question = self.lines[place.line].text, self._question_before(place.line)
        if question and denies(text) and not denies(new.content):
            yield Rejection("negated", _UNSAID["negated"])
        words = f"{text}\n{question}"
        if place.is_translated:
            words = f"{words}\n{new.quote}"
        elif is_translation(new.content, words):
            return
        if not self._says_something_of(new.content, words):
            yield Rejection("not_the_users_words", "None of its words are in the message that its quote is from.")

    def _says_something_of(self, statement: str, words: str) -> bool:
        """Whether words have a telling word, a name, a number or a date of a statement."""
        if shared(keywords(statement), keywords(words)) or shares_name(statement, words):
            return True
        plain, day = without_dates(statement), self.now.date()
        if plain != statement and not missing_dates(statement, words, day):
            return True
        return has_numbers(plain) and not missing_numbers(plain, words, also=ages_in(words, day))

    def _question_before(self, i: int) -> str:
        """Returns the question that a line answers in a few words; "" if it does not."""
        return question_before([*self.context, *self.lines], len(self.context) + i)

    def _retirement_reasons(self, entry: Retirement, fact: Fact, new: Fact | None, quoted: int) -> Iterator[Rejection]:
        if fact.pinned:
            yield Rejection("pinned", "A pinned fact stays until somebody unpins it.")
        if fact.id in self._retired:
            yield Rejection("duplicate", "It is retired already.")
        if new and new.id == fact.id:
            yield Rejection("replacement_rejected", "The fact that should replace it says the same.")
        if not entry.quote.strip():
            yield Rejection("no_quote", "It names no words of the user's that end it.")
        place = self._find(entry.quote)
        if not place:
            yield Rejection("quote_not_found", "Its quote is not in the user's words.")
            return
        text = self.lines[place.line].text
        reason = unsaid_reason(fact.content, text, place.span, may_presuppose=False)
        if reason in ("question", "hypothesis", "quoted"):
            yield Rejection(reason, _UNSAID[reason])
        has_shared = shared(keywords(fact.content), keywords(f"{text}\n{self._question_before(place.line)}"))
        # An agent's tool has looked for the user's request itself.
        is_statement = self.retired_by == "request" or len(TOKEN.findall(place.span.of(text))) > _SHORTEST_STATEMENT - 1
        if not has_shared and not (is_statement and (new or quoted == 1 or self.retired_by == "request")):
            yield Rejection("not_contradicted", "The user's words say nothing of it.")

    def _find(self, quote: str) -> _Place | None:
        """Returns the place of a quote in the user's lines, of several the best and then the last."""
        users = [(i, line.text) for i, line in enumerate(self.lines) if line.is_users and line.text]
        found = [(span.share, i, span) for i, text in users if (span := find_quote(quote, text))]
        if found:
            _, i, span = max(found)
            return _Place(i, span)
        translated = [(i, text) for i, text in users if is_translation(quote, text)]
        # Who also writes in the language of the quote would be quoted in it.
        language = language_of(quote)
        if not translated or (language and any(language_of(text) == language for _, text in users)):
            return None
        i, text = max(translated, key=lambda one: (len(keywords(quote) & keywords(one[1])), one[0]))
        return _Place(i, Span(0, min(len(text), _MAX_TRANSLATED), 1.0), is_translated=True)

    def _is_the_users(self, new: NewFact, place: _Place) -> bool:
        """Whether the user used enough of the keywords of a new fact, and others none of the rest.

        Across languages words cannot be compared; then it must be in English, in which models often write.
        """
        words, text = keywords(new.content), self.lines[place.line].text
        if not words:
            # Nothing can be compared, so the user must have said exactly this.
            return any(find_quote(new.content, line.text) for line in self.lines if line.is_users)
        answered = keywords(self._question_before(place.line))
        own = shared(words, self._users_keywords | answered)
        if shared(words - own, self._others_keywords):
            return False
        if is_translation(new.content, text):
            return may_be_english(new.content)
        share = max(self.min_keyword_share, _SHARE_BESIDE_OTHERS) if self.others else self.min_keyword_share
        return len(own) >= share * len(words) and bool(shared(words, keywords(place.span.of(text)) | answered))

    def _said_day(self, written: str, side: int) -> date | None:
        """Returns the first (0) or the last (1) day of a day, month or year, if that was said or follows from it."""
        period = period_of(written)
        if period is None or missing_dates(written, self._said, self.now.date()):
            return None
        return period[side]

    def _fact(self, new: NewFact, place: _Place) -> Fact:
        """Returns a new fact as it is stored. Its source is the text of the line with its quote and around it."""
        quote = place.span.of(self.lines[place.line].text)
        found = {place.line: place.span.start}
        found |= {
            i: line.text.index(quote) for i, line in enumerate(self.lines) if line.is_users and quote in line.text
        }
        nearby = range(max(min(found) - 1, 0), min(max(found) + 2, len(self.lines)))
        return Fact(
            content=new.content,
            category=new.category,
            confidence=new.confidence,
            quote=quote,
            valid_from=self._said_day(new.valid_from, 0),
            valid_until=self._said_day(new.valid_until, 1),
            created_at=self.now,
            session_id=self.session_id,
            message_ids=tuple(self.lines[i].row_id for i in sorted(found)),
            source="\n".join(_excerpt(self.lines[i].text, found.get(i, 0)) for i in nearby),
        )


_SECRET = Rejection("secret", "It holds a password, a key or another secret.")


def _form_reasons(new: NewFact, min_confidence: float) -> Iterator[Rejection]:
    """Yields what is wrong with a new fact by itself."""
    if _NOTHING.fullmatch(new.content):
        yield Rejection("unreadable", "There is no statement in it.")
    if _INVISIBLE.search(new.content):
        yield Rejection("invisible", "It has characters that nobody sees.")
    if len(new.content) > _MAX_FACT:
        yield Rejection("too_long", f"It has {len(new.content)} characters; a fact has at most {_MAX_FACT}.")
    if re.search(rf"[A-Za-z]{{{_MAX_WORD + 1}}}", new.content):
        yield Rejection("too_long", f"It has a word of more than {_MAX_WORD} letters.")
    if len(new.quote) > _MAX_QUOTE:
        yield Rejection("too_long", f"Its quote has {len(new.quote)} characters; at most {_MAX_QUOTE} are kept.")
    if new.confidence < min_confidence:
        needed = f"at least {min_confidence:.2f} is needed"
        yield Rejection("low_confidence", f"Its confidence is {new.confidence:.2f}; {needed}.")
    if holds_secret(new.content) or holds_secret(new.quote):
        yield _SECRET
    if not new.quote.strip():
        yield Rejection("no_quote", "It names no words of the user's that say it.")


def _are_similar(one: str, other: str) -> bool:
    words, others = keywords(one), keywords(other)
    return len(shared(words, others)) >= _SIMILAR_SHARE * min(len(words), len(others)) > 0


def _excerpt(text: str, place: int) -> str:
    start = max(0, min(place - _MAX_EXCERPT // 2, len(text) - _MAX_EXCERPT))
    return text[start : start + _MAX_EXCERPT]
