"""Types of results on Spark: what a topology emits and keeps is there as it was, and goes on as it
was in a next replay.
"""

from __future__ import annotations

import csv
import datetime
import math
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    BatchCollector,
    ColumnBolt,
    StatefulBolt,
    Tuple,
)
from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError, ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.tagged import MARK
from sparkstorm.driver.replay import run as replay_run
from sparkstorm.replay import read_value, replay
from sparkstorm.replay.results.files import check_columns, writable
from tests.model.test_codec import same
from tests.replay.bolts import Source, one_bolt
from tests.topologies import building

pytestmark = [pytest.mark.system, pytest.mark.nightly]

STATES: dict[str, list[tuple[Any, Any]]] = {
    "plain": [("a", 1), ("b", 2)],
    "mixed": [
        ("a", [1, "a", 3]),
        (1.5, {"x": 1}),
        (b"\x00", {1: [None, True]}),
        (("a", 1), -0.0),
        (None, 2**63 - 1),
        ((), "x\x00"),
    ],
    "tuples": [(("a", 1), [1]), (("b", None), [])],
    "maps": [("a", {1: [b"x"]}), ("b", {}), ("c", None)],
    "floats": [("a", math.inf), ("b", -0.0), ("c", 1.0)],
    "looks_tagged": [(MARK, MARK + "1}")],
    "none": [("a", None)],
    "dates": [
        (datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, tzinfo=datetime.UTC)),
        (datetime.date(1, 1, 1), None),
    ],
    "decimals": [(Decimal("1.50"), [Decimal("0.25")]), (Decimal("-7.00"), [])],
    "further": [
        (UUID(int=3), {1, "a"}),
        (2**70, datetime.datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
    ],
}


class Emit(BasicBolt):
    """Emits what it was made with."""

    def __init__(self, rows: list[Any], outputs: Any) -> None:
        self.rows, self.outputs = rows, outputs

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for row in self.rows:
            collector.emit(row)


class Keep(StatefulBolt):
    """Keeps what it was made with, and hands out all that it keeps."""

    outputs = ("key", "value")

    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        self.pairs = pairs

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for key, value in self.pairs:
            self.state.put(key, value)


one = partial(one_bolt, fields=("n",), is_global=True)


def emitted(spark: SparkSession, rows: list[Any], outputs: Any, **options: Any) -> Any:
    return replay(one(Emit(rows, outputs)), {"source": spark.range(1).toDF("n")}, **options)["bolt"]


def test_values_of_every_kind_are_columns_that_hold_them(spark: SparkSession) -> None:
    rows = [({1: "a"}, [1], 1, {"a": [1, "x"]}, "ab"), ({}, None, 2.5, 3, ["a", "b"])]
    frame = emitted(spark, rows, ("map", "list", "n", "mixed", "text"))
    kinds = [f.dataType.simpleString() for f in frame.schema]
    assert kinds == ["map<bigint,string>", "array<bigint>", "string", "string", "string"]
    assert same(
        [[read_value(cell) for cell in row] for row in frame.collect()], [list(row) for row in rows]
    )


def test_declared_types_are_those_of_the_frame_and_hold_or_are_named(spark: SparkSession) -> None:
    typed = {"a.b": "struct<x:int,y:array<string>>", "ä `ö`": "map<int,double>"}
    frame = emitted(spark, [({"x": 1, "y": []}, {1: 1})], typed)
    assert [f.name for f in frame.schema] == list(typed)
    assert [f.dataType.simpleString() for f in frame.schema] == list(typed.values())
    result = [cell.asDict() if hasattr(cell, "asDict") else cell for cell in frame.collect()[0]]
    assert result == [{"x": 1, "y": []}, {1: 1.0}]
    sentence = r"result 'bolt': column 'a' does not hold int64 throughout .*'x' is of type str"
    with pytest.raises(Exception, match=sentence):
        emitted(spark, [("x",)], {"a": "bigint"}).collect()
    with pytest.raises(InvalidTopologyError, match="types of 'bolt': 'b' is no column"):
        emitted(spark, [("x",)], ("a",), types={"bolt": "b string"})


class AddTable(ColumnBolt, StatefulBolt):
    """Adds each row under the tuple of its number and a text."""

    def execute_batch(self, batch: Any, source: Any, collector: BatchCollector) -> None:
        texts = pa.array([MARK] * batch.num_rows)
        self.state.add_batch(
            pa.table({"n": batch.column(0), "text": texts}), pa.array([5] * batch.num_rows)
        )


