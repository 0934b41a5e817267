"""Splits a text into words: what can be seen, sentences, the terms of an index, and which words are the same."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import defaultdict
from difflib import SequenceMatcher
from functools import cache, lru_cache
from html import unescape
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.language import pattern, word_lists
from llama_index_memory_ext.language.dates import with_english_days

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


# Controls that end a line, and the two separators that do the same.
_LINE_ENDS = "\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]"
# Controls, and what Unicode calls default ignorable, without joiners and variation selectors. The Arabic and other
# signs for numbers are formats too (U+0600..U+0605, ...), but are seen. A Hangul filler is one beside another letter.
CONTROLS = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
_UNSEEN = f"[{CONTROLS}]|(?<![\u1100-\u115e\u1161-\u11ff])[\u115f\u1160](?![\u1161-\u11ff])"
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_SUSPECT = f"[\x0b-\x0d\x1c-\x1f\x85\u115f\u1160\u200c\u200d\u2028\u2029{CONTROLS}{_SELECTORS}]"
# One selector changes how the character before it looks; more of them, or one after nothing, hide a message.
_STRAY_SELECTOR = rf"(?<![^\s\u200c\u200d{_SELECTORS}])[{_SELECTORS}]+|(?<=[{_SELECTORS}])[{_SELECTORS}]+"
# Scripts whose letters change their form beside a joiner: Arabic, Syriac, N'Ko, those of India, Tibet, Indochina.
_JOINED = (
    "\u0600-\u074f\u0750-\u07ff\u0840-\u085f\u0870-\u0dff\u0f00-\u109f\u1780-\u18af\u1a20-\u1aaf\u1b00-\u1c4f"
    "\ua840-\ua8df\ua900-\ua9df\uaa00-\uaa5f\uabc0-\uabff\ufb50-\ufdff\ufe70-\ufefc\U00010d00-\U00010d3f"
    "\U00011000-\U00011aff\U00011c00-\U00011dff\U00011f00-\U00011f5f"
)
_EMOJI = "#*0-9\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_STRAY_JOINER = (
    rf"(?!(?:(?<=[{_JOINED}])[\u200c\u200d](?=[{_JOINED}]))"
    rf"|(?:(?<=[{_EMOJI}])|(?<=[{_EMOJI}]\ufe0f))\u200d(?=[{_EMOJI}]))[\u200c\u200d]"
)


def visible(text: str) -> str:
    r"""The text without what cannot be seen: controls, zero-width and bidirectional characters, tags.

    Line breaks of all kinds become "\n"; tabs stay. A joiner stays between two letters of a script that needs it, and
    between emoji; a variation selector stays behind the character that it belongs to.

    >>> visible("Likes\u200b tea\U000e0049\U000e0067\u202e")
    'Likes tea'
    >>> len(visible("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"))
    8
    """
    # The first way is ten times as fast; most texts go it.
    if (text.isascii() and text.replace("\n", "").isprintable()) or not pattern(_SUSPECT).search(text):
        return text
    text = pattern(_UNSEEN).sub("", pattern(_LINE_ENDS).sub("\n", text).replace("\x1f", " "))
    return pattern(_STRAY_JOINER).sub("", pattern(_STRAY_SELECTOR).sub("", text))


_SENTENCE_END = (
    "\n\\s*|(?<=[.!?])[\"'\u201d\u2019)\\]*]*\\s+(?=[^\\sa-z])|(?<=[\u3002\uff01\uff1f])[\u300d\u300f\uff09]*"
)


def sentences_in(text: str) -> list[str]:
    r"""Splits a text into its sentences and lines, each with the white space behind it; joined, they are the text.

    >>> sentences_in("Ann has 1.5 euros. She wants tea.\n- Leo")
    ['Ann has 1.5 euros. ', 'She wants tea.\n', '- Leo']
    """
    ends = sorted({0, len(text), *(match.end() for match in pattern(_SENTENCE_END).finditer(text))})
    return [text[start:end] for start, end in pairwise(ends)]


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
FUNCTION_WORDS = {code: frozenset(chain(*lines)) for code, lines in word_lists("function_words").items()}
STOP_WORDS, STOP_CHARACTERS, _STOP_PAIRS = (FUNCTION_WORDS[code] for code in ("en", "zh", "ja"))
# Each irregular form of an English word with its base form.
IRREGULAR = {form: base for base, *forms in word_lists("irregular_forms")["en"] for form in forms}
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
                if pair not in _STOP_PAIRS and not STOP_CHARACTERS.issuperset(pair):
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
    return unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", word)))


@lru_cache(maxsize=100_000)
def term_of(word: str, code: str = "en") -> str:
    """Return the term of a word in lower case: its stem in the language of a code of ``LANGUAGES``, without accents.

    >>> term_of("wohne", "de") == term_of("wohnt", "de"), term_of("люблю", "ru") == term_of("любит", "ru")
    (True, True)
    """
    if len(word) > _LONGEST_STEMMED:
        return word
    stemmer, bases, endings = _stemmer(code)
    plain = without_accents(word) if code == "en" else word.replace(*_YO)
    with _stemmer_lock:
        found: str = stemmer.stemWord(bases.get(plain, plain))
    for ending, instead in endings:
        found = ending.sub(instead, found)
    return without_accents(found) or word


@cache
def _stemmer(code: str) -> tuple[Any, dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """Make what stems in a language: the stemmer, the base of each irregular form, and the endings that it leaves."""
    import snowballstemmer  # type: ignore[import-untyped]  # at first use; the package has no type hints

    groups = [[form.replace(*_YO) for form in forms] for forms in word_lists("irregular_forms").get(code, [])]
    # A form may be written without its accents, unless that is another form.
    bases = {without_accents(form): base for base, *forms in groups for form in forms}
    bases |= {form: base for base, *forms in groups for form in forms}
    endings = [(re.compile(ending), "".join(instead)) for ending, *instead in word_lists("endings").get(code, [])]
    return snowballstemmer.stemmer(LANGUAGES[code]), bases, endings


def checked_languages(codes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return ISO 639-1 codes, each once; None for None. Raise a ValueError for one without a stemmer, and for none.

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
    plain = (text if len(text) <= 2 * _END else f"{text[:_END]} {text[-_END:]}").casefold()
    scores = _scores(plain)
    best = max(scores.values(), default=0.0)
    if best < _LEAST_SCORE:
        return among or ()
    found = [code for code in scores if scores[code] >= _PLAUSIBLE * best]
    if scores.get("en") == best:
        found = ["en"]
    found.sort(key=lambda code: (-round(scores[code], 6), code))
    return tuple(code for code in found if among is None or code in among) or among or ()


def _scores(plain: str) -> Mapping[str, float]:
    """Return what the function words and the rare letters of a text in lower case say for each language."""
    if len(re.findall("[\u0400-\u04ff]", plain)) > len(re.findall("[a-z\u00c0-\u024f]", plain)):
        # Ukrainian, Serbian and Macedonian have other endings than Russian.
        return {} if re.search("[\u0452-\u045f\u0491]", plain) else {"ru": 1.0}
    scores = defaultdict[str, float](float)
    words = set(re.findall(r"[^\W\d_]+", plain))
    for known, weight, marks in ((_by_word(), 1.0, words), (_by_letter(), _LETTER_WEIGHT, set(plain))):
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
        if code != "en" and sum(frequency(term) >= least for term in _telling_terms(code)) >= 2  # noqa: PLR2004
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
        for word in FUNCTION_WORDS[code] | set(map(without_accents, FUNCTION_WORDS[code])):
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
    return frozenset(term_of(word) for word in FUNCTION_WORDS[code] if len(_by_word()[word]) <= 2)  # noqa: PLR2004 - see languages_in


_STRAIGHT = str.maketrans("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f", '\'\'\'"""""""""')
# Chinese characters have a meaning each; words of kana are compared by pairs.
_CHARACTER = "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_NUMBER = r"\d+(?:\.\d+)*"
# Two words with so many first letters in common are forms of one word; one in the other is a part of a compound.
_SHARED_LETTERS, _SHORTEST_PART = 4, 4
# How alike two longer words are that differ by a slip.
_SHORTEST_MENDED, _LEAST_LIKENESS = 5, 0.8


