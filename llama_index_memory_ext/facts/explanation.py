"""Facts as text, and why each of them is shown for a question, or not."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_index_memory_ext.fact import Fact, utc_now
from llama_index_memory_ext.facts.lines import counted_line, why_first
from llama_index_memory_ext.facts.ranking import (
    IN_PROFILE,
    RankedFact,
    Ranking,
    ShowableFacts,
    Weights,
    index_of,
)
from llama_index_memory_ext.text.tokens import TokenCounter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


def format_facts(
    facts: Sequence[Fact],
    max_tokens: int = 2000,
    current_context: str | None = None,
    *,
    now: datetime | None = None,
) -> str:
    """Return the facts that matter for a conversation, best first, a line each, in at most ``max_tokens`` tokens.

    Args:
        facts: Any facts; facts that do not hold now are left out. If no fact fits, the
            text is empty.
        max_tokens: Maximum tokens (o200k_base) of the whole text.
        current_context: The last turns, oldest first, separated by blank lines, or else
            one turn per line. The last turn is the question; earlier turns count less.
            None or empty: facts are ranked by confidence.
        now: When the text is shown; default: now.

    Examples:
        >>> from datetime import datetime, timezone
        >>> from llama_index_memory_ext import Fact
        >>> day = datetime(2026, 11, 20, tzinfo=timezone.utc)
        >>> facts = [Fact(content=text, created_at=day) for text in ("Likes tea", "Lives in Rome")]
        >>> print(format_facts(facts, current_context="Where do I live?", now=day), end="")
        <fact date="2026-11-20">Lives in Rome</fact>
        <fact date="2026-11-20">Likes tea</fact>
    """
    shown_at = now or utc_now()
    present = [fact for fact in facts if fact.state(shown_at) == "present"]
    *context, question = _turns_in(current_context or "")
    counter = TokenCounter()
    lines = {fact.id: counted_line(fact, counter) for fact in present}
    showable = ShowableFacts(present, index_of(present), lines=lines)
    ranking = showable.score(question, context, Weights())
    return "".join(lines[entry.fact.id].text for entry in ranking.fit(max_tokens))


def _turns_in(text: str) -> list[str]:
    """Return the turns of a text, between blank lines or else one a line; [""] for none."""
    text = text.strip()
    turns = text.split("\n\n") if "\n\n" in text else text.splitlines()
    return list(filter(None, map(str.strip, turns))) or [""]


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
_ABOUT_SIMILARITY = "Similarity compares these facts with each other: the one that is most like the question has 1."


@dataclass(frozen=True, slots=True)
class ExplainedFact:
    """A fact with its numbers for one question, each in 0..1, and why it is shown or not.

    ``similarity``: the fact that is most like the question has 1.
    ``matched``: the words in common.
    ``injected``: whether the fact is shown.
    ``place``: "profile", before the record, or "question"; "" if it is not shown.
    """

    fact: Fact
    similarity: float
    confidence: float
    score: float
    matched: tuple[str, ...]
    tokens: int
    injected: bool
    why: str
    recency: float
    place: str


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The facts for one question, best first, the tokens of the shown facts, and the weights of the numbers.

    ``omitted``: the number of further facts, which are not explained.
    """

    facts: tuple[ExplainedFact, ...]
    tokens: int
    limit: int
    weights: Weights
    omitted: int

    def __repr__(self) -> str:
        rows = [_COLUMNS, *map(_cells, self.facts)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *self.notes])

    @property
    def notes(self) -> tuple[str, ...]:
        """The tokens, the formula of the score, and the meaning of similarity, for below the table."""
        parts = [
            f"{weight:.2f} {name}"
            for name, weight in self.weights._asdict().items()
            if round(weight, 2)
        ]
        number = sum(fact.injected for fact in self.facts)
        facts = f"{number} fact{'s' * (number != 1)}"
        tokens = (
            f"Shown: {facts}, {self.tokens} tokens. There is room for {self.limit} tokens: "
            "the limit without the tags around all facts."
        )
        return tokens, f"score = {' + '.join(parts)}", _ABOUT_SIMILARITY


def explain(ranking: Ranking, most: int | None = None) -> Explanation:
    """Return which of the ranked facts are shown in the prompt, and why.

    Facts that are not shown are explained if they are among the best ``most``; None:
    all of them.
    """
    limit = ranking.surroundings.limit
    ranked = list(ranking.best_first())
    reasons = dict.fromkeys(
        ranking.surroundings.stated, "left out: its message is in the prompt"
    )
    for entry in ranking.concerning():
        reasons[entry.fact.id] = "left out: no room"
    entries = [*ranking.profile(), *ranking.fit(limit)]
    places = {entry.fact.id: entry.place for entry in entries}
    facts = []
    tokens = 0
    for number, entry in enumerate(ranked, 1):
        fact = entry.fact
        place = places.get(fact.id, "")
        if most is not None and number > most and not place:
            continue
        line = ranking.showable.lines[fact.id]
        why = reasons.get(fact.id, "left out: too little in common")
        if place:
            tokens += line.tokens
            why = _why_shown(entry, place)
        if place == IN_PROFILE:
            limit += line.tokens
        facts.append(
            ExplainedFact(
                fact,
                entry.similarity,
                entry.confidence,
                entry.score,
                entry.matched,
                line.tokens,
                bool(place),
                why,
                entry.recency,
                place,
            )
        )
    omitted = len(ranked) - len(facts)
    return Explanation(tuple(facts), tokens, limit, ranking.weights, omitted)


def _why_shown(entry: RankedFact, place: str) -> str:
    if why_first(entry.fact):
        return why_first(entry.fact)
    if place == IN_PROFILE:
        return "in the profile"
    if entry.past:
        return "was true before"
    if not entry.similarity:
        return "nothing in common, but room"
    return "like the question"


def _cells(fact: ExplainedFact) -> tuple[str, ...]:
    content = textwrap.shorten(fact.fact.content, _CONTENT_WIDTH, placeholder="...")
    if fact.fact.said_as in ("planned", "past"):
        content += f" ({fact.fact.said_as})"
    numbers = (fact.similarity, fact.confidence, fact.recency, fact.score)
    return (
        content,
        *map("{:.2f}".format, numbers),
        ", ".join(fact.matched[:_MOST_WORDS]),
        str(fact.tokens),
        f"yes: {fact.why}" if fact.injected else fact.why,
    )
