"""Says of each fact why it is shown for a question, or why not."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from llama_index_memory_ext.facts.ranking import RankedFact, fitted_lines
from llama_index_memory_ext.facts.rendering import line_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.text.tokens import TokenCounter

_HEAD = ("fact", "similarity", "confidence", "score", "matched", "tokens", "shown")
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

    def __str__(self) -> str:
        rows = [_HEAD, *map(_cells, self.facts)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, f"{self.tokens} of {self.limit} tokens"])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in _HEAD)
        body = "".join(_html_row(fact) for fact in self.facts)
        return f"<table><tr>{head}</tr>{body}</table><p>{self.tokens} of {self.limit} tokens</p>"


def explain(ranked: Sequence[RankedFact], limit: int, counter: TokenCounter) -> Explanation:
    """Which of the ranked facts fit into ``limit`` tokens, and why."""
    shown = set(fitted_lines([entry.fact for entry in ranked], limit, counter))
    facts = []
    for entry in ranked:
        line = line_of(entry.fact)
        facts.append(
            ExplainedFact(
                fact=entry.fact,
                similarity=entry.similarity,
                confidence=entry.confidence,
                score=entry.score,
                matched=entry.matched,
                tokens=counter.count(line),
                injected=line in shown,
                why=_why(entry, shown=line in shown),
            )
        )
    return Explanation(tuple(facts), sum(fact.tokens for fact in facts if fact.injected), limit)


def _why(entry: RankedFact, *, shown: bool) -> str:
    if not shown:
        return "no room"
    if entry.fact.pinned:
        return "pinned"
    if entry.fact.category == "correction":
        return "correction"
    return "related" if entry.similarity else "by confidence"


def _cells(fact: ExplainedFact) -> tuple[str, ...]:
    content = " ".join(fact.fact.content.split())
    short = content if len(content) <= _CONTENT_WIDTH else f"{content[: _CONTENT_WIDTH - 3]}..."
    numbers = (f"{fact.similarity:.2f}", f"{fact.confidence:.2f}", f"{fact.score:.2f}")
    answer = f"yes: {fact.why}" if fact.injected else f"no: {fact.why}"
    return (short, *numbers, ", ".join(fact.matched[:5]), str(fact.tokens), answer)


def _html_row(fact: ExplainedFact) -> str:
    cells = (" ".join(fact.fact.content.split()), *_cells(fact)[1:])
    style = "" if fact.injected else " style='opacity:0.5'"
    return f"<tr{style}>" + "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in cells) + "</tr>"
