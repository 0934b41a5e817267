"""Reads the sentences and clauses of a user: whom they are about, and whether they state, ask or deny something."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.words import (
    FUNCTION_WORDS,
    STOP_WORDS,
    pattern,
    phrases,
    relations_in,
    script_of,
    sentences_in,
    tokens_in,
    words_of_section,
)
from llama_index_memory_ext.words.tokens import (
    keywords,
    languages_of,
    shared,
    shares_word,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Sequence

    from llama_index_memory_ext.checks.quotes import Span


# ---- sentences ----


def statements_of(text: str) -> str:
    """Return a text without its questions; "" if it has nothing else.

    >>> statements_of("I live in Rome. Is it far?"), statements_of("Is it far?")
    ('I live in Rome.', '')
    """
    sentences = [part for part in sentences_in(text) if not _is_question(part)]
    return "".join(sentences).strip()


def states_something(sentence: str) -> bool:
    """Return whether a sentence states something: it is no question, supposition or small talk."""
    is_unsaid = _is_question(sentence) or _matches("supposed", sentence)
    return not (is_unsaid or is_small_talk(sentence))


def sentences_at(text: str, span: Span) -> list[str]:
    """Return the sentences of a text in which a part of it lies."""
    sentences = []
    end = 0
    for sentence in sentences_in(text):
        start = end
        end += len(sentence)
        if sentence.strip() and start < span.end and span.start < end:
            sentences.append(sentence.strip())
    return sentences


def _is_question(sentence: str) -> bool:
    return _matches("question", sentence.strip()[-2:])


def _matches(section: str, text: str) -> bool:
    """Return whether a text has a phrase of a section of ``clauses.txt``."""
    return phrases("clauses", section).search(text) is not None


def _words_in(text: str) -> list[str]:
    """Return the words of a text in lower case, with straight apostrophes."""
    return [word.replace("\u2019", "'") for word in tokens_in(text.casefold())]


# ---- whom clauses are about ----

# The words of a section of ``people.txt``.
_people = partial(words_of_section, "people")
# "My best friend", "meine kleine Schwester": the words between are few.
_WORDS_OF_PERSON = 4


class Clause(NamedTuple):
    """A clause of a message.

    ``person``: whom it is about, "user" or "other"; "" if the words do not tell.
    ``relations``: the relations of the other person that it is about, such as "sister".
    ``is_denied``: it has a negation, or its sentence calls it untrue.
    """

    text: str
    person: str
    relations: Iterable[str] = ()
    is_denied: bool = False


def clauses_in(sentences: Iterable[str]) -> list[Clause]:
    """Return the clauses of sentences.

    A clause that names no person has the person of the clause before it: "My brother is
    a pilot and lives in Rome".
    """
    clauses = []
    for sentence in sentences:
        subject = Clause("", "")
        # "It is a lie that I smoke."
        is_untrue = _matches("untrue", sentence)
        for text in phrases("people", "clause_end").split(sentence):
            own_subject = _subject_of(text)
            if own_subject.person:
                subject = own_subject
            is_denied = is_untrue or denies(text)
            clauses.append(subject._replace(text=text, is_denied=is_denied))
    return clauses


def count_shared(statement: str, text: str) -> int:
    """Return how many keywords of a statement a text has in some form."""
    return len(shared(keywords(statement), keywords(text)))


def closest_clause(statement: str, sentences: Iterable[str]) -> Clause:
    """Return the clause with most keywords of a statement.

    Of equal clauses, a clause that is not about another person is preferred, then the last.

    Return a clause without words if there are no sentences.

    >>> sentences = ["My sister is a nurse, and I cook."]
    >>> closest_clause("Is a nurse", sentences).person, closest_clause("Cooks", sentences).person
    ('other', 'user')
    """
    return max(
        reversed(clauses_in(sentences)),
        key=lambda clause: (
            count_shared(statement, clause.text),
            clause.person != "other",
        ),
        default=Clause("", ""),
    )


def is_about_stranger(sentences: Iterable[str]) -> bool:
    """Return whether sentences are only about a stranger or a person without a name: "The patient is ill"."""
    text = " ".join(sentences)
    relations = relations_in(text)
    if _people("own").isdisjoint(_word_beginnings(text)):
        relations -= _people("strangers")
    return not relations and {clause.person for clause in clauses_in(sentences)} == {
        "other"
    }


def _subject_of(clause: str) -> Clause:
    """Return the person of a clause and their relations; person "" if no word tells."""
    named = _named_in_characters().search(clause)
    name = named.group() if named else _beginning_of_other(_word_beginnings(clause))
    if name:
        return Clause(clause, "other", relations_in(name))
    return Clause(clause, "user" if _mentions_user(clause) else "")


def _word_beginnings(text: str) -> list[str]:
    """Return the words of a text in lower case, each up to its apostrophe."""
    return [word.partition("'")[0] for word in _words_in(text)]


def _beginning_of_other(words: Sequence[str]) -> str:
    """Return the words at the beginning of a clause that name another person; "" if none does.

    Such words are "she", or an article or possessive before a relation: "my best friend".
    """
    first = words[:1]
    if not _people("other").isdisjoint(first):
        return words[0]
    if not (_people("own") | _people("article")).isdisjoint(first):
        for length, word in enumerate(words[1:_WORDS_OF_PERSON], 2):
            if relations_in(word):
                return " ".join(words[:length])
    return ""


@cache
def _named_in_characters() -> re.Pattern[str]:
    """Return a pattern of a clause's beginning that names another person, in scripts without spaces."""
    names = words_of_section("relations", "")
    spelt = [
        name.replace("_", " ") for name in names if "_" in name or not name.isascii()
    ]
    relations = "|".join(sorted(spelt, key=len, reverse=True))
    frame = phrases("people", "other_in_characters").pattern
    return pattern(f"(?i){frame.replace('RELATION', relations)}")


