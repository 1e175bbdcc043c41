"""Bolts that the replay tests run live, locally and on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    OutputCollector,
    ReplayableSpout,
    Spout,
    SpoutOutputCollector,
    StatefulBolt,
    Stream,
    Timer,
    TopologyContext,
    Tuple,
)
from sparkstorm.api.components import Conf
from sparkstorm.api.windows import Duration, FoldingBolt, TimedBolt, Window
from sparkstorm.common.model.topology import Topology
from tests.topologies import building

FIELDS = ("key", "value", "ts")


class Source(Spout):
    """Stands for any spout: a replay never runs it."""

    def __init__(self, *fields: str) -> None:
        self.outputs = fields


class Listed(ReplayableSpout):
    """Rows of a list, a part for each task; its position is a number that other numbers of tasks do
    not share.

    `most`: how many rows a task emits for now, while the others are still to come.
    """

    def __init__(
        self,
        *parts: Sequence[tuple[Any, ...]],
        fields: Sequence[str] = FIELDS,
        most: int | None = None,
    ) -> None:
        self.parts, self.outputs, self.most = parts, tuple(fields), most

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        self.rows, self.collector, self.done = self.parts[context.task_index], collector, 0

    def next_tuple(self) -> None:
        if self.done < len(self.rows) and self.done != self.most:
            self.collector.emit(self.rows[self.done], self.done)
            self.done += 1

    def is_exhausted(self) -> bool:
        return self.done >= len(self.rows)

    def snapshot(self) -> int:
        return self.done

    def restore(self, position: int) -> None:
        self.done = position


class Pass(BasicBolt):
    """Emits the first three values of its inputs."""

    outputs = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(tup.values[:3])


class WindowSums(FoldingBolt):
    """The sum of a key's values, with the last moment of its window as time: it does not depend on
    the order of terms.
    """

    outputs: Any = FIELDS
    key_fields = ("key",)

    def initial(self) -> Any:
        return 0

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return accumulator + int(tup["value"])

    def merge(self, one: Any, other: Any) -> Any:
        return one + other

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((*window.key, window.value, window.last_ms))


class Silence(TimedBolt):
    """Says that a key has been silent for some time, by event time."""

    outputs = ("key", "at_ms")

    def __init__(self, field: str, for_ms: int) -> None:
        self.field, self.for_ms = field, for_ms

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        last = max(tup[self.field], self.state.get(tup["key"], 0))
        self.state.put(tup["key"], last)
        self.timers.set_event_timer(tup["key"], last + self.for_ms)

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        collector.emit((timer.name, timer.at_ms))


def with_shape(bolt: Any, shape: str, length: Duration, random: Random) -> Any:
    """Give a bolt a tumbling, sliding or session window of this length."""
    match shape:
        case "tumbling":
            return bolt.with_tumbling_window(length)
        case "sliding":
            return bolt.with_window(length, Duration.millis(random.choice((20, 50, 400))))
    return bolt.with_session_window(length)


class Split(BasicBolt):
    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in tup.values[0].split():
            collector.emit((word,))


class Count(StatefulBolt):
    outputs = ("word", "count")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup.values[0], self.state.add(tup.values[0], 1)))


class Timed(BasicBolt):
    """Says at what time it thinks it is."""

    outputs = ("value", "now_ms", "task")

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.context = context

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        value = "tick" if tup.is_tick else tup.values[0]
        collector.emit((value, self.context.now_ms(), self.context.task_id))


class TimedByHand(Bolt):
    """The same with acks of its own, and emissions without anchors."""

    outputs = ("value", "now_ms", "task")

    def prepare(self, conf: Conf, context: TopologyContext, collector: OutputCollector) -> None:
        self.context, self.collector = context, collector

    def execute(self, tup: Tuple) -> None:
        value = "tick" if tup.is_tick else tup.values[0]
        self.collector.emit((value, self.context.now_ms(), self.context.task_id))
        self.collector.ack(tup)


class Picky(BasicBolt):
    """Raises on one value, after it has emitted."""

    outputs = ("value",)

    def __init__(self, bad: object) -> None:
        self.bad = bad

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup.values[0],))
        if tup.values[0] == self.bad:
            raise ValueError("not this one")


class Sort(BasicBolt):
    """Two streams and a direct one."""

    outputs = {"even": ("n",), "odd": ("n",), "to": Stream(("n",), direct=True)}  # noqa: RUF012

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.tasks = context.component_tasks("direct")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        n = tup.values[0]
        collector.emit((n,), stream="odd" if n % 2 else "even")
        collector.emit_direct(self.tasks[n % len(self.tasks)], (n,), stream="to")


class Sum(StatefulBolt):
    """Adds up what it gets, by the stream it came on and its own number among its peers."""

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.index = context.task_index

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(f"{tup.stream} {self.index}", tup.values[0])


def one_bolt(
    bolt: Any, tasks: int = 1, fields: Sequence[str] = ("value",), is_global: bool = False
) -> Topology:
    """source -> bolt, by the first field or all to one task."""
    builder = building(source=Source(*fields))
    declarer = builder.set_bolt("bolt", bolt, tasks)
    _ = (
        declarer.global_grouping("source")
        if is_global
        else declarer.fields_grouping("source", fields[0])
    )
    return builder.build()


def word_count(splits: int = 2, counts: int = 3) -> Topology:
    """lines -> split -> count."""
    builder = building(lines=Source("line"))
    builder.set_bolt("split", Split(), splits).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", Count(), counts).fields_grouping("split", "word")
    return builder.build()


def many_streams() -> Topology:
    """Every grouping at once."""
    builder = building(numbers=Source("n"))
    builder.set_bolt("sort", Sort(), 2).shuffle_grouping("numbers")
    builder.set_bolt("all", Sum(), 3).all_grouping("sort", "even").all_grouping("sort", "odd")
    builder.set_bolt("global", Sum(), 2).global_grouping("sort", "even").global_grouping(
        "sort", "odd"
    )
    builder.set_bolt("direct", Sum(), 2).direct_grouping("sort", "to")
    builder.set_bolt("partial", Sum(), 2).partial_key_grouping("sort", "n", stream="odd")
    return builder.build()


LINES = [("a b c",), ("b c",), ("c",), ("",), ("über a",)]
WORDS = {"a": 2, "b": 2, "c": 3, "über": 1}


class Counted(BasicBolt):
    """Passes lines on; counts them, and their lengths."""

    outputs = ("line",)

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.lines = context.counter("lines")
        self.lengths = context.histogram("lengths")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.lines.inc()
        self.lengths.update(len(tup[0]))
        collector.emit((tup[0],))
