"""The reaper of test processes: nothing that a test process started outlives a `kill -9` of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkstorm.testing.servers.processes import is_gone
from tests.reaper import marked
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]
_STARTER = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
import tests.conftest  # as pytest does
sleep = [sys.executable, "-c", "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"]
own = subprocess.Popen(sleep, stdout=subprocess.PIPE, start_new_session=True)  # its child is left to init
print(int(own.stdout.readline()), subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
print(os.environ.get("SPARKSTORM_TEST_PROCESS"), flush=True)
own.wait()
sys.stdin.read()
"""


@pytest.mark.slow
def test_children_and_their_children_end_when_a_test_process_is_killed() -> None:
    command = [sys.executable, "-c", _STARTER, str(ROOT)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pids = [int(word) for word in starter.stdout.readline().split()]
        mark = f"SPARKSTORM_TEST_PROCESS={starter.stdout.readline().strip()}"
        assert not any(map(is_gone, pids))
        starter.kill()
    wait_until(lambda: all(map(is_gone, pids)), "the end of what it started")
    assert marked(mark) == []
