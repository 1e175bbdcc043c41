"""Measurements reach a scheduler that was plugged in, from exact counts of a running topology, also
after a change of leader.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.config import merge
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.topologies import Count, Split

SEEN: list[Measurements | None] = []


class Watcher(DefaultScheduler):
    """Places by default, and keeps what it is shown."""

    wants_measurements = True

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Keep the measurements."""
        SEEN.extend(each.measured for each in topologies.values())
        super().schedule(topologies, cluster)


class Blind(Watcher):
    """The same, which does not ask."""

    wants_measurements = False


def cluster_of(scheduler: type[Watcher], **more: Any) -> LocalCluster:
    """A cluster whose scheduler is that one."""
    SEEN.clear()
    path = f"{__name__}.{scheduler.__name__}"
    conf = {"storm.scheduler": path, "storm.scheduler.allowed": [path], **more}
    return LocalCluster(conf=conf, is_lively=True, draws_epochs=False)


def feed(cluster: LocalCluster, seconds: int, every_secs: int = 2) -> None:
    """Feed a line of four words every two seconds."""
    for _ in range(seconds // every_secs):
        LINES.feed(["to be or be"])
        cluster.advance(every_secs)


LINES = FeederSpout(["line"])


def submit(cluster: LocalCluster) -> str:
    global LINES
    LINES = FeederSpout(["line"])
    builder = TopologyBuilder()
    builder.set_spout("lines", LINES)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    return cluster.submit(builder.build(), {"topology.workers": 2})


def restart_nimbus(cluster: LocalCluster) -> None:
    """End the leader with its session; another one begins, which remembers nothing."""
    session = cluster.nimbus_store
    assert session is not None
    for duty in cluster.nimbus_duties:
        cluster.simulation.discard(duty)
    session.close()
    cluster.start_nimbus()


def flows(measured: Measurements) -> dict[tuple[str, str], float]:
    return {(each.component, each.receiver): each.rows_per_s for each in measured.flows}


def test_rates_are_those_that_were_fed_also_after_a_change_of_leader() -> None:
    with cluster_of(Watcher) as cluster:
        submit(cluster)
        assert SEEN
        assert SEEN[-1] is None
        feed(cluster, 400)
        for turn in range(2):
            measured = SEEN[-1]
            assert measured is not None
            # half a line a second, four words a line; the window begins within a minute
            assert flows(measured)["lines", "split"] == pytest.approx(0.5, rel=0.05)
            assert flows(measured)["split", "count"] == pytest.approx(2.0, rel=0.05)
            assert measured.window_ms == 300_000
            assert measured.settled_ms > 390_000
            rates = measured.tasks.values()
            assert sum(each.executed_per_s for each in rates) == pytest.approx(2.5, rel=0.05)
            assert all(each.bytes_per_s > 0.0 for each in measured.flows)
            if turn == 0:
                SEEN.clear()
                restart_nimbus(cluster)
                cluster.advance(1)


def test_rates_fall_to_nothing_when_nothing_comes() -> None:
    with cluster_of(Watcher) as cluster:
        submit(cluster)
        feed(cluster, 120)
        cluster.advance(700)
        measured = SEEN[-1]
        assert measured is not None
        assert set(flows(measured).values()) == {0.0}


def test_a_topology_is_measured_at_most_once_a_round_and_for_schedulers_that_ask_only() -> None:
    with cluster_of(Watcher) as cluster:
        submit(cluster)
        measurer = cluster.nimbus.duties.assigner.measurer
        before, rounds = measurer.reads, len(SEEN)
        feed(cluster, 100)
        assert len(SEEN) > rounds
        assert 0 < measurer.reads - before <= 11
    with cluster_of(Blind) as cluster:
        submit(cluster)
        feed(cluster, 100)
        assert cluster.nimbus.duties.assigner.measurer.reads == 0
        assert set(SEEN) == {None}


def test_traffic_chosen_by_one_topology_alone_is_measured() -> None:
    with LocalCluster(is_lively=True, draws_epochs=False) as cluster:
        submit(cluster)
        builder = TopologyBuilder()
        builder.set_spout("lines", FeederSpout(["line"]))
        builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
        cluster.submit(builder.build(), {"topology.scheduler": "traffic"}, "other")
        measurer = cluster.nimbus.duties.assigner.measurer
        before = measurer.reads
        cluster.advance(100)
        assert 0 < measurer.reads - before <= 11
        assert not cluster.nimbus.problems


def test_a_plan_by_traffic_moves_a_running_topology_and_nothing_is_lost() -> None:
    """Placed evenly over two nodes; the next leader schedules by traffic, and plans."""
    conf = {
        "storm.scheduler": "even",
        "nimbus.measurements.window.secs": 60,
        "traffic.scheduler.period.secs": 120,
        "traffic.scheduler.balance.weight": 0,
    }
    with LocalCluster(conf=conf, is_lively=True, draws_epochs=False) as cluster:
        topology_id = submit(cluster)
        assert len(nodes_of(cluster, topology_id)) == 2
        feed(cluster, 100)
        assert len(nodes_of(cluster, topology_id)) == 2
        cluster.slot_conf = merge(cluster.slot_conf, {"storm.scheduler": "traffic"})
        restart_nimbus(cluster)
        feed(cluster, 60)
        assert len(nodes_of(cluster, topology_id)) == 1
        assert len(slots_of(cluster, topology_id)) == 2
        moved = slots_of(cluster, topology_id)
        # judged after a period: it has paid, and stays
        feed(cluster, 300)
        assert slots_of(cluster, topology_id) == moved
        cluster.run_until_idle()
        assert cluster.state("count") == {"to": 230, "be": 460, "or": 230}


def slots_of(cluster: LocalCluster, topology_id: str) -> set[WorkerSlot]:
    assignment = cluster.storm_state.read_assignment(topology_id)
    assert assignment is not None
    return set(assignment.slot_by_executor.values())


def nodes_of(cluster: LocalCluster, topology_id: str) -> set[str]:
    return {slot.node for slot in slots_of(cluster, topology_id)}
