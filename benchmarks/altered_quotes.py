"""Alters quotes as models do that are asked to copy a user's words."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

# Returns the altered quote; the same one if there is nothing in it to alter.
Alteration = Callable[[str, Random], str]

_PERSONS = {
    "I": "They",
    "I'm": "They're",
    "I've": "They've",
    "me": "them",
    "my": "their",
    "My": "Their",
    "myself": "themselves",
    "our": "their",
    "we": "they",
}
_LEAST_WORDS, _LEAST_LETTERS = 5, 6


def without_comma(quote: str, _: Random) -> str:
    """The first comma within it is gone."""
    return re.sub(r",(?=\s)", "", quote, count=1)


def without_apostrophes(quote: str, _: Random) -> str:
    """All apostrophes are gone."""
    return re.sub("['\u2019]", "", quote)


def with_dash(quote: str, _: Random) -> str:
    """A dash stands for a hyphen between words, else for each hyphen."""
    return (
        quote.replace(" - ", " \u2014 ")
        if " - " in quote
        else quote.replace("-", "\u2013")
    )


def joined(quote: str, _: Random) -> str:
    """Its sentences are one."""
    return re.sub(r"[.!?]\s+(\w)", lambda found: f", {found[1].lower()}", quote)


def with_word_mended(quote: str, random: Random) -> str:
    """Two letters of a word stand the other way round than in what was said."""
    words = quote.split()
    long = [
        i
        for i, word in enumerate(words)
        if len(word) >= _LEAST_LETTERS and word.isalpha()
    ]
    if not long:
        return quote
    i = random.choice(long)
    word = words[i]
    j = random.randrange(1, len(word) - 2)
    words[i] = f"{word[:j]}{word[j + 1]}{word[j]}{word[j + 2 :]}"
    return " ".join(words)


def with_word_left_out(quote: str, random: Random) -> str:
    """A word within it is gone."""
    words = quote.split()
    if len(words) < _LEAST_WORDS:
        return quote
    i = random.randrange(1, len(words) - 1)
    return " ".join(words[:i] + words[i + 1 :])


def in_third_person(quote: str, _: Random) -> str:
    """It speaks of others."""
    return " ".join(_PERSONS.get(word, word) for word in quote.split())


ALTERATIONS: dict[str, Alteration] = {
    "a comma dropped": without_comma,
    "apostrophes dropped": without_apostrophes,
    "a dash": with_dash,
    "sentences joined": joined,
    "a word mended": with_word_mended,
    "a word left out": with_word_left_out,
    "I -> they": in_third_person,
}


def altered_in_all_ways(quote: str, random: Random) -> str:
    """All alterations, one after the other."""
    for alteration in ALTERATIONS.values():
        quote = alteration(quote, random)
    return quote
