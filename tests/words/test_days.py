"""Days are found however they are written, and May is told from the verb."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.words.dates import MONTHS, date_words, with_english_days
from llama_index_memory_ext.words.tokens import terms_in
from tests.words import cases

FORMS = (
    "{0:%Y-%m-%d}", "{0:%Y/%m/%d}", "{0:%Y.%m.%d}", "{0.year}-{0.month}-{0.day}", "{0:%d.%m.%Y}",
    "{0.day}.{0.month}.{0.year}",
    "{0:%Y}年{0:%m}月{0:%d}日", "{0.year}年{0.month}月{0.day}日", "{1} {0.day}, {0.year}", "{0.day} {1} {0.year}",
    "the {0.day}th of {1} {0.year}", "{1} {0.day}th, {0.year}",
)  # fmt: skip
TWO_WAYS = (
    "{0:%m/%d/%Y}",
    "{0.month}/{0.day}/{0.year}",
    "{0:%d/%m/%Y}",
    "{0.day}-{0.month}-{0.year}",
)


def written(form: str, day: date) -> str:
    return form.format(day, MONTHS[day.month - 1])


@given(
    st.dates(date(1900, 1, 1), date(2099, 12, 31)),
    st.sampled_from(["{}", "On {}.", '<a date="{}">']),
)
def test_a_day_in_any_form_has_the_terms_of_the_form_that_is_indexed(
    day: date, around: str
) -> None:
    expected = sorted(terms_in(around.format(date_words(day))))
    for form in FORMS:
        assert sorted(terms_in(around.format(written(form, day)))) == expected


@given(st.dates(date(1900, 1, 1), date(2099, 12, 31)))
def test_a_day_that_can_be_read_in_two_ways_is_found_by_both(day: date) -> None:
    other = date(day.year, day.day, day.month) if day.day <= 12 else day
    for form in TWO_WAYS:
        terms = set(terms_in(written(form, day)))
        assert terms == {*terms_in(date_words(day)), *terms_in(date_words(other))}


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("2026-03", ("march", "2026")),
        ("我在2026-03-14去了", ("14", "march", "2026", "去了", "mar14")),
        ("2026-03-14T10:30:00", ("14", "march", "2026", "10", "30", "00", "mar14")),
        ("1.2.2026", ("1", "februari", "2026", "feb1")),
        (
            "2026-03-14,2026-03-15",
            ("14", "march", "2026", "15", "march", "2026", "mar14", "mar15"),
        ),
    ],
)
def test_months_and_times_of_a_day_are_read_too(
    text: str, terms: tuple[str, ...]
) -> None:
    assert terms_in(text) == terms


@pytest.mark.parametrize(
    "text",
    str.split(
        "1.2.3 v1.2.2026 2026.1.2 10.5 $10.50 12:30 192.168.1.1 10.20.30.2026 +49-12-10-2026 555-2026-03 INV-2026-03-14"
        " 2026-02-30 2026-13 2026-13-01 31/31/2026 1/2 3/14 2025-26 0000-01-01 /2026/03/14 2026-03-14-15 2026-03-14a"
    ),
)
def test_other_numbers_are_no_days(text: str) -> None:
    assert with_english_days(text) == (text, [])


@pytest.mark.parametrize("text", cases("may.txt")["month"])
def test_may_as_a_month_is_found(text: str) -> None:
    assert "may" in terms_in(text)


@pytest.mark.parametrize("text", cases("may.txt")["verb"])
def test_the_verb_may_is_no_month(text: str) -> None:
    assert "may" not in terms_in(text)
    assert "may" not in terms_in(text.lower())
