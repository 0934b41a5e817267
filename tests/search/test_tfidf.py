"""Documents ranked by their words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.search.tfidf import (
    Document,
    TfidfRanker,
    similarities_with_context,
)
from llama_index_memory_ext.words.tokens import term_of, terms_in

WORDS = str.split(
    "python testing test docker deploys went go the I 喜欢吃茶 8 May c++ 😀"
)
TEXTS = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
STACK = ("Deploys with Docker", "Works mostly in Python", "Prefers pytest for testing")


def vectorizer_class(name: str) -> Any:
    """Import a vectorizer of scikit-learn: most processes of a run never need one, and it loads for seconds."""
    return getattr(import_module("sklearn.feature_extraction.text"), name)


def documents(texts: Iterable[str]) -> list[Document]:
    return [Document(str(i), text) for i, text in enumerate(texts)]


def ranker_of(texts: Iterable[str]) -> TfidfRanker:
    ranker = TfidfRanker()
    ranker.add(documents(texts))
    return ranker


def similarities(ranker: TfidfRanker, count: int, query: str) -> list[float]:
    found = ranker.similarities(query)
    return [found.get(str(i), 0.0) for i in range(count)]


def by_formula(texts: Sequence[str], query: str) -> list[float]:
    """The documented formula, with scikit-learn's counts and idf; it refuses texts without a single word."""
    vectorizer = vectorizer_class("TfidfVectorizer")(analyzer=terms_in, norm=None)
    try:
        vectorizer.fit(texts)
    except ValueError:
        return [0.0] * len(texts)
    counts = vectorizer_class("CountVectorizer")(
        analyzer=terms_in, vocabulary=vectorizer.vocabulary_
    )
    counted = np.asarray(counts.transform(texts).todense(), dtype=float)
    lengths = counted.sum(1, keepdims=True)
    weights = counted * 1.6 / (counted + 0.6 * (0.3 + 0.7 * lengths / lengths.mean()))
    asked = np.asarray(counts.transform([query]).todense(), dtype=float)[0]
    times = np.where(asked > 0, 1 + np.log(np.maximum(asked, 1)), 0)
    scores = weights @ (vectorizer.idf_ * times)
    return [float(score) for score in scores / (scores.max() or 1)]


@given(texts=st.lists(TEXTS, min_size=1, max_size=12), query=TEXTS)
def test_similarities_follow_the_formula(texts: list[str], query: str) -> None:
    ranker = ranker_of(texts)
    assert similarities(ranker, len(texts), query) == pytest.approx(
        by_formula(texts, query), abs=1e-6
    )


