"""Input frames of every kind, first and final states, and types of results, on Spark."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.errors import InvalidTopologyError, ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import EventTime, replay
from tests.replay.bolts import LINES, WORDS, Count, Source, Timed, word_count

pytestmark = [pytest.mark.system, pytest.mark.sampled]


def timed(*fields: str) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", Source(*fields))
    builder.set_bolt("bolt", Timed()).global_grouping("source")
    return builder.build()


@pytest.mark.parametrize(
    ("ddl", "row", "said"),
    [
        ("word string", ("a",), "input 'lines' has no column 'line'; it has word"),
        ("line timestamp_ntz", (None,), "column 'line': timestamp.* is none of"),
        ("line array<timestamp_ntz>", (None,), "column 'line': timestamp"),
        ("line interval day to second", (None,), "column 'line': "),
    ],
)
def test_columns_that_are_missing_or_of_no_known_type_are_refused_before_anything_runs(
    spark: SparkSession, ddl: str, row: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(ReplayFailedError, match=said):
        replay(word_count(), {"lines": spark.createDataFrame([row], ddl)})


def test_every_type_of_the_closed_set_goes_through(spark: SparkSession) -> None:
    ddl = "value struct<t:string,m:map<string,array<int>>,b:binary,f:float,n:bigint,o:boolean,z:int,d:date,c:decimal(5,2)>"
    value = {
        "t": "ä",
        "m": {"k": [1, None]},
        "b": b"\x00",
        "f": 1.5,
        "n": 2**62,
        "o": True,
        "z": None,
    }
    value |= {"d": date(2026, 2, 28), "c": Decimal("1.50")}
    results = replay(
        timed("value"),
        {"source": spark.createDataFrame([(value,)], ddl)},
        types={"bolt": f"{ddl}, now_ms bigint, task int"},
    )
    row = results["bolt"].collect()[0].value.asDict()
    assert row == {**value, "b": bytearray(b"\x00")}


def test_an_empty_frame_gives_empty_results(spark: SparkSession) -> None:
    results = replay(word_count(), {"lines": spark.createDataFrame([], "line string")})
    result = {name: frame.count() for name, frame in results.items()}
    assert result == {"lines": 0, "split": 0, "count": 0, "count!state": 0}
    assert results["count"].columns == ["word", "count"]


def test_null_keys_go_to_one_task_as_live(spark: SparkSession) -> None:
    builder = TopologyBuilder()
    builder.set_spout("words", Source("word"))
    builder.set_bolt("count", Count(), 4).fields_grouping("words", "word")
    frame = spark.createDataFrame([(None,), ("a",), (None,)], "word string")
    state = replay(builder.build(), {"words": frame.repartition(3)}).state("count")
    assert {(row.key, row.value) for row in state.collect()} == {(None, 2), ("a", 1)}


@pytest.mark.parametrize("kind", ["timestamp", "bigint"])
def test_unsorted_events_come_in_the_order_of_their_times(spark: SparkSession, kind: str) -> None:
    frame = spark.createDataFrame(
        [("b", 2000), ("a", 1000), ("c", 3000)], "value string, ts bigint"
    )
    if kind == "timestamp":
        frame = frame.selectExpr("value", "timestamp_millis(ts) as ts")
    results = replay(timed("value", "ts"), {"source": frame}, event_time="ts")
    result = [tuple(row)[:2] for row in results["bolt"].collect()]
    assert result == [("a", 1000), ("b", 2000), ("c", 3000)]


def test_a_late_row_stays_late_when_rows_keep_their_places(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("b", 2000), ("a", 1000)], "value string, ts bigint").coalesce(1)
    results = replay(
        timed("value", "ts"), {"source": frame}, event_time=EventTime("ts", in_order=False)
    )
    assert [tuple(row)[:2] for row in results["bolt"].collect()] == [("b", 2000), ("a", 2000)]


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("value string", "input 'source' has no column 'ts'"),
        (
            "value string, ts string",
            "an event time is a timestamp or whole milliseconds, not string",
        ),
    ],
)
def test_an_event_time_that_is_none_is_refused(spark: SparkSession, ddl: str, said: str) -> None:
    with pytest.raises(ReplayFailedError, match=said):
        replay(timed("value"), {"source": spark.createDataFrame([], ddl)}, event_time="ts")


def test_a_row_without_a_time_is_named_or_put_aside(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 5), ("b", None)], "value string, ts bigint").coalesce(1)
    with pytest.raises(Exception, match=r"input 'source'.*no event time.*'b'"):
        replay(timed("value"), {"source": frame}, event_time="ts").run()
    results = replay(timed("value"), {"source": frame}, event_time="ts", skip_bad=True)
    assert [row.value for row in results["bolt"].collect()] == ["a"]
    result = [(row.component, row.reason) for row in results.dead_letters]
    assert result == [("source", "no event time")]


def test_a_final_state_is_fit_to_be_the_first_state_of_the_rest(spark: SparkSession) -> None:
    first, rest = (spark.createDataFrame(rows, "line string") for rows in (LINES[:2], LINES[2:]))
    before = replay(word_count(), {"lines": first}).state("count")
    after = replay(word_count(), {"lines": rest}, states={"count": before}).state("count")
    assert {row.key: row.value for row in after.collect()} == WORDS
    by_key = replay(word_count(), {"lines": rest}, states={"count": before.drop("task")}).state(
        "count"
    )
    assert {row.key: row.value for row in by_key.collect()} == WORDS


def test_a_state_taken_under_another_parallelism_is_refused(spark: SparkSession) -> None:
    state = spark.createDataFrame([("a", 1, 99)], "key string, value bigint, task int")
    with pytest.raises(Exception, match="task 99 is none of"):
        replay(
            word_count(),
            {"lines": spark.createDataFrame(LINES, "line string")},
            states={"count": state},
        ).run()
    with pytest.raises(InvalidTopologyError, match="no such bolt"):
        replay(
            word_count(),
            {"lines": spark.createDataFrame(LINES, "line string")},
            states={"counts": state},
        )


def test_results_of_declared_types_run_nothing_before_they_are_used(spark: SparkSession) -> None:
    results = replay(
        word_count(),
        {"lines": spark.createDataFrame(LINES, "line string")},
        types={"split": "word string", "count!state": "key string, value bigint"},
    )
    frames = [results["split"], results["count!state"]]
    assert results.counts == {}
    assert frames[0].count() == 8 and [f.name for f in frames[1].schema] == ["key", "value", "task"]


def test_a_type_that_does_not_fit_is_refused_by_its_column(spark: SparkSession) -> None:
    lines = {"lines": spark.createDataFrame(LINES, "line string")}
    with pytest.raises(Exception, match="column 'word' does not hold int64 throughout"):
        replay(word_count(), lines, types={"split": "word bigint"})["split"].collect()
    with pytest.raises(Exception, match="column 'value' does not hold string throughout"):
        replay(
            word_count(),
            lines,
            outputs=["count!state"],
            types={"count!state": "key string, value string"},
        ).run()


def test_an_unknown_result_is_a_key_error(spark: SparkSession) -> None:
    results = replay(
        word_count(),
        {"lines": spark.createDataFrame(LINES, "line string")},
        outputs=["count!state"],
    )
    with pytest.raises(KeyError, match="no result 'cuont'"):
        results["cuont"]
    assert results["count!state"].count() == 4
    with pytest.raises(InvalidTopologyError, match="output 'cuont' is none"):
        replay(
            word_count(), {"lines": spark.createDataFrame(LINES, "line string")}, outputs=["cuont"]
        )


def test_streams_of_a_spout_have_data_each_or_none(spark: SparkSession) -> None:
    builder = TopologyBuilder()
    builder.set_spout(
        "source",
        Source(),
        outputs={"default": ["word"], "more": ["word", "weight"], "none": ["word"]},
    )
    declarer = builder.set_bolt("count", Count(), 2).fields_grouping("source", "word")
    declarer.fields_grouping("source", "word", stream="more").fields_grouping(
        "source", "word", stream="none"
    )
    one = spark.createDataFrame([("a",), ("b",)], "word string")
    more = spark.createDataFrame([(3, "a", "unused")], "weight int, word string, rest string")
    results = replay(builder.build(), {"source": one, "source:more": more})
    assert {row.key: row.value for row in results.state("count").collect()} == {"a": 2, "b": 1}
    assert results["source:more"].columns == ["word", "weight"]
    assert results["source:none"].count() == 0
