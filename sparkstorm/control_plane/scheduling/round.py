"""One round of scheduling: from a snapshot and the living executors to the assignments to write.
PURE.

The caller reads the store before and writes the plan after; a plan without changes writes nothing.
"""

from collections.abc import Container, Mapping, Set
from typing import Any

from sparkstorm.common.model.assignment import (
    Assignment,
    AssignmentKind,
    ExecutorId,
    SupervisorInfo,
    WorkerSlot,
)
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.control_plane.scheduling.liveness import dead_slots, leaving_executors
from sparkstorm.control_plane.scheduling.measured.measurements import HostLoad
from sparkstorm.control_plane.scheduling.per_topology import cell_views, schedule_cells
from sparkstorm.control_plane.scheduling.placement import Placement
from sparkstorm.control_plane.scheduling.previous import PreviousPlacement, ScheduleReason
from sparkstorm.control_plane.scheduling.reconcile import (
    Wanted,
    check_answer,
    kept_for_rebalance,
    next_assignment,
)
from sparkstorm.control_plane.scheduling.records import ComponentView, SupervisorView, TopologyView
from sparkstorm.control_plane.scheduling.round_memory import RoundMemory
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology, Placed, RoundPlan, Snapshot
from sparkstorm.control_plane.scheduling.view import ClusterView, Scheduler

Alive = Mapping[str, Set[ExecutorId]]


def plan_round(
    snapshot: Snapshot,
    alive: Alive,
    scheduler: Scheduler,
    conf: Mapping[str, Any],
    now_ms: int,
    rebalanced: Mapping[str, RebalanceOptions] | None = None,
    memory: RoundMemory | None = None,
) -> RoundPlan:
    """Return the plan of one round; FailedAssignTopologyError if the scheduler fails or breaks the
    rules.

    `memory` of former rounds saves work; the plan is the same without it.
    """
    rebalanced = rebalanced or {}
    memory = memory or RoundMemory()
    views = memory.views(snapshot, now_ms)
    leaving = {} if rebalanced else leaving_executors(snapshot, alive)
    bound = (
        {key: living - leaving.get(key, frozenset()) for key, living in alive.items()}
        if leaving
        else alive
    )
    kept = {
        key: _kept(views[key], topology, snapshot, bound, rebalanced, memory)
        for key, topology in snapshot.topologies.items()
    }
    frozen = _freeze_killed(views, snapshot)
    waiting = _hold_back(views, kept, rebalanced, frozen) if rebalanced else {}
    cluster = ClusterView(
        _supervisors(snapshot, alive, frozen),
        views.values(),
        kept,
        conf,
        excluded_hosts=snapshot.marks,
    )
    cluster.previous = _previous(snapshot, bound, rebalanced)
    in_use = frozenset(cluster.used_slots()) | _slots_of_lost_supervisors(snapshot)
    schedule_cells(
        scheduler,
        {key: view for key, view in views.items() if key not in frozen},
        cluster,
    )
    _check(cluster, frozen, in_use)
    answer: dict[str, Placed] = {
        key: cluster.placement(key).slot_by_executor for key in views if key not in frozen
    }
    answer = {key: placed for key, placed in answer.items() if waiting.get(key) != placed}
    _let_stay(answer, leaving, snapshot, cluster)
    changed = _differences(snapshot, answer, rebalanced, now_ms)
    return RoundPlan(
        changed,
        answer,
        dict(cluster.status),
        dict(cluster.refused),
        cluster.blacklisted_hosts - snapshot.marks.keys(),
    )


def _freeze_killed(views: dict[str, TopologyView], snapshot: Snapshot) -> set[str]:
    """Let topologies that are being killed keep their slots and ask for none; return their ids."""
    frozen = {
        topology_id
        for topology_id, topology in snapshot.topologies.items()
        if topology.base.status == TopologyStatus.KILLED
    }
    for topology_id in frozen:
        assignment = snapshot.assignments.get(topology_id)
        views[topology_id] = _without_wishes(
            views[topology_id], assignment.slot_by_executor if assignment else {}
        )
    return frozen


def _slots_of_lost_supervisors(snapshot: Snapshot) -> set[WorkerSlot]:
    """Return the assigned slots of supervisors that are lost.

    Living executors there may stay (JStorm's unstopped workers), also during a rebalance.
    """
    return {
        slot
        for assignment in snapshot.assignments.values()
        for slot in assignment.slot_by_executor.values()
        if slot.node not in snapshot.supervisors
    }


