"""Late rows of a replay follow from the order of its history, however that lies in partitions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.spark_versions import HAS_UNION_BY_PLACE, executed_plan
from sparkstorm.connectors import Files
from sparkstorm.driver.replay.file_inputs import FileInput, FilesInput
from sparkstorm.driver.replay.job import main
from sparkstorm.replay import EventTime, LocalResults, ReplayOptions, replay, replay_locally
from sparkstorm.replay.history_order import (
    MOST_RANGES,
    _span,
    dealt_by_time,
    follow_each_other,
    in_file_order,
)
from sparkstorm.replay.job import RunSettings, make_job
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Pass, Source, WindowSums
from tests.replay.test_windows import MS, by_ts, rows

pytestmark = pytest.mark.sampled

Row = tuple[Any, ...]
TIMES: dict[str, EventTime | None] = {
    "in place": EventTime("ts", in_order=False),
    "no event time": None,
    "in order": EventTime("ts"),
    "by arrival": EventTime("arrival"),
    "by arrival, in place": EventTime("arrival", in_order=False),
}


class Shift(BasicBolt):
    """Gives its rows other times, not in the order of the old ones."""

    outputs = ("key", "value", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["value"] % 5:
            collector.emit((tup["key"], tup["value"], max(0, tup["ts"] - 97 * (tup["ts"] % 7))))


def summed(*between: BasicBolt, tasks: int = 3, spouts: int = 1) -> Topology:
    """source -> (bolts in the same stage) -> sums of windows with a stream of late rows."""
    builder = TopologyBuilder()
    builder.set_spout("source", Source("key", "value", "ts", "arrival"), spouts)
    former = "source"
    for n, bolt in enumerate(between):
        builder.set_bolt(f"b{n}", bolt, tasks + 2 * n).shuffle_grouping(former)
        former = f"b{n}"
    window = by_ts(WindowSums().with_tumbling_window(MS(100))).with_late_tuple_stream("late")
    builder.set_bolt("sum", window, 2).fields_grouping(former, "key")
    return builder.build()


SHAPES: dict[str, Sequence[BasicBolt]] = {
    "data": (),
    "one bolt between": (Pass(),),
    "bolts that change times": (Pass(), Shift()),
}


def history(seed: int, count: int = 300) -> list[Row]:
    return [(*row, 7 * n % 1000) for n, row in enumerate(rows(seed, count, disorder_ms=80))]


def found(results: LocalResults) -> tuple[Counter[str], Counter[str]]:
    """Late rows and sums."""
    return Counter(map(repr, results["sum:late"])), Counter(map(repr, results["sum"]))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("time", TIMES)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    spouts=st.integers(1, 3),
)
def test_the_same_rows_are_late_in_whatever_partitions_they_lie(
    shape: str, time: str, seed: int, cuts: list[int], spouts: int
) -> None:
    data, topology = history(seed), summed(*SHAPES[shape], spouts=spouts)
    whole = replay_locally(topology, {"source": data}, event_time=TIMES[time])
    split = replay_locally(
        topology, {"source": data}, event_time=TIMES[time], partitions=sorted(cuts)
    )
    assert found(split) == found(whole)
    assert whole["sum:late"] or (time == "in order" and shape != "bolts that change times")


@pytest.mark.parametrize("partitions", [1, 2, 4, 7])
@pytest.mark.parametrize("time", ["in place", "no event time"])
@pytest.mark.parametrize("between", [(), (Pass(),)], ids=["data", "one bolt between"])
def test_late_rows_are_those_of_a_live_spout_of_one_task(
    partitions: int, time: str, between: Sequence[BasicBolt]
) -> None:
    topology = summed(*between, tasks=1)
    live = complete_topology(topology, {"source": history(3)}, seed=1)
    results = replay_locally(
        topology, {"source": history(3)}, event_time=TIMES[time], partitions=partitions
    )
    assert found(results) == (
        Counter(map(repr, live.values("sum", "late"))),
        Counter(map(repr, live["sum"])),
    )
    assert results["sum:late"]


def test_a_row_that_moves_no_clock_live_carries_nothing_on() -> None:
    bad = [("a", 1, 2**60, 0), ("a", 1, -5, 0), ("a", 1, None, 0)]
    data = [("a", 1, 10, 0), *bad, ("a", 1, 20, 0)]
    topology = summed()
    for partitions in (1, 5):
        results = replay_locally(topology, {"source": data}, partitions=partitions, skip_bad=True)
        assert results["sum:late"] == [] and sum(value for _, value, _ in results["sum"]) == 2


class Picky(BasicBolt):
    """Fails on some rows, at every try."""

    outputs = ("key", "value", "ts")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["value"] == 2:
            raise ValueError("not this one")
        collector.emit(tup.values[:3])


def test_the_end_of_a_sender_is_heard_after_its_last_row_though_an_older_one_failed() -> None:
    """The failed row is tried again after the rows behind it."""
    builder = TopologyBuilder()
    builder.set_spout("source", Source("key", "value", "ts", "arrival"))
    builder.set_bolt("picky", Picky(), 2).fields_grouping("source", "key")
    builder.set_bolt("sum", by_ts(WindowSums().with_tumbling_window(MS(100)))).fields_grouping(
        "picky", "key"
    )
    # one key per task
    data = [(key, 2 if n == 1 else 1, 10 * n, 0) for n in range(60) for key in "ac"]
    results = replay_locally(
        builder.build(), {"source": data}, event_time=EventTime("ts"), skip_bad=True
    )
    assert sum(row[1] for row in results["sum"]) == 2 * 59


def test_late_rows_behind_several_tasks_of_a_spout_are_warned_about() -> None:
    """Live each of these tasks has its own clock, so a row that is late here may be on time
    there.
    """
    for spouts, seed, causes in ((1, 3, []), (2, 3, ["late data"])):
        results = replay_locally(summed(spouts=spouts), {"source": history(seed)})
        assert [w.cause for w in results.warnings] == causes
    in_order = replay_locally(
        summed(spouts=2), {"source": history(3)}, event_time=TIMES["in order"]
    )
    assert in_order.warnings == ()


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.parametrize("shape", ["data", "bolts that change times"])
def test_on_spark_the_same_rows_are_late_in_one_partition_and_in_four(
    spark: SparkSession, shape: str, tmp_path: Any
) -> None:
    data, topology = history(5, 400), summed(*SHAPES[shape])
    # one partition has no order of partitions to lose: once
    numbers = (1, 4) if shape == "data" else (4,)
    random = Random(1)
    shuffled = random.sample(data, len(data))
    for name in TIMES:
        for given_rows in (data, shuffled) if name == "in order" else (data,):
            local = replay_locally(
                topology,
                {"source": data if name == "in order" else given_rows},
                event_time=TIMES[name],
            )
            for partitions in numbers:
                frame = spark.createDataFrame(
                    spark.sparkContext.parallelize(given_rows, partitions),
                    "key string, value int, ts bigint, arrival bigint",
                )
                assert frame.rdd.getNumPartitions() == partitions
                results = replay(
                    topology, {"source": frame}, event_time=TIMES[name], outputs=["sum", "sum:late"]
                )
                late = Counter(row.time_ms for row in results["sum:late"].collect())
                sums = Counter(tuple(row) for row in results["sum"].collect())
                assert sums == Counter(local["sum"]), (name, partitions)
                assert late == Counter(row[2] for row in local["sum:late"]), (name, partitions)
                results.close()


@pytest.mark.system
@pytest.mark.parametrize("kind", ["json", "parquet", "csv"])
def test_on_spark_a_folder_of_files_is_read_in_the_order_of_their_names(
    spark: SparkSession, kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads the largest file first; a live FileLines reads them by name."""
    data, schema = history(7, 400), "key string, value int, ts bigint, arrival bigint"
    for name, first, last in (
        ("day 1", 0, 60),
        ("day+2", 60, 90),
        ("day%3", 90, 300),
        ("day_4", 300, 400),
    ):
        rows = spark.createDataFrame(spark.sparkContext.parallelize(data[first:last], 1), schema)
        rows.write.format(kind).save(str(tmp_path / f"written {first}"))
        (part,) = (tmp_path / f"written {first}").glob("part-*")
        (tmp_path / "in").mkdir(exist_ok=True)
        part.rename(tmp_path / "in" / f"{name}.{kind}")
    frame = spark.read.schema(schema).format(kind).load(str(tmp_path / "in"))
    names = sorted(path.name for path in (tmp_path / "in").iterdir())
    assert names == [f"{name}.{kind}" for name in ("day 1", "day%3", "day+2", "day_4")]
    ordered = data[:60] + data[90:300] + data[60:90] + data[300:]
    if HAS_UNION_BY_PLACE:
        assert "Exchange" not in executed_plan(in_file_order(frame, 2)), "rows were shuffled"
    with monkeypatch.context() as patch:
        patch.setattr("sparkstorm.replay.history_order._MOST_SPLITS", 3)
        shuffled = in_file_order(frame, 2)
    assert "Exchange" in executed_plan(shuffled), "more parts than are put in order by name"
    assert [tuple(row) for row in shuffled.collect()] == ordered
    for tasks in (1, 3):
        local = replay_locally(summed(Pass(), tasks=tasks), {"source": ordered}, partitions=1)
        for time in (None, TIMES["in place"]):
            results = replay(
                summed(Pass(), tasks=tasks),
                {"source": frame},
                event_time=time,
                outputs=["sum", "sum:late"],
            )
            assert Counter(map(tuple, results["sum"].collect())) == Counter(local["sum"])
            late = Counter(row.time_ms for row in results["sum:late"].collect())
            assert late == Counter(row[2] for row in local["sum:late"]) and late.total() > 30
            results.close()


