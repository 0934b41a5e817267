"""Which days and periods a text names."""

from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.words.dates import Day, Period, dates_in, period_of

DAY = date(2025, 11, 20)


def test_a_day_without_a_year_is_the_last_one_until_today() -> None:
    assert period_of(Day(month=11, day=20), DAY) == Period(DAY, DAY)
    day_ahead = date(2024, 11, 21)
    assert period_of(Day(month=11, day=21), DAY) == Period(day_ahead, day_ahead)


@given(
    st.dates(date(1950, 1, 1), date(2049, 12, 31)),
    st.sampled_from(["%Y-%m-%d", "%d %B %Y", "%B %d, %Y", "%d.%m.%Y"]),
)
def test_every_way_to_write_a_date_means_that_day(day: date, form: str) -> None:
    (mention,) = dates_in(f"Came on {day.strftime(form)} by train")
    assert Day(day.year, day.month, day.day) in mention.readings