def _let_stay(
    answer: dict[str, Placed], leaving: Container[str], snapshot: Snapshot, cluster: ClusterView
) -> None:
    """Let a topology stay as it is that would lose workers or executors by leaving drained hosts.

    Free slots alone do not decide: resources, limits and other topologies count too. Such a
    topology tries again at the next round.
    """
    for topology_id in [topology_id for topology_id in answer if topology_id in leaving]:
        before = snapshot.assignments[topology_id].slot_by_executor
        after = answer[topology_id]
        if len(after) == len(before) and len(set(after.values())) >= len(set(before.values())):
            continue
        others = {
            slot
            for other_id, placed in answer.items()
            if other_id != topology_id
            for slot in placed.values()
        }
        if others.isdisjoint(before.values()):
            answer[topology_id] = before
            cluster.status.pop(topology_id, None)
            cluster.refused.pop(topology_id, None)


def _supervisors(snapshot: Snapshot, alive: Alive, frozen: Container[str]) -> list[SupervisorView]:
    running = [
        topology_id
        for topology_id in snapshot.assignments
        if topology_id in snapshot.topologies and topology_id not in frozen
    ]
    dead: dict[str, set[int]] = {}
    for slot in (
        dead_slots([snapshot.assignments[topology_id] for topology_id in running], alive)
        | snapshot.reserved
    ):
        dead.setdefault(slot.node, set()).add(slot.port)
    return [
        supervisor_view(info, dead.get(info.supervisor_id, ()))
        for info in snapshot.supervisors.values()
    ]


def supervisor_view(info: SupervisorInfo, dead: Container[int] = ()) -> SupervisorView:
    """Return a supervisor as schedulers see it, without dead ports."""
    ports = tuple(port for port in info.ports if port not in dead) if dead else info.ports
    rack = info.scheduler_meta.get("rack")
    return SupervisorView(
        info.supervisor_id,
        info.host,
        ports,
        rack if isinstance(rack, str) else None,
        info.uptime_ms,
        info.resources,
        HostLoad(info.cores, info.steal) if info.cores else None,
    )


def _kept(
    view: TopologyView,
    topology: KnownTopology,
    snapshot: Snapshot,
    alive: Alive,
    rebalanced: Mapping[str, RebalanceOptions],
    memory: RoundMemory,
) -> Placement | Placed:
    topology_id = topology.base.topology_id
    assignment = snapshot.assignments.get(topology_id)
    if assignment is None:
        return {}
    if topology.base.status == TopologyStatus.KILLED:
        return dict(assignment.slot_by_executor)
    living = alive.get(topology_id, frozenset())
    options = rebalanced.get(topology_id)
    if options is None and assignment.slot_by_executor.keys() <= living:
        return memory.placement(topology_id, assignment)
    placed = {
        executor: slot
        for executor, slot in assignment.slot_by_executor.items()
        if executor in living
    }
    if options is None:
        return {
            executor: slot
            for executor, slot in placed.items()
            if executor in view.component_by_executor
        }
    if options.reassign and not (snapshot.marks and not _open_slots(snapshot, topology_id)):
        return {}
    workers = min(topology.base.num_workers, slots_for(snapshot, topology_id))
    kept_slots: dict[ExecutorId, WorkerSlot] = {}
    for part in cell_views(view, workers):
        kept_slots |= kept_for_rebalance(placed, part.executors, part.num_workers)
    return kept_slots


def slots_for(snapshot: Snapshot, topology_id: str) -> int:
    """Return how many slots a topology can have: its own, and those of hosts that are not excluded
    that no other one uses.
    """
    own = snapshot.assignments.get(topology_id)
    return len(
        _open_slots(snapshot, topology_id) | set(own.slot_by_executor.values() if own else ())
    )


def _open_slots(snapshot: Snapshot, topology_id: str) -> set[WorkerSlot]:
    own = snapshot.assignments.get(topology_id)
    taken = {
        slot
        for assignment in snapshot.assignments.values()
        if assignment is not own
        for slot in assignment.slot_by_executor.values()
    }
    return snapshot.open_slots() - taken - snapshot.reserved


