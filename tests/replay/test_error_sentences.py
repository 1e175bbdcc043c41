"""Mistakes in a replay's inputs and environment: one sentence each, from the API and from actions
on results.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    StatefulBolt,
    Tuple,
)
from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError, ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.driver.job_file import JobFile
from sparkstorm.driver.replay.job_part import ReplayFile
from sparkstorm.driver.replay.run import ReplayRun
from sparkstorm.replay import replay, replay_locally
from sparkstorm.replay.arrow_map import ReadByParts
from sparkstorm.replay.failures import told_shortly
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Count, Picky, Source, one_bolt
from tests.topologies import building
from tests.windowing.driving import Merging

pytestmark = pytest.mark.sampled

JOB = JobFile("job.yaml", "test", "module:build")
SENTENCE = r"^component 'bolt' \(task 2\) failed 4 times on record .*not this one .*; skip_bad puts such records aside$"


class Told(BasicBolt):
    """Emits a time as text, as its zone has it."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((str(tup["value"].replace(tzinfo=None)),))


class Needy(BasicBolt):
    """Needs a module that the driver alone has."""

    outputs = ("value",)

    def __init__(self, helper: Any) -> None:
        self.helper = helper

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((self.helper(tup.values[0]),))


@pytest.fixture
def values(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a",), ("b",)], ["value"])


@pytest.mark.system
@pytest.mark.parametrize(
    ("action", "types"),
    [
        ("collect", None),
        ("collect", {"bolt": "value string"}),
        ("toArrow", {"bolt": "value string"}),
        ("show", {"bolt": "value string"}),
    ],
)
def test_an_action_on_a_result_raises_the_sentence_that_run_raises(
    values: DataFrame, action: str, types: Any
) -> None:
    with pytest.raises(ReplayFailedError, match=SENTENCE) as caught:
        getattr(replay(one_bolt(Picky("b")), {"source": values}, types=types)["bolt"], action)()
    assert caught.value.__cause__ is None


@pytest.mark.system
def test_actions_on_derived_frames_and_writers_have_it_as_their_second_and_last_line(
    values: DataFrame, tmp_path: Path
) -> None:
    result = replay(one_bolt(Picky("b")), {"source": values}, types={"bolt": "value string"})[
        "bolt"
    ]
    for act in (result.distinct().collect, lambda: result.write.parquet(str(tmp_path / "out"))):
        with pytest.raises(PythonException) as caught:
            act()
        assert len(str(caught.value).splitlines()) == 2
        assert (
            "ReplayFailedError: component 'bolt' (task 2) failed 4 times"
            in str(caught.value).splitlines()[1]
        )


@pytest.mark.system
def test_what_is_no_frame_is_named(values: DataFrame) -> None:
    topology = one_bolt(Count())
    for given in ([("a",)], None, "values", 5):
        sentence = r"^input 'source' is a \w+, not a DataFrame: .*replay_locally"
        with pytest.raises(InvalidTopologyError, match=sentence):
            replay(topology, {"source": given})  # type: ignore[dict-item]
    sentence = r"^the initial state of 'bolt' is a dict, not a DataFrame"
    with pytest.raises(InvalidTopologyError, match=sentence):
        replay(topology, {"source": values}, states={"bolt": {"a": 1}})
    with pytest.raises(InvalidTopologyError, match=r"^inputs are a DataFrame: write"):
        replay(topology, values)  # type: ignore[arg-type]
    sentence = r"^input 'source' is a \w+, not a list of rows; replay\(...\) takes"
    with pytest.raises(InvalidTopologyError, match=sentence):
        replay_locally(topology, {"source": values})  # type: ignore[dict-item]


@pytest.mark.system
def test_a_damaged_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no footer PAR1")
    frame = spark.read.schema("value string").parquet(str(tmp_path))
    for types in (None, {"bolt": "value string"}):
        result = replay(one_bolt(Picky("z")), {"source": frame}, types=types)
        sentence = r"^Spark cannot read file:.*x\.parquet \(.*\): the file is damaged.*format$"
        with pytest.raises(ReplayFailedError, match=sentence):
            result.run()


@pytest.mark.system
@pytest.mark.parametrize("grouping", ["shuffle", "fields"])
def test_a_mapping_with_one_key_twice_is_named_by_input_and_column(
    spark: SparkSession, tmp_path: Path, grouping: str
) -> None:
    """Spark makes none, and reads those of other programs."""
    kind = pa.list_(pa.map_(pa.string(), pa.int64()))
    table = pa.table(
        {"value": ["a", "b"], "tags": pa.array([[[("a", 1)]], [[("a", 1), ("a", 2)]]], kind)}
    )
    pq.write_table(table, tmp_path / "tags.parquet")
    builder = building(source=Source("value", "tags"))
    adder = builder.set_bolt("bolt", Count(), 2)
    adder.shuffle_grouping("source") if grouping == "shuffle" else adder.fields_grouping(
        "source", "value"
    )
    frame = spark.read.parquet(str(tmp_path / "tags.parquet"))
    sentence = r"^input 'source', column 'tags': a map with one key twice; make its keys differ"
    with pytest.raises(ReplayFailedError, match=sentence):
        replay(builder.build(), {"source": frame}).run()


@pytest.mark.system
@pytest.mark.parametrize("value", ["DATE'+10000-01-01'", "CAST(X'FF' AS STRING)"])
def test_a_value_that_python_has_none_for_is_named_by_input_and_column(
    spark: SparkSession, value: str
) -> None:
    frame = spark.sql(f"SELECT {value} AS value")
    with pytest.raises(
        ReplayFailedError,
        match=r"^input 'source', column 'value': .* cannot carry: .*; replace such values, as with CASE WHEN",
    ):
        replay(one_bolt(Count()), {"source": frame}).run()


@pytest.mark.system
@pytest.mark.parametrize(
    ("zone", "value"),
    [("Europe/Berlin", "9999-12-31 23:59:59"), ("America/New_York", "0001-01-01 00:00:00"), ("GMT+2", "2026-01-01 00:00:00")],
)  # fmt: skip
def test_times_of_every_year_are_read_in_every_zone_of_a_session(
    spark: SparkSession, zone: str, value: str
) -> None:
    former = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.sql(f"SELECT TIMESTAMP'{value} UTC' AS value")
        results = replay(one_bolt(Told()), {"source": frame})
        assert [row.value for row in results["bolt"].collect()] == [value]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(former))


