"""Nimbus scales a topology in simulated time: counts are put into its store, all else is real."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, TopologyBuilder
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.data_plane.transport.progress import EdgeCounts, Progress, TaskCounts
from sparkstorm.testing import FeederSpout, LocalCluster

MINUTE_MS = 60_000


class Pass(BasicBolt):
    outputs = ("word",)

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit(list(tup.values))


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    # A round of Nimbus each 10 s of simulated time, as on a real cluster.
    with LocalCluster(is_lively=True, supervisors=1, slots=4) as made:
        yield made


def submit(cluster: LocalCluster, name: str, mode: bool | str, **conf: Any) -> str:
    builder = TopologyBuilder()
    builder.set_spout("words", FeederSpout(["word"]))
    builder.set_bolt("count", Pass(), 1, num_tasks=4, inputs="words")
    own = {
        "topology.acker.executors": 0,
        "topology.autoscale": mode,
        "topology.autoscale.grace.secs": 180,
        **conf,
    }
    return cluster.submit(builder.build(), own, name)


def count(cluster: LocalCluster, topology_id: str, per_s: float, busy: float) -> None:
    """Write what workers would have: rows of the last four minutes, and for how long `count` was
    busy with them, of one executor's time.
    """
    outline = cluster.storm_state.require_outline(topology_id)
    assignment = cluster.storm_state.read_assignment(topology_id)
    assert assignment is not None
    store = cluster.data_plane.of(topology_id).store
    now_ms = cluster.now_ms
    tasks = [task for task, name in outline.component_by_task.items() if name == "count"]
    for slot in sorted(set(assignment.slot_by_executor.values())):
        own = {
            task
            for executor, placed in assignment.slot_by_executor.items()
            if placed == slot
            for task in executor.tasks
        }
        records = []
        for minutes in range(4, -1, -1):
            rows = round(per_s * 60 * (4 - minutes))
            counts = {}
            for task in own:
                name = outline.component_by_task[task]
                share = rows // len(tasks) if name == "count" else rows
                made = TaskCounts(name, 9)
                made.emitted = rows if name == "words" else 0
                made.executed = share if name == "count" else 0
                if name == "count":
                    made.busy_us = round(busy * 60e6 * (4 - minutes) / len(tasks))
                counts[task] = made
            edges = {("words", "default", "count"): EdgeCounts(rows, rows, 1, rows)}
            if not any(outline.component_by_task[task] == "words" for task in own):
                edges = {}
            at_ms = now_ms - minutes * MINUTE_MS
            records.append(
                Progress(counts, started_ms=now_ms - 4 * MINUTE_MS, now_ms=at_ms, edges=edges)
            )
        store.progress_by_owner[str(slot)] = records[-1].encode()
        store.earlier_by_owner[str(slot)] = {n: r.encode() for n, r in enumerate(records[:-1])}


def sizes(cluster: LocalCluster, topology_id: str) -> tuple[int, int]:
    """Workers and executors of `count` that the topology asks for."""
    base = cluster.storm_state.read_base(topology_id)
    assert base is not None
    return base.num_workers, base.executors_by_component["count"]


@pytest.mark.slow
def test_one_plan_in_a_grace_period_for_topologies_that_are_on(cluster: LocalCluster) -> None:
    on = submit(cluster, "on", True)
    stay = [submit(cluster, "advised", "advise")]
    cluster.advance(seconds=240)
    for topology_id in (on, *stay):
        count(cluster, topology_id, 1000, 0.95)
    cluster.advance(seconds=75)

    assert sizes(cluster, on) == (2, 2)
    assignment = cluster.storm_state.read_assignment(on)
    assert assignment is not None and len(set(assignment.slot_by_executor.values())) == 2
    assert [sizes(cluster, each) for each in stay] == [(1, 1)]
    # Counts from before, while the new placement is not measured yet.
    count(cluster, on, 1000, 2.0)
    cluster.advance(seconds=75)
    assert sizes(cluster, on) == (2, 2)
    base = cluster.storm_state.read_base(on)
    assert base is not None and base.status is TopologyStatus.ACTIVE
