"""Ranks texts for a query by TF-IDF."""

from __future__ import annotations

import re
import threading
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat
from math import log
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_index_memory_ext.background.locks import Recent
from llama_index_memory_ext.search.forms import Group, Wording
from llama_index_memory_ext.search.postings import Posting, merged, view
from llama_index_memory_ext.search.tokenization import Word, indexed_words, terms_of

Values: TypeAlias = NDArray[np.float64]

# The weight of a word in the source of a fact; a word in its text has 1.
SOURCE_SHARE = 0.3
# The weight of a turn before the question; the question has 1.
EARLIER_WEIGHT = 0.2
# b and k1 of BM25.
LENGTH_WEIGHT, _SATURATION = 0.4, 1.0
# The weight of what the best texts have in common, of how many of these, and by how many of their terms.
FEEDBACK_WEIGHT, _FEEDBACK_TEXTS, _FEEDBACK_TERMS = 0.4, 5, 15
# A name that opens at least this share of the texts (it says who speaks, or who a text is about), and the factor of
# these texts for a question that has one such name.
_OPENING_SHARE, _SUBJECT_FACTOR = 0.1, 1.6
_NAME = re.compile(r"[^\W\d_][\w'\u2019-]*")
_MOST_GAPS = 64
# So many answers are kept until a document changes: the turns before a question are asked for again with the next one.
_ANSWERS = 4


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


