"""Scores facts for a question, and chooses facts within a token limit."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_index_memory_ext.fact import (
    CONFIDENCE_WEIGHT,
    RECENCY_WEIGHT,
    SIMILARITY_WEIGHT,
    Fact,
)
from llama_index_memory_ext.facts.concern import question_shares, terms_of
from llama_index_memory_ext.facts.lines import why_first
from llama_index_memory_ext.search.embeddings import EmbeddingRanker
from llama_index_memory_ext.search.tfidf import (
    SOURCE_SHARE,
    Document,
    FactRanker,
    TfidfRanker,
    similarities_with_context,
)
from llama_index_memory_ext.text.tokens import take_fitting
from llama_index_memory_ext.words.dates import Period, date_words
from llama_index_memory_ext.words.tokens import (
    languages_of,
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

    from llama_index_memory_ext.store.readers import Readers
    from llama_index_memory_ext.text.parts import Part


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
# With ``min_similarity``, a fact needs this share of the best similarity.
_STRICT_FLOOR = 0.6
# A question and the turns before it continue a subject if they have 15 terms.
_ONGOING_TERMS = 15
# So many newer facts halve the recency of a fact.
_HALF_LIFE = 40
# While a subject continues, a fact gains this share of the best score of its day and of
# the score of the fact before it. Its length, tags included, has the exponent below.
_DAY_SHARE = 0.2
_LENGTH_POWER = 0.15
_TAG_BYTES = 80
# A prompt has room for fewer facts; the others need not be sorted.
_BEST = 256


class Weights(NamedTuple):
    """The weights of the parts of a score, each at least 0."""

    similarity: float = SIMILARITY_WEIGHT
    confidence: float = CONFIDENCE_WEIGHT
    recency: float = 0.0

    def shares(self, ongoing: float = 1.0) -> Weights:
        """Return the weights divided by their sum, recency times ``ongoing`` first."""
        recency = self.recency * ongoing
        total = self.similarity + self.confidence + recency
        return Weights(
            self.similarity / total, self.confidence / total, recency / total
        )


# The weights for the facts of a prompt.
IN_CONVERSATION = Weights(recency=RECENCY_WEIGHT)


def document_of(fact: Fact) -> Document:
    """Return the texts by which a ranker finds a fact.

    They are its content, its first day and, with less weight, its source.
    """
    context = ((fact.source, SOURCE_SHARE),) if fact.source else ()
    return Document(fact.id, fact.content, context, date_words(fact.began))


class RankedFact(NamedTuple):
    """A fact with its numbers for one question, each in 0..1.

    ``turns``: the question and the turns before it.
    ``past``: the fact was true before, and the question is about the past.
    ``languages``: the languages that the question may have; None for any.
    ``place``: "profile" in front of the record, "question" for a fact that may stand
    behind it, "" outside a prompt.
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
            terms = terms_of(text, codes)
            words = words_in(turn, codes)
            matched += [word.written for word in words if word.term in terms]
        return tuple(dict.fromkeys(matched))


@dataclass(frozen=True)
class RecordInPrompt:
    """The record of the prompt in which facts are shown.

    ``session_id``: the session of the record.
    ``readers``: reads and moves the cursors of the store that holds its log.
    ``cursor``: the epoch of the session, and the position of the record's cursor.
    ``row_ids``: the messages that the record and the current turn have whole.
    ``shown_ids``: the messages that are whole in this prompt, recalled ones too.
    """

    session_id: str
    readers: Readers
    cursor: tuple[int, int]
    row_ids: frozenset[int]
    shown_ids: frozenset[int]


class Surroundings(NamedTuple):
    """The other parts of a prompt, and the tokens that they leave for facts.

    ``profile``: the facts in front of the record, in their order.
    ``stated``: the ids of facts whose messages are whole in the prompt.
    ``floor``: the share of the best similarity from which a fact concerns the question.
    ``limit``: the tokens for the facts beside the profile.
    ``room``: how many of these tokens the facts may use that do not concern the question.
    """

    limit: int = 0
    profile: tuple[Fact, ...] = ()
    stated: frozenset[str] = frozenset()
    floor: float = _FLOOR
    room: int = sys.maxsize


_ALONE = Surroundings()


