"""Differences between the versions of PySpark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from sparkstorm.hosting.spark_versions import (
    arrow_schema,
    keys_by_place,
    spark_hash,
    spark_schema,
    version_of,
)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4.3.0", (4, 3, 0)),
        ("4.0.5.dev1", (4, 0, 5)),
        ("3.5", (3, 5)),
        ("4.2.0+custom", (4, 2, 0)),
        ("", ()),
    ],
)
def test_a_version_is_its_leading_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_of(text) == numbers


def test_the_hash_is_that_of_sparks_sql() -> None:
    """Spark 4.3: SELECT hash(0), hash(1), hash(7), hash(2147483647)."""
    assert [spark_hash(number) for number in (0, 1, 7, 2147483647)] == [
        933211791,
        -559580957,
        1079293707,
        133916647,
    ]


@pytest.mark.parametrize("width", [1, 2, 3, 7, 200])
def test_each_place_has_a_number_that_is_dealt_to_it(width: int) -> None:
    assert [spark_hash(key) % width for key in keys_by_place(width)] == list(range(width))


def test_schemas_are_the_same_with_every_version() -> None:
    """The defaults of PySpark's converters for times changed in 4.2."""
    schema = pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("n", pa.int64())]
    )
    made = spark_schema(schema)
    assert [each.dataType.typeName() for each in made] == ["timestamp", "timestamp_ntz", "long"]
    assert arrow_schema(made) == schema
    assert arrow_schema(StructType().add("n", LongType())) == pa.schema([("n", pa.int64())])
