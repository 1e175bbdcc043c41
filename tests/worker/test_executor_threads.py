"""Threads of executors, and the watches over calls: a bolt that waits in the loop is named, and so
is a stuck thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.data_plane.worker.tasks.call_watch import CallWatch
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
from tests.topologies import Count
from tests.worker.building import chain

ARRIVED = threading.Event()


class Waits(StatefulBolt):
    """Counts, once the bolt next to it has been called."""

    outputs = ("n",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        assert ARRIVED.wait(60)
        collector.emit((self.state.add(tup[0]),))


class Opens(BasicBolt):
    """Lets the other one go on."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        ARRIVED.set()


@pytest.mark.parametrize("where", ["topology", "component"])
def test_with_a_thread_of_its_own_a_component_that_waits_holds_up_no_other(where: str) -> None:
    ARRIVED.clear()
    key = {"topology.executor.threads": True}
    spout, builder, capture = FeederSpout(), TopologyBuilder(), CaptureBolt()
    builder.set_spout("spout", spout)
    builder.set_bolt(
        "waits", Waits(), inputs={"spout": "all"}, conf=key if where == "component" else None
    )
    builder.set_bolt("opens", Opens(), inputs="waits")
    # called after "waits": without a thread it never would be
    builder.set_bolt("first", Opens(), inputs="spout")
    builder.set_bolt("capture", capture, inputs="waits")
    with LocalCluster() as cluster:
        cluster.submit(
            builder.build(), {"topology.workers": 1, **(key if where == "topology" else {})}
        )
        for _ in range(20):
            spout.feed(["x"])
        cluster.run_until(lambda: len(set(spout.acked)) == 20)
        cluster.kill_worker()
        spout.feed(["x"])
        cluster.run_until(lambda: len(set(spout.acked)) == 21)
        assert sorted(capture.values) == [(n,) for n in range(1, 22)]
        assert cluster.state("waits") == {"x": 21}


def test_what_cannot_leave_the_loop_stays_in_it() -> None:
    from sparkstorm.api import Count as Tuples
    from sparkstorm.api import WindowedBolt

    class Sizes(WindowedBolt):
        outputs = ("size",)

        def execute(self, window: Any, collector: BasicOutputCollector) -> None:
            collector.emit((len(window),))

    spout, capture = FeederSpout(), CaptureBolt()
    with LocalCluster() as cluster:
        cluster.submit(
            chain(spout, Sizes().with_window(Tuples(3)), capture),  # type: ignore[arg-type]
            {"topology.executor.threads": True},
        )
        for n in range(6):
            spout.feed([n])
        cluster.run_until(lambda: len(capture.values) == 2)
        assert capture.values == [(3,), (3,)]


class Hands:
    """Clocks that a test moves."""

    def __init__(self) -> None:
        self.wall, self.cpu = 0.0, 0.0
        self.said: list[Failure] = []
        self.watch = CallWatch("slow", 3, self.said.append, lambda: self.wall, lambda: self.cpu)

    def call(self, wall: float, cpu: float, pause: float = 0.0) -> None:
        def run(tuples: Any) -> list[Any]:
            self.wall += wall
            self.cpu += cpu
            return []

        self.watch.call(run, [])
        self.wall += pause


@pytest.mark.parametrize(
    ("wall", "cpu", "pause", "is_named"),
    [
        (0.1, 0.0, 0.0, True),  # it waits all the time
        (0.1, 0.0, 0.3, True),  # a quarter of it
        (0.1, 0.0, 0.9, False),  # a tenth
        (0.1, 0.1, 0.0, False),  # it computes
        (0.005, 0.0, 0.0, False),  # calls that return soon are not looked at
    ],
)
def test_a_bolt_that_waits_in_the_loop_is_named_with_the_mend(
    wall: float, cpu: float, pause: float, is_named: bool
) -> None:
    hands = Hands()
    while hands.wall < 30:
        hands.call(wall, cpu, pause)
    assert bool(hands.said) is is_named
    for failure in hands.said:
        assert (failure.component, failure.task, failure.kind) == ("slow", 3, FailureKind.SYSTEM)
        assert "declare blocking = True on it, or set topology.executor.threads" in failure.text
    assert len(hands.said) <= 1, "once in ten minutes"


def _sleep(tuples: Any) -> list[Any]:
    time.sleep(0.02)
    return []


def _compute(tuples: Any) -> list[Any]:
    sum(range(400_000))
    return []


def test_a_real_sleep_is_no_work_and_a_real_loop_is() -> None:
    said: list[Failure] = []
    import sparkstorm.data_plane.worker.tasks.call_watch as module

    window = module._WINDOW_S
    try:
        module._WINDOW_S = 0.2

        def is_named(call: Callable[[Any], list[Any]]) -> bool:
            said.clear()
            watch = CallWatch("slow", 3, said.append)
            until = time.monotonic() + 0.6
            while time.monotonic() < until:
                watch.call(call, [])
            return bool(said)

        # On a busy machine a sleep is lost among waits for a CPU, and a stopped process seems to
        # sleep
        assert any(is_named(_sleep) for _ in range(20))
        assert not all(is_named(_compute) for _ in range(20))
    finally:
        module._WINDOW_S = window


class Stands(Count):
    """Waits in its thread."""

    blocking = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        ARRIVED.wait(60)


def test_a_thread_that_stands_in_one_call_is_told_once_with_its_stack() -> None:
    ARRIVED.clear()
    spout = FeederSpout()
    with LocalCluster(thread_patience_secs=0.05) as cluster:
        cluster.submit(chain(spout, Stands()), {"topology.worker.progress.timeout.secs": 5})
        spout.feed([1])
        cluster.advance(20)
        (error,) = cluster.errors
        ARRIVED.set()
        cluster.run_until(lambda: spout.acked == [0])
        assert error.kind is FailureKind.HUNG and error.text.startswith(
            "hung: its thread has been inside one call for 5 s (test_executor"
        )
        assert "in execute\n  ARRIVED.wait(60)" in error.traceback
