"""Tests of sql_shuffle.py: data that Spark itself brings to the tasks, and its hash next to the live
one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    CombiningBolt,
    Effects,
    OutputCollector,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.api.columns import BatchCollector, ColumnBolt
from sparkstorm.api.components import Stateful
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.windows import Duration, Window, WindowedBolt
from sparkstorm.common import spark_versions
from sparkstorm.common.config import merge
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.grouping.hashing import stable_hash
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.tuples import Source as Sender
from sparkstorm.replay import replay
from sparkstorm.replay.job import OpenEnd, RunSettings, make_job
from sparkstorm.replay.plan import Feed, make_plan
from sparkstorm.replay.sql_shuffle import (
    _heads,
    checked_places,
    hashed_values,
    head_keys,
    place_and_rows,
    sql_shuffled_input,
    with_heads,
)
from tests.replay.bolts import Source
from tests.topologies import building

TYPES = {"sum!state": "key string, value bigint"}
KEYS: dict[str, tuple[str, list[Any]]] = {
    "text": (
        "string",
        [
            "",
            "a",
            "zwölf",
            "日本",
            "💥",
            "line\nbreak",
            "s",
            "n",
            "1",
            None,
            *(f"word {i}" for i in range(40)),
        ],
    ),
    "whole": ("bigint", [0, 1, -1, 7, 10**18, -(2**63), 2**63 - 1, None, *range(2, 40)]),
    "short": ("smallint", [0, -32768, 32767, None]),
    "flag": ("boolean", [True, False, None]),
    "bytes": ("binary", [b"", b"\x00", b"\xff\xfe", b"n", None]),
}


class Sum(StatefulBolt):
    """By rows; counts what it was given and by whom."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(f"{tup['user']}/{tup['kind']}", tup["amount"])
        self.state.add(f"by {tup.component}:{tup.stream}", 1)


