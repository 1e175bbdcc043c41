"""Checks LocalCluster as a user's own test calls it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from sparkstorm.api import (
    Bolt,
    Spout,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.common.errors import (
    AlreadyAliveError,
    InvalidConfigError,
    InvalidTopologyError,
    NotAliveError,
)
from sparkstorm.common.model.requests import RequestKind
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, Nothing
from tests.topologies import Split, word_count


def test_a_word_count_test_takes_ten_lines() -> None:
    lines = FeederSpout(["line"])
    with LocalCluster() as cluster:
        cluster.submit(word_count(lines), {"topology.workers": 2})
        lines.feed(["the quick brown fox"])
        lines.feed(["the lazy dog"])
        cluster.run_until_idle()
        result = cluster.state("count")
        assert result == {"the": 2, "quick": 1, "brown": 1, "fox": 1, "lazy": 1, "dog": 1}
        assert sorted(lines.acked) == [0, 1]


def test_heartbeats_hold_the_counts_of_every_executor_of_their_worker() -> None:
    """S3.38: workers count by executor, and their slots write it to ZooKeeper (not while a
    simulated cluster is calm).
    """
    lines = FeederSpout(["line"])
    with LocalCluster(is_lively=True) as cluster:
        topology_id = cluster.submit(word_count(lines), {"topology.workers": 2})
        lines.feed(["a b c"])
        lines.feed(["d"])
        cluster.run_until_idle()
        cluster.advance(seconds=10)
        topology = cluster.topology()
        executed = dict.fromkeys(topology.component_by_task.values(), 0)
        for slot in topology.workers:
            beat = cluster.storm_state.read_worker_beat(topology_id, slot.slot)
            assert beat is not None and slot.worker is not None
            result = sorted(each.first_task for each in beat.stats_by_executor)
            assert result == topology.tasks_at(slot)
            for executor, shown in beat.stats_by_executor.items():
                counts = slot.worker.summary()[str(executor)]
                assert isinstance(shown, dict) and shown.keys() == counts.keys()
                executed[topology.component_by_task[executor.first_task]] += counts["executed"]
        assert executed == {"__acker": 0, "lines": 0, "split": 2, "count": 4}


def test_feeding_goes_on_between_steps_of_time() -> None:
    lines = FeederSpout(["line"])
    with LocalCluster() as cluster:
        cluster.submit(word_count(lines))
        for _ in range(3):
            lines.feed(["a b"])
            cluster.advance(seconds=1)
        assert cluster.state("count") == {"a": 3, "b": 3}
        assert cluster.counts("lines").acked == 3


def test_workers_are_spread_by_the_scheduler_over_the_supervisors() -> None:
    with LocalCluster(supervisors=2, slots=2) as cluster:
        cluster.submit(word_count(FeederSpout(["line"])), {"topology.workers": 2})
        assert {worker.slot.node for worker in cluster.topology().workers} == {"node1", "node2"}


def test_a_killed_worker_comes_back_without_losing_or_doubling_anything() -> None:
    lines = FeederSpout(["line"])
    with LocalCluster() as cluster:
        cluster.submit(word_count(lines), {"topology.workers": 3})
        for _ in range(50):
            lines.feed(["x y"])
            cluster.advance(ms=1)
            cluster.kill_worker("count")
        cluster.run_until_idle()
        assert cluster.state("count") == {"x": 50, "y": 50}
        assert sorted(lines.acked) == list(range(50))


def test_a_rebalance_moves_tasks_with_their_state() -> None:
    lines = FeederSpout(["line"])
    with LocalCluster() as cluster:
        cluster.submit(word_count(lines), {"topology.workers": 1})
        lines.feed(["a b c d"])
        cluster.run_until_idle()
        cluster.rebalance(workers=4)
        assert len(cluster.topology().workers) == 4
        lines.feed(["a b c d"])
        cluster.run_until_idle()
        assert cluster.state("count") == dict.fromkeys("abcd", 2)


def test_a_drained_hosts_tasks_move_with_their_state_while_tuples_flow() -> None:
    lines = FeederSpout(["line"])
    with LocalCluster(supervisors=3, slots=2) as cluster:
        cluster.submit(word_count(lines), {"topology.workers": 3})
        for n in range(60):
            lines.feed(["x y z"])
            cluster.advance(ms=1)
            if n == 20:
                cluster.service.mark_host(RequestKind.DRAIN_HOST, "host-node1")
            if n == 40:
                cluster.service.mark_host(RequestKind.INCLUDE_HOST, "host-node1")
                cluster.service.mark_host(RequestKind.DRAIN_HOST, "host-node2")
        cluster.run_until_idle()
        assert {worker.slot.node for worker in cluster.topology().workers} == {"node1", "node3"}
        assert cluster.state("count") == {"x": 60, "y": 60, "z": 60}
        assert sorted(lines.acked) == list(range(60))


def test_an_inactive_topology_emits_nothing() -> None:
    lines = FeederSpout(["line"])
    with LocalCluster() as cluster:
        cluster.submit(word_count(lines))
        cluster.deactivate()
        lines.feed(["a"])
        cluster.advance(60)
        assert cluster.state("count") == {}
        cluster.activate()
        cluster.run_until_idle()
        assert cluster.state("count") == {"a": 1}


def test_a_killed_topology_is_gone_after_its_message_timeout() -> None:
    with LocalCluster() as cluster:
        cluster.submit(word_count(FeederSpout(["line"])), name="one")
        before_ms = cluster.now_ms
        cluster.kill("one")
        assert 30_000 <= cluster.now_ms - before_ms <= 31_000
        with pytest.raises(NotAliveError):
            cluster.state("count", "one")


def test_a_name_is_taken_once() -> None:
    with LocalCluster() as cluster:
        cluster.submit(word_count(FeederSpout(["line"])), name="one")
        with pytest.raises(AlreadyAliveError):
            cluster.submit(word_count(FeederSpout(["line"])), name="one")


def test_two_topologies_run_side_by_side() -> None:
    feeds = {name: FeederSpout(["line"]) for name in ("one", "two")}
    with LocalCluster() as cluster:
        for name, lines in feeds.items():
            cluster.submit(word_count(lines), name=name)
            lines.feed([name])
        cluster.run_until_idle()
        assert cluster.state("count", "one") == {"one": 1}
        assert cluster.state("count", "two") == {"two": 1}


def test_a_typing_error_in_a_key_is_named() -> None:
    with LocalCluster() as cluster, pytest.raises(InvalidConfigError, match=r"topology\.workers"):
        cluster.submit(word_count(FeederSpout(["line"])), {"topology.worker": 2})


def test_a_component_brings_along_only_what_a_cluster_would_take() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(), conf={"topology.tasks": 0})
    builder.set_bolt("capture", CaptureBolt()).shuffle_grouping("spout")
    with (
        LocalCluster() as cluster,
        pytest.raises(InvalidTopologyError, match=r"component 'spout' of test: topology\.tasks"),
    ):
        cluster.submit(builder.build())


def test_a_component_that_cannot_be_packed_is_found_before_it_runs() -> None:
    class Locked(Nothing):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout())
    builder.set_bolt("locked", Locked()).shuffle_grouping("s")
    with (
        LocalCluster() as cluster,
        pytest.raises(InvalidTopologyError, match=r"'locked' cannot be serialised"),
    ):
        cluster.submit(builder.build())


class Endless(Spout):
    outputs = ("n",)

    def open(self, conf: Any, context: TopologyContext, collector: Any) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        self.collector.emit((1,), message_id=1)


class Forgetful(Bolt):
    def execute(self, tup: Tuple) -> None:
        pass


def test_an_endless_source_does_not_stop_time() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", Endless())
    builder.set_bolt("b", Nothing()).shuffle_grouping("s")
    with LocalCluster() as cluster:
        cluster.submit(
            builder.build(), {"topology.max.spout.pending": 10, "topology.epoch.rows": 100}
        )
        cluster.advance(ms=50)
        assert cluster.counts("b").executed >= 50
        with pytest.raises(TimeoutError, match=r"never stops emitting|trees of s"):
            cluster.run_until_idle(limit_steps=500)


def test_what_never_comes_to_rest_is_named() -> None:
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("s", spout)
    builder.set_bolt("b", Forgetful()).shuffle_grouping("s")
    with LocalCluster() as cluster:
        cluster.submit(builder.build())
        spout.feed([1])
        with pytest.raises(
            TimeoutError,
            match=r"1 tree of s#3.*1 input of b#2 that it has neither acked nor failed",
        ):
            cluster.run_until_idle(limit_secs=10)
        assert cluster.counts("b").held == 1


def test_equal_seeds_give_equal_runs() -> None:
    def run(seed: int) -> tuple[list[tuple[Any, ...]], list[int]]:
        capture, builder = CaptureBolt(), TopologyBuilder()
        builder.set_spout("s", FeederSpout(["line"]), 2)
        spout = builder._components["s"].instance
        builder.set_bolt("split", Split(), 3).shuffle_grouping("s")
        builder.set_bolt("capture", capture).global_grouping("split")
        with LocalCluster(seed=seed) as cluster:
            for n in range(30):
                spout.feed([f"{n}a {n}b"])
            cluster.submit(builder.build(), {"topology.workers": 4})
            cluster.run_until_idle()
            pids = [slot.process.pid for slot in cluster.slots if slot.process is not None]
        return capture.values, pids

    assert run(1) == run(1)
    assert sorted(run(1)[0]) == sorted(run(2)[0])


def test_a_simulated_hour_is_short() -> None:
    lines = FeederSpout(["line"])
    with LocalCluster() as cluster:
        cluster.submit(word_count(lines))
        lines.feed(["a"])
        cluster.advance(seconds=3600)
        assert cluster.state("count") == {"a": 1}
        assert cluster.simulation.steps < 1000


def test_no_server_library_is_imported() -> None:
    code = "import sys, sparkstorm.testing as t; print({'pyspark', 'kazoo', 'redis'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True
    )
    assert done.stdout.strip() == "set()"
