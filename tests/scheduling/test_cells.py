"""Topologies over several stores: to a scheduler they are a topology for each cell, and no worker
has tasks of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.common.model.assignment import (
    Assignment,
    ExecutorId,
    SupervisorInfo,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.outline import ComponentOutline, InputOutline, TopologyOutline
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.tasks import cell_by_task
from sparkstorm.control_plane.scheduling.catalogue import BUILT_IN, JSTORM, scheduler_by_name
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.per_topology import chosen_scheduler
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.round import plan_round
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology, Placed, Snapshot
from sparkstorm.control_plane.scheduling.view import ClusterView, Scheduler

TASKS = {"__acker": 2, "count": 6, "spout": 2, "split": 3}
COMPONENT_BY_TASK = dict(
    enumerate((name for name, count in sorted(TASKS.items()) for _ in range(count)), 1)
)
SUPERVISORS = {
    node: SupervisorInfo(
        node,
        f"host-{node}",
        0,
        0,
        tuple(range(4)),
        resources={"supervisor.memory.capacity.mb": 9_000.0, "supervisor.cpu.capacity": 900.0},
    )
    for node in ("n1", "n2", "n3")
}


def known(cells: int, workers: int = 4, name: str = "t", **executors: int) -> KnownTopology:
    """A topology over so many cells, with an executor a task unless it says otherwise."""
    sizes = {**TASKS, **executors}
    base = TopologyBase(
        f"{name}-1-1", name, 0, TopologyStatus.ACTIVE, workers, sizes, "code", "conf", owner="ann"
    )
    if cells > 1:
        base = replace(base, store="s0", cells=tuple(f"s{cell}" for cell in range(cells)))
    inputs = {"split": "spout", "count": "split"}
    components = {
        each: ComponentOutline(
            "spout" if each == "spout" else "bolt",
            inputs=(InputOutline(inputs[each], "default", "shuffle"),) if each in inputs else (),
        )
        for each in TASKS
    }
    outline = TopologyOutline(components, TASKS, COMPONENT_BY_TASK)
    return KnownTopology(base, outline, {"topology.workers": workers})


def planned(
    scheduler: Scheduler,
    *topologies: KnownTopology,
    assignments: Mapping[str, Assignment] | None = None,
    rebalanced: Mapping[str, RebalanceOptions] | None = None,
) -> Mapping[str, Placed]:
    by_id = {each.base.topology_id: each for each in topologies}
    snapshot = Snapshot(by_id, assignments or {}, SUPERVISORS)
    alive = {each: found.slot_by_executor.keys() for each, found in (assignments or {}).items()}
    return plan_round(snapshot, alive, scheduler, {}, 1_000, rebalanced).placed


def assigned(topology: KnownTopology, placed: Placed) -> dict[str, Assignment]:
    each = topology.base.topology_id
    return {each: Assignment(each, 1, "code", "conf", {}, placed)}


def cells_by_slot(placed: Placed, cells: int) -> dict[WorkerSlot, set[int]]:
    of_task = cell_by_task(COMPONENT_BY_TASK, cells)
    found: dict[WorkerSlot, set[int]] = {}
    for executor, slot in placed.items():
        found.setdefault(slot, set()).update(of_task[task] for task in executor.tasks)
    return found


@pytest.mark.parametrize("name", [*BUILT_IN, JSTORM, "blacklist"])
@pytest.mark.parametrize("cells", [2, 3])
def test_every_scheduler_gives_each_cell_workers_of_its_own(name: str, cells: int) -> None:
    topology, other = known(cells), known(1, 2, "other")
    placed = planned(
        chosen_scheduler({"storm.scheduler": name, "isolation.scheduler.machines": {"t": 1}}),
        topology,
        other,
    )
    mine = placed["t-1-1"]
    assert mine.keys() == set(topology.executors())
    by_slot = cells_by_slot(mine, cells)
    assert {len(found) for found in by_slot.values()} == {1}
    assert set().union(*by_slot.values()) == set(range(cells))
    if name not in ("isolation", "traffic") or cells < 3:  # each of its cells has a machine
        assert placed["other-1-1"].keys() == set(other.executors())
    assert set(mine.values()).isdisjoint(placed["other-1-1"].values())
    if name not in ("resource-aware", "multitenant"):
        assert len(by_slot) == 4


def test_a_topology_in_one_store_is_placed_as_without_cells_beside_it() -> None:
    alone = planned(DefaultScheduler(), known(1, 2, "a"))
    beside = planned(DefaultScheduler(), known(1, 2, "a"), known(2))
    assert beside["a-1-1"] == alone["a-1-1"]


def test_nothing_moves_while_nothing_has_changed_and_a_dead_worker_alone_is_replaced() -> None:
    topology = known(2)
    first = planned(DefaultScheduler(), topology)["t-1-1"]
    again = planned(DefaultScheduler(), topology, assignments=assigned(topology, first))
    assert again["t-1-1"] == first
    dead = min(first.values())
    left = {each: slot for each, slot in first.items() if slot != dead}
    snapshot = Snapshot({"t-1-1": topology}, assigned(topology, first), SUPERVISORS)
    plan = plan_round(snapshot, {"t-1-1": left.keys()}, DefaultScheduler(), {}, 1_000)
    after = plan.placed["t-1-1"]
    assert {each: after[each] for each in left} == left and after.keys() == first.keys()
    assert {len(found) for found in cells_by_slot(after, 2).values()} == {1}


@pytest.mark.parametrize(("workers", "count"), [(2, 6), (6, 6), (4, 2), (3, 4)])
def test_a_rebalance_keeps_every_task_in_its_cell_and_gives_each_cell_its_share(
    workers: int, count: int
) -> None:
    before = planned(DefaultScheduler(), known(2))["t-1-1"]
    after = known(2, workers, count=count)
    options = {"t-1-1": RebalanceOptions(workers)}
    placed = planned(
        DefaultScheduler(), after, assignments=assigned(known(2), before), rebalanced=options
    )["t-1-1"]
    assert placed.keys() == set(after.executors())
    by_slot = cells_by_slot(placed, 2)
    assert {len(found) for found in by_slot.values()} == {1}
    each = [sum(found == {cell} for found in by_slot.values()) for cell in (0, 1)]
    assert each == [workers - workers // 2, workers // 2]


def test_executors_of_before_a_rebalance_hold_the_slots_of_their_cell_until_they_end() -> None:
    """A kill between the new assignment and the new base: the slots are not free for others."""
    old = known(2, count=2)
    placed = planned(DefaultScheduler(), known(2))["t-1-1"]
    killed = replace(old, base=replace(old.base, status=TopologyStatus.KILLED))
    found = planned(DefaultScheduler(), killed, known(2, 8, "b"), assignments=assigned(old, placed))
    assert "t-1-1" not in found
    assert set(found["b-1-1"].values()).isdisjoint(placed.values())


class Mixing(DefaultScheduler):
    """A plug-in that puts all executors of all cells on one slot."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        slot = WorkerSlot("n1", 0)
        for each, view in topologies.items():
            placement = cluster.placement(each)
            placement.assign(slot, view.executors)


def test_an_answer_with_two_cells_in_a_slot_is_refused() -> None:
    with pytest.raises(FailedAssignTopologyError, match="both t-1-1@0 and t-1-1@1 on n1:0"):
        planned(Mixing(), known(2))


def test_the_reason_of_a_cell_that_finds_no_place_is_that_of_its_topology() -> None:
    scheduler = scheduler_by_name("resource-aware", {})
    large = known(2)
    conf = {"topology.component.resources.onheap.memory.mb": 8_000.0}
    topology = KnownTopology(large.base, large.outline, {**large.conf, **conf})
    snapshot = Snapshot({"t-1-1": topology}, {}, SUPERVISORS)
    plan = plan_round(snapshot, {}, scheduler, {}, 1_000)
    assert plan.status.keys() == {"t-1-1"} and "Not enough resources" in plan.status["t-1-1"]


def test_executors_of_cells_are_those_of_the_blocks() -> None:
    result = known(2, count=4).executors()[2:6]
    assert result == [ExecutorId(3, 4), ExecutorId(5, 5), ExecutorId(6, 7), ExecutorId(8, 8)]
