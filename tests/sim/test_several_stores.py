"""Topologies of a simulated cluster with two stores: each has its data in one, whatever fails, and
none is left in the other.
"""

from __future__ import annotations

import pytest

from sparkstorm.testing import FeederSpout, LocalCluster
from tests.topologies import word_count


@pytest.mark.parametrize("seed", range(4))
def test_each_topology_stays_in_its_store_over_deaths_a_rebalance_and_its_end(seed: int) -> None:
    feeds = {"one": FeederSpout(["line"]), "two": FeederSpout(["line"])}
    with LocalCluster(supervisors=2, slots=4, seed=seed, stores=("near", "far")) as cluster:
        ids = {
            name: cluster.submit(word_count(feed), {"topology.workers": 2}, name=name)
            for name, feed in feeds.items()
        }
        plane = cluster.data_plane
        result = {name: plane.stores_of(topology_id) for name, topology_id in ids.items()}
        assert result == {"one": ["near"], "two": ["far"]}
        for round_ in range(12):
            for feed in feeds.values():
                feed.feed(["x y"])
            cluster.advance(ms=1)
            for name in feeds:
                cluster.kill_worker("count", name)
            if round_ == 6:
                cluster.rebalance("two", workers=3)
        cluster.run_until_idle()
        for name, topology_id in ids.items():
            assert cluster.state("count", name) == {"x": 12, "y": 12}
            assert plane.stores_of(topology_id) == (["near"] if name == "one" else ["far"])
        cluster.kill("two", 0)
        assert plane.stores_of(ids["two"]) == [] and plane.stores_of(ids["one"]) == ["near"]
        assert cluster.state("count", "one") == {"x": 12, "y": 12}


def test_a_slot_waits_for_the_record_that_says_where_the_data_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The assignment comes before the base: a worker that started between them would begin in the
    home store.
    """
    from sparkstorm.common.errors import StoreUnavailableError
    from sparkstorm.common.model.assignment import TopologyBase
    from sparkstorm.control_plane.cluster.storm_state import StormState

    create, failures = StormState.create_base, [StoreUnavailableError("ZooKeeper is away")] * 5

    def late(self: StormState, base: TopologyBase) -> None:
        if failures:
            raise failures.pop()
        create(self, base)

    feed = FeederSpout(["line"])
    with LocalCluster(stores=("near", "far")) as cluster:
        monkeypatch.setattr(StormState, "create_base", late)
        topology_id = cluster.submit(
            word_count(feed), {"topology.workers": 2, "topology.redis.store": "far"}, name="one"
        )
        feed.feed(["x y"])
        cluster.run_until_idle()
        assert not failures and cluster.data_plane.stores_of(topology_id) == ["far"]
        assert cluster.state("count", "one") == {"x": 1, "y": 1}
