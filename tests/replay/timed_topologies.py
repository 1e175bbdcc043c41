"""Random topologies of windows and timers over event time, behind bolts and spouts of several
tasks, with real lateness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from sparkstorm.api import BasicBolt, BasicOutputCollector, Timer, TopologyBuilder, Tuple
from sparkstorm.api.windows import Count, Duration, TimedBolt, Window, WindowedBolt
from sparkstorm.common.model.topology import Topology
from tests.replay.bolts import FIELDS, Pass, Source, WindowSums, with_shape


class Disorder(BasicBolt):
    """Gives rows other times, out of order."""

    outputs = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["key"], tup["value"], max(0, tup["ts"] - 31 * (tup["value"] % 4))))


class Bad(BasicBolt):
    """Fails on some values, at every try, after having emitted."""

    outputs = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["key"], tup["value"], tup["ts"] + 500 * (tup["value"] % 7 == 3)))
        if tup["value"] % 7 == 3:
            raise ValueError("three of seven")


class Hashes(WindowSums):
    """An accumulator that depends on the order of its terms."""

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return (accumulator * 31 + int(tup["value"])) % 1_000_003


class Firsts(WindowSums):
    """The value of the first term."""

    def initial(self) -> Any:
        return None

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return int(tup["value"]) if accumulator is None else accumulator

    def merge(self, one: Any, other: Any) -> Any:
        return other if one is None else one


class Members(WindowedBolt):
    """The values in a window, in its order."""

    outputs = (*FIELDS, "values")

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        values = [t["value"] for t in window]
        collector.emit(("w", sum(values), window.last_ms, values))


class SortedMembers(Members):
    """The same values, sorted."""

    order_insensitive = True

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        values = sorted(t["value"] for t in window)
        collector.emit(("w", sum(values), window.last_ms, values))


class Steps(TimedBolt):
    """The difference to the key's last value, and a timer a while after it."""

    outputs = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        last = self.state.get(tup["key"], 0)
        self.state.put(tup["key"], tup["value"])
        self.timers.set_event_timer(tup["key"], tup["ts"] + 40)
        collector.emit((tup["key"], tup["value"] - last, tup["ts"]))

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        collector.emit((timer.name, self.state.get(timer.name, 0), timer.at_ms))


class Distinct(WindowSums):
    """Counts the values that its fold has kept, in the state and in an attribute."""

    def prepare(self, conf: Any, context: Any) -> None:
        self.seen: set[int] = set()

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        self.seen.add(tup["value"])
        return accumulator + self.state.add(tup["key"], tup["value"])

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((*window.key, window.value + len(self.seen), window.last_ms))


class Escalates(Steps):
    """Sets the timer again when it fires, some times."""

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        super().on_timer(timer, collector)
        if (timer.at_ms // 40) % 4:
            self.timers.set_event_timer(timer.name, timer.at_ms + 40)


class Asks(TimedBolt):
    """Emits the watermark that it meets."""

    outputs = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["key"], self.timers.watermark_ms, tup["ts"]))


class FirstFails(Hashes):
    """Fails at the first try of some tuples, after it has changed the state."""

    def prepare(self, conf: Any, context: Any) -> None:
        self.failed: set[str] = set()

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        self.state.add(tup["key"], 1)
        if tup["value"] % 4 == 1 and repr(tup.values) not in self.failed:
            self.failed.add(repr(tup.values))
            raise ValueError("the first try")
        return super().fold(accumulator, tup)


KEEPING = (Distinct, Escalates, Asks, FirstFails)
"""Depend on the moments of watermarks or of tries: many of them are warned of."""
FOLDING, COLLECTING = (WindowSums, Hashes, Firsts), (Members, SortedMembers)


def with_time(bolt: Any, random: Random) -> Any:
    """Add a window of some shape over event time, a lag, now and then allowed lateness."""
    length = Duration.millis(random.choice((50, 100, 333)))
    shapes = [
        "tumbling",
        "sliding",
        "session",
        *(["count"] if isinstance(bolt, COLLECTING) else []),
    ]
    shape = "timed" if isinstance(bolt, TimedBolt) else random.choice(shapes)
    if shape == "count":
        bolt.order_insensitive = False  # which tuples are in a window depends on their order
        bolt.with_tumbling_window(Count(random.choice((2, 5))))
    elif shape != "timed":
        with_shape(bolt, shape, length, random)
    bolt.with_timestamp_field("ts").with_lag(Duration.millis(random.choice((0, 15, 90, 300, 1000))))
    if shape not in ("timed", "count") and random.random() < 0.2:
        bolt.with_allowed_lateness(Duration.millis(60))
    return bolt.with_late_tuple_stream("late")


NEW_YORK = ZoneInfo("America/New_York")
TIMES_AS_KEYS = [
    datetime(2015, 11, 1, 0, 30, tzinfo=NEW_YORK),
    datetime(2015, 11, 1, 1, 30, tzinfo=NEW_YORK),
    datetime(2015, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1),
    datetime(2015, 11, 1, 6, tzinfo=UTC),
]


def random_rows(random: Random, keys: Sequence[Any] = "abc") -> list[tuple[Any, ...]]:
    """Up to sixty rows, in the order of their times or not."""
    step, noise = random.choice((0, 1, 10)), random.choice((0, 0, 10, 80))
    return [
        (random.choice(keys), random.randint(-50, 50), step * n + random.randint(0, noise))
        for n in range(random.choice((0, 5, 20, 60)))
    ]


def random_topology(
    random: Random,
    keys: Sequence[Any] = "abc",
    timed: Sequence[Any] = (*FOLDING, *COLLECTING, Steps),
    plain: Sequence[Any] = (Pass, Pass, Disorder, Bad),
) -> tuple[Topology, dict[str, list[Any]]]:
    """Spouts, bolts without time, and bolts by time, behind each other."""
    builder, streams, rows = TopologyBuilder(), [], {}
    for n in range(random.choice((1, 1, 2))):
        builder.set_spout(f"s{n}", Source(*FIELDS), random.choice((1, 1, 1, 2)))
        streams.append(f"s{n}")
        rows[f"s{n}"] = random_rows(random, keys)
    for n in range(random.randint(1, 5)):
        is_plain = random.random() < 0.5 and n < 4
        make = random.choice(plain if is_plain else timed)
        bolt: Any = make() if is_plain else with_time(make(), random)
        declarer = builder.set_bolt(f"b{n}", bolt, random.choice((1, 2, 3)))
        for component in random.sample(streams, min(len(streams), random.choice((1, 1, 1, 2)))):
            kinds = ["fields", "shuffle", "local_or_shuffle", "global"] if is_plain else ["fields"]
            kind = "global" if isinstance(bolt, COLLECTING) else random.choice(kinds)
            getattr(declarer, f"{kind}_grouping")(component, *(["key"] if kind == "fields" else []))
        streams.append(f"b{n}")
    return builder.build(), rows


def with_feeders(topology: Topology, feeders: dict[str, Any]) -> Topology:
    """Put feeders in the places of spouts, with as many tasks."""
    return Topology({c.id: replace(c, instance=feeders.get(c.id, c.instance)) for c in topology})
