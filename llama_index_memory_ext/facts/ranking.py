"""Ranks facts for a question, renders those that fit a token limit, and explains why each is shown or not."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.fact import CONFIDENCE_WEIGHT, SIMILARITY_WEIGHT, utc_now
from llama_index_memory_ext.search.tfidf import CONTEXT_SHARE, Document, TfidfRanker, similarities_with_context
from llama_index_memory_ext.search.tokenization import date_words, terms_of, words_of
from llama_index_memory_ext.text.messages import escape_tags
from llama_index_memory_ext.text.tokens import CountedText, TokenCounter, fit, fit_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.search.tfidf import FactRanker

# A line without content: where its tokens do not fit, no fact does.
EMPTY_LINE = '<fact date="2026-11-20"></fact>\n'
# The share of a limit that pinned facts and corrections may take before all others.
FIRST_SHARE = 0.25
_COLUMNS = ("fact", "similarity", "confidence", "score", "matched", "tokens", "shown")
_CONTENT_WIDTH = 48


class RankedFact(NamedTuple):
    """A fact with its numbers for one question, all 0..1. ``asked`` is the question and the turns before it.

    ``past`` says that it was true before, and is found because the question is about that.
    """

    fact: Fact
    similarity: float
    confidence: float
    score: float
    asked: tuple[str, ...] = ()
    past: bool = False

    @property
    def matched(self) -> tuple[str, ...]:
        """The words of the question and its context that the fact has; empty if it has none."""
        document = document_of(self.fact)
        texts = (document.text, document.date, *(text for text, _ in document.context))
        known = {term for text in texts for term in terms_of(text)}
        asked = (word for text in self.asked for word in words_of(text))
        return tuple(dict.fromkeys(word.written for word in asked if word.term in known))


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


def document_of(fact: Fact) -> Document:
    """What a ranker finds a fact by: its content, the day on which it began and, with less weight, its source."""
    context = ((fact.source, CONTEXT_SHARE),) if fact.source else ()
    return Document(fact.id, fact.content, context, date_words(fact.began))


def rank(
    facts: Sequence[Fact],
    question: str,
    context: Sequence[str] = (),
    *,
    similarity_weight: float = SIMILARITY_WEIGHT,
    confidence_weight: float = CONFIDENCE_WEIGHT,
    ranker: FactRanker | None = None,
) -> list[RankedFact]:
    """All facts, best first: ``score = similarity_weight * similarity + confidence_weight * confidence``.

    Similarities are divided by the best of these facts, weights by their sum. If no fact has a word in common with the
    question, confidence decides. Ties: newest first.

    Args:
        facts: The facts to rank, retired ones like all others; none gives an empty list.
        question: The user's last message.
        context: The turns before it, which count less.
        similarity_weight: At least 0; a ValueError if it is not, or both weights are 0.
        confidence_weight: At least 0.
        ranker: Holds the documents of these facts; one that it does not hold has similarity 0. None indexes the
            facts for this call, which takes about 0.1 ms for each.
    """
    if ranker is None:
        ranker = TfidfRanker()
        ranker.add(map(document_of, facts))
    shares = shares_of(similarity_weight, confidence_weight)
    order, similarities, scores = ordered(facts, question, context, ranker, shares)
    asked = (question, *context)
    return [RankedFact(facts[i], similarities[i], facts[i].confidence, scores[i], asked) for i in order]


def ordered(
    facts: Sequence[Fact], question: str, context: Sequence[str], ranker: FactRanker, shares: tuple[float, float]
) -> tuple[list[int], list[float], list[float]]:
    """The indexes of the facts, best first, and the similarity and the score of each, in the given order."""
    ids = [fact.id for fact in facts]
    similarities: list[float] = similarities_with_context(ranker, ids, question, context).tolist()
    by_similarity, by_confidence = shares
    pairs = zip(facts, similarities, strict=True)
    scores = [by_similarity * similarity + by_confidence * fact.confidence for fact, similarity in pairs]
    order = sorted(range(len(facts)), key=lambda i: (scores[i], facts[i].created_at), reverse=True)
    return order, similarities, scores


def shares_of(similarity_weight: float, confidence_weight: float) -> tuple[float, float]:
    """The two weights divided by their sum; a ValueError if one is negative, or both are 0."""
    total = similarity_weight + confidence_weight
    if similarity_weight < 0 or confidence_weight < 0 or not total:
        raise ValueError(
            "similarity_weight and confidence_weight must be at least 0 and not both 0, "
            f"saw {similarity_weight} and {confidence_weight}. "
            f"The defaults are {SIMILARITY_WEIGHT} and {CONFIDENCE_WEIGHT}."
        )
    return similarity_weight / total, confidence_weight / total


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


def fit_facts(facts: Sequence[Fact], limit: int, counter: TokenCounter, rendered: dict[str, CountedText]) -> list[Fact]:
    """The facts that fit into ``limit`` tokens, in the given order, but pinned facts and corrections first."""
    first = [fact for fact in facts if _why_first(fact)]
    tokens = [render(fact, counter, rendered).tokens for fact in first]
    front = {first[i].id for i in fit_tokens(tokens, int(FIRST_SHARE * limit))}
    if front:
        facts = sorted(facts, key=lambda fact: fact.id not in front)
    least = counter.count(EMPTY_LINE)
    lines = (render(fact, counter, rendered) for fact in facts)
    if counter.adds_up:
        kept = fit_tokens((line.tokens for line in lines), limit, least=least)
    else:
        kept = fit(list(lines), limit, counter, least=least)
    return [facts[i] for i in kept]


def explain(ranked: Sequence[RankedFact], limit: int, counter: TokenCounter) -> Explanation:
    """Which of the ranked facts fit into ``limit`` tokens, and why."""
    rendered: dict[str, CountedText] = {}
    shown = {fact.id for fact in fit_facts([entry.fact for entry in ranked], limit, counter, rendered)}
    facts = []
    for entry in ranked:
        tokens = render(entry.fact, counter, rendered).tokens
        numbers = entry.similarity, entry.confidence, entry.score
        why = _why_first(entry.fact) or ("related" if entry.similarity else "by confidence")
        why = "past" if entry.past else why
        outcome = (True, why) if entry.fact.id in shown else (False, "no room")
        facts.append(ExplainedFact(entry.fact, *numbers, entry.matched, tokens, *outcome))
    return Explanation(tuple(facts), sum(fact.tokens for fact in facts if fact.injected), limit)


def _why_first(fact: Fact) -> str:
    """Why a fact comes before those that match better; "" if it does not, as what is retired."""
    if fact.retired_at is not None:
        return ""
    if fact.pinned:
        return "pinned"
    return "correction" if fact.category == "correction" else ""


def _cells(fact: ExplainedFact) -> tuple[str, ...]:
    content = textwrap.shorten(fact.fact.content, _CONTENT_WIDTH, placeholder="...")
    numbers = (f"{number:.2f}" for number in (fact.similarity, fact.confidence, fact.score))
    shown = f"{'yes' if fact.injected else 'no'}: {fact.why}"
    return (content, *numbers, ", ".join(fact.matched[:5]), str(fact.tokens), shown)
