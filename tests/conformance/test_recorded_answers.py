"""Our schedulers against answers that the original Java classes gave (recorded by
benchmarks/conformance).
"""

import copy
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.conformance.compare import NEVER_RESUMES, RAISES, same, verdict, with_scope
from benchmarks.conformance.problems import GENERATORS
from benchmarks.conformance.shapes import SHAPES, generate
from sparkstorm.extensions.laboratory.form.solve import solve

HERE = Path(__file__).parent
WORKED = Path(__file__).parents[2] / "benchmarks" / "conformance" / "worked"
FILES = ("recorded.jsonl.gz", "recorded-wide.jsonl.gz", "recorded-shared.jsonl.gz")


def recorded(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file; the answers are Storm 2.8.3's, so our default scheduler is asked
    to do as Storm 2.
    """
    rows = [json.loads(line) for line in gzip.decompress((HERE / name).read_bytes()).splitlines()]
    return [{**row, "problem": with_scope(row["problem"], "cluster")} for row in rows]


ROWS = [row for name in FILES for row in recorded(name)]
STORM_3 = [
    json.loads(line)
    for line in gzip.decompress((HERE / "recorded-storm-3.jsonl.gz").read_bytes()).splitlines()
]


@pytest.mark.parametrize(
    "scheduler",
    [
        pytest.param(each, marks=pytest.mark.slow if each == "resource-aware" else ())
        for each in GENERATORS
    ],
)
@pytest.mark.sampled(2)
def test_recorded_problems_are_answered_as_the_originals_did(scheduler: str) -> None:
    rows = [row for row in ROWS if row["problem"]["scheduler"] == scheduler]
    assert len(rows) >= 20
    assert [
        at
        for at, row in enumerate(rows)
        if not same(row["problem"], solve(row["problem"]), row["answer"])
    ] == []


@pytest.mark.parametrize("scheduler", ["even", "default", "isolation"])
def test_recorded_problems_are_answered_as_storm_3_did(scheduler: str) -> None:
    rows = [row for row in STORM_3 if row["problem"]["scheduler"] == scheduler]
    assert rows
    assert [
        at
        for at, row in enumerate(rows)
        if not same(row["problem"], solve(row["problem"]), row["answer"])
    ] == []


@pytest.mark.parametrize("scheduler", ["even", "default"])
def test_workers_move_to_supervisors_without_any_in_some_of_them(scheduler: str) -> None:
    rows = [row for row in STORM_3 if row["problem"]["scheduler"] == scheduler]
    off = {"nimbus.even.rebalance.idle.supervisor.enabled": False}
    without = [{**row["problem"], "conf": {**row["problem"]["conf"], **off}} for row in rows]
    assert not all(
        same(problem, solve(problem), row["answer"])
        for problem, row in zip(without, rows, strict=True)
    )


@pytest.mark.parametrize("name", [*GENERATORS, "shared-memory", "traffic"])
def test_the_worked_problem_has_the_answer_beside_it(name: str) -> None:
    problem, answer = (
        json.loads((WORKED / f"{name}.{kind}.json").read_text()) for kind in ("problem", "answer")
    )
    assert solve(problem) == answer


def test_equal_means_every_row_for_even_and_default() -> None:
    problem = json.loads((WORKED / "even.problem.json").read_text())
    answer = {"assignments": {"t": [{"port": 1}]}}
    assert same(problem, answer, answer)
    assert not same(problem, answer, {"assignments": {"t": [{"port": 2}]}})


@pytest.mark.parametrize("scheduler", ["isolation", "multitenant", "resource-aware"])
def test_equal_means_every_row_for_the_others_too(scheduler: str) -> None:
    problem = json.loads((WORKED / f"{scheduler}.problem.json").read_text())
    ours = solve(problem)
    theirs = copy.deepcopy(ours)
    assert same(problem, ours, theirs)
    row = next(row for rows in theirs["assignments"].values() for row in rows)
    row["port"] += 1
    assert not same(problem, ours, theirs)


def judged(row: dict[str, Any]) -> str:
    return verdict(row["problem"], solve(row["problem"]), row["answer"], row.get("second"))


EXCUSED = recorded("excused.jsonl.gz")
TAGS = sorted({row["tag"] for row in EXCUSED})


@pytest.mark.parametrize("tag", TAGS)
def test_a_difference_is_excused_by_the_tag_that_it_was_recorded_with(tag: str) -> None:
    assert {judged(row) for row in EXCUSED if row["tag"] == tag} == {tag}


@pytest.mark.parametrize("tag", TAGS)
def test_no_excuse_holds_for_another_answer_or_another_exception(tag: str) -> None:
    for row in (row for row in EXCUSED if row["tag"] == tag):
        for part in ("answer", "second"):
            if row.get(part):
                changed = {**row, part: altered(row[part])}
                assert judged(changed) == "DIFFERENT", part
        if row.get("second"):
            assert judged({**row, "second": None}) == "DIFFERENT"


def altered(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with one port changed, or with another exception."""
    if "raised" in answer:
        return {"raised": "java.lang.IndexOutOfBoundsException: odd"}
    found = copy.deepcopy(answer)
    held = found.get("rounds", [found])[-1]
    if "failed" in held:
        return {"workers": []}
    rows = (
        held["workers"]
        if "workers" in held
        else next((rows for rows in held["assignments"].values() if rows), [])
    )
    if rows:
        rows[0]["port"] += 1
    else:
        held["assignments"] = {"nobody": []}
    return found


def test_an_excuse_needs_its_situation() -> None:
    """The exception alone excuses nothing: the problem must be one in which the original raises
    it.
    """
    for row in EXCUSED:
        problem = row["problem"]
        if problem["scheduler"] in ("even", "default"):
            calm = {**problem, "assignments": {}, "rounds": []}
            assert verdict(calm, solve(calm), row["answer"], row["second"]) == "DIFFERENT"


def test_every_kind_of_excuse_has_a_recorded_case() -> None:
    words = " ".join(TAGS)
    for number in ("1", "2", "2a", "2b", "2c", "12", "15", "16", "17", "18", "19"):
        assert f"defect {number}:" in words
    assert all(reason in words for reason in (*RAISES, NEVER_RESUMES))


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("scheduler", list(GENERATORS))
def test_the_same_seed_gives_the_same_problems(scheduler: str, shape: str) -> None:
    assert generate(scheduler, 3, 4, shape) == generate(scheduler, 3, 4, shape)
    assert generate(scheduler, 3, 4, shape) != generate(scheduler, 4, 4, shape)


@pytest.mark.parametrize("scheduler", list(GENERATORS))
def test_wide_problems_are_well_formed(scheduler: str) -> None:
    for problem in generate(scheduler, 5, 6, "wide"):
        assert "error" not in solve(json.loads(json.dumps(problem)))


def test_generated_problems_cover_the_rare_fields() -> None:
    seen: Counter[str] = Counter()
    for scheduler in GENERATORS:
        for problem in generate(scheduler, 1, 40):
            seen.update(problem.keys())
    for field in (
        "dead_ports",
        "blacklisted_hosts",
        "greylisted_hosts",
        "assignments",
        "rounds",
        "old_workers",
    ):
        assert seen[field] > 0, field
