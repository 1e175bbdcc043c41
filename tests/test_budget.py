"""Which slow test files a run with a budget takes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.budget import ALWAYS, ROOT, SECONDS, main, pytest_collection_modifyitems, take

FILES = {f"tests/{folder}/test_{n}.py": 10.0 for folder in ("replay", "nimbus") for n in range(20)}
TURNS = range(1000, 1040)


@pytest.mark.parametrize(
    "changed", [set(), {"sparkstorm/replay/spark.py"}, {"tests/web/test_1.py"}]
)
def test_the_budget_is_kept_to(changed: set[str]) -> None:
    spent = [sum(FILES[file] for file in take(FILES, 90, turn, changed)) for turn in TURNS]
    assert min(spent) >= 60 and max(spent) <= 90


def test_in_turns_that_follow_each_other_every_file_runs() -> None:
    for first in TURNS:
        taken = [take(FILES, 90, turn, set()) for turn in range(first, first + 7)]
        assert set().union(*taken) == set(FILES)  # of 400 seconds, 60 a turn
    assert take(dict(reversed(FILES.items())), 90, 1000, ()) == take(FILES, 90, 1000, ())


@pytest.mark.parametrize("seconds", [5, 40, 100])
def test_a_long_file_has_its_turn_too(seconds: float) -> None:
    files = FILES | {"tests/system/test_long.py": seconds}
    taken = [take(files, 90, turn, set()) for turn in range(1000, 1000 + 9)]
    assert any("tests/system/test_long.py" in each for each in taken)


def test_what_has_changed_comes_first_and_takes_a_third() -> None:
    changed = {"tests/replay/test_7.py", "sparkstorm/replay/tasks/column_state.py", "README.md"}
    for turn in TURNS:
        taken = take(FILES, 90, turn, changed)
        assert "tests/replay/test_7.py" in taken
        assert len(taken - take(FILES, 90, turn, set())) <= 3


def test_some_files_run_always() -> None:
    seconds = dict.fromkeys(ALWAYS, 100.0) | FILES
    for budget in (0, 50):
        assert take(seconds, budget, 1, set()) == set(ALWAYS)
    assert set(ALWAYS) < take(seconds, 100 * len(ALWAYS) + 60, 1, set())


def test_slow_tests_alone_of_a_file_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def item(file: str, marker: str) -> Any:
        marked = {marker: True}
        return SimpleNamespace(location=(file, 1, "test"), get_closest_marker=marked.get)

    taken, out, fast, unknown = items = [
        item("tests/a.py", "slow"),
        item("tests/b.py", "system"),
        item("tests/b.py", ""),
        item("tests/new.py", "slow"),
    ]
    seen: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: seen.extend(items))
    found = {"tests/a.py"}, {"tests/a.py", "tests/b.py"}
    for budget in (found, None):
        monkeypatch.setattr("tests.budget._taken", lambda config, budget=budget: budget)
        pytest_collection_modifyitems(cast(Any, SimpleNamespace(hook=hook)), items)
        assert items == [taken, fast, unknown] and seen == [out]


def test_files_with_known_seconds_are_there() -> None:
    seconds = json.loads(SECONDS.read_text())
    assert [file for file in seconds if not (ROOT / file).exists()] == []
    assert set(ALWAYS) < set(seconds)


def test_seconds_are_read_from_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.test_budget" name="a" time="2.6"/>'
        '<testcase classname="tests.test_budget.TestClass" name="b" time="1.5"/>'
        '<testcase classname="tests.test_docs" name="c" time="0.5"/>'
        '<testcase classname="gone.test_docs" name="c" time="50"/></testsuite></testsuites>'
    )
    monkeypatch.setattr("tests.budget.SECONDS", tmp_path / "seconds.json")
    main(report)
    assert json.loads((tmp_path / "seconds.json").read_text()) == {"tests/test_budget.py": 4}
