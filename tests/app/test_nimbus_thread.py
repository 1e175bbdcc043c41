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


def test_an_outage_of_the_store_is_logged_once_and_its_end_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = [StoreUnavailableError("ZooKeeper is away"), StoreUnavailableError("still away")]
    nimbus, wake = Turns(*faults), threading.Event()
    thread = NimbusThread(nimbus, SystemClock(), wake)  # type: ignore[arg-type]
    thread.start()
    wait_until(lambda: len(caplog.messages) >= 2)
    thread.stop()
    assert caplog.messages == [
        "Nimbus assigns nothing until the store answers: ZooKeeper is away",
        "the store answers again, Nimbus goes on",
    ]


def test_a_store_that_a_stopped_nimbus_does_not_wait_for_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked, may_fail = threading.Event(), threading.Event()

    class Asking:
        def step(self, now_ms: int) -> int:
            asked.set()
            may_fail.wait(10)
            raise StoreUnavailableError("ZooKeeper did not answer within the last moments")

    thread = NimbusThread(Asking(), SystemClock(), threading.Event(), hurry=may_fail.set)  # type: ignore[arg-type]
    thread.start()
    asked.wait(10)
    thread.stop()
    assert caplog.messages == []


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
