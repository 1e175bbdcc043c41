"""Differences between the versions of PySpark, 3.5 to 4.3: the private or moved parts that
SparkStorm calls, by version.

Nothing else in the package asks for a version of PySpark.
"""

import functools
import importlib
import re
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark import accumulators
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

if TYPE_CHECKING:
    import pyarrow as pa


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: of "4.0.5.dev1" 4, 0 and 5."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


VERSION: Final = version_of(pyspark.__version__)
# the converters to Arrow; older ones take UTC for times with a zone
_NAMES_TIMEZONE: Final = VERSION >= (4, 2, 1)
_BITS: Final = 0xFFFFFFFF
_DEALS_BY_ID: Final = VERSION >= (4, 1)  # has DataFrame.repartitionById
HAS_UNION_BY_PLACE: Final = VERSION >= (4, 1)
"""Whether Spark has `SQLPartitioningAwareUnionRDD`, which joins the n-th partitions of several RDDs
without a shuffle.
"""
# DataFrame is the class of classic frames, not a parent of it and of Spark Connect's
_IS_ONE_CLASS: Final = VERSION < (4, 0)


class _NoType(DataType):
    """The type of a value that this Spark does not have."""


def _found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


CLASSIC_FRAME: Final[Any] = (
    DataFrame if _IS_ONE_CLASS else _found("pyspark.sql.classic.dataframe", "DataFrame")
)
"""Class of the DataFrames of a session in this process."""
VARIANT: Final[Any] = _NoType if _IS_ONE_CLASS else _found("pyspark.sql.types", "VariantType")
"""Class of the type VARIANT; one that no column has where Spark does not know it."""
MAP_IN_ARROW: Final[int] = _found(
    "pyspark.rdd" if _IS_ONE_CLASS else "pyspark.util", "PythonEvalType"
).SQL_MAP_ARROW_ITER_UDF
"""Kind of a function from batches of Arrow to batches of Arrow."""


def accumulator_server() -> Any:
    """Return the class of the server that takes the updates of accumulators over TCP."""
    module: Any = accumulators
    return getattr(module, "AccumulatorTCPServer", None) or module.AccumulatorServer


def arrow_type(kind: DataType) -> "pa.DataType":
    """Return Arrow's type of a Spark type, times in UTC; PySparkTypeError when there is none."""
    convert: Any = to_arrow_type
    made: pa.DataType = convert(kind, timezone="UTC") if _NAMES_TIMEZONE else convert(kind)
    return made


def arrow_schema(schema: StructType) -> "pa.Schema":
    """Return Arrow's schema of a Spark schema, times in UTC."""
    convert: Any = to_arrow_schema
    made: pa.Schema = convert(schema, timezone="UTC") if _NAMES_TIMEZONE else convert(schema)
    return made


def java_map_in_arrow(frame: DataFrame, column: Column) -> Any:
    """Return the Java frame of a frame and the call of a function of kind MAP_IN_ARROW."""
    java: Any = frame._jdf
    made: Any = column
    return (
        java.pythonMapInArrow(made._jc.expr(), False)
        if _IS_ONE_CLASS
        else java.mapInArrow(made._jc, False, None)
    )


def dealt_by_id(frame: DataFrame, width: int, place: Column) -> DataFrame:
    """Return the rows in `width` partitions, each row in the one that an INT expression gives, 0 to
    `width` - 1.
    """
    if _DEALS_BY_ID:
        given: Any = frame
        dealt: DataFrame = given.repartitionById(width, place)
        return dealt
    # Without that operator a number is given whose hash, by which Spark deals rows, is that place
    key = sf.element_at(
        sf.array(*(sf.lit(each) for each in keys_by_place(width))), place + sf.lit(1)
    )
    return frame.repartition(width, key)


@functools.cache
def keys_by_place(width: int) -> tuple[int, ...]:
    """Return the least whole number that Spark's hash partitioning brings to each of `width`
    partitions.
    """
    found: dict[int, int] = {}
    number = 0
    while len(found) < width:
        found.setdefault(spark_hash(number) % width, number)
        number += 1
    return tuple(found[place] for place in range(width))


def spark_hash(number: int) -> int:
    """Return Spark's hash of an INT of 0 or more: Murmur3 of 32 bits with the seed 42, signed."""
    mixed = _rotated(number * 0xCC9E2D51 & _BITS, 15) * 0x1B873593 & _BITS
    state = (_rotated(42 ^ mixed, 13) * 5 + 0xE6546B64 & _BITS) ^ 4
    state = (state ^ state >> 16) * 0x85EBCA6B & _BITS
    state = (state ^ state >> 13) * 0xC2B2AE35 & _BITS
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 32 - by) & _BITS
