"""Partitioning of data by Spark's own shuffle, with the live hash as a SQL expression: rows skip
one Python stage.

It applies to data that goes by key to one bolt: without an event time to an order-insensitive one;
with rows in the order of their event time to any whose lateness that order decides, as then none is
late. Law: a key's task is that of the live hash (`grouping.hashing`) for every supported type of
key; `checked_places` verifies it on a sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from sparkstorm.api.columns import rows_of
from sparkstorm.api.combining import CombiningBolt
from sparkstorm.api.components import Stateful
from sparkstorm.api.windows import TimedBolt, WindowedBolt
from sparkstorm.errors import ReplayFailedError
from sparkstorm.grouping.hashing import stable_hash
from sparkstorm.hosting.spark_versions import optimized_plan
from sparkstorm.model.topology import Component, Subscription
from sparkstorm.replay.arrow_map import quoted
from sparkstorm.replay.job import Job
from sparkstorm.replay.plan import Feed, Plan, Stage
from sparkstorm.windowing.settings import settings_of

_PLACE = "sparkstorm: place of the task"  # beside the fields of a stream, which may have any name
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
# Halves of the factor of stable_hash, equal modulo 2**32. A negative high half keeps both
# products within a long; with unsigned halves SQL needed four products and divisions.
_GOLDEN_HIGH = 0x9E3779B9 - (1 << 32)
_GOLDEN_LOW = 0x7F4A7C15


def sql_shuffled_input(plan: Plan, job: Job, stage: Stage) -> Subscription | None:
    """Return the stage's only input if it is data that Spark can partition among the tasks; else
    None.
    """
    bolt = plan.topology.components[stage.bolts[0]]
    options = job.settings
    if (
        not options.shortcuts
        or options.skip_bad
        or options.open_end is not None
        or len(bolt.inputs) != 1
    ):
        return None
    instance = bolt.instance
    only = bolt.inputs[0]
    if options.is_timed:
        settings = settings_of(bolt, plan.conf)
        feed = Feed(only.component, only.stream)
        is_other_time = (
            settings is not None
            and settings.is_event_time
            and settings.timestamp_field != options.time_fields.get(feed)
        )
        if not options.is_sorted or is_other_time or feed in job.to_sort:
            return None
    elif not getattr(instance, "order_insensitive", False) or isinstance(
        instance, CombiningBolt | WindowedBolt | TimedBolt
    ):
        # A CombiningBolt is left out too: combining before the
        # shuffle moves fewer rows than this does.
        return None
    source = plan.stage_of(only.component, only.stream)
    # A stage that also runs bolts over the data, or a second
    # reader of it, needs the Python stage anyway.
    is_bare = source.feed is not None and not source.bolts and len(plan.tasks(only.component)) == 1
    is_sole = is_bare and only.grouping.kind == "fields" and len(plan.readers(source)) == 1
    return only if is_sole and (options.is_timed or not _minds_order(plan, bolt)) else None


def _minds_order(plan: Plan, bolt: Component) -> bool:
    """Return whether a bolt, or one downstream of it, depends on the order of rows."""
    behind = [bolt]
    found = {bolt.id}
    while behind:
        component = behind.pop()
        minds = isinstance(component.instance, Stateful) and not getattr(
            component.instance, "order_insensitive", False
        )
        if minds or component.id in plan.idempotent:
            return True
        next_ones = [
            c
            for c in plan.topology
            if c.id not in found and any(s.component == component.id for s in c.inputs)
        ]
        found.update(c.id for c in next_ones)
        behind += next_ones
    return False


def place_of(fields: Sequence[str], schema: StructType, width: int) -> str | None:
    """Return stable_hash of these fields modulo the number of tasks as a SQL expression; None for
    unsupported types.

    Only bits 32 to 63 of the product modulo 2**64 are used. They come from products with the halves
    of the factor, which fit a long: SQL refuses one that overflows.
    """
    if width == 1:
        return "0"
    # Floats, dates and decimals take the way through Python: the live hash takes 1.0 for
    # 1 and bytes of other floats, by rules that SQL could only repeat at length.
    spelt = [_spelt(field, schema[field].dataType) for field in fields]
    if None in spelt:
        return None
    crc = f"crc32({_listed([s for s in spelt if s is not None])})"
    bits = f"{crc} * {_GOLDEN_HIGH}L + shiftright({crc} * {_GOLDEN_LOW}L, 32)"
    return f"CAST((({bits}) & 4294967295L) % {width} AS INT)"


def is_known_empty(frame: DataFrame) -> bool:
    """Return whether Spark's optimizer knows that there are no rows: it would not start the tasks
    then.
    """
    # Without tasks, nothing would be prepared and cleaned up, and no state would be written.
    most = optimized_plan(frame).maxRows()
    return bool(most.isDefined() and most.get() == 0)


def with_places(frame: DataFrame, place: str, width: int) -> tuple[DataFrame, Column]:
    """Return the rows with their task's place in a column, a head for each of the places, and where
    each row has to go.

    The head of place n has nothing but -1 - n there: so a task knows its place, also without rows,
    wherever Spark runs it.
    """
    nothing = [sf.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema]
    heads = frame.sparkSession.range(0, width, 1, 1).select(
        *nothing, sf.expr("CAST(-1 - id AS INT)").alias(_PLACE)
    )
    column = sf.col(quoted(_PLACE))
    return frame.withColumn(_PLACE, sf.expr(place)).union(heads), sf.when(
        column < 0, -1 - column
    ).otherwise(column)


def placed_rows(batches: Iterator[pa.RecordBatch]) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return a task's place, and its rows without the head."""
    first = next(batches)
    place = first.column(_PLACE)[0].as_py()
    is_row = (
        batch.filter(pc.greater_equal(batch.column(_PLACE), 0)) for batch in chain([first], batches)
    )
    return place if place >= 0 else -1 - place, (batch for batch in is_row if batch.num_rows)


