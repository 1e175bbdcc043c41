"""`results:` of a job file: streams and states as files and tables, exact when a worker is killed,
the same in a replay.
"""

from __future__ import annotations

import contextlib
import csv
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparkstorm.client import connect
from sparkstorm.common.errors import ReadOnlyConnectionError
from tests.system.main_job import ROOT, MainJob, environment
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.system, pytest.mark.nightly]
WORDS = ["alpha", "beta", "gamma", "delta"]
LINES = [f"{WORDS[n % 4]} {n} line" for n in range(3000)]
MODULE = """
import time
from pathlib import Path
from sparkstorm.api import BasicBolt, StatefulBolt, TopologyBuilder
from sparkstorm.connectors import FileLines, find_files

GATE = Path("{gate}")

class Split(BasicBolt):
    outputs = {{"default": ["word"], "numbers": {{"n": "bigint", "even": "boolean"}}}}
    def execute(self, tup, collector):
        for word in tup["line"].split():
            if word.isdigit():
                collector.emit((int(word), int(word) % 2 == 0), stream="numbers")
                if not GATE.exists():
                    time.sleep(0.02)  # work is left until the workers were killed
            else:
                collector.emit((word,))

class Count(StatefulBolt):
    def execute(self, tup, collector):
        self.state.add(tup["word"], 1)

def build(input=(__file__,)):
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(find_files(input)))
    builder.set_bolt("split", Split(), parallelism=2, inputs="lines")
    builder.set_bolt("count", Count(), parallelism=2).fields_grouping("split", "word")
    return builder.build()
"""
JOB = """
name: many
topology: many_results:build
topology.workers: 2
results:
- {{component: count, top: 2, directory: out}}
- {{component: count, format: csv, directory: out}}
- {{component: count, format: table, url: "sqlite:///{database}", table: counts}}
- {{component: split, format: jsonl, stream: default, directory: out}}
- {{component: split, stream: numbers, format: parquet, directory: out}}
- {{component: lines, stream: default, format: csv, directory: out}}
- {{component: split, stream: numbers, format: table, url: "sqlite:///{database}", table: numbers}}
"""


def rows(database: Path, table: str) -> list[Any]:
    connection = sqlite3.connect(database)
    try:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall())
    finally:
        connection.close()


def found(folder: Path, database: Path) -> dict[str, Any]:
    """Results of a run, read by other libraries than those that wrote them."""
    lines = [
        json.loads(line)
        for path in folder.glob("split/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    numbers = [
        row
        for path in folder.glob("split.numbers/*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]
    cells = [
        row[0]
        for path in folder.glob("lines/*.csv")
        for row in list(csv.reader(path.read_text().splitlines()))[1:]
    ]
    return {
        "words": Counter(line["word"] for line in lines),
        "numbers": sorted((row["n"], row["even"]) for row in numbers),
        "lines": sorted(cells),
        "count.jsonl": (folder / "count.jsonl").read_text(),
        "count.csv": (folder / "count.csv").read_text(),
        "counts": rows(database, "counts"),
        "numbers in the table": rows(database, "numbers"),
    }


def look(folder: Path) -> None:
    """Look at a stream of the run while it goes on; a viewer may not."""
    with connect(folder / "connection.json") as cluster:
        handle = cluster.topology("many")
        with contextlib.closing(handle.tail("split", "numbers", seconds=LIMIT_S)) as rows:
            sample = next(each for each in rows if each is not None)
        assert sample.values["even"] is (sample.values["n"] % 2 == 0)
        assert sample.task in handle.tasks()
        sentence = "component 'split' has no stream 'odd'; it has default, numbers"
        with pytest.raises(ValueError, match=sentence):
            handle.tail("split", "odd")
        assert handle.frame("count").shape[1] == handle.state_frame("count").shape[1] == 3
    with (
        connect(folder / "connection-read-only.json") as viewer,
        pytest.raises(ReadOnlyConnectionError),
    ):
        viewer.topology("many").tail("split")


def tables(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE counts (key TEXT PRIMARY KEY, value INTEGER)")
    connection.execute("CREATE TABLE numbers (n INTEGER, even BOOLEAN)")
    connection.close()
    return path


def replay(folder: Path, job: str) -> None:
    """Run a job over the same input as a Spark batch; its results are below `replayed`."""
    ended = subprocess.run(
        [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", "local[3]", str(ROOT / "jobs" / "replay_history.py"), str(folder / job)),
            *("--input", str(folder / "input"), "--output", str(folder / "replayed")),
        ],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_kind_of_result_is_exact_when_a_worker_is_killed_and_the_same_in_a_replay(
    tmp_path: Path,
) -> None:
    (tmp_path / "many_results.py").write_text(MODULE.format(gate=tmp_path / "gate"))
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    live, again = tables(tmp_path / "live.db"), tables(tmp_path / "again.db")
    (tmp_path / "many.yaml").write_text(JOB.format(database=live))
    run = MainJob(
        tmp_path / "run",
        tmp_path / "many.yaml",
        [tmp_path / "input"],
        settings={"topology.max.spout.pending": 200},
    )
    try:
        run.start()
        sight = run.sight()
        run.wait_for(lambda: sight.acked() > 30, "some progress")
        look(run.folder / "storm-local")
        for beat in run.workers(sight, 2):
            run.kill(beat.pid)
        (tmp_path / "gate").touch()
        sight.close()
        assert run.wait() == 0, run.output()
        assert "was replaced" in run.output() or "kill" in run.output()
        [folder] = (run.folder / "out").iterdir()
    finally:
        run.close()
    seen = found(folder, live)
    assert seen["words"] == Counter([*[line.split()[0] for line in LINES], *["line"] * len(LINES)])
    assert (
        seen["numbers"]
        == [(n, n % 2 == 0) for n in range(len(LINES))]
        == seen["numbers in the table"]
    )
    assert seen["lines"] == sorted(LINES)
    assert (
        dict(map(json.loads, seen["count.jsonl"].splitlines()))
        == dict(seen["counts"])
        == dict(seen["words"])
    )

    (tmp_path / "again.yaml").write_text(JOB.format(database=again))
    replay(tmp_path, "again.yaml")
    assert found(tmp_path / "replayed", again) == seen
