"""The load of a topology from records of its workers' commits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.model.assignment import Assignment, ExecutorId, TopologyBase, WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.outline import ComponentOutline, InputOutline, TopologyOutline
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.scheduling.measured.measuring import CountRecords
from sparkstorm.data_plane.transport.progress import EdgeCounts, Progress, TaskCounts
from sparkstorm.extensions.autoscale.model import ComponentLoad, TopologyLoad
from sparkstorm.extensions.autoscale.reading import SETTLED_MS, load_of

NOW_MS = 100_000_000
MINUTE = 60_000
SLOT = WorkerSlot("node", 6700)
OTHER = WorkerSlot("node", 6701)
OUTLINE = TopologyOutline(
    {
        "lines": ComponentOutline("spout"),
        "count": ComponentOutline("bolt", inputs=(InputOutline("lines", "default", "fields"),)),
        "__acker": ComponentOutline("system"),
    },
    {"lines": 1, "count": 2, "__acker": 1},
    {1: "lines", 2: "count", 3: "count", 4: "__acker"},
)
BASE = TopologyBase("t-1-1", "t", NOW_MS - 60 * MINUTE, TopologyStatus.ACTIVE, 1, {}, "c", "c")
LINES, COUNT = ExecutorId(1, 1), ExecutorId(2, 3)


def assignment(settled_ms: int = 20 * MINUTE) -> Assignment:
    slots = {LINES: SLOT, COUNT: SLOT, ExecutorId(4, 4): OTHER}
    return Assignment(
        "t-1-1",
        1,
        "code",
        "conf",
        slot_by_executor=slots,
        start_ms_by_executor=dict.fromkeys(slots, NOW_MS - settled_ms),
    )


def record(minutes_ago: float, rows: int, **spout: Any) -> Progress:
    """Counts of the worker until then: rows that its source emitted, half of which waits
    before `count`; a row takes 1 ms there.
    """
    lines = TaskCounts("lines", 1, emitted=rows, busy_us=100 * rows, **spout)
    counts = {
        1: lines,
        2: TaskCounts("count", 1, executed=rows // 4, busy_us=250 * rows),
        3: TaskCounts("count", 1, executed=rows // 4, busy_us=250 * rows),
    }
    edges = {("lines", "default", "count"): EdgeCounts(rows, rows // 2, rows, 100 * rows)}
    now_ms = NOW_MS - round(minutes_ago * MINUTE)
    return Progress(counts, started_ms=NOW_MS - 60 * MINUTE, now_ms=now_ms, edges=edges)


def load(*records: Progress, settled_ms: int = 20 * MINUTE) -> TopologyLoad | str:
    """The load by records of one worker, the newest first."""
    stores = [CountRecords({str(SLOT): records[0]}, {str(SLOT): records[1:]})]
    return load_of(BASE, OUTLINE, assignment(settled_ms), stores, (), 7, NOW_MS)


def parts(*records: Progress) -> dict[str, ComponentLoad]:
    found = load(*records)
    assert isinstance(found, TopologyLoad)
    return {part.id: part for part in found.components}


def test_rates_useful_time_and_what_waits_are_those_of_the_records() -> None:
    found = load(record(0, 120_000), record(2, 0))
    assert isinstance(found, TopologyLoad)
    lines, count = sorted(found.components, key=lambda part: part.id, reverse=True)
    assert (lines.id, lines.rows_per_s) == ("lines", 1000.0)
    assert lines.useful == pytest.approx(0.1)
    assert count.rows_per_s == pytest.approx(500)
    assert count.useful == pytest.approx(0.5)
    assert count.executors.keys() == {2}
    assert count.true_rate == pytest.approx(1000)
    assert count.inputs == pytest.approx({"lines": 1000})
    assert count.waiting == 60_000
    assert (count.is_keyed, lines.is_keyed) == (True, False)
    assert (found.workers, found.slots, found.settled_ms) == (2, 7, 20 * MINUTE)


def test_code_that_waits_takes_its_workers_time_unless_it_has_a_thread_of_its_own() -> None:
    """Without heartbeats CPU is time in code; with them it is what the process had."""
    now, before = record(0, 120_000), record(2, 0)
    beat = WorkerBeat(
        *("t-1-1", "node", 6700, NOW_MS, 0, 1, 1, "RUNNING", 1), stats={"cpu_percent": 20.0}
    )

    def cores(*, busy_factor: int) -> float:
        for task in (2, 3):
            now.counts_by_task[task].busy_us = 250 * 120_000 * busy_factor
        stores = [CountRecords({str(SLOT): now}, {str(SLOT): [before]})]
        found = load_of(BASE, OUTLINE, assignment(), stores, [beat], 7, NOW_MS)
        assert isinstance(found, TopologyLoad)
        return found.components[0].cores

    assert cores(busy_factor=1) == pytest.approx(0.5)  # of 0.6 in the loop of the worker
    assert cores(busy_factor=4) < 0.2  # 2.1 of a worker's time: they wait in threads


@pytest.mark.parametrize("settled_ms", [0, SETTLED_MS - 1])
def test_workers_that_were_just_placed_are_not_measured(settled_ms: int) -> None:
    found = load(record(0, 120_000), record(2, 0), settled_ms=settled_ms)
    assert found == (
        f"its workers have run for {settled_ms // 1000} s; 180 s are needed to measure them"
    )


def test_a_topology_of_which_tasks_have_no_slot_is_not_measured() -> None:
    """By its other tasks alone it would get fewer executors than it asks for."""
    whole = assignment()
    slots = {each: slot for each, slot in whole.slot_by_executor.items() if each != COUNT}
    stores = [CountRecords({str(SLOT): record(0, 120_000)}, {str(SLOT): [record(5, 0)]})]
    part = replace(whole, slot_by_executor=slots)
    assert load_of(BASE, OUTLINE, part, stores, (), 7, NOW_MS) == "2 tasks of it have no slot"


def test_a_backlog_and_arrivals_are_read_from_an_extent_in_any_unit() -> None:
    """Ten bytes a row: 2 MB arrive in two minutes, of which 1.2 MB are read; 0.9 MB are unread."""
    source = parts(
        record(0, 120_000, total=5_000_000, done=4_100_000),
        record(2, 0, total=3_000_000, done=2_900_000),
    )["lines"].source
    assert source is not None
    assert source.knows_backlog
    assert source.arrived_per_s == pytest.approx(2_000_000 / 10 / 120)
    assert source.backlog == pytest.approx(90_000)


def test_the_greater_rate_of_two_and_ten_minutes_counts() -> None:
    fallen = [record(0, 66_000), record(2, 60_000), record(10, 0)]
    assert parts(*fallen)["lines"].source is not None
    assert parts(*fallen)["lines"].source.arrived_per_s == pytest.approx(110)  # type: ignore[union-attr]
    risen = [record(0, 66_000), record(2, 6_000), record(10, 0)]
    assert parts(*risen)["lines"].source.arrived_per_s == pytest.approx(500)  # type: ignore[union-attr]


def test_a_file_that_was_there_from_the_beginning_has_not_arrived() -> None:
    source = parts(record(0, 1200, total=100_000, done=1200), record(2, 0))["lines"].source
    assert source is not None
    assert (source.arrived_per_s, source.backlog) == (0.0, 98_800.0)


def test_a_source_that_was_held_back_would_have_emitted_more() -> None:
    held = parts(record(0, 120_000, pending_us=60_000_000), record(2, 0))["lines"].source
    assert held is not None
    assert held.held == pytest.approx(0.5)
    assert not held.knows_backlog
    assert held.arrived_per_s == pytest.approx(2000)


def test_a_source_is_at_its_end_when_all_its_tasks_are() -> None:
    ended = parts(record(0, 1200, is_exhausted=True), record(2, 0))["lines"].source
    assert ended is not None and ended.is_exhausted
