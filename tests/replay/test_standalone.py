"""Replays on a standalone master whose processes die and whose tasks run twice: results are those
of an undisturbed one.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil
import pytest
from pyspark import TaskContext
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
from sparkstorm.api.windows import Window
from sparkstorm.common.model.topology import Topology
from sparkstorm.driver.job_file import JobFile
from sparkstorm.driver.replay.job_results import write_result
from sparkstorm.driver.results import Result
from sparkstorm.replay import EventTime, Replay, replay
from tests.chaos.standalone import StandalonePair
from tests.replay.bolts import Source, WindowSums
from tests.replay.conftest import ENVIRONMENT
from tests.replay.test_lateness import history
from tests.replay.test_windows import MS, by_ts
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.nightly]
ROWS = history(3, 1200)
SCHEMA = "key string, value long, ts long, arrival long"
TIME = EventTime("ts", in_order=False)
CONFS = {
    "plain": {},
    "speculation": {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
    },
}
# each costs an action or two; states have the order of rows
NAMES = "pass", "sum", "sum:late", "chain!state"
UNDISTURBED: dict[str, Any] = {}


class Trouble:
    """Disturbance of one partition's task, once: its Python worker or its executor is killed, or it
    waits for its copy.
    """

    def __init__(self, kind: str, mark: Path) -> None:
        self.kind, self.mark, self.seen = kind, str(mark), 0

    def befall(self) -> None:
        """Called with every row of the bolt that has it; the 50th row of partition 0 is the
        middle.
        """
        self.seen += 1
        task = TaskContext.get()
        if not self.kind or self.seen != 50 or task is None or task.partitionId() != 0:
            return
        if self.kind == "copy":
            if task.attemptNumber():
                Path(self.mark).touch()
            else:
                wait_until(Path(self.mark).exists, "speculative copy", 120)
        elif not Path(self.mark).exists():
            Path(self.mark).touch()
            if self.kind == "executor":
                above = psutil.Process().parents()
                os.kill(
                    next(
                        p.pid
                        for p in above
                        if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline())
                    ),
                    signal.SIGKILL,
                )
            os.kill(os.getpid(), signal.SIGKILL)


class Pass(BasicBolt):
    """Passes rows on without their place of arrival."""

    outputs = ("key", "value", "ts")

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.trouble.befall()
        collector.emit(tup.values[:3])


class Chain(StatefulBolt):
    """A checksum of all rows of a key in their order."""

    outputs = ("key", "sum")

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.trouble.befall()
        found = crc32(repr(tup.values).encode(), self.state.get(tup["key"]) or 0)
        self.state.put(tup["key"], found)
        collector.emit((tup["key"], found))


class TroubledSum(WindowSums):
    """Sums of windows."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        self.trouble.befall()
        super().execute(window, collector)


class Writes(BasicBolt):
    """An effect: a line of a file named after the effect."""

    effects: Effects | None = Effects.IDEMPOTENT

    def __init__(self, folder: Path, trouble: Trouble) -> None:
        self.folder, self.trouble = str(folder), trouble

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.context = context

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.trouble.befall()
        with Path(self.folder, str(self.context.effect_key()).replace("/", "-")).open("a") as file:
            file.write(f"{tup.values!r}\n")


def topology(folder: Path, **kinds: str) -> Topology:
    """Rows passed on by two tasks, before sums of windows, checksums in order and effects; the named
    bolts have trouble of a kind.
    """
    (folder / "effects").mkdir()
    trouble = {
        name: Trouble(kinds.get(name, ""), folder / f"mark-{name}")
        for name in ("pass", "sum", "chain", "writes")
    }
    builder = TopologyBuilder()
    builder.set_spout("source", Source("key", "value", "ts", "arrival"))
    builder.set_bolt("pass", Pass(trouble["pass"]), 2).shuffle_grouping("source")
    window = by_ts(
        TroubledSum(trouble["sum"]).with_tumbling_window(MS(100))
    ).with_late_tuple_stream("late")
    builder.set_bolt("sum", window, 2).fields_grouping("pass", "key")
    builder.set_bolt("chain", Chain(trouble["chain"]), 2).fields_grouping("pass", "key")
    builder.set_bolt("writes", Writes(folder / "effects", trouble["writes"]), 2).fields_grouping(
        "pass", "key"
    )
    return builder.build()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandalonePair]:
    """A master and two workers."""
    made = StandalonePair(
        tmp_path_factory.mktemp("standalone") / "spark", ENVIRONMENT, ("127.0.0.1", "127.0.0.2")
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, pair: StandalonePair) -> Iterator[SparkSession]:
    """A session of the master, plain or with speculation."""
    former = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    own: dict[str, Any] = dict(
        line.split(" ", 1)
        for line in (pair.spark_conf / "spark-defaults.conf").read_text().splitlines()
    )
    own |= {
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        **CONFS[request.param],
    }
    builder = SparkSession.builder.master(pair.url).config("spark.ui.showConsoleProgress", "false")
    session = builder.config(map=own).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(former)


