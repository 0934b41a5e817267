"""Scores facts for a question by similarity, confidence and recency, and chooses those that fit a token limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.fact import CONFIDENCE_WEIGHT, SIMILARITY_WEIGHT
from llama_index_memory_ext.search.tfidf import SOURCE_SHARE, Document, similarities_with_context
from llama_index_memory_ext.search.tokenization import date_words, terms_of
from llama_index_memory_ext.text.messages import escape_tags
from llama_index_memory_ext.text.tokens import CountedText, TokenCounter, fit, fit_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.period import Period
    from llama_index_memory_ext.search.concern import Asked
    from llama_index_memory_ext.search.tfidf import Similar

Numbers: TypeAlias = NDArray[np.float64]
# A line without content: where its tokens do not fit, no fact does.
EMPTY_LINE = '<fact date="2026-11-20"></fact>\n'
# The share of a limit that pinned facts and corrections may take before all others.
FIRST_SHARE = 0.25
# So many newer facts halve the recency of a fact.
RECENCY_HALF_LIFE = 40
# A question and its context with so many terms go on with something; shorter ones look something up.
_ONGOING_TERMS = 15
# A fact with a word of the question stands above one that has none and this much more confidence: so similar it is at
# least, if that is no more than the second number.
_WORTH_OF_A_WORD, _MOST_FOR_A_WORD = 0.105, 0.5
# What holds whatever is asked.
_GENERAL = "preference"
# More than a prompt has room for, so that the others need not be sorted.
_BEST = 256


class Weights(NamedTuple):
    """What the parts of a score weigh, each at least 0."""

    similarity: float = SIMILARITY_WEIGHT
    confidence: float = CONFIDENCE_WEIGHT
    recency: float = 0.0

    def check(self) -> None:
        """Raises a SettingError if a weight is negative, or similarity and confidence are both 0."""
        if min(self) < 0 or not self.similarity + self.confidence:
            raise SettingError(
                "similarity_weight, confidence_weight and recency_weight must be at least 0, the first two not both "
                f"0; saw {', '.join(map(str, self))}. "
                f"The defaults of the first two are {SIMILARITY_WEIGHT} and {CONFIDENCE_WEIGHT}."
            )

    def shares(self, ongoing: float = 1.0) -> Weights:
        """Returns the weights divided by their sum, recency times ``ongoing`` first."""
        self.check()
        recency = self.recency * ongoing
        total = self.similarity + self.confidence + recency
        return Weights(self.similarity / total, self.confidence / total, recency / total)


@dataclass(frozen=True)
class Columns:
    """The numbers of facts, made once for many questions; of those that are shown ``rendered`` has the lines, by id.

    No line of theirs has fewer tokens than ``least``.
    """

    facts: tuple[Fact, ...]
    rendered: dict[str, CountedText] = field(default_factory=dict)
    least: int = 1

    @classmethod
    def shown(cls, facts: tuple[Fact, ...], counter: TokenCounter, rendered: dict[str, CountedText]) -> Columns:
        """Makes all that a question needs of facts that are shown, and adds their lines to ``rendered``."""
        if counter.adds_up:
            least = min((render(fact, counter, rendered).tokens for fact in facts), default=1)
        else:
            least = counter.count(EMPTY_LINE)
        return cls(facts, rendered, least).prepare()

    def prepare(self) -> Columns:
        """Makes what every question needs, which takes a while for many facts."""
        for name in ("ids", "confidences", "recencies", "first", "has_times"):
            getattr(self, name)
        return self

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids in the order of the facts."""
        return tuple(map(attrgetter("id"), self.facts))

    @cached_property
    def confidences(self) -> Numbers:
        """The confidences."""
        return np.fromiter(map(attrgetter("confidence"), self.facts), dtype=np.float64, count=len(self.facts))

    @cached_property
    def newest_first(self) -> NDArray[np.int64]:
        """The places of the facts, newest first; of equally old ones the last first."""
        created: Any = map(datetime.timestamp, map(attrgetter("created_at"), self.facts))
        seconds = np.fromiter(created, dtype=np.float64, count=len(self.facts))
        return np.argsort(seconds, kind="stable")[::-1]

    @cached_property
    def recencies(self) -> Numbers:
        """1 for the newest fact, half as much for each ``RECENCY_HALF_LIFE`` newer ones.

        New is what was said last, and what was learned last: what comes last in the order of the facts.
        """
        newer, places = np.empty(len(self.facts)), np.arange(len(self.facts))
        newer[self.newest_first] = places
        recencies: Numbers = 0.5 ** (np.minimum(newer, places[::-1]) / RECENCY_HALF_LIFE)
        return recencies

    @cached_property
    def has_times(self) -> bool:
        """Whether the facts are of more than one day, or it is known since when they are true."""
        return any(fact.valid_from for fact in self.facts) or len({fact.created_at.date() for fact in self.facts}) > 1

    @cached_property
    def first(self) -> tuple[int, ...]:
        """The places of pinned facts and corrections."""
        return tuple(i for i, fact in enumerate(self.facts) if comes_first(fact))


