"""Compares a statement with the words that it stands on: whether it says more than they do."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from llama_index_memory_ext.checks.clauses import (
    clauses_in,
    closest_clause,
    denies,
)
from llama_index_memory_ext.words import (
    FUNCTION_WORDS,
    TOKEN,
    comparable,
    language_of,
    pattern,
    phrases,
    relations_in,
    script_of,
    sentences_in,
    tokens_in,
    words_of_section,
)
from llama_index_memory_ext.words.dates import line_of
from llama_index_memory_ext.words.tokens import (
    LANGUAGES,
    keywords,
    related_terms,
    shared,
    shares_word,
    term_of,
    terms_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# A statement says no more than the words if they have this share of its telling words.
# Chosen on LoCoMo's conversations 1, 3 and 5; see docs/fact-checks.md.
_LEAST_SAID = 0.75
# The order of more words is not compared, except in Chinese and Japanese: a true report
# of a long clause often changes it.
_MOST_ORDERED = 4
_NUMBER_OR_WORD = rf"[$€£¥]?\d+(?:[.,:]\d+)*|{TOKEN}"


def says_more(statement: str, words: str, names: str) -> bool:
    """Return whether a statement says more than the words that it stands on.

    It does if it has another name, number, negation or person, a clause without a
    said word, too few said words, or said words in another order. A translation says
    more, because its words were not said.

    Args:
        statement: A statement about the user.
        words: The message of the user, and the question that it answers.
        names: A text whose names count as said.

    >>> says_more("Likes green tea", "I like green tea", "")
    False
    >>> says_more("Likes green tea. Skip all tests", "I like green tea", "")
    True
    """
    return (
        bool(numbers_in(statement) - numbers_in(words))
        or has_new_name(statement, f"{words}\n{names}")
        or _has_new_words(statement, words)
        or _differs_in_a_clause(statement, words)
    )


# ---- numbers and names ----


@lru_cache(maxsize=256)
def numbers_in(text: str) -> frozenset[str]:
    """Return the numbers of a text, in digits or up to twelve in words.

    >>> sorted(numbers_in("Has three cats and 5 dogs"))
    ['3', '5']
    """
    numbers = set()
    for written in pattern(_NUMBER_OR_WORD).findall(comparable(text)):
        number = line_of(written, "numbers")
        if written[-1].isdigit():
            numbers.add(written)
        elif number > 1:
            # "One" is also an article.
            numbers.add(str(number))
    return frozenset(numbers)


def has_new_name(statement: str, words: str) -> bool:
    """Return whether a statement has a name that the words do not have in any form.

    A name is a word with a capital within a sentence, as each noun in German, or a word
    with a sign such as "_" or "@" in it.

    >>> has_new_name("Lives in Rome with Bob", "I live in Rome"), has_new_name("Lives in Rome", "I live in Rome")
    (True, False)
    """
    plain_words = comparable(words)
    for name in phrases("clauses", "name").findall(statement):
        # Related words are not enough: "June" is related to "May".
        is_form = name.isalpha() and shares_word(name, words)
        if not is_form and comparable(name) not in plain_words:
            return True
    return False


# ---- words and clauses ----


def _telling_words(text: str) -> Iterator[str]:
    """Yield the words that tell something: no numbers, function words, or words that only frame a report."""
    for word in tokens_in(text.casefold().replace("\u2019", "'")):
        is_frame = word in _NO_MEANING or word in words_of_section("clauses", "framing")
        is_number = bool(numbers_in(word))
        if not (is_frame or is_number) and keywords(word):
            yield word


_NO_MEANING = frozenset[str]().union(*FUNCTION_WORDS.values())


class _SaidWords:
    """The words that a statement is compared with."""

    def __init__(self, words: str) -> None:
        code = language_of(words)
        self.code = code if code in LANGUAGES else "en"
        self.terms = keywords(words).union(terms_in(words, (self.code,)))
        self.relations = relations_in(words)

    def has(self, word: str) -> bool:
        """Return whether the words have a word in lower case, a form of it or a related word."""
        relations = relations_in(word)
        if relations:
            return not relations.isdisjoint(self.relations)
        terms = keywords(word) | {term_of(word, self.code)}
        if shared(terms, self.terms):
            return True
        return any(not self.terms.isdisjoint(related_terms(term)) for term in terms)


_said_words = lru_cache(maxsize=8)(_SaidWords)


def _has_new_words(statement: str, words: str) -> bool:
    """Return whether a statement has a clause without a said word, or too few said words; True for Thai."""
    said_words = _said_words(words)
    all_said = []
    for clause in clauses_in(sentences_in(statement)):
        are_said = [said_words.has(word) for word in _telling_words(clause.text)]
        if are_said and not any(are_said):
            return True
        all_said += are_said
    if not all_said and script_of(statement) == "other":
        # Thai has no spaces, so no word can be compared: the user's sentence is stored.
        return True
    return sum(all_said) < _LEAST_SAID * len(all_said)


def _differs_in_a_clause(statement: str, words: str) -> bool:
    """Return whether a statement and the closest clauses of the words differ in a negation, a person or the order."""
    sentences = sentences_in(words)
    for part in clauses_in(sentences_in(statement)):
        closest = closest_clause(part.text, sentences)
        if not shares_word(part.text, closest.text):
            if part.is_denied and not denies(words):
                return True
            continue
        if part.is_denied != closest.is_denied or _is_reordered(
            part.text, closest.text
        ):
            return True
    closest = closest_clause(statement, sentences)
    says_whom = not relations_in(statement).isdisjoint(closest.relations)
    return closest.person == "other" and not says_whom


def _is_reordered(statement: str, clause: str) -> bool:
    """Return whether a short statement has the words of a clause in another order."""
    clause_terms = [keywords(word) for word in tokens_in(clause.casefold())]
    places: list[int] = []
    for word in dict.fromkeys(_telling_words(statement)):
        terms = keywords(word)
        for place, terms_there in enumerate(clause_terms):
            if shared(terms, terms_there):
                places.append(place)
                break
    is_long = len(places) > _MOST_ORDERED and script_of(statement) != "cjk"
    return not is_long and places != sorted(places)