def _days(kind: str) -> list[list[Row]]:
    """Return the rows of four files, in the order of their times or not."""
    data = [(*row[:2], 10 * n, n) for n, row in enumerate(rows(7, 400))]
    days = [data[:60], data[60:150], data[150:390], data[390:]]
    if kind == "files that overlap":
        days[1:3] = [data[60:390:2], data[61:390:2]]
    elif kind == "a row behind":
        days[2][7], days[2][8] = days[2][8], days[2][7]
    elif kind == "equal times":
        days = [[(*row[:2], row[2] // 100 * 100, row[3]) for row in day] for day in days]
    return days


@pytest.mark.system
@pytest.mark.parametrize("is_read_by_tasks", [False, True], ids=["as a frame", "by its tasks"])
@pytest.mark.parametrize(
    "kind", ["in order", "equal times", "an empty file", "files that overlap", "a row behind"]
)
def test_on_spark_files_are_sorted_if_their_rows_are_not_in_the_order_of_their_times(
    spark: SparkSession,
    kind: str,
    is_read_by_tasks: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("key", "value", "ts", "arrival")
    for n, day in enumerate(_days(kind)):
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in day]
        (tmp_path / f"{n}.json").write_text("".join(f"{line}\n" for line in lines))
    if kind == "an empty file":
        (tmp_path / "2a.json").touch()
    looks: list[bool] = []

    def look(spans: Any) -> bool:
        looks.append(follow_each_other(spans))
        return looks[-1]

    monkeypatch.setattr("sparkstorm.replay.spark.follow_each_other", look)
    monkeypatch.setattr("sparkstorm.driver.replay.file_inputs._LEAST_BYTES", 1 << 10)
    topology = summed(Shift(), tasks=1)
    types = {"key": "string", "value": "bigint", "ts": "bigint", "arrival": "bigint"}
    source = Files(str(tmp_path), "json", types)
    job = make_job(ReplayOptions().plan(topology), RunSettings(), is_local=True)
    given: Any = (
        FilesInput(spark, FileInput(job, "source", str(tmp_path), source), source).input()
        if is_read_by_tasks
        else spark.read.schema(", ".join(map(" ".join, types.items()))).json(str(tmp_path))
    )
    data = [row for day in _days(kind) for row in day]
    local = replay_locally(topology, {"source": data}, event_time=EventTime("ts"))
    results = replay(
        topology, {"source": given}, event_time=EventTime("ts"), outputs=["sum", "sum:late"]
    )
    late = Counter(row.time_ms for row in results["sum:late"].collect())
    assert Counter(map(tuple, results["sum"].collect())) == Counter(local["sum"])
    assert late == Counter(row[2] for row in local["sum:late"]) and late
    assert looks and set(looks) == {kind in ("in order", "equal times", "an empty file")}
    results.close()


@pytest.mark.system
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("files", [1, 3])
def test_on_spark_a_malformed_row_that_is_dropped_has_no_time(
    spark: SparkSession, files: int, is_sorted: bool, tmp_path: Path
) -> None:
    data = [("abc"[n % 3], n, 10 * n, n) for n in range(300)]
    for number in range(files):
        lines = [",".join(map(str, row)) for row in data[number::files]]
        (tmp_path / f"{number}.csv").write_text("\n".join([*lines, "a,x,4000,0", ""]))
    read = spark.read.schema("key string, value int, ts bigint, arrival bigint")
    frame = read.option("mode", "DROPMALFORMED").csv(str(tmp_path))
    time = EventTime("ts", in_order=is_sorted)
    results = replay(summed(Pass(), tasks=1), {"source": frame}, event_time=time, outputs=["sum"])
    kept = [row for number in range(files) for row in data[number::files]]
    local = replay_locally(summed(Pass(), tasks=1), {"source": kept}, event_time=time)
    assert Counter(map(tuple, results["sum"].collect())) == Counter(local["sum"])
    results.close()


@pytest.mark.parametrize(
    ("parts", "is_in_order"),
    [
        ([], True),
        ([[[1, 2], [2, 5]], [], [[5]]], True),
        ([[[1, 2], [1]]], False),
        ([[[1, 3]], [[2, 4]]], False),
        ([[[1, None, 2]]], False),
        ([[[], [4, 3]]], False),
    ],
)
def test_rows_that_follow_each_other_in_time_are_told(parts: Any, is_in_order: bool) -> None:
    spans = [_span(pa.array(batch, pa.int64()) for batch in part) for part in parts]
    assert follow_each_other(spans) is is_in_order


def test_times_of_a_partition_are_sampled_evenly() -> None:
    batches = [range(start, start + 700) for start in range(0, 70_000, 700)]
    span = _span(pa.array(batch, pa.int64()) for batch in batches)
    assert (span.oldest, span.newest, span.is_in_order) == (0, 69_999, True)
    assert span.sample == list(range(0, 70_000, span.step)) and 500 < len(span.sample) <= 1024


@pytest.mark.system
def test_on_spark_rows_are_dealt_to_as_many_ranges_as_one_expression_takes(
    spark: SparkSession,
) -> None:
    times = Random(2).sample(range(5000), 5000)
    frame = spark.createDataFrame([(at,) for at in times], "ts bigint")
    dealt = dealt_by_time(frame, "ts", [_span(iter([pa.array(times)]))], MOST_RANGES)
    assert [row.ts for row in dealt.collect()] == sorted(times)
    assert dealt.rdd.getNumPartitions() == MOST_RANGES


def daily() -> Topology:
    """The topology of the job file below."""
    return summed(Pass())


@pytest.mark.system
def test_the_command_line_reads_daily_logs_in_order_and_no_row_is_late(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three days the second has the most rows, which Spark alone reads first."""
    data = [("abc"[n % 3], n, 10 * n, n) for n in range(1200)]
    (tmp_path / "logs").mkdir()
    for day, first, last in (
        ("2024-05-01", 0, 300),
        ("2024-05-02", 300, 1000),
        ("2024-05-03", 1000, 1200),
    ):
        lines = [
            json.dumps(dict(zip(("key", "value", "ts", "arrival"), row, strict=True)))
            for row in data[first:last]
        ]
        (tmp_path / "logs" / f"{day}.json").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "job.yaml").write_text(
        "topology: tests.replay.test_lateness:daily\nreplay: {in_order: false}\n"
    )
    sums = Counter(replay_locally(daily(), {"source": data})["sum"])
    for times in ([], ["--event-time", "ts"]):
        given = [
            "--input",
            str(tmp_path / "logs"),
            "--output",
            str(tmp_path / "out"),
            "--overwrite",
            *times,
        ]
        assert main([str(tmp_path / "job.yaml"), *given]) == 0
        said = capsys.readouterr().out
        assert "0 records put aside; results are in" in said, "late rows would come between"
        found = spark.read.parquet(str(tmp_path / "out" / "sum")).collect()
        assert Counter(map(tuple, found)) == sums and len(sums) > 100
