"""A replay owns the order of history: partitions by number, wherever Spark keeps them and however
it joins them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkstorm.replay import EventTime, replay
from sparkstorm.replay.history_order import grouped
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Pass
from tests.replay.conftest import Session
from tests.replay.test_lateness import history, summed

pytestmark = [pytest.mark.system, pytest.mark.nightly]
COUNT = 400
Row = tuple[Any, ...]
Make = Callable[[SparkSession, list[Row], int, Path], DataFrame]


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session with this many cores."""
    session = Session()
    yield session.get(f"local[{request.param}]", partitions=5)
    session.stop()


def made(spark: SparkSession, rows: list[Row], partitions: int, folder: Path) -> DataFrame:
    """The rows in order, in slices of the driver's list."""
    schema = "key string, value long, ts long, arrival long"
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), schema)


def cached(spark: SparkSession, rows: list[Row], partitions: int, folder: Path) -> DataFrame:
    """A frame whose places Spark knows, since it keeps it."""
    frame = made(spark, rows, partitions, folder).cache()
    frame.count()
    return frame


def ranged(spark: SparkSession, rows: list[Row], partitions: int, folder: Path) -> DataFrame:
    """A shuffled frame with a number of partitions."""
    return (
        made(spark, rows, 3, folder)
        .repartitionByRange(partitions, "arrival")
        .sortWithinPartitions("arrival")
    )


def ordered(spark: SparkSession, rows: list[Row], partitions: int, folder: Path) -> DataFrame:
    """A sorted frame, whose partitions Spark chooses."""
    return made(spark, Random(1).sample(rows, len(rows)), partitions, folder).orderBy("arrival")


def united(spark: SparkSession, rows: list[Row], partitions: int, folder: Path) -> DataFrame:
    """A cached half before one that is not."""
    half = len(rows) // 2
    return cached(spark, rows[:half], partitions, folder).union(
        made(spark, rows[half:], partitions, folder)
    )


def read(spark: SparkSession, rows: list[Row], partitions: int, folder: Path) -> DataFrame:
    """A Parquet file for every partition, all of about one size."""
    for number in range(partitions):
        part = rows[len(rows) * number // partitions : len(rows) * (number + 1) // partitions]
        made(spark, part, 1, folder).coalesce(1).write.mode("append").parquet(
            str(folder / f"{number:02}")
        )
    frames = [spark.read.parquet(str(folder / f"{number:02}")) for number in range(partitions)]
    first, *others = frames
    for frame in others:
        first = first.union(frame)
    return first


MAKES: list[Make] = [made, cached, ranged, ordered, united, read]


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
def test_late_rows_and_windows_are_those_of_the_live_run(
    spark: SparkSession, make: Make, tmp_path: Path
) -> None:
    """With adaptive execution on two of the four masters, each frame on other ones; with event time
    on two of them.
    """
    cores = spark.sparkContext.defaultParallelism
    spark.conf.set("spark.sql.adaptive.enabled", (cores + MAKES.index(make)) % 2 == 0)
    random = Random(f"{cores} {make.__name__}")
    rows = [(*row[:3], n) for n, row in enumerate(history(random.randrange(99), COUNT))]
    partitions = random.choice([1, 3, 5, 7, 8, 12, 17])
    live = complete_topology(summed(Pass(), tasks=1), {"source": rows}, seed=1)
    frame = make(spark, rows, partitions, tmp_path)
    has_time = cores % 2 == 0
    time = EventTime("ts", in_order=False) if has_time else None
    results = replay(summed(Pass(), tasks=1 + has_time), {"source": frame}, event_time=time)
    told = f"{partitions} partitions"
    assert Counter(map(tuple, results["sum"].collect())) == Counter(live["sum"]), told
    late_ms = Counter(row.time_ms for row in results["sum:late"].collect())
    assert late_ms == Counter(row[2] for row in live.values("sum", "late")) and late_ms, told
    results.close()
    frame.unpersist()


@pytest.mark.parametrize("spark", [2], indirect=True)
def test_partitions_are_joined_with_their_neighbours_into_groups_of_one_size(
    spark: SparkSession,
) -> None:
    """300 partitions in 2 groups take two levels of unions."""
    for count, width in [
        *((count, width) for count in (1, 2, 5, 16, 17) for width in (1, 3, 7)),
        (300, 2),
        (257, 16),
    ]:
        frame = grouped(spark.range(0, 2 * count, 1, count), width)
        places = [
            (row.place, row.id)
            for row in frame.select(sf.spark_partition_id().alias("place"), "id").collect()
        ]
        assert places == sorted(places) and [id for _, id in places] == list(range(2 * count))
        sizes = Counter(place for place, _ in places)
        assert len(sizes) == min(count, width)
        assert max(sizes.values()) - min(sizes.values()) <= 2 * (1 if count <= 16 * width else 16)
