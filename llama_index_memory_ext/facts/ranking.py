"""Ranks facts for a question and renders those that fit a token limit, best first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.search.tfidf import (
    CONTEXT_SHARE,
    Document,
    FactRanker,
    TfidfRanker,
    similarities_with_context,
)
from llama_index_memory_ext.search.tokenization import date_words, terms_of, words_of
from llama_index_memory_ext.text.messages import escape_tags
from llama_index_memory_ext.text.tokens import TokenCounter, fit, fit_tokens, put_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.fact import Fact

SIMILARITY_WEIGHT = 0.6
CONFIDENCE_WEIGHT = 0.4
# A line without content: where its tokens do not fit, no fact does.
EMPTY_LINE = '<fact date="2026-11-20"></fact>\n'


@dataclass(frozen=True, slots=True)
class RankedFact:
    """A fact with its numbers for one question, all 0..1. ``asked`` is the question and the turns before it."""

    fact: Fact
    similarity: float
    confidence: float
    score: float
    asked: tuple[str, ...] = ()

    @property
    def matched(self) -> tuple[str, ...]:
        """The words of the question and its context that the fact has; empty if it has none."""
        document = document_of(self.fact)
        texts = (document.text, document.date, *(text for text, _ in document.context))
        known = {term for text in texts for term in terms_of(text)}
        asked = (word for text in self.asked for word in words_of(text))
        return tuple(dict.fromkeys(word.written for word in asked if word.term in known))


class FittedFact(NamedTuple):
    """A fact that is shown, its line, and the tokens of the line."""

    fact: Fact
    line: str
    tokens: int


def document_of(fact: Fact) -> Document:
    """What a ranker finds a fact by: its content, the day of its creation and, with less weight, its source."""
    context = ((fact.source, CONTEXT_SHARE),) if fact.source else ()
    return Document(fact.id, fact.content, context, date_words(fact.created_at))


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

    Similarities are the ranker's, divided by the best of these facts: raw cosines are too small to be weighed against
    confidences. If no fact has a word in common with the question, confidence decides. Ties: newest first.

    Args:
        facts: The facts to rank, retired ones like all others; none gives an empty list.
        question: The user's last message.
        context: The turns before it. Each is scored by itself, divided by its best, and counts a fifth of
            the question, less where there are more than two.
        similarity_weight: At least 0.
        confidence_weight: At least 0. The two are divided by their sum.
        ranker: Holds the documents of these facts; one that it does not hold has similarity 0. None indexes the
            facts for this call, which takes about 0.1 ms for each.

    Raises:
        ValueError: A negative weight, or both 0.
    """
    if ranker is None:
        ranker = TfidfRanker()
        ranker.add(map(document_of, facts))
    similarities = similarities_of([fact.id for fact in facts], question, context, ranker)
    scores = scores_of(facts, similarities, similarity_weight, confidence_weight)
    asked = (question, *context)
    return [
        RankedFact(facts[i], similarities[i], facts[i].confidence, scores[i], asked) for i in best_first(facts, scores)
    ]


def similarities_of(ids: Sequence[str], question: str, context: Sequence[str], ranker: FactRanker) -> list[float]:
    """The similarity of each document to the question and the turns before it, the best 1; all 0 if none is."""
    similarities: list[float] = similarities_with_context(ranker, ids, question, context).tolist()
    return similarities


def scores_of(
    facts: Sequence[Fact], similarities: Sequence[float], similarity_weight: float, confidence_weight: float
) -> list[float]:
    """The score (0..1) of each fact.

    Raises:
        ValueError: A negative weight, or both 0.
    """
    for_similarity, for_confidence = shares_of(similarity_weight, confidence_weight)
    pairs = zip(facts, similarities, strict=True)
    return [for_similarity * similarity + for_confidence * fact.confidence for fact, similarity in pairs]


def shares_of(similarity_weight: float, confidence_weight: float) -> tuple[float, float]:
    """The two weights divided by their sum.

    Raises:
        ValueError: A negative weight, or both 0.
    """
    total = similarity_weight + confidence_weight
    if similarity_weight < 0 or confidence_weight < 0 or not total:
        raise ValueError(
            "similarity_weight and confidence_weight must be at least 0 and not both 0, "
            f"saw {similarity_weight} and {confidence_weight}. The defaults are {SIMILARITY_WEIGHT} and "
            f"{CONFIDENCE_WEIGHT}."
        )
    return similarity_weight / total, confidence_weight / total