@pytest.mark.parametrize("bolt", [Keep([((0, MARK), 5), ((1, MARK), 5)]), AddTable()])
@pytest.mark.parametrize("fields", ["`a.b`:int,`ä `` ö`:string", None])
def test_keys_of_several_values_are_a_struct_of_the_declared_names(
    spark: SparkSession, bolt: Any, fields: str | None
) -> None:
    kinds = {"bolt!state": f"key struct<{fields}>, value bigint"} if fields else {}
    results = replay(
        one(bolt), {"source": spark.range(2).toDF("n")}, outputs=["bolt!state"], types=kinds
    )
    frame = results["bolt!state"]
    if fields:
        assert frame.schema["key"].dataType.simpleString() == "struct<a.b:int,ä ` ö:string>"
    assert frame.columns == ["key", "value", "task"]
    result = sorted((tuple(read_value(row.key)), row.value) for row in frame.collect())
    assert result == [((0, MARK), 5), ((1, MARK), 5)]
    assert sorted(
        tuple(read_value(row.key)) for row in results.state("bolt").select("key").collect()
    ) == [(0, MARK), (1, MARK)]


def test_a_key_that_is_none_is_no_declared_struct(spark: SparkSession) -> None:
    results = replay(
        one(Keep([((1, "a"), 1), (None, 1)])),
        {"source": spark.range(1).toDF("n")},
        outputs=["bolt!state"],
        types={"bolt!state": "key struct<n:int,text:string>, value bigint"},
    )
    sentence = r"result 'bolt!state': a key is none, which is no struct.*declare no types"
    with pytest.raises(ReplayFailedError, match=sentence):
        results["bolt!state"].collect()


def keeping(states: dict[str, list[tuple[Any, Any]]]) -> Topology:
    """A bolt for each of these states, which keeps it with the first row."""
    builder = building(source=Source("n"))
    for bolt, pairs in states.items():
        builder.set_bolt(bolt, Keep(pairs)).global_grouping("source")
    return builder.build()


@pytest.mark.parametrize("written", ["frame", "parquet"])
def test_a_state_goes_on_in_a_next_replay_as_it_was(
    spark: SparkSession, written: str, tmp_path: Path
) -> None:
    data = {"source": spark.range(1).toDF("n")}
    first = replay(keeping(STATES), data)
    frames = {name: first.state(name) for name in STATES}
    if written == "parquet":
        for name, frame in frames.items():
            frame.write.parquet(str(tmp_path / name))
            frames[name] = spark.read.parquet(str(tmp_path / name))
    again = replay(keeping({name: [] for name in STATES}), data, states=frames)
    for name, pairs in STATES.items():
        rows = again.state(name).collect()
        found = {_key(read_value(row.key)): read_value(row.value) for row in rows}
        assert same(_sorted(found), _sorted(dict(pairs))), name


def _key(cell: Any) -> Any:
    return (
        tuple(cell)
        if isinstance(cell, list | tuple)
        else bytes(cell)
        if isinstance(cell, bytearray)
        else cell
    )


