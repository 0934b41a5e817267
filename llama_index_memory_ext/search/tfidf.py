"""Finds documents by their words."""

from __future__ import annotations

import logging
import threading
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_index_memory_ext.background.locks import Recent
from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.language.related import related_terms
from llama_index_memory_ext.language.tokens import (
    Word,
    checked_languages,
    indexed_words,
    is_function_word,
    languages_in,
    languages_of,
    term_of,
)
from llama_index_memory_ext.settings import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


logger = logging.getLogger(__name__)

Values: TypeAlias = NDArray[np.float64]
# The terms that one word of a query means.
Group: TypeAlias = tuple[str, ...]

# The weight of a word in the source of a fact; a word in its text has 1.
SOURCE_SHARE = 0.3
# The weight of a turn before the question; the question has 1.
EARLIER_WEIGHT = 0.2
# b and k1 of BM25.
LENGTH_WEIGHT, _SATURATION = 0.4, 1.0
# The weight of what the best texts have in common, of how many of these, and by how many of their terms.
FEEDBACK_WEIGHT, _FEEDBACK_TEXTS, _FEEDBACK_TERMS = 0.4, 5, 15
# The weight of all words that are related to one of a query, if the query has no more different words than that: a
# longer one has enough of its own.
_RELATED_WEIGHT, _SHORT_QUERY = 0.05, 8
# So many rows are removed one by one, and so many gaps may stay where rows were.
_FEW, _MOST_GAPS = 64, 64
# So many answers are kept until a document changes: the turns before a question are asked for again with the next one.
_ANSWERS = 4
# By how much the documents must have grown before what their languages need is made.
_GROWTH = 1.25


class Document(NamedTuple):
    """A text to be found. ``context`` is other texts by whose words it is found too, each with its weight in 0..1."""

    id: str
    text: str
    context: tuple[tuple[str, float], ...] = ()
    date: str = ""


class Similar(Protocol):
    """Computes how similar documents are to a query."""

    def similarities(self, query: str) -> Mapping[str, float]:
        """Returns the similarity of each document to the query, 0..1, by id; a missing document has 0.

        Only the proportions within one answer matter. A query without a usable word (empty, only stop words or emoji)
        gives an empty mapping. No string raises an error.
        """


class FactRanker(Similar, Protocol):
    """Holds the documents of one namespace, and computes how similar they are to a query.

    Threads may call it at the same time: ``similarities`` sees each ``add`` or ``remove`` completely or not at all.
    """

    def add(self, documents: Iterable[Document]) -> None:
        """Adds documents; one with a known id replaces the document before."""

    def remove(self, ids: Iterable[str]) -> None:
        """Removes documents, so that they have no influence any more; unknown ids are ignored."""


