"""How much of a question a fact covers by its words; for ``min_similarity``."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import chain
from math import log
from typing import TYPE_CHECKING

from llama_index_memory_ext.words.tokens import languages_of, related_terms, words_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Constants of ``min_similarity``, chosen on exact_facts; see CONTRIBUTING.md. The words
# of a question together weigh at most as much as this number of words of one fact alone.
_MOST_QUESTION_WEIGHT = 2
# The weights of a word that no fact has, and of a related word.
_UNKNOWN_WEIGHT = 0.5
_RELATED_WEIGHT = 0.8


def question_shares(
    texts: Mapping[str, str],
    question: str,
    context: Sequence[str] = (),
    languages: tuple[str, ...] | None = None,
) -> dict[str, float]:
    """Return the share of a question that each text covers, 0..1, by key; words are weighted by their idf.

    ``share = idf of the words in common / min(idf of all words of the question, 2 * idf
    of a word that one text has)``. A text without a word of the question is missing. So
    is a text if another text has the same words of the question, and more.

    >>> shares = question_shares({"a": "Owns a guitar", "b": "Plays at home", "c": "Tea"}, "Which guitar do I play?")
    >>> {key: round(share, 1) for key, share in shares.items()}
    {'a': 0.5, 'b': 0.5}
    """
    earlier_turns = "\n".join(context)
    codes = languages_of(question, languages) or languages_of(earlier_turns, languages)
    words = terms_of(question, codes) or terms_of(earlier_turns, codes)
    words_of_texts = {key: terms_of(text, codes) for key, text in texts.items()}
    common = {key: own & words for key, own in words_of_texts.items()}
    frequency = Counter(chain.from_iterable(words_of_texts.values()))
    weights = {}
    for word in words:
        weights[word] = _idf(frequency[word], len(texts))
        if word not in frequency:
            weights[word] *= _UNKNOWN_WEIGHT
    full_weight = min(
        sum(weights.values()), _MOST_QUESTION_WEIGHT * _idf(1, len(texts))
    )
    for word, keys in _related_texts(words, codes, words_of_texts).items():
        weights[word] = _RELATED_WEIGHT * _UNKNOWN_WEIGHT * _idf(len(keys), len(texts))
        for key in keys:
            common[key] |= {word}
    return _covered_shares(common, weights, full_weight)


def _idf(frequency: int, texts: int) -> float:
    return 1 + log((1 + texts) / (1 + frequency))


def _related_texts(
    words: frozenset[str],
    codes: tuple[str, ...],
    words_of_texts: Mapping[str, frozenset[str]],
) -> dict[str, list[str]]:
    """Return the keys of texts with a related word, for each word that no text has.

    {} for a question in another language than English.
    """
    if codes[:1] not in ((), ("en",)):
        return {}
    words_of_all = frozenset(chain.from_iterable(words_of_texts.values()))
    keys_of_words = {}
    for word in words:
        if word not in words_of_all:
            related = frozenset(related_terms(word))
            keys_of_words[word] = [
                key
                for key, own in words_of_texts.items()
                if not related.isdisjoint(own)
            ]
    return keys_of_words


def _covered_shares(
    common: Mapping[str, frozenset[str]],
    weights: Mapping[str, float],
    full_weight: float,
) -> dict[str, float]:
    """Return for each text the weight of its words in common, divided by the full weight."""
    all_common = set(common.values())
    shares = {}
    for key, words in common.items():
        if words and not any(words < larger for larger in all_common):
            weight = 0.0
            for word in words:
                weight += weights[word]
            shares[key] = min(1.0, weight / full_weight)
    return shares


@lru_cache(maxsize=10_000)
def terms_of(text: str, codes: tuple[str, ...]) -> frozenset[str]:
    """Return the different terms of a text in the language of the first code."""
    return frozenset(word.term for word in words_in(text, codes))
