"""Back-fill, then live, on Spark, Redis and ZooKeeper, with kill -9 of the driver and of a worker
at the seam: exact counts.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.stores.connection import load_connection
from sparkstorm.extensions.recording.stepping.recorded import recorded
from tests.system.main_job import ROOT, MainJob, environment

pytestmark = [pytest.mark.system, pytest.mark.nightly]
LINES, HISTORY, KEYS, STEP_MS, WINDOW_MS = 24_000, 10_000, 3000, 20, 5000
TOPOLOGY = f'''
from pathlib import Path
from sparkstorm.api import BasicBolt, StatefulBolt, TopologyBuilder
from sparkstorm.api.windows import Duration, FoldingBolt
from sparkstorm.connectors import FileLines, find_files

class Parse(BasicBolt):
    outputs = ("key", "at_ms")
    def execute(self, tup, collector):
        key, at_ms = tup.values[0].split()
        collector.emit((key, int(at_ms)))

class PerWindow(FoldingBolt):
    """Count of rows in each window, by the last digit of their key; a firing that came twice would be counted twice."""
    outputs = ("firing",)
    key_fields = ("key",)
    def initial(self): return 0
    def fold(self, accumulator, tup): return accumulator + 1
    def execute(self, window, collector):
        collector.emit((f"{{window.key[0]}}@{{window.start}}={{window.value}}",))

class Count(StatefulBolt):
    order_insensitive = True
    def execute(self, tup, collector):
        self.state.add(tup.values[0], 1)

def build(input=()):
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(find_files(input)))
    builder.set_bolt("parse", Parse()).shuffle_grouping("lines")
    windows = PerWindow().with_tumbling_window(Duration.millis({WINDOW_MS})).with_timestamp_field("at_ms")
    builder.set_bolt("windows", windows, parallelism=2).fields_grouping("parse", "key")
    count = builder.set_bolt("count", Count(), parallelism=2).fields_grouping("parse", "key")
    count.fields_grouping("windows", "firing")
    return builder.build()
'''
JOB = "topology: seam:build\ntopology.workers: 2\nresults: {component: count}\n"


def rows() -> Iterator[tuple[str, int]]:
    """Key and time of every line."""
    return ((f"k{n * 7919 % KEYS}", STEP_MS * n) for n in range(LINES))


def counted_independently() -> Counter[str]:
    counts = Counter(key for key, _ in rows())
    firings = Counter((key, at_ms // WINDOW_MS * WINDOW_MS) for key, at_ms in rows())
    return counts + Counter(f"{key}@{start}={n}" for (key, start), n in firings.items())


@pytest.fixture
def job(tmp_path: Path) -> Iterator[MainJob]:
    (tmp_path / "seam.py").write_text(TOPOLOGY)
    (tmp_path / "seam.yaml").write_text(JOB)
    (tmp_path / "in.txt").write_text("".join(f"{key} {at_ms}\n" for key, at_ms in rows()))
    settings = {"topology.max.spout.pending": 10, "topology.record.components": ["count"]}
    made = MainJob(
        tmp_path / "run", tmp_path / "seam.yaml", [tmp_path / "in.txt"], "local[3]", settings
    )
    yield made
    made.close()


def replay_history(folder: Path) -> None:
    """The first half, as its users run it."""
    command = [
        "spark-submit",
        "--master",
        "local[2]",
        str(ROOT / "jobs" / "replay_history.py"),
        str(folder / "seam.yaml"),
        "--input",
        str(folder / "in.txt"),
        "--output",
        str(folder / "out"),
        "--result",
        "windows",
        "--checkpoint",
        str(folder / "half"),
        "--rows",
        f"lines={HISTORY}",
    ]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=900, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "half is written" in done.stdout
    manifest = json.loads((folder / "half" / "manifest.json").read_text())
    assert manifest["components"]["count"]["rows"] > KEYS


def sown(folder: Path) -> bool:
    """Return whether the driver has begun to give tasks their journals."""
    try:
        at = load_connection(folder / "storm-local" / "connection.json").redis
        with contextlib.closing(redis.Redis(at.host, at.port, password=at.password)) as client:
            return next(client.scan_iter("*:journal:*", count=1000), None) is not None
    except (SparkStormError, OSError, redis.RedisError):
        return False


def test_a_driver_and_a_worker_killed_at_the_seam_cost_no_count(
    job: MainJob, tmp_path: Path
) -> None:
    replay_history(tmp_path)
    job.start("--from", str(tmp_path / "half"))
    job.wait_for(lambda: sown(job.folder), "the first journal")
    job.kill(job.driver(), signal.SIGKILL)
    assert job.wait() != 0
    job.start("--from", str(tmp_path / "half"))
    sight = job.sight()
    job.wait_for(sight.tokens, "the first commit")
    job.kill(job.workers(sight)[0].pid)
    sight.close()
    assert job.wait(900) == 0, job.output()
    assert job.counts() == counted_independently()
    check_recorded(job.folder)


def check_recorded(folder: Path) -> None:
    """Return what the counting tasks were given behind the seam: once each, but for what was in
    memory when their worker died.
    """
    tasks = list((folder / "storm-local" / "logs" / "recorded").glob("seam-*/count/task-*"))
    given = [
        tuple(each.values) for task in tasks for part in recorded(task) for each in part.tuples
    ]
    assert len(tasks) == 2 and len(set(given)) == len(given)
    behind = set(list(rows())[HISTORY:])
    assert behind >= {row for row in given if len(row) == 2} and len(given) > len(behind) / 2
