"""Pauses that grow with each failure."""

from __future__ import annotations

from llama_index_memory_ext.background.jobs import BackOff


def test_each_pause_is_twice_as_long_as_the_one_before_up_to_five_minutes() -> None:
    back_off = BackOff(10.0)
    assert not back_off.pausing
    assert [back_off.failed() for _ in range(7)] == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert back_off.pausing


def test_a_pause_that_is_under_way_is_not_over_sooner() -> None:
    back_off = BackOff(10.0)
    back_off.failed()
    back_off.succeeded()
    assert (back_off.failures, back_off.pausing) == (1, True)


def test_after_a_pause_a_success_makes_the_next_one_short_again() -> None:
    back_off = BackOff(0.0)
    back_off.failed()
    assert not back_off.pausing
    back_off.succeeded()
    assert back_off.failures == 0