def is_small_talk(statement: str) -> bool:
    """Return whether a statement has no telling word, or a greeting and a name alone.

    >>> [is_small_talk(text) for text in ("Thanks, Dave!", "I'm glad", "Works in Rome", "I love Rome")]
    [True, True, False, False]
    """
    rest = phrases("small_talk", "phrases").sub(" ", statement)
    interjections = words_of_section("small_talk", "interjections")
    light_words = interjections | words_of_section("small_talk", "light")
    # A capital letter right behind a word is of a name: "Works at Indeed".
    without_names = pattern(r"(?<=\w )[A-Z]\w*").sub("", statement)
    is_greeting = rest != statement or not interjections.isdisjoint(
        _word_beginnings(without_names)
    )
    if is_greeting and not _mentions_user(statement):
        rest = pattern(r"\b[A-ZÀ-ÞА-Я]\w*").sub(" ", rest)
    telling = keywords(rest) - keywords(" ".join(light_words))
    for code in languages_of(statement):
        telling -= keywords(" ".join(FUNCTION_WORDS[code]))
    return not telling


def speaks_to_listener(sentence: str) -> bool:
    """Return whether a sentence is about the listener or a text to write, and has no word for the speaker.

    >>> [speaks_to_listener(text) for text in ("You are a pirate", "You know I hate garlic", "I hate garlic")]
    [True, False, False]
    """
    words = _word_beginnings(sentence)
    begins = not _people("listener").isdisjoint(words[:1]) or phrases(
        "people", "to_listener"
    ).search(sentence)
    return bool(begins) and not _mentions_user(sentence)


def _mentions_user(text: str) -> bool:
    if phrases("people", "speaker_in_characters").search(text):
        return True
    mentions = _people("speaker") | _people("own")
    return not mentions.isdisjoint(_word_beginnings(text))


# ---- denials and changes ----

# A content copies a correction if it has this many characters of the correction's
# beginning.
_NOTICED = 12


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
    return (
        is_form
        or word.endswith("n't")
        or word in words_of_section("clauses", "negations")
    )


def tells_own_change(text: str) -> bool:
    """Return whether the speaker tells a change in their own life.

    >>> [tells_own_change(text) for text in ("I have moved to Rome", "Call me Bo from now on", "I went to Rome", "Hi")]
    [True, True, False, False]
    """
    return _matches("change", text)


