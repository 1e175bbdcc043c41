"""A replay on real Spark: the same results as the local twin, whatever Spark does to partitions."""

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
    TopologyContext,
    Tuple,
)
from sparkstorm.api.components import Conf
from sparkstorm.replay import replay, replay_locally
from sparkstorm.replay.evidence import Evidence
from tests.replay.bolts import LINES, WORDS, Counted, Source, Timed, many_streams, word_count
from tests.topologies import building

pytestmark = pytest.mark.system


def test_the_word_count_over_a_frame_gives_words_and_counts(spark: SparkSession) -> None:
    results = replay(
        word_count(), {"lines": spark.createDataFrame(LINES, "line string").repartition(3)}
    )
    assert list(results) == ["lines", "split", "count", "count!state"]
    assert {row.key: row.value for row in results["count!state"].collect()} == WORDS
    assert Counter(row.word for row in results["split"].collect()) == WORDS
    assert results["count"].columns == ["word", "count"]


def test_every_grouping_gives_what_the_local_twin_gives(spark: SparkSession) -> None:
    numbers = [(n,) for n in range(50)]
    local = replay_locally(many_streams(), {"numbers": numbers}, partitions=2)
    results = replay(
        many_streams(), {"numbers": spark.createDataFrame(numbers, "n int").coalesce(2)}
    )
    for name in ("all", "global", "direct"):
        assert {(r.key, r.value) for r in results.state(name).collect()} == set(
            local.states[name].items()
        ), name
    for name in ("sort:even", "sort:odd", "sort:to"):
        assert sorted(map(tuple, results[name].collect())) == sorted(local[name]), name


def test_a_bolt_runs_once_however_many_results_are_used(spark: SparkSession) -> None:
    results = replay(word_count(2, 3), {"lines": spark.createDataFrame(LINES, "line string")})
    for name in ("split", "count", "count!state", "split"):
        assert results[name].count() == len(results[name].collect())
    results.run()
    result = {name: counts["prepared"] for name, counts in results.counts.items()}
    assert result == {"split": 2, "count": 3}
    result = {name: counts["executed"] for name, counts in results.counts.items()}
    assert result == {"split": 5, "count": 8}


def test_metrics_of_user_code_are_those_of_the_local_twin_also_when_tasks_run_twice(
    spark: SparkSession,
) -> None:
    builder = building(lines=Source("line"))
    builder.set_bolt("counted", Counted(), 2).shuffle_grouping("lines")
    topology = builder.build()
    local = replay_locally(topology, {"lines": LINES}).metrics
    results = replay(
        topology, {"lines": spark.createDataFrame(LINES, "line string").repartition(3)}
    )
    results.run()
    assert results.metrics == local and local["counted"]["lines"].value == len(LINES)
    results.close()
    results["counted"].collect()
    assert results.metrics == local


def test_results_that_were_let_go_are_computed_again_and_are_the_same(spark: SparkSession) -> None:
    results = replay(
        word_count(2, 3), {"lines": spark.createDataFrame(LINES, "line string").repartition(3)}
    )
    first = sorted(map(tuple, results["count"].collect()))
    results.close()
    assert sorted(map(tuple, results["count"].collect())) == first
    assert results.counts["count"]["prepared"] == 3  # a task that ran twice counts once


def test_a_report_that_spark_lost_is_read_from_what_the_stage_keeps(spark: SparkSession) -> None:
    """A task that Spark runs again after it has kept its chunks calls no code of ours: accumulators
    miss it (SPARK-41497).
    """
    results = replay(
        word_count(2, 3), {"lines": spark.createDataFrame(LINES, "line string").repartition(3)}
    )
    whole = results.run()
    results._stages.evidence.value = Evidence()
    assert results.counts == {}
    assert results.run() == whole
    results.close()


def test_a_lone_result_with_types_is_computed_by_each_action_until_it_is_kept(
    spark: SparkSession,
) -> None:
    topology = word_count(2, 3)
    results = replay(
        topology,
        {"lines": spark.createDataFrame(LINES, "line string")},
        outputs=["count!state"],
        types={"count!state": "key string, value bigint"},
    )
    frame = results["count!state"]
    assert not frame.is_cached
    first = sorted(map(tuple, frame.collect()))
    assert sorted(map(tuple, frame.collect())) == first
    assert results.counts["count"]["executed"] == 8
    results.run()
    assert sorted(map(tuple, results["count!state"].collect())) == first
    assert results.counts["count"]["executed"] == 8
    assert (
        "InMemoryTableScan" in frame.select("key")._jdf.queryExecution().executedPlan().toString()
    )


def test_a_stage_that_one_other_reads_alone_is_not_kept_and_runs_once(spark: SparkSession) -> None:
    results = replay(
        word_count(2, 3),
        {"lines": spark.createDataFrame(LINES, "line string")},
        outputs=["count!state"],
    )
    assert list(results) == ["lines", "count!state"]
    for _ in range(2):
        assert {row.key: row.value for row in results["count!state"].collect()} == WORDS
    results.run()
    result = {name: counts["executed"] for name, counts in results.counts.items()}
    assert result == {"split": 5, "count": 8}
    with pytest.raises(KeyError, match=r"'split'.*not asked for"):
        results["split"]


def test_tasks_are_those_of_their_partitions_though_one_task_of_spark_reads_all(
    spark: SparkSession,
) -> None:
    builder = building(source=Source("n"))
    builder.set_bolt("timed", Timed(), 3).shuffle_grouping("source")
    frame = spark.createDataFrame(
        spark.sparkContext.parallelize([(n,) for n in range(30)], 3), "n int"
    )
    found = []
    for joined in (False, True):
        types = {"timed": "value int, now_ms bigint, task int"}
        results = replay(builder.build(), {"source": frame}, outputs=["timed"], types=types)
        lone = results["timed"]
        found.append(Counter(map(tuple, (lone.coalesce(1) if joined else lone).collect())))
        assert results.counts["timed"]["prepared"] == 3
        assert results.counts["timed"]["executed"] == 30
    assert found[0] == found[1] and len({task for _, _, task in found[0]}) == 3


# -- a task of Spark that dies in the middle of a stage --------------------------------------------


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
    builder = building(source=Source("n"))
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
    builder = building(source=Source("n"))
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
    builder = building(source=Source("n"))
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
    result = {name: counts["executed"] for name, counts in results.counts.items()}
    assert result == {"passes": 4_000, "sums": 4_000}
