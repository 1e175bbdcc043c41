"""ColumnBolt: a bolt that takes whole Arrow batches, live and in a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

from sparkstorm.api.collector import BasicOutputCollector
from sparkstorm.api.components import BasicBolt
from sparkstorm.api.value_columns import declared_array, exact_array, plain_values
from sparkstorm.common.errors import CodecError, InvalidTopologyError
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.column_types import ColumnType

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch


_ALIASES = {
    "boolean": "bool", "tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64",
    "float": "float", "double": "double", "string": "string", "binary": "binary",
    "date": "date32",
}  # fmt: skip
WHOLE = ("tinyint", "smallint", "int", "bigint")
EXACT = frozenset(_ALIASES) - {"float"}  # types whose Arrow type has the value of each tuple


class BatchCollector(BasicOutputCollector, Protocol):
    """Collector that also emits whole batches."""

    def emit_batch(self, batch: RecordBatch, stream: str = "default") -> None:
        """Send every row of a batch to every subscriber; columns are the stream's fields by
        position.
        """


class ColumnBolt(BasicBolt):
    """Bolt that processes `pyarrow.RecordBatch`es, whose columns are the fields of one stream of
    one component.

    Live, a batch is what waits for the task, 65,536 rows at the most; `source.task` is the task of
    its first row. Results must not depend on how rows are cut into batches. A batch that fails is
    undone and its rows are executed one by one. What a batch emits descends from all of its rows. A
    class may define `execute` too, for batches of a few rows; both must do the same. `types` gives
    Arrow types of fields that the values of one row do not determine. Values without an Arrow type
    are cells of their own (docs/values.md).
    """

    types: Mapping[str, DataType] = {}

    def execute_batch(self, batch: RecordBatch, source: Source, collector: BatchCollector) -> None:
        """Process rows of one source; an exception undoes what was emitted and put for all of them."""
        raise NotImplementedError

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Process one row as a batch."""
        batch = batch_of(tup.fields, [[value] for value in tup.values], self.types)
        self.execute_batch(batch, tup.source, RowCollector(collector))


class RowCollector:
    """Collector that emits batches row by row through another collector."""

    def __init__(self, collector: BasicOutputCollector) -> None:
        self.emit = collector.emit
        self.emit_direct = collector.emit_direct
        self.report_error = collector.report_error

    def emit_batch(self, batch: RecordBatch, stream: str = "default") -> None:
        """Send every row of a batch; CodecError names a column whose values no tuple carries."""
        check_batch(batch)
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                columns.append(plain_values(column))
            except CodecError as error:
                raise CodecError(f"stream '{stream}', field '{name}': {error}") from error
        rows = zip(*columns, strict=True) if columns else repeat((), batch.num_rows)
        for values in rows:
            self.emit(values, stream)


def check_batch(batch: object) -> None:
    """InvalidTopologyError for what is no batch."""
    import pyarrow as pa

    if not isinstance(batch, pa.RecordBatch):
        what = (
            "a Table, whose to_batches() gives batches"
            if isinstance(batch, pa.Table)
            else f"{batch!r:.80}"
        )
        raise InvalidTopologyError(f"emit_batch needs a pyarrow.RecordBatch, not {what}")


def batch_of(
    fields: Sequence[str], columns: Sequence[Sequence[Any]], types: Mapping[str, DataType]
) -> RecordBatch:
    """Return columns of values as a batch, each value unchanged.

    ArrowInvalid for several rows that need more than one type; CodecError names a field whose
    declared type does not hold a value.
    """
    import pyarrow as pa

    arrays = [
        _array(field, column, types.get(field))
        for field, column in zip(fields, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, list(fields))


def _array(field: str, column: Sequence[Any], kind: DataType | None) -> Any:
    import pyarrow as pa

    if kind is None:
        return exact_array(column)
    try:
        return declared_array(column, kind)
    except pa.ArrowException as error:
        raise CodecError(
            f"field '{field}': {error}; declare another type of it, or none"
        ) from error


def arrow_type(kind: ColumnType) -> DataType:
    """Return the Arrow type of a declared one."""
    import pyarrow as pa

    parts = [(name, arrow_type(part)) for name, part in kind.parts]
    if kind.name == "array":
        return pa.list_(parts[0][1])
    if kind.name == "map":
        return pa.map_(parts[0][1], parts[1][1])
    if kind.name.startswith("decimal"):
        return pa.decimal128(*map(int, kind.name[8:-1].split(",")))
    if kind.name == "timestamp":
        return pa.timestamp("us", "UTC")
    return pa.struct(parts) if kind.name == "struct" else pa.type_for_alias(_ALIASES[kind.name])


def is_of_type(kind: Any, declared: str) -> bool:
    """Return whether an Arrow type has the Python values of a declared one; nested types are not
    compared.
    """
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    checks = {
        "boolean": pa.types.is_boolean,
        "binary": lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
    }
    checks |= {
        "date": pa.types.is_date,
        "string": lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
    }
    checks |= dict.fromkeys(WHOLE, pa.types.is_integer)
    checks |= dict.fromkeys(
        ("float", "double"), lambda t: pa.types.is_floating(t) or pa.types.is_integer(t)
    )
    checks["timestamp"] = lambda t: pa.types.is_timestamp(t) and t.tz is not None
    return bool(pa.types.is_null(kind) or checks.get(declared, lambda t: True)(kind))


def holds_all(kind: ColumnType, column: Any) -> bool:
    """Return whether a declared type holds each value of an Arrow column; False also where only
    the values themselves could tell.
    """
    import pyarrow as pa

    wanted = arrow_type(kind)
    if column.type == wanted or pa.types.is_null(column.type):
        return True
    if kind.name == "float" or kind.parts or not is_of_type(column.type, kind.name):
        return False
    if kind.name in ("boolean", "string", "binary", "date"):
        return True
    if kind.name not in (*WHOLE, "double"):
        return False
    try:
        column.cast(wanted)
    except pa.ArrowInvalid:  # a number beyond its range
        return False
    return True


def rows_of(batch: RecordBatch) -> list[tuple[Any, ...]]:
    """Return a batch as rows of plain values."""
    return list(values_of(batch))


def values_of(batch: RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a batch as plain values."""
    if not batch.num_columns:
        return repeat((), batch.num_rows)
    return zip(*[plain_values(column) for column in batch.columns], strict=True)
