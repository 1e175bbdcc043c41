"""Checks that a project of `sparkstorm init` works as it is made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sparkstorm import __version__
from sparkstorm.cli import main
from sparkstorm.cli.new_project import project_files
from sparkstorm.driver.job_file import make_topology, read_job_file


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "word-count"]) == 0
    assert capsys.readouterr().out.endswith("go on with: cd word-count && make test\n")
    return tmp_path / "word-count"


def test_its_tests_pass_in_an_active_environment_without_an_index(project: Path) -> None:
    # of a project in a folder above, whose settings are not this one's
    (project.parent / "setup.cfg").write_text("[tool:pytest]\naddopts = --import-mode=importlib\n")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
    }
    command = ["make", "test"]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=300
    )
    assert not (project / ".venv").exists()
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_make_says_that_it_installs_before_it_does(project: Path, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["make", "test"], cwd=project, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "installing what requirements.txt names into .venv (once) ..." in done.stdout


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


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, f"sparkstorm=={__version__}"),
        (
            {"url": "file:///src/storm", "dir_info": {"editable": True}},
            "-e file:///src/storm",
        ),
        ({"url": "file:///dist/s.whl", "archive_info": {}}, "sparkstorm @ file:///dist/s.whl"),
    ],
)
def test_its_requirements_name_the_sparkstorm_that_made_it(
    origin: object, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"sparkstorm-{__version__}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: sparkstorm\nVersion: {__version__}\n")
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert project_files("words")["requirements.txt"] == f"{line}\npytest\n"


def test_its_ci_file_runs_the_tests(project: Path) -> None:
    workflow = yaml.safe_load((project / ".github/workflows/test.yml").read_text())
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": "make test"}


def test_the_empty_folder_at_hand_gives_the_project_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-words").mkdir()
    monkeypatch.chdir(tmp_path / "my-words")
    assert main(["init", "."]) == 0
    assert (tmp_path / "my-words" / "my_words.py").exists()


def test_a_folder_with_files_is_left_alone(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "job.yaml").write_text("mine")
    assert main(["init", "word-count"]) == 1
    result = capsys.readouterr().err
    assert result == "'word-count' is there already and not an empty folder: choose another name\n"
    assert (project / "job.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["1st", "import", "sparkstorm", "test", "queue", "pytest", "a b", "wörter", "a.b"]
)
def test_a_name_that_no_module_can_have_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", name]) == 1
    assert "cannot name a project" in capsys.readouterr().err and not list(tmp_path.iterdir())
