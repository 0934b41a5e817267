"""Tells in which language a text is."""

from __future__ import annotations

import re
from functools import lru_cache

_KANA, _HANGUL, _HAN = "\u3040-\u30ff", "\uac00-\ud7a3", "\u3400-\u9fff"
_UNSPACED = re.compile(f"[{_KANA}{_HANGUL}{_HAN}]")
_WORD = re.compile(f"(?:(?![{_KANA}{_HANGUL}{_HAN}])[^\\W\\d_])+")
_FEWEST_WORDS, _FEWEST_CHARACTERS = 3, 4
# Japanese has kana in every sentence; a Chinese or Korean text may quote some.
_KANA_SHARE, _HANGUL_SHARE = 0.1, 0.5


@lru_cache(maxsize=1_000)
def language_of(text: str) -> str | None:
    """Returns the ISO 639-1 code of a text's main language, such as "en" or "zh"; None for a text too short to tell.

    Too short are fewer than three words, or fewer than four Chinese, Japanese or Korean characters.

    >>> language_of("The user is a baker from Porto."), language_of("用户来自波尔图。"), language_of("Hi!")
    ('en', 'zh', None)
    """
    characters, words = len(_UNSPACED.findall(text)), len(_WORD.findall(text))
    if characters >= max(_FEWEST_CHARACTERS, words):
        if len(re.findall(f"[{_HANGUL}]", text)) >= _HANGUL_SHARE * characters:
            return "ko"
        return "ja" if len(re.findall(f"[{_KANA}]", text)) >= _KANA_SHARE * characters else "zh"
    if words < _FEWEST_WORDS:
        return None
    import py3langid  # type: ignore[import-untyped]  # on first use: it reads a model; the package has no type hints

    return str(py3langid.classify(text)[0])