class Vectorizer(Protocol):
    """What is used of scikit-learn's ``CountVectorizer``, ``TfidfVectorizer`` and ``HashingVectorizer``."""

    def build_analyzer(self) -> Callable[[str], Iterable[str]]:
        """Returns a function that splits a text into terms."""


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

    Where at least a tenth of the documents begin with the same name, as with "Ann: Hello", the documents of the one
    name in a question count 1.6 times.

    Args:
        length_weight: 0..1; 0 ranks long documents as high as short ones.
        feedback_weight: At least 0; 0 switches the second query off.
        vectorizer: A scikit-learn vectorizer, fitted or not, whose preprocessing, tokens, stop words and n-grams are
            used instead of ours. Its vocabulary, weights, norms and other limits have no effect.
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
        vectorizer: Vectorizer | None = None,
        languages: Sequence[str] | None = None,
    ) -> None:
        self._analyze: Callable[[str], Iterable[str]] = vectorizer.build_analyzer() if vectorizer else terms_of
        self._wording = None if vectorizer else Wording(languages)
        self._length_weight, self._feedback_weight = length_weight, feedback_weight
        self._lock = threading.RLock()
        self._postings: defaultdict[str, Posting] = defaultdict(Posting)
        # By row, with gaps where documents were removed.
        self._places = _Places()
        self._terms: list[tuple[str, ...]] = []
        self._lengths, self._openings = array("d"), array("i")
        # The number of each name that opens a text, and how many texts it opens.
        self._names: dict[str, int] = {}
        self._opened: Counter[int] = Counter()
        self._cached_norms: Values | None = None
        # Until a document changes. These are views, too: an array cannot grow while there is one.
        self._known: dict[Group, tuple[NDArray[np.intc], Values]] = {}
        self._answers: Recent[str, Similarities] = Recent(_ANSWERS)

    def add(self, documents: Iterable[Document]) -> None:
        """Adds documents; one with a known id replaces the document before."""
        added: dict[str, tuple[dict[str, float], str]] = {}
        words: dict[str, list[Word]] = {}
        for document in documents:
            added[document.id] = self._weights(document), self._opening(document.text)
            if self._wording is not None:
                texts = (document.text, *(text for text, _ in document.context))
                words[document.id] = [word for text in texts for word in indexed_words(text)]
        with self._lock:
            self.remove(added)
            self._forget_answers()
            for document_id, (weights, opening) in added.items():
                row = len(self._terms)
                for term, weight in weights.items():
                    self._postings[term].append(row, weight)
                self._places.rows[document_id] = row
                self._places.ids.append(document_id)
                self._terms.append(tuple(weights))
                self._lengths.append(sum(weights.values()))
                self._openings.append(self._names.setdefault(opening, len(self._names)))
                self._opened[self._openings[-1]] += 1
            if self._wording is not None:
                self._wording.learn(words, self._frequency, len(self._places.rows))

    def remove(self, ids: Iterable[str]) -> None:
        """Removes documents; unknown ids are ignored."""
        with self._lock:
            places = self._places.rows
            removed = [places.pop(document_id) for document_id in ids if document_id in places]
            if removed:
                self._forget_answers()
            for term, rows in self._rows_by_term(removed).items():
                posting = self._postings[term]
                posting.remove(rows)
                if not posting.rows:
                    del self._postings[term]
            for row in removed:
                if self._wording is not None:
                    self._wording.forget(self._places.ids[row])
                self._lengths[row] = 0.0
                self._opened[self._openings[row]] -= 1
                self._terms[row] = ()
            if len(self._terms) - len(places) > max(_MOST_GAPS, len(places)):
                self._close_gaps()

    def similarities(self, query: str) -> Similarities:
        """Returns the similarity of each document that shares a term with the query, in (0, 1], the best 1, by id."""
        with self._lock:
            answer = self._answers.get(query)
            if answer is None:
                counts, ignored = self._groups(query)
                scores = self._scores({group: 1 + log(count) for group, count in counts.items()})
                if scores.any():
                    scores = self._with_feedback(scores, ignored) * self._subject_factors(query)
                # Rounded, so that documents with the same terms are equally similar after any additions and removals.
                answer = Similarities(self._places, np.round(divided_by_best(scores), 9))
                self._answers.put(query, answer)
            return answer

    def _forget_answers(self) -> None:
        self._known.clear()
        self._cached_norms, self._answers = None, Recent(_ANSWERS)

    def _weights(self, document: Document) -> dict[str, float]:
        """Returns the count of each term; a context adds ``1 + ln(count)``, times its weight."""
        counts = defaultdict[str, float](float, Counter([*self._analyze(document.text), *self._analyze(document.date)]))
        for text, share in document.context:
            for term, count in Counter(self._analyze(text)).items():
                counts[term] += share * (1 + log(count))
        return counts

    def _groups(self, query: str) -> tuple[Counter[Group], AbstractSet[str]]:
        """Returns how often a query has each group of terms, and the terms that feedback does not use."""
        if self._wording is None:
            return Counter((term,) for term in self._analyze(query)), frozenset()
        return self._wording.groups(query, self._frequency, len(self._places.rows))

    def _scores(self, weights: Mapping[Group, float]) -> Values:
        """Returns the score of each row for a query of groups of terms with these weights."""
        found = [(self._saturated(group), weight) for group, weight in weights.items()]
        values = [weight * self._idf(len(rows)) ** 2 * shares for (rows, shares), weight in found]
        if not values:
            return np.zeros(len(self._terms))
        # All at once: of many short arrays each takes longer than its numbers.
        rows = np.concatenate([rows for (rows, _), _ in found])
        return np.bincount(rows, np.concatenate(values), minlength=len(self._terms))

    def _saturated(self, group: Group) -> tuple[NDArray[np.intc], Values]:
        """Returns the rows with any of these terms, and what each has of them, which grows ever less with the count."""
        if group not in self._known:
            rows, counts = merged([self._postings[term] for term in group if term in self._postings])
            self._known[group] = rows, counts * (_SATURATION + 1) / (counts + self._norms()[rows])
        return self._known[group]

    def _with_feedback(self, scores: Values, ignored: AbstractSet[str]) -> Values:
        """Returns the scores with those for what the best documents have in common; the best score is about 1."""
        first = divided_by_best(scores)
        # Of so few that all are among the best, nothing is learned.
        if not self._feedback_weight or np.count_nonzero(scores) <= _FEEDBACK_TEXTS:
            return first
        second = np.where(scores > 0, self._scores(self._common_terms(first, ignored)), 0.0)
        return first + self._feedback_weight * divided_by_best(second)

    def _common_terms(self, scores: Values, ignored: AbstractSet[str]) -> dict[Group, float]:
        """Returns the heaviest terms of the best documents as a query."""
        norms, weights = self._norms(), defaultdict[str, float](float)
        for row in self._best_rows(scores):
            score, norm = scores[row].item(), norms[row].item()
            for term in self._terms[row]:
                count = self._postings[term].count_in(row)
                weights[term] += score * count * (_SATURATION + 1) / (count + norm)
        telling = weights.keys() - ignored
        heaviest = sorted(telling, key=lambda term: (-weights[term] * self._idf(self._frequency(term)), term))
        return {(term,): weights[term] for term in heaviest[:_FEEDBACK_TERMS]}

    def _best_rows(self, scores: Values) -> list[int]:
        """Returns the rows of the best documents. Of equal ones the id decides, because rows depend on the past."""
        rounded, place = np.round(scores, 9), max(len(scores) - _FEEDBACK_TEXTS, 0)
        rows = np.flatnonzero((rounded >= np.partition(rounded, place)[place]) & (rounded > 0)).tolist()
        return sorted(rows, key=lambda row: (-rounded[row], self._places.ids[row]))[:_FEEDBACK_TEXTS]

    def _subject_factors(self, query: str) -> Values | float:
        """Returns the factor of each row for whom the query is about."""
        least = max(_OPENING_SHARE * len(self._places.rows), 2)
        terms = {term for name in _names_in(query) for term in self._analyze(name)}
        names = {term for term in terms if self._opened[self._names.get(term, -1)] >= least}
        if len(names) != 1:
            return 1.0
        return np.where(view(self._openings) == self._names[names.pop()], _SUBJECT_FACTOR, 1.0)

    def _opening(self, text: str) -> str:
        """Returns the term of the name with which a text begins; "" if it begins with none."""
        match = _NAME.search(text[:100])
        terms = list(self._analyze(match.group())) if match and match.group()[0].isupper() else []
        return terms[0] if len(terms) == 1 else ""

    def _frequency(self, term: str) -> int:
        return len(self._postings[term].rows) if term in self._postings else 0

    def _idf(self, frequency: int) -> float:
        return 1 + log((1 + len(self._places.rows)) / (1 + frequency))

    def _norms(self) -> Values:
        """Returns what each row adds to the count of a term in it, before this is divided by the sum."""
        if self._cached_norms is None:
            lengths = view(self._lengths)
            mean = lengths.sum() / max(len(self._places.rows), 1)
            relative = lengths / mean if mean else lengths
            self._cached_norms = _SATURATION * (1 - self._length_weight + self._length_weight * relative)
        return self._cached_norms

    def _rows_by_term(self, rows: Iterable[int]) -> dict[str, list[int]]:
        found = defaultdict[str, list[int]](list)
        for row in rows:
            for term in self._terms[row]:
                found[term].append(row)
        return found

    def _close_gaps(self) -> None:
        """Numbers the rows anew. The places are a new object, because earlier answers use the old one."""
        kept = sorted(self._places.rows.values())
        new_rows = np.zeros(len(self._terms), dtype=np.intc)
        new_rows[kept] = np.arange(len(kept))
        for posting in self._postings.values():
            posting.rows = array("i", new_rows[view(posting.rows)].tobytes())
        self._places = _Places(self._places.ids[row] for row in kept)
        self._terms = [self._terms[row] for row in kept]
        self._openings = array("i", (self._openings[row] for row in kept))
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


def _names_in(question: str) -> Iterator[str]:
    """Yields the words of a question that are written as names. Any word may be so at its beginning."""
    for match in _NAME.finditer(question):
        if match.group()[0].isupper():
            name = re.sub(r"['\u2019]s?$", "", match.group())
            if name != match.group() or question[: match.start()].strip():
                yield name
