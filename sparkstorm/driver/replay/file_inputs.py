"""Input of a replay from files: read by the topology's own source of files, in parts that Spark
places.

Left out: Spark's own readers of text, JSON, CSV and Parquet where the topology reads files. Rows
would end elsewhere, have other types, and be nulls or errors where the source sends a record to its
stream `bad`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import AccumulatorParam, TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession

from sparkstorm.api.columns import check_batch
from sparkstorm.api.value_columns import plain_values
from sparkstorm.common.errors import InvalidConfigError, ReplayFailedError
from sparkstorm.common.model.topology import DEFAULT_STREAM
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.connectors.file_folders import WHOLE, FileSplit
from sparkstorm.connectors.file_records import column_types
from sparkstorm.connectors.file_source import Files
from sparkstorm.connectors.files import FileLines
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, describe_error
from sparkstorm.replay.arrow_map import ReadByParts
from sparkstorm.replay.job import Job
from sparkstorm.replay.results.value_cells import value_cells, values_schema
from sparkstorm.replay.spout_history import HistoryCollector
from sparkstorm.replay.tasks.out_edges import kept_outputs

_PLACE = (1 << 40) - 1  # of a message id
_BAD = "bad"
_BAD_TYPES = {"path": "string", "place": "bigint", "text": "string", "reason": "string"}
# As Spark divides files: 128 MB at the most, and some megabytes' worth of reading for each file.
_MOST_BYTES = 128 << 20
_LEAST_BYTES = 4 << 20
_ROWS_PER_BATCH = 4096
_WHOLE = "tinyint", "smallint", "int", "bigint"
FileSource = Files | FileLines
Found = dict[tuple[int, int], tuple[int, str]]
"""Number of records left out, and one problem, by stage and partition: a task that runs again
replaces its record.
"""


class _FoundParam(AccumulatorParam[Found]):
    def zero(self, value: Found) -> Found:
        return {}

    def addInPlace(self, value1: Found, value2: Found) -> Found:
        return value1 | value2


@dataclass(frozen=True, slots=True)
class FileInput:
    """Parts of an input: the id of a spout, the path, and a source for a spout that reads no files."""

    job: Job
    spout: str
    path: str
    source: FileSource | None

    def opened(self) -> FileSource:
        """Return the source; in an executor the topology is unpacked."""
        source: Any = self.source or self.job.open()[1](self.spout)
        assert isinstance(source, FileSource)
        return source


class FilesInput:
    """Frames of what a source of files emits, and the number of records in its stream `bad`."""

    def __init__(self, spark: SparkSession, given: FileInput, source: FileSource) -> None:
        """Find and divide the files; InvalidConfigError when there are none."""
        self._spark = spark
        self._given = given
        self._found: Accumulator[Found] = spark.sparkContext.accumulator({}, _FoundParam())
        splits = source.splits(given.path, WHOLE)
        if not splits:
            raise InvalidConfigError(f"input '{given.spout}': there are no files in {given.path}")
        share = sum(split.size for split in splits) // spark.sparkContext.defaultParallelism
        size = max(_LEAST_BYTES, min(_MOST_BYTES, share))
        self._groups = _grouped(source.splits(given.path, size), size)
        self._types = types_of(source, splits)
        self.has_bad = isinstance(source, Files)

    def frame(self, stream: str = DEFAULT_STREAM) -> DataFrame:
        """Return the rows of a stream as a DataFrame."""
        return self.input(stream).frame

    def input(self, stream: str = DEFAULT_STREAM) -> ReadByParts:
        """Return the rows of a stream, in the order in which one task of the source reads them."""
        given = self._given
        groups = self._groups
        problems = self._found
        types = self._types if stream == DEFAULT_STREAM else _text_types(_BAD_TYPES)
        if len(types) == 1:  # a line, under any name
            declared = given.job.plan.topology.components[given.spout].streams[stream]
            types = dict(zip(declared.fields, types.values(), strict=True))
        schema = values_schema(types)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            count = 0
            problem = ""
            for group in (n for batch in batches for n in batch.column(0).to_pylist()):
                for name, rows in _read(given, groups[group]):
                    if name == stream:
                        yield _batch(rows, types)
                    elif name == _BAD:
                        count += len(rows)
                        problem = problem or f"{rows[0][3]}, in {rows[0][0]} at {rows[0][1]}"
            context = TaskContext.get()
            if count and context is not None:
                problems.add({(context.stageId(), context.partitionId()): (count, problem)})

        count = len(groups)
        return ReadByParts(self._spark.range(0, count, 1, count), read, schema)

    def note(self) -> str:
        """Return how many records were left out, after the frame was read; empty for none."""
        # Each result reads the input in its own stage, some of them only the first rows.
        by_stage: Counter[int] = Counter()
        for (stage, _), (number, _) in self._found.value.items():
            by_stage[stage] += number
        if not by_stage:
            return ""
        problem = next(problem for _, problem in self._found.value.values())
        return (
            f"input '{self._given.spout}': {max(by_stage.values()):,} of its records were left out, "
            f"which the spout sends to its stream 'bad' live: {problem}"
        )


def reads_lines(spout: Any) -> bool:
    """Return whether a spout reads files by lines."""
    return isinstance(spout, FileLines) or (isinstance(spout, Files) and spout.format == "lines")


def source_of(spout: Any, kind: str, path: str, width: int, is_guessed: bool) -> FileSource | None:
    """Return the source that reads a path: the spout if it reads files of this format, or of any
    where the path's ending shows none; one of lines for a spout of `width` 1. None for Spark.
    """
    is_text = kind == "text"
    if isinstance(spout, Files) and (spout.format == kind or (is_text and is_guessed)):
        return spout
    if "://" in path or not is_text or width != 1:
        return None
    return spout if reads_lines(spout) else Files(path)


def types_of(source: FileSource, splits: Sequence[FileSplit]) -> dict[str, pa.DataType | None]:
    """Return the Arrow type of each field whose values all have one that gives them back; None for
    other fields.
    """
    if isinstance(source, FileLines):
        return {"line": pa.string()}
    if source.format != "parquet":
        return _text_types(column_types(source.format, source.fields))
    paths = dict.fromkeys(path for split in splits for path in split.paths)
    schemas = [source.parquet_schema(path) for path in paths]
    type_by_name: dict[str, pa.DataType | None] = {}
    for name in source.fields:
        kinds = {_widest(schema.field(name).type) for schema in schemas if name in schema.names}
        type_by_name[name] = kinds.pop() if len(kinds) == 1 else None
    return type_by_name


def _text_types(declared: Mapping[str, str]) -> dict[str, pa.DataType | None]:
    kinds = {"string": pa.string(), "boolean": pa.bool_()}
    kinds |= dict.fromkeys(_WHOLE, pa.int64()) | dict.fromkeys(("float", "double"), pa.float64())
    return {name: kinds.get(kind) for name, kind in declared.items()}


def _widest(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of Spark's that gives back the values of a column; None for any other."""
    if pa.types.is_dictionary(kind):
        return _widest(kind.value_type)
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    return kind if pa.types.is_boolean(kind) or kind == pa.date32() else None


