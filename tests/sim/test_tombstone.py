"""A worker whose slot is cut off from ZooKeeper cannot start again once its topology has ended: no
effect is repeated.
"""

from __future__ import annotations

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.testing import FeederSpout, sim_data
from sparkstorm.testing.faulty_cluster import FaultyCluster
from sparkstorm.testing.faulty_session import FaultySession

PAID: list[int] = []


class Pay(BasicBolt):
    """A bolt with an effect on the outside world."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        PAID.append(tup[0])


def end_while_cut_off() -> tuple[FaultyCluster, str, list[str]]:
    """Return a cluster whose only worker was cut off, missed the end of its topology, and then
    died; and why others died since.
    """
    PAID.clear()
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("pay", Pay()).shuffle_grouping("spout")
    # The slot also remembers that the store had data. `continue` leaves the tombstone alone between
    # the worker and a new start.
    cluster = FaultyCluster(3, [], {"topology.workers": 1, "topology.store.loss": "continue"})
    topology_id = cluster.submit(builder.build(), name="shop")
    for number in range(5):
        spout.feed((number,))
    cluster.wake_workers()
    cluster.run_until(lambda: len(spout.acked) == 5)
    (slot,) = cluster.topology("shop").workers
    assert isinstance(slot.store, FaultySession)
    slot.store.is_cut = True
    cluster.service.kill("shop", 0)
    cluster.simulation.advance(15_000)
    slot.deaths.clear()
    slot.kill()
    cluster.simulation.advance(20_000)
    return cluster, topology_id, slot.deaths


def test_a_worker_that_was_cut_off_is_turned_away_after_the_end_and_leaves_nothing() -> None:
    cluster, topology_id, deaths = end_while_cut_off()
    assert any("has ended" in death for death in deaths)
    assert sorted(PAID) == list(range(5))
    assert not cluster.data_plane.of(topology_id).store.holds_data()
    cluster.close()


def test_without_the_tombstone_its_spout_starts_from_nothing_and_every_effect_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Store(LocalStore):
        has_ended = property(lambda _self: False, lambda _self, _value: None)

    monkeypatch.setattr(sim_data, "LocalStore", Store)
    cluster, topology_id, _ = end_while_cut_off()
    assert len(PAID) > 5 and cluster.data_plane.of(topology_id).store.holds_data()
    cluster.close()
