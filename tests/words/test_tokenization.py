"""The terms under which texts of many scripts are indexed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import snowballstemmer  # type: ignore[import-untyped]

from llama_index_memory_ext.words.tokens import terms_in, words_of


def test_words_of_many_scripts_are_found() -> None:
    assert terms_in("I've used C++, C# and Next.js") == ("c++", "c#", "next", "js")
    assert terms_in("我喜欢吃什么") == ("我喜", "喜欢", "欢吃", "吃什")
    pairs = terms_in("コーヒーが好きです")
    assert pairs == ("コー", "ーヒ", "ヒー", "が好", "好き", "きで")
    assert terms_in("हिन्दी में") == ("हिन्दी", "में")
    assert terms_in("\uff50\uff39thon Café") == ("python", "cafe")
    assert terms_in("Plan B, room 7, $5") == ("plan", "b", "room", "7", "5")
    assert terms_in("I can't, don\u2019t, l'or e d'or") == ()


def test_a_word_comes_with_its_term_and_as_it_is_written() -> None:
    assert list(words_of("Went to the Cafés")) == [("went", "go"), ("cafés", "cafe")]


@pytest.mark.parametrize(
    ("fact", "question"),
    [("Lives in Rome", "Where do I live?"), ("Leaves at 8", "When do I leave?")],
)
def test_a_verb_in_the_third_person_is_found_by_its_other_forms(
    fact: str, question: str
) -> None:
    """They are seldom the plurals of "life" and "leaf"."""
    assert set(terms_in(fact)) & set(terms_in(question))


@pytest.mark.parametrize(
    "text",
    ["", " \n", "😀😀", "a", "?", "猫", "What is it that you do?", "我的是什么呢"],
)
def test_stop_words_and_single_characters_are_no_terms(text: str) -> None:
    assert terms_in(text) == ()


def test_a_very_long_word_is_a_term_as_it_is() -> None:
    """The stemmer's time grows with the square of the length."""
    word = "ay" * 100_000
    assert terms_in(word) == (word,)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Lets threads change after each few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_threads_do_not_mix_up_the_words_they_stem() -> None:
    endings = ("ing", "ed", "ization", "fulness")
    parts = product("bcd", "ao", "rst", "tn", endings)
    words = ["".join(letters) for letters in parts]
    stems = snowballstemmer.stemmer("english").stemWords(words)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(terms_in, words * 4))
    assert found == [(stem,) for stem in stems * 4]


def test_only_the_stemmers_of_needed_languages_are_loaded_and_stem_as_the_package() -> (
    None
):
    code = (
        "import sys\n"
        "from llama_index_memory_ext.words.tokens import term_of\n"
        "print(term_of('wohnungen', 'de'), *[name.split('.')[-1] for name in sys.modules if name.endswith('_stemmer')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True
    )
    stem = snowballstemmer.stemmer("german").stemWord("wohnungen")
    assert done.stdout.split() == [stem, "german_stemmer"]
