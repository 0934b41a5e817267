"""Words of a text: the terms of an index, and the keywords that statements are compared by.

``words_of`` yields words with their terms. ``indexed_words`` are these words without the
verb "use". ``words_in`` also leaves out the function words of a language, and stems in
it; ``terms_in`` are its terms. ``keywords`` are for comparing two statements.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections import defaultdict
from functools import cache, lru_cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.background.locks import thread_lock
from llama_index_memory_ext.words import (
    CHARACTER,
    FUNCTION_WORDS,
    STOP_CHARACTERS,
    STOP_PAIRS,
    STOP_WORDS,
    are_forms,
    comparable,
    ends_of,
    pattern,
    plain_words,
    word_lists,
)
from llama_index_memory_ext.words.dates import with_english_days

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_RELATED = files(__package__) / "data" / "related.txt"


@lru_cache(maxsize=1_000)
def related_terms(term: str) -> tuple[str, ...]:
    """Return the terms of related English words, in alphabetical order; () for none.

    The lines of the file are sorted, so that bisection finds a line without loading the
    file. Comments stand before all lines.

    >>> "allerg" in related_terms("allergi"), "daughter" in related_terms("child"), related_terms("xyzzy")
    (True, True, ())
    """
    if term.startswith("#"):
        return ()
    start = f"{term} ".encode("utf-8", "replace")
    with _RELATED.open("rb") as file:
        low = 0
        high = file.seek(0, os.SEEK_END)
        # The line of the term begins behind `low` and up to `high`, if it exists.
        while low < high:
            middle = (low + high) // 2
            file.seek(middle)
            file.readline()
            line = file.readline()
            if line.startswith(start):
                return tuple(line[len(start) :].decode().split())
            if line and line < start:
                low = middle + 1
            else:
                high = middle
    return ()


# Katakana is apart from the other Japanese characters, because a word ends where it
# begins or ends.
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
    # The number of a room, or "Plan B". Letters that are a word of some language, and the
    # letters beside an apostrophe, as in "can't", say nothing.
    r"|[0-9]|(?<!\w['\u2019])[bcdfghjlmnpqrtx](?!['\u2019]\w)"
)
# "Uses Docker" and "it uses FastAPI" have nothing in common.
_ANY_VERB = "use"
# The names of Snowball's algorithms by the ISO 639-1 code of the language.
LANGUAGES = dict(word_lists("languages")["snowball"])
# Most Russian texts are written without the first.
_YO = ("\u0451", "\u0435")
# A Snowball stemmer keeps its word in itself, so threads must take turns. Its time
# grows with the square of the length, so longer words are not stemmed.
_stemmer_lock = thread_lock()
_LONGEST_STEMMED = 50


class Word(NamedTuple):
    """A word as it is written (in lower case), and the term under which it is indexed."""

    written: str
    term: str


def words_of(text: str) -> Iterator[Word]:
    """Yield the words of a text that are indexed.

    Stop words, punctuation and emoji are left out. A word of one character is a digit, or
    a letter that is no word of a language, as in "Plan B". The terms are stems without
    accents; an irregular English word has the stem of its base form. Korean and scripts
    without spaces, such as Chinese, give pairs of neighbouring characters. Days follow at
    the end: "8 May", "May 8th", "5月8日" and "2026-05-08" all give the term "may8". The
    verb "may" is a stop word, the month is not.
    """
    plain, days = with_english_days(unicodedata.normalize("NFKC", text))
    plain = plain.casefold()
    for match in pattern(_WORD).finditer(plain):
        written = match.group()
        if match.lastgroup == "unspaced":
            yield from _pairs_of(written)
        elif written not in STOP_WORDS:
            yield _word(written)
    for day in days:
        yield Word(day, day)


def _pairs_of(characters: str) -> Iterator[Word]:
    """Yield the pairs of neighbouring characters that are no stop words."""
    for first, second in pairwise(characters):
        pair = first + second
        if pair not in STOP_PAIRS and not STOP_CHARACTERS.issuperset(pair):
            yield Word(pair, pair)


# An index keeps the words of its documents, so equal words share one object. Without
# the cache, indexing takes a fifth longer.
@lru_cache(maxsize=100_000)
def _word(written: str) -> Word:
    return Word(written, term_of(written, "en"))


# A text is analyzed as a document and as the context of its neighbours.
@lru_cache(maxsize=32)
def indexed_words(text: str) -> tuple[Word, ...]:
    """Return the words of a text in order, with repetitions, without the verb "use"."""
    return tuple(word for word in words_of(text) if word.term != _ANY_VERB)


def without_accents(word: str) -> str:
    """Return a word without the accents on its letters: "cafe" for "café"."""
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFD", word)
    plain = re.sub("[\u0300-\u036f]", "", decomposed)
    return unicodedata.normalize("NFC", plain)


@lru_cache(maxsize=100_000)
def term_of(word: str, code: str = "en") -> str:
    """Return the term of a word in lower case: its stem without accents.

    ``code`` is a language of ``LANGUAGES``.

    >>> term_of("wohne", "de") == term_of("wohnt", "de"), term_of("люблю", "ru") == term_of("любит", "ru")
    (True, True)
    """
    if len(word) > _LONGEST_STEMMED:
        return word
    stemmer = _stemmer(code)
    if code == "en":
        plain = without_accents(word)
    else:
        plain = word.replace(*_YO)
    with _stemmer_lock:
        stem: str = stemmer.snowball.stemWord(stemmer.bases.get(plain, plain))
    for ending, replacement in stemmer.endings:
        stem = ending.sub(replacement, stem)
    return without_accents(stem) or word


class _Stemmer(NamedTuple):
    """The stemmer of a language.

    ``snowball``: the stemmer of the library. ``bases``: the base form of each irregular
    form. ``endings``: patterns of endings that the library leaves, with replacements.
    """

    snowball: Any
    bases: dict[str, str]
    endings: list[tuple[re.Pattern[str], str]]


@cache
def _stemmer(code: str) -> _Stemmer:
    exact = dict[str, str]()
    for words in word_lists("irregular_forms").get(code, []):
        base, *forms = [word.replace(*_YO) for word in words]
        exact.update(dict.fromkeys(forms, base))
    # A form may be written without its accents, unless that is another form.
    plain = {without_accents(form): base for form, base in exact.items()}
    endings = []
    for ending, *replacement in word_lists("endings").get(code, []):
        endings.append((re.compile(ending), "".join(replacement)))
    return _Stemmer(_snowball(LANGUAGES[code]), plain | exact, endings)


def _snowball(language: str) -> Any:
    """Return a stemmer of the library.

    The package loads all of its languages, which takes longer than the rest of a first
    question. So the module of one language is loaded, under a name that is ours.
    """
    package: Any = find_spec("snowballstemmer")
    name = f"{__name__}_snowball"
    parent = sys.modules.setdefault(name, ModuleType(name))
    parent.__path__ = package.submodule_search_locations
    module = import_module(f"{name}.{language}_stemmer")
    return getattr(module, f"{language.title()}Stemmer")()


def checked_languages(codes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return ISO 639-1 codes, each once; None for None.

    Raise a ValueError for an empty list, and for a language without a stemmer.

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
            f"expected one or more languages: {', '.join(LANGUAGES)}; "
            f"got {unknown[0] if unknown else 'none'!r}. "
            "Pass None to detect the language of each question. "
            "Chinese, Japanese and Korean need no code."
        )
    return tuple(dict.fromkeys(named))


# A lower score does not tell the language: "in" and "a" are words of many languages.
_LEAST_SCORE = 0.4
# Languages with this share of the best score may be the right language, too.
_PLAUSIBLE = 0.75
# Frequent words tell a language from this score on.
_LEAST_FREQUENT_SCORE = 2.0


@lru_cache(maxsize=1_000)
def languages_of(text: str, among: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Return the languages in which a question may be written, the likeliest first.

    () if that is unclear. Function words decide, which takes microseconds, also for the
    first question of a process.

    Args:
        text: Any text; only the beginning and the end of a long text are read.
        among: The possible languages; all of them if the text does not decide.

    >>> languages_of("Wo wohne ich?"), languages_of("Where do I live?"), languages_of("Python?")
    (('de',), ('en',), ())
    """
    codes = _plausible_languages(_scores(ends_of(text).casefold()))
    if among is None:
        return tuple(codes)
    return tuple(code for code in codes if code in among) or among


