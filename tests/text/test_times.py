"""When a message was said is read from what programs write beside it."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.text.messages import TIME_KEYS, times_in

NOON = datetime(2023, 5, 8, 12, tzinfo=timezone.utc)
SECONDS = int(NOON.timestamp())


@pytest.mark.parametrize(
    "value",
    [
        NOON, NOON.replace(tzinfo=None), "2023-05-08T12:00:00Z", "2023-05-08 12:00", "2023-05-08T14:00:00.000+02:00",
        SECONDS, SECONDS * 1_000, float(SECONDS), str(SECONDS),
    ],
)  # fmt: skip
def test_a_time_is_read_however_a_program_writes_it(value: object) -> None:
    assert times_in({"created_at": value}) == {"created_at": NOON}


@pytest.mark.parametrize("value", ["2023-05-08", date(2023, 5, 8)])
def test_a_day_is_its_beginning(value: object) -> None:
    assert times_in({"date": value}) == {"date": NOON - timedelta(hours=12)}


@pytest.mark.parametrize(
    "value",
    [
        None, "", True, 3, 2.5, "3", -1, 10**30, float("nan"), float("inf"), "soon", "May 8", "1970-01-01", [],
        {"a": 1}, "9999-12-31T23:59:59-12:00", b"\xff", object(),
    ],
)  # fmt: skip
def test_what_is_no_time_of_a_message_is_left_out(value: object) -> None:
    assert times_in({"timestamp": value, "date": NOON}) == {"date": NOON}


@given(values=st.dictionaries(st.sampled_from([*TIME_KEYS, "time"]), st.from_type(object) | st.text() | st.floats()))
def test_no_value_raises_an_error(values: dict[str, Any]) -> None:
    assert list(times_in(values)) == [key for key in TIME_KEYS if key in times_in(values)]
