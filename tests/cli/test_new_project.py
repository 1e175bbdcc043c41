"""Checks that a project of `sparkstorm init` works as it is made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sparkstorm.app.job_file import make_topology, read_job_file
from sparkstorm.cli import main


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "word-count"]) == 0
    assert capsys.readouterr().out.endswith("go on with: cd word-count && make test\n")
    return tmp_path / "word-count"


def test_its_tests_pass(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_its_notebook_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    cells = json.loads((project / "word_count.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(cell["source"], names)
    assert isinstance(names["words"], dict) and names["words"]["the"] > 1
    sys.modules.pop("word_count")


def test_its_job_file_is_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    job = read_job_file("job.yaml")
    assert job.name == "word-count"
    topology, _ = make_topology(job)
    assert set(topology.components) == {"lines", "split", "count"}
    sys.modules.pop("word_count")


def test_its_ci_file_runs_the_tests(project: Path) -> None:
    workflow = yaml.safe_load((project / ".github/workflows/test.yml").read_text())
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": "make test"}


def test_a_folder_with_files_is_left_alone(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "job.yaml").write_text("mine")
    assert main(["init", "word-count"]) == 1
    assert (
        capsys.readouterr().err
        == "'word-count' is there already and not an empty folder: choose another name\n"
    )
    assert (project / "job.yaml").read_text() == "mine"


@pytest.mark.parametrize("name", ["1st", "import", "sparkstorm", "test", "a b", "wörter", "a.b"])
def test_a_name_that_no_module_can_have_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", name]) == 1
    assert "cannot name a project" in capsys.readouterr().err and not list(tmp_path.iterdir())
