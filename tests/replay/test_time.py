"""Virtual time: a bolt's now is the time of what it executes, rows of several sources come in the
order of their times.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    StatefulBolt,
    Tuple,
)
from sparkstorm.common.errors import InvalidTopologyError, ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.driver.replay import job_results
from sparkstorm.replay import EventTime, LocalResults, read_value, replay, replay_locally
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Source, Split, Timed, TimedByHand
from tests.replay.timed_topologies import NEW_YORK
from tests.topologies import building

BY_TS = EventTime("ts")


def two_sources(bolt: BasicBolt | Bolt, tick_secs: float | None = None) -> Topology:
    builder = building(left=Source("value", "ts"), right=Source("value", "ts"))
    conf = {"topology.tick.tuple.freq.secs": tick_secs} if tick_secs else {}
    builder.set_bolt("timed", bolt, conf=conf).global_grouping("left").global_grouping("right")
    return builder.build()


def run(
    topology: Topology, left: Sequence[Any], right: Sequence[Any], time: EventTime | None = BY_TS
) -> LocalResults:
    return replay_locally(topology, {"left": left, "right": right}, event_time=time)


@pytest.mark.parametrize("bolt", [Timed(), TimedByHand()])
def test_rows_of_two_sources_are_executed_in_the_order_of_their_times(
    bolt: BasicBolt | Bolt,
) -> None:
    results = run(
        two_sources(bolt), [("a", 10), ("c", 30), ("b", 20)], [("x", 15), ("y", 20), ("z", 99)]
    )
    result = [row[:2] for row in results["timed"]]
    assert result == [("a", 10), ("x", 15), ("b", 20), ("y", 20), ("c", 30), ("z", 99)]


def test_without_order_a_late_row_keeps_its_place_and_time_stands_still() -> None:
    results = run(
        two_sources(Timed()),
        [("a", 10), ("c", 30), ("b", 20)],
        [("x", 15)],
        EventTime("ts", in_order=False),
    )
    assert [row[:2] for row in results["timed"]] == [("a", 10), ("x", 15), ("c", 30), ("b", 30)]


def test_without_an_event_time_sources_come_one_after_the_other_and_no_time_passes() -> None:
    results = run(two_sources(Timed(), tick_secs=1), [("a", 10), ("b", 5000)], [("x", 15)], None)
    assert [row[:2] for row in results["timed"]] == [("a", 0), ("b", 0), ("x", 0)]
    assert [w.cause for w in results.warnings] == ["ticks", "wall clock"]
    assert "no event time" in str(results.warnings[0])


@pytest.mark.parametrize("bolt", [Timed(), TimedByHand()])
def test_ticks_fall_on_whole_multiples_of_their_period_between_the_rows(
    bolt: BasicBolt | Bolt,
) -> None:
    results = run(two_sources(bolt, tick_secs=1), [("a", 1500), ("b", 2000)], [("x", 4100)])
    assert [row[:2] for row in results["timed"]] == [
        ("a", 1500),
        ("tick", 2000),
        ("b", 2000),
        ("tick", 3000),
        ("tick", 4000),
        ("x", 4100),
    ]


def test_emitted_rows_inherit_the_time_of_their_input_over_hops() -> None:
    builder = building(lines=Source("line", "ts"))
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("timed", Timed(), 2).fields_grouping("split", "word")
    rows = [("a b", 7), ("c a", 3), ("b", 5)]
    results = replay_locally(builder.build(), {"lines": rows}, event_time=BY_TS, partitions=2)
    result = sorted(row[:2] for row in results["timed"])
    assert result == [("a", 3), ("a", 7), ("b", 5), ("b", 7), ("c", 3)]


def test_many_sources_of_many_rows_are_merged_exactly() -> None:
    builder = building(lines=Source("value", "ts"))
    builder.set_bolt("timed", Timed()).global_grouping("lines")
    rows = [(n, (n * 7919) % 20011) for n in range(30_000)]
    results = replay_locally(builder.build(), {"lines": rows}, event_time=BY_TS, partitions=5)
    times = [now for _, now, _ in results["timed"]]
    assert times == sorted(ts for _, ts in rows)


def test_an_input_without_a_time_among_timed_ones_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="names no column for input 'right'"):
        run(two_sources(Timed()), [], [], EventTime({"left": "ts"}))


@pytest.mark.parametrize(
    ("time", "ts", "said"),
    [
        ("when", 1, "input 'left' has no column 'when' .* value, ts"),
        ("ts", "noon", r"input 'left', row 0, column 'ts': .* not 'noon' \(str\)"),
        ("ts", float("nan"), "row 0, column 'ts': an event time is whole milliseconds, not nan"),
        ("ts", 1.5, "row 0, column 'ts': an event time is whole milliseconds, not 1.5"),
        ("ts", True, "row 0, column 'ts': an event time is whole milliseconds, not True"),
    ],
)
def test_a_column_that_is_no_event_time_is_refused_by_name(time: str, ts: Any, said: str) -> None:
    with pytest.raises(ReplayFailedError, match=said):
        run(two_sources(Timed()), [("a", ts), ("b", 2)], [], EventTime(time))


# -- columns of TIMESTAMP are instants, whatever the session's zone --------------------------------


# The repeated and the missing hour of New York, the offsets of Kathmandu, and days that differ.
MOMENTS = [
    *(datetime(2015, 11, 1, hour, 30, tzinfo=UTC) for hour in range(4, 9)),
    *(datetime(2015, 3, 8, hour, 30, tzinfo=UTC) for hour in range(5, 9)),
    datetime(1985, 12, 31, 18, 15, tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=UTC) - timedelta(microseconds=1),
]
ZONES = "UTC", "America/New_York", "Asia/Kathmandu", "America/Los_Angeles"


class ByMoment(StatefulBolt):
    """Counts under a moment, alone and as a part of a key, and emits what it got."""

    outputs = ("at", "text")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        at = tup["at"]
        keys = at, ("day", at.isoformat()[:10])
        counts = [self.state.add(key, 1) for key in keys]
        collector.emit((at, repr((at, tup["nested"], counts))))


def topology() -> Topology:
    builder = building(source=Source("at", "nested"))
    builder.set_bolt("bolt", ByMoment()).fields_grouping("source", "at")
    return builder.build()


@pytest.fixture(params=ZONES)
def zoned(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    former = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(former))


@pytest.mark.sampled
@pytest.mark.system
@pytest.mark.parametrize("event_time", [None, "at"])
def test_moments_are_keys_values_and_times_as_live_in_every_zone_of_a_session(
    zoned: SparkSession, event_time: str | None
) -> None:
    rows = [(at, [{"at": at}]) for at in MOMENTS for _ in range(2)]
    frame = zoned.createDataFrame(rows, "at timestamp, nested array<map<string, timestamp>>")
    live = complete_topology(topology(), {"source": rows})
    replayed = replay(topology(), {"source": frame}, event_time=event_time)
    result = sorted(row.text for row in replayed["bolt"].collect())
    assert result == sorted(text for _, text in live["bolt"])


class Local(BasicBolt):
    """Emits a moment in New York's zone."""

    outputs = ("at",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["at"].astimezone(NEW_YORK),))


