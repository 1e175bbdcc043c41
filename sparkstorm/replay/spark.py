"""Stages of a replay as Spark DataFrames: built lazily, one persisted frame of chunks per stage."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import AccumulatorParam, StorageLevel
from pyspark.accumulators import Accumulator
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sparkstorm.api.columns import rows_of
from sparkstorm.api.value_columns import is_value_type, plain_values
from sparkstorm.common.errors import CodecError, ReplayFailedError
from sparkstorm.common.model.topology import Grouping, Subscription
from sparkstorm.common.spark_versions import VARIANT, arrow_type, dealt_by_id
from sparkstorm.data_plane.transport.batch_columns import is_readable
from sparkstorm.replay.arrow_map import (
    MapBatches,
    ReadByParts,
    batches_of,
    chunks_in,
    map_in_arrow,
    quoted,
)
from sparkstorm.replay.equality_warnings import depends_on_order
from sparkstorm.replay.evidence import Evidence
from sparkstorm.replay.history_order import (
    MOST_RANGES,
    RunningTime,
    column_of_files,
    dealt_by_time,
    files_in_order,
    follow_each_other,
    grouped,
    in_file_order,
    newest_times,
    numbered,
    sorted_by_task,
    sorted_over_all,
    sorted_within,
    time_spans,
    without_head,
)
from sparkstorm.replay.inputs import check_key
from sparkstorm.replay.job import STATE_MARK, Job, result_name, result_names
from sparkstorm.replay.local import state_chunks
from sparkstorm.replay.plan import Feed, Plan, Stage
from sparkstorm.replay.results.types import in_utc, problem_with, state_values
from sparkstorm.replay.results.value_cells import as_results, as_values, value_columns
from sparkstorm.replay.sql_shuffle import (
    Key,
    checked_places,
    hashed_values,
    head_keys,
    place_and_rows,
    sql_shuffled_input,
    with_heads,
)
from sparkstorm.replay.tasks.batches import TimedRows, gathered, slices
from sparkstorm.replay.tasks.chunks import CLOCK, DDL, ORDER, ROWS, START, EdgeChunk
from sparkstorm.replay.tasks.stage import StageRun

# Next to the fields of a stream, which may have any name. Left out where a field
# holds the same: it would be sent, sorted along and read a second time.
_AT = "sparkstorm: at ms"
SMALL_MEMORY = {
    # 64 MB by default, of which every task holds a few copies. With 16 MB a Python worker's memory
    # grew with the history; half of 4 MB would mean twice as many batches, each with a price.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    # What is kept leaves in pieces of 4 MB, and Spark holds on to the last 100 of them by default.
    "spark.serializer.objectStreamReset": "1",
}
"""Spark's setting with which small executors (less than a gigabyte per core) replay any amount; for
a session's conf.
"""
# Those of a live worker.
_GC_THRESHOLDS = 100_000, 20, 50
_WHOLE = (IntegerType, LongType, ShortType)
WriteChunks = Callable[[Iterable[EdgeChunk]], Iterator[pa.RecordBatch]]


class EvidenceParam(AccumulatorParam[Evidence]):
    """Accumulator that merges the evidence of tasks."""

    def zero(self, value: Evidence) -> Evidence:
        """Return no evidence."""
        return Evidence()

    def addInPlace(self, value1: Evidence, value2: Evidence) -> Evidence:
        """Merge one record into another."""
        value1.merge(value2)
        return value1


class SparkStages:
    """Builder of the frame of every stage on first use, which it keeps."""

    def __init__(
        self,
        plan: Plan,
        job: Job,
        feeds: Mapping[Feed, DataFrame | ReadByParts],
        states: Mapping[str, DataFrame],
        names: Mapping[Feed, str],
    ) -> None:
        """Take inputs and initial states after checking their columns; ReplayFailedError names
        input and column.
        """
        self._read_by_parts = {
            feed: given for feed, given in feeds.items() if isinstance(given, ReadByParts)
        }
        frames = {
            feed: given.frame if isinstance(given, ReadByParts) else given
            for feed, given in feeds.items()
        }
        self.spark = next(iter(frames.values())).sparkSession
        self.job = job
        self.evidence: Accumulator[Evidence] = self.spark.sparkContext.accumulator(
            Evidence(), EvidenceParam()
        )
        self._plan = plan
        self._frames: dict[int, DataFrame] = {}
        # A lone result is not persisted for its one reader: 0.15 s of 2 s (decision 42).
        self._lone: dict[int, DataFrame] = {}  # frames that are a stage's only result
        self._keeps_lone = False
        streams = {
            feed: plan.topology.components[feed.spout].streams[feed.stream] for feed in feeds
        }
        self._feeds = {
            feed: _checked(
                names[feed], frame, streams[feed].fields, job.settings.time_fields.get(feed)
            )
            for feed, frame in frames.items()
        }
        self._values = {feed: value_columns(frame) for feed, frame in self._feeds.items()}
        self._states = {
            id: _checked(f"{id}!state", frame, ("key", "value"), None)
            for id, frame in states.items()
        }

    def input(self, feed: Feed) -> DataFrame:
        """Return a spout's data with its stream's fields; an empty frame of text for a stream
        without data.
        """
        fields = self._plan.topology.components[feed.spout].streams[feed.stream].fields
        if feed not in self._feeds:
            return self.spark.range(0).select(*[sf.lit("").alias(f) for f in fields])
        return as_results(self._feeds[feed].select(*map(quoted, fields)), self._values[feed])

    def frame(self, stage: Stage) -> DataFrame:
        """Return the frame of a stage's chunks."""
        if stage.number not in self._frames:
            made = self._made(stage, batches_of, DDL)
            # On disks, not in memory: chunks are bytes that are read once or
            # twice in order, and memory is what tasks have too little of.
            self._frames[stage.number] = (
                made.persist(StorageLevel.DISK_ONLY) if self.is_kept(stage) else made
            )
        return self._frames[stage.number]

    def only_frame(self, stage: Stage, write: WriteChunks, schema: Any) -> DataFrame:
        """Return a stage's rows written as its only result, without a frame of chunks; it is kept
        if that was asked for.
        """
        assert self.only_result(stage) is not None and stage.number not in self._frames
        made = self._frames[stage.number] = self._lone[stage.number] = self._made(
            stage, write, schema
        )
        return made.persist(StorageLevel.DISK_ONLY) if self._keeps_lone else made

    def keep(self) -> None:
        """Persist the only results of stages too, present and future ones."""
        self._keeps_lone = True
        for frame in self._lone.values():
            frame.persist(StorageLevel.DISK_ONLY)

    def is_kept(self, stage: Stage) -> bool:
        """Return whether a stage's frame is persisted: not if its only reader is one later stage,
        which is persisted itself.
        """
        return (
            bool(self._results_of(stage)) or self._holds_more or len(self._plan.readers(stage)) != 1
        )

    def only_result(self, stage: Stage) -> str | None:
        """Return the name of a stage's result if nothing else is read from the stage; else None."""
        names = self._results_of(stage)
        return (
            names[0]
            if len(names) == 1 and not self._holds_more and not self._plan.readers(stage)
            else None
        )

    @property
    def _holds_more(self) -> bool:
        """Return whether stages also hold dead letters or a checkpoint."""
        return self.job.settings.skip_bad or self.job.settings.open_end is not None

    def _results_of(self, stage: Stage) -> list[str]:
        names = result_names(self._plan)
        return [
            name
            for name in self.job.wanted
            if name.removesuffix(STATE_MARK) in stage.bolts
            or (name in names and names[name].spout in stage.bolts)
        ]

    def unpersist(self) -> None:
        """Unpersist all frames that are kept."""
        for frame in self._frames.values():
            # A call of the JVM for each would cost some milliseconds.
            if frame.is_cached:
                frame.unpersist()

    def _made(self, stage: Stage, write: WriteChunks, schema: Any) -> DataFrame:
        if stage.feed:
            return self._over_data(stage, write, schema)
        only = sql_shuffled_input(self._plan, self.job, stage)
        feed = Feed(only.component, only.stream) if only is not None else None
        if only is None or feed not in self._feeds or stage.bolts[0] in self._states:
            return self._over_chunks(stage, write, schema)
        # Rows may be late by the clocks of the checkpoint, which only the exchange decides; and
        # Spark's hash is not that of values.
        if self._plan.begin or self._values[feed]:
            return self._over_chunks(stage, write, schema)
        frame = self._feeds[feed]
        fields = only.grouping.fields
        hashed = hashed_values(fields, frame.schema, stage.width)
        keys = None if hashed is None else head_keys(fields, frame.schema, stage.width)
        if hashed is None or keys is None:
            return self._over_chunks(stage, write, schema)
        headed = with_heads(frame, fields, keys)
        by = [sf.expr(value) for value in hashed]
        if self.job.settings.is_timed:
            dealt = sorted_by_task(headed, _at(self.job, feed, frame.columns), stage.width, by)
        else:
            dealt = headed.repartition(stage.width, *by)
        run = self._run(stage, write)
        return map_in_arrow(dealt, _over_divided(run, only, keys, write), schema)

    def _over_data(self, stage: Stage, write: WriteChunks, schema: Any) -> DataFrame:
        assert stage.feed is not None
        frame = self._feeds.get(stage.feed)
        # A stream of a spout that has data for another one.
        if frame is None:
            return self.spark.createDataFrame([], schema)
        time_field = _at(self.job, stage.feed, frame.columns)
        settings = self.job.settings
        by_parts = None if settings.is_timed else self._read_by_parts.get(stage.feed)
        if by_parts is not None:
            frame = by_parts.parts
        is_ordered = settings.is_timed and settings.is_sorted
        if not is_ordered and depends_on_order(self._plan.topology, self._plan.conf):
            frame = in_file_order(frame, stage.width)
        given = frame
        newest = None
        if stage.feed in self.job.to_sort:
            frame, newest, by_parts = self._in_order_of_time(stage, frame, time_field)
        elif stage.width:
            frame = grouped(frame, stage.width)
        if is_ordered and stage.feed not in self.job.to_sort:
            frame = sorted_within(frame, time_field)
        if settings.is_timed and not settings.is_sorted and stage.feed in self.job.sequence:
            newest = newest_times(given, frame, time_field, stage.width)
        return map_in_arrow(
            numbered(frame),
            _over_data(
                self._run(stage, write),
                self._values[stage.feed],
                newest,
                write,
                None if by_parts is None else by_parts.read,
            ),
            schema,
        )

    def _in_order_of_time(
        self, stage: Stage, frame: DataFrame, time_field: str
    ) -> tuple[DataFrame, list[int | None] | None, ReadByParts | None]:
        """Return data in the order of its times over all partitions. Files whose rows are in this
        order are read in place: with the newest time of each partition, and the reader of files
        that the topology's source reads.

        A Nexmark q7 by rows over files in order took 0.81 of the CPU that it took with the shuffle
        (15.6 us an event, of 19.3; 1.2 M events, two cores).
        """
        assert stage.feed is not None
        by_parts = self._read_by_parts.get(stage.feed) if time_field != _AT else None
        placed = files_in_order(frame) if by_parts is None else by_parts.parts
        if placed is None:
            return sorted_over_all(frame, time_field, stage.width), None, None
        times = placed if by_parts else column_of_files(frame, placed, time_field)
        if stage.width:
            placed = grouped(placed, stage.width)
            times = grouped(times, stage.width)
        spans = time_spans(times, time_field, None if by_parts is None else by_parts.read)
        if follow_each_other(spans):
            return placed, [span.newest for span in spans], by_parts
        width = stage.width or min(len(spans), MOST_RANGES)
        if width > MOST_RANGES:
            return sorted_over_all(frame, time_field, width), None, None
        return dealt_by_time(frame, time_field, spans, width), None, None

    def _over_chunks(self, stage: Stage, write: WriteChunks, schema: Any) -> DataFrame:
        tasks = self._plan.tasks(stage.bolts[0])
        arrived = self._starts(tasks)
        for bolt in stage.bolts[:1]:
            if bolt in self._states:
                arrived = arrived.union(
                    map_in_arrow(
                        self._states[bolt], packing(bolt, tasks, self._plan.key_grouping(bolt)), DDL
                    )
                )
        for source in self._plan.exchanges_into(stage):
            # Spark's filter, before the shuffle: chunks of
            # other stages and of results are not moved.
            wanted = f"kind IN ({CLOCK}, {ROWS}) AND target BETWEEN {tasks[0]} AND {tasks[-1]}"
            arrived = arrived.union(self.frame(source).where(wanted))
        target_index = sf.expr(f"CAST(target - {tasks[0]} AS INT)")
        order = sf.expr(f"struct({', '.join(ORDER)})")
        # One partition a task: Spark sorts a task's chunks outside of
        # Python, for any number of them, and tries a task again alone.
        dealt = dealt_by_id(arrived, len(tasks), target_index).sortWithinPartitions(order)
        run = self._run(stage, write)
        return map_in_arrow(
            dealt, _written(lambda batches: run.over_chunks(chunks_in(batches)), write), schema
        )

    def _run(self, stage: Stage, write: WriteChunks) -> StageRun:
        # A state that goes straight into a result is not packed: 0.2 s of CPU for 100,000 keys went
        # into bytes that the next line read back.
        return StageRun(self.job, stage, self.evidence.add, packs_state=write is batches_of)

    def _starts(self, tasks: Sequence[int]) -> DataFrame:
        """Return one START chunk per task, so that tasks without rows are prepared and cleaned up
        as well.
        """
        task = f"CAST(id + {tasks[0]} AS INT)"
        values = [str(START), task, "0L", "0L", "0L", task, "''", "0", "X''"]
        columns = [
            f"{value} AS {name}" for value, name in zip(values, EdgeChunk._fields, strict=True)
        ]
        return self.spark.range(0, len(tasks), 1, 1).selectExpr(*columns)


