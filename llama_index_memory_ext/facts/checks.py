"""Decides what of a model's reply stands on the user's own words, by lists of checks.

A check is a function that returns a ``Rejection`` or None. ``CHECKS``, and then
``DOUBTS``, are for new facts, ``TOOL_CHECKS`` in place of the first for those that an
agent's tool is given, ``ENDING_CHECKS`` for known facts that a reply ends, and
``is_said_again`` for those that it confirms. The first rejection counts, so the
cheapest checks stand first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from llama_index_memory_ext.facts.riders import has_rider, unsaid_addresses
from llama_index_memory_ext.facts.source import Place, Source
from llama_index_memory_ext.language import pattern, phrases, word_lists
from llama_index_memory_ext.language.detection import (
    is_translation,
    may_be_english,
    script_of,
)
from llama_index_memory_ext.language.names import (
    has_other_order,
    has_subject,
    missing_names,
    relations_in,
    shares_word,
)
from llama_index_memory_ext.language.numbers import has_numbers, missing_numbers
from llama_index_memory_ext.language.quotes import Span, find_quote, tokens_in
from llama_index_memory_ext.language.said_dates import (
    ages_in,
    missing_dates,
    without_dates,
)
from llama_index_memory_ext.language.secrets import holds_secret
from llama_index_memory_ext.language.tokens import keywords, overlaps, shared, term_of
from llama_index_memory_ext.language.words import IRREGULAR, STOP_WORDS, are_forms
from llama_index_memory_ext.text.messages import escape_tags

if TYPE_CHECKING:
    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.reply import NewFact, Retirement


# In characters.
MAX_FACT = 500
_MAX_QUOTE = 2_000
_MAX_WORD = 50
# The least share that must be the user's of what an agent's tool stores, and where
# others have said something, too.
_USERS_SHARE = 0.4
_USERS_SHARE_BESIDE_OTHERS = 0.6
# So many of the words of a fact of some length were said by the user or the assistant.
_FEW_WORDS = 7
_LEAST_SAID = 0.15
# What nobody sees: tags (U+E0000 to U+E007F), and marks that turn the direction of a
# text.
_INVISIBLE = "[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
_LONG_WORD = rf"[A-Za-z]{{{_MAX_WORD + 1}}}"
_SENTENCE = r"[^.!?\u3002\uff01\uff1f\n]*(?:[.!?\u3002\uff01\uff1f]+|\n|$)"
# Why words do not say a fact, for each way in which they may be said that stores none.
_UNSAID = {
    "asked": "The user only asked it.",
    "supposed": "The user only supposed it.",
    "denied": "The user said that it is not so.",
    "quoted": "The words are somebody else's.",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an entry of a reply is not stored. ``detail`` may contain words of the user, so ``repr`` leaves it out."""

    reason: str
    detail: str = field(repr=False)


# By "I don't like tea any more" a fact ends, by what is not so yet it does not.
_ENDS_NOTHING = {name: _UNSAID[name] for name in ("asked", "supposed", "quoted")}
_ENDS_NOTHING["planned"] = "It is only planned."


class Candidate(NamedTuple):
    """A new fact, where its quote lies in the user's lines (None: nowhere), and the least confidence that it needs."""

    new: NewFact
    place: Place | None
    min_confidence: float


class Ending(NamedTuple):
    """A known fact that an entry ends, where the quote for it lies, and the new fact that holds instead.

    ``is_only``: no other fact is ended by the same quote. ``is_asked``: the user's
    request was looked at before.
    """

    fact: Fact
    entry: Retirement
    place: Place | None
    new: Fact | None
    is_only: bool
    is_asked: bool


Checked = TypeVar("Checked")
Check = Callable[[Candidate, Source], Rejection | None]


def first_rejection(
    entry: Checked,
    source: Source,
    checks: Iterable[Callable[[Checked, Source], Rejection | None]],
) -> Rejection | None:
    """Return the rejection by the first check that gives one; None if all pass."""
    return next(filter(None, (check(entry, source) for check in checks)), None)


