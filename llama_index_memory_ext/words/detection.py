"""The script and the language of a statement."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.words import word_lists

if TYPE_CHECKING:
    from collections.abc import Mapping


HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff]")
KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")
_HANGUL = re.compile("[\uac00-\ud7af]")
# A text with fewer words or characters is too short to tell its language. A text of
# this many characters without any kana is not Japanese.
_LEAST_WORDS = 3
_LEAST_CHARACTERS = 4
_NO_JAPANESE = 8
# Only the beginning of a longer text is read.
_MOST_CHARACTERS = 2_000
# How much likelier (in nats) each of two texts must be in its own language than in the
# language of the other text.
_MARGIN = 6.0


def script_of(text: str) -> str:
    """Return the script that most of a text is written in: "latin", "cjk" or "other"; "" without letters.

    >>> script_of("我用Python写代码"), script_of("I live in 北京"), script_of("12:30")
    ('cjk', 'latin', '')
    """
    letters = "".join(re.findall(r"[^\W\d_]", text[:_MOST_CHARACTERS]))
    cjk = sum(len(pattern.findall(letters)) for pattern in (HAN, KANA, _HANGUL))
    latin = len(re.findall("[A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff]", letters))
    # One such character stands for about three Latin letters.
    counts = {"cjk": 3 * cjk, "latin": latin, "other": len(letters) - cjk - latin}
    if letters:
        return max(counts, key=counts.__getitem__)
    return ""


# Many sentences are compared with the same source, so its language is cached.
@lru_cache(maxsize=64)
def language_of(text: str) -> str | None:
    """Return the ISO 639-1 code of the language of a statement, such as "en".

    None if the statement is too short to tell.

    >>> language_of("Ich esse kein Fleisch"), language_of("猫を飼っている"), language_of("Thanks!")
    ('de', 'ja', None)
    """
    if script_of(text) == "cjk":
        if _HANGUL.search(text):
            return "ko"
        if KANA.search(text):
            return "ja"
        if len(HAN.findall(text)) >= _LEAST_CHARACTERS:
            return "zh"
        return None
    if len(re.findall(r"[^\W\d_]+", text)) >= _LEAST_WORDS:
        return next(iter(_scores(text)))
    return None


def is_translation(first: str, second: str) -> bool:
    """Return whether two texts are in different languages; False if that is unclear.

    >>> is_translation("Drives a Tesla", "Ich fahre einen Tesla."), is_translation("Likes tea", "I like tea")
    (True, False)
    """
    first_script = script_of(first)
    second_script = script_of(second)
    if not first_script or not second_script:
        return False
    if first_script != second_script:
        return True
    if first_script == "cjk":
        languages = {language_of(first), language_of(second)} - {None}
        if len(languages) < 2:  # noqa: PLR2004 - two texts
            return False
        # Short Japanese may have no kana.
        return "ko" in languages or min(len(first), len(second)) >= _NO_JAPANESE
    first_scores = _scores(first)
    second_scores = _scores(second)
    first_language = next(iter(first_scores))
    second_language = next(iter(second_scores))
    return (
        first_scores[first_language] - first_scores[second_language] >= _MARGIN
        and second_scores[second_language] - second_scores[first_language] >= _MARGIN
    )


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
    return {
        language: float(score)
        for language, score in _detector().rank(text[:_MOST_CHARACTERS])
    }


@cache
def _detector() -> Any:
    # Imported at first use: it takes most of a second and 100 MiB, and only background
    # jobs need it.
    from py3langid import langid  # type: ignore[import-untyped]

    # A separate detector, because the program may use the shared one with other
    # languages.
    detector = langid.LanguageIdentifier.from_model_file(
        Path(langid.__file__).parent / langid.MODEL_FILE
    )
    detector.set_languages(list(chain(*word_lists("languages")["told"])))
    return detector
