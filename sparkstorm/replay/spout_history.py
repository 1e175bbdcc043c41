"""History read by the topology's own spouts: the rows of each task up to an offset, and that
offset.

A replayable spout knows which position follows the rows it has emitted. Each of its tasks is driven
directly: once to measure its history (`measure`), then, as often as Spark needs the partition, to
return exactly those rows (`rows_until`). A source that returns other rows ends the replay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sparkstorm.api.columns import check_batch, rows_of
from sparkstorm.api.components import ReplayableSpout
from sparkstorm.common.errors import CodecError, ReplayFailedError
from sparkstorm.common.model.topology import DEFAULT_STREAM
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.spark_versions import spark_schema
from sparkstorm.common.windowing.watermarks import END, LAST_MS, NEVER
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, describe_error
from sparkstorm.data_plane.executor.watermark_routes import TimePlan
from sparkstorm.replay.arrow_map import map_in_arrow
from sparkstorm.replay.failures import unwrapped
from sparkstorm.replay.job import Job
from sparkstorm.replay.plan import Plan
from sparkstorm.replay.results.types import (
    TAGGED,
    definite_type,
    merged_type,
    seen_type,
    typed_array,
)
from sparkstorm.replay.savepoints import Begun
from sparkstorm.replay.tasks.out_edges import kept_outputs

# A source that gives nothing for so long has no more history: half a second in all.
_IDLE_CALLS = 50
_IDLE_PAUSE_S = 0.01
Row = tuple[str, tuple[Any, ...]]
"""Stream and values."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Extent of one spout task's history: number of rows, handed-over position, newest time by
    stream and field.
    """

    rows: int
    handed: Any
    newest_ms: Mapping[tuple[str, str], int]
    has_ended: bool


class HistoryCollector:
    """SpoutOutputCollector whose rows are kept; tuples are not tracked, since a replay has no
    acks.
    """

    def __init__(self, emitter: Emitter, codec: Codec) -> None:
        self.rows: list[Row] = []
        self._emitter = emitter
        self._normalise = codec.normalise
        self._width_by_stream = {
            name: route.width for name, route in emitter.routes.items() if not route.is_direct
        }

    def emit(self, values: Any, message_id: Any = None, stream: str = DEFAULT_STREAM) -> None:
        self.rows.append((stream, self.checked(values, stream)))

    def checked(self, values: Any, stream: str) -> tuple[Any, ...]:
        """Return a row as its receivers read it; the errors are those of a live emit."""
        # Every value is checked: rows become columns of Arrow, whose errors name neither stream nor
        # field. The live check names them, but for each row it took 1.8 us against 0.5 (50,000 rows
        # of three values), so it is called when something is wrong.
        try:
            row = tuple(map(self._normalise, values)) if type(values) in (tuple, list) else ()
        except CodecError:
            row = ()
        if not row or len(row) != self._width_by_stream.get(stream):
            row = self._emitter.check(values, stream, None)
        return row

    def emit_batch(self, batch: Any, message_id: Any = None, stream: str = DEFAULT_STREAM) -> None:
        check_batch(batch)
        for values in rows_of(batch):
            self.emit(values, message_id, stream)

    def emit_direct(
        self, task: int, values: Any, message_id: Any = None, stream: str = DEFAULT_STREAM
    ) -> None:
        raise ReplayFailedError(
            f"spout '{self._emitter.component}' names the tasks it emits to; as data, rows do not"
        )

    def keep_position(self, message_id: Any) -> None:
        """Positions are not kept here."""

    def report_error(self, error: BaseException | str) -> None:
        raise ReplayFailedError(
            f"spout '{self._emitter.component}' reported: {describe_error(error)}"
        )


class SpoutReader:
    """Reader of one task of a spout from its first row."""

    def __init__(self, plan: Plan, spout: ReplayableSpout, component: str, index: int) -> None:
        self.component = component
        self.index = index
        self._spout = spout
        task = plan.tasks(component)[index]
        self._codec = Codec()
        parts = plan.parts(self._codec, {})
        outputs, _ = kept_outputs(parts, task)
        self._kept = HistoryCollector(Emitter(component, outputs.routes, False), self._codec)
        context = parts.context(task, (task,), lambda: 0)
        self._call(lambda: spout.open(context.conf, context, self._kept))
        begun = Begun.of(plan.begin.get(task, ()))
        if begun.is_positioned:
            self._call(lambda: spout.restore(begun.position))

    def rows(self, most: int | None) -> Iterator[Row]:
        """Yield rows until there are this many (or a few more, since one call is not cut) or no
        more come.
        """
        count = idle = 0
        # One call is not cut: the position that the spout hands over lies between calls.
        while (
            (most is None or count < most) and idle < _IDLE_CALLS and not self._spout.is_exhausted()
        ):
            rows = self._next_rows()
            idle = 0 if rows else idle + 1
            if idle:
                time.sleep(_IDLE_PAUSE_S)
            count += len(rows)
            yield from rows

    def measure(
        self, most: int | None, clocks: Mapping[str, Mapping[str, int]], see: Callable[[Row], None]
    ) -> Extent:
        """Return the extent of the history; `clocks` are positions of times by stream and field,
        `see` is called with every row.
        """
        newest = {(stream, name): NEVER for stream, places in clocks.items() for name in places}
        count = 0
        for row in self.rows(most):
            count += 1
            see(row)
            stream, values = row
            for name, position in clocks[stream].items():
                at_ms = values[position]
                if type(at_ms) is int and newest[stream, name] < at_ms <= LAST_MS:
                    newest[stream, name] = at_ms
        return Extent(count, self.handed(), newest, self._spout.is_exhausted())

    def rows_until(self, extent: Extent) -> Iterator[Row]:
        """Yield the rows of a measured extent; ReplayFailedError if the source returns others."""
        count = 0
        for row in self.rows(extent.rows):
            count += 1
            yield row
        # To find out that nothing follows takes calls, too: some sources move on only then.
        for _ in range(_IDLE_CALLS):
            if count == extent.rows and self.handed() != extent.handed:
                count += len(self._next_rows())
        if count != extent.rows or self.handed() != extent.handed:
            raise ReplayFailedError(
                f"spout '{self.component}' (task {self.index + 1} of its own) gave {count} rows up to "
                f"{self.handed()!r:.100}, before it were {extent.rows} up to {extent.handed!r:.100}: its "
                "source must not change while it is read"
            )

    def handed(self) -> Any:
        """Return the position that the spout hands over now."""
        return self._codec.normalise(self._call(self._spout.hand_over))

    def _next_rows(self) -> list[Row]:
        """Return what one call of the spout emits."""
        self._call(self._spout.next_tuple)
        rows, self._kept.rows = self._kept.rows, []
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._spout.close)

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ReplayFailedError:
            raise
        except USER_ERRORS as error:
            raise ReplayFailedError(
                f"spout '{self.component}' (task {self.index + 1} of its own) failed over its history: {describe_error(error)}"
            ) from error


def clocks_of(plan: Plan, component: str) -> dict[str, dict[str, int]]:
    """Return by stream the time fields of subscribers by event time, with their positions."""
    times = TimePlan(plan.topology, plan.conf)
    positions_by_stream: dict[str, dict[str, int]] = {}
    for name, stream in plan.topology.components[component].streams.items():
        wanted = {
            times.settings[id].timestamp_field
            for id in times.listeners(component, name)
            if id in times.settings
        }
        positions_by_stream[name] = {f: stream.fields.index(f) for f in wanted if f is not None}
    return positions_by_stream


def clock_places(plan: Plan, component: str, extent: Extent) -> list[tuple[Any, int]]:
    """Yield the clocks that a live task of the spout would store, by stream and subscriber."""
    times = TimePlan(plan.topology, plan.conf)
    places = [
        (
            ("h", name, id),
            extent.newest_ms.get((name, times.settings[id].timestamp_field or ""), NEVER),
        )
        for name in plan.topology.components[component].streams
        for id in times.listeners(component, name)
        if id in times.settings
    ]
    return [(clock_place, at_ms) for clock_place, at_ms in places if at_ms != NEVER]


def continued(plan: Plan, component: str, extents: Sequence[Extent]) -> list[Extent]:
    """Return the extents of a spout's tasks with the newest times of the checkpoint that the replay
    begins with.
    """
    settings = TimePlan(plan.topology, plan.conf).settings
    newer = []
    for task, extent in zip(plan.tasks(component), extents, strict=True):
        newest = dict(extent.newest_ms)
        for (stream, id), at_ms in Begun.of(plan.begin.get(task, ())).clocks.items():
            key = stream, (settings[id].timestamp_field or "") if id in settings else ""
            newest[key] = max(at_ms, newest.get(key, NEVER))
        newer.append(replace(extent, newest_ms=newest))
    return newer


def newest_by_channel(
    plan: Plan, extents: Mapping[str, Sequence[Extent]]
) -> dict[tuple[int, str, str], int]:
    """Return the newest event time of each spout task's rows; END for a task that had none and has
    ended.
    """
    return {
        (task, stream, name): END if at_ms == NEVER and extent.has_ended else at_ms
        for spout, tasks in extents.items()
        for task, extent in zip(plan.tasks(spout), tasks, strict=True)
        for (stream, name), at_ms in extent.newest_ms.items()
    }


# Rows of a batch of Arrow, and of a look at types. No measurement chose it.
_ROWS_PER_BATCH = 4096
_MEASURED = pa.schema(
    [("index", pa.int64()), ("extent", pa.binary()), ("schemas", pa.list_(pa.binary()))]
)
Schemas = dict[str, pa.Schema]
"""Arrow types of each stream's fields."""


