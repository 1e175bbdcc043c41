"""Inputs of plain bolts that wait for their next try hold event time back downstream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sparkstorm.api import (
    AsyncBolt,
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    Duration,
    FoldingBolt,
    OutputCollector,
    TimedBolt,
    TopologyBuilder,
    Tuple,
    Window,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import replay_locally
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster

FIELDS = ("ts", "value")
# every tenth row is older than the lag allows
ROWS = [[number * 250 - (2500 if number % 10 == 7 else 0), number] for number in range(10, 50)]


class Flaky:
    """Raises on the first try of every fifth value, and on every try of the value 18."""

    outputs: Any = FIELDS

    def prepare(self, conf: Any, context: Any, *more: Any) -> None:
        self.tried = set[int]()

    def check(self, value: int) -> None:
        if value == 18 or (value % 5 == 0 and value not in self.tried):
            self.tried.add(value)
            raise RuntimeError("flaky")


class FlakyBasic(Flaky, BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.check(tup["value"])
        collector.emit(tup.values)


class FlakyByHand(Flaky, Bolt):
    def prepare(self, conf: Any, context: Any, collector: OutputCollector) -> None:
        super().prepare(conf, context)
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        self.check(tup["value"])
        self.collector.emit(tup.values, tup)
        self.collector.ack(tup)


class FlakyThread(FlakyBasic):
    blocking = True


class FlakyAwaits(Flaky, AsyncBolt):
    async def start(self, conf: Any, context: Any) -> None:
        Flaky.prepare(self, conf, context)

    async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        await asyncio.sleep(0)
        self.check(tup["value"])
        collector.emit(tup.values)


class FlakyTimed(Flaky, TimedBolt):
    in_order = False

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.check(tup["value"])
        collector.emit(tup.values)


class Pass(BasicBolt):
    outputs: Any = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(tup.values)


class Sum(FoldingBolt):
    outputs: Any = ("last_ms", "values")

    def initial(self) -> list[int]:
        return []

    def fold(self, accumulator: list[int], tup: Tuple) -> list[int]:
        return sorted([*accumulator, tup["value"]])

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((window.last_ms, window.value))


CHAINS: dict[str, Any] = {
    "basic": lambda: [FlakyBasic()],
    "by hand": lambda: [FlakyByHand()],
    "thread": lambda: [FlakyThread()],
    "awaits": lambda: [FlakyAwaits()],
    "timed": lambda: [FlakyTimed().with_timestamp_field("ts").with_lag(Duration.seconds(60))],
    "a hop": lambda: [FlakyBasic(), Pass()],
    "two hops": lambda: [FlakyBasic(), Pass(), Pass()],
    "both flaky": lambda: [FlakyBasic(), FlakyByHand()],
}


def chained(spout: FeederSpout, chain: list[Any], capture: CaptureBolt) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    sender = "spout"
    for place, bolt in enumerate(chain):
        builder.set_bolt(f"plain{place}", bolt).shuffle_grouping(sender)
        sender = f"plain{place}"
    windows = (
        Sum()
        .with_tumbling_window(Duration.seconds(1))
        .with_timestamp_field("ts")
        .with_lag(Duration.millis(500))
        .with_late_tuple_stream("late")
    )
    builder.set_bolt("windows", windows).global_grouping(sender)
    builder.set_bolt("capture", capture).global_grouping("windows").global_grouping(
        "windows", stream="late"
    )
    return builder.build()


@pytest.mark.sampled
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("kills", [0, 4])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_waiting_input_of_a_plain_bolt_holds_windows_downstream_open(
    chain: str, kills: int, workers: int
) -> None:
    replayed = replay_locally(
        chained(FeederSpout(FIELDS), CHAINS[chain](), CaptureBolt()), {"spout": ROWS}, skip_bad=True
    )
    for seed in range(3):
        spout, capture = FeederSpout(FIELDS), CaptureBolt()
        with LocalCluster(seed=seed) as cluster:
            cluster.submit(
                chained(spout, CHAINS[chain](), capture),
                {"topology.workers": workers, "topology.max.retries": 3},
            )
            for number, row in enumerate(ROWS):
                spout.feed(row)
                if number % 3 == seed:
                    cluster.advance(ms=7)
                if kills and number % (40 // kills) == 6:
                    cluster.kill_worker(number % workers)
            spout.finish()
            cluster.run_until_idle()
            letters = [letter.values[1] for letter in cluster.dead_letters]
        assert sorted(capture.values_of("windows")) == sorted(replayed["windows"])
        assert sorted(capture.values_of("windows", "late")) == sorted(replayed["windows:late"])
        assert letters[:1] == [18] == [letter.values[1] for letter in replayed.dead_letters]


class Keeps(Bolt):
    """Keeps its inputs while it is told to, and passes others on."""

    outputs: Any = FIELDS

    is_told = True

    def prepare(self, conf: Any, context: Any, collector: OutputCollector) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        if not Keeps.is_told:
            self.collector.emit(tup.values, tup)
            self.collector.ack(tup)


def test_inputs_that_were_open_when_their_worker_died_follow_the_clock_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spout, capture = FeederSpout(FIELDS), CaptureBolt()
    replayed = replay_locally(chained(spout, [Pass()], capture), {"spout": ROWS})
    with LocalCluster() as cluster:
        cluster.submit(chained(spout, [Keeps()], capture))
        for row in ROWS:
            spout.feed(row)
        cluster.run_until(lambda: cluster.counts("plain0").executed == len(ROWS))
        monkeypatch.setattr(Keeps, "is_told", False)
        cluster.kill_worker("plain0")
        spout.finish()
        cluster.run_until_idle()
    assert sorted(capture.values_of("windows")) == sorted(replayed["windows"])
    late = sorted(capture.values_of("windows", "late"))
    assert late == sorted(replayed["windows:late"])
    assert len(late) == 4
