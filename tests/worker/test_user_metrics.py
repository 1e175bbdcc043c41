"""Metrics of user code ride in the commit: after crashes they equal the rows, and a replay counts
the same.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    Effects,
    OutputCollector,
    Spout,
    StatefulBolt,
    Tuple,
)
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.values.metric_values import MetricKind, MetricValue
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.data_plane.transport.progress import Progress, TaskCounts, merge
from sparkstorm.replay.local import replay_locally
from sparkstorm.testing import FeederSpout, LocalCluster, Shared
from tests.topologies import building, feed, ran, running


class Counting(StatefulBolt):
    """Counts every row by a counter, a histogram and its state, and raises on the first try of each
    third one.
    """

    outputs = ("number",)

    def __init__(self, fails: bool = True) -> None:
        self.tried: Shared[set[int]] = Shared(set())
        self.fails = fails

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.rows = context.register_counter("rows")
        self.marks = context.register_meter("marks")
        self.sizes = context.register_histogram("sizes")
        self.last = context.gauge("last")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        number = tup["number"]
        self.rows.inc()
        self.marks.mark(2)
        self.sizes.update(number)
        self.last.set(number)
        self.state.add("rows")
        if number % 2:
            collector.emit([number])
        if self.fails and number % 3 == 0 and number not in self.tried.value:
            self.tried.value.add(number)
            raise ValueError("first try")


class Held(Bolt):
    """Acks some rows, fails some once, after it has counted them."""

    def __init__(self) -> None:
        self.tried: Shared[set[int]] = Shared(set())

    def prepare(self, conf: Any, context: TopologyContext, collector: OutputCollector) -> None:
        self.collector, self.rows = collector, context.counter("rows")

    def execute(self, tup: Tuple) -> None:
        self.rows.inc()
        if tup["number"] % 5 == 0 and tup["number"] not in self.tried.value:
            self.tried.value.add(tup["number"])
            self.collector.fail(tup, "once")
        else:
            self.collector.ack(tup)


def chain(spout: Spout, first: Any, second: Any) -> Any:
    builder = building(numbers=spout)
    builder.set_bolt("first", first, 2).shuffle_grouping("numbers")
    builder.set_bolt("second", second, 2).shuffle_grouping("first")
    return builder.build()


@pytest.mark.parametrize("seed", range(4))
def test_after_crashes_the_counts_equal_the_rows(seed: int) -> None:
    dice, spout, rows = random.Random(seed), FeederSpout(["number"]), 0
    with LocalCluster() as cluster:
        cluster.submit(
            chain(spout, Counting(), Held()),
            {"topology.workers": 2, "topology.acker.executors": 2},
            "metrics",
        )
        for _ in range(8):
            for _ in range(dice.randrange(5, 40)):
                spout.feed([rows])
                rows += 1
            cluster.advance(ms=dice.randrange(300))
            cluster.kill_worker(dice.choice(["first", "second", "numbers"]))
        cluster.run_until_idle()
        first, second = cluster.metrics("first"), cluster.metrics("second")
        assert sum(each["rows"] for each in cluster.topology().states("first").values()) == rows
        assert first["rows"].value == rows
        assert first["marks"].value == 2 * rows
        assert first["sizes"].count == rows
        assert first["sizes"].value == sum(range(rows))
        assert second["rows"].value == rows // 2


def test_the_read_model_has_them() -> None:
    spout = FeederSpout(["number"])
    with LocalCluster() as cluster:
        cluster.submit(
            chain(spout, Counting(fails=False), Held()), {"topology.workers": 2}, "metrics"
        )
        sampler = Sampler(cluster.source())
        feed(spout, range(30))
        cluster.run_until_idle()
        sampler.step()
        found = {
            (each.component, each.name, each.task): each
            for each in sampler.topology("metrics").user_metrics
        }
        assert found["first", "rows", None].value == 30
        assert found["second", "rows", None].value == 15
        sizes = found["first", "sizes", None]
        assert (sizes.count, sizes.value, sum(sizes.buckets.values())) == (30, sum(range(30)), 30)
        gauges = [each for each in found.values() if each.kind == "gauge"]
        assert len(gauges) == 2
        assert all(each.task is not None for each in gauges)
        assert 29 in {each.value for each in gauges}


def test_a_replay_counts_the_same_as_a_live_run() -> None:
    rows, spout = 200, FeederSpout(["number"])
    with ran(
        chain(spout, Counting(), Held()), spout, range(rows), {"topology.workers": 2}
    ) as cluster:
        live = {name: cluster.metrics(name) for name in ("first", "second")}
    run = dict.fromkeys(("first", "second"), Effects.RUN)
    for partitions in (1, 3):
        inputs = {"numbers": [[number] for number in range(rows)]}
        replayed = replay_locally(
            chain(FeederSpout(["number"]), Counting(), Held()),
            inputs,
            partitions=partitions,
            effects=run,
        ).metrics
        for component, values in live.items():
            counts = {
                name: value for name, value in values.items() if value.kind is not MetricKind.GAUGE
            }
            assert counts and replayed[component] == counts


class Threaded(BasicBolt):
    """Counts on its own thread, and raises on the first try of each fourth row."""

    blocking = True

    def __init__(self) -> None:
        self.tried: Shared[set[int]] = Shared(set())

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.rows = context.counter("rows")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.rows.inc()
        if tup["number"] % 4 == 0 and tup["number"] not in self.tried.value:
            self.tried.value.add(tup["number"])
            raise ValueError("first try")


def test_a_blocking_bolt_counts_each_row_once() -> None:
    spout = FeederSpout(["number"])
    builder = building(numbers=spout)
    builder.set_bolt("slow", Threaded(), 2).shuffle_grouping("numbers")
    with ran(builder.build(), spout, range(40), {"topology.workers": 2}) as cluster:
        assert cluster.metrics("slow")["rows"].value == 40


class Polled(Spout):
    """Counts each call, and raises now and then after it has counted and emitted."""

    outputs = ("number",)

    def open(self, conf: Any, context: TopologyContext, collector: Any) -> None:
        self.collector, self.emitted, self.calls = collector, context.counter("emitted"), 0
        self.polls = context.counter("polls")

    def next_tuple(self) -> None:
        self.polls.inc()
        if self.calls >= 60:
            return
        self.calls += 1
        self.emitted.inc()
        self.collector.emit([self.calls], self.calls)
        if self.calls % 7 == 0:
            raise ValueError("now and then")


class PolledOnAThread(Polled):
    """The same on its own thread."""

    blocking = True


@pytest.mark.parametrize("spout", [Polled(), PolledOnAThread()], ids=["loop", "thread"])
def test_a_spout_counts_what_it_has_emitted_and_rests_though_it_counts(spout: Spout) -> None:
    builder = building(numbers=spout)
    builder.set_bolt("held", Held()).shuffle_grouping("numbers")
    with running(builder.build(), {}) as cluster:
        for _ in range(200):
            cluster.advance(ms=100)
            if cluster.counts("numbers").emitted == 52:
                break
        cluster.advance(seconds=1)
        found = cluster.metrics("numbers")
        assert found["emitted"].value == cluster.counts("numbers").emitted == 60 - 8
        assert found["polls"].value >= 52


class Sampled(BasicBolt):
    """Has a gauge by a function."""

    def __init__(self, depth: Shared[int]) -> None:
        self.depth = depth

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        context.register_gauge("depth", lambda: self.depth.value)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        return


def test_a_gauge_by_function_is_committed_though_the_worker_rests() -> None:
    depth, spout = Shared(3), FeederSpout(["number"])
    builder = building(numbers=spout)
    builder.set_bolt("sampled", Sampled(depth)).shuffle_grouping("numbers")
    with running(builder.build(), {}, is_lively=True) as cluster:
        cluster.advance(seconds=3)
        assert cluster.metrics("sampled")["depth"].value == 3
        depth.value = 8
        cluster.advance(seconds=3)
        assert cluster.metrics("sampled")["depth"].value == 8


def test_a_record_keeps_them_and_a_gauge_is_its_newest_owners() -> None:
    old, new = Progress(), Progress()
    for record, token, value in ((old, 1, 10), (new, 2, 4)):
        record.counts_by_task[3] = TaskCounts("first", token)
        record.metrics_by_task[3] = {
            "rows": MetricValue(MetricKind.COUNTER, value),
            "last": MetricValue(MetricKind.GAUGE, value),
        }
    assert Progress.decode(old.encode()) == old
    for both in ([old, new], [new, old]):
        found = merge(both).metrics_by_task[3]
        assert (found["rows"].value, found["last"].value) == (14, 4)


@pytest.mark.parametrize(
    "metrics",
    [{3: {"rows": ["counter", "1", 0, {}]}}, {"3": {}}, {3: {7: ["counter", 1, 0, {}]}}, {3: 1}, 7],
)
def test_a_record_whose_metrics_are_none_is_not_trusted(metrics: Any) -> None:
    import ormsgpack

    parts = ormsgpack.unpackb(Progress().encode(), option=ormsgpack.OPT_NON_STR_KEYS)
    data = ormsgpack.packb([*parts[:-1], metrics], option=ormsgpack.OPT_NON_STR_KEYS)
    with pytest.raises(StoreInconsistentError):
        Progress.decode(data)


def test_a_source_that_only_counts_and_has_no_end_is_given_up_after_the_patience() -> None:
    builder = building(numbers=PolledOnAThread())
    builder.set_bolt("held", Held()).shuffle_grouping("numbers")
    with (
        running(builder.build(), thread_patience_secs=0.2) as cluster,
        pytest.raises(TimeoutError, match=r"numbers#\d+ has been silent for 0.2 s"),
    ):
        cluster.run_until_idle()