class CountAmounts(StatefulBolt):
    """Sums whatever the key is."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add("all", tup["amount"])


class SumByHand(Stateful, Bolt):
    order_insensitive = True

    def prepare(self, conf: Any, context: TopologyContext, collector: OutputCollector) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        self.state.add(f"{tup['user']}/{tup['kind']}", tup["amount"])
        self.state.add(f"by {tup.component}:{tup.stream}", 1)
        self.collector.ack(tup)


class SumColumns(Stateful, ColumnBolt):
    order_insensitive = True

    def execute_batch(
        self, batch: pa.RecordBatch, source: Sender, collector: BatchCollector
    ) -> None:
        for user, kind, amount in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            self.state.add(f"{user}/{kind}", amount)
        self.state.add(f"by {source.component}:{source.stream}", batch.num_rows)


class SumsOn(Sum):
    outputs = ("user",)


class InOrder(Sum):
    order_insensitive = False


class Combined(CombiningBolt):
    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        return tup["user"], tup["amount"]

    def combine(self, one: int, other: int) -> int:
        return one + other


class Mark(BasicBolt):
    outputs = ("user",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["user"],))


def summed(bolt: Any, tasks: int = 3, *fields: str, spouts: int = 1) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("events", Source("user", "kind", "amount"), spouts)
    builder.set_bolt("sum", bolt, tasks).fields_grouping("events", *(fields or ("user",)))
    return builder.build()


def is_divided(topology: Topology, **settings: Any) -> bool:
    plan = make_plan(topology, merge({}).as_dict(), "test", {})
    job = make_job(plan, RunSettings(**settings), is_local=True)
    return sql_shuffled_input(plan, job, plan.stages[-1]) is not None


@pytest.mark.sampled
@pytest.mark.parametrize("name", KEYS)
def test_spark_finds_the_task_that_live_would_find(spark: SparkSession, name: str) -> None:
    kind, keys = KEYS[name]
    frame = spark.createDataFrame([(k,) for k in keys], f"key {kind}")
    (value,) = hashed_values(["key"], frame.schema, 2) or [""]
    found = frame.select(
        "key",
        *[sf.expr(f"pmod(hash({value}), {width})").alias(f"_{width}") for width in range(1, 8)],
    ).collect()
    of_live = [
        [
            stable_hash(bytes(row[0]) if name == "bytes" and row[0] is not None else row[0]) % width
            for width in range(1, 8)
        ]
        for row in found
    ]
    assert [list(row)[1:] for row in found] == of_live


def test_an_older_spark_deals_by_a_number_of_that_hash(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_versions, "_DEALS_BY_ID", False)
    frame = spark.range(40).selectExpr("CAST(id % 7 AS INT) AS place")
    dealt = spark_versions.dealt_by_id(frame, 7, sf.col("place"))
    found = dealt.select(sf.spark_partition_id().alias("at"), "place").collect()
    assert len(found) == 40 and all(row["at"] == row["place"] for row in found)


def test_keys_of_several_fields_too(spark: SparkSession) -> None:
    rows = [
        (text, whole, flag)
        for text in KEYS["text"][1][:12]
        for whole in KEYS["whole"][1][:8]
        for flag in (True, None)
    ]
    frame = spark.createDataFrame(rows, "text string, whole bigint, flag boolean")
    values = hashed_values(["flag", "text", "whole"], frame.schema, 1000) or []
    place = sf.expr(f"pmod(hash({', '.join(values)}), 1000)")
    found = frame.select("*", place.alias("place")).collect()
    result = [row.place for row in found]
    assert result == [stable_hash((row.flag, row.text, row.whole)) % 1000 for row in found]


def test_heads_that_replays_of_one_input_share_are_rows_of_each(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "a"), (2, None)], "key bigint, text string")
    hits = _heads.cache_info().hits
    one, other = (with_heads(frame, ["key"], [(0,), (4,)]) for _ in range(2))
    both = one.join(other, "key").union(one.join(other, "key"))
    assert sorted(row.key for row in both.collect()) == [0, 0, 1, 1, 2, 2, 4, 4]
    assert _heads.cache_info().hits == hits + 1
    renamed = frame.withColumnRenamed("text", "other")
    assert with_heads(renamed, ["key"], [(0,), (4,)]).columns == ["key", "other"]


def test_keys_that_spark_hashes_otherwise_are_left_to_python(spark: SparkSession) -> None:
    schema = spark.createDataFrame([], "key double, list array<int>, other string").schema
    assert hashed_values(["key"], schema, 2) is hashed_values(["other", "list"], schema, 2) is None
    assert hashed_values(["key"], schema, 1) == []


def test_what_may_be_divided_by_spark_and_what_not() -> None:
    assert is_divided(summed(Sum()))
    assert is_divided(summed(SumByHand()))
    assert is_divided(summed(SumColumns()))
    assert not is_divided(summed(InOrder())), "its rows come in their order"
    assert not is_divided(summed(Combined())), "what is combined before it travels is less"
    assert not is_divided(summed(Sum(), spouts=2)), "a row would not know its sender"
    assert not is_divided(summed(Sum()), skip_bad=True)
    assert not is_divided(summed(Sum()), shortcuts=False), "the plain twin"
    assert not is_divided(summed(Sum()), time_fields={Feed("events", "default"): "amount"})
    assert not is_divided(summed(Sum()), open_end=OpenEnd({}, frozenset())), "a checkpoint follows"


def test_with_an_event_time_rows_must_be_in_the_order_that_decides_lateness() -> None:
    def is_taken(bolt: Any, is_sorted: bool = True, time: str = "amount") -> bool:
        plan = make_plan(summed(bolt), merge({}).as_dict(), "test", {})
        settings = RunSettings(time_fields={Feed("events", "default"): time}, is_sorted=is_sorted)
        return (
            sql_shuffled_input(plan, make_job(plan, settings, is_local=True), plan.stages[-1])
            is not None
        )

    assert is_taken(InOrder()), "order is that of time"
    assert not is_taken(InOrder(), is_sorted=False)
    windows = Windows().with_tumbling_window(Duration.millis(10)).with_timestamp_field("amount")
    assert is_taken(windows) and not is_taken(windows, time="kind"), (
        "rows can be late by another field"
    )


class Windows(WindowedBolt):
    key_fields = ("user",)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Do nothing: it is not run."""


def test_nobody_behind_may_mind_the_order() -> None:
    def with_behind(bolt: Any, **declared: Effects) -> bool:
        builder = building(events=Source("user", "kind", "amount"))
        builder.set_bolt("sum", SumsOn(), 2).fields_grouping("events", "user")
        builder.set_bolt("passes", Mark()).shuffle_grouping("sum")
        builder.set_bolt("last", bolt).fields_grouping("passes", "user")
        plan = make_plan(builder.build(), merge({}).as_dict(), "test", declared)
        head = next(stage for stage in plan.stages if stage.has("sum"))
        return (
            sql_shuffled_input(plan, make_job(plan, RunSettings(), is_local=True), head) is not None
        )

    assert with_behind(Sum())
    assert not with_behind(InOrder()), "it would keep another last value in every run"
    assert not with_behind(Sum(), passes=Effects.IDEMPOTENT), "places in the order name its effects"


