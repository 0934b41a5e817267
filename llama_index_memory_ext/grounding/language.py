"""Tells in which language a text is written, and whether two texts are in different ones."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

HAN, KANA = re.compile("[\u3400-\u9fff\uf900-\ufaff]"), re.compile("[\u3041-\u3096\u30a1-\u30fa]")
_HANGUL = re.compile("[\uac00-\ud7af]")
_LATIN = re.compile("[A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff]")
_LETTER = re.compile(r"[^\W\d_]")
# A character of a script without spaces is a part of a word, which has about so many Latin letters.
_LETTERS_A_CHARACTER = 3
# A text with fewer words is too short to tell.
_LEAST_WORDS, _LEAST_CHARACTERS = 3, 4
# A text of so many characters without any kana is not Japanese.
_NO_JAPANESE = 8
# Of a longer text the beginning tells.
_MOST_CHARACTERS = 2_000
# By how much (in nats) each text must be likelier in its own language than in that of the other.
_MARGIN = 6.0
# A few words are often likelier in a language that is seldom written.
_LANGUAGES = str.split(
    "ar bg bn ca cs da de el en es et fa fi fr he hi hr hu id it ja ko lt lv ms nl no pl pt ro ru sk sl sv ta te th tr "
    "uk vi zh"
)


def script_of(text: str) -> str:
    """The script that most of a text is written in: "latin", "cjk" or "other"; "" without letters.

    >>> script_of("我用Python写代码"), script_of("I live in 北京"), script_of("12:30")
    ('cjk', 'latin', '')
    """
    letters = "".join(_LETTER.findall(text[:_MOST_CHARACTERS]))
    cjk = sum(len(pattern.findall(letters)) for pattern in (HAN, KANA, _HANGUL))
    latin = len(_LATIN.findall(letters))
    counts = {"cjk": _LETTERS_A_CHARACTER * cjk, "latin": latin, "other": len(letters) - cjk - latin}
    return max(counts, key=counts.__getitem__) if letters else ""


# Sentence by sentence, a text is compared with the same source.
@lru_cache(maxsize=64)
def language_of(text: str) -> str | None:
    """The ISO 639-1 code of the language of a text, such as "en"; None if it is too short to tell.

    >>> language_of("Ich esse kein Fleisch"), language_of("猫を飼っている"), language_of("Thanks!")
    ('de', 'ja', None)
    """
    if script_of(text) == "cjk":
        if _HANGUL.search(text):
            return "ko"
        is_long_enough = len(HAN.findall(text)) >= _LEAST_CHARACTERS
        return "ja" if KANA.search(text) else "zh" if is_long_enough else None
    if len(re.findall(r"[^\W\d_]+", text)) < _LEAST_WORDS:
        return None
    scores = _scores(text[:_MOST_CHARACTERS])
    return max(scores, key=scores.__getitem__)


def is_translation(one: str, other: str) -> bool:
    """Whether two texts are in different languages; False where that cannot be told.

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
    scores, others = _scores(one[:_MOST_CHARACTERS]), _scores(other[:_MOST_CHARACTERS])
    own, foreign = max(scores, key=scores.__getitem__), max(others, key=others.__getitem__)
    return min(scores[own] - scores[foreign], others[foreign] - others[own]) >= _MARGIN


def may_be_english(text: str) -> bool:
    """Whether a text in Latin letters is not clearly in another language.

    >>> may_be_english("Is a vegetarian"), may_be_english("Ich trinke keinen Kaffee"), may_be_english("我喝茶")
    (True, False, False)
    """
    scores = _scores(text[:_MOST_CHARACTERS])
    return script_of(text) == "latin" and scores["en"] > max(scores.values()) - _MARGIN


@lru_cache(maxsize=256)
def _scores(text: str) -> Mapping[str, float]:
    """How likely a text is in each language, as logarithms."""
    return {language: float(score) for language, score in _detector().rank(text)}


@lru_cache(maxsize=1)
def _detector() -> Any:
    # Imported here: it reads some megabytes, and only work in the background needs it.
    from py3langid import langid  # type: ignore[import-untyped]

    # One of our own, because others in this program may want other languages.
    detector = langid.LanguageIdentifier.from_model_file(Path(langid.__file__).parent / langid.MODEL_FILE)
    detector.set_languages(_LANGUAGES)
    return detector
