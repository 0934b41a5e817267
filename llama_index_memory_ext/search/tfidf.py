"""Ranks texts for a query by TF-IDF."""

from __future__ import annotations

import threading
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from math import log, sqrt
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_index_memory_ext.search.tokenization import terms_of

Values: TypeAlias = NDArray[np.float64]

# The weight of a word in the context of a document; a word in its text has 1.
CONTEXT_SHARE = 0.3
LENGTH_EXPONENT = 0.6
# The weight of a turn before the question; the question has 1.
EARLIER_WEIGHT = 0.2
_LOG_TOLERANCE = 1e-3
_MOST_GAPS = 64


class Document(NamedTuple):
    """A text to be found. ``context`` is other texts by whose words it is found too, each with its weight in 0..1."""

    id: str
    text: str
    context: tuple[tuple[str, float], ...] = ()
    date: str = ""


class FactRanker(Protocol):
    """Holds the documents of one namespace, and computes how similar they are to a query.

    Threads may call it at the same time: ``similarities`` sees each ``add`` or ``remove`` completely or not at all.
    """

    def add(self, documents: Iterable[Document]) -> None:
        """Adds documents; one with a known id replaces the document before."""

    def remove(self, ids: Iterable[str]) -> None:
        """Removes documents, so that they have no influence any more; unknown ids are ignored."""

    def similarities(self, query: str) -> Mapping[str, float]:
        """Returns the similarity of each document to the query, 0..1, by id; a missing document has 0.

        Only the proportions within one answer matter. A query without a usable word (empty, only stop words or emoji)
        gives an empty mapping. No string raises an error.
        """


class Vectorizer(Protocol):
    """What is used of scikit-learn's ``CountVectorizer``, ``TfidfVectorizer`` and ``HashingVectorizer``."""

    def build_analyzer(self) -> Callable[[str], Iterable[str]]:
        """Returns a function that splits a text into terms."""


class Similarities(Mapping[str, float]):
    """The similarities of documents by id, without those of 0 and of documents that were changed later."""

    def __init__(self, ids: Sequence[str], rows: Mapping[str, int], values: Values) -> None:
        self._ids, self._rows, self._values = ids, rows, values

    def of(self, ids: Sequence[str]) -> Values:
        """Returns the similarities of these documents in their order, 0 for an unknown document."""
        rows = np.fromiter(map(self._rows.get, ids, repeat(-1)), dtype=np.int64, count=len(ids))
        # The last value is that of unknown documents and of those that were added later.
        return np.append(self._values, 0.0)[np.minimum(rows, len(self._values))]

    def __getitem__(self, document_id: str) -> float:
        value: float = self.of([document_id]).item()
        if not value:
            raise KeyError(document_id)
        return value

    def __iter__(self) -> Iterator[str]:
        return (self._ids[row] for row in np.flatnonzero(self._values).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._values))


