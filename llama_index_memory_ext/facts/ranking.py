"""Scores facts for a question, chooses those that fit a token limit, and explains why."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from itertools import chain, islice
from json import dumps
from math import log
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.fact import CONFIDENCE_WEIGHT, SIMILARITY_WEIGHT, utc_now
from llama_index_memory_ext.language.dates import date_words
from llama_index_memory_ext.language.related import related_terms
from llama_index_memory_ext.language.tokens import languages_of, terms_in, words_in
from llama_index_memory_ext.language.words import visible
from llama_index_memory_ext.search.embeddings import EmbeddingRanker
from llama_index_memory_ext.search.tfidf import (
    SOURCE_SHARE,
    Document,
    Similarities,
    TfidfRanker,
    similarities_with_context,
)
from llama_index_memory_ext.text.messages import escape_tags
from llama_index_memory_ext.text.tokens import CountedText, TokenCounter, fit_tokens

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from contextlib import AbstractContextManager
    from datetime import datetime

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.language.dates import Period
    from llama_index_memory_ext.search.tfidf import FactRanker


Numbers: TypeAlias = NDArray[np.float64]
# The share of a limit that pinned facts and corrections may take before all others.
FIRST_SHARE = 0.25
# A fact with a word of the question stands above one that has none and this much more
# confidence: so similar it is at least, if that is no more than the second number.
_WORTH_OF_A_WORD = 0.105
_MOST_FOR_A_WORD = 0.5
# Where nothing else is set, a fact with less of the best one's similarity does not
# concern a question, and so many such facts are shown all the same.
_FLOOR = 0.1
_MOST_GENERAL = 12
# With ``min_similarity``: most that a question weighs, in words that a single fact has;
# what a word weighs that no fact has, a word that is only related to it, and one of an
# earlier turn. Questions of up to so many words have related ones. Less of the best
# one's similarity leaves a fact out. Chosen on exact_facts; see docs/ranking.md.
_MOST_ASKED = 2
_UNKNOWN_WEIGHT = 0.5
_RELATED_WEIGHT = 0.8
_EARLIER_TURN_WEIGHT = 0.5
_SHORT_QUESTION = 8
_STRICT_FLOOR = 0.4
# What the fact before on its day and the best one of its day add to a fact, while
# something is going on, and to which power the length of a fact, with that of its tags,
# divides it then.
_DAY_SHARE = 0.2
_LENGTH_POWER = 0.15
_TAG_BYTES = 80
# More than a prompt has room for, so that the others need not be sorted.
_BEST = 256


class Weights(NamedTuple):
    """What the parts of a score weigh, each at least 0."""

    similarity: float = SIMILARITY_WEIGHT
    confidence: float = CONFIDENCE_WEIGHT
    recency: float = 0.0

    def shares(self, ongoing: float = 1.0) -> Weights:
        """Return the weights divided by their sum, recency times ``ongoing`` first.

        Raises a SettingError if a weight is negative, or similarity and confidence are
        both 0.
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
    """What a ranker finds a fact by: its content, the day on which it began and, with less weight, its source."""
    if fact.source:
        context = ((fact.source, SOURCE_SHARE),)
    else:
        context = ()
    return Document(fact.id, fact.content, context, date_words(fact.began))


def comes_first(fact: Fact) -> str:
    """Why a fact comes before those that match better; "" if it does not, as what is retired."""
    if fact.retired_at is not None:
        return ""
    if fact.pinned:
        return "pinned"
    if fact.category == "correction":
        return "correction"
    return ""


def days_of(fact: Fact) -> dict[str, str]:
    """Return the day since when a fact is true, ``date``, and its last day, ``until``, as far as they are known (UTC).

    The first is that of its creation if none was said. What became known after it had
    ended has only the second.
    """
    if fact.ends:
        until = {"until": fact.ends.isoformat()}
    else:
        until = {}
    is_known = fact.ends is None or fact.began <= fact.ends
    return {**({"date": fact.began.isoformat()} if is_known else {}), **until}


