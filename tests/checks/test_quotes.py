"""Where a quote lies in a text."""

# ruff: noqa: RUF001 - punctuation that looks alike is what some of these tests are about

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.checks.quotes import find_quote
from llama_index_memory_ext.words import TOKEN

SAID = (
    "I live in new york with Anna, our three kids and twenty-five fish. My German is rusty - I don't speak it. "
    "R&D is my field. 我在北京有两只猫，用Rust写代码。"
)


@pytest.mark.parametrize(
    ("quote", "words"),
    [
        ("I live in New York", "I live in new york"),
        ("i  LIVE\nin new york", "I live in new york"),
        ("“our three kids”", "our three kids"),
        ("They live in New York with Anna", "I live in new york with Anna"),
        (
            "My German is rusty, I dont speak it.",
            "My German is rusty - I don't speak it.",
        ),
        ("my german is rsuty", "My German is rusty"),
        ("I live … with Anna", "I live in new york with Anna"),
        ("... three kids ...", "three kids"),
        ("R&amp;D is my field", "R&D is my field"),
        ("我在北京有两只猫", "我在北京有两只猫"),
        ("Ｒｕｓｔ", "Rust"),
    ],
)
def test_the_users_own_words_are_found_for_a_quote(quote: str, words: str) -> None:
    span = find_quote(quote, SAID)
    assert span is not None
    assert span.of(SAID) == words


@pytest.mark.parametrize(
    "quote",
    [
        "",
        " ",
        "...",
        "Ann",
        "I hate New Orleans",
        "live with Bob in Paris",
        "with Anna ... I live",
        "我在上海工作",
        "I live " * 300,
    ],
)
def test_what_was_not_said_is_not_found(quote: str) -> None:
    assert find_quote(quote, SAID) is None


@pytest.mark.parametrize("answer", ["Yes", "No.", "好", "3"])
def test_a_short_answer_is_its_own_quote(answer: str) -> None:
    assert find_quote(answer, answer) is not None
    assert find_quote("no", "No, thanks.") is not None


# A mark that stands alone belongs to the letter before it.
plain_texts = st.text(st.characters(exclude_categories=("M", "C")))


@given(plain_texts, plain_texts, st.integers(0, 30), st.integers(4, 30))
def test_whatever_is_cut_out_between_words_is_found_at_its_place(
    before: str, text: str, first: int, count: int
) -> None:
    said = f"{before} {text}"
    tokens = [*re.finditer(TOKEN, said)][first : first + count]
    if len(tokens) > 1:
        quote = said[tokens[0].start() : tokens[-1].end()]
        span = find_quote(quote, said)
        # Unescaping may leave no words.
        assert span is None or span.likeness > 0
        if "&" not in said:
            assert span is not None
            assert span.of(said) == quote
