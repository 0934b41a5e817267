"""Finds the words of a text that a quote of it means, also where the quote is not exact."""

from __future__ import annotations

import re
import unicodedata
from difflib import Match, SequenceMatcher, get_close_matches
from functools import lru_cache
from html import unescape
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.language import pattern, word_lists
from llama_index_memory_ext.language.words import STOP_CHARACTERS, STOP_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence


# A word with its apostrophes, or one character of a script without spaces.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
TOKEN = rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+(?:['\u2019`\u00b4][^\W_{_UNSPACED}]+)*[+#]*"
_APOSTROPHES = str.maketrans("", "", "'\u2019`\u00b4")
_ENDS = tuple(".!?\u2026\u3002\uff01\uff1f\"'\u201d\u2019)")
# A model that reports on a person changes these.
_PERSON_WORDS = frozenset(chain(*word_lists("clauses")["persons"]))
_PERSON = "\x00person"
# How much a token counts: a character of a script without spaces is about half a word.
_WEIGHT = 1.0
_STOP_WEIGHT = 0.4
_CHARACTER_WEIGHT = 0.5
# The least share of a quote that must be found in its order, and of two words that are
# the same but for a slip.
_LEAST_SHARE = 0.75
_LEAST_LIKENESS = 0.8
# A shorter word may not be misspelt.
_SHORTEST_MENDED = 4
_LONGEST_MENDED = 40
# At most so many words of a quote are mended, each with at most so many words of the
# text.
_MOST_MENDED = 10
_MOST_LIKELY = 500
# The passage may be longer than the quote by this factor and this number of tokens.
_STRETCH = 1.5
_SLACK = 6
_MOST_TOKENS = 400
# A quote of which the middle was left out has two runs of so many tokens each, which
# are nearly all of it.
_MOST_RUNS = 2
_SHORTEST_RUN = 3
_LEAST_SHARE_OF_RUNS = 0.9


def tokens_in(text: str) -> list[str]:
    """Return the words of a text with their apostrophes, and each character of a script without spaces.

    >>> tokens_in("Don't! 不要")
    ["Don't", '不', '要']
    """
    return pattern(TOKEN).findall(text)


class Span(NamedTuple):
    """A part of a text, from ``start`` to before ``end``, and how much of the quote is in it, 0..1."""

    start: int
    end: int
    share: float

    def of(self, text: str) -> str:
        """Return the words themselves."""
        return text[self.start : self.end]


class _Token(NamedTuple):
    """A word, as it is compared, where it stands, and what it counts in the share of a quote that was found."""

    key: str
    start: int
    end: int
    weight: float


def find_quote(quote: str, text: str) -> Span | None:
    """Return the part of a text that a quote means; None if it is nowhere.

    Case, punctuation, typography, the person of pronouns, slips in a word, and words
    that are left out or put in do not matter as long as three quarters of the quote are
    found in their order, and close together. "..." stands for any words. A quote
    without any telling word must be the whole text.

    >>> text = "Well, I don't live in Oslo any more - I moved to Rome in May!"
    >>> find_quote("they dont live in Oslo", text).of(text)
    "I don't live in Oslo"
    >>> find_quote("I live in Paris", text) is None
    True
    """
    wanted = _tokens(unescape(quote))
    tokens = _tokens(text)
    plain = quote.strip()
    if not wanted or len(wanted) > _MOST_TOKENS:
        return None
    start = text.find(plain)
    end = start + len(plain)
    is_at_words = not any(
        token.start < place < token.end for token in tokens for place in (start, end)
    )
    if start >= 0 and is_at_words and _tells(wanted, tokens):
        return Span(start, end, 1.0)
    return _nearly(plain, text, wanted, tokens)


def _nearly(
    quote: str, text: str, wanted: Sequence[_Token], tokens: Sequence[_Token]
) -> Span | None:
    """Return where a text has most words of a quote in their order."""
    keys = _mended([token.key for token in wanted], {token.key for token in tokens})
    window = tokens
    if "..." not in quote and "\u2026" not in quote:
        most = int(len(keys) * _STRETCH) + _SLACK
        first = _densest(tokens, set(keys), most)
        window = tokens[first : first + most]
    blocks = _runs(keys, window)
    least = _LEAST_SHARE
    share = _share_of(blocks, wanted, tokens)
    if share < least and window is not tokens:
        # Its beginning and its end may stand further apart.
        blocks = [
            block for block in _runs(keys, tokens) if block.size >= _SHORTEST_RUN
        ][:_MOST_RUNS]
        window = tokens
        least = _LEAST_SHARE_OF_RUNS
        share = _share_of(blocks, wanted, tokens)
    if share < least:
        return None
    start = window[blocks[0].b].start
    end = window[blocks[-1].b + blocks[-1].size - 1].end
    # The mark at the end of a sentence belongs to the words.
    end += text.startswith(_ENDS, end) and quote.endswith(_ENDS)
    return Span(start, end, share)


def _runs(keys: Sequence[str], tokens: Sequence[_Token]) -> list[Match]:
    *blocks, _ = SequenceMatcher(
        None, keys, [token.key for token in tokens], autojunk=False
    ).get_matching_blocks()
    return blocks


def _share_of(
    blocks: Sequence[Match], wanted: Sequence[_Token], tokens: Sequence[_Token]
) -> float:
    """Return how much of a quote is in these runs of its words; 0 if they tell nothing."""
    matched = [
        token for block in blocks for token in wanted[block.a : block.a + block.size]
    ]
    share = sum(token.weight for token in matched) / sum(
        token.weight for token in wanted
    )
    return share if _tells(matched, tokens) else 0.0


@lru_cache(maxsize=64)
def _tokens(text: str) -> tuple[_Token, ...]:
    found = []
    for match in pattern(TOKEN).finditer(text):
        key = (
            unicodedata.normalize("NFKC", match.group())
            .casefold()
            .translate(_APOSTROPHES)
        )
        if key in _PERSON_WORDS:
            key = _PERSON
        if re.match(f"[{_UNSPACED}]", key):
            if key in STOP_CHARACTERS:
                weight = _STOP_WEIGHT / 2
            else:
                weight = _CHARACTER_WEIGHT
        elif key == _PERSON or key in STOP_WORDS:
            weight = _STOP_WEIGHT
        else:
            weight = _WEIGHT
        found.append(_Token(key, *match.span(), weight))
    return tuple(found)


def _tells(wanted: Sequence[_Token], tokens: Sequence[_Token]) -> bool:
    """Return whether a quote has a telling word, or all words of a short answer."""
    if any(
        token.weight in (_WEIGHT, _CHARACTER_WEIGHT) and len(token.key) > 1
        for token in wanted
    ):
        return True
    characters = sum(1 for token in wanted if token.weight == _CHARACTER_WEIGHT)
    return characters > 1 or len(wanted) > 1 or len(tokens) <= len(wanted) + 1


def _mended(keys: Sequence[str], known: set[str]) -> list[str]:
    """Return the keys, each that the text does not have as the one that it has but for a slip."""
    unknown = [key for key in keys if key not in known and _may_be_misspelt(key)]
    # Not the words of a quote that is of something else.
    if len(unknown) > max(_MOST_MENDED, len(keys) / 2):
        return list(keys)
    mended = {}
    for key in unknown[:_MOST_MENDED]:
        lengths = range(len(key) - 2, len(key) + 3)
        near = [
            one
            for one in known
            if len(one) in lengths and one[0] == key[0] and _may_be_misspelt(one)
        ]
        mended[key] = next(
            iter(get_close_matches(key, near[:_MOST_LIKELY], 1, _LEAST_LIKENESS)), key
        )
    return [mended.get(key, key) for key in keys]


def _may_be_misspelt(key: str) -> bool:
    return _SHORTEST_MENDED <= len(key) <= _LONGEST_MENDED and not key.isdigit()


def _densest(tokens: Sequence[_Token], keys: set[str], length: int) -> int:
    """Return where the ``length`` tokens begin that have most of the keys."""
    here = sum(token.weight for token in tokens[:length] if token.key in keys)
    best = here
    place = 0
    for i in range(length, len(tokens)):
        gone = tokens[i - length]
        come = tokens[i]
        here += come.weight * (come.key in keys) - gone.weight * (gone.key in keys)
        if here > best:
            best = here
            place = i - length + 1
    return place