class SpoutFrames:
    """Reader of the spouts of a job on Spark, measured first; `clocks` are positions of times by
    stream and field.
    """

    def __init__(self, spark: SparkSession, job: Job) -> None:
        self._spark = spark
        self._job = job

    def measure(
        self, spout: str, most: int | None, clocks: Mapping[str, Mapping[str, int]]
    ) -> tuple[list[Extent], Schemas]:
        """Return the extent of each task's history and the types of its rows."""
        job = self._job

        def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for index in _indices(batches):
                seen = _SeenTypes(job, spout)
                with _reader(job, spout, index) as reader:
                    extent = reader.measure(most, clocks, seen.add)
                schemas = [schema.serialize().to_pybytes() for schema in seen.schemas()]
                yield pa.RecordBatch.from_pylist(
                    [{"index": index, "extent": _packed(extent), "schemas": schemas}], _MEASURED
                )

        with unwrapped():
            rows = sorted(
                map_in_arrow(self._tasks(spout), measure, spark_schema(_MEASURED)).collect()
            )
        seen_types = _SeenTypes(job, spout)
        for row in rows:
            seen_types.merge(
                [pa.ipc.read_schema(pa.py_buffer(bytes(data))) for data in row.schemas]
            )
        return [_unpacked(bytes(row.extent)) for row in rows], dict(
            zip(_streams(job, spout), seen_types.definite(), strict=True)
        )

    def frame(
        self, spout: str, stream: str, extents: Sequence[Extent], schema: pa.Schema
    ) -> DataFrame:
        """Return a frame of one stream's rows up to these extents, one partition per task."""
        job = self._job

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for index in _indices(batches):
                waiting: list[tuple[Any, ...]] = []
                with _reader(job, spout, index) as reader:
                    for name, values in reader.rows_until(extents[index]):
                        if name == stream:
                            waiting.append(values)
                        if len(waiting) >= _ROWS_PER_BATCH:
                            yield _batch(spout, waiting, schema)
                            waiting = []
                yield _batch(spout, waiting, schema)

        return map_in_arrow(self._tasks(spout), read, spark_schema(schema))

    def _tasks(self, spout: str) -> DataFrame:
        count = len(self._job.plan.tasks(spout))
        return self._spark.range(0, count, 1, count)


