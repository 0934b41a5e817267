"""Facts in the order in which they are shown for a question, outside a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.facts.ranking import (
    RankedFact,
    ShowableFacts,
    Weights,
    index_of,
)
from llama_index_memory_ext.search.tfidf import FactRanker

SIMILARITY_AND_CONFIDENCE = Weights()


def rank(
    facts: Sequence[Fact],
    question: str,
    context: Sequence[str] = (),
    weights: Weights = SIMILARITY_AND_CONFIDENCE,
    ranker: FactRanker | None = None,
) -> list[RankedFact]:
    """All facts, best first; the ranker holds these facts, by default as an index of their words."""
    showable = ShowableFacts(facts, index_of(facts) if ranker is None else ranker)
    return list(showable.score(question, context, weights).best_first())
