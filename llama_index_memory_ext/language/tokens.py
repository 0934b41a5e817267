"""Splits a text into words: the terms of an index in its languages, and the keywords that tell texts apart."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import defaultdict
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.language import pattern, word_lists
from llama_index_memory_ext.language.dates import with_english_days
from llama_index_memory_ext.language.words import (
    CHARACTER,
    FUNCTION_WORDS,
    STOP_CHARACTERS,
    STOP_PAIRS,
    STOP_WORDS,
    are_forms,
    comparable,
)

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )


# Katakana is apart from the other Japanese characters, because a word ends where it begins or ends.
_KATAKANA = "\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
# Scripts without spaces between words, and Hangul, whose words include their particles.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u309f"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and accents belong to the word, but are no letters to Python.
_SIGNS = "\u0300-\u036f\u0900-\u0963\u0980-\u0dff"
_WORD = (
    rf"(?P<unspaced>[{_KATAKANA}]+|[{_UNSPACED}]+)"
    rf"|[a-z](?:\+\+|#)(?!\w)"
    rf"|(?:[^\W_{_KATAKANA}{_UNSPACED}]|[{_SIGNS}]){{2,}}"
)
# "Uses Docker" and "it uses FastAPI" have nothing in common.
_ANY_VERB = "use"
# The names of Snowball's algorithms by the ISO 639-1 code of the language.
LANGUAGES = dict(word_lists("languages")["snowball"])
# Most Russian texts are written without the first.
_YO = ("\u0451", "\u0435")
# Snowball's stemmers store the word that they work on in themselves, so threads must take turns. Their time grows with
# the square of the length; no word is longer than the limit.
_stemmer_lock = threading.Lock()
_LONGEST_STEMMED = 50


class Word(NamedTuple):
    """A word as it is written (in lower case), and the term under which it is indexed."""

    written: str
    term: str


def words_of(text: str) -> Iterator[Word]:
    """Yields the words of a text that are indexed; none for stop words, single characters, punctuation or emoji.

    Scripts with spaces give words of at least two characters; their terms are stems without accents, of the base form
    of irregular English words. Scripts without spaces, such as Chinese, and Korean give pairs of neighbouring
    characters. Days follow at the end: "8 May", "May 8th", "5月8日" and "2026-05-08" all give the term "may8". The verb
    "may" is a stop word, the month is not.
    """
    plain, days = with_english_days(unicodedata.normalize("NFKC", text))
    plain = plain.casefold()
    for match in pattern(_WORD).finditer(plain):
        found = match.group()
        if match.lastgroup == "unspaced":
            for pair in map("".join, pairwise(found)):
                if pair not in STOP_PAIRS and not STOP_CHARACTERS.issuperset(pair):
                    yield Word(pair, pair)
        elif found not in STOP_WORDS:
            yield _word(found)
    for day in days:
        yield Word(day, day)


# An index keeps the words of its documents: each is one object.
@lru_cache(maxsize=100_000)
def _word(written: str) -> Word:
    return Word(written, term_of(written))


# A text is analyzed as a document, and then as the context of its neighbours.
@lru_cache(maxsize=32)
def indexed_words(text: str) -> tuple[Word, ...]:
    """Returns the words of a text in their order, with repetitions; without "use", which any text may have."""
    return tuple(word for word in words_of(text) if word.term != _ANY_VERB)


def without_accents(word: str) -> str:
    """Returns a word without the accents on its letters: "cafe" for "café"."""
    if word.isascii():
        return word
    return unicodedata.normalize(
        "NFC", re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", word))
    )


@lru_cache(maxsize=100_000)
def term_of(word: str, code: str = "en") -> str:
    """Return the term of a word in lower case: its stem in the language of a code of ``LANGUAGES``, without accents.

    >>> term_of("wohne", "de") == term_of("wohnt", "de"), term_of("люблю", "ru") == term_of("любит", "ru")
    (True, True)
    """
    if len(word) > _LONGEST_STEMMED:
        return word
    stemmer, bases, endings = _stemmer(code)
    if code == "en":
        plain = without_accents(word)
    else:
        plain = word.replace(*_YO)
    with _stemmer_lock:
        found: str = stemmer.stemWord(bases.get(plain, plain))
    for ending, instead in endings:
        found = ending.sub(instead, found)
    return without_accents(found) or word


@cache
def _stemmer(
    code: str,
) -> tuple[Any, dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """Make what stems in a language: the stemmer, the base of each irregular form, and the endings that it leaves."""
    import snowballstemmer  # type: ignore[import-untyped]  # at first use; the package has no type hints

    groups = [
        [form.replace(*_YO) for form in forms]
        for forms in word_lists("irregular_forms").get(code, [])
    ]
    # A form may be written without its accents, unless that is another form.
    bases = {without_accents(form): base for base, *forms in groups for form in forms}
    bases |= {form: base for base, *forms in groups for form in forms}
    endings = [
        (re.compile(ending), "".join(instead))
        for ending, *instead in word_lists("endings").get(code, [])
    ]
    return snowballstemmer.stemmer(LANGUAGES[code]), bases, endings


def checked_languages(codes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return ISO 639-1 codes, each once; None for None. Raise a ValueError for one without a stemmer, and for none.

    >>> checked_languages(["de", "en", "de"])
    ('de', 'en')
    """
    if codes is None:
        return None
    if isinstance(codes, list | tuple):
        named: list[Any] = list(codes)
    else:
        named = [codes]
    unknown = [
        code for code in named if not isinstance(code, str) or code not in LANGUAGES
    ]
    if unknown or not named:
        raise ValueError(
            f"expected one or more languages: {', '.join(LANGUAGES)}; saw {unknown[0] if unknown else 'none'!r}. None"
            " tells the language of each question. Chinese, Japanese and Korean need no code."
        )
    return tuple(dict.fromkeys(named))


