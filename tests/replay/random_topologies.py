"""Random topologies of the class for which "live equals replay" is promised, with random inputs for
their spouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    OutputCollector,
    StatefulBolt,
    Stream,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.api.builder import Declarer
from sparkstorm.api.columns import BatchCollector, ColumnBolt
from sparkstorm.api.components import Conf
from sparkstorm.api.windows import Duration, Window, WindowedBolt
from sparkstorm.common.grouping.hashing import stable_hash
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.tuples import Source as Sender
from tests.replay.bolts import FIELDS, Source, WindowSums, with_shape

Rows = dict[str, list[tuple[Any, ...]]]


class Shift(BasicBolt):
    """One out for one in."""

    outputs = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["key"], tup["value"] + 1, tup["ts"]))


class Repeat(BasicBolt):
    """None to three out for one in, with values that change on a hop: a tuple inside becomes a
    list.
    """

    outputs = (*FIELDS, "shape")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for n in range(tup["value"] % 4):
            collector.emit([tup["key"], tup["value"] + n, tup["ts"], (n, {"n": (n,)})])


class Route(BasicBolt):
    """Two streams and a direct one, the task named by the key."""

    outputs = {"default": FIELDS, "odd": FIELDS, "to": Stream(FIELDS, direct=True)}  # noqa: RUF012

    def __init__(self, direct_to: str | None = None) -> None:
        self.direct_to = direct_to

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.tasks = context.component_tasks(self.direct_to) if self.direct_to else []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        values = (tup["key"], tup["value"], tup["ts"])
        collector.emit(values, "odd" if tup["value"] % 2 else "default")
        if self.tasks:
            collector.emit_direct(
                self.tasks[stable_hash(tup["key"]) % len(self.tasks)], values, "to"
            )


class ByHand(Bolt):
    """Acks in pairs, emits anchored to both; an odd one out is acked alone when it comes with value
    0.
    """

    outputs = FIELDS

    def prepare(self, conf: Conf, context: TopologyContext, collector: OutputCollector) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((tup["key"], tup["value"], tup["ts"]), [tup])
        if tup["value"] % 3 == 0:
            self.collector.emit((tup["key"], -1, tup["ts"]))
        self.collector.ack(tup)


class Once(StatefulBolt):
    """Emits a key the first time it comes; counts and sums all of them."""

    outputs = FIELDS
    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["key"] not in self.state:
            collector.emit((tup["key"], 1, 0))
        count, total = self.state.get(tup["key"], [0, 0])
        self.state.put(tup["key"], [count + 1, total + tup["value"]])


class Running(StatefulBolt):
    """Emits how often a key has come so far."""

    outputs = FIELDS
    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["key"], self.state.add(tup["key"], 1), 0))


class Partial(StatefulBolt):
    """Sums per key and task: what is behind shuffle or partial key grouping is compared after its
    merge.
    """

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.index = context.task_index

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add((self.index, tup["key"]), tup["value"])


class Fussy(BasicBolt):
    """Bolt that raises on one value in seven, however often it is tried: such rows are put aside in
    both runs.
    """

    outputs = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["key"], tup["value"], tup["ts"]))
        if tup["value"] % 7 == 3:
            raise ValueError("three of seven")


class Negate(ColumnBolt):
    """Whole batches: the value's other side."""

    outputs = FIELDS

    def execute_batch(
        self, batch: pa.RecordBatch, source: Sender, collector: BatchCollector
    ) -> None:
        values = pc.negate(batch["value"].cast(pa.int64()))
        collector.emit_batch(
            pa.RecordBatch.from_arrays([batch["key"], values, batch["ts"]], FIELDS)
        )


class WindowMembers(WindowedBolt):
    """Content of a window of all keys, in its own order."""

    outputs = (*FIELDS, "members")
    order_insensitive = True

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        members = sorted(f"{t['ts']} {t['value']} {t['key']!r}" for t in window)
        collector.emit((str(len(window)), window.end, window.last_ms, members))


def timed(bolt: Any, random: Random, lag_ms: int) -> Any:
    """With a window of some shape over event time."""
    length = Duration.millis(random.choice((50, 100, 333)))
    with_shape(bolt, random.choice(("tumbling", "sliding", "session")), length, random)
    return (
        bolt.with_timestamp_field("ts")
        .with_lag(Duration.millis(lag_ms))
        .with_late_tuple_stream("late")
    )