def _previous(
    snapshot: Snapshot, alive: Alive, rebalanced: Mapping[str, RebalanceOptions]
) -> dict[str, PreviousPlacement]:
    previous = {}
    for topology_id in snapshot.topologies:
        assignment = snapshot.assignments.get(topology_id)
        options = rebalanced.get(topology_id)
        reason = ScheduleReason.DEATH
        if options is not None:
            reason = ScheduleReason.REASSIGN if options.reassign else ScheduleReason.REBALANCE
        if assignment is None:
            assignment = snapshot.backups.get(topology_id)
            reason = ScheduleReason.SUBMISSION
        if assignment is not None:
            living = alive.get(topology_id, frozenset())
            previous[topology_id] = PreviousPlacement(
                assignment.slot_by_executor, assignment.host_by_node, reason, living
            )
    return previous


def _hold_back(
    views: dict[str, TopologyView],
    kept_placements: dict[str, Placement | Placed],
    rebalanced: Container[str],
    frozen: Container[str],
) -> dict[str, Placed]:
    """Let other topologies that lack slots wait for the next round; return the placements of those
    that have some.

    Otherwise one of them could take every slot that a rebalance frees, and leave the rebalanced
    topology without a worker.
    """
    waiting: dict[str, Placed] = {}
    for topology_id in [
        topology_id
        for topology_id in views
        if topology_id not in rebalanced and topology_id not in frozen
    ]:
        view = views[topology_id]
        placement = kept_placements[topology_id]
        placed = placement.slot_by_executor if isinstance(placement, Placement) else placement
        if view.component_by_executor.keys() <= placed.keys():
            continue
        if placed:
            views[topology_id], kept_placements[topology_id] = _without_wishes(view, placed), placed
            waiting[topology_id] = placed
        else:
            del views[topology_id], kept_placements[topology_id]
    return waiting


def _without_wishes(view: TopologyView, placed: Placed) -> TopologyView:
    """Return the view of a topology that keeps its slots and needs no scheduling, as one that is
    being killed.
    """
    components = tuple(
        ComponentView(
            part.id, part.kind, tuple(executor for executor in part.executors if executor in placed)
        )
        for part in view.components
    )
    return TopologyView(
        view.id,
        view.name,
        components,
        len(set(placed.values())),
        view.owner,
        view.uptime_ms,
        view.conf,
        view.cell_by_task,
    )


class _Usable(Container[WorkerSlot]):
    """Slots that are offered or were in use before the round."""

    def __init__(self, cluster: ClusterView, in_use: Container[WorkerSlot]) -> None:
        self._supervisors = cluster.supervisors
        self._in_use = in_use

    def __contains__(self, slot: object) -> bool:
        assert isinstance(slot, tuple)
        supervisor = self._supervisors.get(slot[0])
        return (supervisor is not None and slot[1] in supervisor.ports) or slot in self._in_use


def _check(cluster: ClusterView, frozen: Container[str], in_use: Container[WorkerSlot]) -> None:
    """Check the changed placements; slots of unchanged topologies and of those being killed may not
    be used.
    """
    taken: dict[WorkerSlot, str] = {}
    touched: dict[str, Placed] = {}
    for topology_id in cluster.topologies:
        placement = cluster.placement(topology_id)
        if placement.is_untouched or topology_id in frozen:
            taken.update(dict.fromkeys(placement.executors_by_slot, topology_id))
        else:
            touched[topology_id] = placement.slot_by_executor
    executors = {
        topology_id: cluster.topologies[topology_id].component_by_executor.keys()
        for topology_id in touched
    }
    check_answer(touched, executors, _Usable(cluster, in_use), taken)


def _differences(
    snapshot: Snapshot,
    answer: Mapping[str, Placed],
    rebalanced: Mapping[str, RebalanceOptions],
    now_ms: int,
) -> tuple[Assignment, ...]:
    hosts = {info.supervisor_id: info.host for info in snapshot.supervisors.values()}
    changed = []
    for topology_id, placed in sorted(answer.items()):
        base = snapshot.topologies[topology_id].base
        old = snapshot.assignments.get(topology_id)
        if old is None and not placed:
            continue
        kind = AssignmentKind.REBALANCE if topology_id in rebalanced else AssignmentKind.MONITOR
        wanted = Wanted(
            topology_id, base.code_key, base.conf_key, kind if old else AssignmentKind.NEW
        )
        assignment = next_assignment(old, wanted, placed, hosts, now_ms)
        if assignment:
            changed.append(assignment)
    return tuple(changed)
