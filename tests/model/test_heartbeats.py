"""One record of task heartbeats out of those of the workers, whatever they hold."""

from typing import Any

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.heartbeats import TaskBeats, WorkerBeat, gather
from sparkstorm.common.model.records import decode_record, encode_record
from sparkstorm.common.model.topology import MASTER

COMPONENTS = {1: "count", 2: "count", 3: "lines"}
STATS: dict[str, Any] = {
    "uptime_ms": 5, "executed": 9, "queued": 1, "execute_us": {"p50": 3, "p99": 8.5}, "last_error": "x" * 999, "last_error_ms": 4,
}  # fmt: skip


def beat(port: int, stats: dict[ExecutorId, Any], version: int = 1, time_ms: int = 7) -> WorkerBeat:
    return WorkerBeat("wc-1-9", "n", port, time_ms, 1, 2, 3, "RUNNING", version, stats)


def test_each_task_has_its_worker_and_its_statistics() -> None:
    found = gather("wc-1-9", [beat(1, {ExecutorId(3, 3): STATS})], {**COMPONENTS, 8: MASTER}, 20)
    assert (found.master_task, found.time_ms, list(found.by_task)) == (8, 20, [3])
    task = found.by_task[3]
    assert task.component == "lines"
    assert task.executor == ExecutorId(3, 3)
    assert task.slot == WorkerSlot("n", 1)
    assert task.state == "RUNNING"
    assert (task.uptime_ms, task.counts.executed, task.queued, task.counts.emitted) == (5, 9, 1, 0)
    assert task.execute_us == {"p50": 3.0, "p99": 8.5}
    assert task.process_us == {}
    assert len(task.last_error) == 300
    assert decode_record(TaskBeats, encode_record(found), "p") == found


def test_tasks_of_one_executor_are_told_apart() -> None:
    both = {"executed": 5, "tasks": {"1": {"executed": 2}, "2": {"executed": 3}}}
    found = gather("wc-1-9", [beat(1, {ExecutorId(1, 2): both})], COMPONENTS, 0)
    assert {task: each.counts.executed for task, each in found.by_task.items()} == {1: 2, 2: 3}


def test_a_task_that_has_moved_is_where_it_was_placed_last() -> None:
    old = beat(1, {ExecutorId(3, 3): {"executed": 1}}, 4, 99)
    new = beat(2, {ExecutorId(3, 3): {"executed": 2}}, 5, 98)
    found = gather("wc-1-9", [new, old], COMPONENTS, 0)
    assert (found.by_task[3].slot.port, found.by_task[3].counts.executed) == (2, 2)


def test_what_is_no_statistic_is_left_out() -> None:
    hostile = {"executed": "many", "emitted": True, "execute_us": [1], "last_error": 5, "tasks": 7}
    found = gather(
        "wc-1-9",
        [beat(1, {ExecutorId(3, 3): hostile, ExecutorId(1, 2): None, ExecutorId(9, 9): {}})],
        COMPONENTS,
        0,
    )
    task = found.by_task[3]
    assert list(found.by_task) == [3]
    assert task.counts.executed == 0
    assert task.counts.emitted == 0
    assert task.execute_us == {}
    assert task.last_error == ""