@pytest.mark.system
@pytest.mark.parametrize("field", ["a`b", "a.b"])
def test_fields_may_have_any_name(spark: SparkSession, field: str) -> None:
    builder = building(source=Source(field))
    builder.set_bolt("bolt", Picky("z"), 2).fields_grouping("source", field)
    frame = spark.createDataFrame([(1,), (2,)], [field])
    for time in (None, field):
        results = replay(builder.build(), {"source": frame}, event_time=time)
        assert sorted(row.value for row in results["bolt"].collect()) == [1, 2]
    assert results["source"].columns == [field]


@pytest.mark.system
def test_a_module_that_executors_lack_is_named_with_the_mend(
    values: DataFrame, monkeypatch: Any
) -> None:
    helper: Any = ModuleType("helper_of_the_driver")  # without a source
    exec("def same(x):\n    return x\n", vars(helper))
    monkeypatch.setitem(sys.modules, helper.__name__, helper)
    topology = one_bolt(Needy(helper.same))
    mend = r"^module 'helper_of_the_driver' is neither installed on host \S+ nor sent along .*: install it there"
    with pytest.raises(ReplayFailedError, match=mend):
        replay(topology, {"source": values}).run()
    assert (
        len(
            replay(topology, {"source": values}, by_value=["helper_of_the_driver"])[
                "bolt"
            ].collect()
        )
        == 2
    )


def test_whatever_spark_says_is_one_line_on_the_command_line() -> None:
    stack = "An error occurred while calling o1.count.\n: org.apache.spark.SparkException: Job aborted.\n\tat a.b.C(D.scala:1)\n"
    result = str(told_shortly(ValueError(stack)))
    assert result == "Spark failed: org.apache.spark.SparkException: Job aborted."
    missing = "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'sparkstorm'\n"
    assert str(told_shortly(ValueError(missing))).startswith(
        "executors have no module 'sparkstorm': install it there"
    )


@pytest.fixture
def reading(spark: SparkSession, tmp_path: Path) -> Any:
    """Read a folder as the command line does, as the input of a spout of lines."""
    topology = lines()

    def read(format: str | None = None, skip_bad: bool = False) -> list[Any]:
        inputs = {"lines": str(tmp_path / "in")}
        file = ReplayFile(inputs=inputs, format=format, skip_bad=skip_bad)
        run = ReplayRun(JOB, topology, (), file)
        given = run._read(spark, "lines", str(tmp_path / "in"))
        frame = given.frame if isinstance(given, ReadByParts) else given
        return [tuple(row) for row in frame.collect()]

    (tmp_path / "in").mkdir()
    return read


def lines() -> Topology:
    builder = building(lines=Source("line"))
    builder.set_bolt("count", Count()).fields_grouping("lines", "line")
    return builder.build()


@pytest.mark.system
def test_an_input_folder_without_files_is_a_mistake(reading: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"^input 'lines': there are no files in .*in$"):
        reading()
    (tmp_path / "in" / "_part").mkdir()
    (tmp_path / "in" / "_part" / "x.txt").write_text("a")
    sentence = r"no files in .* but 1 whose own or folder's name begins with _ or"
    with pytest.raises(InvalidConfigError, match=sentence):
        reading()


