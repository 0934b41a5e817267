"""Which questions ask about the user's past, and about which time of it."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.words.dates import Period, period_asked
from tests.words import cases

TODAY = date(2026, 11, 20)
LOG = "2023-05-01 12:00 ERROR failed\n" * 200
EVER = Period(date.min, TODAY)


@pytest.mark.parametrize("question", cases("past.txt")["ever"])
def test_words_for_the_past_ask_about_all_of_it(question: str) -> None:
    assert period_asked(question, TODAY) == EVER


@pytest.mark.parametrize("case", cases("past.txt")["then"])
def test_a_time_that_is_named_is_the_time_asked_for(case: str) -> None:
    start, end, question = case.split(" ", 2)
    assert period_asked(question, TODAY) == Period(
        date.fromisoformat(start), date.fromisoformat(end)
    )


@pytest.mark.parametrize("question", ["", LOG, *cases("past.txt")["never"]])
def test_no_other_question_asks_about_the_past(question: str) -> None:
    assert period_asked(question, TODAY) is None


def test_a_question_behind_a_long_paste_is_heard() -> None:
    year = Period(date(2023, 1, 1), date(2023, 12, 31))
    assert period_asked("x " * 50_000 + "\nWhere did I live in 2023?", TODAY) == year


TEXT = "did I was my before ago two 99 years last year 2023 31 February 13.13.2024 May 2月 年 前 以前 vor seit ? ."
WORDS = st.sampled_from(TEXT.split())


@given(
    st.text() | st.lists(WORDS, max_size=12).map(" ".join),
    st.dates(date(1950, 1, 1), date(2100, 1, 1)),
)
def test_any_text_can_be_asked(text: str, today: date) -> None:
    period = period_asked(text, today)
    assert period is None or period.start <= period.end