class TfidfRanker:
    """A ``FactRanker`` by TF-IDF cosines.

    With ``length_exponent=1`` and without contexts they equal, to six digits, those of scikit-learn's
    ``TfidfVectorizer(sublinear_tf=True, analyzer=...)``, fitted on ``text`` and ``date`` of the current documents.

    The documents are the rows of an inverted index. The weight ``w`` of a term in a row is multiplied by scikit-learn's
    smoothed idf, ``a - l``, where ``a = 1 + ln(1 + number of rows)`` and ``l = ln(1 + number of rows with the term)``.
    So the squared length of a row is ``a^2 * sum(w^2) - 2a * sum(w^2 * l) + sum(w^2 * l^2)``. The ranker keeps these
    three sums for each row. A row that comes or goes changes ``a`` for all rows, and ``l`` for its own terms: only the
    rows that share a term with it get new sums. For terms in more than 1,000 rows, ``l`` is updated when it has changed
    by 0.001, so that the lengths of their rows are exact within a thousandth.

    Args:
        length_exponent: 0..1. Each cosine is multiplied by ``(length / longest) ** (1 - length_exponent)``, where
            ``longest`` is the length of the longest document: less ranks longer documents higher.
        vectorizer: A scikit-learn vectorizer, fitted or not, whose preprocessing, tokens, stop words and n-grams are
            used, as for other languages. Its vocabulary, weights, norms and other limits have no effect.
    """

    def __init__(self, *, length_exponent: float = LENGTH_EXPONENT, vectorizer: Vectorizer | None = None) -> None:
        self._analyze: Callable[[str], Iterable[str]] = vectorizer.build_analyzer() if vectorizer else terms_of
        self._length_exponent = length_exponent
        self._lock = threading.RLock()
        self._rows: dict[str, int] = {}
        self._postings: defaultdict[str, _Posting] = defaultdict(_Posting)
        # By row, with gaps where documents were removed; three sums for each row.
        self._ids: list[str] = []
        self._terms: list[tuple[str, ...]] = []
        self._sums = array("d")
        self._cached_factors: Values | None = None

    def add(self, documents: Iterable[Document]) -> None:
        """Adds documents; one with a known id replaces the document before."""
        added = {document.id: self._weights(document) for document in documents}
        with self._lock:
            self.remove(added)
            for document_id, weights in added.items():
                postings = [self._postings[term] for term in weights]
                for posting, weight in zip(postings, weights.values(), strict=True):
                    posting.rows.append(len(self._ids))
                    posting.weights.append(weight)
                squares, logs = np.square(list(weights.values())), np.array([posting.log for posting in postings])
                self._sums.extend([squares.sum(), squares @ logs, squares @ logs**2])
                self._rows[document_id] = len(self._ids)
                self._ids.append(document_id)
                self._terms.append(tuple(weights))
            self._update_sums({term for weights in added.values() for term in weights})

    def remove(self, ids: Iterable[str]) -> None:
        """Removes documents; unknown ids are ignored."""
        with self._lock:
            removed = [self._rows.pop(document_id) for document_id in ids if document_id in self._rows]
            terms = {term for row in removed for term in self._terms[row]}
            for term in terms:
                posting = self._postings[term]
                kept = np.isin(_view(posting.rows), removed, invert=True)
                posting.rows = array("i", _view(posting.rows)[kept].tobytes())
                posting.weights = array("d", _view(posting.weights)[kept].tobytes())
                if not posting.rows:
                    del self._postings[term]
            self._sum_matrix()[removed] = 0.0
            self._update_sums(terms & self._postings.keys())
            if len(self._ids) - len(self._rows) > max(_MOST_GAPS, len(self._rows)):
                self._close_gaps()

    def similarities(self, query: str) -> Similarities:
        """Returns the similarity of each document that shares a term with the query, in (0, 1], by id."""
        weights = self._weights(Document("", query))
        with self._lock:
            products, query_square = np.zeros(len(self._ids)), 0.0
            for term, weight in weights.items():
                if term in self._postings:
                    posting = self._postings[term]
                    idf = self._top - log(1 + len(posting.rows))
                    query_square += (weight * idf) ** 2
                    products[_view(posting.rows)] += weight * idf**2 * _view(posting.weights)
            values = products * self._factors() / sqrt(query_square or 1.0)
            # Rounded, so that documents with the same terms are equally similar after any additions and removals.
            return Similarities(self._ids, self._rows, np.minimum(np.round(values, 9), 1.0))

    def _weights(self, document: Document) -> dict[str, float]:
        """Returns ``1 + ln(count)`` of each term; a context adds ``1 + ln(count)``, times its weight, to the count."""
        terms = Counter([*self._analyze(document.text), *self._analyze(document.date)])
        counts = defaultdict[str, float](float, terms)
        for text, weight in document.context:
            for term, count in Counter(self._analyze(text)).items():
                counts[term] += weight * (1 + log(count))
        return {term: 1 + log(count) if count > 1 else count for term, count in counts.items()}

    @property
    def _top(self) -> float:
        return 1 + log(1 + len(self._rows))

    def _sum_matrix(self) -> Values:
        return _view(self._sums).reshape(-1, 3)

    def _factors(self) -> Values:
        """Returns by what each row's product with the query is multiplied; 0 for rows without terms."""
        if self._cached_factors is None:
            squares = self._sum_matrix() @ np.array([self._top**2, -2 * self._top, 1.0])
            lengths = np.sqrt(np.maximum(squares, 0.0))
            divisors = lengths**self._length_exponent * lengths.max(initial=0.0) ** (1 - self._length_exponent)
            self._cached_factors = np.divide(1.0, divisors, out=np.zeros_like(lengths), where=lengths > 0)
        return self._cached_factors

    def _update_sums(self, terms: Iterable[str]) -> None:
        """Updates the sums of all rows with one of these terms, whose numbers of rows have changed."""
        self._cached_factors = None
        sums = self._sum_matrix()
        for term in terms:
            posting = self._postings[term]
            before, now = posting.log, log(1 + len(posting.rows))
            if abs(now - before) > _LOG_TOLERANCE:
                rows, squares = _view(posting.rows), np.square(_view(posting.weights))
                sums[rows, 1] += squares * (now - before)
                sums[rows, 2] += squares * (now**2 - before**2)
                posting.log = now

    def _close_gaps(self) -> None:
        """Numbers the rows anew. ``_ids`` and ``_rows`` are new objects, because earlier answers use the old ones."""
        kept = list(self._rows.values())
        new_rows = np.zeros(len(self._ids), dtype=np.intc)
        new_rows[kept] = np.arange(len(kept))
        for posting in self._postings.values():
            posting.rows = array("i", new_rows[_view(posting.rows)].tobytes())
        self._sums = array("d", self._sum_matrix()[kept].tobytes())
        self._terms = [self._terms[row] for row in kept]
        self._ids = list(self._rows)
        self._rows = {document_id: row for row, document_id in enumerate(self._ids)}
        self._cached_factors = None


class _Posting:
    """The rows with a term and its weight in each; ``log`` is the term's ``l`` in the sums of these rows."""

    __slots__ = ("log", "rows", "weights")

    def __init__(self) -> None:
        self.rows, self.weights, self.log = array("i"), array("d"), 0.0


def similarities_with_context(
    ranker: FactRanker, ids: Sequence[str], question: str, context: Sequence[str], turn_weight: float = EARLIER_WEIGHT
) -> Values:
    """Returns the similarity of each of ``ids`` to a question and the turns before it, the best 1; all 0 if none is.

    A turn weighs ``turn_weight`` of the question, and more than two turns together as much as two.
    """
    weight = turn_weight * min(1.0, 2 / max(len(context), 1))
    total = np.zeros(len(ids))
    for text, share in ((question, 1.0), *((turn, weight) for turn in context)):
        total += share * divided_by_best(values_of(ranker.similarities(text), ids))
    return divided_by_best(total)


def values_of(similarities: Mapping[str, float], ids: Sequence[str]) -> Values:
    """Returns the similarities of these documents in their order, 0 for a document that is missing."""
    if isinstance(similarities, Similarities):
        return similarities.of(ids)
    return np.fromiter((similarities.get(name, 0.0) for name in ids), dtype=np.float64, count=len(ids))


def divided_by_best(values: Values) -> Values:
    """Returns the values, at least 0, divided by the highest; zeros as they are."""
    return values / (values.max(initial=0.0) or 1.0)


def _view(values: array[Any]) -> NDArray[Any]:
    """Returns the numbers of an array without a copy. An array cannot grow while a view of it is in use."""
    return np.frombuffer(values, dtype=values.typecode)