class _SeenTypes:
    """Types of a spout's values, inferred without conversion; a field with values of several types
    is an error.
    """

    def __init__(self, job: Job, spout: str) -> None:
        self._spout = spout
        streams = job.plan.topology.components[spout].streams
        self._fields = {name: stream.fields for name, stream in streams.items()}
        self._kinds = {name: [pa.null()] * len(fields) for name, fields in self._fields.items()}
        self._waiting: dict[str, list[tuple[Any, ...]]] = {name: [] for name in streams}

    def add(self, row: Row) -> None:
        """Add a row; types are inferred from groups of rows."""
        waiting = self._waiting[row[0]]
        waiting.append(row[1])
        if len(waiting) >= _ROWS_PER_BATCH:
            self._look(row[0])

    def schemas(self) -> list[pa.Schema]:
        """Return the types of all rows so far, by stream, in the order of fields."""
        for name in self._fields:
            self._look(name)
        return [
            pa.schema(list(zip(fields, self._kinds[name], strict=True)))
            for name, fields in self._fields.items()
        ]

    def merge(self, schemas: Sequence[pa.Schema]) -> None:
        """Add the types that another task has seen."""
        for name, schema in zip(self._fields, schemas, strict=True):
            self._merge(name, [field.type for field in schema])

    def definite(self) -> list[pa.Schema]:
        """Return the types, with text for fields without values."""
        return [
            pa.schema([(f.name, definite_type(f.type)) for f in schema])
            for schema in self.schemas()
        ]

    def _look(self, name: str) -> None:
        rows, self._waiting[name] = self._waiting[name], []
        if rows:
            self._merge(
                name, [seen_type(values, has_records=True) for values in zip(*rows, strict=True)]
            )

    def _merge(self, name: str, kinds: Sequence[pa.DataType]) -> None:
        merged_kinds = self._kinds[name]
        for index, (kind, column) in enumerate(zip(kinds, self._fields[name], strict=True)):
            # Types, not values, come to the driver: the history itself never does.
            merged_kinds[index] = merged_type(merged_kinds[index], kind)
            if _is_mixed(merged_kinds[index]):
                raise ReplayFailedError(
                    f"spout '{self._spout}', stream '{name}', field '{column}' holds values of several types: "
                    "as data it can only have one"
                )


