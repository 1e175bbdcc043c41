"""Partitioning of data by Spark's own shuffle, whose hash is the live one: rows skip one Python
stage.

It applies to data that goes by key to one bolt: without an event time to an order-insensitive one;
with rows in the order of their event time to any whose lateness that order decides, as then none is
late. Law: a key's task is that of the live hash (`grouping.hashing`) for every supported type of
key; `checked_places` verifies it on a sample. Keyed sums cost 1.40 (rows) and 1.57 (columns) times
the CPU without it, a word count by rows 1.07 (decision 77).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
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
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.grouping.hashing import stable_hash
from sparkstorm.common.model.topology import Component, Subscription
from sparkstorm.common.windowing.settings import settings_of
from sparkstorm.replay.arrow_map import quoted
from sparkstorm.replay.job import Job
from sparkstorm.replay.plan import Feed, Plan, Stage

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
# Values of a key per task that are tried for a head. A task without any of 64 has a chance of e^-64;
# with 8 one in 3,000.
_TRIES = 64
_MAKERS: dict[type[DataType], Callable[[int], object]] = {
    BooleanType: (False, True, None).__getitem__,
    StringType: str,
    BinaryType: lambda number: str(number).encode(),
    **dict.fromkeys(_WHOLE, int),
}
_OTHER_RULES = "Spark brought {}: Spark divides by other rules than this was written for"


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
    reached = {bolt.id}
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
            if c.id not in reached and any(s.component == component.id for s in c.inputs)
        ]
        reached.update(c.id for c in next_ones)
        behind += next_ones
    return False


def hashed_values(fields: Sequence[str], schema: StructType, width: int) -> list[str] | None:
    """Return the SQL of the values by whose hash Spark partitions rows as `stable_hash` does; none
    for a single task, None for unsupported types.
    """
    if width == 1:
        return []
    # Floats, dates and decimals take the way through Python: the live hash takes 1.0 for 1, by
    # rules that SQL could only repeat at length.
    columns = [_hashed(field, schema[field].dataType) for field in fields]
    return None if None in columns else [column for column in columns if column is not None]


Key = tuple[Any, ...]


def head_keys(fields: Sequence[str], schema: StructType, width: int) -> list[Key] | None:
    """Return a key of each task, in the tasks' order; None if the fields have too few values, as a
    boolean has for four tasks.
    """
    if width == 1:
        return [(None,) * len(fields)]
    sizes = [_values_of(schema[field].dataType) for field in fields]
    # One field varies; the others of such a key are null.
    varied = sizes.index(max(sizes))
    of = _MAKERS[type(schema[fields[varied]].dataType)]
    key_by_place: dict[int, Key] = {}
    for number in range(min(max(sizes), width * _TRIES)):
        key = tuple(of(number) if n == varied else None for n in range(len(fields)))
        key_by_place.setdefault(_live_place(key, width), key)
        if len(key_by_place) == width:
            return [key_by_place[place] for place in range(width)]
    return None


def with_heads(frame: DataFrame, fields: Sequence[str], keys: Sequence[Key]) -> DataFrame:
    """Return the rows after a head for each task: a row with a key of that task and nothing else.

    So a task gets its number from its rows, also without any of its own, wherever Spark runs it
    (`history_order.numbered` says why not from Spark). A column for the number would cost a tenth
    of the CPU of a replay by columns: Spark copies each row three times on its way to Python.
    """
    kinds = {field.name: field.dataType for field in frame.schema}
    columns = dict.fromkeys(frame.columns, "NULL")
    for field, values in zip(fields, zip(*keys, strict=True), strict=True):
        # Only the field that differs by task. Spark gives a plain NULL the type of the column, which
        # for the only task's key may be any, also one whose name is no SQL.
        if values.count(None) < len(values):
            literals = ", ".join(map(_literal, values))
            # Of the column's own type: a union widens a column of bytes to the literals' integers.
            columns[field] = (
                f"CAST(element_at(array({literals}), CAST(id + 1 AS INT)) AS {kinds[field].simpleString()})"
            )
    # As text: with Columns each would be a call of the JVM, a tenth of a small replay together.
    expressions = tuple(f"{value} AS {quoted(name)}" for name, value in columns.items())
    # First: where rows are sorted by time and position, a head has no time and the least position.
    return _heads(frame.sparkSession, len(keys), expressions).union(frame)


# A notebook replays one input again and again, and Spark's analysis of these rows costs 8 ms. Of a
# few inputs only: a frame holds on to its session, also to one that was stopped.
@lru_cache(maxsize=4)
def _heads(session: SparkSession, count: int, expressions: tuple[str, ...]) -> DataFrame:
    """Return `count` rows of these columns, in one partition."""
    return session.range(0, count, 1, 1).selectExpr(*expressions)


def place_and_rows(
    batches: Iterator[pa.RecordBatch], positions: Sequence[int], keys: Sequence[Key]
) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return a task's place, and its rows without the head. `positions`: of the key's columns."""
    first = next(batches)
    place = _live_place(_first_key(first, positions), len(keys))
    return place, _rows_without(chain([first], batches), positions, keys[place])