def fact_line(fact: Fact, shown: Sequence[str] = ()) -> str:
    """One fact as one line: ``<fact date="2026-11-20">Prefers pytest for testing</fact>`` and a newline.

    What has ended, or will, has its last day behind that: ``<fact date="2023-05-01"
    until="2025-11-20">``, and a plan says that it is one: ``<fact date="2026-11-20"
    planned="yes">``. Category and confidence would double the tokens of a short fact.
    The metadata that are ``shown``, by their keys, stand behind it: ``Likes tea (team:
    blue)``.
    """
    metadata = {key: fact.metadata[key] for key in shown if key in fact.metadata}
    told = ", ".join(
        f"{key}: {value if isinstance(value, str) else dumps(value)}"
        for key, value in metadata.items()
    )
    content = escape_tags(
        " ".join(
            f"{fact.content} ({visible(told)})".split()
            if told
            else fact.content.split()
        )
    )
    if fact.said_as == "planned":
        planned = {"planned": "yes"}
    else:
        planned = {}
    attributes = "".join(
        f' {name}="{value}"' for name, value in (days_of(fact) | planned).items()
    )
    return f"<fact{attributes}>{content}</fact>\n"


def counted_line(
    fact: Fact, counter: TokenCounter, shown: Sequence[str] = ()
) -> CountedText:
    """Return the line of a fact, with the metadata that are ``shown``, and its tokens."""
    line = fact_line(fact, shown)
    return CountedText(line, counter.count(line))


# Where a fact has a word of what was asked; and that only a turn before the question
# asks for it.
_OWN = ""
_DATE = "date"
_SOURCE = "source"
_EARLIER = "earlier turn"


class RankedFact(NamedTuple):
    """A fact with its numbers for one question, all 0..1. ``asked`` is the question and the turns before it.

    ``past`` says that it was true before, and is found because the question is about
    that; ``languages`` are those in which the question may be, None for any.
    """

    fact: Fact
    similarity: float
    confidence: float
    score: float
    asked: tuple[str, ...] = ()
    past: bool = False
    recency: float = 0.0
    languages: tuple[str, ...] | None = None

    @property
    def matches(self) -> dict[str, str]:
        """The words of the question and of the turns before it that the fact has, and where: "" in its own words.

        Else it is "date" or "source", with "earlier turn" behind it if the question
        does not have the word. Words are compared by their stems in the language of the
        question.
        """
        fact = self.fact
        found = dict[str, str]()
        texts = {
            _OWN: fact.content,
            _DATE: date_words(fact.began),
            _SOURCE: fact.source,
        }
        for turn, asked in enumerate(self.asked):
            texts_of_fact = f"{fact.content}\n{fact.source}"
            codes = languages_of(asked, self.languages) or languages_of(
                texts_of_fact, self.languages
            )
            terms = {
                where: {word.term for word in words_in(text, codes)}
                for where, text in texts.items()
            }
            for word in words_in(asked, codes):
                where = next(
                    (where for where in terms if word.term in terms[where]), None
                )
                if where is not None:
                    found.setdefault(
                        word.written,
                        ", ".join(filter(None, (where, _EARLIER if turn else ""))),
                    )
        return found

    @property
    def matched(self) -> tuple[str, ...]:
        """The words of ``matches``."""
        return tuple(self.matches)


