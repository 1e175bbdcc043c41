"""Order of history over Spark's partitions: sorted by event time, or in place with virtual time carried between partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sparkstorm.errors import ReplayFailedError
from sparkstorm.replay.arrow_map import map_in_arrow, quoted
from sparkstorm.replay.failures import unwrapped
from sparkstorm.replay.inputs import LONG_AGO, running_times

_PLACE = "sparkstorm: place"  # beside the fields of a stream, which may have any name
PARTITION = "sparkstorm: partition"


def sorted_within(frame: DataFrame, at: str) -> DataFrame:
    """Return the rows sorted by a column of times within each partition."""
    return frame.withColumn(_PLACE, sf.monotonically_increasing_id()).sortWithinPartitions(*_order(at)).drop(_PLACE)


def sorted_by_task(frame: DataFrame, at: str, width: int, place: Column) -> DataFrame:
    """Return the rows brought to the partitions that an expression gives, each sorted by time, then by former position."""
    placed = frame.withColumn(_PLACE, sf.monotonically_increasing_id())
    return placed.repartitionById(width, place).sortWithinPartitions(*_order(at)).drop(_PLACE)


def sorted_over_all(frame: DataFrame, at: str, width: int) -> DataFrame:
    """Return the rows sorted by a column of times, then by position, over `width` partitions (0: Spark's default)."""
    placed = frame.withColumn(_PLACE, sf.monotonically_increasing_id())
    dealt = placed.repartitionByRange(width, *_order(at)) if width else placed.repartitionByRange(*_order(at))
    return dealt.sortWithinPartitions(*_order(at)).drop(_PLACE)


def _order(at: str) -> list[Column]:
    return [sf.col(quoted(at)), sf.col(quoted(_PLACE))]


def newest_times(frame: DataFrame, at: str) -> list[int | None]:
    """Return the newest time in each partition; None for a partition without any. Runs a job of its own.

    The job reads that column only. A shuffled frame is read whole, since Spark chooses its partitions by size.
    """

    def newest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [pc.max(batch.column(at)).as_py() for batch in batches if batch.num_rows]
        yield pa.RecordBatch.from_pydict({"newest": pa.array([max((n for n in found if n is not None), default=None)], pa.int64())})

    is_shuffled = "Exchange" in frame._jdf.queryExecution().executedPlan().toString()
    column = frame if is_shuffled else frame.select(quoted(at))
    with unwrapped():
        rows = map_in_arrow(column, newest, "newest long").selectExpr("spark_partition_id() AS id", "newest").collect()
    by_partition = {row.id: row.newest for row in rows}
    return [by_partition.get(n) for n in range(max(by_partition, default=-1) + 1)]


def numbered(frame: DataFrame) -> DataFrame:
    """Return the rows with the number of their partition; in a union, the task's number is another one."""
    return frame.withColumn(PARTITION, sf.spark_partition_id())


class RunningTime:
    """Virtual time of rows in place: the greatest event time so far, including the partitions before.

    `newest`: the newest times of all partitions; None: this is the only one.
    """

    def __init__(self, newest: Sequence[int | None] | None) -> None:
        self._newest = newest
        self._latest_ms: int | None = None
        self._own_ms: int | None = None
        self._number = 0

    def of(self, batch: pa.RecordBatch, at: str) -> list[int | None]:
        """Return the virtual times of the next rows."""
        times: list[int | None] = batch.column(at).to_pylist()
        if self._latest_ms is None:
            self._number = batch.column(PARTITION)[0].as_py() if self._newest is not None else 0
            self._latest_ms = max((ms for ms in (self._newest or ())[: self._number] if ms is not None), default=LONG_AGO)
        own = max((each for each in times if each is not None), default=None)
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
        measured_ms = self._newest[self._number] if self._number < len(self._newest) else None
        if measured_ms != self._own_ms:
            raise ReplayFailedError(
                f"input '{name}': Spark brought other rows into a partition than when times were measured "
                f"(newest {self._own_ms}, before {measured_ms}); write the frame to files and replay those"
            )