def replayed(spark: SparkSession, made: Topology) -> Replay:
    frame = spark.createDataFrame(spark.sparkContext.parallelize(ROWS, 3), SCHEMA)
    return replay(
        made,
        {"source": frame},
        event_time=TIME,
        types={"sum": "key string, value bigint, ts bigint"},
    )


def contents(results: Replay, folder: Path) -> dict[str, Any]:
    """Outcome of a replay: results in any order, states, counts, effects by name, files of a
    result.
    """
    folder.mkdir(exist_ok=True)
    results.run()
    found: dict[str, Any] = {name: Counter(map(repr, results[name].collect())) for name in NAMES}
    found["counts"] = results.counts
    results["sum"].write.json(str(folder / "sums"))
    lines = [
        line for file in (folder / "sums").glob("*.json") for line in file.read_text().splitlines()
    ]
    found["file"] = Counter(tuple(json.loads(line).values()) for line in lines)
    found["effects"] = {
        file.name: set(file.read_text().splitlines()) for file in (folder / "effects").iterdir()
    }
    results.close()
    return found


@pytest.fixture
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Outcome of an undisturbed replay, computed once."""
    if not UNDISTURBED:
        folder = tmp_path_factory.mktemp("undisturbed")
        UNDISTURBED.update(contents(replayed(spark, topology(folder)), folder))
    effects = UNDISTURBED["effects"]
    assert len(effects) == len(ROWS) and all(len(rows) == 1 for rows in effects.values())
    assert UNDISTURBED["sum:late"]
    assert UNDISTURBED["file"].total() == UNDISTURBED["sum"].total() > 100
    return UNDISTURBED


@pytest.mark.parametrize(
    ("spark", "kinds"),
    [
        ("plain", {"pass": "worker", "chain": "executor"}),
        ("plain", {"writes": "executor"}),
        ("speculation", {"pass": "copy", "writes": "copy"}),
    ],
    indirect=["spark"],
    ids=["worker and executor", "executor with effects", "copies"],
)
def test_a_disturbed_replay_equals_an_undisturbed_one(
    spark: SparkSession, undisturbed: dict[str, Any], tmp_path: Path, kinds: dict[str, str]
) -> None:
    """With an executor, the output of former stages there is lost too, and made again."""
    assert contents(replayed(spark, topology(tmp_path, **kinds)), tmp_path) == undisturbed
    assert {file.name for file in tmp_path.glob("mark-*")} == {f"mark-{name}" for name in kinds}


@pytest.mark.parametrize(
    ("spark", "kind"), [("plain", "executor"), ("speculation", "copy")], indirect=["spark"]
)
def test_files_of_tasks_that_are_tried_again_have_each_row_once(
    spark: SparkSession, undisturbed: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    """The task of a lone result runs with the writer of its files."""
    made = topology(tmp_path, sum=kind)
    frame = spark.createDataFrame(spark.sparkContext.parallelize(ROWS, 3), SCHEMA)
    types = {"sum": "key string, value bigint, ts bigint"}
    results = replay(made, {"source": frame}, event_time=TIME, outputs=["sum"], types=types)
    job = JobFile("job.yaml", "test", "module:build")
    write_result(job, made, Result("sum", "default"), results["sum"], tmp_path, "run")
    assert (tmp_path / "mark-sum").exists()
    files = [file for file in (tmp_path / "sum").rglob("*") if file.is_file()]
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert Counter(tuple(json.loads(line).values()) for line in lines) == undisturbed["file"]
    results.close()