def _plausible_languages(scores: Mapping[str, float]) -> list[str]:
    """Return the languages with about the best score, the likeliest first; [] for low scores."""
    best = max(scores.values(), default=0.0)
    if best < _LEAST_SCORE:
        return []
    if scores.get("en") == best:
        return ["en"]
    codes = [code for code in scores if scores[code] >= _PLAUSIBLE * best]
    return sorted(codes, key=lambda code: (-round(scores[code], 6), code))


def _scores(plain: str) -> Mapping[str, float]:
    """Return a score for each language, by the function words of a text in lower case."""
    cyrillic = re.findall("[\u0400-\u04ff]", plain)
    latin = re.findall("[a-z\u00c0-\u024f]", plain)
    if len(cyrillic) > len(latin):
        # Ukrainian, Serbian and Macedonian have other endings than Russian.
        if re.search("[\u0452-\u045f\u0491]", plain):
            return {}
        return {"ru": 1.0}
    return _word_scores(set(plain_words(plain)))


def _word_scores(words: set[str]) -> Mapping[str, float]:
    """Return a score for each language; a word counts as one, divided by the number of its languages."""
    scores = defaultdict[str, float](float)
    for word in words & languages_by_word().keys():
        codes = languages_by_word()[word]
        for code in codes:
            scores[code] += 1 / len(codes)
    return scores


