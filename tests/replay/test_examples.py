"""The worked examples on real files of this machine: live and replayed, with the same numbers; and
from the command line.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkstorm.common.model.topology import Topology
from sparkstorm.connectors import find_files
from sparkstorm.driver.replay.job import main
from sparkstorm.replay import EventTime, replay_locally
from sparkstorm.testing import complete_topology

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
JOB = ROOT / "jobs" / "replay_history.py"


@pytest.fixture(autouse=True)
def jobs_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "jobs"))


def files(folder: Path) -> list[str]:
    """A tree of files whose times jump: names by number, every fifth one years older."""
    for n in range(60):
        path = folder / f"d{n % 3}" / f"f{n:02}.{'txt' if n % 2 else 'md'}"
        path.parent.mkdir(exist_ok=True)
        path.write_text("x" * n)
        at = 1_500_000_000 + n * 86_400 * 3 - (n % 5 == 0) * 86_400 * 900
        os.utime(path, (at, at))
    return [str(folder)]


def states(
    topology: Topology, rows: list[Any], source: str, time: EventTime | None
) -> dict[str, Any]:
    return dict(replay_locally(topology, {source: rows}, event_time=time).states)


def test_file_times_are_the_same_live_and_replayed_with_late_files(tmp_path: Path) -> None:
    job = import_module("file_times")
    topology = job.build(files(tmp_path), lag_days=100)
    replayed = states(
        topology,
        list(job.events([str(tmp_path)])),
        "files",
        EventTime("changed_ms", in_order=False),
    )
    live = complete_topology(topology)  # its own spout, over the same files
    assert replayed == {id: dict(live.state(id)) for id in ("months", "largest", "late")}
    assert live.dead_letters == []
    assert replayed["late"]["files"] > 3 and len(replayed["largest"]) == 2


def test_the_word_count_is_the_same_live_and_replayed_over_sources_of_the_standard_library() -> (
    None
):
    job = import_module("wordcount")
    folder = str(Path(os.__file__).parent / "json")
    lines = [
        (line,)
        for path, _ in find_files([folder], "*.py")
        for line in Path(path).read_text().splitlines()
    ]
    topology = job.build([path for path, _ in find_files([folder], "*.py")])
    replayed = states(topology, lines, "lines", None)
    live = complete_topology(topology)
    assert replayed["count"] == dict(live.state("count"))
    assert replayed["count"]["def"] > 20
    assert live.dead_letters == []


def replay_history(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    spec = find_spec("pyspark")
    assert spec is not None and spec.submodule_search_locations is not None
    submit = Path(spec.submodule_search_locations[0]) / "bin" / "spark-submit"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [submit, "--master", "local[2]", "--conf", "spark.ui.enabled=false", JOB, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=900, check=False
    )


@pytest.mark.system
def test_the_command_line_replays_a_history_with_the_live_job_file(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = import_module("file_times")
    (tmp_path / "tree").mkdir()
    rows = list(job.events(files(tmp_path / "tree")))
    with (tmp_path / "files.csv").open("w") as out:
        csv.writer(out).writerows([job.FIELDS, *rows])
    done = replay_history(
        ROOT / "conf" / "file_times_replay.yaml",
        "--input",
        tmp_path / "files.csv",
        "--output",
        tmp_path / "out",
        "--output-format",
        "json",
    )
    assert done.returncode == 0, done.stderr
    parts = [part.read_text() for part in (tmp_path / "out" / "largest.state").glob("*.json")]
    found = [json.loads(line) for part in parts for line in part.splitlines()]
    expected = states(job.build(), rows, "files", EventTime("changed_ms", in_order=False))
    assert {row["key"]: row["value"] for row in found} == expected["largest"]
    assert re.search(
        rf"\b0 records put aside, \d+ late; results are in {re.escape(str(tmp_path / 'out'))}",
        done.stdout,
    )
    with (tmp_path / "files.csv").open("w") as out:  # what another version of the code makes of it
        csv.writer(out).writerows(
            [
                job.FIELDS,
                *rows[:-1],
                [*rows[-1][:1], *(9**9 if type(x) is int else x for x in rows[-1][1:])],
            ]
        )
    again = [
        str(ROOT / "conf" / "file_times_replay.yaml"),
        *("--input", str(tmp_path / "files.csv"), "--output", str(tmp_path / "new")),
        *("--output-format", "json", "--against", str(tmp_path / "out")),
    ]
    # In this process: a second start by spark-submit would show nothing new.
    assert main(again) == 4
    said = capsys.readouterr().out
    assert "rows that the other version has not, and lacks" in said and "  + {" in said


@pytest.mark.system
def test_the_command_line_names_a_mistake_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "files.csv").write_text("suffix,bytes\ntxt,1\n")
    job_file = tmp_path / "job.yaml"
    job_file.write_text("topology: file_times:build\nreplay: {event_time: changed_ms}\n")
    done = replay_history(job_file, "--input", tmp_path / "files.csv", "--output", tmp_path / "out")
    assert done.returncode == 1
    assert (
        "Replay failed: input 'files' has no column 'changed_ms'; it has suffix, bytes"
        in done.stdout.splitlines()
    )
    assert "Traceback" not in done.stdout + done.stderr
