"""Comparison of two replays' result folders, row by row: the effect of another version of the code
on the same history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.replay.results.files import CSV

DIFFERS = 4
"""Exit status of a replay whose results differ from those that it is compared with."""
_SHOWN = 5
_CHARS = 300


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows of one result that only one of the two versions has; rows that a version has twice count
    twice.
    """

    result: str
    only_here: int
    only_there: int
    samples: tuple[str, ...]  # "+ row" of this version, "- row" of the other


def compare(
    spark: SparkSession, ours: Mapping[str, Path], against: Path, written: str
) -> list[Difference]:
    """Compare each result folder with the folder of the same name below `against`;
    InvalidConfigError when it is not there.
    """
    differences = []
    for result, folder in ours.items():
        there = against / folder.name
        if not there.is_dir():
            raise InvalidConfigError(
                f"--against {against}: there is no {folder.name}; name the --output of a replay of the other version, "
                "with the same results and --output-format"
            )
        difference = _difference(
            result, _rows(spark, folder, written), _rows(spark, there, written)
        )
        differences += [difference] if difference else []
    return differences


def _rows(spark: SparkSession, folder: Path, written: str) -> DataFrame:
    """Each row as one text."""
    try:
        frame = (
            spark.read.format(written)
            .options(**(CSV if written == "csv" else {}))
            .load(str(folder))
        )
    except AnalysisException:  # a folder without a row has no schema
        frame = spark.createDataFrame([], "value string")
    ordered = [F.col(f"`{name}`") for name in sorted(frame.columns)]
    text = F.to_json(F.struct(*ordered), {"ignoreNullFields": "false"})
    return frame.select(text.alias("row"))


def _difference(result: str, here: DataFrame, there: DataFrame) -> Difference | None:
    both = here.withColumn("one", F.lit(1)).unionAll(there.withColumn("one", F.lit(-1)))
    apart = both.groupBy("row").agg(F.sum("one").alias("more")).where("more != 0").cache()
    try:
        sums = [F.sum(F.greatest(sign * F.col("more"), F.lit(0))) for sign in (1, -1)]
        counted = apart.agg(
            *(column.alias(name) for column, name in zip(sums, ("here", "there"), strict=True))
        ).first()
        if counted is None or not (counted["here"] or counted["there"]):
            return None
        rows = apart.orderBy("row").limit(_SHOWN).collect()
    finally:
        apart.unpersist()
    samples = tuple(f"{'+' if row['more'] > 0 else '-'} {row['row'][:_CHARS]}" for row in rows)
    return Difference(result, int(counted["here"] or 0), int(counted["there"] or 0), samples)


def text_of(difference: Difference) -> str:
    """Return a difference as readable text, with its first rows."""
    head = (
        f"different: '{difference.result}' has {difference.only_here:,} rows that the other version has not, "
        f"and lacks {difference.only_there:,} of its rows"
    )
    return "\n".join([head, *(f"  {sample}" for sample in difference.samples)])