def test_data_that_others_want_too_is_read_once() -> None:
    builder = building(events=Source("user", "kind", "amount"))
    builder.set_bolt("first", Sum(), 2).fields_grouping("events", "user")
    builder.set_bolt("sum", Sum(), 2).fields_grouping("events", "user")
    assert not is_divided(builder.build())
    builder = building(events=Source("user", "kind", "amount"))
    builder.set_bolt("mark", Mark()).shuffle_grouping("events")
    builder.set_bolt("sum", Sum(), 2).fields_grouping("mark", "user")
    assert not is_divided(builder.build()), "rows that a bolt has made"


@pytest.mark.sampled
@pytest.mark.parametrize(
    "bolt", [Sum(), SumByHand(), SumColumns()], ids=["rows", "by hand", "columns"]
)
@pytest.mark.parametrize("fields", [("user",), ("kind", "user")])
def test_what_spark_divides_comes_to_the_same(
    spark: SparkSession, bolt: Any, fields: tuple[str, ...]
) -> None:
    rows = [(f"user {i * 7 % 23}", i % 3 if i % 5 else None, i) for i in range(1, 500)]
    frame = spark.createDataFrame(rows, "user string, kind int, amount bigint").repartition(4)
    results = replay(summed(bolt, 3, *fields), {"events": frame}, types=TYPES)
    first = make_plan(summed(bolt), merge({}).as_dict(), "replay", {}).tasks("sum")[0]
    exact: Counter[Any] = Counter()
    for user, kind, amount in rows:
        task = first + stable_hash((kind, user) if len(fields) > 1 else user) % 3
        exact[f"{user}/{kind}", task] += amount
        exact["by events:default", task] += 1
    assert {(row.key, row.task): row.value for row in results.state("sum").collect()} == exact
    assert (results.counts["sum"]["executed"], results.counts["sum"]["prepared"]) == (499, 3)


@pytest.mark.parametrize("rows", ["none", "none of them passes"])
def test_every_task_begins_even_if_there_is_no_row(spark: SparkSession, rows: str) -> None:
    frame = spark.createDataFrame(
        [("a", 1, 1)] * (rows != "none"), "user string, kind int, amount bigint"
    )
    results = replay(
        summed(Sum()),
        {"events": frame.where("amount > 1") if rows != "none" else frame},
        types=TYPES,
    )
    assert results.state("sum").count() == 0
    assert results.counts["sum"]["prepared"] == 3


SCHEMA = StructType(
    [
        StructField("text", StringType()),
        StructField("whole", LongType()),
        StructField("byte", ByteType()),
        StructField("flag", BooleanType()),
        StructField("raw", BinaryType()),
    ]
)


@pytest.mark.parametrize(
    ("fields", "widths"),
    [
        (["text"], [1, 2, 7, 300]),
        (["whole"], [1, 2, 7, 300]),
        (["raw"], [1, 2, 7]),
        (["byte"], [1, 2, 7]),
        (["flag", "text"], [2, 50]),
        (["flag", "byte"], [3]),
        (["flag"], [1, 2]),
    ],
)
def test_each_task_has_a_key_of_its_own(fields: list[str], widths: list[int]) -> None:
    for width in widths:
        keys = head_keys(fields, SCHEMA, width)
        assert keys is not None
        found = [stable_hash(key if len(key) > 1 else key[0]) % width for key in keys]
        assert found == list(range(width))


def test_fields_of_few_values_have_no_key_for_each_of_many_tasks() -> None:
    assert head_keys(["flag"], SCHEMA, 4) is None
    assert head_keys(["flag", "byte"], SCHEMA, 500) is None


def words_of(words: list[str | None], numbers: list[int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(words, pa.string()), pa.array(numbers, pa.int64())], ["word", "n"]
    )


