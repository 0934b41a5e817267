"""Tells whom words are about: the user, another person, the listener, or no person, as in small talk."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.checks.quotes import tokens_in
from llama_index_memory_ext.words import (
    FUNCTION_WORDS,
    pattern,
    phrases,
    relations_in,
    script_of,
    words_of_section,
)
from llama_index_memory_ext.words.tokens import keywords, languages_of, shared

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable

# "My best friend", "meine kleine Schwester": the words between are few.
_WORDS_OF_PERSON = 4
# The words of a section of ``people.txt``.
_people = partial(words_of_section, "people")


class Clause(NamedTuple):
    """A clause of a message.

    ``person``: whom it is about, "user" or "other"; "" if the words do not tell.
    """

    text: str
    person: str


def clauses_in(sentences: Iterable[str]) -> list[Clause]:
    """Return the clauses of sentences.

    A clause that names no person has the person of the clause before it: "My brother is
    a pilot and lives in Rome".
    """
    clauses = []
    for sentence in sentences:
        person = ""
        for text in phrases("people", "clause_end").split(sentence):
            person = _person_of(text) or person
            clauses.append(Clause(text, person))
    return clauses


def closest_clause(statement: str, sentences: Iterable[str]) -> Clause:
    """Return the clause with most keywords of a statement, of equal ones the user's.

    >>> sentences = ["My sister is a nurse, and I cook."]
    >>> closest_clause("Is a nurse", sentences).person, closest_clause("Cooks", sentences).person
    ('other', 'user')
    """
    telling = keywords(statement)
    best = Clause("", "")
    most = -1
    for clause in clauses_in(sentences):
        count = len(shared(telling, keywords(clause.text)))
        if count > most or (count == most and clause.person != "other"):
            best = clause
            most = count
    return best


def names_person(statement: str) -> bool:
    """Return whether a statement names a relation of the user's, as in "Has two kids"."""
    is_implied = not _people("implied").isdisjoint(_words_in(statement))
    return is_implied or bool(relations_in(statement))


def _person_of(clause: str) -> str:
    if script_of(clause) == "cjk":
        if _named_in_characters().search(clause):
            return "other"
        is_speaker = phrases("people", "speaker_in_characters").search(clause)
        return "user" if is_speaker else ""
    words = _words_in(clause)
    length = _length_of_other(words)
    speakers = _people("speaker")
    # "i" is also a preposition, in Swedish, Danish and Norwegian.
    if "en" not in (languages_of(clause) or ("en",)):
        speakers -= {"i"}
    if not speakers.isdisjoint(words[length:]):
        return "user"
    if length:
        return "other"
    return "" if _people("own").isdisjoint(words) else "user"


def _words_in(text: str) -> list[str]:
    """Return the words of a text in lower case, each up to its apostrophe."""
    plain = text.casefold().replace("\u2019", "'")
    return [word.partition("'")[0] for word in tokens_in(plain)]


def _length_of_other(words: list[str]) -> int:
    """Return the number of words at the beginning of a clause that name another person.

    They are "she", or an article or possessive before a relation: "my best friend".
    """
    if not words:
        return 0
    if words[0] in _people("other"):
        return 1
    if words[0] in _people("own") or words[0] in _people("article"):
        for length, word in enumerate(words[1:_WORDS_OF_PERSON], 2):
            if relations_in(word):
                return length
    return 0


@cache
def _named_in_characters() -> re.Pattern[str]:
    """Return a pattern of the beginning of a clause that names another person in characters."""
    names = words_of_section("relations", "")
    unspaced = [name for name in names if not name.isascii()]
    relations = "|".join(sorted(unspaced, key=len, reverse=True))
    frame = phrases("people", "other_in_characters").pattern
    return pattern(frame.replace("RELATION", relations))


def is_small_talk(statement: str) -> bool:
    """Return whether a statement has no telling word, or a greeting and a name alone.

    >>> [is_small_talk(text) for text in ("Thanks, Dave!", "I'm glad", "Works in Rome", "I love Rome")]
    [True, True, False, False]
    """
    rest = phrases("small_talk", "phrases").sub(" ", statement)
    greetings = words_of_section("small_talk", "greetings")
    light_words = greetings | words_of_section("small_talk", "light")
    telling = keywords(rest) - keywords(" ".join(light_words))
    for code in languages_of(statement):
        telling -= keywords(" ".join(FUNCTION_WORDS[code]))
    words = _words_in(statement)
    is_greeting = rest != statement or not greetings.isdisjoint(words)
    is_call = len(words) == 1 and statement.endswith("!")
    if (is_greeting or is_call) and not _mentions_user(words):
        names = {word for word in rest.split() if word[:1].isupper()}
        telling -= keywords(" ".join(names))
    return not telling


def addresses_listener(sentence: str) -> bool:
    """Return whether a sentence of the user's is about the listener, or about no person.

    >>> [addresses_listener(text) for text in ("Good luck with your exam!", "It's so peaceful", "My exam is over")]
    [True, True, False]
    """
    words = _words_in(sentence)
    if not words or _mentions_user(words):
        return False
    is_impersonal = words[0] in words_of_section("small_talk", "impersonal")
    return is_impersonal or not _people("listener").isdisjoint(words)


def _mentions_user(words: list[str]) -> bool:
    mentions = _people("speaker") | _people("own")
    return not mentions.isdisjoint(words)
