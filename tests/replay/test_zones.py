"""TIMESTAMP columns are instants in UTC to a replay's bolts, whatever the session's zone is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.driver.replay import job_results
from sparkstorm.replay import read_value, replay
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Source
from tests.replay.timed_topologies import NEW_YORK

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
    builder = TopologyBuilder()
    builder.set_spout("source", Source("at", "nested"))
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
    assert sorted(row.text for row in replayed["bolt"].collect()) == sorted(
        text for _, text in live["bolt"]
    )


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
    builder = TopologyBuilder()
    builder.set_spout("source", Source("at"))
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
