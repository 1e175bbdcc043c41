"""Owns ColumnBolt: a bolt that takes whole Arrow batches, in a replay; live, every tuple is a batch of one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sparkstorm.api.collector import BasicOutputCollector
from sparkstorm.api.components import BasicBolt
from sparkstorm.model.tuples import Source, Tuple

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch


class BatchCollector(BasicOutputCollector, Protocol):
    """Emits rows, or whole batches whose columns are the stream's fields in their order."""

    def emit_batch(self, batch: RecordBatch, stream: str = "default") -> None:
        """Send every row of a batch to every subscriber of a stream; columns count by place, not by name."""


class ColumnBolt(BasicBolt):
    """Processes `pyarrow.RecordBatch`es: all rows of one come from one source, columns are its fields.

    How rows are cut into batches means nothing: the results must not depend on it. A failing batch leaves no trace and its
    rows are executed one by one, so that only the culprit fails. `execute` may be given as well (live it is faster than
    batches of one row); then both must do the same. `types` gives Arrow types of fields that single rows cannot tell.
    """

    types: Mapping[str, DataType] = {}

    def execute_batch(self, batch: RecordBatch, source: Source, collector: BatchCollector) -> None:
        """Process some rows of one source; raising undoes what was emitted and put for all of them."""
        raise NotImplementedError

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """One row as a batch."""
        batch = batch_of(tup.fields, [[value] for value in tup.values], self.types)
        self.execute_batch(batch, tup.source, RowCollector(collector))


class RowCollector:
    """Emits batches row by row through a collector of rows."""

    def __init__(self, collector: BasicOutputCollector) -> None:
        self.emit = collector.emit
        self.emit_direct = collector.emit_direct
        self.report_error = collector.report_error

    def emit_batch(self, batch: RecordBatch, stream: str = "default") -> None:
        """Send every row."""
        for values in rows_of(batch):
            self.emit(values, stream)


def batch_of(fields: Sequence[str], columns: Sequence[Sequence[Any]], types: Mapping[str, DataType]) -> RecordBatch:
    """Columns of values as a batch; ArrowInvalid or ArrowTypeError when a column would change a value."""
    import pyarrow as pa

    arrays = [_array(column, types.get(field)) for field, column in zip(fields, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(fields))


def _array(column: Sequence[Any], kind: DataType | None) -> Any:
    """Arrow makes one type of several: of whole numbers among others, bytes among text, mappings with different keys."""
    import pyarrow as pa

    if kind is None and len(column) > 1:
        kinds = set(map(type, column)) - {type(None)}
        if len(kinds) > 1 or kinds & {list, dict}:
            names = ", ".join(sorted(k.__name__ for k in kinds))
            raise pa.ArrowInvalid(f"values of {names} in one column need a declared type")
    fitting = None if kind is None else fitting_types(kind)
    if fitting is not None and (other := set(map(type, column)) - fitting - {type(None)}):
        raise pa.ArrowInvalid(f"a value of type {other.pop().__name__} in a column of {kind}")
    return pa.array(column, kind)


def fitting_types(kind: DataType) -> frozenset[type] | None:
    """Return the Python types whose values an Arrow type of scalars holds; None for other types.

    Arrow itself would take 1.5 for the whole number 1, true for 1.0 and bytes for text.
    """
    import pyarrow as pa

    families: list[tuple[Any, frozenset[type]]] = [
        (pa.types.is_boolean, frozenset({bool})),
        (pa.types.is_integer, frozenset({int})),
        (pa.types.is_floating, frozenset({float, int})),
        (pa.types.is_string, frozenset({str})),
        (pa.types.is_large_string, frozenset({str})),
        (pa.types.is_binary, frozenset({bytes})),
        (pa.types.is_large_binary, frozenset({bytes})),
    ]
    return next((types for is_kind, types in families if is_kind(kind)), None)


def rows_of(batch: RecordBatch) -> list[tuple[Any, ...]]:
    """A batch as rows of plain values."""
    if not batch.num_columns:
        return [()] * batch.num_rows
    return list(zip(*[plain_values(column) for column in batch.columns], strict=True))


def plain_values(array: Any) -> list[Any]:
    """Return an Arrow array's values as tuples carry them."""
    import pyarrow as pa

    values: list[Any] = array.to_pylist()
    return [_plain(value, array.type) for value in values] if pa.types.is_nested(array.type) else values


def _plain(value: Any, kind: Any) -> Any:
    """Maps come out of Arrow as lists of pairs."""
    import pyarrow as pa

    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    return [_plain(item, kind.value_type) for item in value]