# What a text says about its language stands at its beginning and at its end.
_END = 1_000
_LETTER_WEIGHT = 0.5
# A lower score tells nothing: "in" and "a" are words of many languages.
_LEAST_SCORE = 0.4
# Languages with this share of the best one's score may be the right one, too.
_PLAUSIBLE = 0.75


@lru_cache(maxsize=1_000)
def languages_of(text: str, among: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Return the languages in which a question may be written, the likeliest first; () if nothing tells.

    Function words and rare letters tell, which takes microseconds, also for the first question of a process.

    Args:
        text: Any text; of a long one the beginning and the end are looked at.
        among: Only these languages are possible; where nothing tells, the text may be in any of them.

    >>> languages_of("Wo wohne ich?"), languages_of("Where do I live?"), languages_of("Python?")
    (('de',), ('en',), ())
    """
    if among is not None and len(among) == 1:
        return among
    plain = (
        text if len(text) <= 2 * _END else f"{text[:_END]} {text[-_END:]}"
    ).casefold()
    scores = _scores(plain)
    best = max(scores.values(), default=0.0)
    if best < _LEAST_SCORE:
        return among or ()
    found = [code for code in scores if scores[code] >= _PLAUSIBLE * best]
    if scores.get("en") == best:
        found = ["en"]
    found.sort(key=lambda code: (-round(scores[code], 6), code))
    return (
        tuple(code for code in found if among is None or code in among) or among or ()
    )


def _scores(plain: str) -> Mapping[str, float]:
    """Return what the function words and the rare letters of a text in lower case say for each language."""
    if len(re.findall("[\u0400-\u04ff]", plain)) > len(
        re.findall("[a-z\u00c0-\u024f]", plain)
    ):
        # Ukrainian, Serbian and Macedonian have other endings than Russian.
        if re.search("[\u0452-\u045f\u0491]", plain):
            return {}
        return {"ru": 1.0}
    scores = defaultdict[str, float](float)
    words = set(re.findall(r"[^\W\d_]+", plain))
    for known, weight, marks in (
        (_by_word(), 1.0, words),
        (_by_letter(), _LETTER_WEIGHT, set(plain)),
    ):
        for mark in marks & known.keys():
            for code in known[mark]:
                scores[code] += weight / len(known[mark])
    return scores


def languages_in(frequency: Callable[[str], int], total: int) -> tuple[str, ...]:
    """Return the languages of ``total`` texts, English apart; ``frequency`` says how many of them have a term.

    Two function words in two of a hundred texts, which at most one more language has, tell that some are written in it.
    """
    least = max(0.02 * total, 1)
    return tuple(
        code
        for code in LANGUAGES
        if code != "en"
        and sum(frequency(term) >= least for term in _telling_terms(code)) >= 2  # noqa: PLR2004
    )


def is_function_word(word: str, codes: Iterable[str]) -> bool:
    """Whether a word in lower case has no meaning of its own in one of these languages."""
    return any(word in FUNCTION_WORDS[code] for code in codes)


def words_in(text: str, codes: Sequence[str] = ()) -> Iterator[Word]:
    """Yield the words of a text that have a meaning, with their stems in the first of these languages as terms.

    Without a code they are those of ``indexed_words``. Two texts are compared in the same language.
    """
    code = codes[0] if codes else "en"
    for word in indexed_words(text):
        if code == "en" or not word.written.isalpha():
            yield word
        elif not is_function_word(word.written, codes):
            yield Word(word.written, term_of(word.written, code))


def terms_in(text: str, codes: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the terms of ``words_in``."""
    return tuple(word.term for word in words_in(text, codes))


@cache
def _by_word() -> Mapping[str, list[str]]:
    """Return the languages of each function word, which may be written without its accents."""
    found = defaultdict[str, list[str]](list)
    for code in LANGUAGES:
        for word in FUNCTION_WORDS[code] | set(
            map(without_accents, FUNCTION_WORDS[code])
        ):
            found[word].append(code)
    return dict(found)


@cache
def _by_letter() -> Mapping[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for code, *letters in word_lists("languages")["letters"]:
        for letter in letters:
            found[letter].append(code)
    return dict(found)


@cache
def _telling_terms(code: str) -> frozenset[str]:
    return frozenset(
        term_of(word) for word in FUNCTION_WORDS[code] if len(_by_word()[word]) <= 2
    )  # noqa: PLR2004 - see languages_in


_NUMBER = r"\d+(?:\.\d+)*"


@lru_cache(maxsize=256)
def keywords(text: str) -> frozenset[str]:
    """Return the words that tell one statement from another, without accents, their stems, and its numbers.

    Stop words are left out. Scripts without spaces between words give pairs of characters, and Chinese ones each alone.
    """
    folded = comparable(text)
    words = list(words_of(folded))
    found = {
        word.term if word.term.isascii() else without_accents(word.written)
        for word in words
    }
    characters = set(pattern(CHARACTER).findall(folded)) - STOP_CHARACTERS
    found |= {
        word.written
        for word in words
        if not (characters and pattern(CHARACTER).search(word.written))
    }
    return frozenset({*found, *characters, *pattern(_NUMBER).findall(folded)})


def overlaps(words: Collection[str], others: frozenset[str]) -> bool:
    """Return whether ``shared`` finds any of the words; the same forms, which are found at once, come first."""
    return not others.isdisjoint(words) or bool(shared(words, others))


def shared(words: Iterable[str], others: frozenset[str]) -> set[str]:
    """Those of the words that ``others`` have in some form: with another ending, in a compound, or misspelt.

    >>> sorted(shared(keywords("Has a Katzenallergie, likes pytest"), keywords("Katzen und Pytests")))
    ['katzenallergi', 'katzenallergie', 'pytest']
    """
    return {
        word
        for word in words
        if word in others or any(are_forms(word, other) for other in others)
    }
