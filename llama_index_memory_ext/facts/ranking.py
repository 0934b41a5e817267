"""Scores facts for a question, chooses facts within a token limit, and explains why."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter, defaultdict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from math import log
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.fact import (
    CONFIDENCE_WEIGHT,
    SIMILARITY_WEIGHT,
    Fact,
    utc_now,
)
from llama_index_memory_ext.search.embeddings import EmbeddingRanker
from llama_index_memory_ext.search.tfidf import (
    SOURCE_SHARE,
    Document,
    FactRanker,
    TfidfRanker,
    similarities_with_context,
)
from llama_index_memory_ext.text.entries import escape_tags
from llama_index_memory_ext.text.parts import Part
from llama_index_memory_ext.text.tokens import TokenCounter, take_fitting
from llama_index_memory_ext.words import phrases
from llama_index_memory_ext.words.dates import Period, date_words
from llama_index_memory_ext.words.tokens import (
    languages_of,
    related_terms,
    terms_in,
    words_in,
)

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from datetime import datetime

    from llama_index_memory_ext.store.readers import Readers


Numbers: TypeAlias = NDArray[np.float64]
# The share of a limit that pinned facts and corrections may take before other facts.
FIRST_SHARE = 0.25
# By default, a fact with less than a tenth of the best similarity does not concern a
# question. The best twelve of these facts are shown if they have room.
_FLOOR = 0.1
_MOST_GENERAL = 12
# Behind a record with a profile, a fact with less than this share does not concern a
# question; chosen on LoCoMo, see CONTRIBUTING.md.
FLOOR_BEHIND_RECORD = 0.3
# The element around the facts in front of the record.
PROFILE_NAME = "user_profile"
# Where a fact stands in a prompt.
IN_PROFILE = "profile"
FOR_QUESTION = "question"
# Constants of ``min_similarity``, chosen on exact_facts; see CONTRIBUTING.md. The words
# of a question together weigh at most as much as this number of words of one fact alone.
_MOST_QUESTION_WEIGHT = 2
# The weights of a word that no fact has, and of a related word.
_UNKNOWN_WEIGHT = 0.5
_RELATED_WEIGHT = 0.8
# Questions of at most eight words have related words.
_SHORT_QUESTION = 8
# The least share of the best similarity.
_STRICT_FLOOR = 0.6
# A question and the turns before it continue a subject if they have 15 terms.
_ONGOING_TERMS = 15
# So many newer facts halve the recency of a fact.
_HALF_LIFE = 40
# A prompt has room for fewer facts; the others need not be sorted.
_BEST = 256


class Weights(NamedTuple):
    """The weights of the parts of a score, each at least 0."""

    similarity: float = SIMILARITY_WEIGHT
    confidence: float = CONFIDENCE_WEIGHT
    recency: float = 0.0

    def shares(self, ongoing: float = 1.0) -> Weights:
        """Return the weights divided by their sum, recency times ``ongoing`` first.

        Raises:
            SettingError: A weight is negative, or similarity and confidence are both 0.
        """
        if min(self) < 0 or not self.similarity + self.confidence:
            raise SettingError(
                "similarity_weight, confidence_weight and recency_weight must be at least 0, the first two not both "
                f"0; saw {', '.join(map(str, self))}. "
                f"The defaults of the first two are {SIMILARITY_WEIGHT} and {CONFIDENCE_WEIGHT}."
            )
        recency = self.recency * ongoing
        total = self.similarity + self.confidence + recency
        return Weights(
            self.similarity / total, self.confidence / total, recency / total
        )


def document_of(fact: Fact) -> Document:
    """Return the texts by which a ranker finds a fact.

    They are its content, its first day and, with less weight, its source.
    """
    context = ((fact.source, SOURCE_SHARE),) if fact.source else ()
    return Document(fact.id, fact.content, context, date_words(fact.began))


def why_first(fact: Fact) -> str:
    """Return why a fact comes before facts that match better: "pinned", "correction" or "".

    A retired fact never comes first.
    """
    if fact.retired_at is not None:
        return ""
    if fact.pinned:
        return "pinned"
    if fact.category == "correction":
        return "correction"
    return ""


def days_of(fact: Fact) -> dict[str, str]:
    """Return the first day of a fact as ``date`` and its last day as ``until``, in UTC, without unknown days.

    Without a stated day, the first day is the day of creation. A fact that became known
    after its end has no first day.
    """
    days = {}
    if fact.ends is None or fact.began <= fact.ends:
        days["date"] = fact.began.isoformat()
    if fact.ends is not None:
        days["until"] = fact.ends.isoformat()
    return days


def fact_line(fact: Fact) -> str:
    """Return a fact as one line: ``<fact date="2026-11-20">Prefers pytest for testing</fact>`` and a newline.

    The last day follows the first: ``<fact date="2023-05-01" until="2025-11-20">``. A
    plan is marked: ``<fact date="2026-11-20" planned="yes">``. Category and confidence
    are left out: they would double the tokens of a short fact. A sentence of the user's
    is given as the user's words.
    """
    content = escape_tags(" ".join(fact.content.split()))
    is_spoken = phrases("people", "first_person").search(fact.content) is not None
    if fact.is_users_words or is_spoken:
        content = f'The user: "{content}"'
    attributes = days_of(fact)
    if fact.said_as == "planned":
        attributes["planned"] = "yes"
    text = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<fact{text}>{content}</fact>\n"


def counted_line(fact: Fact, counter: TokenCounter) -> Part:
    """Return the line of a fact as a part of the prompt."""
    line = fact_line(fact)
    return Part("fact", line, counter.count(line))


class RankedFact(NamedTuple):
    """A fact with its numbers for one question, each in 0..1.

    ``turns``: the question and the turns before it.
    ``past``: the fact was true before, and the question is about the past.
    ``languages``: the languages that the question may have; None for any.
    ``place``: "profile" in front of the record, "question" for the other facts of a
    prompt, "" outside a prompt.
    """

    fact: Fact
    similarity: float
    confidence: float
    score: float
    turns: tuple[str, ...] = ()
    past: bool = False
    recency: float = 0.0
    languages: tuple[str, ...] | None = None
    place: str = ""

    @property
    def matched(self) -> tuple[str, ...]:
        """The words of the question and of earlier turns that the fact has in its text, its first day or its source.

        Words are compared by their stems in the language of the question.
        """
        content = f"{self.fact.content}\n{self.fact.source}"
        text = f"{content}\n{date_words(self.fact.began)}"
        matched: list[str] = []
        for turn in self.turns:
            codes = languages_of(turn, self.languages) or languages_of(
                content, self.languages
            )
            terms = _terms(text, codes)
            words = words_in(turn, codes)
            matched += [word.written for word in words if word.term in terms]
        return tuple(dict.fromkeys(matched))


@dataclass(frozen=True)
class RecordInPrompt:
    """The record of the prompt in which facts are shown.

    ``session_id``: the session of the record.
    ``readers``: the cursors of the store that holds its log.
    ``cursor``: the epoch of the session, and the position of the record's cursor.
    ``row_ids``: the messages that the prompt shows whole.
    ``recalled_ids``: the recalled messages that the prompt shows whole.
    """

    session_id: str
    readers: Readers
    cursor: tuple[int, int]
    row_ids: frozenset[int]
    recalled_ids: frozenset[int] = frozenset()


class Surroundings(NamedTuple):
    """The other parts of a prompt, and the tokens that they leave for facts.

    ``profile``: the facts in front of the record, in their order.
    ``stated``: the ids of facts whose messages are in the record.
    ``floor``: the share of the best similarity from which a fact concerns the question.
    ``limit``: the tokens for the facts beside the profile.
    ``room``: how many of these tokens the facts may use that do not concern the question.
    """

    limit: int = 0
    profile: tuple[Fact, ...] = ()
    stated: frozenset[str] = frozenset()
    floor: float = _FLOOR
    room: int = sys.maxsize

    @property
    def fact_ids(self) -> frozenset[str]:
        """All facts that the prompt shows elsewhere."""
        return self.stated.union(fact.id for fact in self.profile)


_ALONE = Surroundings()


class ShowableFacts:
    """The facts that may be shown for a question, and the numbers that every question needs.

    Args:
        facts: In the order in which they became known.
        ranker: Holds their documents; None: no fact is similar to anything.
        lines: The lines of the facts in the prompt, by id.
        period: The time that the question asks for; None: no time.
        past_ids: The facts that were true before.
        suppress_failures: Makes the context in which the ranker is called, and may fail.
    """

    def __init__(
        self,
        facts: Iterable[Fact] = (),
        ranker: FactRanker | None = None,
        *,
        lines: Mapping[str, Part] | None = None,
        period: Period | None = None,
        past_ids: Collection[str] = (),
        suppress_failures: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.facts = tuple(facts)
        self.ranker = ranker
        self.lines = lines or {}
        self.shortest_line = min(
            (line.tokens for line in self.lines.values()), default=1
        )
        self.period = period
        self.past_ids = past_ids
        self._suppress_failures = suppress_failures
        self.ids = tuple(fact.id for fact in self.facts)
        self.places = dict(zip(self.ids, range(len(self.ids)), strict=True))
        self._stated = _stated_facts(self.facts)
        self.first = [i for i, fact in enumerate(self.facts) if why_first(fact)]
        self.confidences = _numbers(fact.confidence for fact in self.facts)
        self.newer = _newer_facts(self.facts)
        self.recencies = _recencies(self.facts, self.newer, period)
        # Times tell facts apart: there are two days, or a stated beginning.
        days = {fact.created_at.toordinal() for fact in self.facts}
        self.has_times = len(days) > 1 or any(fact.valid_from for fact in self.facts)

    def stated_in(self, session_id: str, row_ids: frozenset[int]) -> frozenset[str]:
        """Return the ids of facts that only these messages state, without pinned facts and corrections."""
        return frozenset(
            fact.id
            for fact in self._stated.get(session_id, ())
            if row_ids.issuperset(fact.message_ids)
        )

    @property
    def pinned_ids(self) -> list[str]:
        """The pinned facts, in the order in which they became known."""
        return [self.ids[i] for i in self.first if self.facts[i].pinned]

    def profile(
        self,
        record: RecordInPrompt,
        limit: int,
        weights: Weights,
        heat: Mapping[str, float],
    ) -> list[str]:
        """Return the ids of the facts for a profile: pinned facts, then the facts with the most ``heat``.

        Facts without heat are chosen by confidence and recency.
        Facts whose messages the prompt shows are left out. The others fit into
        ``limit`` tokens.
        """
        shares = weights.shares()
        worth = shares.confidence * self.confidences + shares.recency * self.recencies
        heats = _numbers(heat.get(name, 0.0) for name in self.ids)
        order = np.lexsort((self.newer, -worth, -heats))
        best = [self.ids[i] for i in order.tolist()]
        names = dict.fromkeys([*self.pinned_ids, *best])
        stated = self.stated_in(record.session_id, record.row_ids)
        candidates = [name for name in names if name not in stated]
        return take_fitting(candidates, lambda name: self.lines[name].tokens, limit)

    def similarities(self, query: str) -> Mapping[str, float]:
        """Return the similarity of each fact to a query, 0..1, by id; {} if there is no ranker, or it fails."""
        if self.ranker is not None:
            with self._suppress_failures():
                return self.ranker.similarities(query)
        return {}

    async def prepare(self, queries: Sequence[str] = ()) -> bool:
        """Embed facts and queries, where there is a model; return False if its vectors are missing now."""
        if isinstance(self.ranker, EmbeddingRanker):
            return await self.ranker.aprepare(queries)
        return self.ranker is not None

    def score(
        self,
        question: str,
        context: Sequence[str],
        weights: Weights,
        languages: tuple[str, ...] | None = None,
        surroundings: Surroundings = _ALONE,
    ) -> Ranking:
        """Score the facts for a question and the turns before it.

        With the weights divided by their sum::

            ongoing = min(1, terms of all turns / 15) ** 2
            score = (
                similarity_weight * similarity
                + confidence_weight * confidence
                + ongoing * recency_weight * recency
            )

        The facts are ordered by their score. For a question about a time, ``ongoing`` is
        1, and the recency of a fact is 1 if it began then, else 0. If the ranker fails,
        all similarities are 0.
        """
        turns = (question, *context)
        ongoing = 1.0 if self.period else _ongoing(turns)
        shares = weights.shares(ongoing)
        similarities = np.zeros(len(self.facts))
        floor = 0.0
        if self.ranker is not None:
            with self._suppress_failures():
                similarities = similarities_with_context(
                    self.ranker, self.ids, question, context
                )
                if question.strip() and shares.similarity:
                    floor = surroundings.floor
        scores = (
            shares.similarity * similarities
            + shares.confidence * self.confidences
            + shares.recency * self.recencies
        )
        return Ranking(
            self,
            turns,
            languages,
            shares,
            similarities,
            scores,
            floor,
            surroundings,
        )


def _ongoing(turns: Iterable[str]) -> float:
    """Return how much the turns continue a subject, 0..1, by the number of their terms."""
    terms = set(chain.from_iterable(map(terms_in, turns)))
    return min(1.0, len(terms) / _ONGOING_TERMS) ** 2


def _numbers(values: Iterable[float]) -> Numbers:
    return np.fromiter(values, dtype=np.float64)


def _newer_facts(facts: Sequence[Fact]) -> Numbers:
    """Return for each fact the number of newer facts; of equally old facts the last is the newest."""
    seconds = _numbers(fact.created_at.timestamp() for fact in facts)
    newer = np.empty(len(facts))
    newer[np.argsort(seconds, kind="stable")[::-1]] = np.arange(len(facts))
    return newer


def _recencies(facts: Sequence[Fact], newer: Numbers, period: Period | None) -> Numbers:
    """Return the recency of each fact, 0..1; for a period, 1 for each fact that began in it, else 0."""
    if period is not None:
        return _numbers(period.start <= fact.began <= period.end for fact in facts)
    # A fact that was stated or learned last is new: newer facts are counted by their
    # times or by the order of learning. The lower number is taken.
    fewer: Numbers = np.minimum(newer, np.arange(len(facts))[::-1])
    return 0.5 ** (fewer / _HALF_LIFE)


def _stated_facts(facts: Iterable[Fact]) -> dict[str | None, list[Fact]]:
    """Return the facts that messages state by session, without edited facts, pinned facts and corrections."""
    stated = defaultdict(list)
    for fact in facts:
        if fact.message_ids and not fact.edited and not why_first(fact):
            stated[fact.session_id].append(fact)
    return stated


class Ranking(NamedTuple):
    """The facts with their numbers for one question; entries are made on request.

    ``turns``: the question and the turns before it.
    ``weights``: the shares of similarity, confidence and recency; the sum is 1.
    ``floor``: the least similarity of facts that concern the question; 0: each
    fact concerns it, as without a question.
    ``surroundings``: the record and the profile in the prompt, beside these facts.
    """

    showable: ShowableFacts
    turns: tuple[str, ...]
    languages: tuple[str, ...] | None
    weights: Weights
    similarities: Numbers
    scores: Numbers
    floor: float
    surroundings: Surroundings
    min_similarity: float | None = None

    def best_first(self) -> Iterator[RankedFact]:
        """Return all facts, best first; of equally good facts the newest first."""
        return self._sorted(np.arange(len(self.scores)))

    def similar(self) -> list[RankedFact]:
        """Return the facts with a similarity above 0, best first."""
        return list(self._sorted(np.flatnonzero(self.similarities > 0)))

    def concerning(self, ranked: Iterable[RankedFact]) -> Iterator[RankedFact]:
        """Return the ranked facts that concern the question, without facts that the prompt shows elsewhere.

        ``min_similarity`` decides. Pinned facts always stay.

        - Above 0: of the best 256 facts, the facts that cover this share of the question
          by their words or their embedding, and have 0.6 of the best similarity. Words
          do not count if another fact has the same words of the question, and more.
        - None: the facts from ``floor`` on, the facts of the time that the question asks
          for, and the best 12 other facts that fit the room for them.
        - 0: all facts.
        """
        elsewhere = self.surroundings.fact_ids
        ranked = (entry for entry in ranked if entry.fact.id not in elsewhere)
        if self.min_similarity:
            ids = self._ids_by_min_similarity(self.min_similarity) - elsewhere
            return self._filtered(ranked, ids, 0)
        if self.min_similarity is None and self.floor:
            return self._filtered(
                ranked, self._ids_above_floor() - elsewhere, _MOST_GENERAL
            )
        return ranked

    def _filtered(
        self, ranked: Iterable[RankedFact], ids: set[str], general: int
    ) -> Iterator[RankedFact]:
        """Yield the ranked facts with these ids, and the best ``general`` other facts that have room."""
        room = self.surroundings.room
        for entry in ranked:
            if entry.fact.id in ids:
                ids.remove(entry.fact.id)
                yield entry
            elif general and self._tokens_of(entry) <= room:
                general -= 1
                room -= self._tokens_of(entry)
                yield entry
            elif not ids:
                # Of many facts most are not looked at.
                return

    def _tokens_of(self, entry: RankedFact) -> int:
        return self.showable.lines[entry.fact.id].tokens

    def _ids_above_floor(self) -> set[str]:
        """Return the ids of the facts from the floor on, of the facts of the time, and of the pinned facts."""
        showable = self.showable
        close = self.similarities >= self.floor
        if showable.period is not None:
            close |= showable.recencies > 0
        close[[i for i in showable.first if showable.facts[i].pinned]] = True
        return {showable.ids[i] for i in np.flatnonzero(close)}

    def _ids_by_min_similarity(self, least: float) -> set[str]:
        """Return the ids of the facts that cover at least this share of the question, and of the pinned facts."""
        question, *context = self.turns
        best = list(islice(self.best_first(), _BEST))
        texts = {entry.fact.id: entry.fact.content for entry in best}
        shares = question_shares(texts, question, context, self.languages)
        closeness: Mapping[str, float] = {}
        if isinstance(self.showable.ranker, EmbeddingRanker):
            closeness = self.showable.ranker.closeness(question)
        floor = _STRICT_FLOOR * self.similarities.max(initial=0.0)
        near = set(self.showable.pinned_ids)
        for entry in best:
            name = entry.fact.id
            concern = max(shares.get(name, 0.0), closeness.get(name, 0.0))
            if concern >= least and entry.similarity >= floor:
                near.add(name)
        return near

    def fit(self, limit: int) -> list[RankedFact]:
        """Return the facts that concern the question and fit into ``limit`` tokens, best first.

        Pinned facts and corrections come before the others, within a share of the
        limit. The search ends when the shortest line does not fit any more.
        """
        front: list[RankedFact] = []
        if self.showable.first:
            first = self._sorted(np.array(self.showable.first))
            share = int(FIRST_SHARE * limit)
            front = take_fitting(self.concerning(first), self._tokens_of, share)
        ids = {entry.fact.id for entry in front}
        ranked = self.concerning(self.best_first())
        behind = (entry for entry in ranked if entry.fact.id not in ids)
        return take_fitting(
            chain(front, behind), self._tokens_of, limit, self.showable.shortest_line
        )

    def _sorted(self, places: NDArray[np.intp]) -> Iterator[RankedFact]:
        order = np.lexsort((self.showable.newer[places], -self.scores[places]))
        yield from map(self._entry, places[order].tolist())

    def _entry(self, place: int) -> RankedFact:
        showable = self.showable
        fact = showable.facts[place]
        return RankedFact(
            fact,
            similarity=self.similarities[place].item(),
            confidence=fact.confidence,
            score=self.scores[place].item(),
            turns=self.turns,
            past=fact.id in showable.past_ids,
            recency=showable.recencies[place].item(),
            languages=self.languages,
        )

    def profile(self) -> list[RankedFact]:
        """Return the entries of the profile; facts outside the time of the question have no similarity."""
        entries = []
        for fact in self.surroundings.profile:
            entry = RankedFact(fact, 0.0, fact.confidence, 0.0, self.turns)
            if fact.id in self.showable.places:
                entry = self._entry(self.showable.places[fact.id])
            entries.append(entry._replace(place=IN_PROFILE))
        return entries


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
    words = _terms(question, codes) or _terms(earlier_turns, codes)
    words_of_texts = {key: _terms(text, codes) for key, text in texts.items()}
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

    {} for a long question, and for a question in another language than English.
    """
    if len(words) > _SHORT_QUESTION or codes[:1] not in ((), ("en",)):
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
    """Return the share of the full weight that the words in common with each text have."""
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
def _terms(text: str, codes: tuple[str, ...]) -> frozenset[str]:
    return frozenset(word.term for word in words_in(text, codes))