def test_the_first_row_that_equals_the_head_is_left_out_wherever_it_is() -> None:
    keys = head_keys(["text"], SCHEMA, 2)
    assert keys is not None
    ((head,), (other,)) = keys
    data = [words_of([head, None], [1, None]), words_of([], []), words_of([head], [2])]
    with_head = words_of([head, head, head], [3, None, None])
    place, rows = place_and_rows(iter([*data, with_head, words_of([head], [None])]), [0], keys)
    kept = [row for batch in rows for row in batch.to_pylist()]
    assert place == 0
    # Two rows of data equal the head: both stay.
    assert [row["n"] for row in kept] == [1, None, 2, 3, None, None]
    assert [row["word"] for row in kept] == [head, None, head, head, head, head]
    assert place_and_rows(iter([words_of([other], [None])]), [0], keys)[0] == 1


def test_a_task_without_its_head_ends_the_replay() -> None:
    keys = head_keys(["text"], SCHEMA, 2)
    assert keys is not None
    _, rows = place_and_rows(iter([words_of([keys[1][0]], [1])]), [0], keys)
    with pytest.raises(ReplayFailedError, match="Spark divides by other rules"):
        list(rows)


def test_heads_change_no_type_and_reach_their_tasks(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    for fields in (["text"], ["whole"], ["byte"], ["raw"], ["byte", "flag"]):
        keys = head_keys(fields, SCHEMA, 5)
        assert keys is not None
        headed = with_heads(frame, fields, keys)
        assert [f.dataType for f in headed.schema] == [f.dataType for f in SCHEMA]
        by = [sf.expr(value) for value in hashed_values(fields, SCHEMA, 5) or []]
        dealt = headed.repartition(5, *by).select(sf.spark_partition_id().alias("at"), "*")
        found = {row["at"]: tuple(row[field] for field in fields) for row in dealt.collect()}
        assert found == dict(enumerate(keys))


def test_rows_that_equal_a_head_are_counted(spark: SparkSession) -> None:
    schema = spark.createDataFrame([], "user string, kind int, amount bigint").schema
    keys = head_keys(["user"], schema, 3)
    assert keys is not None
    rows = [(key, None, None) for (key,) in keys for _ in range(2)]

    class CountRows(Sum):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state.add(f"{tup['user']}/{tup['kind']}", 1)

    results = replay(
        summed(CountRows()), {"events": spark.createDataFrame(rows, schema)}, types=TYPES
    )
    found = {row.key: row.value for row in results.state("sum").collect()}
    assert found == {f"{key}/None": 2 for (key,) in keys}


@pytest.mark.parametrize(
    "user", ["named_struct('a b', id)", "map('n', id)", "'x' COLLATE UNICODE_CI", "id / 2"]
)
def test_one_task_takes_keys_of_any_type(spark: SparkSession, user: str) -> None:
    frame = spark.range(5).selectExpr(f"{user} AS user", "1 AS kind", "id AS amount")
    results = replay(summed(CountAmounts(), 1), {"events": frame}, types=TYPES)
    assert [row.value for row in results.state("sum").collect()] == [10]


def test_a_failing_record_is_named(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("a", 1, None), ("b", 1, 1)], "user string, kind int, amount bigint"
    )
    sentence = r"component 'sum' \(task \d\) failed 4 times on record .*user='a'"
    with pytest.raises(Exception, match=sentence):
        replay(summed(Sum()), {"events": frame}).run()


def test_a_row_that_spark_brings_elsewhere_ends_the_replay() -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1, 2], "word": ["a", "b"]})
    home = stable_hash("a") % 4
    assert list(checked_places(iter([batch]), [1], home, 4)) == [batch]
    wrong = (home + 1) % 4
    sentence = rf"the key \('a',\) to task {wrong + 1} of 4, live it goes to task {home + 1}"
    with pytest.raises(ReplayFailedError, match=sentence):
        list(checked_places(iter([batch]), [1], wrong, 4))


def test_a_result_of_known_types_is_made_by_one_run(spark: SparkSession) -> None:
    rows = [("a", 1, 2), ("b", 1, 1), ("a", 1, 5)]
    frame = spark.createDataFrame(rows, "user string, kind int, amount bigint")
    results = replay(summed(Sum()), {"events": frame}, types=TYPES)
    assert results.counts == {}, "nothing has run"
    assert results.state("sum").coalesce(1).count() == results.state("sum").count(), (
        "one task of Spark has all of ours"
    )
    results.run()
    found = {(row.key, row.task): row.value for row in results.state("sum").collect()}
    assert {key: value for (key, _), value in found.items() if "/" in key} == {"a/1": 7, "b/1": 1}
    assert results.state("sum").count() == len(found) and results.dead_letters == []
    assert results.counts["sum"]["executed"] == 3
    results.close()
