"""Order of history over Spark's partitions: sorted by event time, or in place with virtual time
carried between partitions.

Law: rows of an input are read by partition number, then by position, on every cluster and in every
attempt of a task. Left out: `DataFrame.coalesce`, which groups partitions by the hosts that hold
them, and `TaskContext.partitionId()`, which counts the partitions of all that is joined with ours.
A sort of all rows by position would be right too, but it is a shuffle of all of history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.spark_versions import (
    HAS_UNION_BY_PLACE,
    dealt_by_id,
    executed_plan,
    fixed_rows,
    frame_of,
    joined_by_place,
    neighbours_joined,
    one_split_a_partition,
    optimized_plan,
    reordered,
    splits_of,
)
from sparkstorm.replay.arrow_map import MapBatches, map_in_arrow, quoted
from sparkstorm.replay.failures import unwrapped
from sparkstorm.replay.inputs import LONG_AGO, running_times

_FILE = "sparkstorm: file"
_BLOCK = "sparkstorm: block"
_PLACE = "sparkstorm: place"  # next to the fields of a stream, which may have any name
PARTITION = "sparkstorm: partition"
# Parts of files that are put in order by name: each is its own RDD. Twice as many are twice
# the calls of the JVM, half as many leave more folders to the shuffle. No measurement chose it.
_MOST_SPLITS = 256
# Times of a partition that its ranges are chosen by, and half of it at the least.
_MOST_SAMPLED = 1024
MOST_RANGES = 200
"""Ranges that rows are dealt to by one expression, a comparison for each: as many partitions as
Spark's own sort makes by default. Thousands would be too deep for Spark's parser.
"""
_SPAN = pa.schema(
    [
        ("oldest", pa.int64()),
        ("newest", pa.int64()),
        ("is_in_order", pa.bool_()),
        ("sample", pa.list_(pa.int64())),
        ("step", pa.int64()),
    ]
)
_SPAN_DDL = "oldest long, newest long, is_in_order boolean, sample array<long>, step long"


def in_file_order(frame: DataFrame, width: int) -> DataFrame:
    """Return the rows of a frame of several files in the order of the files' paths.

    Spark packs files into partitions by size, largest first. Its partitions are read in another
    order here, without a shuffle. Above `_MOST_SPLITS` of them each row is sorted by path, place of
    its block in the file and place in the block, over `width` partitions (0: Spark's default): a
    shuffle of all rows. A frame that is not a plain read of several files is returned as it is.
    """
    if not _reads_files(frame):
        return frame
    splits = files_in_order(frame)
    if splits is not None:
        return splits
    # Spark names files by URLs: a space is %20 there, never a
    # plus, which is an ordinary letter of a name.
    path = sf.url_decode(sf.replace(sf.input_file_name(), sf.lit("+"), sf.lit("%2B")))
    placed = frame.withColumns(
        {_FILE: path, _BLOCK: sf.input_file_block_start(), _PLACE: sf.monotonically_increasing_id()}
    )
    order = [sf.col(quoted(name)) for name in (_FILE, _BLOCK, _PLACE)]
    return _in_ranges(placed, order, width).drop(_FILE, _BLOCK, _PLACE)


def files_in_order(frame: DataFrame) -> DataFrame | None:
    """Return the rows of a plain read of files in the order of the files' paths, without a shuffle;
    None for another frame, and where Spark reads in another way, or in too many parts.
    """
    if not _reads_files(frame):
        return None
    return frame if len(frame.inputFiles()) < 2 else _splits_in_order(frame)


def _splits_in_order(frame: DataFrame) -> DataFrame | None:
    """Return the rows of files in the order of their paths, a partition for each file or split of
    one, in groups of about the size that Spark gives a task; None where Spark reads in another way,
    or in too many parts.
    """
    with unwrapped():
        with one_split_a_partition(frame) as packed:
            rows = fixed_rows(frame.select("*"))
            count = rows.getNumPartitions()
        # Before the files are asked for: each takes several calls of the JVM.
        splits = splits_of(rows) if 1 < count <= _MOST_SPLITS else None
        if splits is None or any(len(split) != 1 for split in splits):
            return None
        places = [(unquote(path), start) for ((path, start),) in splits]
        order = sorted(range(len(splits)), key=places.__getitem__)
        placed = frame_of(reordered(frame, rows, order), frame)
    return grouped(placed, packed) if HAS_UNION_BY_PLACE else placed


def _reads_files(frame: DataFrame) -> bool:
    """Return whether a frame's rows come from files one by one: selected and filtered, but not
    joined, shuffled or cached.
    """
    return _read_of(frame) is not None


def _read_of(frame: DataFrame) -> Any:
    """Return the Java object of the read that a frame's rows come from; None for another frame."""
    plan = optimized_plan(frame)
    # The optimised plan, not the caller's: a view or a filter that was pushed down is still a read
    # of files, while a cached or joined frame has its own order that is not to be touched.
    while (kind := plan.getClass().getSimpleName()) in ("Project", "Filter"):
        plan = plan.child()
    return plan if kind == "LogicalRelation" else None


def only_column(frame: DataFrame, name: str) -> DataFrame:
    """Return a column of a frame: of the rows that the whole frame has.

    A row of a file that Spark drops as malformed is judged by the columns that are read: there all
    of them are.
    """
    return (_fixed(frame)[0] if _drops_malformed(frame) else frame).select(quoted(name))


def column_of_files(frame: DataFrame, placed: DataFrame, name: str) -> DataFrame:
    """Return a column of the files of a frame, which `files_in_order` has placed."""
    pruned = None if _drops_malformed(frame) else files_in_order(frame.select(quoted(name)))
    return only_column(placed, name) if pruned is None else pruned


def _drops_malformed(frame: DataFrame) -> bool:
    read = _read_of(frame)
    if read is None or read.relation().getClass().getSimpleName() != "HadoopFsRelation":
        return False
    return "dropmalformed" in str(read.relation().options().toString()).lower()


def grouped(frame: DataFrame, width: int) -> DataFrame:
    """Return the rows in at most `width` partitions: contiguous groups of the frame's partitions,
    by number.

    `DataFrame.coalesce` groups partitions by the hosts that hold them, where Spark knows those: of
    cached or shuffled frames, and of files on a distributed store. Here neighbours are joined
    without a shuffle. The plan's partitions are fixed at this call,
    as by `DataFrame.rdd`: with adaptive execution the frame's own shuffles run now. Spark before
    4.1 has no such union: rows are shuffled there.
    """
    if not HAS_UNION_BY_PLACE:
        fixed, count = _fixed(frame)
        # Whole-number division keeps groups contiguous and of
        # nearly one size, as the union of Spark 4.1 does.
        group = sf.expr(f"CAST(spark_partition_id() * {width} DIV {max(1, count)} AS INT)")
        return (
            fixed
            if count <= width
            else _brought_in_order(_with_places(fixed, group), width).drop(PARTITION)
        )
    with unwrapped():
        rows = neighbours_joined(frame, fixed_rows(frame), width)
    return frame_of(rows, frame)


def _fixed(frame: DataFrame) -> tuple[DataFrame, int]:
    """Return the rows in the partitions that the frame's plan has now, and the number of these."""
    with unwrapped():
        rows = fixed_rows(frame)
        return frame_of(rows, frame), rows.getNumPartitions()


def _with_places(frame: DataFrame, partition: Column) -> DataFrame:
    """Return the rows with the partition that each is to be in, and its position."""
    return frame.select(
        "*", partition.cast("int").alias(PARTITION), sf.monotonically_increasing_id().alias(_PLACE)
    )


def _brought_in_order(frame: DataFrame, width: int, keeps_place: bool = False) -> DataFrame:
    """Return the rows in the partitions that they are to be in, by their positions."""
    by_place = sf.col(quoted(_PLACE))
    dealt = dealt_by_id(frame, width, sf.col(quoted(PARTITION))).sortWithinPartitions(by_place)
    return dealt if keeps_place else dealt.drop(_PLACE)


def sorted_within(frame: DataFrame, time_field: str) -> DataFrame:
    """Return the rows sorted by a column of times within each partition."""
    return _placed(frame).sortWithinPartitions(*_order(time_field)).drop(_PLACE)


def sorted_by_task(
    frame: DataFrame, time_field: str, width: int, by: Sequence[Column]
) -> DataFrame:
    """Return the rows brought to the partitions that Spark's hash of some values gives, each sorted
    by time, then by former position.
    """
    dealt = _placed(frame).repartition(width, *by)
    return dealt.sortWithinPartitions(*_order(time_field)).drop(_PLACE)


def sorted_over_all(frame: DataFrame, time_field: str, width: int) -> DataFrame:
    """Return the rows sorted by a column of times, then by position, over `width` partitions (0:
    Spark's default).
    """
    return _in_ranges(_placed(frame), _order(time_field), width).drop(_PLACE)


def _placed(frame: DataFrame) -> DataFrame:
    return frame.withColumn(_PLACE, sf.monotonically_increasing_id())


def _in_ranges(frame: DataFrame, order: Sequence[Column], width: int) -> DataFrame:
    # By ranges: Spark's sort over all rows takes no number of partitions.
    dealt = frame.repartitionByRange(width, *order) if width else frame.repartitionByRange(*order)
    return dealt.sortWithinPartitions(*order)


def _order(time_field: str) -> list[Column]:
    return [sf.col(quoted(time_field)), sf.col(quoted(_PLACE))]


class TimeSpan(NamedTuple):
    """Times of a partition: the oldest and newest one (None without rows), whether each row has one
    and none falls, and every `step`th of them.
    """

    oldest: int | None
    newest: int | None
    is_in_order: bool
    sample: list[int]
    step: int


def time_spans(frame: DataFrame, time_field: str, read: MapBatches | None = None) -> list[TimeSpan]:
    """Return the times of each partition of a frame. Runs a job.

    `read` makes the rows of a partition out of the frame's.
    """

    def measured(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = (b.column(time_field) for b in (batches if read is None else read(batches)))
        yield pa.RecordBatch.from_pylist([_span(columns)._asdict()], _SPAN)

    with unwrapped():
        rows = (
            map_in_arrow(frame, measured, _SPAN_DDL)
            .withColumn("id", sf.spark_partition_id())
            .collect()
        )
    span_by_id = {row.id: TimeSpan(*row[: len(TimeSpan._fields)]) for row in rows}
    empty = TimeSpan(None, None, True, [], 1)
    return [span_by_id.get(n, empty) for n in range(max(span_by_id, default=-1) + 1)]


def _span(columns: Iterator[pa.Array]) -> TimeSpan:
    oldest: int | None = None
    newest: int | None = None
    is_in_order = True
    sample: list[int] = []
    step = 1
    count = 0
    for column in columns:
        times = column.drop_null()
        is_in_order = is_in_order and not column.null_count
        if not len(times):
            continue
        ends = pc.min_max(times).as_py()
        is_in_order = is_in_order and (newest is None or newest <= ends["min"])
        if is_in_order and len(times) > 1:
            is_in_order = pc.all(pc.less_equal(times[:-1], times[1:])).as_py()
        oldest = ends["min"] if oldest is None else min(oldest, ends["min"])
        newest = ends["max"] if newest is None else max(newest, ends["max"])
        sample += times.take(pa.array(range(-count % step, len(times), step))).to_pylist()
        count += len(times)
        while len(sample) > _MOST_SAMPLED:
            sample = sample[::2]
            step *= 2
    return TimeSpan(oldest, newest, is_in_order, sample, step)


def follow_each_other(spans: Sequence[TimeSpan]) -> bool:
    """Return whether the rows of all partitions are in the order of their times."""
    ends = [end for span in spans for end in (span.oldest, span.newest) if end is not None]
    return all(span.is_in_order for span in spans) and ends == sorted(ends)


def dealt_by_time(
    frame: DataFrame, time_field: str, spans: Sequence[TimeSpan], width: int
) -> DataFrame:
    """Return the rows sorted by a column of times, then by position, over `width` partitions of
    about equally many rows, by the times that were measured.

    `repartitionByRange` would read all rows once more, to measure them itself.
    """
    weighted = sorted((at_ms, span.step) for span in spans for at_ms in span.sample)
    total = sum(step for _, step in weighted)
    bounds: list[int] = []
    taken = 0
    for at_ms, step in weighted:
        if len(bounds) < width - 1 and taken * width >= total * (len(bounds) + 1):
            bounds.append(at_ms)
        taken += step
    name = quoted(time_field)
    place = " + ".join(["0", *(f"CAST({name} >= {bound} AS INT)" for bound in bounds)])
    dealt = dealt_by_id(_placed(frame), width, sf.expr(f"COALESCE({place}, 0)"))
    return dealt.sortWithinPartitions(*_order(time_field)).drop(_PLACE)


def newest_times(
    frame: DataFrame, read: DataFrame, time_field: str, width: int
) -> list[int | None]:
    """Return the newest time in each partition of `read`; None for a partition without any. Runs a
    job.

    `read`: the frame as the replay reads it, in `width` groups of partitions (0: as it is). The job
    reads the column of times only, but a shuffled frame whole, since Spark chooses its partitions
    by size.
    """
    column = read
    # Reading one column of files is cheap. Of a shuffled frame it is not sound: adaptive execution
    # chooses partitions by size, so a narrower frame has others than the replay will read.
    if "Exchange" not in executed_plan(frame):
        column = only_column(frame, time_field)
        column = grouped(column, width) if width else column
    return [span.newest for span in time_spans(column, time_field)]


def numbered(frame: DataFrame) -> DataFrame:
    """Return the rows with a head in every partition: a first row that has nothing but the
    partition's number.

    `TaskContext.partitionId()` is another number where a task reads the partition through a union
    or a `coalesce`, as when what an executor kept is made again. `spark_partition_id()` is the
    right one, but an empty partition has no row for it, and Spark ends a job whose stage with such
    an expression runs again. The plan's partitions are fixed at this call, as by `grouped`. With
    Spark before 4.1, which joins partitions by a shuffle only, that happens when an executor is
    lost.
    """
    session: Any = frame.sparkSession
    if not HAS_UNION_BY_PLACE:
        fixed, count = _fixed(frame)
        if not count:
            return fixed.withColumn(PARTITION, sf.lit(None).cast("int"))
        rows_in_place = _with_places(fixed, sf.spark_partition_id())
        nothing = [sf.lit(None).cast(field.dataType).alias(field.name) for field in fixed.schema]
        heads = session.range(count).select(
            *nothing,
            sf.col("id").cast("int").alias(PARTITION),
            sf.lit(-1).cast("long").alias(_PLACE),
        )
        both = _brought_in_order(heads.union(rows_in_place), count, keeps_place=True)
        is_head = sf.col(quoted(_PLACE)) < 0
        return both.withColumn(PARTITION, sf.when(is_head, sf.col(quoted(PARTITION)))).drop(_PLACE)
    placed = frame.withColumn(PARTITION, sf.lit(None).cast("int"))
    with unwrapped():
        rows = fixed_rows(placed)
        count = rows.getNumPartitions()
        nothing = [sf.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema]
        heads = session.range(0, count, 1, max(1, count)).select(
            *nothing, sf.col("id").cast("int").alias(PARTITION)
        )
        if count:
            # Heads first: the union keeps the order of its parts,
            # and a partition is read from its first row.
            rows = joined_by_place(frame, [fixed_rows(heads), rows], count)
    return frame_of(rows, heads)


def without_head(batches: Iterator[pa.RecordBatch]) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the number of a partition of a numbered frame, and its rows; -1 for a frame without
    partitions.
    """
    first = next(batches, None)
    if first is None:
        return -1, iter(())
    return first.column(PARTITION)[0].as_py(), chain(
        [first.slice(1)] if first.num_rows > 1 else [], batches
    )


class RunningTime:
    """Virtual time of rows in place: the greatest event time so far, including the partitions
    before.

    `newest`: the newest times of all partitions; None: this is the only one. `number`: of the
    partition.
    """

    def __init__(self, newest: Sequence[int | None] | None, number: int) -> None:
        self.is_measured = newest is not None
        self._newest = newest
        self._latest_ms: int | None = None
        self._own_ms: int | None = None
        self._number = number

    def of(self, batch: pa.RecordBatch, time_field: str) -> list[int | None]:
        """Return the virtual times of the next rows."""
        times: list[int | None] = batch.column(time_field).to_pylist()
        # Not before the first rows: `check` takes no time for no rows.
        if self._latest_ms is None:
            self._latest_ms = max(
                (ms for ms in (self._newest or ())[: self._number] if ms is not None),
                default=LONG_AGO,
            )
        own = max((time_ms for time_ms in times if time_ms is not None), default=None)
        if own is None:
            return times
        running = running_times(times, self._latest_ms)
        self._latest_ms = max(self._latest_ms, own)
        self._own_ms = own if self._own_ms is None else max(self._own_ms, own)
        return running

    def check(self, name: str) -> None:
        """Raise ReplayFailedError if the partition's newest time differs from the one measured."""
        if self._newest is None or self._latest_ms is None:
            return
        # A frame that Spark computes anew (a sample, a limit without an order) may give
        # other rows. The times before this partition would then be wrong without an error.
        measured_ms = self._newest[self._number] if self._number < len(self._newest) else None
        if measured_ms != self._own_ms:
            raise ReplayFailedError(
                f"input '{name}': Spark brought other rows into a partition than when times were measured "
                f"(newest {self._own_ms}, before {measured_ms}); write the frame to files and replay those"
            )
