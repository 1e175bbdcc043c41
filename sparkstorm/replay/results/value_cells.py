"""Columns of frames whose cells are values of any type: text of JSON with tags, marked in the
frame's schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from sparkstorm.api.value_columns import value_type
from sparkstorm.common.model.values.tagged import from_json, tag_text, to_json
from sparkstorm.common.spark_versions import spark_schema
from sparkstorm.replay.arrow_map import map_in_arrow

_MARK = "sparkstorm: values"


def values_schema(types: Mapping[str, pa.DataType | None]) -> StructType:
    """Return the schema of a frame with columns of these types, of values for None."""
    plain = spark_schema(pa.schema([(name, kind or pa.string()) for name, kind in types.items()]))
    return StructType(
        [
            StructField(field.name, field.dataType, True, {_MARK: True} if kind is None else {})
            for field, kind in zip(plain, types.values(), strict=True)
        ]
    )


def value_columns(frame: DataFrame) -> frozenset[str]:
    """Return the columns of a frame whose cells are values of any type."""
    return frozenset(field.name for field in frame.schema if _MARK in field.metadata)


def value_cells(values: Sequence[Any]) -> pa.Array:
    """Return values as the cells of a column."""
    # Numbers by hand: they are most of such values, and a call of `to_json` takes 4 us.
    cells = [
        None
        if value is None
        else repr(value)
        if type(value) is int or (type(value) is float and isfinite(value))
        else to_json(value)
        for value in values
    ]
    return pa.array(cells, pa.string())


def as_values(batch: pa.RecordBatch, columns: frozenset[str]) -> pa.RecordBatch:
    """Return a batch whose columns of these names hold values."""
    if not columns:
        return batch
    arrays = [
        pa.ExtensionArray.from_storage(value_type(), array.cast(pa.string()))
        if name in columns
        else array
        for name, array in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def as_results(frame: DataFrame, columns: frozenset[str]) -> DataFrame:
    """Return a frame whose columns of these names are text as those of results: tagged where no
    text is meant.
    """
    if not columns:
        return frame

    def tagged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            arrays = [
                pa.array(
                    [None if c is None else tag_text(from_json(c)) for c in array.to_pylist()],
                    pa.string(),
                )
                if name in columns
                else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, batch.schema.names)

    fields = [StructField(field.name, field.dataType) for field in frame.schema]
    return map_in_arrow(frame, tagged, StructType(fields))
