"""Differences between the versions of PySpark."""

from __future__ import annotations

import re
import sys

import pyarrow as pa
import pyspark
import pytest
from pyspark import SparkConf
from pyspark.sql.types import LongType, StructType

from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError
from sparkstorm.common.grouping.hashing import stable_hash
from sparkstorm.common.spark_versions import (
    arrow_schema,
    numbers_by_partition,
    spark_schema,
    unfit,
    unfit_here,
    version_of,
)
from sparkstorm.connectors.spark import SparkSource
from sparkstorm.driver.hosting import spark


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


@pytest.mark.parametrize("width", [1, 2, 3, 7, 200])
def test_each_place_has_a_number_that_is_dealt_to_it(width: int) -> None:
    assert [stable_hash(key) % width for key in numbers_by_partition(width)] == list(range(width))


@pytest.mark.parametrize(
    ("version", "python", "has_distutils", "sentence"),
    [
        ("3.4.4", (3, 11), True, "PySpark 3.4.4 is too old: install 3.5 or newer"),
        ("3.5.9", (3, 11), True, ""),
        ("3.5.9", (3, 12), True, ""),  # setuptools brings distutils along
        (
            "3.5.9",
            (3, 13),
            False,
            "PySpark 3.5.9 imports distutils, which Python 3.13 lacks: use Python 3.11",
        ),
        ("4.0.0", (3, 12), False, ""),
        ("4.3.0", (3, 14), False, ""),
    ],
)
def test_a_pyspark_that_cannot_work_is_named_with_its_mend(
    version: str, python: tuple[int, int], has_distutils: bool, sentence: str
) -> None:
    said = unfit(version, python, has_distutils)
    assert said.startswith(sentence) and bool(said) == bool(sentence)


def test_this_pyspark_works_and_one_that_does_not_is_refused_before_a_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert unfit_here() == ""
    monkeypatch.setattr(spark, "unfit_here", lambda: "PySpark 3.4.4 is too old")
    with pytest.raises(InvalidConfigError, match=r"PySpark 3\.4\.4 is too old"):
        spark.slot_conf(SparkConf(loadDefaults=False))


def test_data_sources_are_refused_by_a_pyspark_that_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with 3.5, which has no module of data sources."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    sentence = f"PySpark {pyspark.__version__} has no data sources in Python: use PySpark 4.0 or"
    with pytest.raises(InvalidTopologyError, match=re.escape(sentence)):
        SparkSource(object, schema="number bigint")  # type: ignore[arg-type]


def test_schemas_are_the_same_with_every_version() -> None:
    """The defaults of PySpark's converters for times changed in 4.2."""
    schema = pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("n", pa.int64())]
    )
    made = spark_schema(schema)
    assert [each.dataType.typeName() for each in made] == ["timestamp", "timestamp_ntz", "long"]
    assert arrow_schema(made) == schema
    assert arrow_schema(StructType().add("n", LongType())) == pa.schema([("n", pa.int64())])