@contextmanager
def sparing(failures: Counter[str], failed: str, drop: Callable[[], object]) -> Iterator[None]:
    """Let no failure of an index cost an answer: end the block, and ``drop`` the index, so that it is built anew.

    ``failures`` counts the failures by the type of the error, each of which is logged once.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - an index may be broken in any way, and a ranker may be anybody's own
        drop()
        kind = type(error).__name__
        failures[kind] += 1
        if failures[kind] == 1:
            logger.warning("%s (%s); nothing is lost, and the next question builds the index anew.", failed, kind)


class Posting:
    """The rows with a term, in ascending order, and how often each has it."""

    __slots__ = ("counts", "rows")

    def __init__(self) -> None:
        self.rows, self.counts = array("i"), array("d")

    def remove(self, rows: Sequence[int]) -> None:
        """Removes rows, which must have the term."""
        if len(rows) > _FEW:
            kept = np.isin(view(self.rows), rows, invert=True)
            self.rows = array("i", view(self.rows)[kept].tobytes())
            self.counts = array("d", view(self.counts)[kept].tobytes())
            return
        for row in rows:
            place = bisect_left(self.rows, row)
            del self.rows[place], self.counts[place]


def view(values: array[Any]) -> NDArray[Any]:
    """Returns the numbers of an array without a copy. An array cannot grow while a view of it is in use."""
    return np.frombuffer(values, dtype=values.typecode)


class _Places:
    """The row of each document; new rows are only added at the end."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self.ids = list(ids)
        self.rows = {document_id: row for row, document_id in enumerate(self.ids)}
        self._asked: tuple[tuple[str, ...], int, NDArray[np.int64]] | None = None

    def of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Returns the rows of documents, -1 for an unknown one. Of a tuple that is asked for again they are known."""
        asked, length = self._asked, len(self.ids)
        if asked is not None and asked[0] is ids and asked[1] == length:
            return asked[2]
        rows = np.fromiter(map(self.rows.get, ids, repeat(-1)), dtype=np.int64, count=len(ids))
        if isinstance(ids, tuple):
            self._asked = (ids, length, rows)
        return rows


class Similarities(Mapping[str, float]):
    """The similarities of documents by id, without those of 0 and of documents that were changed later."""

    def __init__(self, places: _Places, values: Values) -> None:
        # The last value is that of unknown documents and of those that were added later.
        self._places, self._values = places, np.append(values, 0.0)

    def of(self, ids: Sequence[str]) -> Values:
        """Returns the similarities of these documents in their order, 0 for an unknown document."""
        found: Values = self._values[np.minimum(self._places.of(ids), len(self._values) - 1)]
        return found

    def __getitem__(self, document_id: str) -> float:
        value: float = self.of([document_id]).item()
        if not value:
            raise KeyError(document_id)
        return value

    def __iter__(self) -> Iterator[str]:
        return (self._places.ids[row] for row in np.flatnonzero(self._values).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._values))


class TfidfRanker:
    """A ``FactRanker`` by TF-IDF, weighted as in BM25.

    A term that a document has ``w`` times, contexts included, adds for each time that the query has it
    ``idf^2 * w * (k1 + 1) / (w + k1 * (1 - b + b * length / mean length))``, with ``k1 = 1`` and ``b`` the
    ``length_weight`` (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009, equation 3.15), and
    scikit-learn's smoothed ``idf = 1 + ln((1 + documents) / (1 + documents with the term))``. The idf is squared as in
    a product of two TF-IDF vectors. A term that the query has ``n`` times counts ``1 + ln(n)`` times.

    More than five documents are then ranked anew with what the best ones have in common (Rocchio's feedback, without a
    user): the 15 heaviest terms of the best five, each weighted by its document's score, are a second query. Its
    scores, divided by their best and multiplied by ``feedback_weight``, are added to the first ones, divided by theirs,
    of documents that share a term with the query.

    A query of at most eight words in English, or in no language that is told, also finds what its words are related to
    by WordNet, with a twentieth of their weight: "profession" finds "nurse", and "allergies" finds "allergic".

    Args:
        length_weight: 0..1; 0 ranks long documents as high as short ones.
        feedback_weight: At least 0; 0 switches the second query off.
        vectorizer: A scikit-learn vectorizer (extra ``sklearn``), fitted or not, whose preprocessing, tokens, stop
            words and n-grams are used instead of ours. Its vocabulary, weights, norms and other limits have no effect.
            A SettingError for anything else.
        languages: In which languages queries may be: codes of ISO 639-1, of "da", "de", "en", "es", "fi", "fr", "it",
            "nl", "no", "pt", "ru" and "sv". None: each query tells by its script and its function words, or else the
            documents do. A ValueError for any other code.

    The words of a query find all forms that have the same stem in its language, in documents of any language: "Wo
    wohne ich?" finds "Wohnt in München". Function words of that language find nothing. Of languages without a stemmer,
    such as Arabic, Polish or Hindi, whole words are found in the form in which they are asked for; of scripts without
    spaces, such as Chinese, Japanese and Thai, and of Korean, pairs of neighbouring characters.
    """

    def __init__(
        self,
        *,
        length_weight: float = LENGTH_WEIGHT,
        feedback_weight: float = FEEDBACK_WEIGHT,
        vectorizer: Any = None,
        languages: Sequence[str] | None = None,
    ) -> None:
        if vectorizer is not None and (isinstance(vectorizer, type) or not hasattr(vectorizer, "build_analyzer")):
            raise SettingError(
                f"vectorizer must be a vectorizer of scikit-learn; saw {shown(vectorizer, with_text=True)}. Give it an "
                "object such as TfidfVectorizer(), with pip install 'llama-index-memory-ext[sklearn]', or leave it out."
            )
        self._words: Callable[[str], Sequence[Word]] = indexed_words
        if vectorizer is not None:
            analyze = vectorizer.build_analyzer()
            self._words = lambda text: [Word(term, term) for term in analyze(text)]
        self._has_languages, self._among = vectorizer is None, checked_languages(languages)
        self._length_weight, self._feedback_weight = length_weight, feedback_weight
        self._lock = threading.RLock()
        self._postings: defaultdict[str, Posting] = defaultdict(Posting)
        # By row, with gaps where documents were removed.
        self._places = _Places()
        self._row_words: list[frozenset[Word]] = []
        self._lengths = array("d")
        # In how many documents each word is; of each language that was asked for, the words by their stems, also those
        # that no document has any more; and of how many documents the last languages were prepared.
        self._documents: Counter[Word] = Counter()
        self._by_stem: dict[str, defaultdict[str, set[Word]]] = {}
        self._prepared_of = 0
        # Until a document changes. These are views, too: an array cannot grow while there is one.
        self._cached_norms: Values | None = None
        self._known: dict[Group, tuple[NDArray[np.intc], Values]] = {}
        self._answers: Recent[str, Similarities] = Recent(_ANSWERS)

    def add(self, documents: Iterable[Document]) -> None:
        """Add documents; one with a known id replaces the document before."""
        added: dict[str, tuple[dict[str, float], frozenset[Word]]] = {}
        for document in documents:
            words = [*self._words(document.text), *self._words(document.date)]
            weights = defaultdict[str, float](float, Counter(word.term for word in words))
            for text, share in document.context:
                around = self._words(text)
                words += around
                for term, count in Counter(word.term for word in around).items():
                    weights[term] += share * (1 + log(count))
            added[document.id] = weights, frozenset(words)
        with self._lock:
            self.remove(added)
            self._forget_answers()
            for document_id, (counts, kept) in added.items():
                row = len(self._row_words)
                for term, weight in counts.items():
                    self._postings[term].rows.append(row)
                    self._postings[term].counts.append(weight)
                self._add_forms([word for word in kept if word not in self._documents], self._by_stem)
                self._documents.update(kept)
                self._places.rows[document_id] = row
                self._places.ids.append(document_id)
                self._row_words.append(kept)
                self._lengths.append(sum(counts.values()))
            if len(self._places.rows) >= _GROWTH * self._prepared_of:
                # What a question in these languages needs is made now, because documents are added in the background.
                self._prepared_of = len(self._places.rows)
                self._prepare(self._languages(""))

    def remove(self, ids: Iterable[str]) -> None:
        """Remove documents; unknown ids are ignored."""
        with self._lock:
            places = self._places.rows
            removed = [places.pop(document_id) for document_id in ids if document_id in places]
            if removed:
                self._forget_answers()
            rows_by_term = defaultdict[str, list[int]](list)
            for row in removed:
                for term in {word.term for word in self._row_words[row]}:
                    rows_by_term[term].append(row)
                for word in self._row_words[row]:
                    self._documents[word] -= 1
                    if not self._documents[word]:
                        del self._documents[word]
                self._lengths[row], self._row_words[row] = 0.0, frozenset()
            for term, rows in rows_by_term.items():
                if len(rows) < len(self._postings[term].rows):
                    self._postings[term].remove(rows)
                else:
                    del self._postings[term]
            if len(self._row_words) - len(places) > max(_MOST_GAPS, len(places)):
                self._close_gaps()

    def similarities(self, query: str) -> Similarities:
        """Return the similarity of each document with a word of the query or a related one, in (0, 1], by id."""
        with self._lock:
            answer = self._answers.get(query)
            if answer is None:
                codes, counts = self._languages(query), Counter[Group]()
                self._prepare(codes)
                for word in self._words(query):
                    if not codes:
                        counts[word.term,] += 1
                    elif not is_function_word(word.written, codes):
                        forms = [self._by_stem[code].get(term_of(word.written, code), ()) for code in codes]
                        known = {form.term for form in chain(*forms) if form in self._documents}
                        counts[tuple(sorted({word.term, *known}))] += 1
                weights: Mapping[Group, float] = {group: 1 + log(count) for group, count in counts.items()}
                if self._has_languages and not codes and len(weights) <= _SHORT_QUERY:
                    weights = self._with_related(weights)
                scores = self._scores(weights)
                if scores.any():
                    scores = self._with_feedback(scores, codes)
                # Rounded, so that documents with the same terms are equally similar after any additions and removals.
                answer = Similarities(self._places, np.round(divided_by_best(scores), 9))
                self._answers.put(query, answer)
            return answer

    def _with_related(self, weights: Mapping[Group, float]) -> Mapping[Group, float]:
        """Return the weights of a query in English with those of what its words are related to."""
        found = dict(weights)
        for (term,), weight in weights.items():
            related = tuple(other for other in related_terms(term) if other in self._postings)
            if related:
                found[related] = found.get(related, 0.0) + _RELATED_WEIGHT * weight
        return found

    def _forget_answers(self) -> None:
        self._known.clear()
        self._cached_norms, self._answers = None, Recent(_ANSWERS)

    def _languages(self, query: str) -> tuple[str, ...]:
        """Return in which languages other than English a query may be; if nothing tells, those of the documents."""
        if not self._has_languages:
            return ()
        codes = languages_of(query, self._among) or languages_in(self._frequency, len(self._places.rows))
        return tuple(code for code in codes if code != "en")

    def _prepare(self, codes: Iterable[str]) -> None:
        """Stem all words in these languages, which takes a while for many words."""
        new = {code: defaultdict[str, set[Word]](set) for code in codes if code not in self._by_stem}
        self._by_stem |= new
        self._add_forms(self._documents, new)

    def _add_forms(self, words: Collection[Word], codes: Iterable[str]) -> None:
        for code in codes:
            for word in words:
                # Behind \u2e80 are the scripts whose terms are pairs of characters.
                if word.written.isalpha() and word.written < "\u2e80":
                    self._by_stem[code][term_of(word.written, code)].add(word)

    def _scores(self, weights: Mapping[Group, float]) -> Values:
        """Return the score of each row for a query of groups of terms with these weights."""
        all_rows: list[NDArray[np.intc]] = []
        values: list[Values] = []
        for group, weight in weights.items():
            if group not in self._known:
                postings = [self._postings[term] for term in group if term in self._postings] or [Posting()]
                rows, counts = view(postings[0].rows), view(postings[0].counts)
                if len(postings) > 1:
                    rows, places = np.unique(np.concatenate([view(one.rows) for one in postings]), return_inverse=True)
                    counts = np.bincount(places, np.concatenate([view(one.counts) for one in postings]))
                # What each row has of the terms grows ever less with their count.
                self._known[group] = rows, counts * (_SATURATION + 1) / (counts + self._norms()[rows])
            rows, shares = self._known[group]
            all_rows.append(rows)
            values.append(weight * self._idf(len(rows)) ** 2 * shares)
        # All at once: of many short arrays each takes longer than its numbers.
        size = len(self._row_words)
        if not values:
            return np.zeros(size)
        weighted: Values = np.concatenate(values)
        return np.bincount(np.concatenate(all_rows), weights=weighted, minlength=size).astype(np.float64, copy=False)

    def _with_feedback(self, scores: Values, codes: Sequence[str]) -> Values:
        """Return the scores with those for what the best documents have in common; the best score is about 1."""
        first = divided_by_best(scores)
        # Of so few that all are among the best, nothing is learned.
        if not self._feedback_weight or np.count_nonzero(scores) <= _FEEDBACK_TEXTS:
            return first
        # Of equal documents the id decides, because rows depend on the past.
        rounded, norms = np.round(first, 9), self._norms()
        least = np.partition(rounded, len(rounded) - _FEEDBACK_TEXTS)[len(rounded) - _FEEDBACK_TEXTS]
        best = np.flatnonzero((rounded >= least) & (rounded > 0)).tolist()
        best.sort(key=lambda row: (-rounded[row], self._places.ids[row]))
        weights = defaultdict[str, float](float)
        for row in best[:_FEEDBACK_TEXTS]:
            score, norm = first[row].item(), norms[row].item()
            for term in {word.term for word in self._row_words[row]}:
                posting = self._postings[term]
                count = posting.counts[bisect_left(posting.rows, row)]
                weights[term] += score * count * (_SATURATION + 1) / (count + norm)
        telling = [term for term in weights if not (codes and is_function_word(term, codes))]
        telling.sort(key=lambda term: (-weights[term] * self._idf(self._frequency(term)), term))
        common: dict[Group, float] = {(term,): weights[term] for term in telling[:_FEEDBACK_TERMS]}
        second = np.where(scores > 0, self._scores(common), 0.0)
        return first + self._feedback_weight * divided_by_best(second)

    def _frequency(self, term: str) -> int:
        return len(self._postings[term].rows) if term in self._postings else 0

    def _idf(self, frequency: int) -> float:
        return 1 + log((1 + len(self._places.rows)) / (1 + frequency))

    def _norms(self) -> Values:
        """Return what each row adds to the count of a term in it, before this is divided by the sum."""
        if self._cached_norms is None:
            lengths = view(self._lengths)
            mean = lengths.sum() / max(len(self._places.rows), 1)
            relative = lengths / mean if mean else lengths
            self._cached_norms = _SATURATION * (1 - self._length_weight + self._length_weight * relative)
        return self._cached_norms

    def _close_gaps(self) -> None:
        """Number the rows anew. The places are a new object, because earlier answers use the old one."""
        kept = sorted(self._places.rows.values())
        new_rows = np.zeros(len(self._row_words), dtype=np.intc)
        new_rows[kept] = np.arange(len(kept))
        for posting in self._postings.values():
            posting.rows = array("i", new_rows[view(posting.rows)].tobytes())
        self._places = _Places(self._places.ids[row] for row in kept)
        self._row_words = [self._row_words[row] for row in kept]
        self._lengths = array("d", (self._lengths[row] for row in kept))


def similarities_with_context(
    ranker: Similar, ids: Sequence[str], question: str, context: Sequence[str], turn_weight: float = EARLIER_WEIGHT
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