def _checked(name: str, frame: DataFrame, fields: Sequence[str], time: str | None) -> DataFrame:
    """Return the needed columns of a frame, and the time in milliseconds as one more."""
    missing = [f for f in [*fields, *([time] if time else [])] if f not in frame.columns]
    # Now, not at Spark's first action: that may be hours away from the mistake.
    if missing:
        raise ReplayFailedError(
            f"input '{name}' has no column '{missing[0]}'; it has {', '.join(frame.columns)}"
        )
    twice = [f for f in fields if frame.columns.count(f) > 1]
    if twice:
        raise ReplayFailedError(f"input '{name}' has two columns '{twice[0]}'; rename one")
    columns = [quoted(f) for f in fields]
    if "task" in frame.columns and fields == ("key", "value"):
        columns.append("CAST(task AS INT) AS task")
    millis = (
        []
        if time is None or _is_field(frame, fields, time)
        else [f"{_millis(name, frame, time)} AS `{_AT}`"]
    )
    timed = (
        frame
        if not millis and frame.columns == list(fields)
        else frame.selectExpr(*columns, *millis)
    )
    for field in timed.schema:
        if problem := _problem(field.dataType):
            raise ReplayFailedError(f"input '{name}', column '{field.name}': {problem}")
    return timed


def _is_field(frame: DataFrame, fields: Sequence[str], time: str) -> bool:
    return time in fields and isinstance(frame.schema[time].dataType, LongType)


