"""Stems words of other languages than English."""

# ruff: noqa: RUF001 - Russian words have letters that look like Latin ones

from __future__ import annotations

import re
import threading
from functools import lru_cache
from typing import Any

import snowballstemmer  # type: ignore[import-untyped]  # the package has no type hints

from llama_index_memory_ext.search.function_words import IRREGULAR_FORMS
from llama_index_memory_ext.search.tokenization import LONGEST_STEMMED, term_of, without_accents

# The names of Snowball's algorithms by the ISO 639-1 code of the language.
LANGUAGES = {
    "da": "danish",
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "it": "italian",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ru": "russian",
    "sv": "swedish",
}
_SCANDINAVIAN = ((r"(?<=..)(?:er|ar|a|e)$", ""), (r"(?<=.[aeiouyåäöæø])r$", ""))
# What Snowball's stems leave of the endings of persons and of changes in the stem, each with what takes its place. A
# question says "I live", and a fact "lives".
_ENDINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "da": _SCANDINAVIAN,
    "de": ((r"^ge(?=.{3,}t$)", ""), (r"(?<=...)t$", "")),
    "es": ((r"ie", "e"), (r"ue", "o"), (r"zc$", "c")),
    "fi": ((r"(?<=...)n$", ""), (r"(?<=...)[aeiouyäö]+$", ""), (r"ng$", "nk"), (r"(.)\1$", r"\1"), (r"d$", "t")),
    "fr": ((r"(?<=..)[dst]+$", ""), (r"(.)\1$", r"\1")),
    "nl": ((r"(?<=....)t$", ""), (r"(?<=...)[sz]$", ""), (r"v$", "f")),
    "no": _SCANDINAVIAN,
    "pt": ((r"j$", "g"),),
    "ru": ((r"(?<=...)(?:ешь|ет|ем|ут|ют)$", ""), (r"(?<=[бвмпф])л$", ""), (r"ь$", ""), (r"(?<=..)[ео]к$", "к")),
    "sv": _SCANDINAVIAN,
}
# Most texts are written without the first.
_YO = ("\u0451", "\u0435")
# See the lock of ``tokenization``.
_lock = threading.Lock()


@lru_cache(maxsize=50_000)
def stem(word: str, code: str) -> str:
    """Returns the stem of a word in lower case in the language of a code of ``LANGUAGES``, without accents.

    >>> stem("wohne", "de") == stem("wohnt", "de"), stem("люблю", "ru") == stem("любит", "ru")
    (True, True)
    """
    if code == "en" or len(word) > LONGEST_STEMMED:
        return term_of(word)
    plain = word.replace(*_YO)
    base = _bases(code).get(plain, plain)
    with _lock:
        found: str = _stemmer(code).stemWord(base)
    for ending, instead in _ENDINGS.get(code, ()):
        found = re.sub(ending, instead, found)
    return without_accents(found) or word


@lru_cache
def _stemmer(code: str) -> Any:
    return snowballstemmer.stemmer(LANGUAGES[code])


@lru_cache
def _bases(code: str) -> dict[str, str]:
    """The base form of each irregular form, which may be written without its accents."""
    groups = [group.replace(*_YO).casefold().split() for group in IRREGULAR_FORMS.get(code, "").split("|")]
    bases = {without_accents(form): base for base, *forms in groups for form in forms}
    return bases | {form: base for base, *forms in groups for form in forms}
