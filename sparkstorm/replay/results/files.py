"""Results in file formats that cannot hold every value: what a format would change is written as
tagged text.

Law: a state that was written is read back as it was, from every format. Left out: refusing such
results, and a file of types next to the data, which SparkStorm alone would read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from sparkstorm.api.value_columns import plain_values
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.values.tagged import is_tagged, tag_text
from sparkstorm.replay.arrow_map import map_in_arrow
from sparkstorm.replay.job import STATE_MARK
from sparkstorm.replay.results.types import in_utc, state_values

CSV = {
    "header": "true",
    # as RFC 4180 has it, and every other reader; Spark's own is a backslash
    "escape": '"',
    "multiLine": "true",
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
"""Spark's options for CSV, to write and to read."""
# JSON itself distinguishes these, so a state of them comes back as it was.
_NAMED_BY_JSON = (StringType, LongType, BooleanType)


def writable(name: str, frame: DataFrame, written: str) -> DataFrame:
    """Return a result as a format can hold it.

    Parquet and ORC hold every column. In JSON and CSV, columns that would come back as others are
    tagged text: bytes, mappings with keys that are not text, in CSV everything nested; of states
    all that is not text, a whole number or true/false, in CSV all of it.
    """
    is_state = name.endswith(STATE_MARK)
    changed = [
        field.name
        for field in frame.schema
        if field.name != "task" or not is_state
        if _would_change(field.dataType, written, is_state)
    ]
    frame = _tagged(frame, changed, is_state) if changed else frame
    return _with_every_line(frame) if written == "csv" and len(frame.columns) == 1 else frame


def check_columns(name: str, columns: Sequence[str]) -> None:
    """Raise InvalidConfigError for names that Spark does not distinguish when it writes files."""
    for index, column in enumerate(columns):
        # A frame may have both, and so may a replay's result: it
        # is the file that Spark cannot read again.
        other = next(
            (earlier for earlier in columns[:index] if earlier.lower() == column.lower()), None
        )
        if other is not None:
            raise InvalidConfigError(
                f"result '{name}': its fields '{other}' and '{column}' cannot be columns of one file, as "
                "Spark does not tell upper from lower case; rename one, or write other results"
            )


def _with_every_line(frame: DataFrame) -> DataFrame:
    """Return a column with an empty text for null: Spark writes no line for a row of null alone."""
    [field] = frame.schema
    column = F.col(f"`{field.name}`")
    text = column if isinstance(field.dataType, StringType) else F.to_csv(F.struct(column))
    return frame.select(F.when(column.isNull(), "").otherwise(text).alias(field.name))


def _would_change(kind: DataType, written: str, is_state: bool) -> bool:
    if written not in ("json", "csv"):
        return False
    if is_state:
        return written == "csv" or not isinstance(
            kind.elementType if isinstance(kind, ArrayType) else kind, _NAMED_BY_JSON
        )
    if written == "csv":
        return isinstance(kind, BinaryType | ArrayType | MapType | StructType)
    return _is_lost_in_json(kind)


def _is_lost_in_json(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_lost_in_json(kind.elementType)
    if isinstance(kind, MapType):
        return not isinstance(kind.keyType, StringType) or _is_lost_in_json(kind.valueType)
    if isinstance(kind, StructType):
        return any(_is_lost_in_json(field.dataType) for field in kind)
    return isinstance(kind, BinaryType)


def _tagged(frame: DataFrame, names: Sequence[str], is_state: bool) -> DataFrame:
    schema = StructType(
        [StructField(f.name, StringType()) if f.name in names else f for f in frame.schema]
    )

    def tag(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            arrays = [
                _texts(name, array, is_state) if name in names else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, batch.schema.names)

    return map_in_arrow(frame, tag, schema)


def _texts(name: str, array: pa.Array, is_state: bool) -> pa.Array:
    if is_state:
        cells = [
            None if value is None else tag_text(value)
            for value in state_values(array, name == "key")
        ]
    else:
        cells = [
            cell if cell is None or is_tagged(cell) else tag_text(cell)
            for cell in plain_values(in_utc(array))
        ]
    return pa.array(cells, pa.string())
