"""The checks of a model's reply: which entries the user's own words say.

A check is a function that returns a ``Rejection`` or None. New facts must pass
``CHECKS`` and then ``DOUBTS``; facts from an agent's tool ``TOOL_CHECKS`` instead of
``CHECKS``. Entries that end a known fact must pass ``ENDING_CHECKS``, and entries that
confirm one ``CONFIRMING_CHECKS``. The first rejection counts, so the cheapest
checks stand first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from llama_index_memory_ext.checks.dates import ages_in, missing_dates, without_dates
from llama_index_memory_ext.checks.evidence import NOWHERE, QuoteMatch, Source
from llama_index_memory_ext.checks.names import (
    has_other_order,
    has_subject,
    missing_names,
    shares_word,
)
from llama_index_memory_ext.checks.numbers import has_numbers, missing_numbers
from llama_index_memory_ext.checks.people import (
    addresses_listener,
    clauses_in,
    closest_clause,
    is_small_talk,
    names_person,
)
from llama_index_memory_ext.checks.quotes import Span, find_quote, tokens_in
from llama_index_memory_ext.checks.riders import has_rider, unsaid_addresses
from llama_index_memory_ext.checks.secrets import holds_secret
from llama_index_memory_ext.events import Rejection
from llama_index_memory_ext.text.messages import escape_tags
from llama_index_memory_ext.words import (
    IRREGULAR,
    STOP_WORDS,
    comparable,
    is_translation,
    may_be_english,
    pattern,
    phrases,
    relations_in,
    script_of,
    words_of_section,
)
from llama_index_memory_ext.words.tokens import keywords, overlaps, shared, term_of

if TYPE_CHECKING:
    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.learning.reply import NewFact, Retirement


# The longest fact, quote and word, in characters.
MAX_FACT = 500
_MAX_QUOTE = 2_000
_MAX_WORD = 50
# The least share of the user's words in a fact from an agent's tool: alone, and where
# tools and pages have texts, too.
_USERS_SHARE = 0.4
_USERS_SHARE_BESIDE_OTHERS = 0.6
# If a fact has more than ``_FEW_WORDS`` words, at least this share of them was said.
_FEW_WORDS = 7
_LEAST_SAID = 0.15
# Characters that people do not see: tags (U+E0000 to U+E007F), and marks that turn the
# direction of a text.
_INVISIBLE = "[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
_LONG_WORD = rf"[A-Za-z]{{{_MAX_WORD + 1}}}"
_SENTENCE = r"[^.!?\u3002\uff01\uff1f\n]*(?:[.!?\u3002\uff01\uff1f]+|\n|$)"
# Why nothing is stored, by ``said_as``.
_UNSAID = {
    "asked": "The user only asked it.",
    "supposed": "The user only supposed it.",
    "denied": "The user said that it is not so.",
    "quoted": "The words are somebody else's.",
}


# A denial ("I don't like tea any more") ends a fact; a plan does not.
_ENDS_NOTHING = {name: _UNSAID[name] for name in ("asked", "supposed", "quoted")}
_ENDS_NOTHING["planned"] = "It is only planned."


class Candidate(NamedTuple):
    """A new fact to check.

    ``place``: where its quote lies in the user's lines, or ``NOWHERE``.
    ``min_confidence``: the least confidence that it needs.
    """

    new: NewFact
    place: QuoteMatch
    min_confidence: float


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


def is_plain_text(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject contents that no person would write, or that a model reads in another way than a person.

    Hidden characters and the tags around memories in a prompt carry instructions. A
    very long word is an encoded text.
    """
    content = candidate.new.content
    quote = candidate.new.quote
    is_announcement = content.rstrip().endswith((":", "\uff1a"))
    if is_announcement or not any(map(str.isalnum, content)):
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