class ShowableFacts:
    """Facts that may be shown for a question, what ranks them, and the numbers that every question needs, made once.

    Args:
        facts: In the order in which they became known.
        ranker: Holds their documents; None: no fact is similar to anything.
        lines: The lines of the facts by id, where they are shown.
        period: The time that the question asks for; None: it is not about the past.
        past_ids: Those of the facts that were true before.
        sparing: Makes the context in which the ranker is called, and may fail.
    """

    def __init__(
        self,
        facts: Iterable[Fact] = (),
        ranker: FactRanker | None = None,
        *,
        lines: Mapping[str, CountedText] | None = None,
        period: Period | None = None,
        past_ids: Collection[str] = (),
        sparing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.facts = tuple(facts)
        self.ranker = ranker
        self.lines = lines or {}
        self.least = min((line.tokens for line in self.lines.values()), default=1)
        self.period = period
        self.past_ids = past_ids
        self._sparing = sparing
        count = len(self.facts)
        self.ids = tuple(fact.id for fact in self.facts)
        self.confidences = np.fromiter(
            (fact.confidence for fact in self.facts), dtype=np.float64, count=count
        )
        # How many facts are newer, by their times; of equally old ones the last is the
        # newest.
        seconds = np.fromiter(
            (fact.created_at.timestamp() for fact in self.facts),
            dtype=np.float64,
            count=count,
        )
        places = np.arange(count)
        self.newer = np.empty(count)
        self.newer[np.argsort(seconds, kind="stable")[::-1]] = places
        if period is None:
            # New is what was said last, and what was learned last: what comes last in
            # the order of the facts. 40 newer facts halve the recency of a fact.
            self.recencies = 0.5 ** (np.minimum(self.newer, places[::-1]) / 40)
        else:
            self.recencies = np.array(
                [float(period.start <= fact.began <= period.end) for fact in self.facts]
            )
        self.first = [i for i, fact in enumerate(self.facts) if comes_first(fact)]
        self.lengths = np.array(
            [len(fact.content.encode()) + _TAG_BYTES for fact in self.facts],
            dtype=np.float64,
        )
        # By their times: the day of each fact, and the fact before it on that day,
        # itself for the first one.
        ordinals = [fact.created_at.toordinal() for fact in self.facts]
        self.days = np.unique(np.array(ordinals, dtype=np.intp), return_inverse=True)[1]
        oldest_first = np.lexsort((-self.newer, self.days))
        self.before = places.copy()
        same_day = np.diff(self.days[oldest_first]) == 0
        self.before[oldest_first[1:][same_day]] = oldest_first[:-1][same_day]
        # Whether facts are of more than one day, or it is known since when they are
        # true.
        days = {fact.created_at.date() for fact in self.facts}
        self.has_times = len(days) > 1 or any(fact.valid_from for fact in self.facts)

    def similarities(self, query: str) -> Mapping[str, float]:
        """Return the similarity of each fact to a query, 0..1, by id; {} if there is no ranker, or it fails."""
        with self._sparing():
            if self.ranker is not None:
                found = self.ranker.similarities(query)
            else:
                found = {}
            if isinstance(found, Similarities):
                return found
            return {name: float(one) for name, one in found.items()}
        return {}

    async def prepare(self, queries: Sequence[str] = ()) -> bool:
        """Embed what is not embedded yet, where there is a model; return False if facts are ranked without it now."""
        if isinstance(self.ranker, EmbeddingRanker):
            return await self.ranker.aprepare(queries)
        return self.ranker is not None

    def rank(
        self,
        question: str,
        context: Sequence[str],
        weights: Weights,
        languages: tuple[str, ...] | None = None,
    ) -> Ranking:
        """Score the facts for a question: similarity, confidence and recency, times their shares.

        Recency counts as much as the question and the turns before it go on with
        something, by the number of their terms: ``min(1, terms / 15) ** 2`` of its
        weight. As much, a fact that was learned beside better ones on its day comes
        before others, and a short one before a long one; its score stays what it is.
        For a question about a time, facts that began then have recency 1, all others 0.
        Where the ranker fails, all similarities are 0.
        """
        ongoing = 1.0
        if self.period is None:
            terms = {term for text in (question, *context) for term in terms_in(text)}
            ongoing = min(1.0, len(terms) / 15) ** 2
        shares = weights.shares(ongoing)
        similarities: Numbers = np.zeros(len(self.facts))
        floor = 0.0
        if self.ranker is not None:
            with self._sparing():
                similarities = similarities_with_context(
                    self.ranker, self.ids, question, context
                )
                if question.strip() and shares.similarity:
                    floor = _FLOOR
                else:
                    floor = 0.0
        if shares.similarity:
            least = min(
                _WORTH_OF_A_WORD * shares.confidence / shares.similarity,
                _MOST_FOR_A_WORD,
            )
            floor = floor and least + (1 - least) * floor
            similarities = np.where(
                similarities > 0, least + (1 - least) * similarities, 0.0
            )
        scores = shares.similarity * similarities + shares.confidence * self.confidences
        scores += shares.recency * self.recencies
        worth = scores
        if shares.recency and self.period is None and self.facts:
            best = np.zeros(self.days.max() + 1)
            np.maximum.at(best, self.days, scores)
            beside = best[self.days] + np.where(
                self.before == np.arange(len(scores)), 0.0, scores[self.before]
            )
            worth = (scores + _DAY_SHARE * ongoing * beside) / self.lengths ** (
                _LENGTH_POWER * ongoing
            )
        return Ranking(
            self,
            (question, *context),
            languages,
            shares,
            similarities,
            scores,
            worth,
            floor,
        )


class Ranking(NamedTuple):
    """The facts with their numbers for one question; entries are made when they are asked for.

    ``weights`` are what similarity, confidence and recency weigh for this question; the
    sum is 1. The order is that of ``worth``.
    """

    showable: ShowableFacts
    asked: tuple[str, ...]
    languages: tuple[str, ...] | None
    weights: Weights
    similarities: Numbers
    scores: Numbers
    worth: Numbers
    # The least similarity of facts that concern the question; 0 where similarities tell
    # nothing.
    floor: float
    min_similarity: float | None = None

    def best_first(self) -> Iterator[RankedFact]:
        """Yield all facts, best first; of equally good ones the newest first."""
        least = 0.0
        if len(self.worth) > 2 * _BEST:
            # The best ones are often enough.
            least = np.partition(self.worth, -_BEST)[-_BEST]
        yield from self._sorted(np.flatnonzero(self.worth >= least))
        yield from self._sorted(np.flatnonzero(self.worth < least))

    def similar(self) -> list[RankedFact]:
        """Return those that have something in common with the question, best first."""
        return list(self._sorted(np.flatnonzero(self.similarities > 0)))

    def concerning(self, ranked: Iterable[RankedFact]) -> Iterator[RankedFact]:
        """Yield the ranked facts that concern the question at least as much as ``min_similarity``.

        A fact concerns it by its words or its embedding. One is left out that has only
        a part of the words that another one has in common with the question. Pinned
        facts stay in any case. Behind the best facts no others are looked for.

        None: those with a tenth of the best one's similarity, those of the time that
            the question asks for, and the best 12 others. 0: all of them.
        """
        if not (self.floor if self.min_similarity is None else self.min_similarity):
            yield from ranked
            return
        others = 0
        if self.min_similarity is None:
            ids = self._close()
            others = _MOST_GENERAL
        else:
            ids = self._near(self.min_similarity)
        for entry in ranked:
            if entry.fact.id in ids:
                ids.remove(entry.fact.id)
                yield entry
            elif others:
                others -= 1
                yield entry
            elif not ids and not others:
                # Of many facts most are not looked at.
                return

    def _close(self) -> set[str]:
        one = self.showable
        close = self.similarities >= self.floor
        if one.period is not None:
            close |= one.recencies > 0
        close[[i for i in one.first if one.facts[i].pinned]] = True
        return {one.ids[i] for i in np.flatnonzero(close)}

    def _near(self, least: float) -> set[str]:
        question, *context = self.asked
        best = list(islice(self.best_first(), _BEST))
        ranker = self.showable.ranker
        texts = {entry.fact.id: entry.fact.content for entry in best}
        shares = question_shares(texts, question, context, self.languages)
        if isinstance(ranker, EmbeddingRanker):
            closeness = ranker.closeness(question)
        else:
            closeness = {}
        floor = _STRICT_FLOOR * self.similarities.max(initial=0.0)
        near = {fact.id for fact in self.showable.facts if fact.pinned}
        for entry in best:
            concern = max(
                shares.get(entry.fact.id, 0.0), closeness.get(entry.fact.id, 0.0)
            )
            if concern >= least and entry.similarity >= floor:
                near.add(entry.fact.id)
        return near

    def fit(self, limit: int) -> list[RankedFact]:
        """Return the facts that concern the question and whose lines fit into ``limit`` tokens, best first.

        Pinned facts and corrections come before the others, as many as fit into a share
        of the limit. Facts are looked at until what is left has no room for the
        shortest line.
        """
        lines = self.showable.lines
        ranked = self._sorted(np.array(self.showable.first, dtype=np.intp))
        first = list(self.concerning(ranked))
        kept = fit_tokens(
            [lines[entry.fact.id].tokens for entry in first], int(FIRST_SHARE * limit)
        )
        front = {first[i].fact.id: first[i] for i in kept}
        others = (
            entry
            for entry in self.concerning(self.best_first())
            if entry.fact.id not in front
        )
        chosen: list[RankedFact] = []
        left = limit
        for entry in chain(front.values(), others):
            if left < self.showable.least:
                break
            tokens = lines[entry.fact.id].tokens
            if tokens <= left:
                chosen.append(entry)
                left -= tokens
        return chosen

    def _sorted(self, places: NDArray[np.intp]) -> Iterator[RankedFact]:
        one = self.showable
        for i in places[np.lexsort((one.newer[places], -self.worth[places]))].tolist():
            fact = one.facts[i]
            yield RankedFact(
                fact,
                similarity=self.similarities[i].item(),
                confidence=fact.confidence,
                score=self.scores[i].item(),
                asked=self.asked,
                past=fact.id in one.past_ids,
                recency=one.recencies[i].item(),
                languages=self.languages,
            )


def question_shares(
    texts: Mapping[str, str],
    question: str,
    context: Sequence[str] = (),
    languages: tuple[str, ...] | None = None,
) -> dict[str, float]:
    """Return the share of a question that each text covers, 0..1, by key; words are weighted by their idf.

    ``share = idf of the words in common / min(idf of all words of the question, 2 * idf
    of a word that one text has)``. A text without a word of the question is missing,
    and so is one with a part of the words of another text.

    >>> shares = question_shares({"a": "Owns a guitar", "b": "Plays at home", "c": "Tea"}, "Which guitar do I play?")
    >>> {key: round(share, 1) for key, share in shares.items()}
    {'a': 0.5, 'b': 0.5}
    """
    earlier = "\n".join(context)
    codes = languages_of(question, languages) or languages_of(earlier, languages)
    asked = _terms(question, codes)
    before = _terms(earlier, codes)
    terms = {key: _terms(text, codes) for key, text in texts.items()}
    frequency = Counter(chain.from_iterable(terms.values()))
    common = {key: own & (asked | before) for key, own in terms.items()}

    def idf(count: int) -> float:
        return 1 + log((1 + len(texts)) / (1 + count))

    weights = {}
    for term in asked | before:
        weights[term] = idf(frequency[term]) * (
            1.0 if frequency[term] else _UNKNOWN_WEIGHT
        )
    total = min(sum(weights[term] for term in asked or before), _MOST_ASKED * idf(1))
    if len(asked) <= _SHORT_QUESTION and codes[:1] in ((), ("en",)):
        for term in asked:
            if not frequency[term]:
                related = frozenset(related_terms(term))
                keys = [
                    key for key, own in terms.items() if not related.isdisjoint(own)
                ]
                weights[term] = _RELATED_WEIGHT * _UNKNOWN_WEIGHT * idf(len(keys))
                for key in keys:
                    common[key] |= {term}
    covered = set(common.values())
    shares = {}
    for key, words in common.items():
        if words and not any(words < other for other in covered):
            covered_weight = 0.0
            for term in words:
                covered_weight += weights[term] * (
                    1.0 if term in asked else _EARLIER_TURN_WEIGHT
                )
            shares[key] = min(1.0, covered_weight / total)
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

    ``+ recency_weight * recency`` where that is not 0. Similarities are divided by the
    best of these facts, weights by their sum. If no fact has a word in common with the
    question, the others decide. Ties: newest first.

    Args:
        facts: The facts to rank, retired ones like all others; none gives an empty
            list.
        question: The user's last message.
        context: The turns before it, which count less.
        similarity_weight: At least 0; a ValueError if it is not, or this and the next
            are both 0.
        confidence_weight: At least 0.
        recency_weight: At least 0. The recency is 1 for the newest fact and half as
            much for each 40 newer ones, by their times or by the order of ``facts``,
            whichever gives more. It counts fully for a question that has, with its
            context, 15 terms: then something is going on. A shorter question looks
            something up: with ``n`` terms recency counts ``(n / 15) ** 2`` of that.
        ranker: Holds the documents of these facts; one that it does not hold has
            similarity 0. None indexes the facts for this call, which takes about 0.1 ms
            for each.
    """
    weights = Weights(similarity_weight, confidence_weight, recency_weight)
    showable = ShowableFacts(facts, _indexed(facts) if ranker is None else ranker)
    return list(showable.rank(question, context, weights).best_first())


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
        facts: Any facts; those that do not hold now are left out. If none fits, the
            text is empty.
        max_tokens: Most tokens (o200k_base) of the whole text.
        current_context: The last turns, oldest first, with a blank line between two, or
            else one turn a line. The last is the question; those before it count less.
            None or empty: facts are ranked by confidence.
        now: When the text is shown; default: now.
    """
    shown_at = now or utc_now()
    present = [fact for fact in facts if fact.state(shown_at) == "present"]
    said = (current_context or "").strip()
    if "\n\n" in said:
        turns = said.split("\n\n")
    else:
        turns = said.splitlines()
    *context, question = [turn.strip() for turn in turns if turn.strip()] or [""]
    counter = TokenCounter()
    lines = {fact.id: counted_line(fact, counter) for fact in present}
    ranking = ShowableFacts(present, _indexed(present), lines=lines).rank(
        question, context, Weights()
    )
    return "".join(lines[entry.fact.id] for entry in ranking.fit(max_tokens))


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
_ABOUT_ORDER = "In a talk that goes on, facts that are short, or learned beside others that match, come earlier."
_ABOUT_SIMILARITY = "Similarity compares these facts with each other: the one that is most like the question has 1."


@dataclass(frozen=True, slots=True)
class ExplainedFact:
    """One fact for one question: its numbers in 0..1, the words in common, and why it is shown, or why not.

    ``similarity`` is relative: the fact that is most like the question has 1.
    ``matched`` are the words in common, and ``words`` the same by where they stand:
    "live; source: paris; earlier turn: trip", "" without any.
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
    words: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The facts for one question, best first, the tokens of those that are shown, and what the numbers weigh."""

    facts: tuple[ExplainedFact, ...]
    tokens: int
    limit: int
    weights: Weights

    def __repr__(self) -> str:
        rows = [_COLUMNS, *map(_cells, self.facts)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        head = f"<th>{'</th><th>'.join(_COLUMNS)}</th>"
        rows = [
            head,
            *(
                f"<td>{'</td><td>'.join(map(escape, _cells(fact)))}</td>"
                for fact in self.facts
            ),
        ]
        return f"<table><tr>{'</tr><tr>'.join(rows)}</tr></table><p>{'<br>'.join(self.notes)}</p>"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the table must know: the tokens, how the score is made, and what similarity is."""
        parts = [
            f"{weight:.2f} {name}"
            for name, weight in self.weights._asdict().items()
            if round(weight, 2)
        ]
        number = sum(fact.injected for fact in self.facts)
        shown = f"{number} fact{'s' * (number != 1)}, {self.tokens} tokens"
        tokens = f"Shown: {shown}. There is room for {self.limit} tokens: the limit without the tags around all facts."
        if self.weights.recency:
            about = f"{_ABOUT_SIMILARITY} {_ABOUT_ORDER}"
        else:
            about = _ABOUT_SIMILARITY
        return tokens, f"score = {' + '.join(parts)}", about


def explain(ranking: Ranking, limit: int) -> Explanation:
    """Say which of the ranked facts are shown within ``limit`` tokens, and why."""
    ranked = list(ranking.best_first())
    concerning = {entry.fact.id for entry in ranking.concerning(ranked)}
    shown = {entry.fact.id for entry in ranking.fit(limit)}
    facts = []
    for entry in ranked:
        fact, matches, tokens = (
            entry.fact,
            entry.matches,
            ranking.showable.lines[entry.fact.id].tokens,
        )
        if fact.id in concerning:
            why = "left out: no room"
        else:
            why = "left out: too little in common"
        if fact.id in shown:
            why = _why_shown(entry, matches.values())
        by_place = defaultdict[str, list[str]](list)
        for word, place in sorted(matches.items(), key=lambda item: bool(item[1])):
            by_place[place].append(word)
        listed = {
            place: ", ".join(words[:_MOST_WORDS]) for place, words in by_place.items()
        }
        words = "; ".join(
            f"{place}: {found}" if place else found for place, found in listed.items()
        )
        numbers = entry.similarity, entry.confidence, entry.score
        facts.append(
            ExplainedFact(
                fact,
                *numbers,
                tuple(matches),
                tokens,
                fact.id in shown,
                why,
                entry.recency,
                words,
            )
        )
    return Explanation(
        tuple(facts),
        sum(fact.tokens for fact in facts if fact.injected),
        limit,
        ranking.weights,
    )


def _why_shown(entry: RankedFact, places: Collection[str]) -> str:
    """By the best place of a word in common: the fact's own words, for the question itself."""
    if entry.past:
        return "was true before"
    if comes_first(entry.fact):
        return comes_first(entry.fact)
    if not entry.similarity:
        return "nothing in common, but room"
    for place in (_OWN, _DATE, _SOURCE):
        if place in places:
            if place:
                return f"matches in its {place} only"
            return "matches in its own words"
    if places:
        return f"matches an {_EARLIER} only"
    return "similar without a word in common"


def _cells(fact: ExplainedFact) -> tuple[str, ...]:
    if fact.fact.said_as in ("planned", "past"):
        said = f" ({fact.fact.said_as})"
    else:
        said = ""
    content = (
        textwrap.shorten(fact.fact.content, _CONTENT_WIDTH, placeholder="...") + said
    )
    numbers = (
        f"{number:.2f}"
        for number in (fact.similarity, fact.confidence, fact.recency, fact.score)
    )
    return (
        content,
        *numbers,
        fact.words,
        str(fact.tokens),
        f"yes: {fact.why}" if fact.injected else fact.why,
    )
