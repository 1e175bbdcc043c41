"""The scripts that spark-submit runs, started by a Python that has nothing of what they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.mark.parametrize("script", ["run_topology.py", "run_cluster.py", "replay_history.py"])
def test_a_python_without_the_package_is_told_what_to_do_in_one_line(script: str) -> None:
    command = [sys.executable, "-I", "-S", str(JOBS / script), "conf/wordcount.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "run `make install`, then `. .venv/bin/activate`" in done.stderr
