"""Topologies that benchmarks run; imported by workers, so nothing here is heavy."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    BatchCollector,
    ColumnBolt,
    ReplayableSpout,
    Spout,
    SpoutOutputCollector,
    StatefulBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.tuples import Source
from sparkstorm.connectors import FileLines, find_files


class Split(BasicBolt):
    """One line in, its words out."""

    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit every word."""
        emit = collector.emit
        for word in tup.values[0].split():
            emit((word,))


class Count(StatefulBolt):
    """Running count per word, written in the epoch's commit."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one word."""
        self.state.add(tup.values[0], 1)


def word_count(paths: Sequence[str], tasks: int = 2) -> Topology:
    """Lines of files -> split -> count, so many tasks each."""
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(find_files(paths)), tasks)
    builder.set_bolt("split", Split(), tasks).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", Count(), tasks).fields_grouping("split", "word")
    return builder.build()


class SplitColumns(ColumnBolt):
    """A batch of lines in, a batch of their words out."""

    outputs = ("word",)

    def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
        """Emit every word."""
        import pyarrow as pa
        import pyarrow.compute as pc

        words = pc.list_flatten(pc.utf8_split_whitespace(batch.column(0)))
        collector.emit_batch(pa.RecordBatch.from_arrays([words.drop_null()], ["word"]))


class CountColumns(ColumnBolt, StatefulBolt):
    """Running count per word."""

    def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
        """Count the words of a batch."""
        counts = batch.column(0).value_counts()
        self.state.add_batch(counts.field(0), counts.field(1))


def column_count(paths: Sequence[str], tasks: int = 2) -> Topology:
    """The word count with bolts of columns."""
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(find_files(paths)), tasks)
    builder.set_bolt("split", SplitColumns(), tasks).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", CountColumns(), tasks).fields_grouping("split", "word")
    return builder.build()


class Large(ReplayableSpout):
    """Emits texts of a size, its share of so many."""

    outputs = ("text",)

    def __init__(self, count: int, size: int) -> None:
        self._all = count
        self._size = size

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Make the texts once."""
        self._collector = collector
        self._count = len(range(context.task_index, self._all, len(context.peers)))
        self._sent = 0
        # none compresses
        self._texts = [
            b64encode(Random(n).randbytes(self._size))[: self._size].decode() for n in range(16)
        ]

    def next_tuple(self) -> None:
        """Emit one."""
        if self._sent < self._count:
            self._collector.emit((self._texts[self._sent % 16],), self._sent)
            self._sent += 1

    def is_exhausted(self) -> bool:
        """Return whether all were emitted."""
        return self._sent >= self._count

    def snapshot(self) -> Any:
        """Return how many were sent."""
        return self._sent

    def restore(self, position: Any) -> None:
        """Go on."""
        self._sent = position


class Sizes(StatefulBolt):
    """Counts tuples by their size."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one."""
        self.state.add((len(tup.values[0]), self.task), 1)

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Keep the task's number."""
        self.task = context.task_id


def large_tuples(count: int, size: int) -> Topology:
    """Spout -> relay -> sizes, two tasks each, by shuffle: half of the tuples cross at each hop."""
    builder = TopologyBuilder()
    builder.set_spout("large", Large(count, size), 2)
    builder.set_bolt("relay", Relay(), 2).shuffle_grouping("large")
    builder.set_bolt("sink", Sizes(), 2).shuffle_grouping("relay")
    return builder.build()


class Slow(BasicBolt):
    """Waits 1 ms, or computes for some 30 us, with each tuple."""

    outputs = ("text",)

    def __init__(self, waits: bool) -> None:
        self._waits = waits

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Wait or compute, and pass it on."""
        if self._waits:
            time.sleep(0.001)
        else:
            sum(range(2000))
        collector.emit(tup.values)


def slow_tuples(count: int, waits: bool, threads: bool) -> Topology:
    """Spout -> four tasks of a slow bolt, on their own threads or not -> sizes."""
    builder = TopologyBuilder()
    builder.set_spout("large", Large(count, 10), 2)
    builder.set_bolt(
        "slow", Slow(waits), 4, conf={"topology.executor.threads": threads}
    ).shuffle_grouping("large")
    builder.set_bolt("sink", Sizes(), 2).shuffle_grouping("slow")
    return builder.build()


class Paced(ReplayableSpout):
    """Emits the moment at which each tuple was due, at a fixed rate: lateness of the source counts
    as latency.
    """

    outputs: tuple[str, ...] = ("due_us",)

    def __init__(self, per_second: int, seconds: float) -> None:
        self._every_us = 1_000_000 // per_second
        self._count = int(per_second * seconds)

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Begin the schedule now."""
        self._collector = collector
        self._sent = 0
        self._start_us = time.time_ns() // 1000

    def next_tuple(self) -> None:
        """Emit whatever is due."""
        now_us = time.time_ns() // 1000
        while (
            self._sent < self._count
            and (due := self._start_us + self._sent * self._every_us) <= now_us
        ):
            self._collector.emit((due,), self._sent)
            self._sent += 1

    def is_exhausted(self) -> bool:
        """Return whether the schedule is over."""
        return self._sent >= self._count

    def snapshot(self) -> Any:
        """Return how many were sent."""
        return self._sent

    def restore(self, position: Any) -> None:
        """Go on where the schedule was: the next tuple is due now."""
        self._sent = position
        self._start_us = time.time_ns() // 1000 - position * self._every_us


