"""Windows in a whole cluster: event time and the clock, late tuples, workers that die, marks across
workers.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    FoldingBolt,
    Stream,
    TimedBolt,
    Timer,
    TopologyBuilder,
    Tuple,
    Window,
    WindowedBolt,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import replay_locally
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, SlowBolt, die
from tests.topologies import building, running

pytestmark = pytest.mark.sampled

WORKERS = pytest.mark.parametrize("workers", [1, 2, 4])
ROW = ("key", "ts", "value")


class Listing(WindowedBolt):
    """Says what each window holds."""

    outputs: Any = ("key", "start", "end", "values")

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit(
            (list(window.key), window.start, window.end, [tup["value"] for tup in window.get()])
        )


class Sum(FoldingBolt):
    """Sums values per window; results carry the window's last moment, so that further windows can
    take them.
    """

    outputs: Any = ROW

    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        return accumulator + int(tup["value"])

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((window.key[0] if window.key else "all", window.last_ms, window.value))


class MergingSum(Sum):
    """The same, with accumulators that can be put together."""

    def merge(self, one: int, other: int) -> int:
        return one + other


def seconds(count: float) -> Duration:
    return Duration.seconds(count)


def windowed(spout: FeederSpout, bolt: Any, capture: CaptureBolt, parallelism: int = 2) -> Topology:
    builder = building(spout=spout)
    builder.set_bolt("windows", bolt, parallelism).fields_grouping("spout", "key")
    declarer = builder.set_bolt("capture", capture).global_grouping("windows")
    if late := bolt.time_conf().get("topology.bolts.late.tuple.stream"):
        declarer.global_grouping("windows", stream=late)
    return builder.build()


def run(topology: Topology, workers: int = 1, **conf: Any) -> LocalCluster:
    cluster = LocalCluster()
    cluster.submit(topology, {"topology.workers": workers, **conf})
    cluster.run_until_idle()
    return cluster


@WORKERS
def test_tumbling_windows_fire_when_the_watermark_reaches_their_end(workers: int) -> None:
    spout, capture = FeederSpout(ROW), CaptureBolt()
    bolt = (
        Listing()
        .with_tumbling_window(seconds(10))
        .with_timestamp_field("ts")
        .with_lag(seconds(2))
        .with_key("key")
    )
    with running(windowed(spout, bolt, capture), {"topology.workers": workers}) as cluster:
        spout.feed(["b", 3000, 3000])
        for ts in (1000, 4000, 11_000, 9_500):
            spout.feed(["a", ts, ts])
        cluster.run_until_idle()
        assert capture.values == []  # the watermark stands at 9 s
        spout.feed(["c", 12_000, 12_000])
        cluster.run_until_idle()
        result = sorted(capture.values)
        assert result == [(["a"], 0, 10_000, [1000, 4000, 9500]), (["b"], 0, 10_000, [3000])]
        # stored is acked: nobody waits for a window to fire
        assert sorted(spout.acked) == list(range(6))
        spout.finish()
        cluster.run_until_idle()
        assert sorted(capture.values)[1:] == [
            (["a"], 10_000, 20_000, [11_000]),
            (["b"], 0, 10_000, [3000]),
            (["c"], 10_000, 20_000, [12_000]),
        ]


@WORKERS
def test_a_watermark_reaches_windows_behind_windows_across_workers(workers: int) -> None:
    spout, capture = FeederSpout(ROW), CaptureBolt()
    builder = TopologyBuilder()
    builder.set_spout("spout", spout, 2)
    first = (
        Sum()
        .with_tumbling_window(seconds(1))
        .with_timestamp_field("ts")
        .with_lag(seconds(5))
        .with_key("key")
    )
    builder.set_bolt("first", first, 3).fields_grouping("spout", "key")
    second = Sum().with_tumbling_window(seconds(10)).with_timestamp_field("ts")
    builder.set_bolt("second", second).global_grouping("first")
    builder.set_bolt("capture", capture).global_grouping("second")
    with running(builder.build(), {"topology.workers": workers}) as cluster:
        for number in range(400):
            spout.feed([f"k{number % 7}", number * 100, 1])
        cluster.run_until_idle()
        assert capture.values == [("all", 9_999, 100), ("all", 19_999, 100), ("all", 29_999, 100)]
        spout.finish()
        cluster.run_until_idle()
        assert capture.values[3:] == [("all", 39_999, 100)]
        assert cluster.counts("first").late == cluster.counts("second").late == 0


class Alarm(TimedBolt):
    """Says when a key was silent for five seconds of event time, or for a minute of the clock."""

    outputs = ("key", "axis", "at")
    key_fields = ("key",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup["key"])
        self.timers.set_event_timer(tup["key"], tup["ts"] + 5000)
        if tup["value"]:
            self.timers.set_processing_timer((tup["key"], "clock"), tup["value"])

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        collector.emit(
            (timer.name if timer.axis == "event" else timer.name[0], timer.axis, timer.at_ms)
        )


@pytest.mark.parametrize("seed", range(6))
def test_moves_kills_and_groupings_of_any_kind_change_no_window(seed: int) -> None:
    def results(harm: bool) -> list[Any]:
        spout, capture, chance, luck = FeederSpout(ROW), CaptureBolt(), Random(seed), Random(-seed)
        builder = building(spout=spout)
        bolt = (
            MergingSum()
            .with_window(seconds(4), seconds(2))
            .with_timestamp_field("ts")
            .with_lag(seconds(2))
            .with_key("key")
            .with_late_tuple_stream("late")
        )
        builder.set_bolt("windows", bolt, 3).fields_grouping("spout", "key")
        builder.set_bolt(
            "every", Listing().with_window(seconds(4)).with_timestamp_field("ts"), 2
        ).all_grouping("spout")
        total = Sum().with_tumbling_window(seconds(8)).with_timestamp_field("ts")
        builder.set_bolt("total", total).global_grouping("windows")
        builder.set_bolt("capture", capture).global_grouping("total").global_grouping(
            "windows", stream="late"
        ).global_grouping("every")
        with running(builder.build(), {"topology.workers": 3}, seed=seed) as cluster:
            for number in range(120):
                spout.feed(["abcd"[number % 4], max(0, number * 250 - chance.randrange(4000)), 1])
                if harm and number % 15 == 14:
                    cluster.advance(ms=luck.randrange(1, 30))
                    cluster.kill_worker(luck.randrange(len(cluster.topology().workers)))
                    if luck.random() < 0.3:
                        cluster.rebalance(workers=luck.randrange(1, 5))
            spout.finish()
            cluster.run_until_idle()
            assert spout.failed == []
            return sorted(
                map(
                    repr,
                    ((tup.component, tup.stream, tup.task, tup.values) for tup in capture.tuples),
                )
            )

    whole = results(harm=False)
    assert results(harm=True) == whole
    assert len([line for line in whole if "'late'" in line]) > 3


class Direct(BasicBolt):
    """Names the task by the key."""

    def __init__(self) -> None:
        self.outputs = {"default": Stream(ROW, direct=True)}

    def prepare(self, conf: Any, context: Any) -> None:
        self.tasks = context.component_tasks("windows")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit_direct(self.tasks[tup["value"] % len(self.tasks)], tup.values)


class Both:
    """A custom grouping that chooses every task twice as often as none."""

    def prepare(self, tasks: list[int]) -> None:
        self.tasks = tasks

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return self.tasks if values[2] % 3 else []


@WORKERS
@pytest.mark.parametrize("how", ["direct", "custom", "shuffle", "partial_key"])
def test_late_rows_and_marks_take_every_kind_of_way(workers: int, how: str) -> None:
    spout, capture, builder = FeederSpout(ROW), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    bolt = (
        Listing()
        .with_tumbling_window(seconds(10))
        .with_timestamp_field("ts")
        .with_late_tuple_stream("late")
    )
    declarer = builder.set_bolt("windows", bolt, 2)
    if how == "direct":
        builder.set_bolt("direct", Direct()).global_grouping("spout")
        declarer.direct_grouping("direct")
    elif how == "custom":
        declarer.custom_grouping("spout", Both())
    elif how == "shuffle":
        declarer.shuffle_grouping("spout")
    else:
        declarer.partial_key_grouping("spout", "key")
    builder.set_bolt("capture", capture).global_grouping("windows").global_grouping(
        "windows", stream="late"
    )
    for number, ts in enumerate((1000, 12_000, 3000, 25_000, 24_999, 26_000)):
        spout.feed([f"k{number}", ts, number])
    spout.finish()
    with run(builder.build(), workers) as cluster:
        late = sorted(row[3]["value"] for row in capture.values_of("windows", "late"))
        windows = sorted(value for row in capture.values_of("windows") for value in row[3])
        assert late == ([2, 2, 4, 4] if how == "custom" else [2, 4])
        assert windows == ([1, 1, 5, 5] if how == "custom" else [0, 1, 3, 5])
        sender = "direct" if how == "direct" else "spout"
        progress = cluster.topology().progress()
        flow = progress.edges[sender, "default", "windows"]
        assert flow.behind_ms == 9000  # of the row of 3000 behind that of 12,000
        assert progress.counts_by_task[flow.behind_task].component == sender


def test_what_a_failed_execute_emitted_moves_no_clock() -> None:
    class Leaping(BasicBolt):
        outputs: Any = ROW

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            collector.emit(tup.values)
            if tup["value"] == 2:
                collector.emit(("a", 10**9, 0))
                raise RuntimeError("too far")

    spout, capture, builder = FeederSpout(ROW), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("leaping", Leaping()).global_grouping("spout")
    bolt = Listing().with_tumbling_window(seconds(10)).with_timestamp_field("ts")
    builder.set_bolt("windows", bolt).global_grouping("leaping")
    builder.set_bolt("capture", capture).global_grouping("windows")
    for number in range(5):
        spout.feed(["a", number * 1000, number])
    spout.finish()
    with run(builder.build(), 1) as cluster:
        assert [row[3] for row in capture.values] == [[0, 1, 3, 4]]
        assert (cluster.counts("windows").late, len(cluster.dead_letters)) == (0, 1)


class FlakySum(Sum):
    """Raises on the first try of every fifth value, and on every try of the value 8."""

    def prepare(self, conf: Any, context: Any) -> None:
        self.tried = set[int]()

    def fold(self, accumulator: int, tup: Tuple) -> int:
        fail_once(self.tried, tup["value"])
        return super().fold(accumulator, tup)


class FlakyMergingSum(FlakySum, MergingSum):
    """The same, with accumulators that can be put together."""


class FlakyTimed(TimedBolt):
    """Sums values per second in its state and emits a sum at the second's end."""

    outputs: Any = ROW
    in_order = False

    def prepare(self, conf: Any, context: Any) -> None:
        self.tried = set[int]()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        end = tup["ts"] - tup["ts"] % 1000 + 1000
        self.state.put(end, self.state.get(end, 0) + tup["value"])
        self.timers.set_event_timer(end, end)
        fail_once(self.tried, tup["value"])

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        collector.emit(("all", timer.at_ms - 1, self.state.get(timer.name)))


