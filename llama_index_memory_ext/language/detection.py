"""Tells in which script and in which language a statement is written."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.language import word_lists

if TYPE_CHECKING:
    from collections.abc import Mapping


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