@given(
    texts=st.lists(TEXTS, min_size=1, max_size=12),
    removed=st.sets(st.integers(0, 11)),
    query=TEXTS,
)
def test_documents_with_the_same_words_are_equally_similar_whatever_came_in_between(
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


def test_a_document_has_a_share_of_the_words_of_its_neighbours() -> None:
    """In any number of steps: a document that is added anew at the end leaves no gap."""
    texts = ["tea", "docker", "printer", "zebra", "lisbon"]
    documents = [Document(text, text, sequence=i // 4) for i, text in enumerate(texts)]
    ranker = TfidfRanker(neighbour_shares=(0.2, 0.1))
    ranker.add(documents[:3])
    ranker.add(documents[2:4])
    ranker.remove(["zebra"])
    ranker.add(documents[3:])
    found = ranker.similarities("zebra")
    assert list(found) == ["docker", "printer", "zebra"]
    assert found["docker"] < found["printer"] < found["zebra"] == 1
    assert dict(ranker.similarities("lisbon")) == {"lisbon": 1}
    at_once = TfidfRanker(neighbour_shares=(0.2, 0.1))
    at_once.add(documents)
    assert dict(at_once.similarities("zebra tea")) == ranker.similarities("zebra tea")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("Do I have allergies?", "Is allergic to nuts"),
        ("peanuts", "Is allergic to nuts"),
        ("my job", "Works as a nurse"),
        ("What is my profession?", "Works as a nurse"),
        ("child", "Has a daughter"),
        ("Which beverage?", "Has two cups of coffee"),
    ],
)
def test_a_short_question_in_english_finds_related_words(
    query: str, found: str
) -> None:
    """Derived words, synonyms, kinds and what they are explained with; not in other languages, nor by other words."""
    texts = [
        "Is allergic to nuts",
        "Works as a nurse",
        "Has a daughter",
        "Has two cups of coffee",
        "Drives a Golf",
    ]
    best = similarities(ranker_of(texts), len(texts), query)
    assert texts[best.index(max(best))] == found
    assert max(best) == 1
    german = TfidfRanker(languages=["de"])
    german.add(documents(texts))
    assert not german.similarities("child")


def test_the_word_itself_counts_far_more_than_related_words() -> None:
    """And a long question, which has words enough, finds these alone."""
    texts = ["Has a child", "Has a daughter", "Has a son", "Likes tea"]
    child, daughter, son, tea = similarities(ranker_of(texts), 4, "child")
    assert child == 1
    assert 0 < daughter == son < 0.2
    assert tea == 0
    long = "child " + " ".join(f"word{i}" for i in range(8))
    assert similarities(ranker_of(texts), 4, long) == [1, 0, 0, 0]


def test_the_question_counts_most_and_earlier_turns_by_their_weight() -> None:
    ranker, ids = ranker_of(["tea", "piano", "boat"]), ["0", "1", "2", "unknown"]
    found = similarities_with_context(ranker, ids, "tea", ["piano"], 0.2)
    assert found.tolist() == pytest.approx([1, 0.2, 0, 0])
    many = similarities_with_context(ranker, ids, "tea", ["piano"] * 50, 0.2)
    assert many.tolist() == pytest.approx([1, 0.4, 0, 0])
    assert similarities_with_context(ranker, ids, "?", [], 0.2).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "name", ["CountVectorizer", "TfidfVectorizer", "HashingVectorizer"]
)
def test_a_vectorizer_of_scikit_learn_can_bring_its_own_analysis(name: str) -> None:
    vectorizer = vectorizer_class(name)(analyzer="char_wb", ngram_range=(3, 3))
    ranker = TfidfRanker(vectorizer=vectorizer)
    ranker.add(documents(STACK))
    assert (
        max(ranker.similarities("dockerized").items(), key=lambda pair: pair[1])[0]
        == "0"
    )


@pytest.mark.parametrize(
    "wrong_of",
    [lambda: "tfidf", lambda: 7, lambda: vectorizer_class("TfidfVectorizer"), object],
    ids=["name", "number", "class", "object"],
)
def test_what_is_no_vectorizer_is_refused_with_the_extra_that_has_some(
    wrong_of: Callable[[], Any],
) -> None:
    wrong = wrong_of()
    with pytest.raises(
        SettingError,
        match=r"vectorizer must be a vectorizer .*; got .*llama-index-memory-ext\[sklearn\]",
    ):
        TfidfRanker(vectorizer=wrong)


def test_threads_may_ask_while_documents_come_and_go() -> None:
    ranker = TfidfRanker()
    ranker.add([Document("stays", "docker compose")])

    def come_and_go() -> None:
        for i in range(300):
            ranker.add([Document(f"{i}", f"docker number{i}")])
            ranker.remove([str(i)])

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(come_and_go) for _ in range(3)]
        while not all(one.done() for one in working):
            found = ranker.similarities("docker")
            assert 0 < found["stays"] <= 1
            assert all(
                0 < value <= 1 for value in [found.get(name, 1.0) for name in found]
            )
        for one in working:
            one.result()


def test_ranking_by_words_loads_neither_scikit_learn_nor_nltk() -> None:
    """Each takes most of a second and many MiB, for which the first question of a process would wait."""
    code = (
        "import sys; from llama_index_memory_ext import Fact\n"
        "from llama_index_memory_ext.facts.ranking import index_of\n"
        "fact = Fact(content='Likes tea')\n"
        "assert index_of([fact]).similarities('Which tea?') == {fact.id: 1}\n"
        "print(sorted({'sklearn', 'scipy', 'nltk'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True
    )
    assert done.stdout.strip() == "[]"


def test_few_english_texts_are_stemmed_in_no_other_language_before_a_question() -> None:
    """English has words of other languages, such as "want" and "word" of Dutch."""
    ranker = TfidfRanker()
    names = [f"qz{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]
    before = term_of.cache_info().misses
    ranker.add(documents(f"I want a word with {name}" for name in names))
    assert term_of.cache_info().misses - before <= len(names) + 2
    assert list(ranker.similarities("Wanneer komt qzak?")) == ["0"]