class ByKey:
    """A custom grouping that depends on values alone; one key in four goes to two tasks, one to
    none.
    """

    def prepare(self, tasks: Sequence[int]) -> None:
        self.tasks = tasks

    def choose_tasks(self, task: int, values: tuple[Any, ...]) -> list[int]:
        number = stable_hash(values[0])
        chosen = self.tasks[number % len(self.tasks)]
        return {0: [], 1: [chosen, self.tasks[0]]}.get(number % 4, [chosen])


KEYS: tuple[Any, ...] = ("a", "b", "ä", "", 1, 2, -3, 2**40, None, b"\x00", 1.5)


def random_rows(random: Random, all_keys: Sequence[Any] = KEYS) -> list[tuple[Any, ...]]:
    """Up to forty rows over a few keys of any kind."""
    keys = random.sample(all_keys, random.randint(1, min(6, len(all_keys))))
    count = random.choice((0, 1, 5, 20, 40))
    return [
        (random.choice(keys), random.randint(-50, 50), 10 * n + random.randint(0, 80))
        for n in range(count)
    ]


def random_topology(random: Random, keys: Sequence[Any] = KEYS) -> tuple[Topology, Rows]:
    """A topology of the class, and rows for its spouts."""
    builder, streams, rows = TopologyBuilder(), [], {}
    for n in range(random.randint(1, 3)):
        builder.set_spout(f"s{n}", Source(*FIELDS), random.randint(1, 2))
        streams.append((f"s{n}", "default"))
        rows[f"s{n}"] = random_rows(random, keys)
    for n in range(random.randint(1, 6)):
        id = f"b{random.randint(0, 9)}-{n}"
        inputs = random.sample(streams, min(len(streams), random.choice((1, 1, 2, 3))))
        make = random.choice(
            (
                Shift,
                Repeat,
                Route,
                ByHand,
                Once,
                Running,
                Partial,
                Fussy,
                Negate,
                WindowSums,
                WindowMembers,
            )
        )
        bolt = _route(builder, random, id) if make is Route else make()
        if isinstance(bolt, WindowedBolt):  # behind bolts, what is late is chance: then nothing is
            timed(bolt, random, 15 if all(component in rows for component, _ in inputs) else 10_000)
        tasks = random.randint(1, 4)
        declarer = builder.set_bolt(id, bolt, random.randint(1, tasks), num_tasks=tasks)
        for component, stream in inputs:
            _subscribe(declarer, bolt, component, stream, random)
        streams += [(id, stream) for stream in _streams(bolt)]
    return builder.build(), rows


def _streams(bolt: Any) -> list[str]:
    if isinstance(bolt, Route):
        return ["default", "odd"]
    return ["default"] if bolt.outputs else []


def _route(builder: TopologyBuilder, random: Random, id: str) -> Route:
    """With a listener for its direct stream, now and then."""
    if random.random() < 0.5:
        return Route()
    listener = f"d-{id}"
    declarer = builder.set_bolt(listener, Once(), random.randint(1, 3))
    declarer.direct_grouping(id, stream="to")
    return Route(listener)


def _subscribe(declarer: Declarer, bolt: Any, component: str, stream: str, random: Random) -> None:
    kinds = ["fields", "global", "all"]
    if isinstance(bolt, Partial):
        kinds = ["shuffle", "partial_key", "local_or_shuffle", "none"]
    elif isinstance(bolt, WindowSums):
        kinds = ["fields"]
    elif isinstance(bolt, WindowMembers):
        kinds = ["global", "all"]
    elif not isinstance(bolt, StatefulBolt):
        kinds += [
            "shuffle",
            "shuffle",
            "local_or_shuffle",
            "local_or_shuffle",
            "none",
            "partial_key",
            "custom",
        ]
    match random.choice(kinds):
        case "fields":
            declarer.fields_grouping(component, "key", stream=stream)
        case "partial_key":
            declarer.partial_key_grouping(component, "key", stream=stream)
        case "custom":
            declarer.custom_grouping(component, ByKey(), stream)
        case kind:
            getattr(declarer, f"{kind}_grouping")(component, stream)