def rank(
    facts: Sequence[Fact],
    question: str,
    context: Sequence[str] = (),
    *,
    similarity_weight: float = SIMILARITY_WEIGHT,
    confidence_weight: float = CONFIDENCE_WEIGHT,
    recency_weight: float = 0.0,
    ranker: FactRanker | None = None,
) -> list[RankedFact]:
    """Return all facts, best first: ``score = similarity_weight * similarity + confidence_weight * confidence``.

    ``recency_weight * recency`` is added to the score. Similarities are divided by
    the best of these facts, weights by their sum. If no fact has a word in common with
    the question, confidence and recency decide. Ties: newest first.

    Args:
        facts: The facts to rank, retired ones like all others; none gives an empty
            list.
        question: The user's last message.
        context: The turns before it, which count less.
        similarity_weight: At least 0; a ValueError if it is not, or this and the next
            are both 0.
        confidence_weight: At least 0.
        recency_weight: At least 0. The recency is 1 for the newest fact and is halved
            by each 40 newer facts, by their times or by the order of ``facts``,
            whichever gives more. Its weight is multiplied by ``min(1, terms / 15) **
            2``, with the terms of the question and its context. A short question looks
            something up, and a long question continues a subject.
        ranker: Holds the documents of these facts; a missing fact has similarity 0.
            None indexes the facts for this call, which takes about 0.1 ms for each.
    """
    weights = Weights(similarity_weight, confidence_weight, recency_weight)
    showable = ShowableFacts(facts, _indexed(facts) if ranker is None else ranker)
    return list(showable.score(question, context, weights).best_first())


