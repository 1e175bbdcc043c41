"""Owns the division of data by Spark itself: where no Python needs to see a row before its task does, and the live hash in SQL.

A row of data that goes to one bolt by its key, and whose place among others means nothing to that bolt, is brought to its
task by Spark's own shuffle. Laws: a key's task is that of live (`grouping.hashing`), for every type of key that is divided
so; `checked_places` looks whether it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, BooleanType, ByteType, DataType, IntegerType, LongType, ShortType, StringType, StructType

from sparkstorm.api.columns import rows_of
from sparkstorm.api.combining import CombiningBolt
from sparkstorm.api.components import Stateful
from sparkstorm.api.windows import TimedBolt, WindowedBolt
from sparkstorm.errors import ReplayFailedError
from sparkstorm.grouping.hashing import stable_hash
from sparkstorm.model.topology import Component, Subscription
from sparkstorm.replay.arrow_map import quoted
from sparkstorm.replay.job import Job
from sparkstorm.replay.plan import Plan, Stage

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_GOLDEN_PARTS = 0x9E37, 0x79B9, 0x7F4A, 0x7C15  # the factor of stable_hash, whose product would overflow a SQL long


def sql_shuffled_input(plan: Plan, job: Job, stage: Stage) -> Subscription | None:
    """The stage's only input, if it is data that Spark may divide among the tasks."""
    bolt = plan.topology.components[stage.bolts[0]]
    if job.is_timed or not job.shortcuts or job.skip_bad or job.newest_ms is not None or len(bolt.inputs) != 1:
        return None
    if not getattr(bolt.instance, "any_order", False) or isinstance(bolt.instance, CombiningBolt | WindowedBolt | TimedBolt):
        return None  # what is combined before it travels is less
    only = bolt.inputs[0]
    source = plan.stage_of(only.component, only.stream)
    is_bare = source.feed is not None and not source.bolts and len(plan.tasks(only.component)) == 1
    is_sole = is_bare and only.grouping.kind == "fields" and len(plan.readers(source)) == 1
    return only if is_sole and not _minds_order(plan, bolt) else None


def _minds_order(plan: Plan, bolt: Component) -> bool:
    """Whether anything behind a bolt looks at an order that would be another one in every run."""
    behind, found = [bolt], {bolt.id}
    while behind:
        component = behind.pop()
        minds = isinstance(component.instance, Stateful) and not getattr(component.instance, "any_order", False)
        if minds or component.id in plan.idempotent:
            return True
        next_ones = [c for c in plan.topology if c.id not in found and any(s.component == component.id for s in c.inputs)]
        found.update(c.id for c in next_ones)
        behind += next_ones
    return False


def place_of(fields: Sequence[str], schema: StructType, width: int) -> str | None:
    """stable_hash of these fields modulo the number of tasks, in Spark's SQL; None for types that have no such words.

    The product modulo 2**64 is taken in parts of 16 bits of its factor, which fit a long; of them only bits 32 to 63 are
    wanted.
    """
    if width == 1:
        return "0"
    spelt = [_spelt(field, schema[field].dataType) for field in fields]
    if None in spelt:
        return None
    crc = f"crc32({_listed([s for s in spelt if s is not None])})"
    a, b, c, d = _GOLDEN_PARTS
    low = f"(({crc} * {c} + shiftright({crc} * {d}, 16)) DIV 65536)"
    high = f"(({crc} * {a} % 65536) * 65536 + {crc} * {b})"
    return f"CAST((({high} + {low}) & 4294967295L) % {width} AS INT)"


def is_known_empty(frame: DataFrame) -> bool:
    """Whether Spark knows without a look that there are no rows: it would not even begin the tasks then."""
    most: Any = frame._jdf.queryExecution().optimizedPlan().maxRows()
    return bool(most.isDefined() and most.get() == 0)


def checked_places(batches: Iterable[pa.RecordBatch], positions: Sequence[int], place: int, width: int) -> Iterator[pa.RecordBatch]:
    """The batches, of each of which one row was looked at: it is where live it would be."""
    for batch in batches:
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
    """As `canonical_bytes` spells it; put together as bytes, which costs Spark half of what it does as text."""
    if isinstance(kind, _WHOLE):
        return _marked("i", f"CAST({quoted(field)} AS STRING)")
    if isinstance(kind, BooleanType):
        return _marked("i", f"CAST(CAST({quoted(field)} AS INT) AS STRING)")
    if type(kind) is StringType and kind == StringType():  # none with a collation of its own
        return _marked("s", quoted(field))
    return _marked("b", quoted(field)) if isinstance(kind, BinaryType) else None


def _marked(mark: str, text: str) -> str:
    return f"coalesce(concat({_bytes(mark)}, CAST({text} AS BINARY)), {_bytes('n')})"


def _listed(spelt: Sequence[str]) -> str:
    if len(spelt) == 1:
        return spelt[0]
    sized = ", ".join(f"CAST(CAST(octet_length({s}) AS STRING) AS BINARY), {_bytes(':')}, {s}" for s in spelt)
    return f"concat({_bytes('l')}, {sized})"


def _bytes(text: str) -> str:
    return f"X'{text.encode().hex()}'"
