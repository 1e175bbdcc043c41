"""Run each mutant's tests on a copy of the sources; print the survivors, and exit with 1 when there
are any.

`python -m tests.mutants [TEXT]`: only those whose file or new line has this text; `--no-redis`:
those of no Lua script.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.apply import ROOT, applied
from tests.mutants.table import MUTANTS, Mutant

_SECONDS = 180  # for the tests of one mutant: one that loops for ever is seen, too
_TIMED_OUT = 1000  # no exit status
_OUTCOMES = {0: "SURVIVED", 1: "killed", _TIMED_OUT: "killed (time)"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--no-redis", action="store_true")
    chosen = parser.parse_args()
    mutants = [
        m
        for m in MUTANTS
        if chosen.text in f"{m.file} {m.new}" and not (chosen.no_redis and m.file.endswith(".lua"))
    ]
    if not mutants:
        parser.error(f"no mutant has the text {chosen.text!r}")
    with tempfile.TemporaryDirectory() as folder:
        copy = _copy(Path(folder))
        if (
            status := _run(
                copy, sorted({name for mutant in mutants for name in mutant.tests}), 1200
            )
        ) != 0:
            print(
                f"without any mutant the tests end with {status} in the copy: nothing can be said"
            )
            return 2
        survivors = [mutant for mutant in mutants if not _is_killed(copy, mutant)]
    print(f"{len(mutants)} mutants, {len(survivors)} survivors")
    for mutant in survivors:
        print(f"  {mutant.file}: {mutant.old}\n    -> {mutant.new}")
    return 1 if survivors else 0


def _copy(folder: Path) -> Path:
    for name in ("sparkstorm", "tests", "conf", "jobs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def _is_killed(copy: Path, mutant: Mutant) -> bool:
    """Run the tests on the changed copy, and put the file back."""
    path = copy / "sparkstorm" / mutant.file
    whole, began = path.read_text(encoding="utf-8"), time.monotonic()
    path.write_text(applied(mutant, whole), encoding="utf-8")
    try:
        status = _run(copy, mutant.tests, _SECONDS)
    finally:
        path.write_text(whole, encoding="utf-8")
    outcome = _OUTCOMES.get(status, f"killed (pytest ended with {status})")
    print(
        f"{outcome:13} {time.monotonic() - began:5.1f} s  {mutant.file}: {mutant.new or '(no line)'}"[
            :150
        ],
        flush=True,
    )
    return status != 0


def _run(copy: Path, tests: Sequence[str], seconds: int) -> int:
    """Return pytest's exit status on the copy; _TIMED_OUT when the time is over."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    # the tests must be those of the copy, and not of an installed package
    guard = f"import sparkstorm, sys; sys.exit(0 if sparkstorm.__file__.startswith({str(copy)!r}) else 9)"
    subprocess.run([sys.executable, "-c", guard], cwd=copy, env=environment, check=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *tests,
    ]
    try:
        return subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, timeout=seconds
        ).returncode
    except subprocess.TimeoutExpired:
        return _TIMED_OUT


if __name__ == "__main__":
    sys.exit(main())
