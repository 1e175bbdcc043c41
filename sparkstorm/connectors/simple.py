"""Rate and Console: a source and a sink for the first minutes."""

from __future__ import annotations

from typing import Any

from sparkstorm.api.collector import BasicOutputCollector, SpoutOutputCollector
from sparkstorm.api.components import BasicBolt, Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.values.tagged import to_json


class Rate(ReplayableSpout):
    """Spout that emits the numbers 0, 1, 2 ... with their times, so many a second over all tasks;
    `rows` of them, or without an end.

    Row n has the time n / rows_per_second after the start of the first run.
    """

    def __init__(self, rows_per_second: float = 1.0, rows: int | None = None) -> None:
        self.outputs = {"n": "bigint", "time_ms": "bigint"}
        if not rows_per_second > 0:
            raise InvalidConfigError(
                f"Rate: rows_per_second is {rows_per_second!r}; it must be more than 0"
            )
        self._rate = rows_per_second
        self._rows = rows

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Begin at this task's first number."""
        self._collector = collector
        self._now_ms = context.now_ms
        self._next, self._step = context.task_index, len(context.peers)
        self._started_ms: int | None = None

    def next_tuple(self) -> None:
        """Emit the next number if it is due."""
        now_ms = self._now_ms()
        if self._started_ms is None:
            self._started_ms = now_ms
        due_ms = self._started_ms + int(self._next * 1000 / self._rate)
        if due_ms <= now_ms and not self.is_exhausted():
            self._collector.emit((self._next, due_ms), self._next)
            self._next += self._step

    def is_exhausted(self) -> bool:
        """Return whether the last number was emitted."""
        return self._rows is not None and self._next >= self._rows

    def extent(self) -> tuple[int, int]:
        """Numbers in all, and emitted."""
        return (self._rows or 0) // self._step, self._next // self._step

    def snapshot(self) -> Any:
        """Next number, and the start."""
        return [self._next, self._started_ms]

    def restore(self, position: Any) -> None:
        """Go on there."""
        self._next, self._started_ms = position


class Console(BasicBolt):
    """Bolt that prints each tuple as a line of its worker's log: component, then the fields as
    JSON. At least once.
    """

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Take the name to print."""
        self._name = context.component_id

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Print one line."""
        print(f"{self._name}: {to_json(tup.as_dict())}", flush=True)
