"""Counts of acked and parked inputs by component, as `status` shows them."""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, Bolt, Tuple
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, Shared
from tests.worker.building import GUARANTEES, Collecting, Pass, chain

FEW = {"topology.max.retries": 2, "topology.retry.backoff.ms": 1}
EXACTLY_ONCE = "exactly-once"


class Odd(BasicBolt):
    """Raises on odd numbers while it is broken."""

    outputs = ("value",)

    def __init__(self) -> None:
        self.is_broken: Shared[bool] = Shared(True)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if self.is_broken.value and tup[0] % 2:
            raise ValueError("odd")
        collector.emit((tup[0],))


class Late(Collecting):
    """Acks each input with the next one."""

    last: Any = None

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((tup[0],), tup)
        if self.last is not None:
            self.collector.ack(self.last)
        self.last = tup


class Blocking(Pass):
    blocking = True


def run(
    cluster: LocalCluster,
    bolt: Bolt | BasicBolt,
    guarantee: str = EXACTLY_ONCE,
    count: int = 10,
    workers: int = 1,
) -> Any:
    """Run a chain on so many numbers, and return its spout."""
    spout = FeederSpout(["value"])
    conf = {**FEW, "topology.delivery.guarantee": guarantee, "topology.workers": workers}
    cluster.submit(chain(spout, bolt, CaptureBolt()), conf)
    for number in range(count):
        spout.feed([number])
    cluster.advance(seconds=5)
    return spout


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_every_component_counts_its_acked_inputs(guarantee: str, workers: int) -> None:
    with LocalCluster() as cluster:
        run(cluster, Pass(), guarantee, workers=workers)
        counts = {name: cluster.topology().counts(name) for name in ("spout", "bolt", "capture")}
        result = {name: each.acked for name, each in counts.items()}
        assert result == {"spout": 10, "bolt": 10, "capture": 10}


@pytest.mark.parametrize("guarantee", ["at-most-once", EXACTLY_ONCE])
def test_failed_inputs_are_not_acked(guarantee: str) -> None:
    with LocalCluster() as cluster:
        run(cluster, Odd(), guarantee)
        bolt = cluster.topology().counts("bolt")
        assert bolt.acked == 5
        assert bolt.failed == 5
        assert bolt.parked == (5 if guarantee == EXACTLY_ONCE else 0)


def test_an_input_that_is_done_at_its_second_try_is_acked_once() -> None:
    class Second(BasicBolt):
        outputs = ()

        def __init__(self) -> None:
            self.seen: Shared[set[int]] = Shared(set())

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            if tup[0] not in self.seen.value:
                self.seen.value.add(tup[0])
                raise ValueError("not yet")

    with LocalCluster() as cluster:
        run(cluster, Second())
        bolt = cluster.topology().counts("bolt")
        assert (bolt.acked, bolt.executed, bolt.retried, bolt.failed) == (10, 20, 10, 0)


def test_inputs_that_are_held_are_acked_with_their_ack() -> None:
    with LocalCluster() as cluster:
        run(cluster, Late())
        assert cluster.topology().counts("bolt").acked == 9


def test_a_blocking_bolt_counts_alike() -> None:
    with LocalCluster() as cluster:
        run(cluster, Blocking())
        assert cluster.topology().counts("bolt").acked == 10