class ShowableFacts:
    """The facts that may be shown for a question, and the numbers that every question needs.

    Args:
        facts: In the order in which they became known.
        ranker: Holds their documents; None: no fact is similar to anything.
        lines: The lines of the facts in the prompt, by id.
        period: The time that the question asks for; None: no time.
        past_ids: The facts that were true before.
        suppress_failures: Makes the context that suppresses failures of the ranker.
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
        self.places = dict(zip(self.ids, count(), strict=False))
        self.first = [i for i, fact in enumerate(self.facts) if why_first(fact)]
        self.confidences = _numbers(fact.confidence for fact in self.facts)
        self.lengths = _numbers(
            len(fact.content.encode()) + _TAG_BYTES for fact in self.facts
        )
        self.newer = _newer_facts(self.facts)
        self.recencies = _recencies(self.facts, self.newer, period)
        self.days = _days(self.facts)
        self.before = _facts_before(self.days, self.newer)
        # Times tell facts apart: there are two days, or a stated beginning.
        self.has_times = any(fact.valid_from for fact in self.facts) or self.days.any()

    def stated_in(self, session_id: str, row_ids: frozenset[int]) -> frozenset[str]:
        """Return the ids of unedited facts that only these messages state, without pinned facts and corrections."""
        return frozenset(
            fact.id
            for fact in self.facts
            if fact.session_id == session_id
            and fact.message_ids
            and row_ids.issuperset(fact.message_ids)
            and not (fact.edited or why_first(fact))
        )

    @property
    def pinned_ids(self) -> list[str]:
        """The ids of the pinned facts, in the order in which they became known."""
        return [self.ids[i] for i in self.first if self.facts[i].pinned]

    def profile(self, record: RecordInPrompt, limit: int) -> list[str]:
        """Return the ids of the facts for a profile: pinned facts, then the best by confidence and recency.

        Facts whose messages the record or the current turn shows whole are left out.
        The others fit into ``limit`` tokens.
        """
        if not self.facts:
            return []
        shares = IN_CONVERSATION.shares()
        worth = shares.confidence * self.confidences + shares.recency * self.recencies
        order = np.lexsort((self.newer, -worth))
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

            beside = best score of its day + score of the fact before it
            worth = (score + 0.2 * ongoing * beside) / length ** (0.15 * ongoing)

        The facts are ordered by ``worth``. For a question about a time, ``ongoing`` is
        1, the worth is the score, and the recency of a fact is 1 if it began then, else
        0. If the ranker fails, all similarities are 0.
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
        if shares.recency and self.period is None and self.facts:
            worth = self._worth(scores, ongoing)
        else:
            worth = scores
        return Ranking(
            self,
            turns,
            languages,
            shares,
            similarities,
            scores,
            worth,
            floor,
            surroundings,
        )

    def _worth(self, scores: Numbers, ongoing: float) -> Numbers:
        best_of_days = np.zeros(self.days.max() + 1)
        np.maximum.at(best_of_days, self.days, scores)
        # The first fact of a day has the place behind all scores, and so a 0 before it.
        score_before = np.append(scores, 0.0)[self.before]
        beside = best_of_days[self.days] + score_before
        worth: Numbers = (scores + _DAY_SHARE * ongoing * beside) / self.lengths ** (
            _LENGTH_POWER * ongoing
        )
        return worth


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


def _days(facts: Sequence[Fact]) -> NDArray[np.intp]:
    """Return the number of each fact's day, counted from 0 over the days with facts."""
    ordinals = [fact.created_at.toordinal() for fact in facts]
    return np.unique(ordinals, return_inverse=True)[1]


def _facts_before(days: NDArray[np.intp], newer: Numbers) -> NDArray[np.intp]:
    """Return for each fact the place of the fact before it on its day; the place behind all facts for the first."""
    before = np.full(len(days), len(days))
    oldest_first = np.lexsort((-newer, days))
    same_day = np.diff(days[oldest_first]) == 0
    before[oldest_first[1:][same_day]] = oldest_first[:-1][same_day]
    return before


