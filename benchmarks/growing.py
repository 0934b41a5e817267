"""How much of the evidence for a question is brought while the facts of a user grow, within 250 to 4,000 tokens.

    python -m benchmarks.growing [FOLDER]

FOLDER (default ``../shared/recall``) holds ``realmem_dev.json``, the facts and questions of five users of RealMem over
some months. A ranking is scored on them by the mean over five token budgets of the share of a question's evidence that
is within the budget (``scores.py``). A question is asked among the facts that are known by then, and leans
on the user's messages before it.

A fact has its day, and no confidence unless the file gives one. ``as the block ranks`` is the order of the package with
all default weights of ``RelevantFactsBlock`` and the context that it looks at; ``similarity`` leaves the other weights
out, ``by confidence`` the question. Where all facts are equally certain, ``similarity`` is what is found without
recency, and ``by confidence`` newest first, so it has no series.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from functools import partial

from benchmarks.command import NOT_MEASURED, named_path, shown
from benchmarks.recall import CONFIDENCE, DEFAULT_FOLDER, NEWEST, WORDS, Item
from benchmarks.report import Measure, Promise, Series, publish
from benchmarks.scores import BUDGETS, Recall, found_within, recall_of, shares_of
from llama_index_memory_ext.blocks.facts import RelevantFactsBlock
from llama_index_memory_ext.fact import (
    RECENCY_WEIGHT,
    Fact,
)
from llama_index_memory_ext.facts.ranking import ShowableFacts, Weights, document_of
from llama_index_memory_ext.search.tfidf import TfidfRanker

# What the order of the block must reach, in %.
LEAST_MEAN_RECALL = 56.0

_FIELDS = RelevantFactsBlock.model_fields
DEFAULT_WEIGHTS = Weights(recency=RECENCY_WEIGHT)
SIMILARITY_ALONE = Weights(1.0, 0.0)
# The question is one of the turns.
TURNS_BEFORE: int = _FIELDS["context_turns"].default - 1
BLOCK = "as the block ranks"
DATA = "realmem_dev.json"


def fact_of(item: Item) -> Fact:
    """The fact of an entry of the file."""
    day = datetime.fromisoformat(item["date"]).replace(tzinfo=timezone.utc)
    confidence = {"confidence": item["confidence"]} if "confidence" in item else {}
    return Fact(id=item["id"], content=item["text"], created_at=day, **confidence)


class Ranked:
    """The facts of one user, indexed as they become known, in the order of the package."""

    def __init__(self, _: Item, weights: Weights) -> None:
        self.weights = weights
        self.facts: list[Fact] = []
        self.ranker = TfidfRanker()

    def add(self, items: Iterable[Item]) -> None:
        new = [fact_of(item) for item in items]
        self.facts += new
        self.ranker.add(map(document_of, new))

    def rank(self, question: Item) -> list[str]:
        context = question["before"][-TURNS_BEFORE:]
        showable = ShowableFacts(self.facts, self.ranker)
        ranking = showable.score(question["text"], context, self.weights)
        return [entry.fact.id for entry in ranking.best_first()]


class Unasked:
    """The facts of one user, those with the highest key first, and the newest of equal ones, whatever is asked."""

    def __init__(self, _: Item, key: Callable[[Fact], float]) -> None:
        self.key = key
        self.facts: list[Fact] = []

    def add(self, items: Iterable[Item]) -> None:
        self.facts += map(fact_of, items)

    def rank(self, _: Item) -> list[str]:
        newest_first = reversed(self.facts)
        return [fact.id for fact in sorted(newest_first, key=self.key, reverse=True)]


SIDES: dict[str, Callable[[Item], Ranked | Unasked]] = {
    BLOCK: partial(Ranked, weights=DEFAULT_WEIGHTS),
    WORDS: partial(Ranked, weights=SIMILARITY_ALONE),
    CONFIDENCE: partial(Unasked, key=lambda fact: fact.confidence),
    NEWEST: partial(Unasked, key=lambda _: 0.0),
}


def recall_of_side(
    make: Callable[[Item], Ranked | Unasked], users: Iterable[Item]
) -> Recall:
    """What a side brings of the evidence, which is facts, each question asked among those that are known by then."""
    shares = []
    for user in users:
        side, known = make(user), 0
        tokens = {fact["id"]: fact["tokens"] for fact in user["facts"]}
        sources = {fact["id"]: [fact["id"]] for fact in user["facts"]}
        for question in user["questions"]:
            side.add(user["facts"][known : question["known"]])
            known = question["known"]
            shares.append(
                shares_of(
                    question["evidence"],
                    found_within(side.rank(question), tokens, sources),
                )
            )
    return recall_of(shares)


def main() -> int:
    """Measure, publish, and return the exit code."""
    folder = named_path(DEFAULT_FOLDER)
    file = folder / DATA
    if not file.is_file():
        print(f"There is no {file}: RealMem is not measured", file=sys.stderr)
        return NOT_MEASURED
    users = json.loads(file.read_text(encoding="utf-8"))["users"]
    results = {
        side: recall_of_side(make, shown(users, side)) for side, make in SIDES.items()
    }
    means = {side: recall.mean for side, recall in results.items()}
    measures = [
        Measure("similarity", means[WORDS], "%"),
        Measure("by confidence", means[CONFIDENCE], "%"),
        Measure("newest first", means[NEWEST], "%"),
    ]
    promises = [Promise(BLOCK, LEAST_MEAN_RECALL, means[BLOCK], "%", at_least=True)]
    series = [
        Series(
            "recall of the evidence",
            "facts that grow",
            side,
            "budget in tokens",
            "%",
            tuple(zip(BUDGETS, recall.by_budget, strict=True)),
        )
        for side, recall in results.items()
        if side != CONFIDENCE
    ]
    return publish("growing", measures, promises, series)


if __name__ == "__main__":
    sys.exit(main())
