"""Checks that records come back as they went and that hostile JSON is refused with path and
field.
"""

import json
from typing import Any

import pytest

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.assignment import (
    Assignment,
    AssignmentKind,
    ExecutorId,
    SupervisorInfo,
    TaskTable,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.records import decode_record, encode_record
from sparkstorm.common.model.status import Action, PendingAction, RebalanceOptions, TopologyStatus

EXECUTOR, SLOT = ExecutorId(1, 3), WorkerSlot("node-a", 6700)
ASSIGNMENT = Assignment(
    "wc-1-9",
    4,
    "c0de",
    "c0nf",
    {"node-a": "host"},
    {EXECUTOR: SLOT},
    {EXECUTOR: 9},
    {EXECUTOR: 2},
    AssignmentKind.MONITOR,
)
OPTIONS = RebalanceOptions(3, {"split": 2}, {"k": [1, {"z": None}]}, {"split": {"cpu": 1.5}}, True)
BASE = TopologyBase(
    "wc-1-9", "wc", 7, TopologyStatus.REBALANCING, 2, {"split": 4}, "c0de", "c0nf",
    TopologyStatus.INACTIVE, PendingAction(Action.DO_REBALANCE, 99, OPTIONS), "ann",
)  # fmt: skip
BEAT = WorkerBeat(
    "wc-1-9",
    "node-a",
    6700,
    10,
    5,
    321,
    2,
    "RUNNING",
    4,
    {EXECUTOR: {"acked": 5, "deep": [1.5, None]}},
)
SUPERVISOR = SupervisorInfo(
    "s1", "host", 5, 4, (6700, 6701), (6700,), {"cpu": 400.0}, {"rack": "r1"}
)


@pytest.mark.parametrize(
    "record", [ASSIGNMENT, BASE, BEAT, SUPERVISOR], ids=lambda record: type(record).__name__
)
def test_a_record_comes_back_as_it_went(record: object) -> None:
    assert decode_record(type(record), encode_record(record), "/x") == record


def test_equal_records_have_equal_bytes_whatever_the_order_of_their_maps() -> None:
    other = ExecutorId(4, 4)
    one = Assignment("t", 1, "c", "d", slot_by_executor={EXECUTOR: SLOT, other: SLOT})
    two = Assignment("t", 1, "c", "d", slot_by_executor={other: SLOT, EXECUTOR: SLOT})
    assert encode_record(one) == encode_record(two)


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(encode_record(ASSIGNMENT)), **fields}).encode()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\xff{", "/assignments/wc: not JSON"),
        (b"[1]", "/assignments/wc: expected an object, got [1]"),
        (b"[" * 100_000, "/assignments/wc: not JSON"),
        (changed(version="4"), "/assignments/wc: version: expected an integer, got '4'"),
        (changed(version=True), "version: expected an integer, got True"),
        (changed(version=float("nan")), "NaN is not JSON"),
        (changed(surprise=1), "/assignments/wc: unknown field 'surprise'"),
        (
            changed(kind="SIDEWAYS"),
            "kind: expected one of NEW, REBALANCE, MONITOR, UPDATE, got 'SIDEWAYS'",
        ),
        (changed(slot_by_executor={"3-1": "a:1"}), "first task may not exceed its last"),
        (changed(slot_by_executor={"1-3": "a"}), "slot_by_executor.1-3: expected a slot"),
        (changed(slot_by_executor=[]), "slot_by_executor: expected an object, got []"),
        (changed(format=2), "format: expected 1, got 2"),
        (
            changed(kind_of_record="TopologyBase"),
            "kind_of_record: expected Assignment, got 'TopologyBase'",
        ),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value[-30:],
)
def test_hostile_json_is_refused_with_path_and_field(data: bytes, complaint: str) -> None:
    with pytest.raises(StoreInconsistentError) as caught:
        decode_record(Assignment, data, "/assignments/wc")
    assert complaint in str(caught.value)


def test_every_missing_field_is_named() -> None:
    whole = json.loads(encode_record(ASSIGNMENT))
    for name in whole.keys() - {"format", "kind_of_record"}:
        data = json.dumps({key: value for key, value in whole.items() if key != name}).encode()
        with pytest.raises(StoreInconsistentError, match=f"^/a: {name}: missing$"):
            decode_record(Assignment, data, "/a")


def test_a_wrong_field_of_a_nested_record_is_named() -> None:
    whole = json.loads(encode_record(BASE))
    whole["pending"]["rebalance"]["num_workers"] = "three"
    sentence = r"^/storms/wc: pending\.rebalance\.num_workers: expected an integer"
    with pytest.raises(StoreInconsistentError, match=sentence):
        decode_record(TopologyBase, json.dumps(whole).encode(), "/storms/wc")


def test_task_tables_are_keyed_by_whole_numbers() -> None:
    data = encode_record(TaskTable({}))
    whole = {**json.loads(data), "info_by_task": {"one": {"component_id": "a", "kind": "bolt"}}}
    with pytest.raises(StoreInconsistentError, match="keyed by whole numbers"):
        decode_record(TaskTable, json.dumps(whole).encode(), "/tasks/wc")


@pytest.mark.parametrize("text", ["", "1", "-1", "1-", "a-b", "1-2-3", "١-٣", "2-1"])
def test_an_executor_is_written_first_dash_last(text: str) -> None:
    with pytest.raises(ValueError, match=r"executor"):
        ExecutorId.parse(text)


def test_slots_and_executors_read_what_they_write_and_sort_by_number() -> None:
    assert ExecutorId.parse(str(EXECUTOR)) == EXECUTOR
    assert WorkerSlot.parse(str(WorkerSlot("a:b", 10))) == WorkerSlot("a:b", 10)
    assert sorted([ExecutorId(10, 10), ExecutorId(9, 9)]) == [ExecutorId(9, 9), ExecutorId(10, 10)]
    assert list(EXECUTOR.tasks) == [1, 2, 3]


def test_an_assignment_tells_the_executors_of_each_slot() -> None:
    executors = {
        ExecutorId(2, 2): SLOT,
        ExecutorId(1, 1): SLOT,
        ExecutorId(3, 3): WorkerSlot("node-a", 6701),
    }
    made = Assignment("t", 1, "c", "d", slot_by_executor=executors)
    assert made.executors_by_slot() == {
        SLOT: [ExecutorId(1, 1), ExecutorId(2, 2)],
        WorkerSlot("node-a", 6701): [ExecutorId(3, 3)],
    }
    assert made.executors_at(SLOT) == [ExecutorId(1, 1), ExecutorId(2, 2)]
