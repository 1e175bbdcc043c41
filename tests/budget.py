"""Which slow test files a run with a budget takes: `pytest --slow-budget SECONDS`.

A run before each landing has to end in time, however many system tests there are. Tests without
the markers `system` and `slow` run always. Of the files with others it takes, until the budget is
spent: those in ALWAYS and those that `seconds.json` does not know yet; up to a third of what is
left for those that the newest commits have changed, and those in the folder of a package that they
have changed; then a share of all files, the next one of them with each turn of three hours. The
newest commit's time says the turn: a commit's run can be repeated, and in turns that follow each
other every file runs. Left out: a share of each file's tests, since a file's first test starts the
cluster that the others use.

`python -m tests.budget REPORT.xml` writes `seconds.json` anew, from the JUnit report of a run with
`-m 'system or slow'`.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = Path(__file__).parent / "seconds.json"
ALWAYS = (
    "tests/contracts/test_states.py",
    "tests/contracts/test_transport.py",
    "tests/system/test_main_job.py",
)
# Of 60 commits most packages are among those changed, which says nothing; of 5 a change that was
# made in small steps is forgotten.
_COMMITS = 20
# Of a budget, for files near what has changed. With half of it every file runs once in 14 turns; with
# none, the tests of a change would wait for their turn.
_NEAR = 1 / 3
_TURN_S = 3 * 3600
# Shorter files run always: to leave them out saves less than their place in the list is worth.
_LEAST_SECONDS = 2


def take(
    seconds: Mapping[str, float], budget: float, turn: int, changed: Collection[str]
) -> set[str]:
    """Return the files of `seconds` that a run takes, of about `budget` seconds; those in ALWAYS
    also beyond it.
    """
    always = {file for file in ALWAYS if file in seconds}
    left = max(0, budget - sum(seconds[file] for file in always))
    others = sorted(set(seconds) - always, key=_place)
    packages = {_package(file) for file in changed} - {""}
    near = [file for file in others if file in changed or _package(file) in packages]
    near.sort(key=lambda file: (file not in changed, _place(f"{turn} {file}")))
    taken = set()
    limit = left * _NEAR
    for file in near:
        # up to half of it may lie beyond the limit: else the longest would hardly ever run
        if seconds[file] / 2 <= limit:
            taken.add(file)
            limit -= seconds[file]
    # All files lie on a circle, each as long as it takes; a turn has those that begin in its part.
    around = sum(seconds[file] for file in others)
    share = left * (1 - _NEAR)
    at = -(turn * share)
    for file in others:
        if at % around < share:
            taken.add(file)
        at += seconds[file]
    return always | taken


def _place(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _package(file: str) -> str:
    """Folder below `sparkstorm` or `tests`, which have the same ones."""
    return file.split("/")[1] if file.count("/") > 1 else ""


def _git(*words: str) -> str:
    try:
        done = subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""  # a source distribution
    return done.stdout


def _taken(config: pytest.Config) -> tuple[set[str], set[str]] | None:
    """Return the slow files that a run takes, and all of them; None without a budget."""
    budget = config.getoption("slow_budget")
    if budget is None:
        return None
    seconds = json.loads(SECONDS.read_text())
    changed = _git("log", f"-{_COMMITS}", "--name-only", "--format=").split()
    turn = int(_git("log", "-1", "--format=%ct") or 0) // _TURN_S
    return take(seconds, budget, turn, set(changed)), set(seconds)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--slow-budget`."""
    parser.addoption(
        "--slow-budget",
        type=float,
        metavar="SECONDS",
        help="take slow test files of so many seconds of one process, in turn (tests/budget.py)",
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return how many slow files the run takes."""
    if (found := _taken(config)) is None:
        return None
    return (
        f"slow test files: {len(found[0])} of {len(found[1])}, in turn; all without --slow-budget"
    )


@pytest.hookimpl(trylast=True)  # behind the marks of tests/conftest.py
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests of files that the run does not take."""
    if (found := _taken(config)) is None:
        return
    out = found[1] - found[0]
    kept: list[pytest.Item] = []
    gone: list[pytest.Item] = []
    for item in items:
        is_slow = item.get_closest_marker("system") or item.get_closest_marker("slow")
        is_out = is_slow and item.location[0] in out
        (gone if is_out else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=gone)


def _times(report: Path) -> Iterator[tuple[str, float]]:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        # with a class behind the module
        parts = case.get("classname", "").split(".")
        while parts and not (ROOT / f"{'/'.join(parts)}.py").exists():
            parts.pop()
        if parts:
            yield f"{'/'.join(parts)}.py", float(case.get("time", 0))


def main(report: Path) -> None:
    """Write the seconds of each slow file."""
    seconds: dict[str, float] = {}
    for file, time in _times(report):
        seconds[file] = seconds.get(file, 0) + time
    slow = {file: round(time) for file, time in seconds.items() if time >= _LEAST_SECONDS}
    SECONDS.write_text(json.dumps(dict(sorted(slow.items())), indent=1) + "\n")
    print(f"{len(slow)} files of {sum(slow.values())} seconds")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
