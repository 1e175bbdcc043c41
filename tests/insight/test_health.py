"""The audit of edges and the health of a topology, from made records: the culprit named is the one that was planted."""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.insight.audit import EdgeAudit, audit
from sparkstorm.insight.health import Fault, culprits, loads, sentence
from sparkstorm.worker.progress import EdgeCounts, Progress, TaskCounts

EDGE = ("lines", "default", "count")


def record(now_ms: int, **more: Any) -> Progress:
    """Return a worker's record after so many milliseconds in which all is well; `more` by task ("count_2") adds to it."""
    counts = {1: TaskCounts("lines", 1), 2: TaskCounts("count", 1), 3: TaskCounts("count", 1)}
    for task, each in counts.items():
        each.executed, each.busy_us = now_ms, 300 * now_ms
        for name, per_ms in more.get(f"{each.component}_{task}", {}).items():
            setattr(each, name, int(per_ms * now_ms))
    return Progress(counts, now_ms=now_ms)


def faults(**more: Any) -> list[tuple[Fault, str]]:
    before, after = {"node-1:6700": record(1000, **more)}, {"node-1:6700": record(11_000, **more)}
    return [(each.fault, each.component) for each in culprits(loads(before, after))]


def test_a_topology_that_is_well_keeps_up() -> None:
    found = loads({"node-1:6700": record(1000)}, {"node-1:6700": record(11_000)})
    assert culprits(found) == ()
    text = "words keeps up: 3.0 k tuples/s, p99 34 ms; slowest part lines, 30% busy on node-1:6700"
    assert sentence("words", found, 34.2, ()) == text


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ({"count_2": {"busy_us": 900}}, [(Fault.SLOW, "count")]),
        ({"count_2": {"failed": 0.02}}, [(Fault.FAILING, "count")]),
        ({"count_3": {"late": 0.05}}, [(Fault.LATE, "count")]),
        ({"count_3": {"late": 0.005}}, []),
        (
            {"count_2": {"busy_us": 950, "executed": 9}, "count_3": {"executed": 0.1}},
            [(Fault.SLOW, "count"), (Fault.SKEWED, "count")],
        ),
        ({"lines_1": {"inactive_us": 900}}, [(Fault.HELD_BACK, "lines")]),
        (
            {"lines_1": {"pending_us": 700}, "count_2": {"busy_us": 990}},
            [(Fault.SLOW, "count"), (Fault.HELD_BACK, "lines")],
        ),
    ],
)
def test_the_culprit_named_is_the_one_planted(planted: Any, named: Any) -> None:
    assert faults(**planted) == named


def test_what_holds_a_spout_back_is_named() -> None:
    planted = {"lines_1": {"backlog_us": 700}, "count_2": {"busy_us": 990}}
    before, after = {"n:1": record(1000, **planted)}, {"n:1": record(2000, **planted)}
    found = culprits(loads(before, after))
    assert found[-1].sentence == "lines is held back 70% of the time (backlog), behind count"
    assert sentence("words", (), None, found) == "words does not run well: count is 99% busy on n:1 (task 2); 0 tuples/s"


def test_a_task_that_has_moved_is_at_its_newest_owner() -> None:
    before = {"a:1": record(1000), "b:1": record(1000)}
    after = {"a:1": record(2000), "b:1": record(2000)}
    after["a:1"].counts_by_task[2].token = 2
    assert {load.task: load.slot for load in loads(before, after) if load.task == 2} == {2: "a:1"}


def test_a_worker_without_a_newer_record_is_left_out() -> None:
    assert loads({"a:1": record(1000)}, {"a:1": record(1000), "b:1": record(1000)}) == ()


@pytest.mark.parametrize(
    ("flow", "backlog", "fault"),
    [
        (EdgeCounts(10, 10), {}, ""),
        (EdgeCounts(10, 7), {3: 100}, ""),
        (EdgeCounts(10, 7), {1: 100, 9: 5}, "3 rows were sent and not consumed, and nothing waits"),
        (EdgeCounts(1007, 2010), {2: 100}, "1,003 rows more were consumed than sent"),
    ],
)
def test_rows_that_are_nowhere_are_a_fault_of_their_edge(flow: EdgeCounts, backlog: dict[int, int], fault: str) -> None:
    merged = record(1)
    merged.edges[EDGE] = flow
    found = audit(merged, backlog)
    assert found == (EdgeAudit(*EDGE, flow.sent, flow.consumed, fault),)
    assert found[0].waiting == flow.sent - flow.consumed
    assert [each.component for each in culprits((), found)] == (["count"] if fault else [])
