"""Owns spouts as DataFrames: every task of a spout is a partition, in which it is run by hand over its history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sparkstorm.errors import ReplayFailedError
from sparkstorm.model.codec import Codec
from sparkstorm.replay.arrow_map import map_in_arrow
from sparkstorm.replay.failures import unwrapped
from sparkstorm.replay.job import Job
from sparkstorm.replay.result_types import TAGGED, definite_type, merged_type, seen_type, typed_array
from sparkstorm.replay.sources import Extent, Row, SpoutReader

_ROWS_PER_BATCH = 4096
_MEASURED = pa.schema([("index", pa.int64()), ("extent", pa.binary()), ("schemas", pa.list_(pa.binary()))])
Schemas = dict[str, pa.Schema]
"""Arrow types of each stream's fields."""


class SpoutFrames:
    """Measures and reads the spouts of a job; `clocks` are the places of times by stream and field."""

    def __init__(self, spark: SparkSession, job: Job) -> None:
        self._spark, self._job = spark, job

    def measure(self, spout: str, most: int | None, clocks: Mapping[str, Mapping[str, int]]) -> tuple[list[Extent], Schemas]:
        """How far each task's history goes, and which types its rows have."""
        job = self._job

        def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for index in _indices(batches):
                seen = _SeenTypes(job, spout)
                with _reader(job, spout, index) as reader:
                    extent = reader.measure(most, clocks, seen.add)
                schemas = [schema.serialize().to_pybytes() for schema in seen.schemas()]
                yield pa.RecordBatch.from_pylist([{"index": index, "extent": _packed(extent), "schemas": schemas}], _MEASURED)

        with unwrapped():
            found = sorted(map_in_arrow(self._tasks(spout), measure, from_arrow_schema(_MEASURED)).collect())
        whole = _SeenTypes(job, spout)
        for row in found:
            whole.merge([pa.ipc.read_schema(pa.py_buffer(bytes(data))) for data in row.schemas])
        return [_unpacked(bytes(row.extent)) for row in found], dict(zip(_streams(job, spout), whole.definite(), strict=True))

    def frame(self, spout: str, stream: str, extents: Sequence[Extent], schema: pa.Schema) -> DataFrame:
        """The rows of one stream up to these extents, a partition per task."""
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

        return map_in_arrow(self._tasks(spout), read, from_arrow_schema(schema))

    def _tasks(self, spout: str) -> DataFrame:
        count = len(self._job.plan.tasks(spout))
        return self._spark.range(0, count, 1, count)


class _SeenTypes:
    """The types of a spout's values; numbers are not turned into others, and no type is found for what has several."""

    def __init__(self, job: Job, spout: str) -> None:
        self._spout = spout
        streams = job.plan.topology.components[spout].streams
        self._fields = {name: stream.fields for name, stream in streams.items()}
        self._kinds = {name: [pa.null()] * len(fields) for name, fields in self._fields.items()}
        self._waiting: dict[str, list[tuple[Any, ...]]] = {name: [] for name in streams}

    def add(self, row: Row) -> None:
        """Look at a row, by and by."""
        waiting = self._waiting[row[0]]
        waiting.append(row[1])
        if len(waiting) >= _ROWS_PER_BATCH:
            self._look(row[0])

    def schemas(self) -> list[pa.Schema]:
        """The types of every row so far, by stream in their order."""
        for name in self._fields:
            self._look(name)
        return [pa.schema(list(zip(fields, self._kinds[name], strict=True))) for name, fields in self._fields.items()]

    def merge(self, schemas: Sequence[pa.Schema]) -> None:
        """What another task has seen."""
        for name, schema in zip(self._fields, schemas, strict=True):
            self._merge(name, [field.type for field in schema])

    def definite(self) -> list[pa.Schema]:
        """Those, with text where nothing was seen."""
        return [pa.schema([(f.name, definite_type(f.type)) for f in schema]) for schema in self.schemas()]

    def _look(self, name: str) -> None:
        rows, self._waiting[name] = self._waiting[name], []
        if rows:
            self._merge(name, [seen_type(values, has_records=True) for values in zip(*rows, strict=True)])

    def _merge(self, name: str, kinds: Sequence[pa.DataType]) -> None:
        known = self._kinds[name]
        for place, (kind, field) in enumerate(zip(kinds, self._fields[name], strict=True)):
            known[place] = merged_type(known[place], kind)
            if _is_mixed(known[place]):
                raise ReplayFailedError(
                    f"spout '{self._spout}', stream '{name}', field '{field}' holds values of several types: "
                    "as data it can only have one"
                )


def _is_mixed(kind: pa.DataType) -> bool:
    """Return whether a type, or a part of a STRUCT, stands for values of several types."""
    return kind == TAGGED or (pa.types.is_nested(kind) and any(_is_mixed(kind.field(n).type) for n in range(kind.num_fields)))


def _reader(job: Job, spout: str, index: int) -> SpoutReader:
    return SpoutReader(job.plan, job.open()[1](spout), spout, index)


def _streams(job: Job, spout: str) -> list[str]:
    return list(job.plan.topology.components[spout].streams)


def _indices(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _batch(spout: str, rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [[] for _ in schema]
    try:
        arrays = [typed_array(c, f.type, f.name) for c, f in zip(columns, schema, strict=True)]
    except ReplayFailedError as error:
        raise ReplayFailedError(f"spout '{spout}': its source gave other values than before: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _packed(extent: Extent) -> bytes:
    newest = [[stream, name, at_ms] for (stream, name), at_ms in extent.newest_ms.items()]
    return Codec().pack([extent.rows, extent.handed, newest, extent.has_ended])


def _unpacked(data: bytes) -> Extent:
    rows, handed, newest, has_ended = Codec().unpack(data)
    return Extent(rows, handed, {(stream, name): at_ms for stream, name, at_ms in newest}, has_ended)
