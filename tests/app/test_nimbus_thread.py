"""The thread that drives Nimbus: it is woken, it waits, and nothing that a turn raises ends it."""

from __future__ import annotations

import threading

import pytest

from sparkstorm.common.clock import SystemClock
from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.driver.nimbus_thread import NimbusThread
from tests.waiting import wait_until


class Turns:
    """A Nimbus whose turns raise what they are told to."""

    def __init__(self, *faults: Exception) -> None:
        self.faults, self.count = list(faults), 0

    def step(self, now_ms: int) -> int:
        self.count += 1
        if self.faults:
            raise self.faults.pop(0)
        return now_ms + 60_000


@pytest.mark.parametrize("fault", [StoreUnavailableError("away"), ValueError("a fault of ours")])
def test_a_failed_turn_is_taken_again(fault: Exception) -> None:
    nimbus, wake = Turns(fault), threading.Event()
    thread = NimbusThread(nimbus, SystemClock(), wake)  # type: ignore[arg-type]
    thread.start()
    wait_until(lambda: nimbus.count >= 2)
    thread.stop()


def test_a_wake_up_makes_a_turn_at_once_and_a_stop_is_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparkstorm.driver.nimbus_thread._LONGEST_SLEEP_S", 60.0)
    nimbus, wake = Turns(), threading.Event()
    thread = NimbusThread(nimbus, SystemClock(), wake)  # type: ignore[arg-type]
    thread.start()
    wait_until(lambda: nimbus.count == 1)
    wake.set()
    wait_until(lambda: nimbus.count == 2)
    thread.stop()
    thread.stop()
    assert nimbus.count <= 3
