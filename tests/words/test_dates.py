"""Which dates of a statement neither were said nor follow from what was said."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.words import language_of
from llama_index_memory_ext.words.dates import (
    Day,
    Period,
    period_of,
    unsaid_dates,
    without_dates,
)
from tests.words import rows

# A Thursday.
DAY = date(2025, 11, 20)


@pytest.mark.parametrize("row", [*rows("dates"), *rows("missing_dates")])
def test_a_date_may_be_said_in_another_way_or_worked_out_but_not_wrongly(
    row: list[str],
) -> None:
    """A third column names the date that is missing."""
    statement, source, *missing = row
    code = language_of(source) or language_of(f"{statement} {source}") or "en"
    unsaid = unsaid_dates(statement, source, DAY, code)
    assert [statement[date.start : date.end].strip(" ,.") for date in unsaid] == missing


def test_a_day_without_a_year_is_the_last_one_until_today() -> None:
    assert period_of(Day(month=11, day=20), DAY) == Period(DAY, DAY)
    day_ahead = date(2024, 11, 21)
    assert period_of(Day(month=11, day=21), DAY) == Period(day_ahead, day_ahead)


@given(
    st.dates(date(1950, 1, 1), date(2049, 12, 31)),
    st.sampled_from(["%Y-%m-%d", "%d %B %Y", "%B %d, %Y", "%d.%m.%Y"]),
)
def test_every_way_to_write_a_date_means_that_day(day: date, form: str) -> None:
    assert (
        unsaid_dates(
            f"Came on {day:%Y-%m-%d}", f"I came on {day.strftime(form)} by train", DAY
        )
        == []
    )
    assert not any(
        map(str.isdigit, without_dates(f"Came on {day.strftime(form)} by train"))
    )
