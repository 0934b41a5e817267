"""Tells how much a text concerns a question by the words that both have, whatever else is known."""

from __future__ import annotations

from functools import lru_cache
from math import log
from typing import TYPE_CHECKING

from llama_index_memory_ext.search.languages import languages_of, words_in
from llama_index_memory_ext.text.tokens import TokenCounter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The numbers of tokens grow with the rarity of what they stand for: those of the commonest English words that are no
# stop words are about as the first, no word has a higher one than the second.
_COMMON, _RARE = log(660), log(200_000)
_LEAST, _MOST = 0.05, 1.0
# Of scripts without spaces, what two texts have in common by chance is often a pair of characters.
_UNSPACED_SHARE = 0.5
# The weight of a word that only the turns before the question have.
_EARLIER_SHARE = 0.5
_COUNTER = TokenCounter()


class Asked:
    """What is asked: the words of a question and of the turns before it, by their terms, each with its rarity.

    Terms are stems in the language of the question, of ``languages`` if that is not None.
    """

    def __init__(self, question: str, context: Sequence[str] = (), languages: tuple[str, ...] | None = None) -> None:
        earlier = "\n".join(context)
        self._codes = languages_of(question, languages) or languages_of(earlier, languages)
        self._rarities = {term: _EARLIER_SHARE * rarity for term, rarity in _rarities(earlier, self._codes).items()}
        self._rarities |= _rarities(question, self._codes)

    def concern(self, text: str) -> float:
        """Returns how much a text concerns it, 0..1: the sum of the rarities of the words in common, at most 1.

        A rare word or a name has a rarity of about 1, "guitar" 0.6, "work" 0.1. So it is the same whatever else is
        known.

        >>> asked = Asked("Which guitar do I want to play at work?")
        >>> round(asked.concern("Owns a guitar"), 1), round(asked.concern("Likes her work"), 1), asked.concern("Tea")
        (0.6, 0.1, 0.0)
        """
        own, asked = _rarities(text, self._codes), self._rarities
        return min(1.0, sum((min(own[term], asked[term]) for term in own.keys() & asked.keys()), 0.0))


@lru_cache(maxsize=10_000)
def _rarities(text: str, codes: tuple[str, ...]) -> Mapping[str, float]:
    """The rarity of each term of a text, by the commonest of its words and, in English, itself."""
    found: dict[str, float] = {}
    is_english = not codes or codes[0] == "en"
    for word in words_in(text, codes):
        rarity = min(_rarity(word.written), _rarity(word.term) if is_english else _MOST)
        found[word.term] = min(rarity, found.get(word.term, _MOST))
    return found


@lru_cache(maxsize=100_000)
def _rarity(word: str) -> float:
    tokens = _COUNTER(f" {word}")
    if len(tokens) > 1 or not word.isascii():
        # A word of several tokens is rare; the vocabulary has few words of other scripts.
        tokens = [200_000]
    rarity = (log(max(tokens[0], 1)) - _COMMON) / (_RARE - _COMMON)
    is_unspaced = not word.isascii() and len(word) <= 2  # noqa: PLR2004 - a pair of characters
    return min(max(rarity, _LEAST), _MOST) * (_UNSPACED_SHARE if is_unspaced else 1.0)
