"""The sampler over a simulated cluster: exact counts, windows, stores that are away, and its
cost.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.api import BasicOutputCollector, Duration, TopologyBuilder, WindowedBolt
from sparkstorm.common.errors import NotAliveError, StoreUnavailableError
from sparkstorm.control_plane.insight.cluster_views import cluster_view
from sparkstorm.control_plane.insight.records import CulpritView, to_json
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.insight.watched import watched


def test_counts_are_those_of_the_drained_run() -> None:
    with watched() as run:
        run.feed(100)
        view = run.sampler.topology("words")
        assert view.is_settled and view.status == "ACTIVE" and view.is_well
        assert {
            name: (each.counts.emitted, each.counts.executed)
            for name, each in view.components.items()
            if name[0] != "_"
        } == {
            "count": (0, 200),
            "lines": (100, 0),
            "split": (200, 100),
        }
        assert (view.counts.emitted, view.counts.executed, view.counts.acked) == (300, 300, 100)
        assert {
            name: (edge.sent, edge.consumed, edge.waiting) for name, edge in view.edges.items()
        } == {
            "lines/default/split": (100, 100, 0),
            "split/default/count": (200, 200, 0),
        }
        assert view.complete.count == 100 and view.complete.p99_ms is not None
        assert sum(each.counts.executed for each in view.components["split"].tasks.values()) == 100
        assert {each.state for each in view.workers.values()} == {"RUNNING"}
        cluster = run.sampler.cluster()
        assert (cluster.slots, cluster.slots_used) == (8, 2)
        assert cluster.topologies[view.id].sentence == view.sentence
        assert (
            json.loads(json.dumps(to_json(cluster), allow_nan=False))["windows"]["all"]["counts"][
                "acked"
            ]
            == 100
        )


@pytest.mark.slow
def test_a_window_has_what_was_added_within_it() -> None:
    with watched() as run:
        run.feed(100)
        run.pass_seconds(70)
        run.feed(50)
        windows = run.sampler.topology("words").windows
        assert windows["all"].counts.acked == 150
        assert windows["10m"].counts.acked == 150
        assert windows["1m"].counts.acked == 50
        recent = windows["1m"]
        assert recent.seconds == pytest.approx(60, abs=1.1)
        assert recent.acked_per_s == pytest.approx(50 / recent.seconds)
        series = run.sampler.series("words", window="1m")
        assert sum(rate or 0.0 for rate in series["acked_per_s"]) > 0
        assert len(series["time_ms"]) >= 59


def test_counts_survive_killed_workers_and_a_rebalance() -> None:
    with watched() as run:
        run.feed(40)
        run.cluster.kill_worker("split")
        run.feed(40)
        run.cluster.rebalance(workers=1)
        run.feed(20)
        view = run.sampler.topology("words")
        assert view.counts.acked == 100 == view.windows["all"].counts.acked
        assert view.components["count"].counts.executed == 200


def test_rows_that_wait_for_a_worker_that_is_not_there_are_counted() -> None:
    with watched() as run:
        run.feed(4)
        assert run.sampler.topology("words").components["count"].queued == 0
        topology = run.cluster.topology()
        source = topology.worker_of("lines")
        next(each for each in topology.workers if each is not source).kill()
        for number in range(100):
            run.spout.feed([f"word{number}"])
        run.cluster.advance(ms=1)  # it is started again within five
        run.sampler.step()
        view = run.sampler.topology("words").components
        waits = view["split"].counts.emitted - view["count"].counts.executed
        assert view["count"].queued == waits > 0
        run.feed(1)
        assert run.sampler.topology("words").components["count"].queued == 0


def test_failures_are_counted_by_cause_and_the_component_is_named() -> None:
    with watched() as run:
        run.feed(10, "bad word")
        view = run.sampler.topology("words")
        assert view.counts.parked == 10 and view.dead_letters == 10
        assert view.failures[0].component == "count" and view.failures[0].error == "ValueError"
        assert not view.is_well and view.culprits[0].component == "count"


class Away:
    """A source that can be cut off from ZooKeeper, or its topologies from Redis."""

    def __init__(self, source: Any) -> None:
        self.source, self.is_cut, self.is_redis_cut, self.reads = source, False, False, 0

    def read(self) -> Any:
        self.reads += 1
        if self.is_cut:
            raise StoreUnavailableError("ZooKeeper does not answer")
        return self.source.read()


def test_a_redis_that_is_away_leaves_the_last_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched() as run:
        run.feed(30)
        before = run.sampler.topology("words")

        def refuse(_: object) -> None:
            raise StoreUnavailableError("Redis does not answer")

        monkeypatch.setattr(
            "sparkstorm.data_plane.transport.local_reader.LocalReader.progress", refuse
        )
        run.pass_seconds(2)
        view, cluster = run.sampler.topology("words"), run.sampler.cluster()
        assert view.problem == "Redis does not answer"
        assert view.counts == before.counts
        assert view.read_ms == before.read_ms
        assert not cluster.store.is_up and "Redis does not answer" in cluster.sentence
        monkeypatch.undo()
        run.feed(10)
        assert run.sampler.topology("words").counts.acked == 40
        assert run.sampler.cluster().store.is_up


def test_a_zookeeper_that_is_away_marks_the_cluster_stale() -> None:
    with watched() as run:
        source = Away(run.cluster.source())
        sampler = Sampler(source)
        source.is_cut = True
        sampler.step()
        with pytest.raises(StoreUnavailableError, match="ZooKeeper does not answer"):
            sampler.cluster()
        source.is_cut = False
        sampler.step()
        read_ms = sampler.cluster().time_ms
        source.is_cut = True
        sampler.step()
        found = sampler.cluster()
        assert (found.stale_since_ms, found.stale_reason) == (read_ms, "ZooKeeper does not answer")
        assert sampler.topology("words").counts.acked == 0


def test_twenty_readers_cost_the_store_what_one_does() -> None:
    with watched() as run:
        source = Away(run.cluster.source())
        sampler = Sampler(source)
        woken: list[int] = []
        ends = [sampler.subscribe(lambda: woken.append(1)) for _ in range(20)]
        assert sampler.step() == 1_000
        for _ in range(20):
            sampler.cluster()
            sampler.topology("words")
            sampler.series("words")
        assert source.reads == 1 and len(woken) == 20
        for end in ends:
            end()
        assert sampler.step() == 10_000 and len(woken) == 20


def test_a_moment_of_the_past_is_shown_as_it_was() -> None:
    with watched() as run:
        run.feed(5)
        then_ms = run.sampler.cluster().time_ms
        run.pass_seconds(5)
        run.feed(7)
        cluster, topologies = run.sampler.at(then_ms + 2500)
        (view,) = topologies.values()
        assert view.counts.acked == 5 and cluster.time_ms <= then_ms + 2500
        assert run.sampler.topology("words").counts.acked == 12
        assert run.sampler.moments()[0] <= then_ms


def test_a_topology_that_is_not_there_is_refused_with_those_that_are() -> None:
    with watched() as run, pytest.raises(NotAliveError, match="there are words"):
        run.sampler.topology("nobody")


def test_a_killed_topology_leaves_the_model() -> None:
    with watched() as run:
        run.cluster.kill("words", 0)
        run.sampler.step()
        assert run.sampler.cluster().topologies == {}
        assert run.sampler.cluster().sentence == "No topology runs here."


def test_a_topology_at_its_limit_is_named_among_several_that_are_well() -> None:
    with watched() as run:
        run.feed(5)
        words = run.sampler.topology("words")
        held = CulpritView("redis", "lines", "lines is held back 87% of the time (Redis is full)")
        sentence = f"orders runs at its limit: {held.sentence}"
        orders = replace(words, id="orders-1", name="orders", sentence=sentence, is_drained=False)
        slowed = replace(orders, culprits=(held,))
        reading = run.cluster.source().read()
        reports = [
            cluster_view(reading, {words.id: words, orders.id: view}, 1).sentence
            for view in (orders, slowed, replace(slowed, is_drained=True))
        ]
        assert reports == [
            "2 topologies keep up.",
            f"1 of 2 topologies is at its limit: {sentence}.",
            "2 topologies keep up.",
        ]


class Windows(WindowedBolt):
    def execute(self, window: Any, collector: BasicOutputCollector) -> None:
        return


def test_a_component_with_windows_has_the_watermark_of_its_slowest_task() -> None:
    spout, builder = FeederSpout(["key", "at_ms"]), TopologyBuilder()
    windows = Windows().with_tumbling_window(Duration.seconds(1)).with_timestamp_field("at_ms")
    builder.set_spout("rows", spout)
    builder.set_bolt("windows", windows, 2).fields_grouping("rows", "key")
    with LocalCluster(is_lively=True) as cluster:
        cluster.submit(builder.build(), {"topology.workers": 2}, "sums")
        sampler = Sampler(cluster.source())
        marks = []
        for at_ms in (5_000, 8_000):
            spout.feed(["a", at_ms])
            cluster.advance(seconds=5)
            sampler.step()
            components = sampler.topology("sums").components
            marks.append((components["windows"].watermark_ms, components["rows"].watermark_ms))
    assert marks == [(5_000, None), (8_000, None)]
