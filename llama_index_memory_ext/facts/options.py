"""Names the settings of the facts that a memory takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index_memory_ext.agent_view import Scope
    from llama_index_memory_ext.search.tfidf import FactRanker


class FactsOptions(TypedDict, total=False):
    """How facts are extracted, ranked and shown: settings of a ``RelevantFactsBlock``, which documents them."""

    agent_id: str | None
    scope: Scope | None
    extract_facts: bool
    extract_every_turns: int
    retire_with_messages: bool
    verify: bool
    categories: Sequence[str] | Mapping[str, str]
    extraction_prompt: str | None
    max_facts: int | None
    min_confidence: float
    similarity_weight: float
    confidence_weight: float
    recency_weight: float
    context_turns: int
    min_similarity: float
    general_facts: int
    ranker_factory: Callable[[], FactRanker]