def comparable(text: str) -> str:
    """The text with entities, width, case, quotation marks and white space normalized.

    >>> comparable("It\u2019s  &lt;b> \uff34ea")
    "it's <b> tea"
    """
    folded = unicodedata.normalize("NFKC", unescape(text)).casefold()
    return " ".join(folded.translate(_STRAIGHT).split())


@lru_cache(maxsize=256)
def keywords(text: str) -> frozenset[str]:
    """Return the words that tell one statement from another, without accents, their stems, and its numbers.

    Stop words are left out. Scripts without spaces between words give pairs of characters, and Chinese ones each alone.
    """
    folded = comparable(text)
    words = list(words_of(folded))
    found = {word.term if word.term.isascii() else without_accents(word.written) for word in words}
    characters = set(pattern(_CHARACTER).findall(folded)) - STOP_CHARACTERS
    found |= {word.written for word in words if not (characters and pattern(_CHARACTER).search(word.written))}
    return frozenset({*found, *characters, *pattern(_NUMBER).findall(folded)})


def shared(words: Iterable[str], others: frozenset[str]) -> set[str]:
    """Those of the words that ``others`` have in some form: with another ending, in a compound, or misspelt.

    >>> sorted(shared(keywords("Has a Katzenallergie, likes pytest"), keywords("Katzen und Pytests")))
    ['katzenallergi', 'katzenallergie', 'pytest']
    """
    return {word for word in words if word in others or any(are_forms(word, other) for other in others)}


def are_forms(one: str, other: str) -> bool:
    """Tell whether two words are one or forms of one, or one is a part of the other, or is the other misspelt."""
    if one == other:
        return True
    shorter, longer = (one, other) if len(one) <= len(other) else (other, one)
    if len(shorter) < _SHORTEST_PART:
        return False
    is_part = shorter[:_SHARED_LETTERS] == longer[:_SHARED_LETTERS] or shorter in longer
    may_be_mended = len(shorter) >= _SHORTEST_MENDED and shorter[0] == longer[0]
    # What costs most comes last: of most pairs of words it is not asked.
    if not (is_part or may_be_mended) or not (one + other).isalpha() or pattern(_CHARACTER).search(one + other):
        return False
    return is_part or SequenceMatcher(None, one, other, autojunk=False).ratio() >= _LEAST_LIKENESS
