"""A task of Spark that dies in the middle of a stage: what it did is done again, and the results
are what they would be.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Effects,
    StatefulBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.api.components import Conf
from sparkstorm.replay import replay
from tests.replay.bolts import Source

pytestmark = pytest.mark.system
MASTER = "local[2,3]"  # a task is tried three times


def die_once(mark: str, seen: int) -> None:
    """Kill this worker at its 500th row, if nobody did before."""
    if seen == 500 and not Path(mark).exists():
        Path(mark).touch()
        os._exit(9)


class Passes(BasicBolt):
    outputs = ("n",)

    def __init__(self, mark: str) -> None:
        self.mark, self.seen = mark, 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.seen += 1
        die_once(self.mark, self.seen)
        collector.emit((tup["n"],))


class Sums(StatefulBolt):
    order_insensitive = True

    def __init__(self, mark: str) -> None:
        self.mark, self.seen = mark, 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.seen += 1
        die_once(self.mark, self.seen)
        self.state.add(tup["n"] % 7, tup["n"])


class Writes(BasicBolt):
    """An effect: one line per attempt, in a file of its effect's name; dies in the middle once."""

    effects: Effects | None = Effects.IDEMPOTENT

    def __init__(self, folder: str, mark: str) -> None:
        self.folder, self.mark, self.seen = folder, mark, 0

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.context = context

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.seen += 1
        die_once(self.mark, self.seen)
        with Path(self.folder, str(self.context.effect_key()).replace("/", "-")).open("a") as file:
            file.write(f"{tup['n']}\n")


class Alerts(Writes):
    effects = None  # it could do nothing else than have effects, so it does not run


def test_a_retry_repeats_effects_under_the_keys_they_had_and_muted_ones_never_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in ("writes", "alerts")}
    for folder in folders.values():
        folder.mkdir()
    builder = TopologyBuilder()
    builder.set_spout("source", Source("n"))
    builder.set_bolt(
        "writes", Writes(str(folders["writes"]), str(tmp_path / "died")), 2
    ).fields_grouping("source", "n")
    builder.set_bolt(
        "alerts", Alerts(str(folders["alerts"]), str(tmp_path / "never"))
    ).global_grouping("source")
    replay(builder.build(), {"source": spark.range(2_000).toDF("n")}).run()
    lines = [file.read_text().split() for file in folders["writes"].iterdir()]
    assert (tmp_path / "died").exists() and max(map(len, lines)) > 1, "nothing was tried again"
    assert sorted(int(line) for of_key in lines for line in set(of_key)) == list(range(2_000)), (
        "a key for every input, and one"
    )
    assert all(len(set(of_key)) == 1 for of_key in lines)
    assert not any(folders["alerts"].iterdir())


def test_a_task_that_spark_divided_data_for_is_done_again_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("n"))
    builder.set_bolt("sums", Sums(str(tmp_path / "died")), 2).fields_grouping("source", "n")
    results = replay(
        builder.build(),
        {"source": spark.range(4_000).toDF("n")},
        types={"sums!state": "key bigint, value bigint"},
    )
    found: Counter[int] = Counter()
    for row in results.state("sums").collect():
        found[row.key] += row.value
    assert (tmp_path / "died").exists()
    assert found == {n: sum(range(n, 4_000, 7)) for n in range(7)}


def test_a_stage_whose_worker_dies_is_done_again_and_nothing_is_doubled(
    spark: SparkSession, tmp_path: Path
) -> None:
    marks = [tmp_path / name for name in ("passes", "sums")]
    builder = TopologyBuilder()
    builder.set_spout("source", Source("n"))
    builder.set_bolt("passes", Passes(str(marks[0])), 2).shuffle_grouping("source")
    builder.set_bolt("sums", Sums(str(marks[1])), 2).fields_grouping("passes", "n")
    results = replay(
        builder.build(),
        {"source": spark.range(4_000).toDF("n")},
        outputs=["sums!state"],
        types={"sums!state": "key bigint, value bigint"},
    )
    found: Counter[int] = Counter()
    for row in results["sums!state"].collect():
        found[row.key] += row.value
    assert all(mark.exists() for mark in marks)
    assert found == {n: sum(range(n, 4_000, 7)) for n in range(7)}
    assert {name: counts["executed"] for name, counts in results.counts.items()} == {
        "passes": 4_000,
        "sums": 4_000,
    }