class Relay(BasicBolt):
    """Passes values on."""

    outputs: tuple[str, ...] = ("due_us",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit what came."""
        collector.emit(tup.values)


class PacedKeys(Paced):
    """Emits two keys, drawn independently by Zipf's law, and a text with each moment."""

    outputs = ("due_us", "one", "two", "text")
    most_at_once = 64  # a source that is late leaves the others their turns

    def __init__(self, per_second: int, size: int, keys: int = 1000) -> None:
        super().__init__(per_second, 1e6)
        self._size = size
        self._keys = keys

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Draw the keys and texts once."""
        super().open(conf, context, collector)
        drawn = Random(self._size)
        weights = [1 / rank for rank in range(1, self._keys + 1)]
        pairs = zip(*(drawn.choices(range(self._keys), weights, k=8191) for _ in "12"), strict=True)
        # none compresses
        texts = [b64encode(drawn.randbytes(self._size))[: self._size].decode() for _ in range(16)]
        self._rows = [(*pair, texts[number % 16]) for number, pair in enumerate(pairs)]

    def next_tuple(self) -> None:
        """Emit what is due, up to a limit."""
        now_us = time.time_ns() // 1000
        for _ in range(self.most_at_once):
            due = self._start_us + self._sent * self._every_us
            if due > now_us:
                return
            row = self._rows[self._sent % len(self._rows)]
            self._collector.emit((due, *row), self._sent)
            self._sent += 1


class RelayKeys(Relay):
    """Passes rows with keys on."""

    outputs = PacedKeys.outputs


class Latencies(StatefulBolt):
    """Counts latencies in steps of 50 microseconds; the first second is warm-up and is left out."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Start the state without a tuple."""
        self._first_us = 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one latency."""
        due_us = tup.values[0]
        self._first_us = self._first_us or due_us
        if due_us - self._first_us > 1_000_000:
            self.state.add((time.time_ns() // 1000 - due_us) // 50, 1)


class OtherWorker:
    """Custom grouping: the task with the other index. Tasks of two are placed on two workers in
    turn, so every hop crosses.
    """

    def prepare(self, tasks: Sequence[int]) -> None:
        """The subscriber's tasks."""
        self._tasks = tasks

    def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
        """Choose a task that is not next to the sender: neighbours in the numbering alternate
        between the workers.
        """
        return [t for t in self._tasks if (t - task) % 2][:1]


def paced_chain(per_second: int, seconds: float) -> Topology:
    """Spout -> relay -> relay -> latencies: three hops, each to the other worker."""
    builder = TopologyBuilder()
    builder.set_spout("paced", Paced(per_second, seconds), 1)
    builder.set_bolt("relay1", Relay(), 2).custom_grouping("paced", OtherWorker())
    builder.set_bolt("relay2", Relay(), 2).custom_grouping("relay1", OtherWorker())
    builder.set_bolt("sink", Latencies(), 2).custom_grouping("relay2", OtherWorker())
    return builder.build()


def keyed_chains(chains: Sequence[tuple[int, int]]) -> Topology:
    """For each rate and size of a text: spout -> relay by one key -> relay by the other ->
    latencies by the first; two tasks of each bolt.
    """
    builder = TopologyBuilder()
    for number, (per_second, size) in enumerate(chains, 1):
        spout, one, two = (f"{name}{number}" for name in ("paced", "one", "two"))
        builder.set_spout(spout, PacedKeys(per_second, size), 1)
        builder.set_bolt(one, RelayKeys(), 2).fields_grouping(spout, "one")
        builder.set_bolt(two, RelayKeys(), 2).fields_grouping(one, "two")
        builder.set_bolt(f"sink{number}", Latencies(), 2).fields_grouping(two, "one")
    return builder.build()


class OneTuple(Spout):
    """Emits one tuple as soon as it may, and no more."""

    outputs = ("n",)

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Keep the collector."""
        self._collector = collector
        self._sent = False

    def next_tuple(self) -> None:
        """Emit once."""
        if not self._sent:
            self._sent = True
            self._collector.emit((1,), 1)

    def is_exhausted(self) -> bool:
        """Return whether it was emitted."""
        return self._sent
