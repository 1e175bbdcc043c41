"""The real and the simulated clock."""

from __future__ import annotations

import time

import pytest

from sparkstorm.common.clock import Clock, SimClock, SystemClock


def test_the_systems_clock_tells_wall_time_and_never_goes_back() -> None:
    clock: Clock = SystemClock()
    readings = [clock.now_ms() for _ in range(1000)]
    assert readings == sorted(readings)
    assert abs(readings[-1] - time.time() * 1000) < 5_000


def test_simulated_time_moves_only_when_it_is_moved() -> None:
    clock = SimClock(1_000)
    assert clock.now_ms() == clock.now_ms() == 1_000
    assert clock.advance(250) == 1_250 == clock.now_ms()
    clock.advance(0)
    assert clock.now_ms() == 1_250


def test_simulated_time_does_not_run_backwards() -> None:
    clock = SimClock()
    with pytest.raises(ValueError, match="-1 ms"):
        clock.advance(-1)
