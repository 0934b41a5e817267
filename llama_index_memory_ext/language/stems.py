"""Tells in which languages a text is written, and stems its words."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.language import word_lists
from llama_index_memory_ext.language.tokens import (
    FUNCTION_WORDS,
    LANGUAGES,
    Word,
    indexed_words,
    term_of,
    without_accents,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


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
    scores: defaultdict[str, float] = defaultdict(float)
    if not plain.isascii() and len(re.findall("[\u0400-\u04ff]", plain)) > len(re.findall("[a-z\u00c0-\u024f]", plain)):
        # Ukrainian, Serbian and Macedonian have other endings than Russian.
        scores["ru"] = 0.0 if re.search("[\u0452-\u045f\u0491]", plain) else 1.0
    else:
        words, letters = set(re.findall(r"[^\W\d_]+", plain)), set() if plain.isascii() else set(plain)
        for known, weight, ones in ((_by_word(), 1.0, words), (_by_letter(), _LETTER_WEIGHT, letters)):
            for codes in (known[one] for one in ones & known.keys()):
                for code in codes:
                    scores[code] += weight / len(codes)
    best = max(scores.values(), default=0.0)
    found = ["en"] if scores["en"] == best else [code for code in scores if scores[code] >= _PLAUSIBLE * best]
    if best < _LEAST_SCORE:
        found = []
    found.sort(key=lambda code: (-round(scores[code], 6), code))
    return tuple(code for code in found if among is None or code in among) or among or ()


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


def words_in(text: str, codes: Sequence[str]) -> Iterator[Word]:
    """Yield the words of a text that have a meaning, with their stems in the first of these languages as terms.

    Without a code they are those of ``indexed_words``. Two texts are compared in the same language.
    """
    code = codes[0] if codes else "en"
    for word in indexed_words(text):
        if code == "en" or not word.written.isalpha():
            yield word
        elif not is_function_word(word.written, codes):
            yield Word(word.written, term_of(word.written, code))


def terms_in(text: str, codes: Sequence[str]) -> tuple[str, ...]:
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


HAN, KANA = re.compile("[\u3400-\u9fff\uf900-\ufaff]"), re.compile("[\u3041-\u3096\u30a1-\u30fa]")
_HANGUL = re.compile("[\uac00-\ud7af]")
# A text with fewer words or characters is too short to tell; one of so many without any kana is not Japanese.
_LEAST_WORDS, _LEAST_CHARACTERS, _NO_JAPANESE = 3, 4, 8
# Of a longer text the beginning tells.
_MOST_CHARACTERS = 2_000
# By how much (in nats) each text must be likelier in its own language than in that of the other.
_MARGIN = 6.0


def script_of(text: str) -> str:
    """Return the script that most of a text is written in: "latin", "cjk" or "other"; "" without letters.

    >>> script_of("我用Python写代码"), script_of("I live in 北京"), script_of("12:30")
    ('cjk', 'latin', '')
    """
    letters = "".join(re.findall(r"[^\W\d_]", text[:_MOST_CHARACTERS]))
    cjk = sum(len(pattern.findall(letters)) for pattern in (HAN, KANA, _HANGUL))
    latin = len(re.findall("[A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff]", letters))
    # Such a character is a part of a word, which has about three Latin letters.
    counts = {"cjk": 3 * cjk, "latin": latin, "other": len(letters) - cjk - latin}
    return max(counts, key=counts.__getitem__) if letters else ""


# Sentence by sentence, a text is compared with the same source.
@lru_cache(maxsize=64)
def language_of(text: str) -> str | None:
    """Return the ISO 639-1 code of the language of a statement, such as "en"; None if it is too short to tell.

    >>> language_of("Ich esse kein Fleisch"), language_of("猫を飼っている"), language_of("Thanks!")
    ('de', 'ja', None)
    """
    if script_of(text) == "cjk":
        if _HANGUL.search(text):
            return "ko"
        return "ja" if KANA.search(text) else "zh" if len(HAN.findall(text)) >= _LEAST_CHARACTERS else None
    return next(iter(_scores(text))) if len(re.findall(r"[^\W\d_]+", text)) >= _LEAST_WORDS else None


def is_translation(one: str, other: str) -> bool:
    """Return whether two texts are in different languages; False where that cannot be told.

    >>> is_translation("Drives a Tesla", "Ich fahre einen Tesla."), is_translation("Likes tea", "I like tea")
    (True, False)
    """
    scripts = script_of(one), script_of(other)
    if "" in scripts or scripts[0] != scripts[1]:
        return "" not in scripts
    if scripts[0] == "cjk":
        # Short Japanese may have no kana.
        languages = {language_of(one), language_of(other)} - {None}
        return len(languages) > 1 and ("ko" in languages or min(len(one), len(other)) >= _NO_JAPANESE)
    scores, others = _scores(one), _scores(other)
    own, foreign = next(iter(scores)), next(iter(others))
    return min(scores[own] - scores[foreign], others[foreign] - others[own]) >= _MARGIN


def may_be_english(text: str) -> bool:
    """Return whether a text in Latin letters is not clearly in another language.

    >>> may_be_english("Is a vegetarian"), may_be_english("Ich trinke keinen Kaffee"), may_be_english("我喝茶")
    (True, False, False)
    """
    scores = _scores(text)
    return script_of(text) == "latin" and scores["en"] > max(scores.values()) - _MARGIN


@lru_cache(maxsize=256)
def _scores(text: str) -> Mapping[str, float]:
    """Return how likely a text is in each language, as logarithms, the likeliest first."""
    return {language: float(score) for language, score in _detector().rank(text[:_MOST_CHARACTERS])}


@cache
def _detector() -> Any:
    # At first use: it takes most of a second and 100 MiB to read, and only work in the background needs it.
    from py3langid import langid  # type: ignore[import-untyped]

    # One of our own, because others in this program may want other languages.
    detector = langid.LanguageIdentifier.from_model_file(Path(langid.__file__).parent / langid.MODEL_FILE)
    detector.set_languages(list(chain(*word_lists("languages")["told"])))
    return detector
