"""The ranking of documents by their words: an index of terms, and scores as in BM25."""

from __future__ import annotations

import logging
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, compress, count, repeat
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_index_memory_ext.background.locks import thread_lock
from llama_index_memory_ext.background.recent import Recent
from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.events import MemoryFailure, is_handled
from llama_index_memory_ext.settings import describe_value
from llama_index_memory_ext.words.tokens import (
    checked_languages,
    indexed_words,
    is_function_word,
    languages_by_word,
    languages_in,
    languages_of,
    related_terms,
    term_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

logger = logging.getLogger(__name__)

Values: TypeAlias = NDArray[np.float64]
# The words of the documents that one word of a query means.
Group: TypeAlias = frozenset[str]

# The weight of a word in the source of a fact; a word in its text has 1.
SOURCE_SHARE = 0.3
# The weight of a turn before the question; the question has 1.
EARLIER_WEIGHT = 0.2
# The weight of the words of a change, such as "moved" for "live".
_CHANGE_SHARE = 0.15
# b and k1 of BM25.
LENGTH_WEIGHT = 0.7
SATURATION = 0.6
# All words that are related to a word of a query have this share of its weight. A query
# with more different words has enough of them without related words.
_RELATED_WEIGHT = 0.05
_SHORT_QUERY = 8
# A word of this share of the documents may tell their language.
_FREQUENT_SHARE = 0.02
# The turns before a question are queries again with the next question.
_CACHED_ANSWERS = 4


class Document(NamedTuple):
    """A text that queries find.

    Attributes:
        id: The name of the document in the index.
        text: Its own words have the weight 1.
        context: Further texts whose words also find the document, each with a weight
            in 0..1.
        date: Further words, such as "Ann 8 May, 2023", with the weight 1.
        sequence: Documents with the same number that are added one after the other are
            neighbours.
    """

    id: str
    text: str
    context: tuple[tuple[str, float], ...] = ()
    date: str = ""
    sequence: int = 0


class Similar(Protocol):
    """Computes how similar documents are to a query."""

    def similarities(self, query: str) -> Mapping[str, float]:
        """Return the similarity of each document to the query, 0..1, by id; a missing document has 0.

        Only the proportions within one answer matter. A query without a usable word
        (empty, only stop words or emoji) gives an empty mapping. No string raises an
        error.
        """


class FactRanker(Similar, Protocol):
    """Holds the documents of one namespace, and computes how similar they are to a query.

    Threads may call it at the same time: ``similarities`` sees each ``add`` or
    ``remove`` completely or not at all.
    """

    def add(self, documents: Iterable[Document]) -> None:
        """Add documents; a document replaces an earlier one with the same id."""

    def remove(self, ids: Iterable[str]) -> None:
        """Remove documents and their influence on every score; ignore unknown ids."""


@contextmanager
def suppress_failures(
    failures: Counter[str], message: str, drop: Callable[[], object]
) -> Iterator[None]:
    """Suppress a failure of an index, and ``drop`` the index, so that it is built anew.

    ``failures`` counts the failures by type. Each type is logged once, with the
    ``message``.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a broken index or a ranker of the program may raise any error
        drop()
        kind = type(error).__name__
        failures[kind] += 1
        outcome = "the next question builds the index again"
        is_new = failures[kind] == 1
        if not is_handled(MemoryFailure(message, kind, outcome)) and is_new:
            logger.warning("%s (%s); nothing is lost, and %s.", message, kind, outcome)


class _Posting:
    """The rows with a word, in ascending order, and the weighted number of times that each row has it."""

    __slots__ = ("counts", "rows")

    def __init__(self) -> None:
        self.rows = array("i")
        self.counts = array("d")


def _view(values: array[Any]) -> NDArray[Any]:
    """Return the numbers of an array without a copy. An array cannot grow while a view of it is in use."""
    return np.frombuffer(values, dtype=values.typecode)


class Similarities(Mapping[str, float]):
    """The similarities of documents by id, without documents with 0."""

    def __init__(self, ids: tuple[str, ...], values: Values) -> None:
        self.ids = ids
        self.values_in_order = values

    @cached_property
    def _by_id(self) -> dict[str, float]:
        pairs = zip(self.ids, self.values_in_order.tolist(), strict=True)
        return {name: value for name, value in pairs if value}

    def __getitem__(self, document_id: str) -> float:
        return self._by_id[document_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)


class TfidfRanker:
    """A ``FactRanker`` by TF-IDF, weighted as in BM25.

    The score of a document adds up, for each term of the query,
    ``(1 + ln(n)) * idf * w * (k1 + 1) / (w + k1 * (1 - b + b * length / mean
    length))``. The query has the term ``n`` times, and the document ``w`` times,
    contexts and neighbours included. ``k1`` is ``SATURATION`` and ``b`` is ``LENGTH_WEIGHT``. The formula is
    equation 3.15 of Robertson and Zaragoza, The Probabilistic Relevance Framework,
    2009. The idf is smoothed as in scikit-learn, ``idf = 1 + ln((1 + documents) / (1 +
    documents with the term))``.

    A short query also finds related words from WordNet, with a twentieth of the weight:
    "profession" finds "nurse", and "allergies" finds "allergic". Short means at most
    eight words, in English or an unknown language.

    Args:
        neighbour_shares: The weights of the words of the documents before and after a
            document in its sequence, the nearest first.
        languages: In which languages queries may be: codes of ISO 639-1, of "da", "de",
            "en", "es", "fi", "fr", "it", "nl", "no", "pt", "ru" and "sv". None: the
            script and the function words of a query decide, or else the documents. A
            ValueError for any other code.
        vectorizer: A scikit-learn vectorizer (extra ``sklearn``), fitted or not. Its
            preprocessing, tokens, stop words and n-grams replace ours; its vocabulary,
            weights, norms and other limits have no effect. A SettingError for anything
            else.

    The words of a query find all forms that have the same stem in its language, in
    documents of any language: "Wo wohne ich?" finds "Wohnt in München". Function words
    of that language find nothing. In a language without a stemmer, such as Arabic,
    Polish or Hindi, a word finds only the same form. In scripts without spaces, such as
    Chinese, Japanese and Thai, and in Korean, pairs of neighbouring characters are
    found.
    """

    def __init__(
        self,
        *,
        neighbour_shares: Sequence[float] = (),
        languages: Sequence[str] | None = None,
        vectorizer: Any = None,
    ) -> None:
        if vectorizer is not None and (
            isinstance(vectorizer, type) or not hasattr(vectorizer, "build_analyzer")
        ):
            raise SettingError(
                f"vectorizer must be a vectorizer of scikit-learn; got {describe_value(vectorizer, with_text=True)}. "
                "Give it an object such as TfidfVectorizer(), with pip install 'llama-index-memory-ext[sklearn]', "
                "or leave it out."
            )
        self._words_in: Callable[[str], Iterable[str]] = _words_in
        self._has_languages = vectorizer is None
        if vectorizer is not None:
            self._words_in = vectorizer.build_analyzer()
        self._possible_languages = checked_languages(languages)
        self._neighbour_shares = neighbour_shares
        self._lock = thread_lock()
        # By the word as it is written.
        self._postings: defaultdict[str, _Posting] = defaultdict(_Posting)
        # The written words by their stems, for English and each language of a query so
        # far. Words without a document stay.
        self._forms: dict[str, defaultdict[str, set[str]]] = {"en": defaultdict(set)}
        # The row of each document, in ascending order.
        self._rows: dict[str, int] = {}
        self._lengths = array("d")
        self._sequences = array("i")
        # Until a document changes.
        self._answers: Recent[str, Similarities] = Recent(_CACHED_ANSWERS)

    def add(self, documents: Iterable[Document]) -> None:
        """Add documents; a document replaces an earlier one with the same id."""
        by_id = {document.id: document for document in documents}
        weights_by_id = {
            name: _weights_of(by_id[name], self._words_in) for name in by_id
        }
        with self._lock:
            self.remove(by_id)
            self._answers = Recent(_CACHED_ANSWERS)
            for name, weights in weights_by_id.items():
                row = len(self._rows)
                self._rows[name] = row
                self._lengths.append(sum(weights.values()))
                self._sequences.append(by_id[name].sequence)
                new = [word for word in weights if word not in self._postings]
                for code in self._forms:
                    self._add_forms(code, new)
                for word, weight in weights.items():
                    posting = self._postings[word]
                    posting.rows.append(row)
                    posting.counts.append(weight)

    def remove(self, ids: Iterable[str]) -> None:
        """Remove documents; ignore unknown ids."""
        with self._lock:
            rows = [self._rows[name] for name in set(ids) if name in self._rows]
            if not rows:
                return
            self._answers = Recent(_CACHED_ANSWERS)
            is_kept = np.ones(len(self._rows), dtype=bool)
            is_kept[rows] = False
            names = compress(self._rows, is_kept)
            self._rows = dict(zip(names, count(), strict=False))
            self._lengths = _kept(self._lengths, is_kept)
            self._sequences = _kept(self._sequences, is_kept)
            new_rows = np.cumsum(is_kept, dtype=np.intc) - 1
            first = min(rows)
            for written, posting in list(self._postings.items()):
                if posting.rows[-1] < first:
                    continue
                has_document = is_kept[_view(posting.rows)]
                posting.counts = _kept(posting.counts, has_document)
                remaining = _kept(posting.rows, has_document)
                posting.rows = array("i", new_rows[_view(remaining)].tobytes())
                if not remaining:
                    del self._postings[written]

    def similarities(self, query: str) -> Similarities:
        """Return the similarity of each document with a word of the query or a related one, in (0, 1], by id."""
        with self._lock:
            answer = self._answers.get(query)
            if answer is None:
                answer = self._compute_similarities(query)
                self._answers.put(query, answer)
            return answer

    def _compute_similarities(self, query: str) -> Similarities:
        codes = self._languages(query)
        for code in codes:
            if code not in self._forms:
                self._forms[code] = defaultdict(set)
                # This takes long for many words.
                self._add_forms(code, self._postings)
        scores = self._scores(self._query_weights(query, codes))
        # Rounded, so that documents with the same terms are equally similar after any
        # additions and removals.
        return Similarities(tuple(self._rows), np.round(divided_by_best(scores), 9))

    def _query_weights(self, query: str, codes: Sequence[str]) -> dict[Group, float]:
        """Return the weight of each word of a query that is no function word: ``1 + ln(count)``.

        The related words of each word of a short query have a weight together.
        """
        words = [
            word for word in self._words_in(query) if not is_function_word(word, codes)
        ]
        counts = Counter(self._forms_of(word, codes) for word in words)
        weights = defaultdict[Group, float](float)
        for group, number in counts.items():
            weights[group] = 1 + log(number)
        terms = Counter(term_of(word, "en") for word in words)
        if self._has_languages and not codes and len(terms) <= _SHORT_QUERY:
            for term, number in terms.items():
                related = self._written(related_terms(term), "en")
                weights[related] += _RELATED_WEIGHT * (1 + log(number))
        return weights

    def _forms_of(self, word: str, codes: Iterable[str]) -> Group:
        """Return the words of the documents with the stem of a word in English or one of the languages."""
        forms: Group = frozenset()
        if not self._has_languages:
            return forms.union([word]).intersection(self._postings)
        for code in ("en", *codes):
            forms |= self._written([term_of(word, code)], code)
        return forms

    def _written(self, terms: Iterable[str], code: str) -> Group:
        """Return the words of the documents with one of these stems in a language."""
        forms = self._forms[code]
        words = chain.from_iterable(forms.get(term, ()) for term in terms)
        return frozenset(word for word in words if word in self._postings)

    def _languages(self, query: str) -> tuple[str, ...]:
        """Return the languages of a query or, if that is unclear, of the documents; without English."""
        if not self._has_languages:
            return ()
        codes = languages_of(query, self._possible_languages)
        if not codes:
            least = _FREQUENT_SHARE * len(self._rows)
            codes = languages_in(
                {
                    word
                    for word in self._postings.keys() & languages_by_word().keys()
                    if len(self._postings[word].rows) >= least
                }
            )
        return tuple(code for code in codes if code != "en")

    def _add_forms(self, code: str, words: Iterable[str]) -> None:
        forms = self._forms[code]
        for word in words:
            forms[term_of(word, code)].add(word)

    def _scores(self, weights: Mapping[Group, float]) -> Values:
        """Return the score of each row for a query of groups of words with these weights."""
        scores = np.zeros(len(self._rows))
        near = self._shares_of_neighbours()
        lengths = _with_neighbours(_view(self._lengths), near)
        relative = lengths * len(lengths) / (lengths.sum() or 1.0)
        norms = SATURATION * (1 + LENGTH_WEIGHT * (relative - 1))
        # Group by group: in a new process, arrays of all groups together come from the
        # system for each question anew, which takes longer than the scores.
        for group, weight in weights.items():
            if group:
                counts = _with_neighbours(self._counts(group), near)
                frequency = int(np.count_nonzero(counts))
                idf = 1 + log((1 + len(scores)) / (1 + frequency))
                factor = weight * idf * (SATURATION + 1)
                # Each further occurrence of a word adds less.
                scores += factor * counts / (norms + counts)
        return scores

    def _counts(self, group: Group) -> Values:
        """Return how often each row has the words of a group, by their weights."""
        # Sorted, so that the sums do not depend on the process.
        postings = [self._postings[written] for written in sorted(group)]
        # Faster than sums at indices.
        counts: Values = sum(  # type: ignore[assignment]  # 0 only for no word
            np.bincount(_view(posting.rows), _view(posting.counts), len(self._rows))
            for posting in postings
        )
        return counts

    def _shares_of_neighbours(self) -> list[Values]:
        """Return the share between each row and the row at each distance behind it, 0 for another sequence."""
        sequences = _view(self._sequences)
        return [
            share * (sequences[distance:] == sequences[:-distance])
            for distance, share in enumerate(self._neighbour_shares, 1)
        ]


def _weights_of(
    document: Document, words_in: Callable[[str], Iterable[str]]
) -> dict[str, float]:
    """Return the weight of each word of a document and its contexts."""
    words = chain(words_in(document.text), words_in(document.date))
    weights = defaultdict[str, float](float, Counter(words))
    for text, share in document.context:
        for word, number in Counter(words_in(text)).items():
            weights[word] += share * (1 + log(number))
    return weights


def _words_in(text: str) -> list[str]:
    return [word.written for word in indexed_words(text)]


def _with_neighbours(own: Values, near: Sequence[Values]) -> Values:
    """Return a number for each row, with shares of the numbers of the rows around it."""
    if not near:
        return own
    sums = own.copy()
    for distance, shares in enumerate(near, 1):
        sums[distance:] += shares * own[:-distance]
        sums[:-distance] += shares * own[distance:]
    return sums


def _kept(values: array[Any], is_kept: NDArray[np.bool_]) -> array[Any]:
    return array(values.typecode, _view(values)[is_kept].tobytes())


def similarities_with_context(
    ranker: Similar,
    ids: Sequence[str],
    question: str,
    context: Sequence[str],
    turn_weight: float = EARLIER_WEIGHT,
    changes: str = "",
) -> Values:
    """Return the similarities of documents to a question and the turns before it; the best is 1, or all are 0.

    The similarity to the question has the weight 1, to the words of ``changes`` that it
    may ask about 0.15, and to each turn ``turn_weight``. More than two turns together
    weigh as much as two.
    """
    weight = turn_weight * min(1.0, 2 / max(len(context), 1))
    total = np.zeros(len(ids))
    queries = [
        (question, 1.0),
        (changes, _CHANGE_SHARE),
        *[(turn, weight) for turn in context],
    ]
    for query, share in queries:
        if query:
            similarities = values_of(ranker.similarities(query), ids)
            total += share * divided_by_best(similarities)
    return divided_by_best(total)


def values_of(similarities: Mapping[str, float], ids: Sequence[str]) -> Values:
    """Return the similarities of these documents in their order, 0 for a document that is missing."""
    if isinstance(similarities, Similarities) and similarities.ids == ids:
        return similarities.values_in_order
    return np.fromiter(map(similarities.get, ids, repeat(0.0)), np.float64, len(ids))


def divided_by_best(values: Values) -> Values:
    """Return the values, at least 0, divided by the highest; zeros as they are."""
    return values / (values.max(initial=0.0) or 1.0)