def checked_places(
    batches: Iterable[pa.RecordBatch], positions: Sequence[int], place: int, width: int
) -> Iterator[pa.RecordBatch]:
    """Yield the batches, after checking that the first row of each has reached its live task."""
    for batch in batches:
        # One row of each batch: hashing every key in Python again would cost what this way saves.
        # A version of Spark with another cast or checksum is found by any one of them.
        if width > 1 and batch.num_rows:
            (values,) = rows_of(batch.slice(0, 1).select(list(positions)))
            found = stable_hash(values if len(values) > 1 else values[0]) % width
            if found != place:
                raise ReplayFailedError(
                    f"Spark brought the key {values!r:.100} to task {place + 1} of {width}, live it goes to "
                    f"task {found + 1}: Spark divides by other rules than this was written for"
                )
        yield batch


def _spelt(field: str, kind: DataType) -> str | None:
    """Return the SQL of a value's `canonical_bytes`; None for an unsupported type. Bytes cost Spark
    half as much as text.
    """
    if isinstance(kind, _WHOLE):
        return _marked("i", f"CAST({quoted(field)} AS STRING)")
    if isinstance(kind, BooleanType):
        return _marked("i", f"CAST(CAST({quoted(field)} AS INT) AS STRING)")
    # No text with a collation of its own: Spark takes some different texts for equal, Python none.
    if type(kind) is StringType and kind == StringType():
        return _marked("s", quoted(field))
    return _marked("b", quoted(field)) if isinstance(kind, BinaryType) else None


def _marked(mark: str, text: str) -> str:
    return f"coalesce(concat({_bytes(mark)}, CAST({text} AS BINARY)), {_bytes('n')})"


def _listed(spelt: Sequence[str]) -> str:
    if len(spelt) == 1:
        return spelt[0]
    sized = ", ".join(
        f"CAST(CAST(octet_length({s}) AS STRING) AS BINARY), {_bytes(':')}, {s}" for s in spelt
    )
    return f"concat({_bytes('l')}, {sized})"


def _bytes(text: str) -> str:
    return f"X'{text.encode().hex()}'"