def best_first(facts: Sequence[Fact], scores: Sequence[float]) -> list[int]:
    """The indexes of the facts by score, best first. Ties: newest first."""
    return sorted(range(len(facts)), key=lambda i: (scores[i], facts[i].created_at), reverse=True)


def format_facts(facts: Sequence[Fact], max_tokens: int = 2000, current_context: str | None = None) -> str:
    """The facts that matter for a conversation, best first, one line each, in at most ``max_tokens`` tokens.

    Args:
        facts: Any facts; retired ones are left out. If none fits, the text is empty.
        max_tokens: Most tokens (o200k_base) of the whole text.
        current_context: The last turns, oldest first, with a blank line between two, or else one turn a line.
            The last is the question; those before it count less. None or empty: facts are ranked by confidence.
    """
    *context, question = turns_of(current_context or "")
    ranked = rank([fact for fact in facts if not fact.retired], question, context)
    fitted = fit_facts([entry.fact for entry in ranked], max_tokens, TokenCounter(), {})
    return "".join(entry.line for entry in fitted)


def turns_of(context: str) -> list[str]:
    r"""The turns of a context, oldest first: its paragraphs or, if there is only one, its lines; at least "".

    >>> turns_of("I use Python.\n\nSince 2019.\n\nHow do I write tests?")[-1]
    'How do I write tests?'
    """
    turns = [part.strip() for part in context.split("\n\n") if part.strip()]
    if len(turns) == 1:
        turns = [line.strip() for line in turns[0].splitlines() if line.strip()]
    return turns or [""]


def fact_line(fact: Fact) -> str:
    """One fact as one line: ``<fact date="2026-11-20">Prefers pytest for testing</fact>`` and a newline.

    The date is the day (UTC) on which the fact was created. White space in the content becomes one space. Category
    and confidence are left out: they would double the tokens of a short fact, and serve only the ranking.
    """
    content = escape_tags(" ".join(fact.content.split()))
    return f'<fact date="{fact.created_at.date().isoformat()}">{content}</fact>\n'


def split_lines(text: str) -> list[str]:
    """The lines of rendered facts, each with its newline."""
    return [f"{line}\n" for line in text.split("\n") if line]


def render(fact: Fact, counter: TokenCounter, rendered: dict[str, tuple[str, int]]) -> tuple[str, int]:
    """The line of a fact and its tokens. ``rendered`` caches them by the id of the fact."""
    if fact.id not in rendered:
        line = fact_line(fact)
        rendered[fact.id] = line, counter.count(line)
    return rendered[fact.id]


def fit_facts(
    facts: Sequence[Fact], limit: int, counter: TokenCounter, rendered: dict[str, tuple[str, int]]
) -> list[FittedFact]:
    """The facts that fit into ``limit`` tokens, in the given order, but pinned facts and corrections first.

    ``rendered`` caches the lines, as for ``render``, from one call to the next.
    """
    facts = _important_first(facts, limit, counter, rendered)
    least = counter.count(EMPTY_LINE)
    lines = (render(fact, counter, rendered) for fact in facts)
    if counter.adds_up:
        kept = fit_tokens((tokens for _, tokens in lines), limit, least=least)
    else:
        kept = fit([line for line, _ in lines], limit, counter, least=least)
    return [FittedFact(facts[i], *render(facts[i], counter, rendered)) for i in kept]


def _important_first(
    facts: Sequence[Fact], limit: int, counter: TokenCounter, rendered: dict[str, tuple[str, int]]
) -> Sequence[Fact]:
    first = [fact.pinned or fact.category == "correction" for fact in facts]
    if not any(first):
        return facts
    tokens = [
        render(fact, counter, rendered)[1] if comes_first else 0 for fact, comes_first in zip(facts, first, strict=True)
    ]
    return [facts[i] for i in put_first(tokens, first, limit)]