def has_words(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject a content without a statement, as one that a model has filled with "null"."""
    has_any = any(map(str.isalnum, candidate.new.content))
    if has_any:
        return None
    return Rejection("unreadable", "There is no statement in it.")


def has_no_hidden_characters(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject characters that people do not see and models read: they hide instructions."""
    is_hidden = pattern(_INVISIBLE).search(candidate.new.content)
    if is_hidden:
        return Rejection("invisible", "It has characters that nobody sees.")
    return None


def is_short(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject contents and quotes that are no single statement; a long word is an encoded text."""
    content = candidate.new.content
    quote = candidate.new.quote
    if max(len(content) - MAX_FACT, len(quote) - _MAX_QUOTE) <= 0 and not pattern(
        _LONG_WORD
    ).search(content):
        return None
    most = f"{MAX_FACT} characters, with words of at most {_MAX_WORD} letters, and its quote at most {_MAX_QUOTE}"
    return Rejection(
        "too_long",
        f"It has {len(content)} characters, and its quote {len(quote)}; a fact has {most}.",
    )


def is_sure(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject what the model itself is not sure of."""
    confidence = candidate.new.confidence
    least = candidate.min_confidence
    detail = f"Its confidence is {confidence:.2f}; at least {least:.2f} is needed."
    if confidence < least:
        return Rejection("low_confidence", detail)
    return None


def has_no_secret(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject passwords, keys and numbers of papers: what is stored is shown to models and may be exported."""
    if candidate.place:
        said = candidate.place.quote
    else:
        said = ""
    is_secret = any(
        map(holds_secret, {candidate.new.content, candidate.new.quote, said})
    )
    if is_secret:
        return Rejection("secret", "It holds a password, a key or another secret.")
    return None


def is_the_users(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact whose quote is not in the user's lines: the assistant repeats what it was shown, and invents."""
    quote = candidate.new.quote
    if candidate.place:
        return None
    if not quote.strip():
        return Rejection("no_quote", "It names no words of the user's that say it.")
    if not any(
        find_quote(quote, line.text) for line in source.lines if not line.is_users
    ):
        return Rejection("quote_not_found", "Its quote is not in the conversation.")
    return Rejection("not_the_users_words", "Only the assistant said it.")


def shares_words(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact that has no telling word, name, number or date of its message, or of the question it answers."""
    content = candidate.new.content
    place = candidate.place
    if place is None:
        return None
    words = "\n".join(filter(None, (place.text, source.question(place))))
    telling = keywords(content)
    if place.is_translated:
        words = f"{words}\n{candidate.new.quote}"
    elif is_translation(content, words):
        return None
    elif len(telling) > _FEW_WORDS and not _are_said(telling, source.keywords):
        return Rejection("not_the_users_words", "Too few of its words were said.")
    plain = without_dates(content)
    if (
        shares_word(content, words)
        or (plain != content and not missing_dates(content, words, source.said_on))
        or (
            has_numbers(plain)
            and not missing_numbers(plain, words, also=ages_in(words, source.said_on))
        )
    ):
        return None
    return Rejection(
        "not_the_users_words",
        "None of its words are in the message that its quote is from.",
    )


def _are_said(words: frozenset[str], said: frozenset[str]) -> bool:
    """Return whether enough of the words were said; most are by those in the same form, which are found at once."""
    least = _LEAST_SAID * len(words)
    return len(words & said) >= least or len(shared(words, said)) >= least


def is_meant(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject what the model itself calls asked, supposed, denied or quoted: it reads all languages."""
    said_as = candidate.new.said_as
    if said_as in _UNSAID:
        return Rejection(said_as, _UNSAID[said_as])
    return None


def names_whom(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact about somebody else whose content does not say whom: it would be taken for the user's.

    Where the words name a relative or a friend, the content has that, or a name that
    stands there too.
    """
    new = candidate.new
    place = candidate.place
    if new.about == "user" or place is None:
        return None
    subject = " ".join(new.content.split()[:_SUBJECT_WORDS])
    named = relations_in(subject)
    said = relations_in(" ".join(sentences_at(place.text, place.span)))
    is_named = bool(named & said if said else named) or has_subject(
        new.content, place.quote if said else source.said
    )
    if not is_named:
        return Rejection("other", "It is about somebody else, and does not say whom.")
    is_turned = has_other_order(new.content, place.text)
    if is_turned:
        return Rejection("other", "It names people in another order than the words do.")
    return None


def has_no_rider(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject what says more than its quote: an instruction that somebody else has put beside what the user said."""
    place = candidate.place
    if place is None:
        return None
    question = source.question(place)
    is_ridden = has_rider(
        candidate.new.content, f"{place.quote}\n{question}", f"{place.text}\n{question}"
    )
    if is_ridden:
        return Rejection("rider", "A part of it has no words of the user's.")
    return None


def is_said_in_earnest(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject what by the words around the quote was only asked, supposed or quoted: see ``unsaid_reason``."""
    place = candidate.place
    if place is None or place.is_translated:
        return None
    reason = unsaid_reason(candidate.new.content, place.text, place.span)
    if reason:
        return Rejection(reason, _UNSAID[reason])
    return None


def has_no_markup(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject the tags between which memories are shown: a fact must not end its own block."""
    has_tags = escape_tags(candidate.new.content) != candidate.new.content
    if has_tags:
        return Rejection(
            "markup", "It has one of the tags between which memories are shown."
        )
    return None


def has_said_addresses(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject addresses, names of functions and tags that were not said: an injected instruction leads there."""
    return _unsaid("not_said", unsaid_addresses(candidate.new.content, source.said))


def has_said_dates(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject dates that were not said, and do not follow from what was said and its day."""
    return _unsaid(
        "date_not_said",
        missing_dates(candidate.new.content, source.said, source.said_on),
    )


def has_said_numbers(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject numbers that were not said, or were said of something else. An age follows from a year."""
    plain = without_dates(candidate.new.content)
    ages = source.ages if has_numbers(plain) else ()
    return _unsaid("number_not_said", missing_numbers(plain, source.said, also=ages))


def has_said_names(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject names that neither the conversation nor a known fact has."""
    return _unsaid(
        "name_not_said",
        missing_names(candidate.new.content, source.said, source.known_text),
    )


def has_enough_users_words(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact with too few keywords of the user's, or one of others': a web page may tell an agent what to store.

    Across languages words cannot be compared; then the fact must be in English, in
    which models often write.
    """
    content = candidate.new.content
    place = candidate.place
    if place is None:
        return None
    words = keywords(content)
    answered = keywords(source.question(place))
    own = shared(words, source.users_keywords | answered)
    if not words:
        # Nothing can be compared, so the user must have said exactly this.
        is_own = any(
            find_quote(content, line.text) for line in source.lines if line.is_users
        )
    elif shared(words - own, keywords(source.others)):
        is_own = False
    elif is_translation(content, place.text):
        is_own = may_be_english(content)
    else:
        if source.others:
            least = _USERS_SHARE_BESIDE_OTHERS
        else:
            least = _USERS_SHARE
        is_own = len(own) >= least * len(words) and overlaps(
            words, keywords(place.quote) | answered
        )
    if is_own:
        return None
    return Rejection("not_the_users_words", "Too few of its words are the user's own.")


def _unsaid(reason: str, missing: Sequence[str]) -> Rejection | None:
    if missing:
        return Rejection(reason, f"Nobody said {', '.join(missing)}.")
    return None


CHECKS: tuple[Check, ...] = (
    has_words,
    has_no_hidden_characters,
    is_short,
    is_sure,
    has_no_secret,
    is_meant,
    is_the_users,
    has_no_markup,
    has_said_addresses,
    names_whom,
    shares_words,
    is_said_in_earnest,
    has_said_dates,
    has_no_rider,
)
# What these reject may have been said in other words.
DOUBTS: tuple[Check, ...] = (has_said_numbers, has_said_names)
# An agent reads what others wrote, too.
TOOL_CHECKS = (*CHECKS, has_enough_users_words)


def is_not_pinned(ending: Ending, _: Source) -> Rejection | None:
    """Keep pinned facts."""
    if ending.fact.pinned:
        return Rejection("pinned", "A pinned fact stays until somebody unpins it.")
    return None


def has_other_replacement(ending: Ending, _: Source) -> Rejection | None:
    """Keep a fact that its replacement only repeats."""
    is_same = ending.new is not None and ending.new.id == ending.fact.id
    if is_same:
        return Rejection(
            "replacement_rejected", "The fact that should replace it says the same."
        )
    return None


def has_users_quote(ending: Ending, _: Source) -> Rejection | None:
    """Keep a fact that the user's words do not end."""
    if not ending.entry.quote.strip():
        return Rejection("no_quote", "It names no words of the user's that end it.")
    if ending.place:
        return None
    return Rejection("quote_not_found", "Its quote is not in the user's words.")


def is_contradicted(ending: Ending, source: Source) -> Rejection | None:
    """Keep a fact that the words of a quote say nothing of, or that they only ask, suppose or quote.

    They share a word with it, or the new fact does. Else they must tell a change, and
    end this fact only or have led to the new one, or be a request that was looked at.
    """
    fact = ending.fact
    place = ending.place
    new = ending.new
    if place is None:
        return None
    reason: str = ending.entry.said_as
    if reason not in _ENDS_NOTHING:
        reason = unsaid_reason(
            fact.content, place.text, place.span, may_presuppose=False
        )
    if reason:
        return Rejection(reason, _ENDS_NOTHING[reason])
    said = " ".join(sentences_at(place.text, place.span))
    words = f"{said}\n{source.question(place)}\n{new.content if new else ''}"
    is_told = (ending.is_only or new is not None) and tells_change(said)
    if shares_word(fact.content, words) or is_told or ending.is_asked:
        return None
    return Rejection("not_contradicted", "The user's words say nothing of it.")


ENDING_CHECKS = (is_not_pinned, has_other_replacement, has_users_quote, is_contradicted)


class UsersKeywords(NamedTuple):
    """The keywords of what a user states, and of what the user only asks or supposes."""

    stated: frozenset[str]
    asked: frozenset[str]

    def mostly_ask(self, telling: frozenset[str]) -> bool:
        """Return whether at least as many of these keywords are only asked as are stated."""
        stated = shared(telling, self.stated)
        only_asked = shared(telling, self.asked) - stated
        return bool(only_asked) and len(only_asked) >= len(stated)


def users_keywords(sentences: Iterable[str]) -> UsersKeywords:
    """Return the keywords of sentences of the user's."""
    stated = list[str]()
    asked = list[str]()
    for sentence in sentences:
        (asked if _may_ask(sentence) else stated).append(sentence)
    return UsersKeywords(keywords("\n".join(stated)), keywords("\n".join(asked)))


def is_said_again(fact: Fact, words: UsersKeywords) -> Rejection | None:
    """Reject a confirmation without a keyword that the user states: a question confirms nothing.

    And the assistant repeats what it was shown.
    """
    telling = keywords(fact.content)
    if words.mostly_ask(telling):
        return Rejection("asked", _UNSAID["asked"])
    is_stated = overlaps(telling, words.stated)
    if is_stated:
        return None
    return Rejection("not_the_users_words", "No word of it is in the user's words.")


def is_asked_again(fact: Fact, place: Place) -> bool:
    """Return whether a quote only asks for a fact or supposes it."""
    sentences = sentences_at(with_question_marks(place.text), place.span)
    return all(map(_may_ask, sentences)) or users_keywords(sentences).mostly_ask(
        keywords(fact.content)
    )


def _words(section: str) -> frozenset[str]:
    return frozenset(chain(*word_lists("clauses")[section]))


_LIGHT = (STOP_WORDS | _words("articles") | _words("adverbs")) - _words("speakers")
_LEAST_QUOTED = 3
_SUBJECT_WORDS = 3
# So many words behind the speaker a change is told: "I have gone back".
_NEAR = 3
_QUOTATION_MARKS = (
    ("\u201c", "\u201d"),
    ("\u201e", "\u201c"),
    ("\u300c", "\u300d"),
    ('"', '"'),
    ("'", "'"),
)


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text."""
    return pattern(_SENTENCE).findall(with_question_marks(text))


def sentences_at(text: str, span: Span) -> list[str]:
    """Return the sentences of a text in which a part of it lies."""
    sentences = pattern(_SENTENCE).finditer(text)
    inside = (
        one.group().strip()
        for one in sentences
        if one.start() < span.end and span.start < one.end()
    )
    return list(filter(None, inside))


def denies(text: str) -> bool:
    """Return whether a text has a negation: a word, a form such as "don't", or a character.

    >>> denies("Does not drink"), denies("No."), denies("不喝酒"), denies("Drinks tea")
    (True, True, True, False)
    """
    if script_of(text) == "cjk":
        return phrases("clauses", "negation_in_characters").search(text) is not None
    return any(map(_negates, _words_in(text)))


def tells_change(text: str) -> bool:
    """Return whether a text says that something of the speaker's has become otherwise.

    >>> [tells_change(text) for text in ("I have moved to Rome", "Call me Bo from now on", "I went to Rome", "Hi")]
    [True, True, False, False]
    """
    words = [word.removesuffix("'ve") for word in _words_in(text)]
    changes = frozenset(map(term_of, _words("changes")))
    for i, word in enumerate(words):
        if word in _words("speakers"):
            done = words[i + 1 : i + 1 + _NEAR]
        else:
            done = []
        if any(
            term_of(one) in changes and (_may_be_past(one) or one == "back")
            for one in done
        ):
            return True
    return bool(phrases("clauses", "since_now").search(text))


def unsaid_reason(
    statement: str, text: str, span: Span, *, may_presuppose: bool = True
) -> str:
    """Return "asked", "supposed" or "quoted" if that is how the words around a quote say a statement, else "".

    ``may_presuppose``: "What do my two cats eat?" says that there are two cats.

    >>> from llama_index_memory_ext.language.quotes import find_quote
    >>> text = "I like coffee. Should I learn Rust?"
    >>> unsaid_reason("Is learning Rust", text, find_quote("learn Rust", text))
    'asked'
    """
    inside = sentences_at(text, span)
    if not _is_told(statement, text):
        is_asked = bool(inside) and all(map(_is_question, inside))
        if is_asked and not (may_presuppose and _is_presupposed(statement, inside)):
            return "asked"
        is_supposed = any(map(phrases("clauses", "supposed").search, inside))
        if is_supposed and not phrases("clauses", "conditional").search(statement):
            return "supposed"
    return "quoted" if _is_quoted(text, span) else ""


def _is_told(statement: str, text: str) -> bool:
    """Return whether a part of a message that neither asks nor supposes anything has a telling word of a statement."""
    told = list[str]()
    for sentence in filter(None, map(str.strip, pattern(_SENTENCE).findall(text))):
        if not phrases("clauses", "supposed").search(sentence):
            # "I have two kids, how much tax do I pay?": only the last part is asked.
            clauses = phrases("clauses", "clause_end").split(sentence)
            told += clauses[:-1] if _is_question(sentence) else [sentence]
    return overlaps(keywords(statement), keywords(" ".join(told)))


def _is_presupposed(statement: str, sentences: Sequence[str]) -> bool:
    """Return whether a question has all telling words of a statement as something of the user's own: "my two cats"."""
    telling = [
        word for word in _words_in(statement) if word not in _LIGHT | _words("has")
    ]
    if not telling or denies(statement):
        return False
    for words in map(_words_in, sentences):
        for i, word in enumerate(words, 1):
            if word in _words("own") and all(
                _is_among(one, words[i : i + len(telling)]) for one in telling
            ):
                return True
    return False


def _may_ask(sentence: str) -> bool:
    """Return whether a sentence asks or supposes something; also without a question mark, in any language."""
    sentence = sentence.strip()
    asks = any(
        phrases("clauses", name).search(sentence) for name in ("supposed", "asks")
    )
    return asks or _is_question(sentence)


def with_question_marks(text: str) -> str:
    """Return a text of the same length in which the question marks of all scripts are "?"."""
    return phrases("clauses", "question_marks").sub("?", text)


def _is_question(sentence: str) -> bool:
    return phrases("clauses", "question").search(sentence[-2:]) is not None


def _is_quoted(text: str, span: Span) -> bool:
    """Return whether a quote lies within quotation marks, or in a line of a mail that is answered."""
    if text[text.rfind("\n", 0, span.start) + 1 :].startswith(">"):
        return True
    if len(tokens_in(span.of(text))) < _LEAST_QUOTED:
        return False
    for opening, closing in _QUOTATION_MARKS:
        start = text.rfind(opening, 0, span.start + 1)
        if start >= 0 and not text[max(start - 1, 0) : start].isalnum():
            end = max(span.end - 1, start + 1)
            if closing not in text[start + 1 : end] and closing in text[end:]:
                return True
    return False


def _negates(word: str) -> bool:
    """Return whether a word denies: a negation, or a form with one such as "don't" and "dont"."""
    return (
        word in _words("negations")
        or word.endswith("n't")
        or (word.endswith("nt") and word in STOP_WORDS)
    )


def _words_in(text: str) -> list[str]:
    """Return the words of a text in lower case, with straight apostrophes."""
    return [word.replace("\u2019", "'") for word in tokens_in(text.lower())]


def _is_among(word: str, others: Iterable[str]) -> bool:
    return any(
        one == word
        or not keywords(one).isdisjoint(keywords(word))
        or are_forms(word, one)
        for one in others
    )


def _may_be_past(word: str) -> bool:
    return word.endswith("ed") or (word in IRREGULAR and not word.endswith("n"))
