"""Topology that counts numbers and writes each into a table, by several tasks of each component:
imported by workers.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    ReplayableSpout,
    StatefulBolt,
    TopologyBuilder,
    TransactionalSink,
    Tuple,
)
from sparkstorm.common.model.topology import Topology

KEYS = 1009
"""Number of keys that are counted; a prime, so that no period of batches hides a number that is
lost and one that is doubled.
"""
# The end is looked for so often. Half asks the disk twice as often; double delays the end.
_LOOK_S = 0.2


class Numbers(ReplayableSpout):
    """The numbers from 0 on, each from one of its tasks in turn, until the one that stands in the
    file `gate`; so many a second from each task, with the time of its emission in ms.
    """

    outputs = ("number", "ms")

    def __init__(self, gate: str, per_s: float) -> None:
        self._gate = gate
        self._rest_s = 1 / per_s

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self._collector = collector
        self._next = context.task_index
        self._step = len(context.peers)
        self._end: int | None = None
        self._due_s = self._look_s = 0.0

    def next_tuple(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._look_s:
            self._look_s = now_s + _LOOK_S
            self._end = number_in(self._gate)
        if now_s < self._due_s or self.is_exhausted():
            return
        self._due_s = now_s + self._rest_s
        number = self._next
        self._next += self._step
        self._collector.emit((number, time.time_ns() // 1_000_000), message_id=number)

    def is_exhausted(self) -> bool:
        return self._end is not None and self._next >= self._end

    def snapshot(self) -> Any:
        return self._next

    def restore(self, position: Any) -> None:
        self._next = position


def number_in(gate: str) -> int | None:
    """Return the number in a gate's file; None before it is there."""
    try:
        return int(Path(gate).read_text())
    except (FileNotFoundError, ValueError):
        return None


class Pass(BasicBolt):
    """Emits the rest of each number."""

    outputs = ("rest",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["number"] % KEYS,))


class Count(StatefulBolt):
    """Counts numbers by their rest."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup["rest"], 1)


def numbered(gate: Path, per_s: float, tasks: int, sink: TransactionalSink) -> Topology:
    """Build numbers -> pass -> count of their rests, and numbers -> sink, so many tasks each."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(str(gate), per_s), tasks)
    builder.set_bolt("pass", Pass(), tasks).shuffle_grouping("numbers")
    builder.set_bolt("count", Count(), tasks).fields_grouping("pass", "rest")
    builder.set_bolt("sink", sink, tasks).shuffle_grouping("numbers")
    return builder.build()
