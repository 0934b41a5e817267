"""Explains why a fact is shown for a question, or not."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from llama_index_memory_ext.facts.ranking import DATE, EARLIER, OWN, SOURCE, Weights, comes_first, fit_facts, render

if TYPE_CHECKING:
    from collections.abc import Collection

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.ranking import Concern, Match, RankedFact, Ranking
    from llama_index_memory_ext.text.tokens import CountedText, TokenCounter

_COLUMNS = ("fact", "similarity", "confidence", "recency", "score", "words in common", "tokens", "shown")
_CONTENT_WIDTH, _MOST_WORDS = 48, 5
_NO_ROOM, _TOO_LITTLE = "left out: no room", "left out: too little in common"
_ABOUT_SIMILARITY = "Similarity compares these facts with each other: the one that is most like the question has 1."


@dataclass(frozen=True, slots=True)
class ExplainedFact:
    """One fact for one question: its numbers in 0..1, the words in common, and why it is shown, or why not.

    ``similarity`` is relative: the fact that is most like the question has 1. ``matched`` are the words in common, and
    ``matches`` the same with where the fact has them.
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
    matches: tuple[Match, ...] = ()

    @property
    def words(self) -> str:
        """The words in common by where they stand: "live; source: paris; earlier turn: trip"; "" without any."""
        places: dict[str, list[str]] = {}
        for match in sorted(self.matches, key=lambda match: bool(match.place)):
            places.setdefault(match.place, []).append(match.word)
        parts = (f"{place}: " * bool(place) + ", ".join(words[:_MOST_WORDS]) for place, words in places.items())
        return "; ".join(parts)


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


def explain(ranking: Ranking, limit: int, counter: TokenCounter, concern: Concern) -> Explanation:
    """Say which of the ranked facts fit into ``limit`` tokens, and why; ``concern`` chooses those that may be shown."""
    lines: dict[str, CountedText] = {}
    ranked = list(ranking.best_first())
    known = {entry.fact.id: entry.fact for entry in concern(ranked)}
    shown = {fact.id for fact in fit_facts(known.values(), filter(comes_first, known.values()), limit, counter, lines)}
    facts = []
    for entry in ranked:
        tokens, matches = render(entry.fact, counter, lines).tokens, entry.matches
        is_shown = entry.fact.id in shown
        why = _why_shown(entry, matches) if is_shown else _NO_ROOM if entry.fact.id in known else _TOO_LITTLE
        matched = tuple(match.word for match in matches)
        numbers = entry.similarity, entry.confidence, entry.score
        facts.append(ExplainedFact(entry.fact, *numbers, matched, tokens, is_shown, why, entry.recency, matches))
    return Explanation(tuple(facts), sum(fact.tokens for fact in facts if fact.injected), limit, ranking.weights)


def _why_shown(entry: RankedFact, matches: Collection[Match]) -> str:
    if entry.past:
        return "was true before"
    return comes_first(entry.fact) or (_why_similar(matches) if entry.similarity else "nothing in common, but room")


def _why_similar(matches: Collection[Match]) -> str:
    """By the best of the matches: one in the fact's own words, for the question itself."""
    places = (OWN, DATE, SOURCE)
    best = min(matches, key=lambda match: (match.earlier, places.index(match.where)), default=None)
    if best is None:
        return "similar without a word in common"
    if best.earlier:
        return f"matches an {EARLIER} only"
    return "matches in its own words" if best.where == OWN else f"matches in its {best.where} only"


def _cells(fact: ExplainedFact) -> tuple[str, ...]:
    content = textwrap.shorten(fact.fact.content, _CONTENT_WIDTH, placeholder="...")
    numbers = (f"{number:.2f}" for number in (fact.similarity, fact.confidence, fact.recency, fact.score))
    return (content, *numbers, fact.words, str(fact.tokens), f"yes: {fact.why}" if fact.injected else fact.why)
