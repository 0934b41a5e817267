"""Which numbers of a statement were not said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from num2words import num2words  # type: ignore[import-untyped]

from llama_index_memory_ext.language.numbers import (
    cjk_value,
    digits_of,
    has_numbers,
    missing_numbers,
    quantities,
    readings,
)


@pytest.mark.parametrize(
    ("statement", "source"),
    [
        ("Has 3 children", "our three kids"),
        ("Has 25 fish", "twenty-five fish"),
        ("Has twenty-one students", "21 students"),
        ("Has ٣ children", "3 children"),
        ("Owns 12 hens", "a dozen hens"),
        ("Trains twice a week", "2 times a week"),
        ("Earns 85,000", "I earn 85k"),
        ("Has 2.5 million subscribers", "two and a half million subscribers"),
        ("Zahlt 1.250,50 Euro", "1250,50 Euro"),
        ("Wohnt im 4. Stock", "Ich wohne im vierten Stock"),
        ("Runs at 6:30 AM", "I run at half past six"),
        ("Steht um 7:30 auf", "Ich stehe um halb acht auf"),
        ("Eats at 19:00", "I eat at 7pm"),
        ("Uses Python 3.12", "I use python3.12"),
        ("有2只猫", "有两只猫"),
        ("月薪15000元", "月薪1.5万元"),
        ("月給は30万円", "月給は三十万円です"),
        ("早上6点半起床", "早上六点半起床"),
        ("A 75 ans", "J'ai soixante-quinze ans"),
        ("Tiene 4 hermanos", "Tengo cuatro hermanos"),
        ("Weighs 70 kilograms", "I weigh 70kg"),
        ("Pays $900", "rent is 900 dollars"),
        ("Has a cat", "I own one cat"),
    ],
)
def test_a_number_may_be_written_in_another_way(statement: str, source: str) -> None:
    assert missing_numbers(statement, source) == []


@pytest.mark.parametrize(
    ("statement", "source", "missing"),
    [
        ("Has 4 children", "three kids", ["4"]),
        ("Uses Python 3.12", "Python 3.11", ["3.12"]),
        ("养了三只猫", "我养了猫", ["三"]),
        ("Runs 10 miles", "I run 10 km", ["10 miles"]),
        ("Takes 500 g", "I take 500 mg", ["500 g"]),
        ("Has a budget of €500", "My budget is $500", ["500 EUR"]),
        ("Pesa 80 libras", "Peso 80 kilos", ["80 libras"]),
        ("Has 4 cats", "I have three cats and 4 fish", ["4 cats"]),
        ("Commutes 45 hours", "I commute 45 minutes", ["45 hours"]),
    ],
)
def test_an_invented_number_and_one_of_something_else_are_missing(
    statement: str, source: str, missing: list[str]
) -> None:
    assert missing_numbers(statement, source) == missing


def test_what_follows_from_the_source_is_not_missing() -> None:
    assert missing_numbers("Is 35", "I was born in 1990", also={34.0, 35.0}) == []
    assert not has_numbers("Has one cat")


@given(
    st.sampled_from(["en", "de", "fr", "es", "it", "nl", "pt"]),
    st.integers(2, 999) | st.integers(1, 19).map(lambda thousands: thousands * 1_000),
)
def test_a_number_is_the_same_in_words_and_in_digits(language: str, number: int) -> None:
    words = num2words(number, lang=language)
    assert {float(number)} in [one.values for one in quantities(words, language)]
    said = [one for one in quantities(f"{number} ", language) if one.values == {float(number)}]
    assert [one.written for one in said] == [str(number)]


@given(st.integers(1, 10**12 - 1))
def test_a_number_with_thousands_is_read(number: int) -> None:
    for written in (f"{number}", f"{number:,}", f"{number:,}".replace(",", "."), f"{number:,}".replace(",", "\u202f")):
        assert float(number) in readings(written.replace("\u202f", " "))


def test_chinese_numbers_have_their_values() -> None:
    assert [cjk_value(text) for text in ("三百五十", "两万", "二〇二三", "一亿", "十")] == [
        350,
        20_000,
        2023,
        10**8,
        10,
    ]
    assert digits_of("三周后") == "3周后"
