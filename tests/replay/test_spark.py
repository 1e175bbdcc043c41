"""A replay on real Spark: the same results as the local twin, whatever Spark does to partitions."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import TopologyBuilder
from sparkstorm.replay import replay, replay_locally
from sparkstorm.replay.evidence import Evidence
from tests.replay.bolts import LINES, WORDS, Counted, Source, Timed, many_streams, word_count

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
    assert {name: counts["prepared"] for name, counts in results.counts.items()} == {
        "split": 2,
        "count": 3,
    }
    assert {name: counts["executed"] for name, counts in results.counts.items()} == {
        "split": 5,
        "count": 8,
    }


def test_metrics_of_user_code_are_those_of_the_local_twin_also_when_tasks_run_twice(
    spark: SparkSession,
) -> None:
    builder = TopologyBuilder()
    builder.set_spout("lines", Source("line"))
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
    assert (
        sorted(map(tuple, results["count!state"].collect())) == first
        and results.counts["count"]["executed"] == 8
    )
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
    assert {name: counts["executed"] for name, counts in results.counts.items()} == {
        "split": 5,
        "count": 8,
    }
    with pytest.raises(KeyError, match=r"'split'.*not asked for"):
        results["split"]


def test_tasks_are_those_of_their_partitions_though_one_task_of_spark_reads_all(
    spark: SparkSession,
) -> None:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("n"))
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
        assert (
            results.counts["timed"]["prepared"] == 3 and results.counts["timed"]["executed"] == 30
        )
    assert found[0] == found[1] and len({task for _, _, task in found[0]}) == 3
