"""Tells in which languages a question may be written, by its script and its function words."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.search.function_words import FUNCTION_WORDS
from llama_index_memory_ext.search.stems import LANGUAGES, stem
from llama_index_memory_ext.search.tokenization import STOP_WORDS, Word, indexed_words, term_of, without_accents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# What a text says about its language stands at its beginning and at its end.
_END = 1_000
_WORD = re.compile(r"[^\W\d_]+")
_CYRILLIC = re.compile("[\u0400-\u04ff]")
_LATIN = re.compile("[a-z\u00c0-\u024f]")
# Ukrainian, Serbian and Macedonian have other endings than Russian.
_NOT_RUSSIAN = re.compile("[\u0452-\u045f\u0491]")
# Letters that few languages have, each with these languages.
_LETTERS = {
    **dict.fromkeys("ñ¿¡", ("es",)),
    **dict.fromkeys("ãõ", ("pt",)),
    **dict.fromkeys("ßü", ("de",)),
    **dict.fromkeys("ä", ("de", "fi", "sv")),
    **dict.fromkeys("ö", ("de", "fi", "sv")),
    **dict.fromkeys("øæ", ("da", "no")),
    **dict.fromkeys("å", ("da", "no", "sv")),
    **dict.fromkeys("œûîëï", ("fr",)),
    **dict.fromkeys("ìò", ("it",)),
    **dict.fromkeys("çêâ", ("fr", "pt")),
}
_LETTER_WEIGHT = 0.5
# A lower score tells nothing: "in" and "a" are words of many languages.
_LEAST_SCORE = 0.4
# Languages with this share of the best one's score may be the right one, too.
_PLAUSIBLE = 0.75
# So many function words in this share of the texts tell that some are written in their language.
_LEAST_WORDS, _LEAST_SHARE = 2, 0.02
# Function words of more languages than this tell none of them.
_MOST_LANGUAGES = 2


def checked_languages(codes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns ISO 639-1 codes, each once; None for None. Raises a ValueError for one without a stemmer, and for none.

    >>> checked_languages(["de", "en", "de"])
    ('de', 'en')
    """
    if codes is None:
        return None
    named: list[Any] = list(codes) if isinstance(codes, list | tuple) else [codes]
    unknown = [code for code in named if not isinstance(code, str) or code not in LANGUAGES]
    if unknown or not named:
        raise ValueError(
            f"expected one or more languages: {', '.join(LANGUAGES)}; saw {unknown[0] if unknown else 'none'!r}. None"
            " tells the language of each question. Chinese, Japanese and Korean need no code."
        )
    return tuple(dict.fromkeys(named))


@lru_cache(maxsize=1_000)
def languages_of(text: str, among: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Returns the languages in which a text may be written, the likeliest first; () if nothing tells.

    Args:
        text: Any text; of a long one the beginning and the end are looked at.
        among: Only these languages are possible; where nothing tells, the text may be in any of them.

    >>> languages_of("Wo wohne ich?"), languages_of("Where do I live?"), languages_of("Python?")
    (('de',), ('en',), ())
    """
    if among is not None and len(among) == 1:
        return among
    plain = (text if len(text) <= 2 * _END else f"{text[:_END]} {text[-_END:]}").casefold()
    if len(_CYRILLIC.findall(plain)) > len(_LATIN.findall(plain)):
        found: tuple[str, ...] = () if _NOT_RUSSIAN.search(plain) else ("ru",)
    else:
        found = _by_words(plain)
    return found if among is None else tuple(code for code in found if code in among) or among


def terms_in(text: str, codes: Sequence[str]) -> tuple[str, ...]:
    """Returns the terms of ``words_in``."""
    return tuple(word.term for word in words_in(text, codes))


def is_function_word(word: str, codes: Iterable[str]) -> bool:
    """Whether a word in lower case has no meaning of its own in one of these languages."""
    return any(word in _words(code) for code in codes)


def words_in(text: str, codes: Sequence[str]) -> Iterator[Word]:
    """Yields the words of a text that have a meaning, with their stems in the first of these languages as terms.

    Without a code they are those of ``indexed_words``. Two texts are compared in the same language.
    """
    code = codes[0] if codes else "en"
    for word in indexed_words(text):
        if code == "en" or not word.written.isalpha():
            yield word
        elif not is_function_word(word.written, codes):
            yield Word(word.written, stem(word.written, code))


def function_terms(codes: Iterable[str]) -> frozenset[str]:
    """Returns the terms under which the function words of these languages are indexed."""
    return frozenset[str]().union(*map(_terms, codes))


def languages_in(frequency: Callable[[str], int], total: int) -> tuple[str, ...]:
    """Returns the languages of ``total`` texts, English apart; ``frequency`` says how many of them have a term."""
    least = max(_LEAST_SHARE * total, 1)
    return tuple(
        code for code in FUNCTION_WORDS if sum(frequency(term) >= least for term in _telling(code)) >= _LEAST_WORDS
    )


def _by_words(plain: str) -> tuple[str, ...]:
    scores: defaultdict[str, float] = defaultdict(float)
    known = _languages_by_word()
    for word in set(_WORD.findall(plain)):
        codes = known.get(word, ())
        for code in codes:
            scores[code] += 1 / len(codes)
    for letter in () if plain.isascii() else set(plain) & _LETTERS.keys():
        for code in _LETTERS[letter]:
            scores[code] += _LETTER_WEIGHT / len(_LETTERS[letter])
    best = max(scores.values(), default=0.0)
    if best < _LEAST_SCORE:
        return ()
    if scores["en"] == best:
        return ("en",)
    return tuple(sorted((code for code in scores if scores[code] >= _PLAUSIBLE * best), key=lambda one: -scores[one]))


@lru_cache(maxsize=1)
def _languages_by_word() -> dict[str, list[str]]:
    """The languages of each function word, which may be written without its accents."""
    found = defaultdict[str, list[str]](list)
    for code in ("en", *FUNCTION_WORDS):
        for word in _words(code) | set(map(without_accents, _words(code))):
            found[word].append(code)
    return dict(found)


@lru_cache
def _words(code: str) -> frozenset[str]:
    return STOP_WORDS if code == "en" else frozenset(FUNCTION_WORDS[code].split())


@lru_cache
def _terms(code: str) -> frozenset[str]:
    return frozenset(map(term_of, _words(code)))


@lru_cache
def _telling(code: str) -> frozenset[str]:
    known = _languages_by_word()
    return frozenset(term_of(word) for word in _words(code) if len(known[word]) <= _MOST_LANGUAGES)
