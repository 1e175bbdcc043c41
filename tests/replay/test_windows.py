"""Windows and timers in a replay: the same firings, late tuples and states as live, with bounded
memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import (
    BasicOutputCollector,
    StatefulBolt,
    TimedBolt,
    Timer,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.api.windows import Count, Duration, Window, WindowedBolt
from sparkstorm.common.config import merge
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import EventTime, LocalResults, read_value, replay, replay_locally
from sparkstorm.replay.job import RunSettings, make_job
from sparkstorm.replay.plan import Feed, make_plan
from sparkstorm.replay.sql_shuffle import sql_shuffled_input
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Pass, Silence, Source, WindowSums
from tests.topologies import building

MS = Duration.millis


class Members(WindowedBolt):
    """Every tuple of a window, in its order."""

    outputs = ("key", "values", "end")
    key_fields = ("key",)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((*window.key, [[t["ts"], t["value"]] for t in window], window.end))


class FailsAt(WindowSums):
    """Bolt that raises on one window."""

    def __init__(self, end: int = 200) -> None:
        self.end = end

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        super().execute(window, collector)
        if window.end == self.end:
            raise ValueError("not this window")


def chain(*bolts: Any, tasks: int = 3) -> Topology:
    """source -> pass -> the given bolts, one after the other, keyed."""
    builder = building(source=Source("key", "value", "ts"))
    builder.set_bolt("pass", Pass()).local_or_shuffle_grouping("source")
    former = "pass"
    for n, bolt in enumerate(bolts):
        builder.set_bolt(f"w{n}", bolt, tasks).fields_grouping(former, "key")
        former = f"w{n}"
    return builder.build()


def rows(seed: int, count: int = 300, disorder_ms: int = 40) -> list[tuple[Any, ...]]:
    """Events of three keys over about three seconds, out of order by so much, now and then much
    more.
    """
    random = Random(seed)
    found = []
    for n in range(count):
        late = random.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 500))
        found.append(
            (
                random.choice("abc"),
                random.randint(1, 9),
                max(0, 10 * n - random.randint(0, disorder_ms) - late),
            )
        )
    return found


def by_ts(bolt: Any, lag_ms: int = 50) -> Any:
    return bolt.with_timestamp_field("ts").with_lag(MS(lag_ms))


SHAPES: dict[str, Callable[[], list[Any]]] = {
    "tumbling": lambda: [
        by_ts(WindowSums().with_tumbling_window(MS(100))).with_late_tuple_stream("late")
    ],
    "sliding": lambda: [
        by_ts(WindowSums().with_window(MS(100), MS(30))).with_late_tuple_stream("late")
    ],
    "sessions": lambda: [by_ts(WindowSums().with_session_window(MS(40)))],
    "members": lambda: [by_ts(Members().with_window(MS(120), MS(40)))],
    "timers": lambda: [by_ts(Silence("ts", 50)).with_late_tuple_stream("late")],
    "windows of windows": lambda: [
        by_ts(WindowSums().with_tumbling_window(MS(50))),
        by_ts(WindowSums().with_tumbling_window(MS(200)), 0),
    ],
    "counts": lambda: [Members().with_window(Count(5), Count(2))],
}
TIMES = {"in place": EventTime("ts", in_order=False), "no event time": None}


def assert_like_live(
    topology: Topology, replayed: LocalResults, data: list[Any], seed: int
) -> None:
    live = complete_topology(topology, {"source": data}, seed=seed)
    for bolt in topology.bolts:
        for stream in bolt.streams:
            name = bolt.id if stream == "default" else f"{bolt.id}:{stream}"
            assert Counter(map(repr, replayed[name])) == Counter(
                map(repr, live.values(bolt.id, stream))
            ), name
        assert replayed.states.get(bolt.id, {}) == live.state(bolt.id)


class Beats(TimedBolt):
    """Sets a timer again 30 ms after each firing."""

    outputs = ("at_ms",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if not self.state.get("begun"):
            self.state.put("begun", True)
            self.timers.set_event_timer("beat", tup["ts"])

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        collector.emit((timer.at_ms,))
        self.timers.set_event_timer(timer.name, timer.at_ms + 30)


@pytest.mark.parametrize("time", [EventTime("ts"), EventTime("ts", in_order=False), None])
@pytest.mark.parametrize("sender", ["source", "pass"])
def test_timers_that_timers_set_go_on_as_live_or_are_warned_of(time: Any, sender: str) -> None:
    builder = building(source=Source("key", "value", "ts"))
    builder.set_bolt("pass", Pass()).global_grouping("source")
    builder.set_bolt("beats", by_ts(Beats(), 10)).global_grouping(sender)
    data = [("a", 1, 10 * n) for n in range(60)]
    replayed = replay_locally(builder.build(), {"source": data}, event_time=time)
    live = complete_topology(builder.build(), {"source": data})
    assert sorted(replayed["beats"]) == sorted(live.values("beats"))
    assert [tuple(row) for row in replayed["beats"]] == [(30 * n,) for n in range(21)]
    causes = {(warning.component, warning.cause) for warning in replayed.warnings}
    assert ("beats", "timers") in causes


class Asks(TimedBolt):
    """Emits the watermark that it meets."""

    outputs = ("at_ms",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((self.timers.watermark_ms,))


def test_a_bolt_that_asks_for_the_watermark_is_warned_of_behind_a_bolt_too() -> None:
    """Marks come between other rows than in a live run: here once for many rows."""
    built = chain(by_ts(Asks()))
    data = [("a", 1, 10 * n) for n in range(20)]
    replayed = replay_locally(built, {"source": data})
    assert [(w.component, w.cause) for w in replayed.warnings] == [("w0", "timers")]


@pytest.mark.sampled
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("seed", range(5))
def test_firings_late_tuples_and_states_are_those_of_a_live_run(
    shape: str, time: str, seed: int
) -> None:
    topology = chain(*SHAPES[shape]())
    replayed = replay_locally(topology, {"source": rows(seed)}, event_time=TIMES[time])
    assert_like_live(topology, replayed, rows(seed), seed)


def test_late_rows_are_late_in_both_runs_and_none_is_when_rows_are_sorted() -> None:
    topology = chain(*SHAPES["tumbling"]())
    in_place = replay_locally(topology, {"source": rows(3)}, event_time=TIMES["in place"])
    in_order = replay_locally(topology, {"source": rows(3)}, event_time=EventTime("ts"))
    assert in_place["w0:late"] and in_place.counts["w0"]["late"] == len(in_place["w0:late"])
    assert in_order["w0:late"] == []
    assert sum(value for _, value, _ in in_order["w0"]) == sum(value for _, value, _ in rows(3))


def test_windows_fire_along_the_way_when_time_is_known() -> None:
    """Return what is emitted carries the time of its firing: all at the end would have the last
    one's.
    """
    builder = building(source=Source("key", "value", "ts"))
    builder.set_bolt("sum", by_ts(WindowSums().with_tumbling_window(MS(1000))), 2).fields_grouping(
        "source", "key"
    )
    builder.set_bolt(
        "again", by_ts(WindowSums().with_tumbling_window(MS(5000)), 0), 2
    ).fields_grouping("sum", "key")
    data = [(f"k{n % 5}", 1, n) for n in range(50_000)]
    results = replay_locally(
        builder.build(), {"source": data}, event_time=EventTime("ts"), partitions=3
    )
    assert Counter(value for _, value, _ in results["sum"]) == {200: 250}
    assert Counter(value for _, value, _ in results["again"]) == {1000: 50}


def test_a_window_that_fails_is_named_or_put_aside() -> None:
    topology = chain(by_ts(FailsAt().with_tumbling_window(MS(100))))
    data = [("a", 1, 10), ("a", 2, 110), ("a", 3, 210)]
    sentence = r"component 'w0' \(task \d\) failed 4 times on .*end=200.*not this window"
    with pytest.raises(ReplayFailedError, match=sentence):
        replay_locally(topology, {"source": data})
    results = replay_locally(topology, {"source": data}, skip_bad=True)
    assert sorted(results["w0"]) == [("a", 1, 99), ("a", 3, 299)]
    assert [d.values for d in results.dead_letters] == [(["a"], 100, 200)]


def test_a_count_window_that_fails_is_put_aside_and_the_next_one_begins() -> None:
    topology = chain(FailsAt(4).with_tumbling_window(Count(2)).with_key("key"))
    data = [("a", n, at) for n, at in enumerate((10, 20, 150, 160, 210, 220))]
    with pytest.raises(ReplayFailedError, match=r"failed 4 times on record .*not this window"):
        replay_locally(topology, {"source": data})
    results = replay_locally(topology, {"source": data}, skip_bad=True)
    assert [value for _, value, _ in results["w0"]] == [1, 9]
    assert [(d.stream, d.values) for d in results.dead_letters] == [("__window", (["a"], 2, 4))]


class Told(StatefulBolt):
    """Emits each tuple with the one before it and the virtual time: shows every change of order."""

    outputs = ("key", "value", "former", "now_ms")

    def prepare(self, conf: Any, context: Any) -> None:
        self.now_ms = context.now_ms

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["key"], tup["value"], self.state.get("last", 0), self.now_ms()))
        self.state.put("last", tup["value"])


def data_topology() -> Topology:
    """A bolt of each kind, each straight behind its own data."""
    builder = TopologyBuilder()
    bolts = {shape: SHAPES[shape]()[0] for shape in ("tumbling", "members", "timers")} | {
        "told": Told()
    }
    for name, bolt in bolts.items():
        builder.set_spout(f"of-{name}", Source("key", "value", "ts"))
        builder.set_bolt(name, bolt, 3).fields_grouping(f"of-{name}", "key")
    return builder.build()


@pytest.mark.system
def test_on_spark_rows_come_to_their_tasks_in_the_order_of_time_and_then_of_place(
    spark: SparkSession,
) -> None:
    topology = data_topology()
    data = [(key, n, at_ms // 20 * 20) for n, (key, _, at_ms) in enumerate(rows(2))]
    frame = spark.createDataFrame(
        spark.sparkContext.parallelize(data, 4), "key string, value bigint, ts bigint"
    )
    plan = make_plan(topology, merge({}).as_dict(), "replay", {})
    times = {Feed(spout.id, "default"): "ts" for spout in topology.spouts}
    job = make_job(plan, RunSettings(time_fields=times, is_sorted=True), is_local=True)
    result = [sql_shuffled_input(plan, job, s) is not None for s in plan.stages if not s.feed]
    assert result == [True] * 4
    local = replay_locally(
        topology, {spout.id: data for spout in topology.spouts}, event_time=EventTime("ts")
    )
    found = replay(
        topology, {spout.id: frame for spout in topology.spouts}, event_time=EventTime("ts")
    )
    for bolt in topology.bolts:
        of_spark = Counter(repr(tuple(map(read_value, row))) for row in found[bolt.id].collect())
        assert of_spark == Counter(map(repr, local[bolt.id])), bolt.id
    assert [str(w) for w in found.warnings] == [str(w) for w in local.warnings]


@pytest.mark.system
def test_on_spark_windows_are_those_of_a_live_run(spark: SparkSession) -> None:
    topology = chain(*SHAPES["windows of windows"]())
    frame = spark.createDataFrame(rows(1), "key string, value int, ts bigint").coalesce(1)
    results = replay(topology, {"source": frame}, event_time=TIMES["in place"])
    live = complete_topology(topology, {"source": rows(1)})
    for name in ("w0", "w1"):
        assert Counter(map(tuple, results[name].collect())) == Counter(live[name])
