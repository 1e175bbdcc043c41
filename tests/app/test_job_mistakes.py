"""Checks that the command line refuses what Nimbus would, before Spark, Redis and ZooKeeper are
started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkstorm.driver.exit_status import FAILED
from sparkstorm.driver.job import main, main_of_run

MODULE = """
from sparkstorm.api import BasicBolt, Spout, TopologyBuilder


class Lines(Spout):
    outputs = ("line",)

    def next_tuple(self):
        pass


class Split(BasicBolt):
    def execute(self, tup, collector):
        pass


def build(**conf):
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines())
    own = {key.replace("__", "."): value for key, value in conf.items()}
    builder.set_bolt("split", Split(), conf=own).shuffle_grouping("lines")
    return builder.build()
"""


@pytest.mark.parametrize(
    ("arguments", "lines", "words"),
    [
        (
            ["-c", "topology.scheduler=nonsense"],
            "",
            "Invalid config: topology.scheduler: 'nonsense' is neither one of",
        ),
        (
            ["-c", "topology.scheduler=blacklist"],
            "",
            "blacklist is for the whole cluster; set storm.scheduler",
        ),
        (["--name", "a/b"], "", "Invalid topology: 'a/b' is not a valid topology name"),
        (["--name", ".."], "", "Invalid topology: '..' is not a valid topology name"),
        (["--name", "."], "", "Invalid topology: '.' is not a valid topology name"),
        (["--name=-rf"], "", "Invalid topology: '-rf' is not a valid topology name"),
        (
            [],
            "arguments: {topology__wrokers: 2}",
            "component 'split' of shout: unknown key topology.wrokers; did you mean",
        ),
        (
            [],
            "arguments: {topology__tasks: 0}",
            "component 'split' of shout: topology.tasks must be a whole number",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_is_started(
    arguments: list[str], lines: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mistaken_job.py").write_text(MODULE)
    job = tmp_path / "job.yaml"
    job.write_text(f"name: shout\ntopology: mistaken_job:build\ntopology.workers: 1\n{lines}\n")
    assert main([str(job), *arguments]) == FAILED
    said = capsys.readouterr()
    assert words in said.err and "starting Spark" not in said.out


def test_run_has_a_cluster_of_its_own_whatever_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mistaken_job.py").write_text(MODULE)
    job = str(tmp_path / "job.yaml")
    Path(job).write_text("name: shout\ntopology: mistaken_job:build\ntopology.workers: 1\n")
    monkeypatch.setenv("SPARKSTORM_CLUSTER", "standing.json")
    went: list[str] = []

    def run_in_own_cluster(*_: Any) -> int:
        went.append("own")
        return 0

    def run_remotely(_run: Any, _job: Any, cluster: str, *_: Any) -> int:
        went.append(cluster)
        return 0

    monkeypatch.setattr("sparkstorm.driver.own_cluster.run_in_own_cluster", run_in_own_cluster)
    monkeypatch.setattr("sparkstorm.driver.job.run_remotely", run_remotely)
    assert main_of_run([job]) == 0 and went == ["own"]
    assert "SPARKSTORM_CLUSTER does not matter to `run`" in capsys.readouterr().out
    assert main_of_run([job, "--detach"]) == FAILED and went == ["own"]
    assert f"sparkstorm submit {job} --detach" in capsys.readouterr().err
    assert main([job]) == 0 and went == ["own", "standing.json"]
    assert "SPARKSTORM_CLUSTER is set: the job goes to the cluster of standing.json" in (
        capsys.readouterr().out
    )
    assert main([job, "--cluster", "other.json"]) == 0 and went[2:] == ["other.json"]
    assert not capsys.readouterr().out
