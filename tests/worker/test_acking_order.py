"""Tracking end to end: not only what is told, but when: nobody is acked early, and failures are
told at once (S1.*).
"""

from __future__ import annotations

import pytest

from sparkstorm.api import TopologyBuilder, Tuple
from sparkstorm.testing import FeederSpout
from sparkstorm.testing.shared import Shared
from tests.topologies import feed, running
from tests.worker.building import Collecting, Hoards, Pass, chain
from tests.worker.test_acking import Fan, Join, conf

WORKERS = pytest.mark.parametrize("workers", [1, 2, 4])
GUARANTEES = pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])


class Gate(Hoards):
    """Holds every tuple until it is opened; a tick later all are acked."""

    def __init__(self) -> None:
        self.is_open = Shared(False)
        self.waiting = Shared(0)

    def execute(self, tup: Tuple) -> None:
        self.waiting.value += not tup.is_tick
        if self.is_open.value or not tup.is_tick:
            super().execute(tup)


@WORKERS
@GUARANTEES
def test_a_tree_is_not_acked_before_its_last_tuple_wherever_that_waits(
    workers: int, guarantee: str
) -> None:
    """S1.1, S1.3, S1.9, S1.12."""
    spout, gate, builder = FeederSpout(), Gate(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("fan", Fan(), 2).shuffle_grouping("spout")
    builder.set_bolt("pass", Pass(), 2).shuffle_grouping("fan")
    builder.set_bolt("gate", gate, conf={"topology.tick.tuple.freq.secs": 1}).global_grouping(
        "pass"
    )
    with running(builder.build(), conf(workers, topology_delivery_guarantee=guarantee)) as cluster:
        feed(spout, range(10))
        cluster.advance(seconds=10)
        assert gate.waiting.value == 30
        assert (spout.acked, spout.failed) == ([], [])
        gate.is_open.value = True
        cluster.advance(seconds=5)
        assert sorted(spout.acked) == list(range(10))


@WORKERS
@GUARANTEES
def test_neither_tree_of_a_tuple_with_two_anchors_is_acked_before_that_tuple(
    workers: int, guarantee: str
) -> None:
    """S1.10, S1.11, S1.13."""
    spout, gate, builder = FeederSpout(), Gate(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("join", Join()).shuffle_grouping("spout")
    builder.set_bolt("gate", gate, conf={"topology.tick.tuple.freq.secs": 1}).global_grouping(
        "join"
    )
    with running(builder.build(), conf(workers, topology_delivery_guarantee=guarantee)) as cluster:
        for name in "abcd":
            spout.feed([name], message_id=name)
        cluster.advance(seconds=10)
        assert gate.waiting.value == 2
        assert (spout.acked, spout.failed) == ([], [])
        gate.is_open.value = True
        cluster.advance(seconds=5)
        assert sorted(spout.acked) == ["a", "b", "c", "d"]


class Fail(Collecting):
    """Fails whatever comes."""

    outputs = None

    def execute(self, tup: Tuple) -> None:
        self.collector.fail(tup)


@WORKERS
def test_an_untracked_tuple_that_fails_is_told_to_nobody_and_hurts_nobody(workers: int) -> None:
    """S1.14."""
    spout = FeederSpout(is_tracked=False)
    with running(
        chain(spout, Fail()), conf(workers, topology_delivery_guarantee="at-least-once")
    ) as cluster:
        feed(spout, range(5))
        cluster.advance(seconds=60)
        assert (spout.acked, spout.failed) == ([], [])
        assert cluster.counts("bolt").executed == 5
        assert cluster.counts("bolt").failed == 5
