"""Every cause for which "live equals replay" is not promised warns by its name; what is promised does not warn."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.api.windows import Count as Number
from sparkstorm.api.windows import Duration, Window, WindowedBolt
from sparkstorm.model.topology import Grouping, Topology
from sparkstorm.replay import EventTime, replay_locally
from sparkstorm.replay.sample import check_sample
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Count, Source, Timed
from tests.replay.random_topologies import ByKey

ROWS = [("a", 1), ("b", 2), ("a", 3)]


class Quick(Count):
    order_insensitive = True


class Last(StatefulBolt):
    """Keeps what came last: of several senders, whoever was slower."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put("last", tup.values[0])


class Again(BasicBolt):
    outputs = ("key", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(tup.values)


class Sizes(WindowedBolt):
    outputs = ("size",)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((len(window),))


class ByWallClock(BasicBolt):
    outputs = ("key", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup.values[0], time.time_ns()))


class ByChance(BasicBolt):
    outputs = ("key", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup.values[0], random.random()))


class Halves(StatefulBolt):
    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup.values[0], tup.values[1] / 2)


class OrderedHalves(Halves):
    order_insensitive = False


def topology(bolt: Any, grouping: Grouping, tasks: int = 2, between: Any = None, conf: dict[str, Any] | None = None) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("key", "ts"), 2)
    if between is not None:
        builder.set_bolt("between", between, 2).shuffle_grouping("source")
    builder.set_bolt("bolt", bolt, tasks, conf=conf).grouping("source" if between is None else "between", grouping)
    return builder.build()


FIELDS = Grouping("fields", ("key",))


def window(bolt: Sizes) -> Sizes:
    return bolt.with_tumbling_window(Duration.millis(10)).with_timestamp_field("ts")


CAUSES: dict[str, tuple[Topology, dict[str, Any], str, EventTime | None]] = {
    "state behind shuffle grouping": (topology(Quick(), Grouping("shuffle")), {}, "bolt", None),
    "state behind partial_key grouping": (topology(Quick(), Grouping("partial_key", ("key",))), {}, "bolt", None),
    "state behind custom grouping": (topology(Quick(), Grouping("custom", custom=ByKey())), {}, "bolt", None),
    "state behind local_or_shuffle grouping": (topology(Quick(), Grouping("local_or_shuffle")), {}, "bolt", None),
    "order of senders": (topology(Last(), FIELDS), {}, "bolt", None),
    "ticks": (topology(Quick(), FIELDS, conf={"topology.tick.tuple.freq.secs": 1}), {}, "bolt", EventTime("ts")),
    "processing time": (topology(Sizes().with_tumbling_window(Duration.millis(10)), Grouping("global")), {}, "bolt", None),
    "late data": (topology(window(Sizes()), Grouping("global"), between=Again()), {}, "bolt", None),
    "updates": (topology(window(Sizes()).with_allowed_lateness(Duration.millis(5)), Grouping("global")), {}, "bolt", None),
    "guarantee": (topology(Quick(), FIELDS), {"topology.delivery.guarantee": "at-least-once"}, "bolt", None),
    "wall clock": (topology(ByWallClock(), FIELDS), {}, "bolt", None),
    "chance": (topology(ByChance(), FIELDS), {}, "bolt", None),
    "float sums": (topology(Halves(), FIELDS), {}, "bolt", None),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_of_difference_warns_by_its_name_and_component(cause: str) -> None:
    built, conf, component, event_time = CAUSES[cause]
    results = replay_locally(built, {"source": ROWS}, conf=conf, event_time=event_time)
    found = [w for w in results.warnings if w.cause == cause]
    assert [w.component for w in found] == [component]
    assert f"component '{component}'" in str(found[0])


def test_windows_by_count_depend_on_the_order_of_senders() -> None:
    counted = topology(Sizes().with_tumbling_window(Number(2)), Grouping("global"))
    assert "order of senders" in {w.cause for w in replay_locally(counted, {"source": ROWS}).warnings}


@pytest.mark.parametrize(
    "promised",
    [
        topology(Quick(), FIELDS),
        topology(Quick(), Grouping("global")),
        topology(Quick(), Grouping("all")),
        topology(Timed(), Grouping("shuffle")),
        topology(window(Sizes()), Grouping("global")),
    ],
)
def test_what_is_promised_does_not_warn(promised: Topology) -> None:
    assert replay_locally(promised, {"source": ROWS}).warnings == ()


def test_the_order_of_one_sender_is_no_chance() -> None:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("key", "ts"))
    builder.set_bolt("last", Last(), 2).fields_grouping("source", "key")
    assert replay_locally(builder.build(), {"source": ROWS}).warnings == ()


def test_the_order_of_senders_does_change_a_result() -> None:
    """The warning is earned: a live run ends with another tuple than the replay."""
    builder = TopologyBuilder()
    builder.set_spout("left", Source("key", "ts"))
    builder.set_spout("right", Source("key", "ts"))
    builder.set_bolt("slow", Timed(), 3).shuffle_grouping("left")
    builder.set_bolt("last", Last()).global_grouping("slow").global_grouping("right")
    rows = {"left": [(f"l{n}", n) for n in range(40)], "right": [(f"r{n}", n) for n in range(40)]}
    replayed = replay_locally(builder.build(), rows)
    assert replayed.states["last"] != complete_topology(builder.build(), rows).state("last")
    assert [w.cause for w in replayed.warnings] == ["order of senders"]


@pytest.mark.parametrize(("bolt", "said"), [(ByWallClock(), "bolt"), (ByChance(), "bolt"), (Quick(), None)])
def test_a_sample_run_twice_finds_who_reads_the_clock_or_rolls_dice(bolt: Any, said: str | None) -> None:
    assert check_sample(topology(bolt, FIELDS), {"source": ROWS}) == said


def test_floats_of_a_bolt_without_order_are_told_even_behind_one_sender() -> None:
    """Spark may bring its data in another order than the live one."""
    for bolt, is_told in ((OrderedHalves(), False), (Halves(), True)):
        builder = TopologyBuilder()
        builder.set_spout("source", Source("key", "ts"))
        builder.set_bolt("bolt", bolt, 2).fields_grouping("source", "key")
        found = replay_locally(builder.build(), {"source": ROWS}).warnings
        assert ("float sums" in {w.cause for w in found}) is is_told