def _indexed(facts: Sequence[Fact]) -> TfidfRanker:
    ranker = TfidfRanker()
    ranker.add(map(document_of, facts))
    return ranker


def format_facts(
    facts: Sequence[Fact],
    max_tokens: int = 2000,
    current_context: str | None = None,
    *,
    now: datetime | None = None,
) -> str:
    """Return the facts that matter for a conversation, best first, a line each, in at most ``max_tokens`` tokens.

    Args:
        facts: Any facts; facts that do not hold now are left out. If no fact fits, the
            text is empty.
        max_tokens: Most tokens (o200k_base) of the whole text.
        current_context: The last turns, oldest first, with a blank line between two, or
            else one turn a line. The last is the question; those before it count less.
            None or empty: facts are ranked by confidence.
        now: When the text is shown; default: now.

    Examples:
        >>> from datetime import datetime, timezone
        >>> from llama_index_memory_ext import Fact
        >>> day = datetime(2026, 11, 20, tzinfo=timezone.utc)
        >>> facts = [Fact(content=text, created_at=day) for text in ("Likes tea", "Lives in Rome")]
        >>> print(format_facts(facts, current_context="Where do I live?", now=day), end="")
        <fact date="2026-11-20">Lives in Rome</fact>
        <fact date="2026-11-20">Likes tea</fact>
    """
    shown_at = now or utc_now()
    present = [fact for fact in facts if fact.state(shown_at) == "present"]
    *context, question = _turns_in(current_context or "")
    counter = TokenCounter()
    lines = {fact.id: counted_line(fact, counter) for fact in present}
    showable = ShowableFacts(present, _indexed(present), lines=lines)
    ranking = showable.score(question, context, Weights())
    return "".join(lines[entry.fact.id].text for entry in ranking.fit(max_tokens))


