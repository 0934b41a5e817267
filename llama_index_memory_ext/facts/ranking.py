"""Ranks facts for a question, as a program asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import is_not
from typing import TYPE_CHECKING, NamedTuple, overload
from weakref import WeakKeyDictionary

from llama_index_memory_ext.fact import CONFIDENCE_WEIGHT, SIMILARITY_WEIGHT, utc_now
from llama_index_memory_ext.facts.matches import matches_of
from llama_index_memory_ext.facts.scoring import Columns, Weights, document_of, fact_line, fit_facts, scored
from llama_index_memory_ext.search.tfidf import TfidfRanker
from llama_index_memory_ext.text.tokens import TokenCounter

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.matches import Match
    from llama_index_memory_ext.facts.scoring import Scored
    from llama_index_memory_ext.search.tfidf import FactRanker


class RankedFact(NamedTuple):
    """A fact with its numbers for one question, all 0..1. ``asked`` is the question and the turns before it.

    ``past`` says that it was true before, and is found because the question is about that; ``languages`` are those in
    which the question may be, None for any.
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
    def matches(self) -> tuple[Match, ...]:
        """The words of the question and its context that the fact has, and where; empty if it has none."""
        return matches_of(self.fact, self.asked, self.languages)

    @property
    def matched(self) -> tuple[str, ...]:
        """The words of ``matches``."""
        return tuple(match.word for match in self.matches)


class RankedFacts(Sequence[RankedFact]):
    """Facts with their numbers for one question, best first; each is made when it is asked for."""

    def __init__(
        self,
        scored_facts: Scored,
        asked: tuple[str, ...],
        past_ids: Collection[str] = (),
        languages: tuple[str, ...] | None = None,
    ) -> None:
        self._scored, self._asked, self._past_ids, self._languages = scored_facts, asked, past_ids, languages
        # All are sorted only when one behind the best ones is asked for.
        self._left = scored_facts.places()
        self._places: list[int] = []

    @property
    def weights(self) -> Weights:
        """What similarity, confidence and recency weigh for this question; the sum is 1."""
        return self._scored.weights

    def __len__(self) -> int:
        return len(self._scored.scores)

    @overload
    def __getitem__(self, index: int) -> RankedFact: ...

    @overload
    def __getitem__(self, index: slice) -> list[RankedFact]: ...

    def __getitem__(self, index: int | slice) -> RankedFact | list[RankedFact]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        self._places += islice(self._left, max(place + 1 - len(self._places), 0))
        return self._made(self._places[place])

    def similar(self) -> list[RankedFact]:
        """Those that have something in common with the question, best first."""
        is_similar = (self._scored.similarities > 0).tolist()
        return [self._made(place) for place in self._scored.places() if is_similar[place]]

    def _made(self, place: int) -> RankedFact:
        one = self._scored
        fact = one.columns.facts[place]
        numbers = one.similarities[place].item(), fact.confidence, one.scores[place].item()
        recency = one.recencies[place].item()
        return RankedFact(fact, *numbers, self._asked, fact.id in self._past_ids, recency, self._languages)


def rank(
    facts: Sequence[Fact],
    question: str,
    context: Sequence[str] = (),
    *,
    similarity_weight: float = SIMILARITY_WEIGHT,
    confidence_weight: float = CONFIDENCE_WEIGHT,
    recency_weight: float = 0.0,
    ranker: FactRanker | None = None,
) -> RankedFacts:
    """All facts, best first: ``score = similarity_weight * similarity + confidence_weight * confidence``.

    ``+ recency_weight * recency`` where that is not 0. Similarities are divided by the best of these facts, weights by
    their sum. If no fact has a word in common with the question, the others decide. Ties: newest first.

    Args:
        facts: The facts to rank, retired ones like all others; none gives an empty list.
        question: The user's last message.
        context: The turns before it, which count less.
        similarity_weight: At least 0; a ValueError if it is not, or this and the next are both 0.
        confidence_weight: At least 0.
        recency_weight: At least 0. The recency is 1 for the newest fact and half as much for each 40 newer ones, by
            their times or by the order of ``facts``, whichever gives more. It counts fully for a question that has,
            with its context, 15 terms: then something is going on. A shorter question looks something up: with ``n``
            terms recency counts ``(n / 15) ** 2`` of that.
        ranker: Holds the documents of these facts; one that it does not hold has similarity 0. None indexes the
            facts for this call, which takes about 0.1 ms for each.
    """
    if ranker is None:
        ranker = TfidfRanker()
        ranker.add(map(document_of, facts))
    weights = Weights(similarity_weight, confidence_weight, recency_weight)
    return RankedFacts(scored(_columns_of(facts, ranker), question, context, ranker, weights), (question, *context))


# As long as a ranker lives, the numbers of the facts that it has ranked last.
_known_columns: WeakKeyDictionary[FactRanker, Columns] = WeakKeyDictionary()


def _columns_of(facts: Sequence[Fact], ranker: FactRanker) -> Columns:
    try:
        known = _known_columns.get(ranker)
        if known is None or len(known.facts) != len(facts) or any(map(is_not, known.facts, facts)):
            known = _known_columns[ranker] = Columns(tuple(facts))
    except TypeError:
        # It is somebody's own, and cannot be a key.
        return Columns(tuple(facts))
    return known


def format_facts(
    facts: Sequence[Fact],
    max_tokens: int = 2000,
    current_context: str | None = None,
    *,
    now: datetime | None = None,
) -> str:
    """The facts that matter for a conversation, best first, one line each, in at most ``max_tokens`` tokens.

    Args:
        facts: Any facts; those that do not hold now are left out. If none fits, the text is empty.
        max_tokens: Most tokens (o200k_base) of the whole text.
        current_context: The last turns, oldest first, with a blank line between two, or else one turn a line.
            The last is the question; those before it count less. None or empty: facts are ranked by confidence.
        now: When the text is shown; default: now.
    """
    shown_at = now or utc_now()
    present = [fact for fact in facts if fact.state(shown_at) == "present"]
    *context, question = turns_of(current_context or "")
    ranked = [entry.fact for entry in rank(present, question, context)]
    return "".join(map(fact_line, fit_facts(ranked, max_tokens, TokenCounter(), {})))


def turns_of(context: str) -> list[str]:
    r"""The turns of a context, oldest first: its paragraphs or, if there is only one, its lines; at least "".

    >>> turns_of("I use Python.\n\nSince 2019.\n\nHow do I write tests?")[-1]
    'How do I write tests?'
    """
    paragraphs = [part.strip() for part in context.split("\n\n") if part.strip()]
    if len(paragraphs) > 1:
        return paragraphs
    return [line.strip() for line in context.splitlines() if line.strip()] or [""]