def _is_mixed(kind: pa.DataType) -> bool:
    """Return whether a type, or a part of a STRUCT, holds values of several types."""
    return kind == TAGGED or (
        pa.types.is_nested(kind)
        and any(_is_mixed(kind.field(n).type) for n in range(kind.num_fields))
    )


def _reader(job: Job, spout: str, index: int) -> SpoutReader:
    return SpoutReader(job.plan, job.open()[1](spout), spout, index)


def _streams(job: Job, spout: str) -> list[str]:
    return list(job.plan.topology.components[spout].streams)


def _indices(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _batch(spout: str, rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns: Sequence[Sequence[Any]] = (
        list(zip(*rows, strict=True)) if rows else [[] for _ in schema]
    )
    try:
        arrays = [typed_array(c, f.type, f.name) for c, f in zip(columns, schema, strict=True)]
    except ReplayFailedError as error:
        raise ReplayFailedError(
            f"spout '{spout}': its source gave other values than before: {error}"
        ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _packed(extent: Extent) -> bytes:
    newest = [[stream, name, at_ms] for (stream, name), at_ms in extent.newest_ms.items()]
    return Codec().pack([extent.rows, extent.handed, newest, extent.has_ended])


def _unpacked(data: bytes) -> Extent:
    rows, handed, newest, has_ended = Codec().unpack(data)
    return Extent(
        rows, handed, {(stream, name): at_ms for stream, name, at_ms in newest}, has_ended
    )
