"""Which dates of a statement neither were said nor follow from what was said."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.language.said_dates import ages_in, missing_dates, without_dates

# A Thursday.
DAY = date(2025, 11, 20)


@pytest.mark.parametrize(
    ("statement", "source"),
    [
        ("Flies on 2025-11-28", "I fly on Friday, 28 November 2025"),
        ("Flies on November 28th", "28.11.2025"),
        ("Flies in March 2026", "I fly in March"),
        ("Flies on 2025-11-21", "I fly tomorrow"),
        ("Flies on 2025-11-28", "I fly next Friday"),
        ("Has an exam on 2025-12-11", "My exam is in three weeks"),
        ("Travels in the week of 2025-11-24", "I travel next week"),
        ("Moved in October 2025", "I moved last month"),
        ("Has worked there since 2020", "I've worked there for five years"),
        ("Is sober since November 2022", "I have been sober for three years"),
        ("Was born in 1985", "I just turned 40"),
        ("Fliegt am 2025-11-21", "Ich fliege morgen"),
        ("Viaja el 2025-11-21", "Viajo mañana."),
        ("Part le 2025-11-21", "Je pars demain"),
        ("2025年11月21日出差", "我明天出差"),
        ("2026年に結婚する", "来年結婚します"),
        ("2025年12月11日考试", "我的考试在三周后"),
        ("Grew up in the 90s", "I grew up in the 1990s"),
        ("Is busy in May", "May is my busiest month"),
    ],
)
def test_a_date_may_be_said_in_another_way_or_worked_out(statement: str, source: str) -> None:
    assert missing_dates(statement, source, DAY) == []


@pytest.mark.parametrize(
    ("statement", "source", "missing"),
    [
        ("Flies on Tuesday", "I fly on Monday", ["Tuesday"]),
        ("Has a birthday in June", "My birthday is in May", ["June"]),
        ("Was born in 1988", "I was born in 1978", ["1988"]),
        ("Has an exam on 2025-12-05", "My exam is in three weeks", ["2025-12-05"]),
        ("Flies on 2025-11-22", "I fly tomorrow", ["2025-11-22"]),
        ("Moved in 2020", "I moved two years ago", ["2020"]),
        ("Zieht im Januar um", "Ich ziehe im Februar um", ["Januar"]),
        ("Flies on 31 February 2026", "I fly in March", ["31 February 2026"]),
        ("Graduated in the 80s", "I graduated in the 90s", ["80s"]),
    ],
)
def test_an_invented_date_and_one_that_is_worked_out_wrongly_are_missing(
    statement: str, source: str, missing: list[str]
) -> None:
    assert missing_dates(statement, source, DAY) == missing


def test_a_year_tells_an_age() -> None:
    assert ages_in("I was born in 1990", DAY) == {34.0, 35.0}


@given(
    st.dates(date(1950, 1, 1), date(2049, 12, 31)), st.sampled_from(["%Y-%m-%d", "%d %B %Y", "%B %d, %Y", "%d.%m.%Y"])
)
def test_every_way_to_write_a_date_means_that_day(day: date, form: str) -> None:
    assert missing_dates(f"Came on {day:%Y-%m-%d}", f"I came on {day.strftime(form)} by train", DAY) == []
    assert not any(map(str.isdigit, without_dates(f"Came on {day.strftime(form)} by train")))
