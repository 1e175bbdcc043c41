"""JStorm's topology scheduler as a Scheduler: topologies one by one, each placed as a whole or
refused.

A JStorm task is one of our executors, numbered by its first task. JStorm requests workers only when
a task is dead, a topology is new or a rebalance was wanted: a topology that runs on fewer workers
than it requested is left alone.
"""

from dataclasses import replace

from sparkstorm.common.errors import FailedAssignTopologyError, InvalidConfigError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.jstorm.records import (
    AssignContext,
    AssignType,
    JStormComponent,
    PlannedWorker,
    SupervisorPorts,
    flag,
)
from sparkstorm.control_plane.scheduling.jstorm.scheduler import (
    WORKERS_KEY,
    assign_tasks,
    num_workers,
)
from sparkstorm.control_plane.scheduling.jstorm.slots import defined_slots
from sparkstorm.control_plane.scheduling.jstorm.workers import USE_OLD_KEY
from sparkstorm.control_plane.scheduling.previous import PreviousPlacement, ScheduleReason
from sparkstorm.control_plane.scheduling.records import Conf, Topologies, TopologyView
from sparkstorm.control_plane.scheduling.view import ClusterView

_TYPE_BY_REASON = {
    ScheduleReason.DEATH: AssignType.MONITOR,
    ScheduleReason.REBALANCE: AssignType.REBALANCE,
    ScheduleReason.REASSIGN: AssignType.REBALANCE,
    ScheduleReason.SUBMISSION: AssignType.NEW,
}


class JStormScheduler:
    """JStorm's DefaultTopologyScheduler over a cluster; a topology that cannot be placed is refused
    with JStorm's message.
    """

    def prepare(self, conf: Conf) -> None:
        """Read nothing: a topology's conf holds the cluster's."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Place every topology that is new, lacks executors or is being rebalanced, by id."""
        for _, topology in sorted(topologies.items()):
            previous = cluster.previous.get(topology.id) or _present_placement(topology, cluster)
            is_rebalanced = previous is not None and previous.reason in (
                ScheduleReason.REBALANCE,
                ScheduleReason.REASSIGN,
            )
            if not is_rebalanced and not cluster.placement(topology.id).num_missing:
                continue
            try:
                placed = _place(topology, previous, cluster)
            except (FailedAssignTopologyError, InvalidConfigError) as error:
                cluster.refused[topology.id] = cluster.status[topology.id] = str(error)
            else:
                cluster.set_assignment(topology.id, placed)


def _place(
    topology: TopologyView, previous: PreviousPlacement | None, cluster: ClusterView
) -> dict[ExecutorId, WorkerSlot]:
    executor_by_task = {executor.first_task: executor for executor in topology.executors}
    context = context_of(topology, previous, cluster)
    if cluster.reasons is not None:
        context = replace(context, reason_by_task={})
    _refuse_surplus(context)
    plans = assign_tasks(context)
    placed = {
        executor_by_task[task]: WorkerSlot(plan.node, plan.port)
        for plan in plans
        for task in plan.tasks
    }
    if cluster.reasons is not None:
        for executor, slot in placed.items():
            words = (context.reason_by_task or {}).get(executor.first_task, "")
            cluster.reasons.placed(topology.id, [executor], slot, words)
    return placed


def _present_placement(topology: TopologyView, cluster: ClusterView) -> PreviousPlacement | None:
    """Return the present placement as the previous one if none is known (a problem from a file)."""
    placed = cluster.placement(topology.id).slot_by_executor
    return PreviousPlacement(dict(placed), {}, alive=frozenset(placed)) if placed else None


def _refuse_surplus(context: AssignContext) -> None:
    """Refuse more user-defined workers than wanted (S0.87); JStorm's code silently ignores all
    definitions instead.
    """
    wanted = num_workers(context)
    defined = len(defined_slots(context, (), is_new=True))
    if context.assign_type is AssignType.NEW and defined > wanted:
        raise FailedAssignTopologyError(
            f"Too many workers are required for user define or old assignments. workersNum={wanted}, assignedWorkersNum={defined}"
        )


def context_of(
    topology: TopologyView, previous: PreviousPlacement | None, cluster: ClusterView
) -> AssignContext:
    """Return the input of JStorm's scheduler for a topology (S0.74-S0.80)."""
    reason = previous.reason if previous else ScheduleReason.SUBMISSION
    placement = cluster.placement(topology.id)
    dead = [
        executor.first_task
        for executor in topology.executors
        if executor not in placement.slot_by_executor
    ]
    return AssignContext(
        topology.id,
        _TYPE_BY_REASON[reason],
        tuple(
            JStormComponent(e.id, e.kind, len(e.executors), e.conf, e.inputs)
            for e in topology.components
        ),
        _supervisors(cluster),
        {
            executor.first_task: component
            for executor, component in topology.component_by_executor.items()
        },
        {**topology.conf, WORKERS_KEY: topology.num_workers},
        reason is ScheduleReason.REASSIGN,
        _old_workers(topology, previous, cluster),
        frozenset(dead if reason is ScheduleReason.DEATH else ()),
        frozenset(_unstopped(previous, cluster)),
    )


def _supervisors(cluster: ClusterView) -> tuple[SupervisorPorts, ...]:
    return tuple(
        SupervisorPorts(node, supervisor.host, supervisor.ports, cluster.free.ports(node))
        for node, supervisor in cluster.supervisors.items()
        if not cluster.is_blacklisted(node)
    )


def _unstopped(previous: PreviousPlacement | None, cluster: ClusterView) -> list[int]:
    """Return living tasks whose supervisor is lost or blacklisted; nothing would stop them, so they
    stay.
    """
    if previous is None or previous.reason is ScheduleReason.SUBMISSION:
        return []
    placed = previous.slot_by_executor.items()
    return [
        executor.first_task
        for executor, slot in placed
        if executor in previous.alive and not _is_offered(slot.node, cluster)
    ]


def _is_offered(node: str, cluster: ClusterView) -> bool:
    return node in cluster.supervisors and not cluster.is_blacklisted(node)


def _old_workers(
    topology: TopologyView, previous: PreviousPlacement | None, cluster: ClusterView
) -> tuple[PlannedWorker, ...]:
    if previous is None or (
        previous.reason is ScheduleReason.SUBMISSION and not flag(topology.conf, USE_OLD_KEY)
    ):
        return ()
    tasks_by_slot: dict[WorkerSlot, set[int]] = {}
    for executor, slot in previous.slot_by_executor.items():
        if executor in topology.component_by_executor and _is_of_use(slot, previous, cluster):
            tasks_by_slot.setdefault(slot, set()).add(executor.first_task)
    hosts = previous.host_by_node
    return tuple(
        PlannedWorker(
            slot.node,
            cluster.host_of(slot.node) or hosts.get(slot.node, ""),
            slot.port,
            frozenset(tasks),
        )
        for slot, tasks in sorted(tasks_by_slot.items())
    )


def _is_of_use(slot: WorkerSlot, previous: PreviousPlacement, cluster: ClusterView) -> bool:
    """Return whether the old port may be used again: during a rebalance it must not be dead."""
    is_rebalanced = previous.reason in (ScheduleReason.REBALANCE, ScheduleReason.REASSIGN)
    return not is_rebalanced or cluster.can_reassign(slot) or not _is_offered(slot.node, cluster)
