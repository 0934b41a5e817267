"""How often a question brings exactly the facts that answer it, and none where none does, with ``min_similarity=0.5``.

    python -m benchmarks.exact_facts

``exact_facts.json`` holds forty users, each with 8 to 26 facts and two or three questions by hand, of ten kinds:
preferences, people with two names, projects with similar names, tools of several projects, values that were overtaken,
questions that no fact answers, questions in other words, several facts of one thing of which one is asked, questions
that several facts answer, and many facts. They were written before any rule. What ``min_similarity`` does was chosen on
every other user, from the first on; the rest is reported apart.

The figure is the number of questions for which the shown facts are those that answer, no fewer and no more. It is told
with words alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command import shown
from benchmarks.report import Measure, publish
from llama_index_memory_ext.fact import RECENCY_WEIGHT, Fact
from llama_index_memory_ext.facts.lines import counted_line
from llama_index_memory_ext.facts.ranking import ShowableFacts, Weights, document_of
from llama_index_memory_ext.search.tfidf import TfidfRanker
from llama_index_memory_ext.text.tokens import TokenCounter

FILE, LEAST, LIMIT = Path(__file__).with_suffix(".json"), 0.5, 2_000


class Answer(NamedTuple):
    """The facts that are shown for one question, and those that answer it, by id."""

    question: str
    shown: frozenset[str]
    expected: frozenset[str]

    @property
    def is_exact(self) -> bool:
        return self.shown == self.expected


def answers_of(store: dict[str, Any]) -> list[Answer]:
    """The answer to each question of one user."""
    facts = [Fact(id=name, content=content) for name, content in store["facts"].items()]
    ranker, counter = TfidfRanker(), TokenCounter()
    ranker.add(map(document_of, facts))
    showable = ShowableFacts(
        facts, ranker, lines={fact.id: counted_line(fact, counter) for fact in facts}
    )
    answers = []
    for one in store["questions"]:
        ranking = showable.score(
            one["question"], (), Weights(recency=RECENCY_WEIGHT)
        )._replace(min_similarity=LEAST)
        found = frozenset(one.fact.id for one in ranking.fit(LIMIT))
        answers.append(Answer(one["question"], found, frozenset(one["answers"])))
    return answers


def measures_of(users: list[list[Answer]]) -> list[Measure]:
    """The numbers of exact answers, of missing facts and of facts too many, where rules were chosen and elsewhere."""
    measures = []
    for part, start in (("chosen on", 0), ("elsewhere", 1)):
        answers = [answer for user in users[start::2] for answer in user]
        exact = sum(answer.is_exact for answer in answers)
        nothing = [answer for answer in answers if not answer.expected]
        wanted = sum(len(answer.expected) for answer in answers)
        missed = sum(len(answer.expected - answer.shown) for answer in answers)
        extra = sum(len(answer.shown - answer.expected) for answer in answers)
        users_exact = sum(
            all(answer.is_exact for answer in user) for user in users[start::2]
        )
        measures += [
            Measure(
                f"questions with exactly the right facts, {part}",
                exact,
                f"of {len(answers)}",
            ),
            Measure(
                f"users whose questions all are, {part}",
                users_exact,
                f"of {len(users[start::2])}",
            ),
            Measure(
                f"questions without an answer that get no fact, {part}",
                sum(answer.is_exact for answer in nothing),
                f"of {len(nothing)}",
            ),
            Measure(f"facts that are missing, {part}", missed, f"of {wanted}"),
            Measure(f"facts too many, {part}", extra),
        ]
    return measures


def main() -> int:
    """Measure, publish, and return the exit code."""
    stores = json.loads(FILE.read_text(encoding="utf-8"))
    return publish(
        "exact_facts",
        measures_of([answers_of(store) for store in shown(stores, "users")]),
        [],
    )


if __name__ == "__main__":
    sys.exit(main())
