"""Owns one round of scheduling as a pure step: what is known, who is alive -> which assignments to write. PURE.

Whoever calls reads the store before and writes the plan after; a plan that differs in nothing writes nothing.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from sparkstorm.model.assignment import (
    Assignment,
    AssignmentKind,
    ExecutorId,
    SupervisorInfo,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.model.outline import TopologyOutline
from sparkstorm.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.model.tasks import compute_executors
from sparkstorm.scheduling.base import Scheduler
from sparkstorm.scheduling.former import Cause, Former
from sparkstorm.scheduling.liveness import dead_slots
from sparkstorm.scheduling.reconcile import Wanted, check_answer, kept_for_rebalance, next_assignment
from sparkstorm.scheduling.records import ComponentView, InputView, SupervisorView, TopologyView
from sparkstorm.scheduling.view import ClusterView

Placement = Mapping[ExecutorId, WorkerSlot]


@dataclass(frozen=True, slots=True)
class KnownTopology:
    """A topology as its records tell it; `conf` is the cluster's configuration under the topology's own."""

    base: TopologyBase
    outline: TopologyOutline
    conf: Mapping[str, Any]

    def executors(self) -> list[ExecutorId]:
        """The executors it should have."""
        return compute_executors(self.outline.component_by_task, self.base.executors_by_component)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a round looks at; `reserved` slots belong to topologies whose records cannot be read."""

    topologies: Mapping[str, KnownTopology]
    assignments: Mapping[str, Assignment]
    supervisors: Mapping[str, SupervisorInfo]
    reserved: Set[WorkerSlot] = frozenset()
    backups: Mapping[str, Assignment] = field(default_factory=dict)  # of a former topology of the name, by the new id


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, and what a scheduler said about each topology."""

    assignments: tuple[Assignment, ...] = ()
    placed: Mapping[str, Placement] = field(default_factory=dict)
    status: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)  # those that must not be placed in part, and why


def plan_round(
    snapshot: Snapshot,
    alive: Mapping[str, Set[ExecutorId]],
    scheduler: Scheduler,
    conf: Mapping[str, Any],
    now_ms: int,
    rebalanced: Mapping[str, RebalanceOptions] | None = None,
) -> Plan:
    """Schedule what lacks a place; FailedAssignTopologyError when the scheduler says so or breaks the rules."""
    rebalanced = rebalanced or {}
    views = {each: topology_view(known, now_ms) for each, known in snapshot.topologies.items()}
    kept = {each: _kept(views[each], known, snapshot, alive, rebalanced) for each, known in snapshot.topologies.items()}
    frozen = {each for each, known in snapshot.topologies.items() if known.base.status == TopologyStatus.KILLED}
    for topology_id in frozen:
        views[topology_id] = _without_wishes(views[topology_id], kept[topology_id])
    dead = dead_slots(_known_assignments(snapshot), alive) | snapshot.reserved
    supervisors = [supervisor_view(info, dead) for info in snapshot.supervisors.values()]
    cluster = ClusterView(supervisors, views.values(), kept, conf)
    cluster.former = _former(snapshot, alive, rebalanced)
    scheduler.schedule({each: view for each, view in views.items() if each not in frozen}, cluster)
    answer = {each: placed for each, placed in cluster.assignments().items() if each not in frozen}
    _check(answer, views, cluster, kept)
    return Plan(_differences(snapshot, answer, rebalanced, now_ms), answer, dict(cluster.status), dict(cluster.refused))


def topology_view(known: KnownTopology, now_ms: int) -> TopologyView:
    """A topology as schedulers see it."""
    by_component: dict[str, list[ExecutorId]] = {each: [] for each in known.outline.components}
    for executor in known.executors():
        by_component[known.outline.component_by_task[executor.first_task]].append(executor)
    components = tuple(
        ComponentView(
            name,
            part.kind,
            tuple(by_component[name]),
            part.conf,
            tuple(InputView(each.component, each.stream, each.grouping) for each in part.inputs),
        )
        for name, part in sorted(known.outline.components.items())
    )
    base = known.base
    uptime_ms = max(0, now_ms - base.launch_ms)
    return TopologyView(base.topology_id, base.name, components, base.num_workers, base.owner, uptime_ms, known.conf)


def supervisor_view(info: SupervisorInfo, dead: Set[WorkerSlot]) -> SupervisorView:
    """A supervisor as schedulers see it, its dead ports left out."""
    ports = tuple(port for port in info.ports if WorkerSlot(info.supervisor_id, port) not in dead)
    rack = info.scheduler_meta.get("rack")
    return SupervisorView(
        info.supervisor_id, info.host, ports, rack if isinstance(rack, str) else None, info.uptime_ms, info.resources
    )


def _kept(
    view: TopologyView,
    known: KnownTopology,
    snapshot: Snapshot,
    alive: Mapping[str, Set[ExecutorId]],
    rebalanced: Mapping[str, RebalanceOptions],
) -> dict[ExecutorId, WorkerSlot]:
    topology_id = known.base.topology_id
    assignment = snapshot.assignments.get(topology_id)
    if assignment is None:
        return {}
    living = alive.get(topology_id, frozenset())
    placed = {each: slot for each, slot in assignment.slot_by_executor.items() if each in living}
    if known.base.status == TopologyStatus.KILLED:
        return dict(assignment.slot_by_executor)
    options = rebalanced.get(topology_id)
    if options is None:
        return {each: slot for each, slot in placed.items() if each in view.component_by_executor}
    return {} if options.reassign else kept_for_rebalance(placed, view.executors, known.base.num_workers)


def _former(
    snapshot: Snapshot, alive: Mapping[str, Set[ExecutorId]], rebalanced: Mapping[str, RebalanceOptions]
) -> dict[str, Former]:
    found = {}
    for topology_id in snapshot.topologies:
        assignment, options = snapshot.assignments.get(topology_id), rebalanced.get(topology_id)
        cause = Cause.DEATH if options is None else Cause.REASSIGN if options.reassign else Cause.REBALANCE
        if assignment is None:
            assignment, cause = snapshot.backups.get(topology_id), Cause.SUBMISSION
        if assignment is not None:
            living = alive.get(topology_id, frozenset())
            found[topology_id] = Former(assignment.slot_by_executor, assignment.host_by_node, cause, living)
    return found


def _without_wishes(view: TopologyView, placed: Placement) -> TopologyView:
    """The view of a dying topology: it holds its slots and asks for nothing."""
    components = tuple(
        ComponentView(part.id, part.kind, tuple(each for each in part.executors if each in placed)) for part in view.components
    )
    return TopologyView(view.id, view.name, components, len(set(placed.values())), view.owner, view.uptime_ms, view.conf)


def _known_assignments(snapshot: Snapshot) -> list[Assignment]:
    dying = {each for each, known in snapshot.topologies.items() if known.base.status == TopologyStatus.KILLED}
    return [
        assignment
        for topology_id, assignment in snapshot.assignments.items()
        if topology_id in snapshot.topologies and topology_id not in dying
    ]


def _check(
    answer: Mapping[str, Placement],
    views: Mapping[str, TopologyView],
    cluster: ClusterView,
    kept: Mapping[str, Placement],
) -> None:
    offered = {WorkerSlot(each.id, port) for each in cluster.supervisors.values() for port in each.ports}
    in_use = {slot for placed in kept.values() for slot in placed.values()}
    check_answer(answer, {each: view.executors for each, view in views.items()}, offered | in_use)


def _differences(
    snapshot: Snapshot,
    answer: Mapping[str, Placement],
    rebalanced: Mapping[str, RebalanceOptions],
    now_ms: int,
) -> tuple[Assignment, ...]:
    hosts = {info.supervisor_id: info.host for info in snapshot.supervisors.values()}
    changed = []
    for topology_id, placed in sorted(answer.items()):
        base, old = snapshot.topologies[topology_id].base, snapshot.assignments.get(topology_id)
        if old is None and not placed:
            continue
        kind = AssignmentKind.REBALANCE if topology_id in rebalanced else AssignmentKind.MONITOR
        wanted = Wanted(topology_id, base.code_key, base.conf_key, kind if old else AssignmentKind.NEW)
        assignment = next_assignment(old, wanted, placed, hosts, now_ms)
        if assignment:
            changed.append(assignment)
    return tuple(changed)
