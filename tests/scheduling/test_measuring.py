"""Measurements from progress records and heartbeats."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.assignment import Assignment, ExecutorId, TopologyBase, WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.outline import ComponentOutline, InputOutline, TopologyOutline
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.settings import NimbusSettings
from sparkstorm.control_plane.nimbus.measurer import Measurer
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements
from sparkstorm.control_plane.scheduling.measured.measuring import CountRecords, measure
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology, Snapshot
from sparkstorm.data_plane.transport.progress import (
    INHERITED,
    EdgeCounts,
    Progress,
    TaskCounts,
)

NOW_MS = 10_000_000
MINUTE = 60_000
WINDOW_MS = 5 * MINUTE
EDGE = ("a", "default", "b")
N1, N2 = WorkerSlot("n1", 1), WorkerSlot("n2", 1)
"""Task 1 is a, tasks 2 and 3 are b; 1 and 2 are on the first slot."""
SLOTS = {1: N1, 2: N1, 3: N2}
ASSIGNMENT = Assignment(
    "t",
    1,
    "code",
    "conf",
    slot_by_executor={ExecutorId(task, task): slot for task, slot in SLOTS.items()},
    start_ms_by_executor={ExecutorId(task, task): NOW_MS - task * MINUTE for task in SLOTS},
)


def outline(grouping: str = "shuffle") -> TopologyOutline:
    parts = {
        "a": ComponentOutline("spout"),
        "b": ComponentOutline("bolt", inputs=(InputOutline("a", "default", grouping),)),
    }
    return TopologyOutline(parts, {"a": 1, "b": 2}, {1: "a", 2: "b", 3: "b"})


def record(
    minutes_ago: float,
    sent: int = 0,
    size: int = 0,
    started_ago: float = 60.0,
    **executed: int,
) -> Progress:
    """A record of so many minutes ago: rows sent, their bytes in the store, rows of each task
    (t1=...), whose code took a millisecond for each.
    """
    tasks = {}
    for name, count in executed.items():
        task = int(name[1:])
        counts = TaskCounts("a" if task == 1 else "b", busy_us=1000 * count)
        counts.emitted, counts.executed = (count, 0) if task == 1 else (0, count)
        tasks[task] = counts
    edges = {EDGE: EdgeCounts(sent, 0, size // 1000, size)} if sent else {}
    started_ms = NOW_MS - round(started_ago * MINUTE)
    now_ms = NOW_MS - round(minutes_ago * MINUTE)
    return Progress(tasks, started_ms=started_ms, now_ms=now_ms, edges=edges)


def measured(
    newest: Mapping[str, Progress],
    earlier: Mapping[str, Sequence[Progress]] | None = None,
    grouping: str = "shuffle",
    beats: Sequence[WorkerBeat] = (),
) -> Measurements | None:
    stores = [CountRecords(newest, earlier or {})]
    return measure(outline(grouping), ASSIGNMENT, stores, beats, NOW_MS, WINDOW_MS)


def found(*arguments: Any, **more: Any) -> Measurements:
    made = measured(*arguments, **more)
    assert made is not None
    return made


EARLIER = {
    "n1:1": [record(11, 100, t1=100, t2=50), record(5, 1000, 50_000, t1=1000, t2=500)],
    "n2:1": [record(5, t3=500)],
}
NEWEST = {
    "n1:1": record(0, 4000, 200_000, t1=4000, t2=2000),
    "n2:1": record(0, t3=2000),
}


def test_rates_are_what_the_window_has_added() -> None:
    made = found(NEWEST, EARLIER)
    flow = made.flows[0]
    assert (flow.component, flow.stream, flow.receiver) == EDGE
    assert flow.rows_per_s == pytest.approx(10.0)
    assert made.tasks[1].emitted_per_s == pytest.approx(10.0)
    assert made.tasks[2].executed_per_s == pytest.approx(5.0)
    assert made.tasks[3].busy == pytest.approx(0.005)
    assert made.written_per_s == pytest.approx(500.0)
    assert made.window_ms == WINDOW_MS
    assert made.settled_ms == MINUTE  # the newest of the executors


def test_bytes_are_those_of_all_rows_whether_they_leave_their_worker_or_not() -> None:
    """Half of the rows stay: 500 bytes a second are of five rows a second."""
    assert found(NEWEST, EARLIER).flows[0].bytes_per_s == pytest.approx(1000.0)


def test_rows_of_a_local_grouping_leave_no_worker_with_a_receiver() -> None:
    newest = {"n1:1": record(0, 3000, t1=3000, t2=3000)}
    made = found(newest, grouping="local_or_shuffle")
    assert made.flows[0].bytes_per_s == pytest.approx(made.flows[0].rows_per_s * 100.0)
    assert made.written_per_s == 0.0


def test_an_owner_that_began_within_the_window_adds_to_the_one_before_it() -> None:
    """Task 3 moved two minutes ago: 600 rows before, 900 after, in five minutes."""
    former = {"n3:1": record(2, t3=1600)}
    moved = {"n2:1": record(0, started_ago=2, t3=900)}
    made = found({**former, **moved}, {"n3:1": [record(5, t3=1000)]})
    assert made.tasks[3].executed_per_s == pytest.approx(5.0)


def test_counts_of_a_longer_life_than_the_records_are_not_taken_for_the_windows() -> None:
    idle = {"n2:1": record(30, t3=5000)}
    assert found(idle).tasks[3].executed_per_s == 0.0


def test_inherited_counts_and_a_store_that_went_back_are_no_rates() -> None:
    newest = {INHERITED: record(0, 9999, t1=9999), "n1:1": record(0, 500, t1=500)}
    made = found(newest, {"n1:1": [record(5, 1000, t1=1000)]})
    assert made.flows[0].rows_per_s == 0.0
    assert made.tasks[1].emitted_per_s == 0.0


def test_less_than_a_minute_is_not_measured() -> None:
    assert measured({"n1:1": record(0, started_ago=0.9, t1=9)}) is None
    assert found({"n1:1": record(0, started_ago=2, t1=240)}).tasks[1].emitted_per_s == 2.0
    assert measured({}) is None


def beat(slot: WorkerSlot, **stats: Any) -> WorkerBeat:
    return WorkerBeat("t", slot.node, slot.port, NOW_MS, 0, 1, 1, "RUNNING", 1, stats=stats)


def test_cpu_of_a_worker_is_its_tasks_time_in_code_and_the_rest_by_rows() -> None:
    """Ten and five rows of a millisecond a second are 1.5 %; the other 30 are two to one."""
    made = found(NEWEST, EARLIER, beats=[beat(N1, cpu_percent=31.5, memory_mb=90)])
    assert made.tasks[1].cpu == pytest.approx(1.0 + 20.0)
    assert made.tasks[2].cpu == pytest.approx(0.5 + 10.0)
    assert made.tasks[2].memory_mb == 45.0
    # of a worker without a heartbeat: time in code
    assert made.tasks[3].cpu == pytest.approx(0.5)
    assert made.tasks[3].memory_mb is None


def test_time_in_code_that_waits_is_no_cpu() -> None:
    made = found(NEWEST, EARLIER, beats=[beat(N1, cpu_percent=0.75)])
    assert made.tasks[1].cpu == pytest.approx(0.5)
    assert made.tasks[2].cpu == pytest.approx(0.25)


# -- once a round ----------------------------------------------------------------------------------


def snapshot() -> Snapshot:
    base = TopologyBase("t", "t", 0, TopologyStatus.ACTIVE, 2, {}, "code", "conf")
    return Snapshot({"t": KnownTopology(base, outline(), {})}, {"t": ASSIGNMENT}, {})


SETTINGS = replace(NimbusSettings.of({}), round_ms=10_000, window_ms=WINDOW_MS)


def test_a_topology_is_read_once_a_round() -> None:
    measurer = Measurer(lambda _: [CountRecords(NEWEST, EARLIER)], SETTINGS)
    first = measurer.measured(snapshot(), {"t"}, NOW_MS)
    assert measurer.measured(snapshot(), {"t"}, NOW_MS + 9_999) == first
    assert measurer.reads == 1
    measurer.measured(snapshot(), {"t"}, NOW_MS + 10_000)
    assert measurer.reads == 2


def test_a_store_that_is_away_is_asked_again_after_a_minute_and_costs_no_placement() -> None:
    is_away = False

    def read(_: TopologyBase) -> list[CountRecords]:
        if is_away:
            raise StoreUnavailableError("away")
        return [CountRecords(NEWEST, EARLIER)]

    measurer = Measurer(read, SETTINGS)
    known = measurer.measured(snapshot(), {"t"}, NOW_MS)
    is_away = True
    assert measurer.measured(snapshot(), {"t"}, NOW_MS + 10_000) == known
    assert measurer.measured(snapshot(), {"t"}, NOW_MS + 69_999) == known
    assert measurer.reads == 2
    assert measurer.measured(snapshot(), {"t"}, NOW_MS + WINDOW_MS + 1) == {}
    assert measurer.reads == 3


def test_what_nobody_asks_for_is_not_read() -> None:
    measurer = Measurer(lambda _: [CountRecords(NEWEST, EARLIER)], SETTINGS)
    assert measurer.measured(snapshot(), set(), NOW_MS) == {}
    assert measurer.reads == 0
