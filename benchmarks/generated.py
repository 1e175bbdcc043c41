"""Topologies over generated tuples, for the cost curves: any size, any number of hops; imported by
workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.topologies import Count, Relay, Split
from sparkstorm.api import (
    BasicOutputCollector,
    ReplayableSpout,
    SpoutOutputCollector,
    StatefulBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.model.topology import Topology


class Payloads(ReplayableSpout):
    """Emits tuples of a text of one size, each the root of a tree."""

    outputs = ("payload",)

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Take this task's share."""
        self._emit = collector.emit
        self._payload = "x" * self._size
        self._left = len(range(context.task_index, self._count, len(context.peers)))

    def next_tuple(self) -> None:
        """Emit one."""
        if self._left:
            self._left -= 1
            self._emit((self._payload,), self._left)

    def is_exhausted(self) -> bool:
        """Return whether all were emitted."""
        return not self._left

    def snapshot(self) -> Any:
        """Return how many are left."""
        return self._left

    def restore(self, position: Any) -> None:
        """Go on."""
        self._left = position


class Sink(StatefulBolt):
    """Counts tuples, by task."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """The task's id is its key."""
        self._key = context.task_id

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one."""
        self.state.add(self._key, 1)


def chain(count: int, hops: int, size: int, tasks: int = 2) -> Topology:
    """Payloads over so many hops, two tasks each, shuffled: every other tuple crosses to the other
    worker. With one task each a hop crosses wholly or not at all.
    """
    builder = TopologyBuilder()
    builder.set_spout("payloads", Payloads(count, size), tasks)
    before = "payloads"
    for hop in range(1, hops):
        builder.set_bolt(f"relay{hop}", Relay(), tasks).shuffle_grouping(before)
        before = f"relay{hop}"
    builder.set_bolt("sink", Sink(), tasks).shuffle_grouping(before)
    return builder.build()


class Sentences(ReplayableSpout):
    """Emits so many lines of ten words out of 1,000, without a file; message ids count up."""

    outputs = ("line",)

    def __init__(self, lines: int) -> None:
        self._lines = lines

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Take this task's share."""
        self._emit = collector.emit
        self._texts = [
            " ".join(f"w{(line * 10 + word) * 7 % 1000}" for word in range(10))
            for line in range(100)
        ]
        self._left = len(range(context.task_index, self._lines, len(context.peers)))

    def next_tuple(self) -> None:
        """Emit one line."""
        if self._left:
            self._left -= 1
            self._emit((self._texts[self._left % 100],), self._left)

    def is_exhausted(self) -> bool:
        """Return whether all were emitted."""
        return not self._left

    def snapshot(self) -> Any:
        """Return how many are left."""
        return self._left

    def restore(self, position: Any) -> None:
        """Go on."""
        self._left = position


def endless_words(lines: int) -> Topology:
    """Generated lines -> split -> count, two tasks each."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Sentences(lines), 2)
    builder.set_bolt("split", Split(), 2).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    return builder.build()
