"""Explains for each fact why it is shown for a question, or why not."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from llama_index_memory_ext.facts.ranking import RankedFact, fit_facts, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
        rows = [_HEAD, *((_shortened(content), *others) for content, *others in map(_cells, self.facts))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, f"{self.tokens} of {self.limit} tokens"])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [_html_row("th", _HEAD)]
        rows += [_html_row("td", _cells(fact), "" if fact.injected else " style='opacity:0.5'") for fact in self.facts]
        return f"<table>{''.join(rows)}</table><p>{self.tokens} of {self.limit} tokens</p>"


def explain(ranked: Sequence[RankedFact], limit: int, counter: TokenCounter) -> Explanation:
    """Which of the ranked facts fit into ``limit`` tokens, and why."""
    rendered: dict[str, tuple[str, int]] = {}
    shown = {fitted.line for fitted in fit_facts([entry.fact for entry in ranked], limit, counter, rendered)}
    facts = []
    for entry in ranked:
        line, tokens = render(entry.fact, counter, rendered)
        numbers = (entry.similarity, entry.confidence, entry.score)
        why = _why(entry) if line in shown else "no room"
        facts.append(ExplainedFact(entry.fact, *numbers, entry.matched, tokens, line in shown, why))
    return Explanation(tuple(facts), sum(fact.tokens for fact in facts if fact.injected), limit)


def _why(entry: RankedFact) -> str:
    if entry.fact.pinned:
        return "pinned"
    if entry.fact.category == "correction":
        return "correction"
    return "related" if entry.similarity else "by confidence"


def _cells(fact: ExplainedFact) -> tuple[str, ...]:
    numbers = (f"{number:.2f}" for number in (fact.similarity, fact.confidence, fact.score))
    shown = f"{'yes' if fact.injected else 'no'}: {fact.why}"
    return (" ".join(fact.fact.content.split()), *numbers, ", ".join(fact.matched[:5]), str(fact.tokens), shown)


def _shortened(content: str) -> str:
    return content if len(content) <= _CONTENT_WIDTH else f"{content[: _CONTENT_WIDTH - 3]}..."


def _html_row(tag: str, cells: Iterable[str], attributes: str = "") -> str:
    shown = "".join(f"<{tag} style='text-align:left'>{escape(cell)}</{tag}>" for cell in cells)
    return f"<tr{attributes}>{shown}</tr>"
