"""A store that loses more than its tail: what is lost is said, and no row is taken for written that
is not.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.common.model.topology import Topology
from sparkstorm.connectors import SqlSink
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.testing import FeederSpout, LocalCluster, Shared
from tests.topologies import Count, Log

CONF = {"topology.workers": 2, "topology.epoch.rows": 3, "topology.message.timeout.secs": 3600}
GO_ON = {**CONF, "topology.store.loss": "continue"}


class Bench:
    """A topology that copies a log into a table, on a store that a test empties or puts back."""

    def __init__(self, folder: Path, conf: Any, **options: Any) -> None:
        self.path, self.log = folder / "out.db", list[int]()
        with closing(sqlite3.connect(self.path)) as made:
            made.execute("create table if not exists numbers (number integer)")
        self.cluster = LocalCluster(seed=2, is_lively=True, **options)
        self.id = self.cluster.submit(self.topology(), conf)

    def topology(self) -> Topology:
        builder = TopologyBuilder()
        builder.set_spout("log", Log(Shared(self.log)))
        builder.set_bolt("sink", SqlSink(f"sqlite:///{self.path}", "numbers"), inputs="log")
        return builder.build()

    def write(self, count: int, seconds: float = 22) -> None:
        """Let numbers come one by one over so many seconds."""
        for _ in range(count):
            self.log.append(len(self.log))
            self.cluster.advance(seconds / count)

    @property
    def store(self) -> LocalStore:
        return self.cluster.topology().store

    def empty(self) -> None:
        self.store.restore(LocalStore(topology_id=self.id).checkpoint())

    def output(self) -> str:
        """Last words of a worker that cannot start."""
        state, found = self.cluster.storm_state, ""
        for slot in state.worker_beat_slots(self.id):
            beat = state.read_worker_beat(self.id, slot)
            found = beat.message if beat is not None and beat.state == "FAILED" else found
        return found

    def epoch(self) -> int:
        """Last epoch that the database has."""
        with closing(sqlite3.connect(self.path)) as made:
            [[epoch]] = made.execute("select epoch from sparkstorm_epochs")
            return int(epoch)

    def rows(self) -> Counter[int]:
        with closing(sqlite3.connect(self.path)) as made:
            return Counter(number for (number,) in made.execute("select number from numbers"))

    def lost(self) -> list[int]:
        return sorted(set(self.log) - set(self.rows()))


def test_a_store_emptied_twice_loses_no_row_of_a_sink(tmp_path: Path) -> None:
    bench = Bench(tmp_path, GO_ON)
    with bench.cluster:
        for _ in range(3):
            bench.write(22)
            if len(bench.log) < 60:
                bench.empty()
                bench.cluster.advance(5)
        bench.cluster.advance(30)
        assert bench.lost() == []


def test_a_store_that_lost_more_than_its_tail_stops_the_topology_with_one_sentence(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, CONF)
    with bench.cluster:
        bench.write(22)
        before = bench.rows()
        bench.empty()
        bench.cluster.advance(30)
        assert bench.rows() == before
        said = bench.output()
        assert said.startswith(
            f"Redis has lost the data of topology {bench.id}: it is empty, and had come to write "
        )
        assert re.search(
            rf"; targets of sinks keep what they have \(sink \(task \d\): epoch {bench.epoch():,}\), so",
            said,
        ), said
        assert "sparkstorm rebalance test --wait 0 --yes -c topology.store.loss=continue" in said
        assert said in bench.cluster.nimbus.problems[bench.id]


def test_a_store_emptied_within_the_time_of_a_tail_stops_the_topology_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, CONF)
    with bench.cluster:
        bench.write(3, seconds=3)
        bench.empty()
        bench.cluster.advance(30)
        assert bench.output().startswith(
            f"Redis has lost the data of topology {bench.id}: it is empty, and had come to write "
        )


def test_a_newer_copy_brought_back_is_taken_up_by_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path, CONF)
    with bench.cluster:
        bench.write(22)
        copy = bench.store.checkpoint()
        bench.empty()
        bench.cluster.advance(20)
        assert bench.output()
        bench.store.restore(copy)
        bench.cluster.advance(60)
        bench.write(5)
        assert bench.rows() == Counter(bench.log)


def test_a_topology_that_was_stopped_goes_on_when_the_loss_is_accepted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, CONF)
    with bench.cluster:
        bench.write(22)
        bench.empty()
        bench.cluster.advance(20)
        bench.cluster.service.rebalance(
            "test", RebalanceOptions(conf={"topology.store.loss": "continue"}), 0
        )
        bench.cluster.advance(60)
        assert bench.lost() == []
        assert any("it goes on with what is left" in error.text for error in bench.cluster.errors)
        assert bench.id in bench.cluster.nimbus.problems
        mark = bench.cluster.storm_state.read_store_mark(bench.id)
        assert mark is not None and len(mark.losses) == 1


def test_a_lost_tail_stops_nothing_and_is_no_loss(tmp_path: Path) -> None:
    bench = Bench(tmp_path, CONF)
    with bench.cluster:
        bench.write(30, seconds=30)
        copy = bench.store.checkpoint()
        bench.write(5, seconds=5)
        bench.store.restore(copy)
        bench.write(10, seconds=30)
        assert bench.lost() == []
        mark = bench.cluster.storm_state.read_store_mark(bench.id)
        assert mark is not None and mark.losses == () and mark.generation > 0


def test_a_commit_after_a_long_rest_is_still_tail(tmp_path: Path) -> None:
    bench = Bench(tmp_path, CONF)
    with bench.cluster:
        bench.write(5)
        bench.cluster.advance(600)
        copy = bench.store.checkpoint()
        bench.write(1, seconds=5)
        bench.store.restore(copy)
        bench.cluster.advance(30)
        assert bench.lost() == [] and bench.output() == ""


def test_the_generation_only_grows_over_two_older_copies(tmp_path: Path) -> None:
    bench = Bench(tmp_path, GO_ON)
    with bench.cluster:
        bench.write(20, seconds=20)
        copy, generations = bench.store.checkpoint(), [bench.store.history.generation]
        for _ in range(2):
            bench.write(30, seconds=30)
            bench.store.restore(copy)
            bench.cluster.advance(20)
            generations.append(bench.store.history.generation)
        bench.cluster.advance(30)
        assert generations == sorted(set(generations))
        assert bench.lost() == []


def test_an_older_copy_is_found_when_all_workers_and_slots_were_down(tmp_path: Path) -> None:
    bench = Bench(tmp_path, CONF)
    with bench.cluster:
        bench.write(20, seconds=20)
        copy = bench.store.checkpoint()
        bench.write(30, seconds=30)
        for slot in bench.cluster.slots:
            slot.die()
        bench.store.restore(copy)
        for slot in bench.cluster.slots:
            slot.start()
        bench.cluster.advance(60)
        assert "Redis has lost data of topology" in bench.output()


def test_an_emptied_redis_gets_the_code_back_from_the_hosts_that_have_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, CONF)
    with bench.cluster:
        bench.write(22)
        bench.empty()
        for key in bench.cluster.bytes_store.list_keys():
            bench.cluster.bytes_store.delete(key)
        for slot in bench.cluster.slots:
            slot.die()
        for duty in bench.cluster.nimbus_duties:
            bench.cluster.simulation.discard(duty)
        assert bench.cluster.nimbus_store is not None
        bench.cluster.nimbus_store.close()
        bench.cluster.start_nimbus()
        for slot in bench.cluster.slots:
            slot.start()
        bench.cluster.advance(60)
        bench.cluster.service.rebalance(
            "test", RebalanceOptions(conf={"topology.store.loss": "continue"}), 0
        )
        bench.cluster.advance(60)
        assert bench.lost() == []


def test_a_worker_at_rest_notices_within_two_seconds_that_its_store_was_emptied() -> None:
    feeder, builder = FeederSpout(["word"]), TopologyBuilder()
    builder.set_spout("words", feeder)
    builder.set_bolt("count", Count()).fields_grouping("words", "word")
    with LocalCluster(seed=1, is_lively=True) as cluster:
        topology_id = cluster.submit(builder.build(), {"topology.store.loss": "continue"})
        feeder.feed(["a"])
        cluster.advance(20)
        assert cluster.state("count") == {"a": 1}
        store = cluster.topology().store
        store.restore(LocalStore(topology_id=topology_id).checkpoint())
        store.restores -= 1  # by FLUSHALL: no connection is lost
        cluster.advance(3)
        errors = [error.text for error in cluster.errors]
        assert any(text.startswith("Redis has lost the data of topology") for text in errors)
