"""Results of a replay that the job file names under `results:`, written as a live run writes
them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from sparkstorm.api.value_columns import plain_values
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.names import file_name
from sparkstorm.common.model.topology import DEFAULT_STREAM, Topology
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.tagged import from_json, read_value, to_json
from sparkstorm.connectors.sql_sink import SqlSink
from sparkstorm.driver.job_file import JobFile
from sparkstorm.driver.results import Result, ResultFiles, state_file, stream_sink, write_state
from sparkstorm.replay.arrow_map import map_in_arrow
from sparkstorm.replay.job import STATE_MARK, result_name
from sparkstorm.replay.results.types import in_utc, state_values

_LINE = "line string"


def name_of(result: Result) -> str:
    """Return the name of a job's result among those of a replay."""
    return (
        result_name(result.component, result.stream)
        if result.stream
        else result.component + STATE_MARK
    )


def place_of(result: Result) -> str:
    """Return the name of its file or folder; empty for a table."""
    if result.format == "table":
        return ""
    return file_name(result.name) if result.stream else state_file(result)


def write_result(
    job: JobFile, topology: Topology, result: Result, frame: DataFrame, folder: Path, run: str
) -> None:
    """Write one result below the folder, in its format: the same rows as the sink or the end of a
    live run writes.

    Rows of a table are inserted in one transaction, once for each `run`. InvalidConfigError when a
    target refuses them.
    """
    if not result.stream:
        lines = map_in_arrow(frame, _pairs, _LINE).toLocalIterator()
        pairs = [
            (tuple(key) if type(key) is list else key, value)
            for key, value in (from_json(row.line) for row in lines)
        ]
        write_state(result, pairs, folder / place_of(result), run)
        return
    sink = stream_sink(job.path, result, topology)
    fields = topology.components[result.component].streams[result.stream].fields
    if isinstance(sink, SqlSink):
        rows = (from_json(row.line) for row in map_in_arrow(frame, _rows, _LINE).toLocalIterator())
        sink.insert_once(f"{run}/{result.sink_id}", fields, rows)
        return
    target = folder.resolve() / place_of(result)
    _write_files(sink, job.name, result.sink_id, frame, target, fields)


def _write_files(
    sink: ResultFiles,
    name: str,
    component: str,
    frame: DataFrame,
    folder: Path,
    fields: Sequence[str],
) -> None:
    """Have each partition stage its files; then give all of them their names."""
    source = Source(component, 0, DEFAULT_STREAM, tuple(fields))

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        sink.open_in(str(folder), name, component, partition)
        rows = (values for batch in batches for values in _values(batch))
        epoch = 0
        while some := list(islice(rows, sink.flush_rows)):
            epoch += 1
            sink.begin(epoch)
            for values in some:
                sink.write(Tuple(values, 0, source))
            yield _batch([to_json([partition, epoch, sink.prepare(epoch)])])

    shutil.rmtree(folder, ignore_errors=True)
    for partition, epoch, prepared in [
        from_json(row.line) for row in map_in_arrow(frame, stage, _LINE).collect()
    ]:
        sink.open_in(str(folder), name, component, partition)
        sink.commit(epoch, prepared)
    shutil.rmtree(folder / "_staging", ignore_errors=True)  # of attempts that Spark repeated
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfigError(
            f"results cannot be written to {folder}: {error.strerror}"
        ) from error


def _pairs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys = state_values(batch.column("key"), True)
        values = state_values(batch.column("value"), False)
        yield _batch([to_json(pair) for pair in zip(keys, values, strict=True)])


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield _batch([to_json(values) for values in _values(batch)])


def _values(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = [list(map(read_value, plain_values(in_utc(column)))) for column in batch.columns]
    yield from zip(*columns, strict=True)


def _batch(lines: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], ["line"])


def named(results: Sequence[Result]) -> list[tuple[str, Result]]:
    """Return the job's results with their names among those of a replay; entries without a
    component are left out.
    """
    return [(name_of(result), result) for result in results if result.component]
