"""What the default ranker takes for a question, and for a fact that is appended, at 1,000 to 100,000 facts.

A fact has 11 words, 20 more in its source, and a date. Words are drawn with the frequencies of Zipf's law from 2,400.
The hardest case is measured: the word "user", the month and one of seven years are in every fact, and the
question holds them too, so that each question finds all facts. The median of many calls is given.

Each append is that of one fact to the 100,000, and the question after it is measured as well: its first
act is to compare the lengths of all rows with their mean. With 10,000 facts, each question is also put to
scikit-learn's ``TfidfVectorizer`` over the same words, in turns. The whole way of a question, ranking with recency and
the best 50 facts, is measured with the question alone and with two earlier turns, each of which is a question more.
"""

from __future__ import annotations

import random
import sys
from datetime import datetime, timedelta, timezone
from itertools import islice
from statistics import median
from time import perf_counter

from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
from sklearn.metrics.pairwise import linear_kernel  # type: ignore[import-untyped]

from benchmarks.command import shown
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext.fact import RECENCY_WEIGHT, Fact
from llama_index_memory_ext.facts.ranking import ShowableFacts, Weights, document_of
from llama_index_memory_ext.search.tfidf import TfidfRanker

CALLS, SHOWN, COMPARED = 100, 50, 10_000
QUERY_LIMITS = {1_000: 1.0, 10_000: 3.0, 100_000: 20.0}
START = datetime(2020, 5, 1, tzinfo=timezone.utc)

_STARTS = "ba ce di fo gu ha je ki lo mu na pe ri so tu va we xi yo zu".split()
_MIDDLES = "blar cten drim ston fend grom".split()
_ENDS = [
    "",
    *"a tor nix pel os um ee ick ash ond urt elf ift own ark ume ize oid ant".split(),
]
VOCABULARY = [
    start + middle + end for start in _STARTS for middle in _MIDDLES for end in _ENDS
]
FREQUENCIES = [1 / (place + 3) for place in range(len(VOCABULARY))]


def words(chance: random.Random, count: int) -> str:
    """So many words."""
    return " ".join(chance.choices(VOCABULARY, FREQUENCIES, k=count))


def make_facts(chance: random.Random, count: int) -> list[Fact]:
    """Facts whose days are all in a May."""
    return [
        Fact(
            content=f"User {words(chance, 10)}",
            source=words(chance, 20),
            created_at=START.replace(year=2020 + i % 7) + timedelta(days=i % 31),
        )
        for i in range(count)
    ]


def question(chance: random.Random) -> str:
    """A question that finds every fact."""
    return f"What did the user say about {words(chance, 5)} in May 2023?"


def milliseconds(start: float) -> float:
    """Since the start."""
    return 1000 * (perf_counter() - start)


def query_times(ranker: TfidfRanker, count: int, chance: random.Random) -> list[float]:
    """The milliseconds of questions, and of nothing else: each answer must be of all facts."""
    taken = []
    for asked in [question(chance) for _ in range(CALLS)]:
        start = perf_counter()
        found = ranker.similarities(asked)
        taken.append(milliseconds(start))
        assert len(found) == count
    return taken


def rank_times(
    facts: list[Fact], ranker: TfidfRanker, chance: random.Random, turns: int
) -> list[float]:
    """The milliseconds of questions with so many turns before them, ranking included."""
    taken = []
    showable, weights = ShowableFacts(facts, ranker), Weights(recency=RECENCY_WEIGHT)
    for _ in range(CALLS):
        asked, context = question(chance), [question(chance) for _ in range(turns)]
        start = perf_counter()
        shown_facts = list(
            islice(showable.score(asked, context, weights).best_first(), SHOWN)
        )
        taken.append(milliseconds(start))
        assert len(shown_facts) == SHOWN
    return taken


def against_scikit_learn(
    facts: list[Fact], ranker: TfidfRanker, chance: random.Random
) -> float:
    """The time of the ranker for a question, as a share of scikit-learn's."""
    vectorizer = TfidfVectorizer()
    rows = vectorizer.fit_transform(
        f"{fact.content} {fact.source} {fact.began:%B %Y}" for fact in facts
    )
    ours, theirs = [], []
    for asked in [question(chance) for _ in range(CALLS)]:
        start = perf_counter()
        ranker.similarities(asked)
        ours.append(milliseconds(start))
        start = perf_counter()
        linear_kernel(vectorizer.transform([asked]), rows)
        theirs.append(milliseconds(start))
    return median(ours) / median(theirs)


def measured() -> tuple[list[Measure], list[Promise]]:
    """Measure questions and appends."""
    chance = random.Random(11)
    facts = make_facts(chance, max(QUERY_LIMITS) + CALLS)
    ranker = TfidfRanker()
    measures, promises = [], []
    added = 0
    for count, limit in QUERY_LIMITS.items():
        start = perf_counter()
        ranker.add(map(document_of, facts[added:count]))
        measures.append(
            Measure(f"indexing {count - added:,} facts", milliseconds(start), "ms")
        )
        added = count
        promises.append(
            Promise(
                f"question, {count:,} facts",
                limit,
                median(query_times(ranker, count, chance)),
                "ms",
            )
        )
        known = facts[:count]
        if count == COMPARED:
            share = against_scikit_learn(known, ranker, chance)
            promises.append(
                Promise(
                    f"question, {count:,} facts, against scikit-learn's TfidfVectorizer",
                    0.75,
                    share,
                )
            )
        alone, with_turns = (
            median(rank_times(known, ranker, chance, turns)) for turns in (0, 2)
        )
        promises.append(
            Promise(f"question with rank, {count:,} facts", limit, alone, "ms")
        )
        measures.append(
            Measure(
                f"question with rank and two earlier turns, {count:,} facts",
                with_turns,
                "ms",
            )
        )
    appends, questions_after = [], []
    for fact in shown(facts[added:], "appends"):
        start = perf_counter()
        ranker.add([document_of(fact)])
        appends.append(milliseconds(start))
        start = perf_counter()
        ranker.similarities(question(chance))
        questions_after.append(milliseconds(start))
    measures.append(Measure(f"longest append at {added:,} facts", max(appends), "ms"))
    promises.append(Promise(f"append at {added:,} facts", 1.0, median(appends), "ms"))
    promises.append(
        Promise(
            "question right after an append",
            QUERY_LIMITS[added],
            median(questions_after),
            "ms",
        )
    )
    return measures, promises


if __name__ == "__main__":
    sys.exit(publish("ranking_speed", *measured()))