class Ranking(NamedTuple):
    """The facts with their numbers for one question; entries are made on request.

    ``turns``: the question and the turns before it.
    ``weights``: the shares of similarity, confidence and recency; the sum is 1.
    ``worth``: the score with bonuses for facts of the same day and short facts; it
    orders, and is not printed.
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
    worth: Numbers
    floor: float
    surroundings: Surroundings
    min_similarity: float | None = None

    def best_first(self) -> Iterator[RankedFact]:
        """Return all facts, best first; of equally good facts the newest first."""
        return map(self._entry, self._order(np.arange(len(self.worth))))

    def similar(self) -> list[RankedFact]:
        """Return the facts with a similarity above 0, best first."""
        return [*map(self._entry, self._order(np.flatnonzero(self.similarities > 0)))]

    def concerning(self, among: Sequence[int] | None = None) -> Iterator[RankedFact]:
        """Yield the facts that concern the question, best first, without facts that the prompt shows elsewhere.

        ``among``: the facts to choose from, by their numbers; None: all facts.
        ``min_similarity`` decides. Pinned facts always stay.

        - Above 0: of the best 256 facts, the facts that cover this share of the question
          by their words, and have 0.6 of the best similarity. Words do not count if
          another fact has the same words of the question, and more.
        - None: the facts from ``floor`` on, the facts of the time that the question asks
          for, and the best 12 other facts that fit the room for them.
        - 0: all facts.
        """
        surroundings = self.surroundings
        elsewhere = surroundings.stated.union(fact.id for fact in surroundings.profile)
        close = self._is_close()
        places = np.arange(len(close)) if among is None else np.array(among, np.intp)
        general = _MOST_GENERAL
        if self.min_similarity:
            general = 0
            places = places[close[places]]
        room = surroundings.room
        for place in self._order(places):
            name = self.showable.ids[place]
            if name in elsewhere:
                continue
            if not close[place]:
                tokens = self.showable.lines[name].tokens
                if not general or tokens > room:
                    continue
                general -= 1
                room -= tokens
            yield self._entry(place, FOR_QUESTION)

    def _is_close(self) -> NDArray[np.bool_]:
        """Return for each fact whether it concerns the question, as ``concerning`` says."""
        showable = self.showable
        close = self.similarities >= self.floor
        if self.min_similarity is not None:
            close = self._covers(self.min_similarity)
        elif showable.period is not None:
            close |= showable.recencies > 0
        for place in showable.first:
            close[place] |= showable.facts[place].pinned
        return close

    def _covers(self, least: float) -> NDArray[np.bool_]:
        """Return for each fact whether it covers at least this share of the question."""
        if not least:
            return np.ones(len(self.worth), bool)
        question, *context = self.turns
        showable = self.showable
        best = self._order(np.arange(len(self.worth)))[:_BEST]
        texts = {showable.ids[place]: showable.facts[place].content for place in best}
        shares = question_shares(texts, question, context, self.languages)
        floor = _STRICT_FLOOR * self.similarities.max(initial=0.0)
        close = np.zeros(len(self.worth), bool)
        for place in best:
            name = showable.ids[place]
            is_like_best = self.similarities[place] >= floor
            close[place] = is_like_best and shares.get(name, 0.0) >= least
        return close

    def fit(self, limit: int) -> list[RankedFact]:
        """Return the facts that concern the question and fit into ``limit`` tokens, best first.

        Pinned facts and corrections come before the others, within a share of the
        limit. The search ends when the shortest line does not fit any more.
        """

        def tokens_of(entry: RankedFact) -> int:
            return self.showable.lines[entry.fact.id].tokens

        share = int(FIRST_SHARE * limit)
        front = take_fitting(self.concerning(self.showable.first), tokens_of, share)
        ids = {entry.fact.id for entry in front}
        behind = (entry for entry in self.concerning() if entry.fact.id not in ids)
        return take_fitting(
            chain(front, behind), tokens_of, limit, self.showable.shortest_line
        )

    def _order(self, places: NDArray[np.intp]) -> list[int]:
        """Return the places of facts, best first."""
        order = np.lexsort((self.showable.newer[places], -self.worth[places]))
        best: list[int] = places[order].tolist()
        return best

    def _entry(self, number: int, place: str = "") -> RankedFact:
        showable = self.showable
        fact = showable.facts[number]
        return RankedFact(
            fact,
            similarity=self.similarities[number].item(),
            confidence=fact.confidence,
            score=self.scores[number].item(),
            turns=self.turns,
            past=fact.id in showable.past_ids,
            recency=showable.recencies[number].item(),
            languages=self.languages,
            place=place,
        )

    def profile(self) -> list[RankedFact]:
        """Return the entries of the profile; facts outside the time of the question have no similarity."""
        places = self.showable.places
        entries = []
        for fact in self.surroundings.profile:
            if fact.id in places:
                entry = self._entry(places[fact.id], IN_PROFILE)
            else:
                entry = RankedFact(
                    fact, 0.0, fact.confidence, 0.0, self.turns, place=IN_PROFILE
                )
            entries.append(entry)
        return entries


def index_of(facts: Sequence[Fact]) -> TfidfRanker:
    """Return a new index of these facts, which takes about 0.1 ms for each."""
    ranker = TfidfRanker()
    ranker.add(map(document_of, facts))
    return ranker