def _at(job: Job, feed: Feed, columns: Sequence[str]) -> str:
    """Return the column of the times of rows; any one for rows without times."""
    times = job.settings.time_fields
    return times[feed] if feed in times and _AT not in columns else _AT


def _holds_variant(kind: DataType) -> bool:
    """Return whether a type is or holds VARIANT, which Arrow has as a struct of bytes that only
    Spark reads.
    """
    if isinstance(kind, ArrayType):
        return _holds_variant(kind.elementType)
    if isinstance(kind, MapType):
        return _holds_variant(kind.valueType)
    if isinstance(kind, StructType):
        return any(_holds_variant(field.dataType) for field in kind)
    return isinstance(kind, VARIANT)


def _problem(kind: DataType) -> str:
    if _holds_variant(kind):
        return f"{kind.simpleString()} is no type that tuples carry; cast it, as with to_json or variant_get"
    try:
        return problem_with(arrow_type(kind))
    except PySparkTypeError:
        return f"{kind.simpleString()} is no type that tuples carry; cast it"


def _millis(name: str, frame: DataFrame, time: str) -> str:
    kind = frame.schema[time].dataType
    if time in value_columns(frame):  # the text of a whole number, or no time
        return f"TRY_CAST({quoted(time)} AS BIGINT)"
    if isinstance(kind, TimestampType | TimestampNTZType):
        return f"unix_millis(CAST({quoted(time)} AS TIMESTAMP))"
    if not isinstance(kind, _WHOLE):
        raise ReplayFailedError(
            f"input '{name}', column '{time}': an event time is a timestamp or whole milliseconds, not {kind.simpleString()}"
        )
    return f"CAST({quoted(time)} AS BIGINT)"