@dataclass(frozen=True)
class Scored:
    """Facts with their numbers for one question, all 0..1, in the order of ``columns``; the weights add up to 1."""

    columns: Columns
    similarities: Numbers
    recencies: Numbers
    scores: Numbers
    weights: Weights

    def places(self) -> Iterator[int]:
        """Yields the places of the facts, best first; of equally good ones the newest first."""
        scores, by_age = self.scores, self.columns.newest_first
        many = len(scores) > 2 * _BEST
        if many:
            # The best ones are often enough.
            least = np.partition(scores, len(scores) - _BEST)[len(scores) - _BEST]
            yield from self._sorted(by_age[scores[by_age] >= least])[:_BEST]
        yield from self._sorted(by_age)[_BEST if many else 0 :]

    def _sorted(self, by_age: NDArray[np.int64]) -> list[int]:
        """Places in the order of their age, best first."""
        found: list[int] = by_age[np.argsort(-self.scores[by_age], kind="stable")].tolist()
        return found

    def best_first(self) -> Iterator[Fact]:
        """Yields the facts, best first."""
        return (self.columns.facts[i] for i in self.places())

    def first(self) -> list[Fact]:
        """Returns the pinned facts and corrections, best first."""
        columns, places = self.columns, np.array(self.columns.first, dtype=np.int64)
        if not len(places):
            return []
        ages = np.argsort(columns.newest_first)[places]
        return [columns.facts[i] for i in places[np.lexsort((ages, -self.scores[places]))]]


def document_of(fact: Fact) -> Document:
    """What a ranker finds a fact by: its content, the day on which it began and, with less weight, its source."""
    context = ((fact.source, SOURCE_SHARE),) if fact.source else ()
    return Document(fact.id, fact.content, context, date_words(fact.began))


def scored(
    columns: Columns,
    question: str,
    context: Sequence[str],
    ranker: Similar | None,
    weights: Weights,
    *,
    period: Period | None = None,
) -> Scored:
    """Scores facts for a question: similarity, confidence and recency, times their shares.

    Recency counts as much as the question and the turns before it go on with something, by the number of their terms:
    ``min(1, terms / 15) ** 2`` of its weight. For a question about a time, facts that began then have recency 1, all
    others 0.
    """
    recencies = columns.recencies if period is None else _within(columns.facts, period)
    shares = weights.shares(_ongoing(question, context) if period is None else 1.0)
    ids = columns.ids
    similarities = (
        similarities_with_context(ranker, ids, question, context) if ranker is not None else np.zeros(len(ids))
    )
    if shares.similarity:
        least = min(_WORTH_OF_A_WORD * shares.confidence / shares.similarity, _MOST_FOR_A_WORD)
        similarities = np.where(similarities > 0, least + (1 - least) * similarities, 0.0)
    scores = shares.similarity * similarities + shares.confidence * columns.confidences + shares.recency * recencies
    return Scored(columns, similarities, recencies, scores, shares)


def comes_first(fact: Fact) -> str:
    """Why a fact comes before those that match better; "" if it does not, as what is retired."""
    if fact.retired_at is not None:
        return ""
    if fact.pinned:
        return "pinned"
    return "correction" if fact.category == "correction" else ""


def days_of(fact: Fact) -> dict[str, str]:
    """The day since when a fact is true, ``date``, and its last day, ``until``, as far as they are known (UTC).

    The first is that of its creation if none was said. What became known after it had ended has only the second.
    """
    until = {"until": fact.ends.isoformat()} if fact.ends else {}
    is_known = fact.ends is None or fact.began <= fact.ends
    return {**({"date": fact.began.isoformat()} if is_known else {}), **until}


