"""Explains why a fact is shown for a question, or not."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from llama_index_memory_ext.facts.scoring import comes_first, fit_facts, render

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.ranking import RankedFact
    from llama_index_memory_ext.text.tokens import CountedText, TokenCounter

_COLUMNS = ("fact", "similarity", "confidence", "score", "matched", "tokens", "shown")
_CONTENT_WIDTH = 48


@dataclass(frozen=True, slots=True)
class ExplainedFact:
    """One fact for one question: similarity, confidence and score in 0..1, and why it is shown, or why not."""

    fact: Fact
    similarity: float
    confidence: float
    score: float
    matched: tuple[str, ...]
    tokens: int
    injected: bool
    why: str


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The facts for one question, best first, and the tokens of those that are shown."""

    facts: tuple[ExplainedFact, ...]
    tokens: int
    limit: int

    def __repr__(self) -> str:
        rows = [_COLUMNS, *map(_cells, self.facts)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, f"{self.tokens} of {self.limit} tokens"])

    def _repr_html_(self) -> str:
        rows = [f"<td>{'</td><td>'.join(map(escape, row))}</td>" for row in (_COLUMNS, *map(_cells, self.facts))]
        return f"<table><tr>{'</tr><tr>'.join(rows)}</tr></table><p>{self.tokens} of {self.limit} tokens</p>"


def explain(ranked: Sequence[RankedFact], limit: int, counter: TokenCounter, concerned: Collection[str]) -> Explanation:
    """Which of the ranked facts fit into ``limit`` tokens, and why; ``concerned`` are the ids of those to be shown."""
    rendered: dict[str, CountedText] = {}
    known = {entry.fact.id: entry.fact for entry in ranked if entry.fact.id in concerned}
    shown = {fact.id for fact in fit_facts(known.values(), limit, counter, rendered)}
    facts = []
    for entry in ranked:
        tokens = render(entry.fact, counter, rendered).tokens
        numbers = entry.similarity, entry.confidence, entry.score
        is_shown = entry.fact.id in shown
        why = _why_shown(entry) if is_shown else "no room" if entry.fact.id in known else "not concerned"
        facts.append(ExplainedFact(entry.fact, *numbers, entry.matched, tokens, is_shown, why))
    return Explanation(tuple(facts), sum(fact.tokens for fact in facts if fact.injected), limit)


def _why_shown(entry: RankedFact) -> str:
    if entry.past:
        return "past"
    return comes_first(entry.fact) or ("related" if entry.similarity else "by confidence")


def _cells(fact: ExplainedFact) -> tuple[str, ...]:
    content = textwrap.shorten(fact.fact.content, _CONTENT_WIDTH, placeholder="...")
    numbers = (f"{number:.2f}" for number in (fact.similarity, fact.confidence, fact.score))
    shown = f"{'yes' if fact.injected else 'no'}: {fact.why}"
    return (content, *numbers, ", ".join(fact.matched[:5]), str(fact.tokens), shown)
