"""The ranking of documents by their words: an index of terms, and scores as in BM25."""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from math import log
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_index_memory_ext.background.locks import thread_lock
from llama_index_memory_ext.background.recent import Recent
from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.events import MemoryFailure, is_handled
from llama_index_memory_ext.settings import describe_value
from llama_index_memory_ext.words.tokens import (
    Word,
    checked_languages,
    indexed_words,
    is_function_word,
    languages_in,
    languages_of,
    related_terms,
    term_of,
)

logger = logging.getLogger(__name__)

Values: TypeAlias = NDArray[np.float64]
# The terms that one word of a query means.
Group: TypeAlias = tuple[str, ...]

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
# To remove more rows than this, one by one, takes longer than to copy the posting.
_MOST_SINGLE_REMOVALS = 64
# Removed documents leave empty rows. Above this number of gaps, and above the number of
# documents, the rows are numbered anew.
_MOST_GAPS = 64
# The turns before a question are queries again with the next question.
_CACHED_ANSWERS = 4
# Up to so many documents, the first question in a language waits until their words are
# stemmed. An index with more documents stems them in advance, and looks for new
# languages when it has grown by this factor.
_MOST_UNSTEMMED = 2_000
_GROWTH = 1.25


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
        outcome = "the next question builds the index anew"
        is_new = failures[kind] == 1
        if not is_handled(MemoryFailure(message, kind, outcome)) and is_new:
            logger.warning("%s (%s); nothing is lost, and %s.", message, kind, outcome)


class Posting:
    """The rows with a term, in ascending order, and the weighted number of times that each row has it."""

    __slots__ = ("counts", "rows")

    def __init__(self) -> None:
        self.rows = array("i")
        self.counts = array("d")

    def remove(self, rows: Sequence[int]) -> None:
        """Remove rows, each of which must have the term."""
        if len(rows) > _MOST_SINGLE_REMOVALS:
            remaining = np.isin(view(self.rows), rows, invert=True)
            self.rows = array("i", view(self.rows)[remaining].tobytes())
            self.counts = array("d", view(self.counts)[remaining].tobytes())
            return
        for row in rows:
            place = bisect_left(self.rows, row)
            del self.rows[place], self.counts[place]


def view(values: array[Any]) -> NDArray[Any]:
    """Return the numbers of an array without a copy. An array cannot grow while a view of it is in use."""
    return np.frombuffer(values, dtype=values.typecode)


class _Lookup(NamedTuple):
    """The rows of ``ids`` in an index of ``size`` rows, after a number of ``removals``."""

    ids: tuple[str, ...]
    size: int
    removals: int
    rows: NDArray[np.int64]