def _rows_without(
    batches: Iterator[pa.RecordBatch], positions: Sequence[int], key: Key
) -> Iterator[pa.RecordBatch]:
    """Yield the rows but for the first that equals the head.

    A row of data may equal it too. Unsorted rows have no order, so it is the same which of two
    equal ones is left out; sorted rows have the head first.
    """
    expected = dict(zip(positions, key, strict=True))
    for batch in batches:
        row = -1
        if batch.num_rows:
            is_head = reduce(
                pc.and_,
                (_equals(column, expected.get(n)) for n, column in enumerate(batch.columns)),
            )
            row = pc.index(is_head, True).as_py()
        if row < 0:
            yield batch
            continue
        yield from (part for part in (batch.slice(0, row), batch.slice(row + 1)) if part.num_rows)
        break
    else:
        raise ReplayFailedError(
            _OTHER_RULES.format(f"no row with the key {key!r:.100} to its task")
        )
    yield from batches


def _equals(column: pa.Array, value: object) -> pa.Array:
    """Return where a column has a value."""
    if value is None:
        return column.is_null()
    return pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), False)


def checked_places(
    batches: Iterable[pa.RecordBatch], positions: Sequence[int], place: int, width: int
) -> Iterator[pa.RecordBatch]:
    """Yield the batches, after checking that the first row of each has reached its live task."""
    for batch in batches:
        # One row of each batch: hashing every key in Python again would cost what this way saves.
        # A version of Spark with another cast or checksum is found by any one of them.
        if width > 1 and batch.num_rows:
            key = _first_key(batch, positions)
            live_place = _live_place(key, width)
            if live_place != place:
                raise ReplayFailedError(
                    _OTHER_RULES.format(
                        f"the key {key!r:.100} to task {place + 1} of {width}, live it goes to task {live_place + 1}"
                    )
                )
        yield batch


def _first_key(batch: pa.RecordBatch, positions: Sequence[int]) -> Key:
    (key,) = rows_of(batch.slice(0, 1).select(list(positions)))
    return key


def _live_place(key: Key, width: int) -> int:
    return stable_hash(key if len(key) > 1 else key[0]) % width


def _values_of(kind: DataType) -> int:
    """Return how many values `_MAKERS` makes of a type."""
    if isinstance(kind, BooleanType):
        return 3
    # Half of a byte's, as numbers begin with 0.
    return 128 if isinstance(kind, ByteType) else 2**15


def _literal(value: object) -> str:
    """Return the SQL of a value of a head's key."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _hashed(field: str, kind: DataType) -> str | None:
    """Return the SQL of a value that Spark hashes as `stable_hash` does; None for an unsupported
    type.
    """
    if isinstance(kind, ByteType | ShortType | IntegerType | BooleanType):
        return f"CAST({quoted(field)} AS BIGINT)"
    # No text with its own collation: Spark takes some different texts for equal, Python none.
    is_as_it_is = isinstance(kind, LongType | BinaryType) or (
        type(kind) is StringType and kind == StringType()
    )
    return quoted(field) if is_as_it_is else None
