"""The circuit breaker: a bolt most of whose inputs fail is paused with its spouts, and nothing is
lost by it.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.common.errors import TopologyPausedError
from sparkstorm.common.model.failure import FailureKind
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.topology import Topology
from sparkstorm.testing import FeederSpout, LocalCluster, Shared, complete_topology
from tests.topologies import Count, feed, ran, running

GUARANTEES = ["exactly-once", "at-least-once", "at-most-once"]
PAUSE_AT_10 = {"topology.failure.pause.count": 10}


class Breaks(BasicBolt):
    """Raises on the values of `bad`, while it is broken."""

    outputs = ("value",)

    def __init__(self, bad: range) -> None:
        self.bad = bad
        self.is_broken: Shared[list[bool]] = Shared([True])

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if self.is_broken.value[0] and tup[0] in self.bad:
            raise ModuleNotFoundError("No module named 'nosuchmod'")
        collector.emit((tup[0],))


def chain(spout: FeederSpout, breaks: Breaks) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("breaks", breaks, 2).shuffle_grouping("spout")
    builder.set_bolt("count", Count(), 2).fields_grouping("breaks", "value")
    return builder.build()


def paused_cluster(
    cluster: LocalCluster, spout: FeederSpout, breaks: Breaks, rows: int, **conf: Any
) -> None:
    """Feed rows until the topology is paused."""
    cluster.submit(chain(spout, breaks), {**PAUSE_AT_10, **conf})
    feed(spout, range(rows))
    with pytest.raises(TopologyPausedError) as raised:
        cluster.run_until_idle()
    assert str(raised.value).startswith("bolt 'breaks' is paused: most of its inputs fail, and 1")
    assert "No module named 'nosuchmod'" in str(raised.value)
    assert "`sparkstorm activate test`" in str(raised.value)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_exactly_once_gives_up_few_inputs_and_keeps_the_others_until_it_is_activated(
    workers: int,
) -> None:
    spout, breaks = FeederSpout(), Breaks(range(1000))
    with LocalCluster() as cluster:
        paused_cluster(cluster, spout, breaks, 400, **{"topology.workers": workers})
        parked = len(cluster.dead_letters)
        assert 10 <= parked <= 20 and cluster.state("count") == {}
        breaks.is_broken.value[0] = False
        cluster.activate()
        cluster.run_until_idle()
        letters = {each.values[0] for each in cluster.dead_letters}
        assert len(letters) <= 20
        assert cluster.state("count") == dict.fromkeys(set(range(400)) - letters, 1)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_it_opens_again_when_the_cause_is_still_there(guarantee: str) -> None:
    spout, breaks = FeederSpout(), Breaks(range(100_000))
    with LocalCluster() as cluster:
        paused_cluster(cluster, spout, breaks, 2_000, **{"topology.delivery.guarantee": guarantee})
        before = cluster.counts("breaks").failed
        cluster.activate()
        with pytest.raises(TopologyPausedError):
            cluster.run_until_idle()
        assert before < cluster.counts("breaks").failed < 2_000


def test_rare_failures_open_nothing_however_many_there_are() -> None:
    spout, breaks = FeederSpout(), Breaks(range(0, 2_000, 5))
    with ran(chain(spout, breaks), spout, range(2_000), PAUSE_AT_10) as cluster:
        assert len(cluster.dead_letters) == 400 and len(cluster.state("count")) == 1_600


def test_a_bolt_that_fails_after_a_long_good_time_is_paused_soon() -> None:
    spout, breaks = FeederSpout(), Breaks(range(2_000, 100_000))
    with running(chain(spout, breaks), PAUSE_AT_10) as cluster:
        feed(spout, range(3_000))
        with pytest.raises(TopologyPausedError):
            cluster.run_until_idle()
        assert 10 <= len(cluster.dead_letters) <= 20


def test_a_cause_that_is_over_before_the_last_try_opens_nothing() -> None:
    spout, breaks = FeederSpout(), Breaks(range(1000))
    with running(chain(spout, breaks), {**PAUSE_AT_10, "topology.max.retries": 10}) as cluster:
        feed(spout, range(300))
        cluster.advance(1)
        breaks.is_broken.value[0] = False
        cluster.run_until_idle()
        assert cluster.dead_letters == [] and len(cluster.state("count")) == 300


def test_without_a_share_nothing_is_paused() -> None:
    spout, breaks = FeederSpout(), Breaks(range(1000))
    with ran(
        chain(spout, breaks),
        spout,
        range(100),
        {**PAUSE_AT_10, "topology.failure.pause.share": "never"},
    ) as cluster:
        assert len(cluster.dead_letters) == 100


def test_complete_topology_gives_every_row_its_verdict() -> None:
    done = complete_topology(
        chain(FeederSpout(), Breaks(range(1000))), {"spout": [[n] for n in range(500)]}
    )
    assert len(done.dead_letters) == 500


def test_nimbus_deactivates_a_paused_topology_and_names_the_cause_until_it_is_activated() -> None:
    spout, breaks = FeederSpout(), Breaks(range(1000))
    with LocalCluster(is_lively=True) as cluster:
        paused_cluster(cluster, spout, breaks, 400)
        cluster.advance(15)
        (topology_id,) = cluster.storm_state.topology_ids()
        base = cluster.storm_state.read_base(topology_id)
        assert base is not None and base.status is TopologyStatus.INACTIVE
        assert base.paused.startswith("bolt 'breaks' is paused")
        assert cluster.service.problems_of(topology_id) == [base.paused]
        errors = [error for error in cluster.errors if error.kind is FailureKind.SYSTEM]
        assert [error.text for error in errors] == [base.paused]
        breaks.is_broken.value[0] = False
        cluster.activate()
        cluster.run_until_idle()
        cluster.advance(15)
        base = cluster.storm_state.read_base(topology_id)
        assert base is not None and base.status is TopologyStatus.ACTIVE and base.paused == ""
        assert len(cluster.dead_letters) <= 20 and cluster.service.problems_of(topology_id) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_restarted_worker_loses_nothing_that_waits_behind_a_paused_bolt(workers: int) -> None:
    spout, breaks = FeederSpout(), Breaks(range(1000))
    with LocalCluster() as cluster:
        paused_cluster(cluster, spout, breaks, 100, **{"topology.workers": workers})
        breaks.is_broken.value[0] = False
        cluster.kill_worker("breaks")
        cluster.activate()
        cluster.run_until_idle()
        letters = {each.values[0] for each in cluster.dead_letters}
        assert cluster.state("count") == dict.fromkeys(set(range(100)) - letters, 1)
