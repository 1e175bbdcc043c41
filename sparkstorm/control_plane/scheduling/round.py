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
    memory.keep_only(snapshot.topologies.keys())
    views = {each: memory.view(known, now_ms) for each, known in snapshot.topologies.items()}
    leaving = {} if rebalanced else leaving_executors(snapshot, alive)
    bound = (
        {each: living - leaving.get(each, frozenset()) for each, living in alive.items()}
        if leaving
        else alive
    )
    kept = {
        each: _kept(views[each], known, snapshot, bound, rebalanced, memory)
        for each, known in snapshot.topologies.items()
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
        scheduler, {each: view for each, view in views.items() if each not in frozen}, cluster
    )
    _check(cluster, frozen, in_use)
    answer: dict[str, Placed] = {
        each: cluster.placement(each).slot_by_executor for each in views if each not in frozen
    }
    answer = {each: placed for each, placed in answer.items() if waiting.get(each) != placed}
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
        each
        for each, known in snapshot.topologies.items()
        if known.base.status == TopologyStatus.KILLED
    }
    for topology_id in frozen:
        found = snapshot.assignments.get(topology_id)
        views[topology_id] = _without_wishes(
            views[topology_id], found.slot_by_executor if found else {}
        )
    return frozen


def _slots_of_lost_supervisors(snapshot: Snapshot) -> set[WorkerSlot]:
    """Return the assigned slots of supervisors that are lost.

    Living executors there may stay (JStorm's unstopped workers), also during a rebalance.
    """
    return {
        slot
        for each in snapshot.assignments.values()
        for slot in each.slot_by_executor.values()
        if slot.node not in snapshot.supervisors
    }


def _let_stay(
    answer: dict[str, Placed], leaving: Container[str], snapshot: Snapshot, cluster: ClusterView
) -> None:
    """Let a topology stay as it is that would lose workers or executors by leaving drained hosts.

    Free slots alone do not decide: resources, limits and other topologies count too. Such a
    topology tries again at the next round.
    """
    for topology_id in [each for each in answer if each in leaving]:
        before = snapshot.assignments[topology_id].slot_by_executor
        after = answer[topology_id]
        if len(after) == len(before) and len(set(after.values())) >= len(set(before.values())):
            continue
        others = {
            slot
            for each, placed in answer.items()
            if each != topology_id
            for slot in placed.values()
        }
        if others.isdisjoint(before.values()):
            answer[topology_id] = before
            cluster.status.pop(topology_id, None)
            cluster.refused.pop(topology_id, None)


def _supervisors(snapshot: Snapshot, alive: Alive, frozen: Container[str]) -> list[SupervisorView]:
    running = [
        each for each in snapshot.assignments if each in snapshot.topologies and each not in frozen
    ]
    dead: dict[str, set[int]] = {}
    for slot in (
        dead_slots([snapshot.assignments[each] for each in running], alive) | snapshot.reserved
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
    )


def _kept(
    view: TopologyView,
    known: KnownTopology,
    snapshot: Snapshot,
    alive: Alive,
    rebalanced: Mapping[str, RebalanceOptions],
    memory: RoundMemory,
) -> Placement | Placed:
    topology_id = known.base.topology_id
    assignment = snapshot.assignments.get(topology_id)
    if assignment is None:
        return {}
    if known.base.status == TopologyStatus.KILLED:
        return dict(assignment.slot_by_executor)
    living = alive.get(topology_id, frozenset())
    options = rebalanced.get(topology_id)
    if options is None and assignment.slot_by_executor.keys() <= living:
        return memory.placement(topology_id, assignment)
    placed = {each: slot for each, slot in assignment.slot_by_executor.items() if each in living}
    if options is None:
        return {each: slot for each, slot in placed.items() if each in view.component_by_executor}
    if options.reassign and not (snapshot.marks and not _open_slots(snapshot, topology_id)):
        return {}
    workers = min(known.base.num_workers, slots_for(snapshot, topology_id))
    kept: dict[ExecutorId, WorkerSlot] = {}
    for part in cell_views(view, workers):
        kept |= kept_for_rebalance(placed, part.executors, part.num_workers)
    return kept


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
        for each in snapshot.assignments.values()
        if each is not own
        for slot in each.slot_by_executor.values()
    }
    return snapshot.open_slots() - taken - snapshot.reserved


def _previous(
    snapshot: Snapshot, alive: Alive, rebalanced: Mapping[str, RebalanceOptions]
) -> dict[str, PreviousPlacement]:
    found = {}
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
            found[topology_id] = PreviousPlacement(
                assignment.slot_by_executor, assignment.host_by_node, reason, living
            )
    return found


def _hold_back(
    views: dict[str, TopologyView],
    kept: dict[str, Placement | Placed],
    rebalanced: Container[str],
    frozen: Container[str],
) -> dict[str, Placed]:
    """Let other topologies that lack slots wait for the next round; return the placements of those
    that have some.

    Otherwise one of them could take every slot that a rebalance frees, and leave the rebalanced
    topology without a worker.
    """
    waiting: dict[str, Placed] = {}
    for topology_id in [each for each in views if each not in rebalanced and each not in frozen]:
        view = views[topology_id]
        found = kept[topology_id]
        placed = found.slot_by_executor if isinstance(found, Placement) else found
        if view.component_by_executor.keys() <= placed.keys():
            continue
        if placed:
            views[topology_id], kept[topology_id] = _without_wishes(view, placed), placed
            waiting[topology_id] = placed
        else:
            del views[topology_id], kept[topology_id]
    return waiting


def _without_wishes(view: TopologyView, placed: Placed) -> TopologyView:
    """Return the view of a topology that keeps its slots and needs no scheduling, as one that is
    being killed.
    """
    components = tuple(
        ComponentView(part.id, part.kind, tuple(each for each in part.executors if each in placed))
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
    executors = {each: cluster.topologies[each].component_by_executor.keys() for each in touched}
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
