"""Explains why a fact is shown for a question, or not."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from llama_index_memory_ext.facts.ranking import DATE, EARLIER, OWN, SOURCE, Weights, comes_first

if TYPE_CHECKING:
    from collections.abc import Collection

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.ranking import Concern, Ranking

_COLUMNS = ("fact", "similarity", "confidence", "recency", "score", "words in common", "tokens", "shown")
_CONTENT_WIDTH, _MOST_WORDS = 48, 5
_ABOUT_SIMILARITY = "Similarity compares these facts with each other: the one that is most like the question has 1."


@dataclass(frozen=True, slots=True)
class ExplainedFact:
    """One fact for one question: its numbers in 0..1, the words in common, and why it is shown, or why not.

    ``similarity`` is relative: the fact that is most like the question has 1. ``matched`` are the words in common, and
    ``words`` the same by where they stand: "live; source: paris; earlier turn: trip", "" without any.
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
        rows = [head, *(f"<td>{'</td><td>'.join(map(escape, _cells(fact)))}</td>" for fact in self.facts)]
        return f"<table><tr>{'</tr><tr>'.join(rows)}</tr></table><p>{'<br>'.join(self.notes)}</p>"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the table must know: the tokens, how the score is made, and what similarity is."""
        parts = [f"{weight:.2f} {name}" for name, weight in self.weights._asdict().items() if round(weight, 2)]
        number = sum(fact.injected for fact in self.facts)
        shown = f"{number} fact{'s' * (number != 1)}, {self.tokens} tokens"
        tokens = f"Shown: {shown}. There is room for {self.limit} tokens: the limit without the tags around all facts."
        return tokens, f"score = {' + '.join(parts)}", _ABOUT_SIMILARITY


def explain(ranking: Ranking, limit: int, concern: Concern) -> Explanation:
    """Say which of the ranked facts fit into ``limit`` tokens, and why; ``concern`` leaves those that may be shown."""
    ranked = list(ranking.best_first())
    concerning = {entry.fact.id for entry in concern(ranked)}
    shown = {fact.id for fact in ranking.fit(limit, concern)}
    facts = []
    for entry in ranked:
        fact, matches, is_shown = entry.fact, entry.matches, entry.fact.id in shown
        if not is_shown:
            why = "left out: no room" if fact.id in concerning else "left out: too little in common"
        elif entry.past:
            why = "was true before"
        elif not entry.similarity:
            why = comes_first(fact) or "nothing in common, but room"
        else:
            why = comes_first(fact) or _why_similar(matches.values())
        words = [
            f"{place}: " * bool(place) + ", ".join([word for word in matches if matches[word] == place][:_MOST_WORDS])
            for place in sorted(dict.fromkeys(matches.values()), key=bool)
        ]
        line, numbers = ranking.showable.lines[fact.id], (entry.similarity, entry.confidence, entry.score)
        facts.append(
            ExplainedFact(fact, *numbers, tuple(matches), line.tokens, is_shown, why, entry.recency, "; ".join(words))
        )
    return Explanation(tuple(facts), sum(fact.tokens for fact in facts if fact.injected), limit, ranking.weights)


def _why_similar(places: Collection[str]) -> str:
    """By the best place of a word in common: the fact's own words, for the question itself."""
    for place in (OWN, DATE, SOURCE):
        if place in places:
            return f"matches in its {place} only" if place else "matches in its own words"
    return f"matches an {EARLIER} only" if places else "similar without a word in common"


def _cells(fact: ExplainedFact) -> tuple[str, ...]:
    content = textwrap.shorten(fact.fact.content, _CONTENT_WIDTH, placeholder="...")
    numbers = (f"{number:.2f}" for number in (fact.similarity, fact.confidence, fact.recency, fact.score))
    return (content, *numbers, fact.words, str(fact.tokens), f"yes: {fact.why}" if fact.injected else fact.why)