@pytest.mark.system
def test_a_csv_file_for_a_spout_of_lines_is_read_as_lines(
    reading: Any, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "in" / "x.csv").write_text("a,b\n1,2\n")
    assert sorted(reading()) == [("1,2",), ("a,b",)]
    assert (
        "has no column 'line', so each of its lines is one, as live (--format csv reads columns)"
        in capsys.readouterr().out
    )
    with pytest.raises(InvalidConfigError, match="has no column 'line'; it has a, b"):
        reading("csv")
    (tmp_path / "in" / "x.csv").write_text("line,b\n1,2\n")
    assert [row[0] for row in reading()] == [1]


RAGGED = b"line,b\n1\n2,b,c\n3,d\n"
BROKEN = b'{"line": 1}\n{"line":\n{"line": 3}\n'


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "data"), [("x.csv", RAGGED), ("x.json", BROKEN)], ids=["csv", "json"]
)
def test_what_spark_cannot_read_ends_the_replay_or_is_left_out(
    reading: Any, tmp_path: Path, name: str, data: bytes
) -> None:
    (tmp_path / "in" / name).write_bytes(data)
    with pytest.raises((InvalidConfigError, Py4JJavaError), match=r"x\.csv|cannot be read as json"):
        reading()
    assert [row[0] for row in reading(skip_bad=True)] == ([3] if name == "x.csv" else [1, 3])


@pytest.mark.system
def test_a_quoted_cell_may_have_lines_and_quotes(reading: Any, tmp_path: Path) -> None:
    (tmp_path / "in" / "x.csv").write_bytes(b'line,b\n"a\n2,""b",1\n"c\\",2\n" d\re",3\n')
    assert [row[0] for row in reading()] == ['a\n2,"b', "c\\", " d\re"]


class PerTask(StatefulBolt):
    """Counts."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup.values[0], 1)


def test_equal_keys_of_several_tasks_are_not_merged_in_silence() -> None:
    builder = building(source=Source("value"))
    builder.set_bolt("bolt", PerTask(), 2).all_grouping("source")
    builder.set_bolt("other", PerTask(), 2).fields_grouping("source", "value")
    rows = {"source": [("a",), ("a",), ("b",)]}
    live = complete_topology(builder.build(), rows)
    replayed = replay_locally(builder.build(), rows, name="test")
    for state in (live.state, replayed.states.__getitem__):
        sentence = r"^tasks \d and \d of 'bolt' both have the key '[ab]' .*state_by_task"
        with pytest.raises(ValueError, match=sentence):
            state("bolt")
        assert state("other") == {"a": 2, "b": 1}
    for by_task in (live.state_by_task("bolt"), replayed.states_by_task["bolt"]):
        assert list(by_task.values()) == [{"a": 2, "b": 1}] * 2


@pytest.mark.system
def test_windows_that_keep_nothing_leave_no_folder_of_states(
    spark: SparkSession, tmp_path: Path, monkeypatch: Any
) -> None:
    builder = building(source=Source("key", "ts", "value"))
    bolt = (
        Merging()
        .with_tumbling_window(Duration.millis(10))
        .with_key("key")
        .with_timestamp_field("ts")
    )
    builder.set_bolt("windows", bolt).fields_grouping("source", "key")
    spark.createDataFrame([("a", 1, 1)], ["key", "ts", "value"]).write.parquet(str(tmp_path / "in"))
    monkeypatch.setattr("sparkstorm.driver.replay.run._session", lambda *_: spark)
    run = ReplayRun(JOB, builder.build(), (), ReplayFile(inputs={"source": str(tmp_path / "in")}))
    assert run.write(tmp_path / "out", "json") == 0
    assert [path.name for path in (tmp_path / "out").glob("[!.]*")] == ["windows"]


@pytest.mark.system
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("VALUES ('a', 1), ('a', 2) AS t(key, value)", "1 row with the key of another one"),
        ("VALUES (map('x', 1), 1) AS t(key, value)", "key .'x': 1.: it holds a dict"),
        ("VALUES (array(array(1)), 1) AS t(key, value)", "it holds a list"),
        ("VALUES (double('NaN'), 1) AS t(key, value)", "it holds NaN, which equals no key"),
    ],
)
def test_initial_states_that_no_bolt_could_keep_are_refused_by_key(
    spark: SparkSession, values: DataFrame, keys: str, said: str
) -> None:
    state = spark.sql(f"SELECT * FROM {keys}")
    results = replay(one_bolt(Count()), {"source": values}, states={"bolt": state})
    with pytest.raises(ReplayFailedError, match=f"^initial state of 'bolt'.*{said}"):
        results.run()
