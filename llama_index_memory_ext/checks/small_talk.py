"""Small talk: greetings, thanks, praise and wishes, which are no facts about the user."""

from __future__ import annotations

from functools import cache
from itertools import chain

from llama_index_memory_ext.checks.people import people_words, words_in
from llama_index_memory_ext.words import phrases, word_lists
from llama_index_memory_ext.words.forms import FUNCTION_WORDS
from llama_index_memory_ext.words.tokens import keywords, languages_of


def is_small_talk(statement: str) -> bool:
    """Return whether a statement has no telling word, or a greeting and a name alone.

    >>> [is_small_talk(text) for text in ("Thanks, Dave!", "I'm glad", "Works in Rome", "I love Rome")]
    [True, True, False, False]
    """
    rest = phrases("small_talk", "phrases").sub(" ", statement)
    telling = keywords(rest) - _light_keywords()
    for code in languages_of(statement):
        telling -= _function_keywords(code)
    words = words_in(statement)
    is_greeting = rest != statement or not _greetings().isdisjoint(words)
    is_call = len(words) == 1 and statement.endswith("!")
    if (is_greeting or is_call) and not _mentions_user(words):
        names = {word for word in rest.split() if word[:1].isupper()}
        telling -= keywords(" ".join(names))
    return not telling


def addresses_listener(sentence: str) -> bool:
    """Return whether a sentence of the user's speaks of the listener, or of nobody.

    >>> [addresses_listener(text) for text in ("Good luck with your exam!", "It's so peaceful", "My exam is over")]
    [True, True, False]
    """
    words = words_in(sentence)
    if not words or _mentions_user(words):
        return False
    is_impersonal = words[0] in set(chain(*word_lists("small_talk")["impersonal"]))
    return is_impersonal or not people_words("listener").isdisjoint(words)


def _mentions_user(words: list[str]) -> bool:
    mentions = people_words("speaker") | people_words("own")
    return not mentions.isdisjoint(words)


@cache
def _greetings() -> frozenset[str]:
    return frozenset(chain(*word_lists("small_talk")["greetings"]))


@cache
def _light_keywords() -> frozenset[str]:
    light_words = chain(*word_lists("small_talk")["light"])
    return keywords(" ".join(chain(_greetings(), light_words)))


@cache
def _function_keywords(code: str) -> frozenset[str]:
    return keywords(" ".join(FUNCTION_WORDS[code]))
