"""One benchmark of the field: its topology, the rows that its spout emits, and the exact answer in
plain Python.

Every topology ends in a bolt `result`, whose state is the answer. The generator is a function of a
seed, so every system, and the oracle, gets the same events of a number: `Feed` emits them live, `rows` hands
them to a replay, files carry them to other systems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkstorm.api import (
    BasicOutputCollector,
    BatchCollector,
    ColumnBolt,
    ReplayableSpout,
    SpoutOutputCollector,
    Stateful,
    StatefulBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.tuples import Source

TASKS = 2
RESULT = "result"
# Rows of one call of next_tuple: half of it costs a microsecond more per 30 rows, double of it
# overshoots small pending limits
_BURST = 32
# odd and different: two fields that are swapped show
_WEIGHTS = (1, 3, 7, 11, 13, 17, 19, 23, 29, 31)
_MILLE = 1000  # decimals have three digits after the point
Row = tuple[Any, ...]
Answer = dict[Any, Any]


class Pool:
    """Ready texts, as Python objects and as an Arrow array."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.objects = np.array(texts, dtype=object)
        self.array = pa.array(texts, pa.string())


@dataclass(frozen=True, slots=True)
class Text:
    """A column of texts as places in a pool: as cheap as a column of numbers."""

    pool: Pool
    places: np.ndarray[Any, Any]


Column: TypeAlias = "np.ndarray[Any, Any] | Text | pa.Array"


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one stream within a chunk: their places among all events, and columns in the order of
    the stream's fields.
    """

    at: np.ndarray[Any, Any]
    columns: Sequence[Column]

    def rows(self) -> list[Row]:
        """Return the rows as plain values."""
        plain = [
            column.pool.objects[column.places].tolist()
            if isinstance(column, Text)
            else column.tolist()
            for column in self.columns
        ]
        return list(zip(*plain, strict=True))

    def batch(self, fields: Sequence[str]) -> pa.RecordBatch:
        """Return the rows as an Arrow batch."""
        arrays = [
            column.pool.array.take(pa.array(column.places))
            if isinstance(column, Text)
            else pa.array(column)
            for column in self.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, list(fields))


class Generator(Protocol):
    """Events by number, cut into chunks; the same anyone who asks, and in whatever order."""

    @property
    def streams(self) -> Mapping[str, Sequence[str]]:
        """Fields by stream."""

    @property
    def events(self) -> int:
        """Number of events of all streams."""

    @property
    def chunk(self) -> int:
        """Events of a chunk."""

    def part(self, number: int, wanted: Sequence[str] = ...) -> Mapping[str, Part]:
        """Return a chunk's rows by stream, of the wanted streams at the least; without `wanted`, of
        all.
        """


def chunks_of(generator: Generator) -> range:
    """Return the numbers of the chunks."""
    return range(-(-generator.events // generator.chunk))


def rows_of(generator: Generator) -> dict[str, list[Row]]:
    """Return all rows by stream, in the order of the events."""
    rows_by_stream: dict[str, list[Row]] = {stream: [] for stream in generator.streams}
    for number in chunks_of(generator):
        for stream, part in generator.part(number).items():
            rows_by_stream[stream] += part.rows()
    return rows_by_stream


class Feed(ReplayableSpout):
    """Emits the wanted streams of a generator. Each task has every other chunk; the position is the
    chunk and a place in it.
    """

    def __init__(self, generator: Generator, wanted: Sequence[str]) -> None:
        self._generator = generator
        self._wanted = tuple(wanted)
        self.outputs = {stream: tuple(generator.streams[stream]) for stream in wanted}

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Begin with this task's first chunk."""
        self._collector = collector
        self._numbers = list(chunks_of(self._generator)[context.task_index :: len(context.peers)])
        self._by_column = context.column_streams
        self._ready: list[tuple[str, Any, int]] = []
        self._chunk = self._place = 0

    def next_tuple(self) -> None:
        """Emit some rows, or a batch."""
        if self._place >= len(self._ready) and not self._advance():
            return
        emit = self._collector.emit
        emit_batch = self._collector.emit_batch
        place = self._place
        for stream, values, message_id in self._ready[place : place + _BURST]:
            if type(values) is tuple:
                emit(values, message_id, stream)
            else:
                emit_batch(values, message_id, stream)
            self._place += 1

    def is_exhausted(self) -> bool:
        """Return whether all was emitted."""
        return self._place >= len(self._ready) and self._chunk >= len(self._numbers)

    def snapshot(self) -> Any:
        """Return the chunk and the place in it."""
        return [self._chunk - bool(self._ready), self._place]

    def restore(self, position: Any) -> None:
        """Go on there."""
        self._chunk, place = position
        self._ready = []
        self._place = 0
        if place and self._advance():
            self._place = place

    def _advance(self) -> bool:
        """Make the next chunk that has rows; False when there is none."""
        self._ready = []
        self._place = 0
        while not self._ready and self._chunk < len(self._numbers):
            number = self._numbers[self._chunk]
            self._chunk += 1
            self._ready = self._emissions(number)
        return bool(self._ready)

    def _emissions(self, number: int) -> list[tuple[str, Any, int]]:
        """Return what a chunk emits, in the order of its events; a batch stands at its first
        row.
        """
        parts = self._generator.part(number, self._wanted)
        first = number * self._generator.chunk
        emissions: list[tuple[str, Any, int]] = []
        for stream in self._wanted:
            part = parts[stream]
            if stream not in self._by_column:
                emissions += zip(
                    [stream] * len(part.at), part.rows(), (part.at + first).tolist(), strict=True
                )
            elif len(part.at):
                emissions.append(
                    (stream, part.batch(self._generator.streams[stream]), int(part.at[0]) + first)
                )
        if len(self._wanted) > 1:
            emissions.sort(key=_place_of)
        return emissions


