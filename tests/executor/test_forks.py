"""Forks that user code makes: the child ends where it would return into the engine, and the run
goes on as if there were none.
"""

import subprocess
import sys

import pytest

from tests.executor.forking import RUNS

CODES = {"returns": 0, "raises": 1, "exits": 3, "ends": 4, "multiprocessing": 0}


def rows(ending: str, kind: str) -> str:
    """Return what the run emits, of two rows."""
    code = CODES[ending]
    if kind.endswith("fold"):
        return str([f"([{code}], 5999)", f"([{code}], 999)"])
    values = {"grouping": [0, 5000], "callback": [0, 0, code, code]}.get(kind, [code, code])
    return str([f"({value},)" for value in values])


@pytest.mark.slow
def test_a_fork_of_user_code_ends_and_executes_no_row() -> None:
    """In its own process: a child that went on would go on as this test."""
    command = [sys.executable, "-m", "tests.executor.forking"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    expected = [
        f"{ending}: {kind}: {rows(ending, kind)}" for ending in RUNS for kind in RUNS[ending]
    ]
    assert run.stdout.splitlines() == expected
    said = run.stderr.splitlines()
    assert all("and was ended, or it would go on as a second worker" in line for line in said)
    assert {line.partition("#")[0] for line in said} == {"ERROR forking", "ERROR rows"}
    for did in ("returned from", "raised ValueError in", "raised SystemExit in"):
        assert sum(f"has {did} it (forking.py, line" in line for line in said) >= 10
    assert run.returncode == 0
