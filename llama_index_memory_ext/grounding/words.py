"""Compares the words that tell one statement from another."""

from __future__ import annotations

import re
import unicodedata
from difflib import SequenceMatcher
from functools import lru_cache
from html import unescape
from typing import TYPE_CHECKING

from llama_index_memory_ext.search.tokenization import STOP_CHARACTERS, without_accents, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_STRAIGHT = str.maketrans("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f", '\'\'\'"""""""""')
# Chinese characters have a meaning each; words of kana are compared by pairs.
_CHARACTER = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
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
    """The words that tell one statement from another, without accents, and its numbers.

    Stop words are left out. Scripts without spaces between words give pairs of characters, and Chinese ones each alone.
    """
    folded = comparable(text)
    found = {word.term if word.term.isascii() else without_accents(word.written) for word in words_of(folded)}
    found |= {word.written for word in words_of(folded) if not _CHARACTER.search(word.written)}
    characters = set(_CHARACTER.findall(folded)) - STOP_CHARACTERS
    return frozenset({*found, *characters, *_NUMBER.findall(folded)})


def shared(words: Iterable[str], others: frozenset[str]) -> set[str]:
    """Those of the words that ``others`` have in some form: with another ending, in a compound, or misspelt.

    >>> sorted(shared(keywords("Has a Katzenallergie, likes pytest"), keywords("Katzen und Pytests")))
    ['katzenallergi', 'katzenallergie', 'pytest']
    """
    return {word for word in words if word in others or any(are_forms(word, other) for other in others)}


def are_forms(one: str, other: str) -> bool:
    """Whether two words are forms of one word, or one is a part of the other, or one is the other misspelt."""
    shorter, longer = sorted((one, other), key=len)
    if len(shorter) < _SHORTEST_PART or _CHARACTER.search(one + other) or not (one + other).isalpha():
        return False
    if shorter[:_SHARED_LETTERS] == longer[:_SHARED_LETTERS] or shorter in longer:
        return True
    if len(shorter) < _SHORTEST_MENDED or shorter[0] != longer[0]:
        return False
    return SequenceMatcher(None, one, other, autojunk=False).ratio() >= _LEAST_LIKENESS