def _written(
    run: Callable[[Iterator[pa.RecordBatch]], Iterator[EdgeChunk]], write: WriteChunks
) -> MapBatches:
    """Return a function that runs a stage over a partition's batches and writes its chunks."""

    def written(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with _rare_collections():
            yield from write(run(batches))

    return written


def _over_data(
    run: StageRun,
    values: frozenset[str],
    newest: list[int | None] | None,
    write: WriteChunks,
    read: MapBatches | None,
) -> MapBatches:
    def over(batches: Iterator[pa.RecordBatch]) -> Iterator[EdgeChunk]:
        number, rest = without_head(batches)
        rest = rest if read is None else read(rest)
        held = (as_values(batch, values) for batch in rest)
        return run.over_data(number, _rows(run, RunningTime(newest, number), held))

    return _written(over, write)


def _over_divided(
    run: StageRun, only: Subscription, keys: Sequence[Key], write: WriteChunks
) -> MapBatches:
    job = run.job
    feed = Feed(only.component, only.stream)
    fields = job.plan.topology.components[feed.spout].streams[feed.stream].fields
    places = [fields.index(f) for f in only.grouping.fields]

    def over(batches: Iterator[pa.RecordBatch]) -> Iterator[EdgeChunk]:
        partition, own = place_and_rows(_readable(feed, batches), places, keys)
        checked = checked_places(own, places, partition, run.stage.width)
        rows = (
            _timed_rows(job, feed, fields, batch) if job.settings.is_timed else batch.select(fields)
            for batch in checked
        )
        return run.over_divided(feed, partition, rows)

    return _written(over, write)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage rarely: rows are short-lived and hold no cycles, and Python's default
    thresholds cost half of the time.
    """
    # Put back: the Python worker goes on to tasks of other jobs.
    former = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*former)


def packing(component: str, tasks: Sequence[int], by: Grouping) -> MapBatches:
    """Return a function that turns an initial state into chunks for its tasks, found by the
    grouping `by`.
    """

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            has_task = "task" in batch.schema.names
            homes = batch.column("task").to_pylist() if has_task else [None] * batch.num_rows
            try:
                keys = state_values(batch.column("key"), True)
                values = state_values(batch.column("value"), False)
            except CodecError as error:
                raise ReplayFailedError(f"initial state of '{component}': {error}") from error
            for key in keys:
                try:
                    check_key(key)
                except CodecError as error:
                    raise ReplayFailedError(
                        f"initial state of '{component}', key {key!r:.60}: {error}"
                    ) from error
            pairs = list(zip(keys, values, homes, strict=True))
            wrong = next((h for _, _, h in pairs if h is not None and h not in tasks), None)
            if wrong is not None:
                raise ReplayFailedError(
                    f"initial state: task {wrong} is none of {tasks[0]} to {tasks[-1]}; was the "
                    "state taken under another parallelism?"
                )
            yield from batches_of(state_chunks(component, tasks, pairs, by))

    return pack


def _rows(
    run: StageRun, running: RunningTime, batches: Iterator[pa.RecordBatch]
) -> Iterator[TimedRows | pa.RecordBatch]:
    job = run.job
    feed = run.stage.feed
    assert feed is not None
    fields = job.plan.topology.components[feed.spout].streams[feed.stream].fields
    batches = _readable(feed, batches)
    # Without bolts rows are only divided among tasks, never Python's objects: fewer batches cost
    # less.
    if not run.stage.bolts and not job.settings.is_timed:
        yield from (batch.select(fields) for batch in gathered(batches))
        return
    for batch in (piece for full_batch in batches for piece in slices(full_batch)):
        if not job.settings.is_timed:
            yield batch.select(fields)
        elif job.settings.is_sorted and not running.is_measured:
            yield _timed_rows(job, feed, fields, batch)
        else:
            yield (
                rows_of(batch.select(fields)),
                running.of(batch, _at(job, feed, batch.schema.names)),
            )
    running.check(feed.spout)


def _readable(feed: Feed, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with their times in UTC, since Spark hands them in the session's zone, where
    the two passes of an hour are equal; ReplayFailedError names the column with a value that Python
    has none for, such as a map with one key twice or a time beyond the year 9999, which files of
    other programs may have.
    """
    for given in batches:
        columns = list(map(in_utc, given.columns))
        batch = pa.RecordBatch.from_arrays(columns, given.schema.names)
        for field, column in zip(batch.schema, columns, strict=True):
            if is_value_type(field.type) or is_readable(column):
                continue
            try:  # one by one: Python's mappings would silently keep the last of two values
                plain_values(column)
            except CodecError as error:
                name = result_name(feed.spout, feed.stream)
                remedy = (
                    "make its keys differ, as with map_from_entries over distinct entries"
                    if _holds_map(field.type)
                    else "replace such values, as with CASE WHEN"
                )
                raise ReplayFailedError(
                    f"input '{name}', column '{field.name}': {error}; {remedy}, or leave the column out"
                ) from error
        yield batch


def _holds_map(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is or holds a map."""
    return pa.types.is_map(kind) or any(
        _holds_map(kind.field(n).type) for n in range(kind.num_fields)
    )


def _timed_rows(job: Job, feed: Feed, fields: Sequence[str], batch: pa.RecordBatch) -> TimedRows:
    return rows_of(batch.select(fields)), batch.column(
        _at(job, feed, batch.schema.names)
    ).to_pylist()