def languages_in(words: set[str]) -> tuple[str, ...]:
    """Return the languages of texts by their frequent words in lower case, without English; () if that is unclear."""
    scores = _word_scores(words)
    codes = _plausible_languages(scores)
    return tuple(code for code in codes if scores[code] >= _LEAST_FREQUENT_SCORE)


def is_function_word(word: str, codes: Iterable[str]) -> bool:
    """Return whether a word in lower case is a function word of one of these languages."""
    return any(word in FUNCTION_WORDS[code] for code in codes)


def words_in(text: str, codes: Sequence[str] = ()) -> Iterator[Word]:
    """Yield the words of a text without function words, with their stems as terms.

    The first code is the language of the stems. Without a code, and in English, the
    words are the same as in ``indexed_words``. Two texts are compared in the same
    language.
    """
    code = codes[0] if codes else "en"
    for word in indexed_words(text):
        if code == "en" or not word.written.isalpha():
            yield word
        elif not is_function_word(word.written, codes):
            yield Word(word.written, term_of(word.written, code))


# The turns before a question are read again with the next questions.
@lru_cache(maxsize=64)
def terms_in(text: str, codes: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the terms of ``words_in``."""
    return tuple(word.term for word in words_in(text, codes))


@cache
def languages_by_word() -> Mapping[str, list[str]]:
    """Return the languages of each function word, with and without its accents."""
    languages = defaultdict[str, list[str]](list)
    for code in LANGUAGES:
        exact = FUNCTION_WORDS[code]
        for word in exact.union(map(without_accents, exact)):
            languages[word].append(code)
    return dict(languages)


_NUMBER = r"\d+(?:\.\d+)*"


@lru_cache(maxsize=256)
def keywords(text: str) -> frozenset[str]:
    """Return the words by which statements are compared: stems without accents, numbers.

    Stop words are left out, and letters alone: a word that is spelled out is no word.
    Scripts without spaces give pairs of characters, and Chinese gives single characters
    too.
    """
    folded = comparable(text)
    characters = set(pattern(CHARACTER).findall(folded)) - STOP_CHARACTERS
    keys = characters.union(pattern(_NUMBER).findall(folded))
    for word in words_of(folded):
        if len(word.written) == 1:
            continue
        if word.term.isascii():
            keys.add(word.term)
        else:
            keys.add(without_accents(word.written))
        if not (characters and pattern(CHARACTER).search(word.written)):
            keys.add(word.written)
    return frozenset(keys)


def shares_word(statement: str, text: str) -> bool:
    """Return whether a text has a keyword of a statement in some form.

    Equal words are looked up first, because that is fast.
    """
    words = keywords(statement)
    evidence = keywords(text)
    return not evidence.isdisjoint(words) or bool(shared(words, evidence))


def shared(words: Iterable[str], evidence: frozenset[str]) -> set[str]:
    """Return the words that ``evidence`` has in some form.

    Forms are other endings, parts of compounds, and misspellings.

    >>> sorted(shared(keywords("Has a Katzenallergie, likes pytest"), keywords("Katzen und Pytests")))
    ['katzenallergi', 'katzenallergie', 'pytest']
    """
    matches = set()
    for word in words:
        if word in evidence or any(
            are_forms(word, candidate) for candidate in evidence
        ):
            matches.add(word)
    return matches