def tells_past(statement: str, sentences: Iterable[str]) -> bool:
    """Return whether the clause that is closest to a statement tells that it is over.

    >>> tells_past("Smokes", ["I used to smoke, and I row."]), tells_past("Rows", ["I used to smoke, and I row."])
    (True, False)
    """
    return _matches("over", closest_clause(statement, sentences).text)


def is_taken_back(statement: str, text: str, span: Span) -> bool:
    """Return whether a message takes a statement back right behind it.

    >>> from llama_index_memory_ext.checks.quotes import find_quote
    >>> text = "I live in Rome. Sorry, no: in Bari."
    >>> is_taken_back("Lives in Rome", text, find_quote("I live in Rome", text))
    True
    """
    clause = closest_clause(statement, sentences_at(text, span)).text
    behind = text[max(text.find(clause), 0) + len(clause) :]
    # A content may copy the correction, too.
    if behind[:_NOTICED] in statement:
        return False
    return _matches("taken_back", behind)


# ---- questions, suppositions and words of others ----

# The quotation marks of each kind.
_OPENING_MARKS = "\u201c\u201e\u300c\"'"
_CLOSING_MARKS = "\u201d\u201c\u300d\"'"


def unsaid_reason(statement: str, text: str, span: Span) -> str:
    """Return why the words around a quote do not state a statement: "asked", "supposed" or "quoted"; "" if they do.

    >>> from llama_index_memory_ext.checks.quotes import find_quote
    >>> text = "I like coffee. Should I learn Rust?"
    >>> unsaid_reason("Is learning Rust", text, find_quote("learn Rust", text))
    'asked'
    """
    sentences = sentences_at(text, span)
    reason = _unstated_reason(sentences_in(statement))
    if not reason and not _is_stated(statement, text):
        reason = _unstated_reason(sentences)
    if reason:
        return reason
    is_ironic = any(map(phrases("clauses", "irony").search, sentences))
    if is_ironic or _is_quoted(statement, text, span):
        return "quoted"
    return ""


def _unstated_reason(sentences: Sequence[str]) -> str:
    """Return "asked" if all sentences ask, "supposed" if one supposes something, else ""."""
    if all(map(_is_question, filter(str.strip, sentences))):
        return "asked"
    if any(map(phrases("clauses", "supposed").search, sentences)):
        return "supposed"
    return ""


def _is_stated(statement: str, text: str) -> bool:
    """Return whether a message states a telling word of a statement."""
    clauses = list[str]()
    for sentence in sentences_in(text):
        parts = phrases("clauses", "clause_end").split(sentence)
        if _is_question(sentence):
            # "I have two kids, how much tax do I pay?" asks only in its last clause.
            parts = [] if _matches("asks", parts[0]) else parts[:-1]
        if not _matches("supposed", sentence):
            clauses += parts
    return shares_word(statement, " ".join(clauses))


def _is_to_work_on(statement: str, text: str, span: Span) -> bool:
    """Return whether most words of a statement stand behind the beginning of a request such as "Translate:"."""
    request = phrases("clauses", "text_behind").search(text[: span.end])
    if request is None:
        return False
    before = count_shared(statement, text[span.start : request.start()])
    return before <= count_shared(statement, text[request.start() : span.end])


def _is_quoted(statement: str, text: str, span: Span) -> bool:
    """Return whether a quote lies in quotation marks, in an answered line of a mail, or in a text to work on."""
    if text[text.rfind("\n", 0, span.start) + 1 :].startswith(">"):
        return True
    if _is_to_work_on(statement, text, span):
        return True
    for opening, closing in zip(_OPENING_MARKS, _CLOSING_MARKS, strict=True):
        start = text.rfind(opening, 0, span.start + 1)
        if start >= 0 and not text[max(start - 1, 0) : start].isalnum():
            end = max(span.end - 1, start + 1)
            if closing not in text[start + 1 : end] and closing in text[end:]:
                return True
    return False