def _place_of(emission: tuple[str, Any, int]) -> int:
    return emission[2]


class Rows(StatefulBolt):
    """Answer of a query with few rows: each row with its number of times."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one row."""
        self.state.add(tuple(tup.values))


def mixed(values: Sequence[Any]) -> int:
    """Return a weighted sum of a row's fields, so that a sum over rows shows each field of each
    row; texts by their length.
    """
    total: Any = 0
    for weight, value in zip(_WEIGHTS, values, strict=False):
        total += weight * (len(value) if type(value) is str else value)
    return total if type(total) is int else int(total * _MILLE)


class Sums(StatefulBolt):
    """Answer of a query with a row per event: by task, the number of rows and the sum of what
    `mixed` gives.

    Rows cannot be kept: a state of millions of rows would be what is measured.
    """

    order_insensitive = True

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """The task's number is a part of each key: tasks then share none."""
        self._count = ("rows", context.task_id)
        self._sum = ("sum", context.task_id)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Add one row."""
        self.state.add(self._count)
        self.state.add(self._sum, mixed(tup.values))


class SumColumns(Stateful, ColumnBolt):
    """The same of batches."""

    order_insensitive = True

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Prepare as the bolt by rows does."""
        self._count = ("rows", context.task_id)
        self._sum = ("sum", context.task_id)

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Add the rows of a batch."""
        numbers = (
            pc.utf8_length(column) if pa.types.is_string(column.type) else column
            for column in batch.columns
        )
        self.state.add(self._count, batch.num_rows)
        self.state.add(self._sum, mixed([pc.sum(column).as_py() for column in numbers]))


def sums_of(rows: Sequence[Row]) -> Answer:
    """Return what Sums has of these rows over all tasks."""
    return {"rows": len(rows), "sum": sum(map(mixed, rows))}


def counted(rows: Iterable[Row]) -> Answer:
    """Return what Rows has of these rows."""
    return dict(Counter(rows))


def over_tasks(state: Mapping[Any, Any]) -> Answer:
    """Return the state of Sums over all tasks."""
    answer: Answer = {}
    for (name, _), amount in state.items():
        answer[name] = answer.get(name, 0) + amount
    return answer


def plain(state: Mapping[Any, Any]) -> Answer:
    """Return a state as it is."""
    return dict(state)


Wire = Callable[[TopologyBuilder, int], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A benchmark: which streams it reads, its bolts by rows and by columns, the state's form, and
    the oracle.

    `wire` adds the bolts behind the spout `events` and in front of (and with) `result`. `time` is
    the field of event time, for a replay. `answer` gets all rows by stream.
    """

    name: str
    text: str
    streams: Sequence[str]
    rows: Wire
    columns: Wire
    answer: Callable[[Mapping[str, Sequence[Row]]], Answer]
    read: Callable[[Mapping[Any, Any]], Answer] = plain
    time: str | None = None

    def topology(self, generator: Generator, by: str, tasks: int = TASKS) -> Topology:
        """Return the topology over generated events, by "rows" or by "columns"."""
        builder = TopologyBuilder()
        builder.set_spout("events", Feed(generator, self.streams), tasks)
        (self.rows if by == "rows" else self.columns)(builder, tasks)
        return builder.build()

    def inputs(self, rows: Mapping[str, Sequence[Row]]) -> dict[str, Sequence[Row]]:
        """Return the rows under the names that a replay gives them."""
        return {f"events:{stream}": rows[stream] for stream in self.streams}


def difference(answer: Answer, expected: Answer) -> str:
    """Return "" for equal answers, else how many keys differ and the first of them."""
    wrong = [key for key in {**expected, **answer} if answer.get(key) != expected.get(key)]
    if not wrong:
        return ""
    first = min(wrong, key=repr)
    return f"{len(wrong)} of {len(expected)} keys differ; {first!r} is {answer.get(first)!r}, not {expected.get(first)!r}"
