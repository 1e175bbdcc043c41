"""Joins, look-ups and calendar windows of sparkstorm.streams in a replay on Spark: the rows of a live run."""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkstorm.replay import replay
from sparkstorm.streams import local_day
from sparkstorm.testing import complete_topology
from tests.streams import test_calendar as calendar
from tests.streams import test_lookup as look_up
from tests.streams.joining import live_and_replayed, topology
from tests.streams.test_as_of_join import joined as as_of
from tests.streams.test_interval_join import joined as interval

# the law is that of the local replay, in tests/streams
pytestmark = pytest.mark.sampled


@pytest.mark.parametrize(
    "join",
    [interval("full", -20, 35, "alone"), as_of("left", 30, {"r": [1, 4, 7]}, "alone")],
    ids=["interval", "as of"],
)
def test_a_replay_on_spark_has_the_rows_of_a_live_run(spark: SparkSession, join: Any) -> None:
    random = Random(7)
    left, right = (
        [[random.choice([None, 0, 1, 2]), n, random.randrange(400)] for n in range(60)]
        for _ in range(2)
    )
    live, *_ = live_and_replayed(join, left, right)
    frames = {
        "left": spark.createDataFrame(left, "k bigint, l bigint, at bigint").repartition(3),
        "right": spark.createDataFrame(right, "k bigint, r bigint, at bigint").repartition(2),
    }
    results = replay(topology(join), frames, event_time="at")
    found: Counter[Any] = Counter()
    for stream, name in {"default": "join", "alone": "join:alone"}.items():
        found.update((stream, tuple(row)) for row in results[name].collect())
    assert found == live
    assert len(live) >= 60


@pytest.mark.parametrize("bolt", [calendar.Sums(), calendar.Members()], ids=["fold", "window"])
def test_local_days_on_spark_are_those_of_a_live_run(spark: SparkSession, bolt: Any) -> None:
    random = Random(11)
    days_ms = 12 * 24 * calendar.HOUR_MS
    rows = [
        [random.choice("ab"), n, calendar.AROUND + random.randrange(days_ms)] for n in range(80)
    ]
    made = calendar.topology(bolt, local_day("Europe/Berlin"))
    live = complete_topology(made, {"rows": rows})["daily"]
    frame = spark.createDataFrame(rows, "user string, n bigint, at_ms bigint").repartition(3)
    results = replay(made, {"rows": frame}, event_time="at_ms")
    result = sorted(row[:3] for row in live)
    assert result == sorted(tuple(row)[:3] for row in results["daily"].collect())
    if isinstance(bolt, calendar.Sums):
        assert sorted(map(tuple, results["daily"].collect())) == sorted(live)


def countries_of(users: Sequence[str]) -> dict[str, str]:
    return {user: look_up.COUNTRIES[user] for user in users if user in look_up.COUNTRIES}


def test_look_ups_on_spark_are_those_of_the_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "users.jsonl"
    users = [{"user": user, "country": country} for user, country in look_up.COUNTRIES.items()]
    path.write_text("".join(json.dumps(user) + "\n" for user in users))
    rows = [[["ann", "zoe", None][n % 3], n] for n in range(30)]
    made = look_up.topology(look_up.located(countries_of, snapshot=str(path)), tasks=2)
    live = complete_topology(made, {"users": rows})["country"]
    frame = spark.createDataFrame(rows, "user string, n bigint").repartition(2)
    results = replay(made, {"users": frame})
    key = operator.itemgetter(1)
    assert sorted(map(tuple, results["country"].collect()), key=key) == sorted(live, key=key)
