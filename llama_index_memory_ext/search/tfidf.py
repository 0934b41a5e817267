"""Ranks texts for a query, by TF-IDF."""

from __future__ import annotations

import threading
from collections import Counter
from functools import cache, lru_cache
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from llama_index_memory_ext.search.inverted_index import InvertedIndex, Similarities
from llama_index_memory_ext.search.tokenization import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

CONTEXT_SHARE = 0.3
LENGTH_EXPONENT = 0.6
# What each of the turns before the question weighs beside it; more than two of them weigh no more than two.
EARLIER_WEIGHT = 0.2


class Document(NamedTuple):
    """Something to be found. ``context`` is other texts by which it is found too, each with its weight in 0..1."""

    id: str
    text: str
    context: tuple[tuple[str, float], ...] = ()
    date: str = ""


class FactRanker(Protocol):
    """Says how near documents are to a query.

    It holds the documents of one namespace. Threads may call it at the same time. A call of
    ``similarities`` sees each change of ``add`` and ``remove`` as a whole or not at all.
    """

    def add(self, documents: Iterable[Document]) -> None:
        """Take documents in; one with an id that is known replaces the one before."""

    def remove(self, ids: Iterable[str]) -> None:
        """Take documents out, so that they count for nothing any more; unknown ids are passed over."""

    def similarities(self, query: str) -> Mapping[str, float]:
        """How near each document is, 0..1, by id; a document that is left out, or at 0, has nothing in common.

        Only the order and the proportions within one answer mean something: ``rank`` divides by the best.
        A query with nothing to go by (empty, stop words or emoji only) gives an empty mapping. Never raises for
        any string.
        """


class TfidfRanker:
    """TF-IDF cosines, as scikit-learn's TfidfVectorizer would compute them on all documents that are there now.

    Documents are appended to an inverted index; nothing is ever fitted again. With ``length_exponent=1`` and
    documents without context the similarities equal ``TfidfVectorizer(sublinear_tf=True, analyzer=...)`` fitted
    on ``text`` and ``date`` of the documents, to six digits. A word of the context counts as its weight says: as a
    part of a word.

    Args:
        length_exponent: 0..1. The power of a document's length by which its product with the query is divided:
            1 is the cosine; less lets longer documents come before shorter ones more easily.
        vectorizer: A scikit-learn CountVectorizer or TfidfVectorizer whose analyzer is used instead of ours, for
            other languages, n-grams or stop words. Nothing else of it is looked at.
    """

    def __init__(self, *, length_exponent: float = LENGTH_EXPONENT, vectorizer: Any | None = None) -> None:
        self._analyze: Callable[[str], Iterable[str]] = (vectorizer or default_vectorizer()).build_analyzer()
        self._index = InvertedIndex(length_exponent)
        self._guard = threading.Lock()

    def add(self, documents: Iterable[Document]) -> None:
        """Take documents in; one with an id that is known replaces the one before."""
        rows = [(document.id, self._weights(document)) for document in documents]
        with self._guard:
            self._index.add(rows)

    def remove(self, ids: Iterable[str]) -> None:
        """Take documents out; unknown ids are passed over."""
        with self._guard:
            self._index.remove(ids)

    def similarities(self, query: str) -> Similarities:
        """How near each document is that shares a term with the query, in (0, 1]; empty if none does."""
        weights = self._weights(Document("", query))
        with self._guard:
            return self._index.nearest(weights)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, document_id: object) -> bool:
        return document_id in self._index

    def _weights(self, document: Document) -> dict[str, float]:
        """1 + ln(count) of each term, in the text and in each context alike; a context's count as its share says."""
        counts: dict[str, float] = {}
        for text in (document.text, document.date):
            for term in self._analyze(text):
                counts[term] = counts.get(term, 0.0) + 1.0
        for text, share in document.context:
            for term, count in Counter(self._analyze(text)).items():
                counts[term] = counts.get(term, 0.0) + share * (1 + log(count))
        return {term: 1 + log(count) if count > 1 else count for term, count in counts.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_guard"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _guard=threading.Lock())


def default_vectorizer() -> Any:
    """The scikit-learn CountVectorizer whose analyzer the default ranker uses: see ``words.words_of``."""
    # Imported here: it takes most of a second and 100 MiB that a program without facts need not spend.
    from sklearn.feature_extraction.text import CountVectorizer  # type: ignore[import-untyped]

    return CountVectorizer(analyzer=terms_of)


def nearness(
    raw: Callable[[str], NDArray[np.float64]],
    question: str,
    context: Sequence[str],
    earlier_weight: float = EARLIER_WEIGHT,
) -> NDArray[np.float64]:
    """How near documents are to the question and what was said before it, the best 1; all 0 without evidence.

    ``raw`` gives the similarities of a text to all documents, in their order.
    """
    near = raw(question)
    best = near.max(initial=0.0)
    near = near / best if best > 0 else near
    earlier = earlier_weight * min(1.0, 2 / max(len(context), 1))
    for text in context:
        values = raw(text)
        best = values.max(initial=0.0)
        if best > 0:
            near = near + earlier / best * values
    best = near.max(initial=0.0)
    return near / best if best > 0 else near


# A text is looked at several times in a row, as a document and as the context of its neighbours.
@lru_cache(maxsize=32)
def terms_of(text: str) -> tuple[str, ...]:
    """The terms of a text by which the default ranker finds it, in their order."""
    return tuple(word.term for word in words_of(text, stem))


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """The stem of a lower-case English word."""
    stemmed: str = _stemmer().stem(word)
    return stemmed


@cache
def _stemmer() -> Any:
    # Imported here for the same reason. The stemmer is rules, it needs none of nltk's downloads.
    from nltk.stem.snowball import EnglishStemmer  # type: ignore[import-untyped]

    return EnglishStemmer()