class _Places:
    """The row of each document; new rows are only added at the end."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self.ids = list(ids)
        self.rows = {document_id: row for row, document_id in enumerate(self.ids)}
        # The rows of removed documents.
        self.removed = array("i")
        self._last_lookup: _Lookup | None = None

    def of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of documents, -1 for an unknown document.

        If ``ids`` is a tuple that begins as the last tuple did, the rows of this
        beginning come from the last lookup.
        """
        size = len(self.ids)
        # Counted first: a thread may remove documents meanwhile.
        removals = len(self.removed)
        last = self._last_lookup
        if last is not None and last.ids is ids and last.size == size:
            return last.rows
        unchanged = self._unchanged_rows(ids)
        changed = ids[len(unchanged) :]
        rows = np.fromiter(
            map(self.rows.get, changed, repeat(-1)), dtype=np.int64, count=len(changed)
        )
        rows = np.concatenate([unchanged, rows])
        if isinstance(ids, tuple):
            self._last_lookup = _Lookup(ids, size, removals, rows)
        return rows

    def _unchanged_rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of the first ids that are also the first ids of the last lookup.

        The rows end before the first document that was removed since that lookup.
        """
        last = self._last_lookup
        if last is None or not isinstance(ids, tuple):
            return np.empty(0, dtype=np.int64)
        first_removed = min(self.removed[last.removals :], default=len(self.ids))
        is_stale = (last.rows < 0) | (last.rows >= first_removed)
        stale_places = np.flatnonzero(is_stale)[:1].tolist()
        count = min([len(ids), len(last.ids), *stale_places])
        if ids[:count] != last.ids[:count]:
            count = 0
        return last.rows[:count]


class Similarities(Mapping[str, float]):
    """The similarities of documents by id, without documents with 0 and documents that were changed later."""

    def __init__(self, places: _Places, values: Values) -> None:
        self._places = places
        # The index may drop its last rows, and give them to other documents.
        self._ids = tuple(places.ids)
        # The last value is for unknown documents, and for documents that are added
        # later.
        self._values = np.append(values, 0.0)

    def of(self, ids: Sequence[str]) -> Values:
        """Return the similarities of these documents in their order, 0 for an unknown document."""
        unknown = len(self._values) - 1
        similarities: Values = self._values[np.minimum(self._places.of(ids), unknown)]
        return similarities

    def __getitem__(self, document_id: str) -> float:
        row = self._places.rows.get(document_id, -1)
        if self._ids[row : row + 1] != (document_id,) or not self._values[row]:
            raise KeyError(document_id)
        return float(self._values[row])

    def __iter__(self) -> Iterator[str]:
        rows = self._places.rows
        for row in np.flatnonzero(self._values).tolist():
            if rows.get(self._ids[row]) == row:
                yield self._ids[row]

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Analysis(NamedTuple):
    """The words of a document and its contexts, the weight of each term, and the document's sequence."""

    weights: Mapping[str, float]
    words: tuple[Word, ...]
    sequence: int


class _Occurrences(NamedTuple):
    """The rows with a term of a group, and the weighted number of terms in each row."""

    rows: NDArray[Any]
    counts: NDArray[Any]


