"""Results of two versions compared row by row, in every format that a replay writes."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.driver.replay.compare import compare, text_of
from sparkstorm.driver.replay.run import save

ROWS = [("a", 1, [1, None]), ("a", 1, [1, None]), ("b", 2, None)]
SCHEMA = "key string, value bigint, parts array<int>"


@pytest.mark.parametrize("written", ["parquet", "json"])
def test_rows_are_compared_as_often_as_they_are_there(
    spark: SparkSession, tmp_path: Path, written: str
) -> None:
    for folder, rows in (("old", ROWS), ("same", ROWS[::-1]), ("new", [*ROWS[1:], ("c", 3, [4])])):
        save(spark.createDataFrame(rows, SCHEMA), tmp_path / folder / "count", written)
    assert compare(spark, {"count": tmp_path / "same" / "count"}, tmp_path / "old", written) == []
    (found,) = compare(spark, {"count": tmp_path / "new" / "count"}, tmp_path / "old", written)
    assert (found.result, found.only_here, found.only_there) == ("count", 1, 1)
    text = text_of(found)
    assert '- {"key":"a","parts":[1,null],"value":1}' in text
    assert '+ {"key":"c","parts":[4],"value":3}' in text


def test_a_result_that_the_other_version_has_not_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    save(spark.createDataFrame(ROWS, SCHEMA), tmp_path / "new" / "count", "parquet")
    (tmp_path / "old").mkdir()
    sentence = "there is no count; name the --output of a replay of the other version"
    with pytest.raises(InvalidConfigError, match=sentence):
        compare(spark, {"count": tmp_path / "new" / "count"}, tmp_path / "old", "parquet")