def _turns_in(text: str) -> list[str]:
    """Return the turns of a text, between blank lines or else one a line; [""] for none."""
    text = text.strip()
    turns = text.split("\n\n") if "\n\n" in text else text.splitlines()
    return list(filter(None, map(str.strip, turns))) or [""]


_COLUMNS = (
    "fact",
    "similarity",
    "confidence",
    "recency",
    "score",
    "words in common",
    "tokens",
    "shown",
)
_CONTENT_WIDTH = 48
_MOST_WORDS = 5
_ABOUT_SIMILARITY = "Similarity compares these facts with each other: the one that is most like the question has 1."


@dataclass(frozen=True, slots=True)
class ExplainedFact:
    """A fact with its numbers for one question, each in 0..1, and why it is shown or not.

    ``similarity``: the fact that is most like the question has 1.
    ``matched``: the words in common.
    ``injected``: whether the fact is shown.
    ``place``: "profile", in front of the record, or "question"; "" if it is not shown.
    """

    fact: Fact
    similarity: float
    confidence: float
    score: float
    matched: tuple[str, ...]
    tokens: int
    injected: bool
    why: str
    recency: float = 0.0
    place: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The facts for one question, best first, the tokens of the shown facts, and the weights of the numbers.

    ``omitted``: the number of further facts, which are not explained.
    """

    facts: tuple[ExplainedFact, ...]
    tokens: int
    limit: int
    weights: Weights
    omitted: int = 0

    def __repr__(self) -> str:
        rows = [_COLUMNS, *map(_cells, self.facts)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *self.notes])

    @property
    def notes(self) -> tuple[str, ...]:
        """The tokens, the formula of the score, and the meaning of similarity, for below the table."""
        parts = [
            f"{weight:.2f} {name}"
            for name, weight in self.weights._asdict().items()
            if round(weight, 2)
        ]
        number = sum(fact.injected for fact in self.facts)
        facts = f"{number} fact{'s' * (number != 1)}"
        tokens = (
            f"Shown: {facts}, {self.tokens} tokens. There is room for {self.limit} tokens: "
            "the limit without the tags around all facts."
        )
        return tokens, f"score = {' + '.join(parts)}", _ABOUT_SIMILARITY


def explain(ranking: Ranking, most: int | None = None) -> Explanation:
    """Return which of the ranked facts are shown in the prompt, and why.

    Facts that are not shown are explained if they are among the best ``most``; None:
    all of them.
    """
    limit = ranking.surroundings.limit
    ranked = list(ranking.best_first())
    reasons = dict.fromkeys(
        ranking.surroundings.stated, "left out: its message is in the record"
    )
    for entry in ranking.concerning(ranked):
        reasons[entry.fact.id] = "left out: no room"
    places = {fact.id: IN_PROFILE for fact in ranking.surroundings.profile}
    for entry in ranking.fit(limit):
        places[entry.fact.id] = FOR_QUESTION
    facts = []
    tokens = 0
    for number, entry in enumerate(ranked, 1):
        fact = entry.fact
        place = places.get(fact.id, "")
        if most is not None and number > most and not place:
            continue
        line = ranking.showable.lines[fact.id]
        why = reasons.get(fact.id, "left out: too little in common")
        if place:
            tokens += line.tokens
            why = _why_shown(entry, place)
        if place == IN_PROFILE:
            limit += line.tokens
        facts.append(
            ExplainedFact(
                fact,
                entry.similarity,
                entry.confidence,
                entry.score,
                entry.matched,
                line.tokens,
                bool(place),
                why,
                entry.recency,
                place,
            )
        )
    omitted = len(ranked) - len(facts)
    return Explanation(tuple(facts), tokens, limit, ranking.weights, omitted)


def _why_shown(entry: RankedFact, place: str) -> str:
    if why_first(entry.fact):
        return why_first(entry.fact)
    if place == IN_PROFILE:
        return "in the profile"
    if entry.past:
        return "was true before"
    if not entry.similarity:
        return "nothing in common, but room"
    return "like the question"


def _cells(fact: ExplainedFact) -> tuple[str, ...]:
    content = textwrap.shorten(fact.fact.content, _CONTENT_WIDTH, placeholder="...")
    if fact.fact.said_as in ("planned", "past"):
        content += f" ({fact.fact.said_as})"
    numbers = (fact.similarity, fact.confidence, fact.recency, fact.score)
    return (
        content,
        *map("{:.2f}".format, numbers),
        ", ".join(fact.matched[:_MOST_WORDS]),
        str(fact.tokens),
        f"yes: {fact.why}" if fact.injected else fact.why,
    )