def is_sure(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject a fact that the model itself is not sure of."""
    confidence = candidate.new.confidence
    least = candidate.min_confidence
    if confidence >= least:
        return None
    return Rejection(
        "low_confidence",
        f"Its confidence is {confidence:.2f}; at least {least:.2f} is needed.",
    )


def has_no_secret(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject passwords, keys and numbers of papers, because models and exports get the facts."""
    new = candidate.new
    if any(map(holds_secret, {new.content, new.quote, candidate.place.quote})):
        return Rejection("secret", "It holds a password, a key or another secret.")
    return None


def is_the_users(candidate: Candidate, source: Source) -> Rejection | None:
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


def is_not_the_assistants(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a content that copies the assistant's words, behind a quote of the user's.

    A short answer may take over the words of its question.
    """
    is_answer = source.question(candidate.place)
    if not is_answer and source.is_the_assistants(candidate.new.content):
        return Rejection("not_the_users_words", "Only the assistant said it.")
    return None


def shares_words(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact without a telling word, name, number or date of its message.

    A question that the message answers belongs to it.
    """
    content = candidate.new.content
    place = candidate.place
    words = "\n".join(filter(None, (place.text, source.question(place))))
    telling = keywords(content)
    if place.is_translated:
        words = f"{words}\n{candidate.new.quote}"
    elif is_translation(content, words):
        return None
    elif len(telling) > _FEW_WORDS and not _are_said(telling, source.keywords):
        return Rejection("not_the_users_words", "Too few of its words were said.")
    if shares_word(content, words) or _shares_dates_or_numbers(content, words, source):
        return None
    return Rejection(
        "not_the_users_words",
        "None of its words are in the message that its quote is from.",
    )


def _shares_dates_or_numbers(content: str, words: str, source: Source) -> bool:
    """Return whether the words have all dates of a content, or all its numbers."""
    plain = without_dates(content)
    if plain != content and not missing_dates(content, words, source.said_on):
        return True
    if not has_numbers(plain):
        return False
    ages = ages_in(words, source.said_on)
    return not missing_numbers(plain, words, also=ages)


def _are_said(words: frozenset[str], evidence: frozenset[str]) -> bool:
    """Return whether the conversation has enough of the words."""
    least = _LEAST_SAID * len(words)
    # Most words have the same form, and comparing these is fast.
    return len(words & evidence) >= least or len(shared(words, evidence)) >= least


def is_meant(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject a fact that the model itself calls asked, supposed, denied or quoted.

    A content that is the denial itself passes: "Does not smoke".
    """
    said_as: str = candidate.new.said_as
    if said_as == "denied" and is_denial(candidate):
        return None
    if said_as in _UNSAID:
        return Rejection(said_as, _UNSAID[said_as])
    return None


def names_other_person(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact about another person that does not name the person.

    Such a fact would pass for a fact about the user. Its label ``about`` or the user's
    words tell that another person is meant. If these words name a relative or a friend,
    the content must have this relation, or a name from the quote.
    """
    new = candidate.new
    place = candidate.place
    sentences = sentences_at(place.text, place.span)
    is_others = closest_clause(new.content, sentences).person == "other"
    if new.about == "user" and (names_person(new.content) or not is_others):
        return None
    relations = relations_in(" ".join(new.content.split()[:_SUBJECT_WORDS]))
    said_relations = relations_in(" ".join(sentences))
    if said_relations:
        relations = relations & said_relations
        named_in = place.quote
    else:
        named_in = f"{source.said}\n{source.known_text}"
    if not relations and not has_subject(new.content, named_in):
        return Rejection("other", "It is about somebody else, and does not say whom.")
    if new.about == "other" and has_other_order(new.content, place.text):
        return Rejection("other", "It names people in another order than the words do.")
    return None


def has_no_rider(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact that says more than its quote.

    The rest may be an instruction by another person, put beside the user's words.
    """
    place = candidate.place
    question = source.question(place)
    if has_rider(
        candidate.new.content, f"{place.quote}\n{question}", f"{place.text}\n{question}"
    ):
        return Rejection("rider", "A part of it has no words of the user's.")
    return None


def says_something(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject greetings, thanks, praise, and words that only address the assistant."""
    content = candidate.new.content
    place = candidate.place
    is_copy = comparable(content).rstrip(".!") in comparable(place.text)
    if is_small_talk(content) or (is_copy and addresses_listener(content)):
        return Rejection("small_talk", "It says nothing of the user.")
    return None


def is_said_in_earnest(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject a fact that the user's sentences only ask, suppose or quote, or that they take back."""
    content = candidate.new.content
    place = candidate.place
    if place.is_translated:
        return None
    reason = unsaid_reason(content, place.text, place.span)
    if not reason and is_taken_back(content, place.text, place.span):
        reason = "denied"
    if reason:
        return Rejection(reason, _UNSAID[reason])
    return None


def has_said_addresses(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject addresses, names of functions and tags that are not in the conversation.

    An injected instruction may lead to such an address.
    """
    return _reject_missing(
        "not_said", unsaid_addresses(candidate.new.content, source.said)
    )


def has_said_dates(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject dates that do not follow from the conversation and its day."""
    return _reject_missing(
        "date_not_said",
        missing_dates(candidate.new.content, source.said, source.said_on),
    )


def has_said_numbers(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject numbers that are not in the conversation, or count something else there.

    An age follows from a year.
    """
    plain = without_dates(candidate.new.content)
    ages = source.ages if has_numbers(plain) else ()
    return _reject_missing(
        "number_not_said", missing_numbers(plain, source.said, also=ages)
    )


def has_said_names(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject names that are neither in the conversation nor in a known fact."""
    return _reject_missing(
        "name_not_said",
        missing_names(candidate.new.content, source.said, source.known_text),
    )


def has_enough_users_words(candidate: Candidate, source: Source) -> Rejection | None:
    """Reject a fact with too few of the user's keywords, or with a keyword that only a tool's text has.

    A web page may tell an agent what to store.
    """
    if _is_users(candidate.new.content, candidate.place, source):
        return None
    return Rejection("not_the_users_words", "Too few of its words are the user's own.")


def _is_users(content: str, place: QuoteMatch, source: Source) -> bool:
    words = keywords(content)
    answered = keywords(source.question(place))
    own = shared(words, source.users_keywords | answered)
    if not words:
        # Without keywords, the user must have said exactly this.
        return any(
            find_quote(content, line.text) for line in source.lines if line.is_users
        )
    if shared(words - own, keywords(source.tool_text)):
        return False
    if is_translation(content, place.text):
        # Words of two languages cannot be compared, and models often write English.
        return may_be_english(content)
    least = _USERS_SHARE_BESIDE_OTHERS if source.tool_text else _USERS_SHARE
    quoted = keywords(place.quote) | answered
    return len(own) >= least * len(words) and overlaps(words, quoted)


def _reject_missing(reason: str, missing: Sequence[str]) -> Rejection | None:
    if missing:
        return Rejection(reason, f"This was not said: {', '.join(missing)}.")
    return None


CHECKS: tuple[Check, ...] = (
    is_plain_text,
    is_sure,
    has_no_secret,
    is_meant,
    is_the_users,
    is_not_the_assistants,
    has_said_addresses,
    names_other_person,
    shares_words,
    is_said_in_earnest,
    says_something,
    has_said_dates,
    has_no_rider,
)
# The user may have said the rejected numbers and names in other words.
DOUBTS: tuple[Check, ...] = (has_said_numbers, has_said_names)
# An agent also reads the texts of tools and pages.
TOOL_CHECKS = (*CHECKS, has_enough_users_words)


# ---- ends of known facts, and confirmations ----


def is_not_pinned(ending: Ending, _: Source) -> Rejection | None:
    """Keep pinned facts."""
    if ending.fact.pinned:
        return Rejection("pinned", "A pinned fact stays until it is unpinned.")
    return None


def has_other_replacement(ending: Ending, _: Source) -> Rejection | None:
    """Keep a fact whose replacement only repeats it."""
    if ending.new is not None and ending.new.id == ending.fact.id:
        return Rejection(
            "replacement_rejected", "The fact that should replace it says the same."
        )
    return None


def has_users_quote(ending: Ending, _: Source) -> Rejection | None:
    """Keep a fact that the user's words do not end."""
    if not ending.entry.quote.strip():
        return Rejection("no_quote", "It names no words of the user's that end it.")
    if ending.place is not NOWHERE:
        return None
    return Rejection("quote_not_found", "Its quote is not in the user's words.")


def is_contradicted(ending: Ending, source: Source) -> Rejection | None:
    """Keep a fact that the user's words do not contradict.

    Words that ask, suppose or quote contradict nothing. Other words end the fact in
    three cases: these words or the new fact share a word with the fact; they tell a
    change that ends no other fact or comes with a new fact; or a model has read the
    user's request before.
    """
    fact = ending.fact
    place = ending.place
    new = ending.new
    reason: str = ending.entry.said_as
    if reason not in _ENDS_NOTHING:
        reason = unsaid_reason(
            fact.content, place.text, place.span, may_presuppose=False
        )
    if reason:
        return Rejection(reason, _ENDS_NOTHING[reason])
    sentences = " ".join(sentences_at(place.text, place.span))
    words = f"{sentences}\n{source.question(place)}\n{new.content if new else ''}"
    is_change = (ending.is_only or new is not None) and tells_change(sentences)
    if shares_word(fact.content, words) or is_change or ending.is_request:
        return None
    return Rejection("not_contradicted", "The user's words say nothing of it.")


ENDING_CHECKS = (is_not_pinned, has_other_replacement, has_users_quote, is_contradicted)


def is_denial(candidate: Candidate) -> bool:
    """Return whether a content denies something that the user's words deny, too."""
    place = candidate.place
    content = candidate.new.content
    if not denies(content):
        return False
    telling = keywords(content)
    return any(
        denies(clause.text) and overlaps(telling, keywords(clause.text))
        for clause in clauses_in(sentences_at(place.text, place.span))
    )


def is_said_again(candidate: Candidate, _: Source) -> Rejection | None:
    """Reject a confirmation whose words only ask or suppose the fact, or deny or end it."""
    content = candidate.new.content
    place = candidate.place
    sentences = sentences_at(with_question_marks(place.text), place.span)
    if all(map(_may_ask, sentences)) or _mostly_ask(content, sentences):
        return Rejection("asked", _UNSAID["asked"])
    clause = closest_clause(content, sentences).text
    is_denied = denies(clause) != denies(content)
    is_changed = tells_change(clause) and not overlaps(_changes(), keywords(content))
    if is_denied or is_changed:
        return Rejection("denied", "The user's words deny it or end it.")
    return None


def _mostly_ask(content: str, sentences: Iterable[str]) -> bool:
    """Return whether at least half of the said keywords of a content are only asked."""
    asking = list[str]()
    stating = list[str]()
    for sentence in sentences:
        (asking if _may_ask(sentence) else stating).append(sentence)
    telling = keywords(content)
    stated = shared(telling, keywords("\n".join(stating)))
    only_asked = shared(telling, keywords("\n".join(asking))) - stated
    return bool(only_asked) and len(only_asked) >= len(stated)


CONFIRMING_CHECKS: tuple[Check, ...] = (is_the_users, shares_words, is_said_again)


# ---- how sentences say a statement ----


def _matches(section: str, text: str) -> bool:
    """Return whether a text has a phrase of a section of ``clauses.txt``."""
    return phrases("clauses", section).search(text) is not None


# The words of a section of ``clauses.txt``.
_words = partial(words_of_section, "clauses")
# Words that a negation skips: it denies the next word.
_LIGHT = (STOP_WORDS | _words("articles") | _words("adverbs")) - _words("speakers")
# A quote of fewer words may stand in quotation marks.
_LEAST_QUOTED = 3
# The first words of a content, which name its subject.
_SUBJECT_WORDS = 3
# The characters between a statement and its correction, and how many characters of a
# correction tell that a content copies the correction.
_PAUSES = " ,.;:!\n\u2014\u3002\uff01\uff0c\u3001"
_NOTICED = 12
# How many words behind the speaker can tell a change: "I have gone back".
_NEAR = 3
# The quotation marks of each kind.
_OPENING_MARKS = "\u201c\u201e\u300c\"'"
_CLOSING_MARKS = "\u201d\u201c\u300d\"'"


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text."""
    return pattern(_SENTENCE).findall(with_question_marks(text))


def statements_of(text: str) -> str:
    """Return a text without its questions; "" if it has nothing else.

    >>> statements_of("I live in Rome. Is it far?"), statements_of("Is it far?")
    ('I live in Rome.', '')
    """
    statements = ""
    for sentence in pattern(_SENTENCE).findall(text):
        if not _is_question(with_question_marks(sentence).strip()):
            statements += sentence
    return statements.strip()


def sentences_at(text: str, span: Span) -> list[str]:
    """Return the sentences of a text in which a part of it lies."""
    sentences = []
    for match in pattern(_SENTENCE).finditer(text):
        sentence = match.group().strip()
        if sentence and match.start() < span.end and span.start < match.end():
            sentences.append(sentence)
    return sentences


def denies(text: str) -> bool:
    """Return whether a text has a negation: a word, a form such as "don't", or a character.

    >>> denies("Does not drink"), denies("No."), denies("不喝酒"), denies("Drinks tea")
    (True, True, True, False)
    """
    if script_of(text) == "cjk":
        return _matches("negation_in_characters", text)
    return any(map(_is_negation, _words_in(text)))


def _is_negation(word: str) -> bool:
    # Also forms such as "don't" and "dont".
    is_form = word.endswith("nt") and word in STOP_WORDS
    return is_form or word.endswith("n't") or word in _words("negations")


def tells_change(text: str) -> bool:
    """Return whether the speaker tells a change.

    >>> [tells_change(text) for text in ("I have moved to Rome", "Call me Bo from now on", "I went to Rome", "Hi")]
    [True, True, False, False]
    """
    words = [word.removesuffix("'ve") for word in _words_in(text)]
    for i, word in enumerate(words):
        if word not in _words("speakers"):
            continue
        for verb in words[i + 1 : i + 1 + _NEAR]:
            is_past = verb in IRREGULAR and not verb.endswith("n")
            if term_of(verb) in _changes() and (
                is_past or verb.endswith("ed") or verb == "back"
            ):
                return True
    return _matches("since_now", text)


@cache
def _changes() -> frozenset[str]:
    return frozenset(map(term_of, _words("changes")))


def unsaid_reason(
    statement: str, text: str, span: Span, *, may_presuppose: bool = True
) -> str:
    """Return how the words around a quote say a statement that they do not state.

    Return "asked", "supposed" or "quoted", or "" for a statement.
    ``may_presuppose``: "What do my two cats eat?" says that there are two cats.

    >>> from llama_index_memory_ext.checks.quotes import find_quote
    >>> text = "I like coffee. Should I learn Rust?"
    >>> unsaid_reason("Is learning Rust", text, find_quote("learn Rust", text))
    'asked'
    """
    if all(map(_is_question, filter(str.strip, sentences_of(statement)))):
        return "asked"
    if _matches("supposed", statement):
        return "supposed"
    sentences = sentences_at(text, span)
    if not _is_stated(statement, text):
        if _is_asked(statement, sentences, may_presuppose=may_presuppose):
            return "asked"
        is_supposed = any(map(phrases("clauses", "supposed").search, sentences))
        if is_supposed and not _matches("conditional", statement):
            return "supposed"
    is_ironic = any(map(phrases("clauses", "irony").search, sentences))
    if is_ironic or _is_quoted(text, span):
        return "quoted"
    return ""


def is_taken_back(statement: str, text: str, span: Span) -> bool:
    """Return whether a message calls a statement untrue, or takes it back right behind it.

    >>> from llama_index_memory_ext.checks.quotes import find_quote
    >>> text = "I live in Rome. Sorry, no: in Bari."
    >>> is_taken_back("Lives in Rome", text, find_quote("I live in Rome", text))
    True
    """
    clause = closest_clause(statement, sentences_at(text, span)).text
    if denies(statement) or not clause.strip():
        return False
    start = max(text.find(clause), 0)
    end = start + len(clause)
    behind = text[end:]
    correction = behind.lstrip(_PAUSES)[:_NOTICED]
    if correction and correction in statement:
        return False
    # The last match is empty.
    sentence = "".join(sentences_of(text[:end].rstrip())[-2:])
    untrue = phrases("clauses", "untrue").search(sentence)
    if untrue and not _matches("contrast", sentence[untrue.end() :]):
        return True
    if _matches("taken_back", behind):
        return True
    telling = keywords(statement) - _LIGHT - _words("has")
    shared_words = shared(telling, keywords(clause))
    return _denied_word(clause) in telling and 2 * len(shared_words) >= len(telling)


def _denied_word(clause: str) -> str:
    """Return the stem of the word that the only negation of a clause denies; "" if there is none.

    >>> _denied_word("I do not have a car"), _denied_word("I can't live without tea")
    ('car', '')
    """
    words = _words_in(clause)
    negations = [i for i, word in enumerate(words) if _is_negation(word)]
    if len(negations) != 1:
        return ""
    light = _LIGHT | _words("has")
    for word in words[negations[0] + 1 :]:
        if word not in light:
            return term_of(word)
    return ""


def _is_asked(
    statement: str, sentences: Sequence[str], *, may_presuppose: bool
) -> bool:
    """Return whether sentences are questions that do not presuppose a statement."""
    if not sentences or not all(map(_is_question, sentences)):
        return False
    return not (may_presuppose and _is_presupposed(statement, sentences))


def _is_stated(statement: str, text: str) -> bool:
    """Return whether a message states a telling word of a statement."""
    clauses = []
    for sentence in filter(None, map(str.strip, pattern(_SENTENCE).findall(text))):
        if _matches("supposed", sentence):
            continue
        if _is_question(sentence):
            # "I have two kids, how much tax do I pay?" asks only in its last clause.
            clauses += phrases("clauses", "clause_end").split(sentence)[:-1]
        else:
            clauses.append(sentence)
    return overlaps(keywords(statement), keywords(" ".join(clauses)))


def _is_presupposed(statement: str, sentences: Sequence[str]) -> bool:
    """Return whether a question calls the statement the user's own: "my two cats"."""
    telling = [
        word for word in _words_in(statement) if word not in _LIGHT | _words("has")
    ]
    if not telling or denies(statement):
        return False
    for words in map(_words_in, sentences):
        for i, word in enumerate(words, 1):
            if word in _words("own"):
                owned = keywords(" ".join(words[i : i + len(telling)]))
                if all(overlaps(keywords(term), owned) for term in telling):
                    return True
    return False


def _may_ask(sentence: str) -> bool:
    """Return whether a sentence asks or supposes something, also without a question mark."""
    sentence = sentence.strip()
    is_asked = _matches("asks", sentence) or _is_question(sentence)
    return is_asked or _matches("supposed", sentence)


def with_question_marks(text: str) -> str:
    """Return a text of the same length in which the question marks of all scripts are "?"."""
    return phrases("clauses", "question_marks").sub("?", text)


def _is_question(sentence: str) -> bool:
    return _matches("question", sentence[-2:])


def _is_quoted(text: str, span: Span) -> bool:
    """Return whether a quote lies in quotation marks, in an answered line of a mail, or in a text to work on."""
    if text[text.rfind("\n", 0, span.start) + 1 :].startswith(">"):
        return True
    if _matches("text_behind", text[: span.start]):
        return True
    if len(tokens_in(span.of(text))) < _LEAST_QUOTED:
        return False
    for opening, closing in zip(_OPENING_MARKS, _CLOSING_MARKS, strict=True):
        start = text.rfind(opening, 0, span.start + 1)
        if start >= 0 and not text[max(start - 1, 0) : start].isalnum():
            end = max(span.end - 1, start + 1)
            if closing not in text[start + 1 : end] and closing in text[end:]:
                return True
    return False


def _words_in(text: str) -> list[str]:
    """Return the words of a text in lower case, with straight apostrophes."""
    return [word.replace("\u2019", "'") for word in tokens_in(text.lower())]
