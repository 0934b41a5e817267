"""Facts in the order in which they matter for a question."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.facts.ranking import RankedFact, document_of, format_facts, rank, turns_of
from llama_index_memory_ext.search.tfidf import Document, FactRanker, TfidfRanker, default_vectorizer
from llama_index_memory_ext.search.tokenization import date_words, words_of

THEN = datetime(2026, 11, 20, tzinfo=timezone.utc)
WORDS = (
    "python",
    "testing",
    "test",
    "docker",
    "deploys",
    "went",
    "go",
    "the",
    "I",
    "喜欢吃茶",
    "8",
    "May",
    "c++",
    "😀",
)
TEXTS = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)


def facts_of(*contents: str | tuple[str, float]) -> list[Fact]:
    """Facts of these contents, of confidence 0.8 unless said otherwise, each a day newer than the one before."""
    pairs = [(content, 0.8) if isinstance(content, str) else content for content in contents]
    return [
        Fact(content=content, confidence=confidence, created_at=THEN + timedelta(days=i))
        for i, (content, confidence) in enumerate(pairs)
    ]


def order(facts: Sequence[Fact], question: str, context: Sequence[str] = (), **options: Any) -> list[str]:
    return [entry.fact.content for entry in rank(facts, question, context, **options)]


def documents(texts: Iterable[str]) -> list[Document]:
    return [Document(str(i), text) for i, text in enumerate(texts)]


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
    assert set(top) == {"Prefers pytest for testing", "Always writes type hints in Python", "Works mostly in Python"}
    assert order(STACK, "How to optimize my Next.js app?")[0] == "Uses React with Next.js for the frontend"


def test_what_was_said_before_counts_too_but_less() -> None:
    turns = ["I'm working on a Python project", "It uses FastAPI and SQLAlchemy"]
    ranked = order(STACK[:1] + STACK[2:3] + STACK[4:], "How do I write tests?", turns)
    assert ranked[0] == "Prefers pytest for testing"
    assert set(ranked[1:3]) == {"Works mostly in Python", "Builds the API with FastAPI"}
    assert ranked[3] == "Deploys with Docker"


def test_a_long_context_does_not_drown_the_question() -> None:
    facts = facts_of("Likes tea", "Has a piano", "Lives in Oslo")
    assert order(facts, "Which tea?", ["Oslo and the piano"] * 50)[0] == "Likes tea"


def test_the_turns_before_weigh_more_than_a_little_confidence() -> None:
    facts = facts_of(
        ("Works mostly in Python", 0.8), ("Prefers pytest for testing", 0.8), ("Deploys with Docker", 0.95)
    )
    ranked = order(facts, "How do I write tests?", ["I'm working on a Python project", "It uses FastAPI"])
    assert ranked[-1] == "Deploys with Docker"


def test_a_question_that_leans_on_the_turn_before_is_understood() -> None:
    facts = facts_of("Bob lives in Rome", "Caroline lives in Oslo", "Ann lives in Bonn")
    assert order(facts, "And where does she live?", ["Have you met Caroline?"])[0] == "Caroline lives in Oslo"
    assert order(facts, "And she?", ["Have you met Caroline?"])[0] == "Caroline lives in Oslo"


@pytest.mark.parametrize(
    ("related", "unrelated", "question"),
    [
        ("Prefers pytest for testing", "Deploys with Docker", "How do I write tests?"),
        ("用户喜欢用pytest写测试", "用户住在上海", "怎么写测试?"),
        ("用户养了一只猫叫小花", "用户在银行工作", "我的小花今天不吃饭"),
        ("テストにはpytestを使う", "東京に住んでいる", "テストはどう書けばいいですか"),
        ("コーヒーが好き", "猫を飼っている", "おすすめのコーヒーは?"),
        ("서울에 살고 있다", "커피를 좋아한다", "서울에서 뭐 하지?"),
        ("Moved house on a Monday", "Likes tea", "When did you move?"),
        ("Went to the café", "Likes tea", "Did she go to a cafe?"),
    ],
)
def test_a_related_fact_beats_a_surer_one(related: str, unrelated: str, question: str) -> None:
    assert order(facts_of((unrelated, 0.95), (related, 0.55)), question) == [related, unrelated]


@pytest.mark.parametrize(
    "question", ["", " \n", "😀😀", "a", "?", "猫", "What is it that you do?", "我的是什么呢", "zyzzyva"]
)
def test_without_a_word_in_common_confidence_decides_and_then_the_newest(question: str) -> None:
    """Stop words and single characters are no evidence, even where facts hold them."""
    facts = facts_of(("What it is a 😀 猫", 0.7), ("Old", 0.9), ("New", 0.9))
    assert order(facts, question) == ["New", "Old", "What it is a 😀 猫"]
    assert all(entry.similarity == 0 and entry.matched == () for entry in rank(facts, question))


def test_no_facts_give_no_ranking() -> None:
    assert rank([], "What does Ann like?", ["Hello"]) == []
    assert format_facts([], current_context="What does Ann like?") == ""


def test_equal_scores_go_to_the_newest() -> None:
    twins = facts_of("Likes tea", "Likes tea")
    assert rank(twins, "tea?")[0].fact is twins[1]


@given(texts=st.lists(TEXTS, min_size=1, max_size=12), removed=st.sets(st.integers(0, 11)), query=TEXTS)
def test_the_same_words_are_equally_near_whatever_came_in_between(
    texts: list[str], removed: set[int], query: str
) -> None:
    ranker = TfidfRanker()
    ranker.add([Document("first", "docker test 喜欢吃茶")])
    for document in documents(texts):
        ranker.add([document])
    ranker.add([Document("last", "test docker 喜欢吃茶")])
    ranker.remove(map(str, removed))
    found = ranker.similarities(query)
    assert found.get("first") == found.get("last")


def test_documents_are_equally_near_whether_they_came_one_by_one_or_at_once() -> None:
    """To the last digit, which decides between two that are alike."""
    documents = [
        Document("1", "tea", (("look tea", 0.3),)),
        Document("2", "look tea", (("tea", 0.3), ("of course", 0.3))),
        Document("3", "look", (("tea", 0.3), ("tea", 0.3))),
    ]
    at_once, one_by_one = TfidfRanker(), TfidfRanker()
    at_once.add(documents)
    for document in documents:
        one_by_one.add([document])
    for sums, others in zip(at_once._index._sums, one_by_one._index._sums, strict=True):
        assert sums.tolist() == pytest.approx(others.tolist(), abs=1e-12)


def test_the_parts_of_a_score_can_be_read() -> None:
    """Similarities are divided by the best one, weights by their sum."""
    best, other = rank(STACK, "Testing with Docker", similarity_weight=3, confidence_weight=1, ranker=None)[:2]
    assert best.similarity == 1
    assert best.score == pytest.approx((3 + best.confidence) / 4)
    assert 0 < other.similarity < 1
    assert {*best.matched, *other.matched} == {"testing", "docker"}


@pytest.mark.parametrize("weights", [(-0.1, 1), (1, -0.1), (0, 0)])
def test_weights_that_mean_nothing_are_refused(weights: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="similarity_weight and confidence_weight must be"):
        rank(STACK, "tests", similarity_weight=weights[0], confidence_weight=weights[1])


@given(
    contents=st.lists(st.text(max_size=12).filter(lambda text: text.strip() and "\0" not in text), max_size=6),
    question=st.text(),
    turn=st.text(),
)
def test_any_text_can_be_ranked(contents: list[str], question: str, turn: str) -> None:
    """All facts come back once, and every number is within 0..1."""
    ranked = rank(facts_of(*contents), question, [turn])
    assert sorted(entry.fact.content for entry in ranked) == sorted(contents)
    assert all(0 <= entry.similarity <= 1 and 0 <= entry.score <= 1 for entry in ranked)
    assert ranked == sorted(ranked, key=lambda entry: entry.score, reverse=True)


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


@given(texts=st.lists(TEXTS, min_size=1, max_size=12), query=TEXTS)
def test_similarities_are_the_cosines_of_scikit_learn(texts: list[str], query: str) -> None:
    ranker = TfidfRanker(length_exponent=1)
    ranker.add(documents(texts))
    assert similarities(ranker, len(texts), query) == pytest.approx(scikit_learn(texts, query), abs=1e-6)


@given(
    steps=st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 9), TEXTS), min_size=1, max_size=40),
    query=TEXTS,
)
def test_what_was_removed_or_replaced_counts_for_nothing(steps: list[tuple[str, int, str]], query: str) -> None:
    """After any additions and removals, an index is that of the documents that are left."""
    ranker, left = TfidfRanker(length_exponent=1), dict[str, str]()
    for what, number, text in steps:
        if what == "add":
            left[str(number)] = text
            ranker.add([Document(str(number), text)])
        else:
            left.pop(str(number), None)
            ranker.remove([str(number)])
        ranker.similarities(query)
    assert len(ranker) == len(left)
    assert all(name in ranker for name in left)
    expected = dict(zip(left, scikit_learn(list(left.values()), query), strict=True)) if left else {}
    found = ranker.similarities(query)
    assert {name: found.get(name, 0.0) for name in left} == pytest.approx(expected, abs=1e-6)
    assert set(found) <= set(left)
    assert len(found) == len(list(found))


def test_an_index_that_forgets_its_dead_rows_answers_as_before() -> None:
    texts = [f"{WORDS[i % 6]} {WORDS[i % 5]} number{i}" for i in range(400)]
    ranker = TfidfRanker(length_exponent=1)
    ranker.add(documents(texts))
    before = ranker.similarities("python docker")
    ranker.remove([str(i) for i in range(400) if i % 4])
    ranker.add([Document("400", "docker")])
    expected = scikit_learn([*texts[::4], "docker"], "python docker")
    found = ranker.similarities("python docker")
    assert [found.get(str(i), 0.0) for i in range(0, 401, 4)] == pytest.approx(expected, abs=1e-6)
    assert before.get("1", 0.0) >= 0
    assert before.get("400") is None


def test_a_large_index_stays_within_a_thousandth_of_scikit_learn() -> None:
    """Lengths lag a little behind where a term is in thousands of documents and one more comes."""
    texts = [f"user {WORDS[i % 6]} number{i % 700} may" for i in range(3000)]
    ranker = TfidfRanker(length_exponent=1)
    for start in range(0, 3000, 50):
        ranker.add([Document(str(i), texts[i]) for i in range(start, start + 50)])
    expected = scikit_learn(texts, "user python number7")
    assert similarities(ranker, 3000, "user python number7") == pytest.approx(expected, rel=2e-3)


def similarities(ranker: TfidfRanker, count: int, query: str) -> list[float]:
    found = ranker.similarities(query)
    return [found.get(str(i), 0.0) for i in range(count)]


def scikit_learn(texts: list[str], query: str) -> list[float]:
    """What scikit-learn, fitted anew on the texts, says; it refuses texts without a single word."""
    vectorizer = TfidfVectorizer(analyzer=default_vectorizer().build_analyzer(), sublinear_tf=True)
    try:
        fitted = vectorizer.fit_transform([f"{text}\n" for text in texts])
    except ValueError:
        return [0.0] * len(texts)
    product = fitted @ vectorizer.transform([query]).T
    return [float(value) for value in np.asarray(product.todense())[:, 0]]


def test_a_fact_is_also_found_by_the_message_it_came_from_and_by_its_day() -> None:
    facts = facts_of("Has a new job", "Likes tea", "Likes milk")
    facts[0] = facts[0].model_copy(update={"source": "I signed at the observatory yesterday!"})
    assert order(facts, "Who works at the observatory?")[0] == "Has a new job"
    assert order(facts, "What happened on November 21?")[0] == "Likes tea"
    assert order(facts, "11月21日发生了什么?")[0] == "Likes tea"
    assert rank(facts, "Who works at the observatory?")[0].matched == ("observatory",)


def test_the_words_of_a_source_count_less_than_those_of_the_fact() -> None:
    facts = facts_of("Plays chess", "Likes tea")
    facts[0] = facts[0].model_copy(update={"source": "We had tea and then I played chess."})
    first, second = rank(facts, "tea")
    assert first.fact.content == "Likes tea"
    assert 0 < second.similarity < 1


def test_a_vectorizer_of_scikit_learn_can_bring_its_own_analysis() -> None:
    ranker = TfidfRanker(vectorizer=TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3)))
    ranker.add(map(document_of, STACK))
    assert order(STACK, "dockerized", ranker=ranker)[0] == "Deploys with Docker"


def test_a_ranker_can_be_copied_and_pickled() -> None:
    ranker = TfidfRanker()
    ranker.add(map(document_of, STACK))
    for twin in (copy.deepcopy(ranker), pickle.loads(pickle.dumps(ranker))):
        assert dict(twin.similarities("Docker")) == dict(ranker.similarities("Docker")) != {}
        twin.remove(fact.id for fact in STACK)
        assert len(twin.similarities("Docker")) == 0
        assert len(ranker) == len(STACK)


def test_threads_may_ask_while_documents_come_and_go() -> None:
    ranker = TfidfRanker()
    ranker.add([Document("stays", "docker compose")])
    failures: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for i in range(300):
                ranker.add([Document(f"{i}", f"docker number{i}")])
                ranker.remove([str(i)])
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test has to see it
            failures.append(error)

    threads = [Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = ranker.similarities("docker")
        assert 0 < found["stays"] <= 1
        assert all(0 < value <= 1 for value in [found.get(name, 1.0) for name in found])
    assert failures == []


def test_formatted_facts_are_those_for_the_last_turn() -> None:
    context = "I'm working on a Python project\n\nIt uses FastAPI and SQLAlchemy\n\nHow do I write tests?"
    assert "pytest" in format_facts(STACK, current_context=context).splitlines()[0]
    assert format_facts(STACK, current_context=context.replace("\n\n", "\n")) == format_facts(
        STACK, current_context=context
    )
    for nothing in (None, "", " \n\n "):
        assert "Docker" in format_facts(STACK, current_context=nothing).splitlines()[0]


@given(limit=st.integers(0, 200), question=TEXTS)
def test_formatted_facts_keep_to_the_limit(limit: int, question: str) -> None:
    assert TokenCounter().count(format_facts(STACK, limit, question)) <= limit


def test_pinned_facts_and_corrections_come_first_and_retired_ones_never() -> None:
    pinned = Fact(content="Is called Ann", pinned=True, confidence=0.1)
    correction = Fact(content="No longer in Bonn", category="correction", confidence=0.2)
    retired = Fact(content="Lives in Bonn", retired_at=THEN)
    lines = format_facts([*STACK, pinned, correction, retired], current_context="Docker?").splitlines()
    assert "No longer in Bonn" in lines[0]
    assert "Is called Ann" in lines[1]
    assert "Docker" in lines[2]
    assert len(lines) == len(STACK) + 2


def test_a_context_is_parted_into_turns() -> None:
    assert turns_of("one\n\ntwo\nstill two") == ["one", "two\nstill two"]
    assert turns_of("one\ntwo") == ["one", "two"]
    assert turns_of("") == turns_of(" \n\n") == [""]


def terms(text: str) -> list[str]:
    return [word.term for word in words_of(text, lambda word: word)]


def test_words_of_many_scripts_are_found() -> None:
    assert terms("I've used C++, C# and Next.js") == ["used", "c++", "c#", "next", "js"]
    assert terms("我喜欢吃什么") == ["我喜", "喜欢", "欢吃", "吃什"]
    assert terms("コーヒーが好きです") == ["コー", "ーヒ", "ヒー", "が好", "好き", "きで"]
    assert terms("हिन्दी में") == ["हिन्दी", "में"]
    assert terms("\uff50\uff39thon Café") == ["python", "cafe"]


@pytest.mark.parametrize("text", ["8 May, 2023", "May 8, 2023", "the 8th of May", "2023年5月8日", "May 8th"])
def test_a_day_is_one_word_however_it_is_written(text: str) -> None:
    assert "may8" in terms(text)
    assert "may8" in terms(date_words(THEN.replace(month=5, day=8)))


def test_scikit_learn_and_nltk_are_imported_on_first_use() -> None:
    """LlamaIndex itself may import them; then there is nothing to save."""
    code = (
        "import sys, llama_index_memory_ext; before = set(sys.modules); import llama_index_memory_ext.facts.ranking; "
        "print(sorted({'sklearn', 'nltk'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_results_are_plain_values() -> None:
    entry = rank(STACK, "Docker")[0]
    assert isinstance(entry, RankedFact)
    with pytest.raises(AttributeError):
        entry.score = 1.0  # type: ignore[misc]