class PerLocal(StatefulBolt):
    """Counts by local time."""

    outputs = ("at", "count")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["at"].isoformat(), self.state.add(tup["at"])))


@pytest.mark.system
def test_both_times_of_a_repeated_hour_are_keys_on_spark_as_live(spark: SparkSession) -> None:
    builder = building(source=Source("at"))
    builder.set_bolt("local", Local(), 2).shuffle_grouping("source")
    builder.set_bolt("count", PerLocal(), 3).fields_grouping("local", "at")
    rows = [(at,) for at in MOMENTS for _ in range(2)]
    live = complete_topology(builder.build(), {"source": rows})
    assert len(live.state("count")) == len(MOMENTS) and set(live.state("count").values()) == {2}
    replayed = replay(builder.build(), {"source": spark.createDataFrame(rows, "at timestamp")})
    assert sorted(map(tuple, replayed["count"].collect())) == sorted(live["count"])
    keys = [repr(read_value(row.key)) for row in replayed.state("count").collect()]
    assert sorted(keys) == sorted(map(repr, live.state("count")))


def test_results_of_a_job_file_have_times_in_utc() -> None:
    moment = MOMENTS[1]
    column = pa.array([moment], pa.timestamp("us", "America/New_York"))
    ((found,),) = job_results._values(pa.RecordBatch.from_arrays([column], ["at"]))
    assert repr(found) == repr(moment)


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/New_York"])
def test_the_table_of_values_holds_on_a_machine_of_another_zone(zone: str) -> None:
    files = "tests/replay/test_value_roads.py", "tests/model/test_value_types.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not system"]
    done = subprocess.run(
        [*command, *files], env={**os.environ, "TZ": zone}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode()[-2000:]
