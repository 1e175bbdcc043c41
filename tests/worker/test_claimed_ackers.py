"""After a claim an acker hears its stream up to the claim before any message of its own worker: no
ack comes early.
"""

from __future__ import annotations

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.common.errors import StoreRolledBackError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.worker.tasks.acker_task import CatchUp
from sparkstorm.testing import FeederSpout, Nothing
from sparkstorm.testing.invariants import WaitingRows, acked_roots
from tests.worker.by_hand import Workers

CONF = {
    "topology.acker.executors": 1,
    "topology.epoch.rows": 1,
    "topology.message.timeout.secs": 3600,
}


class Fan(BasicBolt):
    """As many tuples as the input says: they leave in one entry."""

    outputs = ("goes_on",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for n in range(tup[0]):
            collector.emit((n == 0,))


class First(BasicBolt):
    """Hands on the first tuple of each input of `Fan`."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["goes_on"]:
            collector.emit((1,))


def fanning() -> tuple[FeederSpout, Topology]:
    """Return a fed spout, and spout -> fan -> first -> end."""
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("fan", Fan()).shuffle_grouping("spout")
    builder.set_bolt("first", First()).shuffle_grouping("fan")
    builder.set_bolt("end", Nothing()).shuffle_grouping("first")
    return spout, builder.build()


def half_an_entry(lines: int) -> tuple[Workers, FeederSpout]:
    """Return workers of which the one with "first" has consumed part of its last entry; so many
    frames wait for the acker.
    """
    spout, topology = fanning()
    cluster = Workers(topology, CONF)
    home, moved = cluster.claim("n:1", ["spout", "fan", "__acker"]), cluster.claim("n:2", ["first"])
    cluster.claim("n:3", ["end"])
    # a task begins with batches of one row, and then takes two
    for rows in (*[1] * (lines - 1), 3):
        spout.feed([rows])
    cluster.step(home, times=2 * lines + 2)
    cluster.step_until(lambda: cluster.keys("first").cursor.row, moved)
    assert len(cluster.keys("__acker").stream) == lines
    return cluster, spout


@pytest.mark.parametrize("lines", [1, 2, 5, 20, 100])
def test_a_task_that_moves_to_its_ackers_worker_settles_no_tree_whose_rows_wait(lines: int) -> None:
    """The new worker consumes the rest of an entry while the frame about its first rows lies unread
    in the acker's stream.
    """
    cluster, spout = half_an_entry(lines)
    home = cluster.claim("n:1", ["spout", "fan", "first", "__acker"])
    cluster.step(home, times=2 * lines + 20)
    assert (spout.acked, spout.failed) == ([], [])  # every child waits for "end"
    end = cluster.claim("n:3", ["end"])
    cluster.step(end, home, times=4 * lines + 20)
    assert sorted(spout.acked) == list(range(lines))


def test_a_worker_whose_ackers_frames_are_gone_claims_anew() -> None:
    cluster, _ = half_an_entry(lines=20)
    home = cluster.claim("n:1", ["spout", "fan", "first", "__acker"])
    cluster.keys("__acker").stream.clear()  # by a hand from outside
    cluster.step(home, times=10)
    cluster.clock.advance(100_000)
    with pytest.raises(StoreRolledBackError, match="lost frames since it was claimed"):
        cluster.step(home)
    cluster.step(cluster.claim("n:1", ["spout", "fan", "first", "__acker"]))


def test_the_law_of_the_simulation_sees_a_tree_that_is_acked_while_a_row_of_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CatchUp, "is_over", lambda self, now_ms: True)
    cluster, _ = half_an_entry(lines=20)
    home, rows = cluster.claim("n:1", ["spout", "fan", "first", "__acker"]), WaitingRows()
    (spout,) = home.task_set.spouts.values()

    def step_until_acked() -> None:
        for _ in range(20):
            cluster.step(home)
            rows.require_done(cluster.store, Codec(), acked_roots(spout))

    with pytest.raises(AssertionError, match="is acked, and a row of it waits in entry 20 of task"):
        step_until_acked()