def fail_once(tried: set[int], value: int) -> None:
    if value == 8 or (value % 5 == 0 and value not in tried):
        tried.add(value)
        raise RuntimeError("flaky")


FLAKY: dict[str, Any] = {
    "fold": lambda: FlakySum().with_tumbling_window(seconds(1)),
    "merging fold": lambda: FlakyMergingSum().with_window(seconds(2), seconds(1)),
    "sessions": lambda: FlakyMergingSum().with_session_window(seconds(0.3)),
    "timers": FlakyTimed,
}


@pytest.mark.parametrize("kind", FLAKY)
@pytest.mark.parametrize("kills", [0, 4])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_input_that_waits_for_its_next_try_holds_its_windows_open(
    kind: str, kills: int, workers: int
) -> None:
    rows: list[list[Any]] = [["a", number * 250, number] for number in range(40)]

    def run_flaky(retries: int, kills: int) -> tuple[list[Any], list[Any], int]:
        spout, capture = FeederSpout(ROW), CaptureBolt()
        bolt = FLAKY[kind]().with_timestamp_field("ts").with_late_tuple_stream("late")
        with running(
            windowed(spout, bolt, capture, 1),
            {"topology.workers": workers, "topology.max.retries": retries},
            seed=kills,
        ) as cluster:
            for row in rows:
                spout.feed(row)
                cluster.advance(ms=7)
                if kills and row[2] % (40 // kills) == 6:
                    cluster.kill_worker(0)
            spout.finish()
            cluster.run_until_idle()
            letters = [letter.values[2] for letter in cluster.dead_letters]
            return sorted(capture.values_of("windows")), letters, cluster.counts("windows").late

    topology = windowed(FeederSpout(ROW), FLAKY[kind]().with_timestamp_field("ts"), CaptureBolt())
    replayed = replay_locally(topology, {"spout": rows}, skip_bad=True)
    results, letters, late = run_flaky(3, kills)
    assert results == sorted(replayed["windows"])
    assert (letters, late) == ([8], 0)


def test_a_component_with_windows_in_a_cycle_goes_on() -> None:
    class Once(BasicBolt):
        outputs: Any = ROW

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            if tup["key"] == "a":
                collector.emit(("again", tup["ts"], tup["value"]))

    spout, capture, builder = FeederSpout(ROW), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    bolt = (
        Sum()
        .with_tumbling_window(seconds(10))
        .with_timestamp_field("ts")
        .with_lag(seconds(10))
        .with_key("key")
    )
    builder.set_bolt("windows", bolt).global_grouping("spout").global_grouping("once")
    builder.set_bolt("once", Once()).global_grouping("windows")
    builder.set_bolt("capture", capture).global_grouping("windows")
    with running(builder.build()) as cluster:
        for ts in (1000, 25_000, 60_000):
            spout.feed(["a", ts, 1])
            cluster.run_until_idle()
        assert ("a", 9999, 1) in capture.values
        assert ("a", 29_999, 1) in capture.values


@WORKERS
@pytest.mark.parametrize("axis", ["event", "processing"])
def test_a_window_that_kills_its_worker_is_found_and_parked_alone(workers: int, axis: str) -> None:
    class Deadly(Sum):
        def execute(self, window: Window, collector: BasicOutputCollector) -> None:
            if window.key == ("b",):
                die()
            super().execute(window, collector)

    spout, capture = FeederSpout(ROW), CaptureBolt()
    bolt = Deadly().with_tumbling_window(seconds(10)).with_key("key")
    bolt = bolt.with_timestamp_field("ts") if axis == "event" else bolt
    with running(windowed(spout, bolt, capture), {"topology.workers": workers}) as cluster:
        for number in range(12):
            spout.feed(["abc"[number % 3], number * 1000, 1])
        cluster.run_until_idle()
        cluster.advance(ms=12_000)
        spout.finish()
        cluster.run_until_idle()
        assert {
            (letter.stream, *letter.values[0], letter.attempts) for letter in cluster.dead_letters
        } == {("__window", "b", 3)}
        sums: dict[str, int] = {}
        # what was captured in an epoch without a commit is there twice
        for key, _, value in set(capture.values):
            sums[key] = sums.get(key, 0) + value
        assert sums == {"a": 4, "c": 4}


def half_silent(capture: CaptureBolt, spout: FeederSpout, idle_ms: int) -> Topology:
    """Two tasks send to the windows, but one of them never gets anything to send."""

    class First(BasicBolt):
        outputs: Any = ROW

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            collector.emit(tup.values)

    builder = building(spout=spout)
    builder.set_bolt("pass", First(), 2).fields_grouping("spout", "key")
    bolt = (
        Listing()
        .with_tumbling_window(seconds(10))
        .with_timestamp_field("ts")
        .with_late_tuple_stream("late")
    )
    builder.set_bolt(
        "windows", bolt, conf={"topology.bolts.watermark.idle.timeout.ms": idle_ms}
    ).global_grouping("pass")
    builder.set_bolt("capture", capture).global_grouping("windows").global_grouping(
        "windows", stream="late"
    )
    return builder.build()


@WORKERS
def test_a_silent_sender_holds_time_back_unless_it_may_be_left_behind(workers: int) -> None:
    for idle_ms in (0, 1000):
        spout, capture = FeederSpout(ROW), CaptureBolt()
        with running(
            half_silent(capture, spout, idle_ms), {"topology.workers": workers}
        ) as cluster:
            for ts in (1000, 12_000):
                spout.feed(["a", ts, ts])
            cluster.advance(ms=900)
            assert capture.values == []
            spout.feed(["a", 13_000, 13_000])
            cluster.advance(ms=300)
            assert [row[3] for row in capture.values] == ([[1000]] if idle_ms else [])
            cluster.kill_worker("windows")  # what it was told once it still knows
            spout.feed(["a", 21_000, 21_000])
            cluster.advance(ms=500)
            assert [row[3] for row in capture.values] == (
                [[1000], [12_000, 13_000]] if idle_ms else []
            )
            for key in "bcdefgh":  # the other one wakes up, with an old time and then a new one
                spout.feed([key, 15_000, 15_000])
            for key in "abcdefgh":
                spout.feed([key, 31_000, 31_000])
            cluster.run_until_idle()
            spout.finish()
            cluster.run_until_idle()
            if idle_ms:
                assert cluster.counts("windows").late == 7
                result = [row[3] for row in capture.values_of("windows")][2:]
                assert result == [[21_000], [31_000] * 8]
            else:
                assert cluster.counts("windows").late < 7


def test_much_in_a_window_is_swept_and_comes_back() -> None:
    spout, capture = FeederSpout(ROW), CaptureBolt()
    bolt = Listing().with_tumbling_window(seconds(100)).with_timestamp_field("ts").with_key("key")
    with running(windowed(spout, bolt, capture, 1), {"topology.workers": 2}) as cluster:
        texts = [f"{number:05}" * 100 for number in range(1500)]
        for number, text in enumerate(texts):
            spout.feed(["ab"[number % 2], number, text])
            if number % 300 == 299:
                cluster.run_until_idle()
                cluster.kill_worker("windows")
        records = [
            cluster.topology().store.task(task) for task in cluster.topology().component_by_task
        ]
        assert max(sum(map(len, record.journal)) for record in records) > 256 * 1024
        spout.finish()
        cluster.run_until_idle()
        assert sorted(row[3] for row in capture.values) == [texts[0::2], texts[1::2]]


@pytest.mark.slow
def test_windows_wait_for_those_they_feed() -> None:
    class Wordy(Sum):
        outputs: Any = ("text",)

        def execute(self, window: Window, collector: BasicOutputCollector) -> None:
            collector.emit((f"{window.key[0]:06}" * 100,))

    spout, capture, builder = FeederSpout(ROW), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    bolt = Wordy().with_tumbling_window(seconds(10)).with_timestamp_field("ts").with_key("key")
    builder.set_bolt("windows", bolt).global_grouping("spout")
    builder.set_bolt("capture", SlowBolt(1, capture)).global_grouping("windows")
    with running(
        builder.build(), {"topology.workers": 2, "topology.inbox.high.bytes": 1 << 20}, slots=1
    ) as cluster:
        for key in range(20_000):
            spout.feed([key, 1000, 1])
        spout.finish()
        backlog = 0
        while not capture.values or cluster.counts("windows").emitted < 20_000:
            cluster.advance(ms=500)
            store = cluster.topology().store
            backlog = max(
                backlog,
                *(
                    sum(len(data) for _, data in store.task(task).stream)
                    for task in cluster.topology().component_by_task
                ),
            )
        assert backlog < 6 << 20  # 12 MB in all
        cluster.run_until_idle()
        assert len(capture.values) == 20_000


@WORKERS
@pytest.mark.parametrize("tracked", [True, False])
def test_a_run_looks_finished_only_when_its_last_windows_have_fired(
    workers: int, tracked: bool
) -> None:
    for late_ms in range(4):
        spout, capture = FeederSpout(ROW, is_tracked=tracked), CaptureBolt()
        bolt = Sum().with_tumbling_window(seconds(10)).with_timestamp_field("ts").with_key("key")
        with LocalCluster(seed=late_ms) as cluster:
            for ts in range(0, 40_000, 1000):
                spout.feed([f"k{ts % 7}", ts, 1])
            spout.finish()
            cluster.submit(windowed(spout, bolt, capture), {"topology.workers": workers})
            topology = cluster.topology()
            for _ in range(2000):
                counts = list(topology.progress().counts_by_task.values())
                is_settled = not any(c.pending or c.is_waiting for c in counts) and not any(
                    topology.store.task(task).stream for task in topology.component_by_task
                )
                if is_settled and any(c.is_exhausted for c in counts):
                    break
                cluster.advance(ms=1)
            assert sum(row[2] for row in capture.values) == 40


class Heart(TimedBolt):
    """Sets a timer again 10 s after each firing."""

    outputs: Any = ROW

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if not self.state.get("begun"):
            self.state.put("begun", True)
            self.timers.set_event_timer("beat", tup["ts"])

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        collector.emit(("beat", timer.at_ms, 1))
        self.timers.set_event_timer(timer.name, timer.at_ms + 10_000)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_first", [True, False])
def test_a_chain_of_timers_ends_at_the_newest_mark_whichever_source_ends_first(
    seed: int, is_first: bool
) -> None:
    spouts = [FeederSpout(ROW), FeederSpout(ROW)]
    capture = CaptureBolt()
    builder = TopologyBuilder()
    declarer = builder.set_bolt("heart", Heart().with_timestamp_field("ts"))
    again = builder.set_bolt("again", Heart().with_timestamp_field("ts").with_lag(seconds(1)))
    again.global_grouping("heart")
    for name, spout in zip(("long", "short"), spouts, strict=True):
        builder.set_spout(name, spout)
        declarer.global_grouping(name)
    builder.set_bolt("capture", capture).global_grouping("heart").global_grouping("again")
    for at_ms in range(0, 100_001, 5000):
        spouts[0].feed(["a", at_ms, 1])
    spouts[1].feed(["b", 5000, 1])
    with running(builder.build(), {"topology.workers": 1 + seed % 2}, seed=seed) as cluster:
        if seed > 1:
            cluster.run_until_idle()
        for spout in spouts if is_first else reversed(spouts):
            spout.finish()
            if seed > 2:
                cluster.run_until_idle()
        cluster.run_until_idle()
    beats = [row[1] for row in capture.values_of("heart")]
    assert beats == list(range(0, 110_001, 10_000))
    # up to its newest input less the lag, and the one that was set there
    assert [row[1] for row in capture.values_of("again")] == list(range(0, 110_001, 10_000))


@pytest.mark.parametrize("ends", [True, False])
def test_a_silent_source_and_one_that_has_ended_hold_no_window_back(ends: bool) -> None:
    spouts = [FeederSpout(ROW), FeederSpout(ROW)]
    capture = CaptureBolt()
    builder = TopologyBuilder()
    bolt = Listing().with_tumbling_window(seconds(10)).with_timestamp_field("ts")
    conf = {"topology.bolts.watermark.idle.timeout.ms": 2000}
    declarer = builder.set_bolt("windows", bolt, conf=conf)
    for name, spout in zip(("long", "short"), spouts, strict=True):
        builder.set_spout(name, spout)
        declarer.global_grouping(name)
    builder.set_bolt("capture", capture).global_grouping("windows")
    for number in range(101):
        spouts[0].feed(["a", 1000 * number, number])
    spouts[1].feed(["b", 5000, 1000])
    if ends:
        spouts[0].finish()
    with running(builder.build(), {"topology.workers": 2}) as cluster:
        cluster.advance(ms=10_000)
        assert [row[2] for row in capture.values] == list(range(10_000, 100_001, 10_000))
        spouts[0].finish()
        spouts[1].finish()
        cluster.run_until_idle()
        assert sum(len(row[3]) for row in capture.values) == 102
