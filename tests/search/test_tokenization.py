"""The terms under which texts of many scripts are indexed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import product

import pytest
import snowballstemmer  # type: ignore[import-untyped]

from llama_index_memory_ext.search.days import MONTHS
from llama_index_memory_ext.search.tokenization import (
    CHINESE_DIGITS,
    NUMBER_WORDS,
    TENS,
    WEEKDAYS,
    date_words,
    terms_of,
    words_of,
)


def test_words_of_many_scripts_are_found() -> None:
    assert terms_of("I've used C++, C# and Next.js") == ("c++", "c#", "next", "js")
    assert terms_of("我喜欢吃什么") == ("我喜", "喜欢", "欢吃", "吃什")
    assert terms_of("コーヒーが好きです") == ("コー", "ーヒ", "ヒー", "が好", "好き", "きで")
    assert terms_of("हिन्दी में") == ("हिन्दी", "में")
    assert terms_of("\uff50\uff39thon Café") == ("python", "cafe")


def test_a_word_comes_with_its_term_and_as_it_is_written() -> None:
    assert list(words_of("Went to the Cafés")) == [("went", "go"), ("cafés", "cafe")]


@pytest.mark.parametrize(
    ("fact", "question"), [("Lives in Rome", "Where do I live?"), ("Leaves at 8", "When do I leave?")]
)
def test_a_verb_in_the_third_person_is_found_by_its_other_forms(fact: str, question: str) -> None:
    """They are seldom the plurals of "life" and "leaf"."""
    assert set(terms_of(fact)) & set(terms_of(question))


@pytest.mark.parametrize("text", ["", " \n", "😀😀", "a", "?", "猫", "What is it that you do?", "我的是什么呢"])
def test_stop_words_and_single_characters_are_no_terms(text: str) -> None:
    assert terms_of(text) == ()


@pytest.mark.parametrize("text", ["8 May, 2023", "May 8, 2023", "the 8th of May", "2023年5月8日", "May 8th"])
def test_a_day_is_one_word_however_it_is_written(text: str) -> None:
    assert "may8" in terms_of(text)
    assert "may8" in terms_of(date_words(date(2026, 5, 8)))


def test_a_very_long_word_is_a_term_as_it_is() -> None:
    """The stemmer's time grows with the square of the length."""
    word = "ay" * 100_000
    assert terms_of(word) == (word,)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Lets threads change after each few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_threads_do_not_mix_up_the_words_they_stem() -> None:
    words = ["".join(letters) for letters in product("bcd", "ao", "rst", "tn", ("ing", "ed", "ization", "fulness"))]
    stems = snowballstemmer.stemmer("english").stemWords(words)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(terms_of, words * 4))
    assert found == [(stem,) for stem in stems * 4]


def test_the_lists_of_words_are_complete() -> None:
    assert (len(MONTHS), len(WEEKDAYS)) == (12, 7)
    assert (NUMBER_WORDS["zero"], NUMBER_WORDS["nineteen"], NUMBER_WORDS["ninety"]) == (0, 19, 90)
    assert TENS.items() <= NUMBER_WORDS.items()
    assert set(CHINESE_DIGITS.values()) == set(range(10))
