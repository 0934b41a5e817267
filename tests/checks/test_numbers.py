"""Which numbers of a statement were not said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from num2words import num2words  # type: ignore[import-untyped]

from llama_index_memory_ext.checks.figures import (
    digits_of,
    has_numbers,
    missing_numbers,
    quantities,
    readings,
)
from tests.words import rows


@pytest.mark.parametrize("row", [*rows("numbers"), *rows("missing_numbers")])
def test_a_number_may_be_written_in_another_way_but_not_of_something_else(
    row: list[str],
) -> None:
    """A third column names the number that is missing."""
    statement, source, *missing = row
    assert missing_numbers(statement, source) == missing


def test_what_follows_from_the_source_is_not_missing() -> None:
    assert missing_numbers("Is 35", "I was born in 1990", derived={34.0, 35.0}) == []
    assert not has_numbers("Has one cat")


@given(
    st.sampled_from(["en", "de", "fr", "es", "it", "nl", "pt"]),
    st.integers(2, 999) | st.integers(1, 19).map(lambda thousands: thousands * 1_000),
)
def test_a_number_is_the_same_in_words_and_in_digits(
    language: str, number: int
) -> None:
    words = num2words(number, lang=language)
    assert {float(number)} in [one.values for one in quantities(words, language)]
    said = [
        one
        for one in quantities(f"{number} ", language)
        if one.values == {float(number)}
    ]
    assert [one.written for one in said] == [str(number)]


@given(st.integers(1, 10**12 - 1))
def test_a_number_with_thousands_is_read(number: int) -> None:
    for written in (
        f"{number}",
        f"{number:,}",
        f"{number:,}".replace(",", "."),
        f"{number:,}".replace(",", "\u202f"),
    ):
        assert float(number) in readings(written.replace("\u202f", " "))


def test_chinese_numbers_have_their_values() -> None:
    assert (
        digits_of("三百五十 两万 二〇二三 一亿 十 三周后")
        == "350 20000 2023 100000000 10 3周后"
    )
