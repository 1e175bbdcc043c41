"""Subjects of the simulation at the edge of a commit: sources that delete what is acked and emit
again what fails, stops while commits are refused, and clocks that go back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    FoldingBolt,
    StatefulBolt,
    TimedBolt,
    Timer,
    TopologyBuilder,
    Tuple,
    Window,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.testing import LocalCluster, Subject, TargetSink
from sparkstorm.testing.faults import EDGE_KINDS, KINDS
from tests.sim.sources import BlockingDeletingSpout, DeletingSpout

NUMBERS = 40
FEEDER = partial(DeletingSpout, messages=NUMBERS)
BLOCKING = partial(BlockingDeletingSpout, messages=NUMBERS)
# what a source has deleted comes back with no store that has lost it
_LOSE_DATA = ("REDIS_GOES_BACK", "REDIS_EMPTIED", "REDIS_OLDER", "REDIS_OLDER_TWICE",
              "ZOOKEEPER_BACK", "ZOOKEEPER_EMPTIED")  # fmt: skip
EVERY = tuple(kind.name for kind in (*KINDS, *EDGE_KINDS) if kind.name not in _LOSE_DATA)
WITHOUT_KILLS = tuple(name for name in EVERY if name not in ("KILL_MAIN", "KILL_WHILE_REFUSED"))
AT_LEAST_ONCE = {"topology.delivery.guarantee": "at-least-once"}
AT_MOST_ONCE = {"topology.delivery.guarantee": "at-most-once"}


class RefuseFirst(BasicBolt):
    """Refuses every third number when it comes for the first time."""

    outputs = ("number", "tries")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["number"] % 3 == 0 and tup["tries"] == 0:
            raise ValueError("the first time")
        collector.emit(tup.values)


class CountEach(StatefulBolt):
    """How often each number has come."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(tup["number"], self.state.get(tup["number"], 0) + 1)


def _rows() -> list[list[Any]]:
    return [[n, 0] for n in range(NUMBERS)]


def _settings(*more: Mapping[str, Any]) -> dict[str, Any]:
    conf: dict[str, Any] = {"topology.max.retries": 0}
    for settings in more:
        conf |= settings
    return conf


def _counting() -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", FEEDER(["number", "tries"]), 2)
    builder.set_bolt("refuse", RefuseFirst(), 2).shuffle_grouping("spout")
    builder.set_bolt("count", CountEach(), 2).fields_grouping("refuse", "number")
    return builder.build()


def _require_each(cluster: LocalCluster, name: str) -> None:
    """Every number has been counted, and each that is refused is a dead letter."""
    counts: Counter[int] = Counter()
    for state in cluster.topology(name).states("count").values():
        counts.update(state)
    missing = sorted(set(range(NUMBERS)) - counts.keys())
    assert not missing, f"{missing} are lost"


def _subject(
    make: Callable[[], Topology], feeder: Any, *conf: Mapping[str, Any], **more: Any
) -> Subject:
    given: dict[str, Any] = {"kinds": WITHOUT_KILLS, "feeder": feeder, **more}
    return Subject(make, {"spout": _rows()}, _settings(*conf), **given)


def deleting() -> Subject:
    """Source that deletes on ack, exactly once."""
    return _subject(_counting, FEEDER)


def blocking_deleting() -> Subject:
    """The same on threads."""
    return _subject(_counting, BLOCKING)


def deleting_at_least_once() -> Subject:
    """Source that deletes on ack, at least once."""
    return _subject(_counting, FEEDER, AT_LEAST_ONCE, check=_require_each)


def blocking_at_least_once() -> Subject:
    """The same on threads."""
    return _subject(_counting, BLOCKING, AT_LEAST_ONCE, check=_require_each)


def deleting_at_most_once() -> Subject:
    """Source that deletes on ack, where nothing is tracked: its own check alone."""
    return _subject(_counting, FEEDER, AT_MOST_ONCE)


def blocking_at_most_once() -> Subject:
    """The same on threads."""
    return _subject(_counting, BLOCKING, AT_MOST_ONCE)


def _to_target() -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", FEEDER(["number", "tries"]), 2)
    builder.set_bolt("refuse", RefuseFirst(), 2).shuffle_grouping("spout")
    builder.set_bolt("sink", TargetSink(), 2).shuffle_grouping("refuse")
    return builder.build()


def killed() -> Subject:
    """Source that deletes on ack, a target outside of the cluster, and kills of the topology."""
    return _subject(_to_target, FEEDER, kinds=EVERY)


def blocking_killed() -> Subject:
    """The same on threads."""
    return _subject(_to_target, BLOCKING, kinds=EVERY)


class CountWindow(FoldingBolt):
    """Number of rows in a window."""

    outputs = ("rows",)

    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        return accumulator + 1

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((window.value,))


class Total(StatefulBolt):
    """Sum over all windows."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(tup.component, self.state.get(tup.component, 0) + tup["rows"])


def _total_of(**bolts: Any) -> Topology:
    """Build spout -> refuse -> each of these bolts -> total."""
    builder = TopologyBuilder()
    builder.set_spout("spout", FEEDER(["number", "tries"]), 2)
    builder.set_bolt("refuse", RefuseFirst(), 2).shuffle_grouping("spout")
    declarer = builder.set_bolt("total", Total())
    for name, bolt in bolts.items():
        builder.set_bolt(name, bolt, 2).fields_grouping("refuse", "number")
        declarer.global_grouping(name)
    return builder.build()


def _windows_to_the_end() -> Topology:
    window = CountWindow().with_tumbling_window(Duration.millis(5))
    return _total_of(windows=window.with_timestamp_field("number").with_lag(Duration.seconds(99)))


def ended() -> Subject:
    """Windows that fire at the end of their source alone, which emits again what fails."""
    return _subject(_windows_to_the_end, FEEDER)


def blocking_ended() -> Subject:
    """The same on threads."""
    return _subject(_windows_to_the_end, BLOCKING)


class CountByTimer(TimedBolt):
    """Emits each row a while later, by a timer of processing time."""

    outputs = ("rows",)

    def prepare(self, conf: Any, context: Any) -> None:
        self.now_ms = context.now_ms

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        name = tup["number"]
        self.state.put(name, self.state.get(name, 0) + 1)
        self.timers.set_processing_timer(name, self.now_ms() + 300)

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        collector.emit((self.state.get(timer.name),))
        self.state.delete(timer.name)


def _by_the_clock() -> Topology:
    return _total_of(
        tumbling=CountWindow().with_tumbling_window(Duration.millis(500)),
        sliding=CountWindow().with_window(Duration.seconds(1), Duration.millis(500)),
        timers=CountByTimer(),
    )


def by_the_clock() -> Subject:
    """Windows and timers by processing time, of which each row must be in all that it belongs
    to.
    """
    return _subject(_by_the_clock, FEEDER)
