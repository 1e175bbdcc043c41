"""Tells that a plugged-in scheduler which loops for ever costs only its own round."""

import threading

import pytest

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.control_plane.nimbus.guarded_scheduler import GuardedScheduler
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.nimbus.nimbus_bench import Bench


class Sticky:
    """Works, until told to stick; then it waits for its release with the cluster in its hands."""

    def __init__(self) -> None:
        self.sticks = False
        self.release = threading.Event()
        self._good = DefaultScheduler()

    def prepare(self, conf: object) -> None:
        self.conf = conf

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        if self.sticks:
            self.release.wait(60)
        self._good.schedule(topologies, cluster)


def test_a_guarded_scheduler_gets_the_configuration() -> None:
    inner, conf = Sticky(), {"storm.scheduler": "mine"}
    GuardedScheduler(inner).prepare(conf)
    assert inner.conf is conf


def test_a_guarded_scheduler_decides_as_it_would_alone() -> None:
    plain, guarded = Bench(nodes=3), Bench(nodes=3, scheduler=GuardedScheduler(DefaultScheduler()))
    assert plain.slots(plain.submit()) == guarded.slots(guarded.submit())


def test_a_scheduler_that_loops_for_ever_costs_one_round_and_changes_nothing() -> None:
    sticky = Sticky()
    bench = Bench(nodes=4, scheduler=GuardedScheduler(sticky, limit_ms=50))
    topology_id = bench.submit("first", topology__workers=2)
    before = bench.state.read_assignment(topology_id)
    sticky.sticks = True
    with pytest.raises(FailedAssignTopologyError, match="did not come back within 50 ms"):
        bench.submit("second", topology__workers=2)
    with pytest.raises(FailedAssignTopologyError, match="still busy"):
        bench.submit("third", topology__workers=2)
    bench.advance(20)
    assert bench.state.read_assignment(topology_id) == before
    sticky.sticks = False
    sticky.release.set()
    assert bench.wait_until(lambda: "scheduler" not in bench.nimbus.problems, 60_000)
    assert bench.submit("fourth", topology__workers=2)
