"""Facts in the order in which they matter for a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext import CondensedMemory, RelevantFactsBlock, TokenCounter
from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.facts.explanation import Explanation, format_facts
from llama_index_memory_ext.facts.lines import counted_line, fact_line
from llama_index_memory_ext.facts.ranking import (
    FIRST_SHARE,
    ShowableFacts,
    Weights,
    document_of,
)
from llama_index_memory_ext.search.tfidf import Document, FactRanker, TfidfRanker
from llama_index_memory_ext.words import visible
from tests.facts.ranked import rank
from tests.words import LANGUAGES, rows

THEN = datetime(2026, 11, 20, tzinfo=timezone.utc)
WORDS = [
    "python",
    "testing",
    "test",
    "docker",
    "went",
    "go",
    "the",
    "I",
    "喜欢吃茶",
    "8",
    "May",
    "c++",
    "😀",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)


def facts_of(*contents: str | tuple[str, float]) -> list[Fact]:
    """Facts of these contents, of confidence 0.8 unless said otherwise, each a day newer than the one before."""
    pairs = [
        (content, 0.8) if isinstance(content, str) else content for content in contents
    ]
    return [
        Fact(
            content=content, confidence=confidence, created_at=THEN + timedelta(days=i)
        )
        for i, (content, confidence) in enumerate(pairs)
    ]


def order(
    facts: Sequence[Fact], question: str, context: Sequence[str] = (), **options: Any
) -> list[str]:
    return [entry.fact.content for entry in rank(facts, question, context, **options)]


STACK = facts_of(
    ("Deploys with Docker", 0.95),
    ("Uses React with Next.js for the frontend", 0.8),
    ("Works mostly in Python", 0.8),
    ("Always writes type hints in Python", 0.85),
    ("Prefers pytest for testing", 0.9),
    ("Builds the API with FastAPI", 0.8),
)


def test_a_question_brings_up_the_facts_it_is_about() -> None:
    top = order(STACK, "How should I write Python tests?")[:3]
    assert set(top) == {
        "Prefers pytest for testing",
        "Always writes type hints in Python",
        "Works mostly in Python",
    }
    assert (
        order(STACK, "How to optimize my Next.js app?")[0]
        == "Uses React with Next.js for the frontend"
    )


@pytest.mark.parametrize("question", ["And where does she live?", "And she?"])
def test_a_question_that_leans_on_the_turn_before_is_understood(question: str) -> None:
    facts = facts_of("Bob lives in Rome", "Caroline lives in Oslo", "Ann lives in Bonn")
    assert (
        order(facts, question, ["Have you met Caroline?"])[0]
        == "Caroline lives in Oslo"
    )


@pytest.mark.parametrize(
    ("related", "unrelated", "question"), rows("related", LANGUAGES)
)
def test_a_related_fact_beats_a_surer_one(
    related: str, unrelated: str, question: str
) -> None:
    assert order(facts_of((unrelated, 0.95), (related, 0.55)), question) == [
        related,
        unrelated,
    ]


@pytest.mark.parametrize(
    "question",
    [
        "",
        " \n",
        "😀😀",
        "a",
        "?",
        "猫",
        "What is it that you do?",
        "我的是什么呢",
        "zyzzyva",
    ],
)
def test_without_a_word_in_common_confidence_decides_and_then_the_newest(
    question: str,
) -> None:
    """Stop words and single characters are no evidence, even where facts hold them."""
    facts = facts_of(("What it is a 😀 猫", 0.7), ("Old", 0.9), ("New", 0.9))
    assert order(facts, question) == ["New", "Old", "What it is a 😀 猫"]
    assert all(
        entry.similarity == 0 and entry.matched == () for entry in rank(facts, question)
    )


def test_the_parts_of_a_score_can_be_read() -> None:
    """Similarities are divided by the best one, weights by their sum."""
    best, other = rank(
        STACK,
        "Testing with Docker",
        weights=Weights(3, 1),
    )[:2]
    assert best.similarity == 1
    assert best.score == pytest.approx((3 + best.confidence) / 4)
    assert 0 < other.similarity < 1
    assert {*best.matched, *other.matched} == {"testing", "docker"}


PLAN = (
    "Let us go on with the plan for the garden: after the beds and the paths, which plants, seeds, tools, pots, "
    "gloves, soil, compost and labels do I buy?"
)


def test_newer_facts_count_more_while_something_is_going_on() -> None:
    """And hardly for a short question, which looks something up; nor if age is switched off."""
    facts = facts_of(
        ("Plans a garden of beds", 0.82),
        *[f"Owns boat {i}" for i in range(80)],
        "Plans a garden of many pots",
    )
    assert (
        order(facts, PLAN, weights=Weights(recency=0.4))[0]
        == "Plans a garden of many pots"
    )
    assert (
        order(facts, "Which garden is planned?", weights=Weights(recency=0.4))[0]
        == "Plans a garden of beds"
    )
    ranked = {
        entry.fact.content: entry
        for entry in rank(facts, PLAN, weights=Weights(recency=0.4))
    }
    assert ranked["Plans a garden of many pots"].recency == 1
    assert ranked["Owns boat 40"].recency == pytest.approx(0.5)
    for entry in rank(facts, "And now?", [PLAN], weights=Weights(recency=0.4)):
        total = 0.6 * entry.similarity + 0.4 * entry.confidence + 0.4 * entry.recency
        assert entry.score == pytest.approx(total / 1.4)
    for entry in rank(facts, PLAN):
        assert entry.score == pytest.approx(
            0.6 * entry.similarity + 0.4 * entry.confidence
        )


def test_while_a_talk_goes_on_facts_of_one_day_come_together_and_short_ones_first() -> (
    None
):
    """Their scores stay what they are, and a question that looks something up is ranked by these alone."""
    day = datetime(2026, 1, 5, tzinfo=timezone.utc)
    texts = (
        "Grows herbs",
        "Keeps bees",
        f"Grows {'very ' * 40}tall herbs",
        "Plans a garden of pots and many beds",
    )
    facts = [
        Fact(content=text, created_at=day + timedelta(days=i if i < 3 else 0))
        for i, text in enumerate(texts)
    ]
    alone = [
        Fact(content=fact.content, created_at=day + timedelta(days=i))
        for i, fact in enumerate(facts)
    ]
    talk = f"{PLAN} Which herbs, and how many pots?"

    def places(some: list[Fact], question: str) -> list[int]:
        ranked = rank(some, question, weights=Weights(recency=0.1))
        assert len({entry.fact.id for entry in ranked}) == len(some)
        return [some.index(entry.fact) for entry in ranked]

    assert places(alone, talk).index(0) > places(alone, talk).index(3) > -1
    assert places(facts, talk)[:2] == [3, 0]
    by_score = sorted(
        rank(facts, "Herbs?", weights=Weights(recency=0.1)),
        key=lambda one: one.score,
        reverse=True,
    )
    assert places(facts, "Herbs?") == [facts.index(one.fact) for one in by_score]


@given(
    st.lists(st.text(max_size=12).map(visible).filter(str.strip), max_size=6),
    st.text(),
    st.text(),
)
def test_any_text_can_be_ranked(contents: list[str], question: str, turn: str) -> None:
    """All facts come back once, and every number is within 0..1."""
    ranked = rank(facts_of(*contents), question, [turn])
    assert sorted(entry.fact.content for entry in ranked) == sorted(contents)
    assert all(0 <= entry.similarity <= 1 and 0 <= entry.score <= 1 for entry in ranked)
    assert list(ranked) == sorted(ranked, key=lambda entry: entry.score, reverse=True)


def test_a_ranker_of_ones_own_takes_the_place_of_ours() -> None:
    """A fact that it does not know has similarity 0."""

    class NewestNumber:
        def add(self, documents: Iterable[Document]) -> None: ...
        def remove(self, ids: Iterable[str]) -> None: ...
        def similarities(self, query: str) -> dict[str, float]:
            return {STACK[2].id: 0.02, STACK[0].id: 0.01, "of another": 0.9}

    ranker: FactRanker = NewestNumber()
    first = rank(STACK, "anything", ranker=ranker)[0]
    assert (first.fact, first.similarity) == (STACK[2], 1.0)


def test_a_fact_is_also_found_by_the_message_it_came_from_and_by_its_day() -> None:
    facts = facts_of("Has a new job", "Likes tea", "Likes milk")
    facts[0] = facts[0].model_copy(
        update={"source": "I signed at the observatory yesterday!"}
    )
    assert order(facts, "Who works at the observatory?")[0] == "Has a new job"
    assert order(facts, "What happened on November 21?")[0] == "Likes tea"
    assert order(facts, "11月21日发生了什么?")[0] == "Likes tea"
    assert rank(facts, "Who works at the observatory?")[0].matched == ("observatory",)


def test_formatted_facts_are_those_for_the_last_turn() -> None:
    context = "I'm working on a Python project\n\nIt uses FastAPI and SQLAlchemy\n\nHow do I test it?"
    found = format_facts(STACK, current_context=context)
    assert "pytest" in found.splitlines()[0]
    assert format_facts(STACK, current_context=context.replace("\n\n", "\n")) == found
    for nothing in (None, "", " \n\n "):
        assert "Docker" in format_facts(STACK, current_context=nothing).splitlines()[0]


@given(limit=st.integers(0, 200), question=TEXTS)
def test_formatted_facts_keep_to_the_limit(limit: int, question: str) -> None:
    assert TokenCounter().count(format_facts(STACK, limit, question)) <= limit


@given(
    entries=st.lists(st.tuples(st.integers(1, 30), st.booleans())),
    limit=st.integers(0, 2_000),
)
def test_pinned_facts_overtake_others_within_their_share(
    entries: list[tuple[int, bool]], limit: int
) -> None:
    """One that is too large for what is left of the share keeps its place."""
    made = [
        Fact(content=f"{i}" + " tea" * words, pinned=pinned)
        for i, (words, pinned) in enumerate(entries)
    ]
    ranking = showable_of(made).score("tea", [], Weights(recency=0.4))
    facts = [entry.fact for entry in ranking.best_first()]
    tokens = {name: line.tokens for name, line in ranking.showable.lines.items()}
    shown = [entry.fact for entry in ranking.fit(limit)]
    assert sum(tokens[fact.id] for fact in shown) <= limit
    place = {fact.id: at for at, fact in enumerate(shown)}
    unpinned = [fact for fact in facts if not fact.pinned and fact.id in place]
    assert unpinned == sorted(unpinned, key=lambda fact: place[fact.id])
    earlier = {fact.id: facts[: facts.index(fact)] for fact in shown}
    moved = [
        one
        for one in shown
        if any(place.get(other.id, 0) > place[one.id] for other in earlier[one.id])
    ]
    assert all(fact.pinned for fact in moved)
    assert sum(tokens[fact.id] for fact in moved) <= FIRST_SHARE * limit


@given(
    st.lists(st.integers(1, 40), max_size=60),
    st.integers(0, 900),
    st.sampled_from(["tea", "is 3"]),
)
def test_the_facts_that_fit_are_shown_best_first(
    words: list[int], limit: int, question: str
) -> None:
    """As if all were tried, though none is once the shortest one has no room."""
    facts = [
        Fact(content=f"{i} is" + " tea" * some, confidence=some / 40)
        for i, some in enumerate(words)
    ]
    ranking = showable_of(facts).score(question, [], Weights(recency=0.4))
    tried, left = [], limit
    for entry in ranking.best_first():
        tokens = ranking.showable.lines[entry.fact.id].tokens
        if tokens <= left:
            tried.append(entry.fact)
            left -= tokens
    assert [entry.fact for entry in ranking.fit(limit)] == tried


def test_pinned_facts_and_corrections_come_first_and_retired_ones_never() -> None:
    pinned = Fact(content="Is called Ann", pinned=True, confidence=0.1)
    correction = Fact(
        content="No longer in Bonn", category="correction", confidence=0.2
    )
    retired = Fact(content="Lives in Bonn", retired_at=THEN)
    lines = format_facts(
        [*STACK, pinned, correction, retired], current_context="Docker?"
    ).splitlines()
    assert "No longer in Bonn" in lines[0]
    assert "Is called Ann" in lines[1]
    assert "Docker" in lines[2]
    assert len(lines) == len(STACK) + 2


SAID = "I'm Logan and I live in Paris"
KNOWN = (
    Fact(content="Is called Logan", source=SAID, confidence=0.95),
    Fact(content="Lives in Paris", source=SAID, confidence=0.8),
    Fact(content="Likes tea", confidence=0.5),
    Fact(content="Owns a canoe", confidence=0.4),
    Fact(content="Is allergic to nuts", pinned=True),
)


async def explanation_of(
    question: str,
    *context: str,
    min_similarity: float = 0.0,
    languages: list[str] | None = None,
) -> Explanation:
    async with CondensedMemory.from_defaults(
        user_id="ann", extract_facts=False, languages=languages
    ) as memory:
        await memory.facts.aimport(
            "".join(fact.model_dump_json() + "\n" for fact in KNOWN)
        )
        memory.facts_block.min_similarity = min_similarity
        return await memory.facts_block.aexplain(question, context=context)


async def test_own_words_come_before_the_words_of_the_source() -> None:
    facts = (await explanation_of("Where do I live?")).facts
    first, second = facts[:2]
    assert first.fact.content == "Lives in Paris"
    assert first.matched == ("live",)
    assert first.why == "like the question"
    assert second.matched == ("live",)
    assert first.similarity > 2 * second.similarity
    assert {one.why for one in facts[2:]} == {"pinned", "nothing in common, but room"}


async def test_the_words_in_common_are_also_of_the_source_and_of_earlier_turns() -> (
    None
):
    found = await explanation_of("And Logan?", "Shall we have tea?")
    by_content = {one.fact.content: one for one in found.facts}
    assert by_content["Likes tea"].matched == ("tea",)
    assert by_content["Is called Logan"].matched == ("logan",)
    assert by_content["Lives in Paris"].matched == ("logan",)


ASKED_ONE_BY_ONE = (
    "Project Atlas is due on 15 March",
    "Project Atlas Mobile is due in June",
    "Project Atlas Mobile is written in Kotlin",
    "Emma studies chemistry",
    "Emma is vegan",
    "Has a flight to Oslo on 4 March",
    "Meets Ingrid in Oslo",
    "Lives in Leipzig",
    "Has asthma",
    "Runs on Mondays",
)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("When is Atlas Mobile due?", {"Project Atlas Mobile is due in June"}),
        ("What does Emma study?", {"Emma studies chemistry"}),
        ("What do you know about Emma?", {"Emma studies chemistry", "Emma is vegan"}),
        (
            "Tell me about my stay in Oslo",
            {"Has a flight to Oslo on 4 March", "Meets Ingrid in Oslo"},
        ),
        ("Where do I live?", {"Lives in Leipzig"}),
        ("Which illnesses do I have?", {"Has asthma"}),
        ("What is the capital of Australia?", set()),
        ("What is my brother's name?", set()),
        ("What do you think?", set()),
    ],
)
def test_with_a_least_similarity_exactly_the_facts_that_are_asked_for_are_shown(
    question: str, expected: set[str]
) -> None:
    ranking = showable_of(ASKED_ONE_BY_ONE).score(question, (), Weights())
    strict = ranking._replace(min_similarity=0.5)
    assert {one.fact.content for one in strict.fit(2_000)} == expected
    assert (
        len(ranking.fit(2_000))
        == len(ranking._replace(min_similarity=0.0).fit(2_000))
        == len(ASKED_ONE_BY_ONE)
    )


def test_with_a_least_similarity_a_fact_far_behind_the_best_one_is_left_out() -> None:
    best, other = "Kubernetes upgrades go through Rosalind", "Has noisy neighbours"
    for question, expected in (
        ("Will the neighbours mind if Rosalind upgrades Kubernetes at night?", [best]),
        ("Do I have neighbours?", [other]),
    ):
        ranking = showable_of((best, other, "Owns a canoe")).score(
            question, (), Weights()
        )
        assert [
            one.fact.content for one in ranking._replace(min_similarity=0.5).fit(2_000)
        ] == expected


def test_of_many_facts_pinned_ones_are_shown_wherever_they_stand() -> None:
    """Also where all that may be shown beside them was found before."""
    facts = [
        Fact(content=f"Met number {i} on the way", confidence=1.0) for i in range(600)
    ]
    facts += [
        Fact(content="Is called Ann", pinned=True, confidence=0.0),
        Fact(content="Has a canoe"),
    ]
    ranking = (
        showable_of(facts)
        .score("Which canoe?", (), Weights())
        ._replace(min_similarity=0.5)
    )
    assert [entry.fact.content for entry in ranking.concerning()] == [
        "Has a canoe",
        "Is called Ann",
    ]


def showable_of(contents: Sequence[str | Fact]) -> ShowableFacts:
    facts = [
        Fact(content=content) if isinstance(content, str) else content
        for content in contents
    ]
    ranker, counter = TfidfRanker(), TokenCounter()
    ranker.add(map(document_of, facts))
    return ShowableFacts(
        facts, ranker, lines={fact.id: counted_line(fact, counter) for fact in facts}
    )


async def test_the_table_says_what_its_numbers_are() -> None:
    found = await explanation_of("Where do I live?")
    header, *rows = repr(found).splitlines()
    assert header.split("  ")[0] == "fact"
    for name in (
        "similarity",
        "confidence",
        "recency",
        "score",
        "words in common",
        "tokens",
        "shown",
    ):
        assert name in header
    best = found.facts[0]
    total = sum(
        getattr(found.weights, name) * getattr(best, name)
        for name in ("similarity", "confidence", "recency")
    )
    assert abs(best.score - total) < 1e-9
    assert rows[-2].startswith("score = ")
    assert "has 1" in rows[-1]


async def test_fixed_languages_hold_for_both_blocks_of_a_memory() -> None:
    async with CondensedMemory.from_defaults(
        session_id="s", languages=["de", "en"]
    ) as memory:
        assert (
            memory.facts_block.languages
            == memory.condensed_block.languages
            == ("de", "en")
        )
        await memory.facts.aadd("Wohnt in Bonn")
        await memory.facts.aadd("Fährt gern Kanu")
        (found,) = await memory.facts_block.asearch("Wo wohne ich?")
        assert (found.fact.content, found.matched) == ("Wohnt in Bonn", ("wohne",))
        memory.facts_block.min_similarity = 0.5
        explained = await memory.facts_block.aexplain("Wo wohne ich?")
        assert [one.fact.content for one in explained.facts if one.injected] == [
            "Wohnt in Bonn"
        ]
    assert RelevantFactsBlock(languages="fr").languages == ("fr",)


def test_a_sentence_of_the_users_is_given_as_their_words() -> None:
    words = "Trabajo en un banco."
    fact = Fact(content=words, quote=words)
    assert f'>The user: "{words}"<' in fact_line(fact)
    assert '"' not in fact_line(Fact(content="Works", quote=words)).partition(">")[2]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("I'm a nurse.", 'The user: "I\'m a nurse."'),
        ("My brother is a cook", 'The user: "My brother is a cook"'),
        ("Ich wohne in Wien", 'The user: "Ich wohne in Wien"'),
        ("我住在上海", 'The user: "我住在上海"'),
        ("Is\n a  nurse", "Is a nurse"),
        ("Uses CI and vi", "Uses CI and vi"),
    ],
)
def test_a_fact_in_the_first_person_is_given_as_the_users_words(
    content: str, line: str
) -> None:
    fact = Fact(content=content, created_at=datetime(2026, 11, 20, tzinfo=timezone.utc))
    assert fact_line(fact) == f'<fact date="2026-11-20">{line}</fact>\n'
