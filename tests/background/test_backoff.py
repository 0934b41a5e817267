"""Pauses that grow with each failure."""

from __future__ import annotations

from llama_index_memory_ext.background.jobs import BackOff


def test_each_pause_is_twice_as_long_until_it_works_again() -> None:
    clock = [0.0]
    back_off = BackOff(10.0, lambda: clock[0])
    for pause in (10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0):
        assert not back_off.pausing
        assert back_off.failed() == pause
        clock[0] += pause - 0.1
        assert back_off.pausing
        clock[0] += 0.2
    back_off.succeeded()
    assert back_off.failures == 0
    assert back_off.failed() == 10.0


def test_a_pause_that_is_under_way_is_not_over_sooner() -> None:
    clock = [0.0]
    back_off = BackOff(10.0, lambda: clock[0])
    back_off.failed()
    clock[0] += 4
    back_off.succeeded()
    assert back_off.failures == 1
    clock[0] += 7
    assert not back_off.pausing