def _grouped(splits: Sequence[FileSplit], most_bytes: int) -> list[list[FileSplit]]:
    """Return neighbouring parts together, about so many bytes a group."""
    groups: list[list[FileSplit]] = [[]]
    size = 0
    for split in splits:
        cost = split.size + _LEAST_BYTES // 4
        if groups[-1] and size + cost > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(split)
        size += cost
    return groups


class _Collector(HistoryCollector):
    """Collector of what a part of files emits before the place `until`, by stream."""

    def __init__(self, emitter: Emitter, codec: Codec, until: int) -> None:
        super().__init__(emitter, codec)
        self.is_over = False
        self._until = until
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._batches: list[tuple[str, pa.RecordBatch]] = []

    def emit(self, values: Any, message_id: Any = None, stream: str = DEFAULT_STREAM) -> None:
        row = self.checked(values, stream)
        if self._is_in(message_id & _PLACE):
            rows = self._rows.get(stream)
            if rows is None:
                rows = self._rows[stream] = []
            rows.append(row)

    def emit_batch(self, batch: Any, message_id: Any = None, stream: str = DEFAULT_STREAM) -> None:
        check_batch(batch)
        place = message_id & _PLACE
        if self._is_in(place):
            self._batches.append((stream, batch.slice(0, self._until - place)))

    def report_error(self, error: BaseException | str) -> None:
        """Leave it out: the record is in the stream `bad`."""

    def take(self, least: int) -> Iterator[tuple[str, Any]]:
        """Yield batches, and the rows of each stream that has so many; they are forgotten."""
        yield from self._batches
        self._batches = []
        for stream, rows in self._rows.items():
            if len(rows) >= least:
                self._rows[stream] = []
                yield stream, rows

    def _is_in(self, place: int) -> bool:
        self.is_over = self.is_over or place >= self._until
        return not self.is_over


def _read(given: FileInput, splits: Sequence[FileSplit]) -> Iterator[tuple[str, Any]]:
    """Yield what the source emits of parts of files: a stream with rows, or with a batch of them."""
    codec = Codec()
    parts = given.job.plan.parts(codec, {})
    task = given.job.plan.tasks(given.spout)[0]
    outputs, _ = kept_outputs(parts, task)
    emitter = Emitter(given.spout, outputs.routes, False)
    context = replace(
        parts.context(task, (task,), lambda: 0, frozenset({DEFAULT_STREAM})),
        component_by_task={task: given.spout},
    )
    source = given.opened()
    for split in splits:
        collector = _Collector(emitter, codec, split.until)
        part = source.of_split(split)
        try:
            part.open(context.conf, context, collector)
            while not collector.is_over and not part.is_exhausted():
                part.next_tuple()
                yield from collector.take(_ROWS_PER_BATCH)
            yield from collector.take(1)
        except ReplayFailedError:
            raise
        except USER_ERRORS as error:
            raise ReplayFailedError(
                f"input '{given.spout}': {given.path} cannot be read: {describe_error(error)}"
            ) from error
        finally:
            part.close()


def _batch(rows: Any, types: Mapping[str, pa.DataType | None]) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        columns = rows.columns
    else:
        columns = list(zip(*rows, strict=True))
    arrays = []
    for column, kind in zip(columns, types.values(), strict=True):
        is_array = isinstance(column, pa.Array)
        if kind is None:
            arrays.append(value_cells(plain_values(column) if is_array else column))
        else:
            arrays.append(column.cast(kind) if is_array else pa.array(column, kind))
    return pa.RecordBatch.from_arrays(arrays, list(types))