def fact_line(fact: Fact) -> str:
    """One fact as one line: ``<fact date="2026-11-20">Prefers pytest for testing</fact>`` and a newline.

    What has ended, or will, has its last day behind that: ``<fact date="2023-05-01" until="2025-11-20">``. Category and
    confidence would double the tokens of a short fact.
    """
    content = escape_tags(" ".join(fact.content.split()))
    attributes = "".join(f' {name}="{day}"' for name, day in days_of(fact).items())
    return f"<fact{attributes}>{content}</fact>\n"


def render(fact: Fact, counter: TokenCounter, rendered: dict[str, CountedText]) -> CountedText:
    """The line of a fact with its tokens. ``rendered`` caches it by the id of the fact."""
    if fact.id not in rendered:
        line = fact_line(fact)
        rendered[fact.id] = CountedText(line, counter.count(line))
    return rendered[fact.id]


@dataclass(frozen=True)
class Concerned:
    """Which facts may be shown where not all may: those that concern what is ``asked`` at least ``min_similarity``.

    They do so by their words or by their ``closeness``, that of their embeddings by the ids of facts. Pinned facts are
    among them in any case, and so many ``general_facts``: preferences that do not concern it.
    """

    asked: Asked
    min_similarity: float
    general_facts: int = 0
    closeness: Mapping[str, float] = field(default_factory=dict)

    def among(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """Yields them in the given order, best first. Far behind the best ones nothing is looked for."""
        general = self.general_facts
        for place, fact in enumerate(facts):
            if fact.pinned or (place < _BEST and self._is_asked_for(fact)):
                yield fact
            elif general and fact.category == _GENERAL:
                general -= 1
                yield fact

    def _is_asked_for(self, fact: Fact) -> bool:
        return max(self.asked.concern(fact.content), self.closeness.get(fact.id, 0.0)) >= self.min_similarity


def fit_facts(
    facts: Iterable[Fact],
    limit: int,
    counter: TokenCounter,
    rendered: dict[str, CountedText],
    first: Iterable[Fact] | None = None,
    least: int | None = None,
) -> list[Fact]:
    """The facts that fit into ``limit`` tokens, in the given order, but pinned facts and corrections first.

    ``first`` are these in their order, if the caller knows them; then no more facts are looked at than have room for
    ``least`` tokens, which no line has fewer than.
    """
    if first is None:
        facts = list(facts)
        first = filter(comes_first, facts)
    first = list(first)
    tokens = [render(fact, counter, rendered).tokens for fact in first]
    front = {first[i].id: first[i] for i in fit_tokens(tokens, int(FIRST_SHARE * limit))}
    seen: list[Fact] = []

    def lines() -> Iterator[CountedText]:
        for fact in chain(front.values(), (fact for fact in facts if fact.id not in front)):
            seen.append(fact)
            yield render(fact, counter, rendered)

    least = counter.count(EMPTY_LINE) if least is None else least
    if counter.adds_up:
        kept = fit_tokens((line.tokens for line in lines()), limit, least=least)
    else:
        kept = fit(lines(), limit, counter, least=least)
    return [seen[i] for i in kept]


def fitted_text(
    facts: Iterable[Fact],
    first: Iterable[Fact],
    limit: int,
    counter: TokenCounter,
    columns: Columns,
) -> tuple[CountedText, list[Fact]]:
    """The text with those of the facts of ``columns`` that fit, and these facts; arguments as for ``fit_facts``."""
    rendered = columns.rendered
    shown = fit_facts(facts, limit, counter, rendered, first, columns.least)
    text = "".join(rendered[fact.id] for fact in shown)
    tokens = sum(rendered[fact.id].tokens for fact in shown) if counter.adds_up else counter.count(text)
    return CountedText(text, tokens), shown


def _ongoing(question: str, context: Sequence[str]) -> float:
    terms = {term for text in (question, *context) for term in terms_of(text)}
    return min(1.0, len(terms) / _ONGOING_TERMS) ** 2


def _within(facts: Sequence[Fact], period: Period) -> Numbers:
    """1 for each fact that began at a time, 0 for the others."""
    return np.array([float(period.start <= fact.began <= period.end) for fact in facts])
