"""Which test file a process of a parallel run takes next."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from tests.schedule import SPARK, WAITING, ByKind, next_file, pytest_xdist_make_scheduler

ROOT = Path(__file__).parents[1]
LONGEST, LONG = WAITING[:2]
REPLAY = "tests/replay/test_spark.py"


@pytest.mark.parametrize(
    ("left", "is_waiting", "taken"),
    [
        (["a.py", LONG, LONGEST, "z.py"], True, LONGEST),
        (["a.py", LONG, LONGEST, "z.py"], False, "a.py"),
        ([LONG, "m.py", "z.py"], False, "m.py"),
        (["m.py", "z.py"], True, "m.py"),
        ([LONG, LONGEST], False, LONGEST),
        (["m.py", REPLAY, LONG], False, REPLAY),
        (["m.py", REPLAY, "z.py"], True, "m.py"),
        ([REPLAY], True, REPLAY),
    ],
)
def test_a_process_takes_files_of_its_kind_while_there_are_any(
    left: list[str], is_waiting: bool, taken: str
) -> None:
    assert next_file(left, is_waiting) == taken


def test_files_that_wait_are_there_and_those_that_start_spark_are_named() -> None:
    assert [file for file in (*WAITING, *SPARK) if not (ROOT / file).exists()] == []
    starts = re.compile(r"\bspark: SparkSession\b|\bSparkContext\(")
    spark_files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if starts.search(path.read_text())
    ]
    assert len(spark_files) > 20
    assert [file for file in spark_files if not file.startswith(SPARK)] == []


class Process:
    """Process of a run as the scheduler sees it: which tests it was given."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.given: list[int] = []
        self.ended = 0

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_every_test_runs_once_and_one_process_of_three_begins_with_what_computes() -> None:
    files = ["a.py", LONG, "m.py", LONGEST, "z.py"]
    tests = [f"{file}::test_{n}" for file in files for n in range(3)]
    options = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(
        option=options, getvalue=lambda name: ["3*popen"], getoption=lambda name: "loadfile"
    )
    scheduler = pytest_xdist_make_scheduler(config, Producer("test", enabled=False))
    assert type(scheduler) is ByKind
    processes = [Process() for _ in range(3)]
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, tests)
    scheduler.schedule()
    firsts = [tests[process.given[0]].partition("::")[0] for process in processes]
    assert firsts == ["a.py", LONGEST, LONG]
    for _ in files:
        for process in processes:
            for index in process.given[process.ended :]:
                scheduler.mark_test_complete(process, index)
                process.ended += 1
    assert not scheduler.has_pending
    given = [index for process in processes for index in process.given]
    assert sorted(given) == list(range(len(tests)))


@pytest.mark.parametrize("dist", ["no", "load", "loadscope"])
def test_other_distributions_are_left_to_xdist(dist: str) -> None:
    config: Any = SimpleNamespace(getoption=lambda name: dist)
    assert pytest_xdist_make_scheduler(config, Producer("test", enabled=False)) is None
