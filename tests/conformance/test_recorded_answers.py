"""Our schedulers against answers that the original Java classes gave (recorded by benchmarks/conformance)."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.conformance.compare import same, tag
from benchmarks.conformance.problems import GENERATORS
from benchmarks.conformance.shapes import SHAPES, generate
from sparkstorm.scheduling.form.solve import solve

HERE = Path(__file__).parent
WORKED = Path(__file__).parents[2] / "benchmarks" / "conformance" / "worked"
FILES = ("recorded.jsonl.gz", "recorded-wide.jsonl.gz")
ROWS = [json.loads(line) for name in FILES for line in gzip.decompress((HERE / name).read_bytes()).splitlines()]


@pytest.mark.parametrize("scheduler", list(GENERATORS))
def test_recorded_problems_are_answered_as_the_originals_did(scheduler: str) -> None:
    rows = [row for row in ROWS if row["problem"]["scheduler"] == scheduler]
    assert len(rows) >= 20
    assert [at for at, row in enumerate(rows) if not same(row["problem"], solve(row["problem"]), row["answer"])] == []


@pytest.mark.parametrize("scheduler", list(GENERATORS))
def test_the_worked_problem_has_the_answer_beside_it(scheduler: str) -> None:
    problem, answer = (json.loads((WORKED / f"{scheduler}.{kind}.json").read_text()) for kind in ("problem", "answer"))
    assert solve(problem) == answer


def test_equal_means_every_row_for_even_and_default() -> None:
    problem, answer = json.loads((WORKED / "even.problem.json").read_text()), {"assignments": {"t": [{"port": 1}]}}
    assert same(problem, answer, answer)
    assert not same(problem, answer, {"assignments": {"t": [{"port": 2}]}})


def test_a_slot_may_differ_under_resources_but_not_a_node() -> None:
    problem = {"scheduler": "resource-aware"}

    def placed(node: str, port: int) -> dict[str, Any]:
        return {"assignments": {"t": [{"executor": [1, 1], "node": node, "port": port}]}}

    assert same(problem, placed("a", 1), placed("a", 2))
    assert not same(problem, placed("a", 1), placed("b", 1))


def test_defects_are_tagged_with_their_number() -> None:
    components = [{"id": "in", "kind": "spout", "parallelism": 1}]
    problem = {"scheduler": "jstorm", "supervisors": [], "topology": {"id": "t", "components": components}}
    problem |= {"assign_type": "NEW", "conf": {}}
    raised = {"raised": "java.lang.ArithmeticException: / by zero"}
    assert (tag(problem, {"failed": "x"}, raised) or "").startswith("defect 1")
    lost = {"workers": [{"node": None, "port": 0, "tasks": [1]}]}
    assert (tag(problem, {"failed": "x"}, lost) or "").startswith("defect 3")
    stale = {"workers": [{"node": "gone", "port": 1, "tasks": [1]}]}
    old = {**problem, "old_workers": [{"node": "gone", "port": 1}]}
    assert (tag(old, {"workers": []}, stale) or "").startswith("defect 2")
    stranger = {"workers": [{"node": "a", "port": 1, "tasks": [9]}]}
    assert tag(problem, {"workers": []}, stranger) == "the original places a task that no component has"
    assert tag({**problem, "reassign": False}, {"workers": []}, {"workers": []}) is None


def test_a_topology_that_the_original_fails_on_inside_is_told_apart() -> None:
    answer = {"assignments": {}, "status": {"t": "Internal Error - Exception thrown when scheduling."}}
    assert tag({"scheduler": "resource-aware"}, {}, answer) == "the original raises inside one topology's turn"
    assert tag({"scheduler": "resource-aware"}, {}, {**answer, "status": {"t": "Running"}}) is None


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
    for field in ("dead_ports", "blacklisted_hosts", "greylisted_hosts", "assignments", "rounds", "old_workers"):
        assert seen[field] > 0, field
