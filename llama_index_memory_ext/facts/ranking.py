"""Ranks facts for a question, by how near they are and how sure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from llama_index_memory_ext.facts.rendering import EMPTY_LINE, line_of
from llama_index_memory_ext.search.inverted_index import Similarities
from llama_index_memory_ext.search.tfidf import (
    CONTEXT_SHARE,
    Document,
    FactRanker,
    TfidfRanker,
    nearness,
    stem,
    terms_of,
)
from llama_index_memory_ext.search.tokenization import date_words, words_of
from llama_index_memory_ext.text.budget import fit, fit_tokens, put_first
from llama_index_memory_ext.text.tokens import TokenCounter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from llama_index_memory_ext.fact import Fact

SIMILARITY_WEIGHT = 0.6
CONFIDENCE_WEIGHT = 0.4
FIRST_CATEGORIES = frozenset({"correction"})


def document_of(fact: Fact) -> Document:
    """A fact as it is found: by its content, the day of its creation and, with less weight, its source."""
    context = ((fact.source, CONTEXT_SHARE),) if fact.source else ()
    return Document(fact.id, fact.content, context, date_words(fact.created_at))


@dataclass(frozen=True, slots=True)
class RankedFact:
    """A fact with its marks for one question, all 0..1. ``asked`` is the question and what was said before it."""

    fact: Fact
    similarity: float
    confidence: float
    score: float
    asked: tuple[str, ...] = ()

    @property
    def matched(self) -> tuple[str, ...]:
        """The words, as they were asked, by which the fact is found; empty if it shares none."""
        document = document_of(self.fact)
        texts = (document.text, document.date, *(text for text, _ in document.context))
        known = {term for text in texts for term in terms_of(text)}
        asked = (word for text in self.asked for word in words_of(text, stem))
        return tuple(dict.fromkeys(word.written for word in asked if word.term in known))


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

    Args:
        facts: The facts to rank, retired ones like all others; none gives an empty list.
        question: The user's last message.
        context: What was said before it. Each text is scored apart, divided by its best, and counts a fifth of
            the question, less where there are more than two.
        similarity_weight: At least 0.
        confidence_weight: At least 0. The two are divided by their sum.
        ranker: Knows the documents of these facts; one that it does not know has similarity 0. None indexes the
            facts for this call, which takes some 0.1 ms for each.

    The similarity is the ranker's, divided by that of the best of these facts: raw cosines are too
    small to stand against confidences. Where no fact has a word in common, confidence decides. Ties: newest first.

    Raises:
        ValueError: A negative weight, or both 0.
    """
    if ranker is None:
        ranker = TfidfRanker()
        ranker.add(map(document_of, facts))
    near = similarities_of([fact.id for fact in facts], question, context, ranker)
    scores = scores_of(facts, near, similarity_weight, confidence_weight)
    asked = (question, *context)
    return [RankedFact(facts[i], near[i], facts[i].confidence, scores[i], asked) for i in best_first(facts, scores)]


def scores_of(
    facts: Sequence[Fact], similarities: Sequence[float], similarity_weight: float, confidence_weight: float
) -> list[float]:
    """The score of each fact, 0..1; the weights are divided by their sum.

    Raises:
        ValueError: A negative weight, or both 0.
    """
    near, sure = shares_of(similarity_weight, confidence_weight)
    return [near * value + sure * fact.confidence for fact, value in zip(facts, similarities, strict=True)]


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
    """The places of the facts by score, the best first; ties: the newest first."""
    keys = [(score, fact.created_at) for score, fact in zip(scores, facts, strict=True)]
    return sorted(range(len(facts)), key=keys.__getitem__, reverse=True)


def similarities_of(ids: Sequence[str], question: str, context: Sequence[str], ranker: FactRanker) -> list[float]:
    """The similarity of each document to the question and what was said before it, as ``nearness`` has it."""
    near: list[float] = nearness(lambda text: _raw(ranker.similarities(text), ids), question, context).tolist()
    return near


def _raw(found: Mapping[str, float], ids: Sequence[str]) -> NDArray[np.float64]:
    # Looked up by the thousand, which takes longer one by one than all the rest.
    return found.of(ids) if isinstance(found, Similarities) else np.array([found.get(name, 0.0) for name in ids])


def format_facts(facts: Sequence[Fact], max_tokens: int = 2000, current_context: str | None = None) -> str:
    """The facts that matter for what is being talked about, best first, as lines of at most ``max_tokens`` tokens.

    Args:
        facts: Any facts; retired ones are left out. None that fits gives "".
        max_tokens: Most tokens (o200k_base) of the whole text.
        current_context: The last turns, oldest first, with a blank line between two, or else a line
            for each: the last is the question, and those before it count little. None or empty: by confidence.
    """
    *context, question = turns_of(current_context or "")
    ranked = rank([fact for fact in facts if not fact.retired], question, context)
    return "".join(fitted_lines([entry.fact for entry in ranked], max_tokens, TokenCounter()))


def turns_of(context: str) -> list[str]:
    r"""The turns of a context, oldest first: parted by blank lines or, where there is none, by lines; at least "".

    >>> turns_of("I use Python.\n\nSince 2019.\n\nHow do I write tests?")[-1]
    'How do I write tests?'
    """
    turns = [part.strip() for part in context.split("\n\n") if part.strip()]
    if len(turns) == 1:
        turns = [line.strip() for line in turns[0].splitlines() if line.strip()]
    return turns or [""]


def fitted_lines(
    facts: Sequence[Fact], limit: int, counter: TokenCounter, rendered: dict[str, tuple[str, int]] | None = None
) -> list[str]:
    """The lines of the facts that fit, in the given order, pinned facts and corrections first."""
    return [entry.line for entry in fitted(facts, limit, counter, rendered)]


class FittedFact(NamedTuple):
    """A fact that is shown: its line, and the tokens of that."""

    fact: Fact
    line: str
    tokens: int


def fitted(
    facts: Sequence[Fact], limit: int, counter: TokenCounter, rendered: dict[str, tuple[str, int]] | None = None
) -> list[FittedFact]:
    """The same facts, each with its line.

    ``rendered`` remembers the line and the tokens of each fact, by its id, from one call to the next.
    """
    known = {} if rendered is None else rendered

    def line(fact: Fact) -> tuple[str, int]:
        entry = known.get(fact.id)
        if entry is None:
            text = line_of(fact)
            entry = known[fact.id] = (text, counter.count(text))
        return entry

    first = [fact.pinned or fact.category in FIRST_CATEGORIES for fact in facts]
    if any(first):
        tokens = [line(fact)[1] if marked else 0 for fact, marked in zip(facts, first, strict=True)]
        facts = [facts[i] for i in put_first(tokens, first, limit)]
    least = counter.count(EMPTY_LINE)
    if not counter.adds_up:
        lines = [line(fact)[0] for fact in facts]
        kept: Iterable[int] = fit(lines, limit, counter, least=least).kept
    else:
        kept = fit_tokens((line(fact)[1] for fact in facts), limit, least=least)
    return [FittedFact(facts[i], *line(facts[i])) for i in kept]
