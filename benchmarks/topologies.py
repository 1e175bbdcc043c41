"""Owns the topologies that benchmarks run; imported by workers, so nothing here is heavy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    ReplayableSpout,
    Spout,
    SpoutOutputCollector,
    StatefulBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.connectors import FileLines, find_files
from sparkstorm.model.topology import Topology


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


class Paced(ReplayableSpout):
    """Emits the moment at which each tuple was due, at a fixed rate: lateness of the source counts as latency."""

    outputs = ("due_us",)

    def __init__(self, per_second: int, seconds: float) -> None:
        self._every_us = 1_000_000 // per_second
        self._count = int(per_second * seconds)

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Begin the schedule now."""
        self._collector = collector
        self._sent = 0
        self._start_us = time.time_ns() // 1000

    def next_tuple(self) -> None:
        """Emit whatever is due."""
        now_us = time.time_ns() // 1000
        while self._sent < self._count and (due := self._start_us + self._sent * self._every_us) <= now_us:
            self._collector.emit((due,), self._sent)
            self._sent += 1

    def is_exhausted(self) -> bool:
        """Whether the schedule is over."""
        return self._sent >= self._count

    def snapshot(self) -> Any:
        """How many were sent."""
        return self._sent

    def restore(self, position: Any) -> None:
        """Go on, late."""
        self._sent = position


class Relay(BasicBolt):
    """Passes values on."""

    outputs = ("due_us",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit what came."""
        collector.emit(tup.values)


class Latencies(StatefulBolt):
    """Counts latencies in steps of 50 microseconds; the first second is warm-up and is left out."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Nothing was seen yet."""
        self._first_us = 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one latency."""
        due_us = tup.values[0]
        self._first_us = self._first_us or due_us
        if due_us - self._first_us > 1_000_000:
            self.state.add((time.time_ns() // 1000 - due_us) // 50, 1)


class OtherWorker:
    """Custom grouping: the task with the other index. Tasks of two are placed on two workers in turn, so every hop crosses."""

    def prepare(self, tasks: Sequence[int]) -> None:
        """The subscriber's tasks."""
        self._tasks = tasks

    def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
        """Not the one beside the sender: neighbours in the numbering alternate between the workers."""
        return [t for t in self._tasks if (t - task) % 2][:1]


def paced_chain(per_second: int, seconds: float) -> Topology:
    """Spout -> relay -> relay -> latencies: three hops, each to the other worker."""
    builder = TopologyBuilder()
    builder.set_spout("paced", Paced(per_second, seconds), 1)
    builder.set_bolt("relay1", Relay(), 2).custom_grouping("paced", OtherWorker())
    builder.set_bolt("relay2", Relay(), 2).custom_grouping("relay1", OtherWorker())
    builder.set_bolt("sink", Latencies(), 2).custom_grouping("relay2", OtherWorker())
    return builder.build()


class OneTuple(Spout):
    """Emits one tuple as soon as it may, and no more."""

    outputs = ("n",)

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Keep the collector."""
        self._collector = collector
        self._sent = False

    def next_tuple(self) -> None:
        """Emit once."""
        if not self._sent:
            self._sent = True
            self._collector.emit((1,), 1)

    def is_exhausted(self) -> bool:
        """Whether it was emitted."""
        return self._sent