def _sorted(state: dict[Any, Any]) -> list[Any]:
    return sorted(
        ([list(k) if isinstance(k, tuple) else k, _plain(v)] for k, v in state.items()), key=repr
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    # Spark's rows are of this machine's zone
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.astimezone(datetime.UTC)
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.mark.parametrize("written", ["json", "csv", "orc"])
def test_a_state_in_files_of_any_format_goes_on_as_it_was(
    spark: SparkSession, written: str, tmp_path: Path
) -> None:
    hard = [
        *STATES["mixed"],
        *STATES["looks_tagged"],
        ("q", 'a"b\\"c\\'),
        ("", "\n, "),
        ("007", "1"),
        ("nan", [1.5, math.inf]),
    ]
    states = {"hard": hard, **{name: STATES[name] for name in ("plain", "tuples", "maps")}}
    data = {"source": spark.range(1).toDF("n")}
    first = replay(keeping(states), data)
    frames = {}
    for name in states:
        state = writable(f"{name}!state", first.state(name), written)
        replay_run.save(state, tmp_path / name, written)
        frames[name] = replay_run._load(spark, name, str(tmp_path / name), written)
    again = replay(keeping({name: [] for name in states}), data, states=frames)
    for name, pairs in states.items():
        rows = again.state(name).collect()
        found = {_key(read_value(row.key)): read_value(row.value) for row in rows}
        assert same(_sorted(found), _sorted(dict(pairs))), name


@pytest.mark.parametrize("outputs", [("text",), ("text", "n")])
def test_csv_has_every_row_and_text_as_any_reader_of_csv_has_them(
    spark: SparkSession, outputs: Any, tmp_path: Path
) -> None:
    texts = ["a", " b ", 'c"d', "e\\", 'f\\"g', "h\ni", "j\rk", "", None, "l,m", "n"]
    rows = [(text, n)[: len(outputs)] for n, text in enumerate(texts)]
    frame = writable("bolt", emitted(spark, rows, outputs), "csv")
    replay_run.save(frame.coalesce(1), tmp_path / "out", "csv")
    [file] = (tmp_path / "out").glob("*.csv")
    with file.open(newline="") as stream:
        found = list(csv.reader(stream))
    assert found == [[*outputs], *([row[0] or "", *map(str, row[1:])] for row in rows)]
    again = replay_run._load(spark, "bolt", str(tmp_path / "out"), "csv")
    assert [row[0] or "" for row in again.collect()] == [text or "" for text in texts]


def test_results_in_files_are_columns_or_tagged_text(spark: SparkSession) -> None:
    frame = emitted(
        spark,
        [({1: "a"}, b"x", {"a": [1]}, 1.5, "t")],
        ("by_number", "bytes", "by_text", "n", "text"),
    )
    kinds = {
        written: [f.dataType.simpleString() for f in writable("bolt", frame, written).schema]
        for written in ("json", "csv")
    }
    assert kinds["json"] == ["string", "string", "map<string,array<bigint>>", "double", "string"]
    assert kinds["csv"] == ["string", "string", "string", "double", "string"]
    row = writable("bolt", frame, "csv").collect()[0]
    assert [read_value(cell) for cell in row] == [{1: "a"}, b"x", {"a": [1]}, 1.5, "t"]
    sentence = "result 'bolt': its fields 'n' and 'N' cannot be columns of one file"
    with pytest.raises(InvalidConfigError, match=sentence):
        check_columns("bolt", ["n", "a", "N"])


def test_a_record_that_was_put_aside_reads_back(spark: SparkSession) -> None:
    class Fails(Keep):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            raise ValueError("no")

    data = spark.createDataFrame([({1: b"x"}, float("inf"))], "m map<int,binary>, f double")
    builder = building(source=Source("m", "f"))
    builder.set_bolt("bolt", Fails([])).global_grouping("source")
    letters = replay(builder.build(), {"source": data}, skip_bad=True).dead_letters
    result = [(letter.fields, letter.values) for letter in letters]
    assert result == [(("m", "f"), ({1: b"x"}, math.inf))]


def test_a_first_state_that_cannot_be_read_is_named(spark: SparkSession) -> None:
    state = spark.createDataFrame([("a", MARK + "?}")], "key string, value string")
    sentence = r"initial state of 'bolt': .*is no value as SparkStorm writes it"
    with pytest.raises(ReplayFailedError, match=sentence):
        replay(one(Keep([])), {"source": spark.range(1).toDF("n")}, states={"bolt": state}).run()


class Pass(BasicBolt):
    """Emits its input as it is."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(tup.values)


def passed(frame: DataFrame) -> DataFrame:
    builder = building(source=Source("value"))
    builder.set_bolt("bolt", Pass()).global_grouping("source")
    return replay(builder.build(), {"source": frame})["bolt"]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("array(timestamp'2024-07-01 12:00:00')", "array<timestamp>"),
        (
            "named_struct('at', timestamp'2024-07-01 12:00:00', 'n', 1L)",
            "struct<at:timestamp,n:bigint>",
        ),
        (
            "named_struct('a', 1L, 'b', named_struct('c', 'x', 'd', array(1L)))",
            "struct<a:bigint,b:struct<c:string,d:array<bigint>>>",
        ),
        ("array(named_struct('b', 1L, 'a', 'x'))", "array<struct<b:bigint,a:string>>"),
        ("map('x', date'2024-02-29')", "map<string,date>"),
    ],
)
def test_nested_types_of_spark_come_out_of_a_replay_as_they_went_in(
    spark: SparkSession, sql: str, kind: str
) -> None:
    frame = spark.sql(f"SELECT {sql} AS value")
    found = passed(frame)
    assert (found.schema[0].dataType.simpleString(), found.collect()) == (kind, frame.collect())


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        (
            "parse_json('{\"a\": 1}')",
            "input 'source', column 'value': variant is no type that tuples carry; cast it",
        ),
        ("array(parse_json('1'))", "array<variant> is no type that tuples carry"),
        (
            "map(named_struct('x', 1), 2)",
            "has keys of a nested type, which are no keys of mappings",
        ),
        ("timestamp_ntz'2024-07-01 12:00:00'", "none of true/false, numbers"),
    ],
)
def test_a_column_of_spark_that_no_tuple_carries_is_refused(
    spark: SparkSession, sql: str, sentence: str
) -> None:
    with pytest.raises(ReplayFailedError, match=sentence):
        passed(spark.sql(f"SELECT {sql} AS value")).collect()