class TfidfRanker:
    """A ``FactRanker`` by TF-IDF, weighted as in BM25.

    The score of a document adds up, for each term of the query,
    ``(1 + ln(n)) * idf * w * (k1 + 1) / (w + k1 * (1 - b + b * length / mean
    length))``. The query has the term ``n`` times, and the document ``w`` times,
    contexts and neighbours included. ``k1`` is ``saturation`` and ``b`` is ``length_weight``. The formula is
    equation 3.15 of Robertson and Zaragoza, The Probabilistic Relevance Framework,
    2009. The idf is smoothed as in scikit-learn, ``idf = 1 + ln((1 + documents) / (1 +
    documents with the term))``.

    A short query also finds related words from WordNet, with a twentieth of the weight:
    "profession" finds "nurse", and "allergies" finds "allergic". Short means at most
    eight words, in English or an unknown language.

    Args:
        length_weight: 0..1; 0 ranks long documents as high as short ones.
        saturation: Above 0; the lower, the less a term counts that is repeated.
        neighbour_shares: The weights of the words of the documents before and after a
            document in its sequence, the nearest first.
        vectorizer: A scikit-learn vectorizer (extra ``sklearn``), fitted or not. Its
            preprocessing, tokens, stop words and n-grams replace ours; its vocabulary,
            weights, norms and other limits have no effect. A SettingError for anything
            else.
        languages: In which languages queries may be: codes of ISO 639-1, of "da", "de",
            "en", "es", "fi", "fr", "it", "nl", "no", "pt", "ru" and "sv". None: the
            script and the function words of a query decide, or else the documents. A
            ValueError for any other code.

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
        length_weight: float = LENGTH_WEIGHT,
        saturation: float = SATURATION,
        neighbour_shares: Sequence[float] = (),
        vectorizer: Any = None,
        languages: Sequence[str] | None = None,
    ) -> None:
        if vectorizer is not None and (
            isinstance(vectorizer, type) or not hasattr(vectorizer, "build_analyzer")
        ):
            raise SettingError(
                f"vectorizer must be a vectorizer of scikit-learn; saw {describe_value(vectorizer, with_text=True)}. "
                "Give it an object such as TfidfVectorizer(), with pip install 'llama-index-memory-ext[sklearn]', "
                "or leave it out."
            )
        self._words: Callable[[str], Sequence[Word]] = indexed_words
        if vectorizer is not None:
            analyze = vectorizer.build_analyzer()
            self._words = lambda text: [Word(term, term) for term in analyze(text)]
        self._has_languages = vectorizer is None
        self._possible_languages = checked_languages(languages)
        self._length_weight = length_weight
        self._saturation = saturation
        self._neighbour_shares = neighbour_shares
        self._lock = thread_lock()
        self._postings: defaultdict[str, Posting] = defaultdict(Posting)
        # By row, with gaps where documents were removed.
        self._places = _Places()
        # Tuples of different words: sets would take ten times the memory.
        self._row_words: list[tuple[Word, ...]] = []
        self._lengths = array("d")
        self._sequences = array("i")
        # The number of documents with each word.
        self._documents: Counter[Word] = Counter()
        # The words by their stems, for each language of a query so far. Words without a
        # document stay.
        self._by_stem: dict[str, defaultdict[str, set[Word]]] = {}
        self._stemmed_documents = 0
        # Caches until a document changes.
        self._cached_norms: Values | None = None
        self._cached_shares: list[Values] = []
        self._answers: Recent[str, Similarities] = Recent(_CACHED_ANSWERS)

    def add(self, documents: Iterable[Document]) -> None:
        """Add documents; a document replaces an earlier one with the same id."""
        analyses = {document.id: self._analyze(document) for document in documents}
        with self._lock:
            self.remove(analyses)
            self._forget_answers()
            for document_id, analysis in analyses.items():
                self._append_row(document_id, analysis)
            size = len(self._places.rows)
            if size > max(_MOST_UNSTEMMED, _GROWTH * self._stemmed_documents):
                # Documents are added in the background, so that a question need not
                # wait for the stems.
                self._stemmed_documents = size
                self._stem_words(self._languages(""))

    def remove(self, ids: Iterable[str]) -> None:
        """Remove documents; ignore unknown ids."""
        with self._lock:
            places = self._places.rows
            rows = [
                places.pop(document_id) for document_id in ids if document_id in places
            ]
            if not rows:
                return
            self._places.removed.extend(rows)
            self._forget_answers()
            self._remove_from_postings(rows)
            for row in rows:
                self._empty_row(row)
            self._drop_last_rows()
            if len(self._row_words) - len(places) > max(_MOST_GAPS, len(places)):
                self._close_gaps()

    def similarities(self, query: str) -> Similarities:
        """Return the similarity of each document with a word of the query or a related one, in (0, 1], by id."""
        with self._lock:
            answer = self._answers.get(query)
            if answer is None:
                answer = self._compute_similarities(query)
                self._answers.put(query, answer)
            return answer

    def _analyze(self, document: Document) -> _Analysis:
        words = [*self._words(document.text), *self._words(document.date)]
        counts = Counter(word.term for word in words)
        weights = defaultdict[str, float](float, counts)
        for text, share in document.context:
            context_words = self._words(text)
            words += context_words
            context_counts = Counter(word.term for word in context_words)
            for term, count in context_counts.items():
                weights[term] += share * (1 + log(count))
        return _Analysis(weights, tuple(dict.fromkeys(words)), document.sequence)

    def _append_row(self, document_id: str, analysis: _Analysis) -> None:
        row = len(self._row_words)
        for term, weight in analysis.weights.items():
            posting = self._postings[term]
            posting.rows.append(row)
            posting.counts.append(weight)
        new = [word for word in analysis.words if word not in self._documents]
        self._add_forms(new, self._by_stem)
        self._documents.update(analysis.words)
        self._sequences.append(analysis.sequence)
        self._places.rows[document_id] = row
        self._places.ids.append(document_id)
        self._row_words.append(analysis.words)
        self._lengths.append(sum(analysis.weights.values()))

    def _remove_from_postings(self, rows: Sequence[int]) -> None:
        rows_by_term = defaultdict[str, list[int]](list)
        for row in rows:
            for term in {word.term for word in self._row_words[row]}:
                rows_by_term[term].append(row)
        for term, rows_with_term in rows_by_term.items():
            posting = self._postings[term]
            if len(rows_with_term) < len(posting.rows):
                posting.remove(rows_with_term)
            else:
                del self._postings[term]

    def _empty_row(self, row: int) -> None:
        for word in self._row_words[row]:
            self._documents[word] -= 1
            if not self._documents[word]:
                del self._documents[word]
        self._row_words[row] = ()
        self._lengths[row] = 0.0

    def _drop_last_rows(self) -> None:
        """Drop the removed rows at the end, so that the documents around them are neighbours."""
        ids = self._places.ids
        while ids and self._places.rows.get(ids[-1]) != len(ids) - 1:
            for values in (ids, self._row_words, self._lengths, self._sequences):
                values.pop()

    def _forget_answers(self) -> None:
        self._cached_norms = None
        self._cached_shares = []
        self._answers = Recent(_CACHED_ANSWERS)

    def _compute_similarities(self, query: str) -> Similarities:
        codes = self._languages(query)
        self._stem_words(codes)
        weights = self._query_weights(query, codes)
        if self._has_languages and not codes and len(weights) <= _SHORT_QUERY:
            weights = self._with_related(weights)
        scores = self._scores(weights)
        # Rounded, so that documents with the same terms are equally similar after any
        # additions and removals.
        return Similarities(self._places, np.round(divided_by_best(scores), 9))

    def _query_weights(self, query: str, codes: Sequence[str]) -> dict[Group, float]:
        """Return the weight of each word of a query that is no function word: ``1 + ln(count)``."""
        counts = Counter[Group]()
        for word in self._words(query):
            if not codes:
                counts[word.term,] += 1
            elif not is_function_word(word.written, codes):
                counts[self._forms_of(word, codes)] += 1
        return {group: 1 + log(count) for group, count in counts.items()}

    def _forms_of(self, word: Word, codes: Iterable[str]) -> Group:
        """Return the term of a word, and of all words in the documents with its stem."""
        terms = {word.term}
        for code in codes:
            for form in self._by_stem[code].get(term_of(word.written, code), ()):
                if form in self._documents:
                    terms.add(form.term)
        return tuple(sorted(terms))

    def _with_related(self, weights: Mapping[Group, float]) -> dict[Group, float]:
        """Return the weights of an English query, and a weight for the related words of each word."""
        all_weights = dict(weights)
        for (term,), weight in weights.items():
            related = tuple(
                candidate
                for candidate in related_terms(term)
                if candidate in self._postings
            )
            if related:
                before = all_weights.get(related, 0.0)
                all_weights[related] = before + _RELATED_WEIGHT * weight
        return all_weights

    def _languages(self, query: str) -> tuple[str, ...]:
        """Return the languages of a query or, if that is unclear, of the documents; without English."""
        if not self._has_languages:
            return ()
        codes = languages_of(query, self._possible_languages) or languages_in(
            self._frequency, len(self._places.rows)
        )
        return tuple(code for code in codes if code != "en")

    def _stem_words(self, codes: Iterable[str]) -> None:
        """Stem all words of the documents in the languages that are new here. This takes long for many words."""
        new = [code for code in codes if code not in self._by_stem]
        for code in new:
            self._by_stem[code] = defaultdict(set)
        self._add_forms(self._documents, new)

    def _add_forms(self, words: Collection[Word], codes: Iterable[str]) -> None:
        for code in codes:
            for word in words:
                # Behind \u2e80 are the scripts whose terms are pairs of characters.
                if word.written.isalpha() and word.written < "\u2e80":
                    self._by_stem[code][term_of(word.written, code)].add(word)

    def _scores(self, weights: Mapping[Group, float]) -> Values:
        """Return the score of each row for a query of groups of terms with these weights."""
        scores = np.zeros(len(self._row_words))
        norms = self._norms()
        # Term by term: in a new process, arrays of all terms together come from the system
        # for each question anew, which takes longer than the scores.
        for group, weight in weights.items():
            occurrences = self._occurrences(group)
            if self._neighbour_shares:
                own = np.zeros(len(scores))
                own[occurrences.rows] = occurrences.counts
                counts = self._with_neighbours(own)
                rows = np.flatnonzero(counts)
                occurrences = _Occurrences(rows, counts[rows])
            factor = weight * self._idf(len(occurrences.rows)) * (self._saturation + 1)
            divisors = norms.take(occurrences.rows)
            divisors += occurrences.counts
            # Each further occurrence of a term adds less.
            shares = occurrences.counts * factor
            shares /= divisors
            # The rows of a group are unique.
            scores[occurrences.rows] += shares
        return scores

    def _occurrences(self, group: Group) -> _Occurrences:
        postings = [self._postings[term] for term in group if term in self._postings]
        if len(postings) == 1:
            return _Occurrences(view(postings[0].rows), view(postings[0].counts))
        if not postings:
            return _Occurrences(np.empty(0, np.intc), np.empty(0))
        # Faster than sorting the rows.
        by_row = np.bincount(
            np.concatenate([view(posting.rows) for posting in postings]),
            np.concatenate([view(posting.counts) for posting in postings]),
        )
        rows = np.flatnonzero(by_row > 0)
        return _Occurrences(rows, by_row[rows])

    def _with_neighbours(self, own: Values) -> Values:
        """Return a number for each row, with a share of the numbers of the rows around it."""
        # All rows, because a frequent term is near most of them.
        sums = own.copy()
        for distance, shares in enumerate(self._shares_of_neighbours(), 1):
            sums[distance:] += shares * own[:-distance]
            sums[:-distance] += shares * own[distance:]
        return sums

    def _shares_of_neighbours(self) -> list[Values]:
        """Return the share between each row and the row at each distance behind it, 0 for another sequence."""
        if not self._cached_shares:
            sequences = view(self._sequences)
            self._cached_shares = [
                share * (sequences[distance:] == sequences[:-distance])
                for distance, share in enumerate(self._neighbour_shares, 1)
            ]
        return self._cached_shares

    def _frequency(self, term: str) -> int:
        if term in self._postings:
            return len(self._postings[term].rows)
        return 0

    def _idf(self, frequency: int) -> float:
        return 1 + log((1 + len(self._places.rows)) / (1 + frequency))

    def _norms(self) -> Values:
        """Return ``k1 * (1 - b + b * length / mean length)`` of each row."""
        if self._cached_norms is None:
            lengths = self._with_neighbours(view(self._lengths))
            mean = lengths.sum() / max(len(self._places.rows), 1)
            relative = lengths / mean if mean else lengths
            self._cached_norms = self._saturation * (
                1 - self._length_weight + self._length_weight * relative
            )
        return self._cached_norms

    def _close_gaps(self) -> None:
        """Number the rows anew. The places are a new object, because earlier answers use the old one."""
        rows = sorted(self._places.rows.values())
        new_rows = np.zeros(len(self._row_words), dtype=np.intc)
        new_rows[rows] = np.arange(len(rows))
        for posting in self._postings.values():
            posting.rows = array("i", new_rows[view(posting.rows)].tobytes())
        self._places = _Places(self._places.ids[row] for row in rows)
        self._row_words = [self._row_words[row] for row in rows]
        self._sequences = array("i", (self._sequences[row] for row in rows))
        self._lengths = array("d", (self._lengths[row] for row in rows))


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
        similarities = values_of(ranker.similarities(query), ids)
        total += share * divided_by_best(similarities)
    return divided_by_best(total)


def values_of(similarities: Mapping[str, float], ids: Sequence[str]) -> Values:
    """Return the similarities of these documents in their order, 0 for a document that is missing."""
    if isinstance(similarities, Similarities):
        return similarities.of(ids)
    return np.fromiter(
        (similarities.get(name, 0.0) for name in ids), dtype=np.float64, count=len(ids)
    )


def divided_by_best(values: Values) -> Values:
    """Return the values, at least 0, divided by the highest; zeros as they are."""
    return values / (values.max(initial=0.0) or 1.0)
