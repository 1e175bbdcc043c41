"""The wheel holds all that a run needs: installed into a folder of its own, outside the checkout, it runs topologies."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from sparkstorm.embedded.java import find_java

pytestmark = [pytest.mark.system, pytest.mark.slow]
ROOT = Path(__file__).parents[1]
TOPOLOGY = """
from words_beside import loud
from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.connectors import FileLines, find_files

@bolt("word")
def shout(tup):
    for word in tup["line"].split():
        yield loud(word)

@bolt(key="word")
def count(tup, state):
    state.add(tup["word"], 1)

def build(input):
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(find_files(input)))
    builder.set_bolt("shout", shout, inputs="lines")
    builder.set_bolt("count", count, inputs="shout")
    return builder.build()
"""
TRIAL = """
import sparkstorm
from shout import build
from sparkstorm.testing import complete_topology
found = complete_topology(build([__file__]), {"lines": [["a b a"]]})
print(sparkstorm.__file__, found.state("count"))
"""


def said(command: list[str | Path], folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Run a command to its end in a folder; return what it says, AssertionError when it fails."""
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, env=dict(environment), timeout=900, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_the_wheel_runs_outside_the_checkout(tmp_path: Path) -> None:
    said([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--use-pep517", "-w", tmp_path, ROOT], tmp_path)
    (wheel,) = tmp_path.glob("sparkstorm-*.whl")
    home = tmp_path / "home"
    venv.create(home, with_pip=False)
    python, packages = home / "bin" / "python", Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    said([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel], tmp_path)
    # the dependencies of this Python, without its editable install: they were tested when they were installed here
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    work = tmp_path / "work"
    work.mkdir()
    (work / "shout.py").write_text(TOPOLOGY)
    (work / "words_beside.py").write_text("def loud(word):\n    return word.upper()\n")
    (work / "text").write_text("one two\ntwo\n")
    (work / "trial.py").write_text(TRIAL)
    (work / "shout.yaml").write_text("name: shout\ntopology: shout:build\nresults: {component: count, top: 2}\n")
    dropped = ("PYTHONPATH", "SPARK_CONF_DIR", "SPARK_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in dropped and not name.startswith("PYSPARK")}
    environment["JAVA_HOME"] = str(Path(find_java()).resolve().parent.parent)

    found = said([python, "trial.py"], work, environment)
    assert str(packages / "sparkstorm" / "__init__.py") in found and "{'A': 2, 'B': 1}" in found
    found = said([home / "bin" / "sparkstorm", "run", "shout.yaml", "--input", "text"], work, environment)
    assert "2  TWO" in found and "1  ONE" in found


def test_a_type_checker_sees_the_types_of_an_editable_install(tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text("from sparkstorm.client import connect\nreveal_type(connect('x').topologies())\nconnect(7)\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "uses.py"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert "list[sparkstorm.client.handle.TopologyHandle]" in ended.stdout, ended.stdout + ended.stderr
    assert 'Argument 1 to "connect" has incompatible type "int"' in ended.stdout and "py.typed" not in ended.stdout
