"""JStorm's DefaultTopologyScheduler: number of workers, kept workers, new workers."""

from collections.abc import Iterable
from dataclasses import replace

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.control_plane.scheduling.jstorm.records import (
    MASTER,
    AssignContext,
    AssignType,
    PlannedWorker,
    flag,
)
from sparkstorm.control_plane.scheduling.jstorm.slots import JStormSlot
from sparkstorm.control_plane.scheduling.jstorm.tasks import TaskScheduler, master_task
from sparkstorm.control_plane.scheduling.jstorm.workers import Ports, WorkerScheduler

WORKERS_KEY = "topology.workers"
SINGLE_MASTER_KEY = "topology.master.single.worker"
MASTER_MEMORY_KEY = "topology.master.worker.memory.size"
SINGLE_MASTER_FROM = 10


def has_single_master(context: AssignContext) -> bool:
    """Return whether the topology master has its own worker: by the conf, else from 10 workers
    on (defect 8).
    """
    wanted = flag(context.conf, SINGLE_MASTER_KEY)
    return wanted if wanted is not None else _wanted_workers(context) >= SINGLE_MASTER_FROM


def _wanted_workers(context: AssignContext) -> int:
    total = sum(part.parallelism for part in context.components if part.id != MASTER)
    wanted = context.conf.get(WORKERS_KEY)
    return total if wanted is None else min(int(wanted), total)


def num_workers(context: AssignContext) -> int:
    """Return the number of workers, the master's own one included (S0.81)."""
    masters = sum(part.parallelism for part in context.components if part.id == MASTER)
    return _wanted_workers(context) + (masters if has_single_master(context) else 0)


def assign_tasks(context: AssignContext) -> list[PlannedWorker]:
    """Return the topology's workers by (host, port), kept ones included; a plan without side
    effects (S0.106).

    FailedAssignTopologyError says what was missing.
    """
    context = _without_unknown_tasks(context)
    unstopped = _unstopped_workers(context)
    supervisors = [
        Ports.of(supervisor)
        for supervisor in sorted(context.supervisors, key=lambda supervisor: supervisor.id)
    ]
    if context.assign_type is AssignType.REBALANCE:
        _free_used(context, supervisors)
    # Tasks that cannot be stopped still run: placed again, they would run twice.
    need = _tasks_without_place(context)
    living = _workers_to_keep(context, need)
    count = num_workers(context) - len(unstopped) - len(living)
    if count <= 0 and _lost_among_unstopped(context) & need:
        count = 1
    if count <= 0:
        raise FailedAssignTopologyError("Don't need assign worker, all workers are fine ")
    slots = WorkerScheduler(context, supervisors, unstopped).available_workers(need, count)
    master = master_task(context)
    made = TaskScheduler(context, need, slots, has_single_master(context), master).assign()
    _set_master_memory(context, made, master)
    if context.reason_by_task is not None:
        lost = {task for worker in unstopped for task in worker.tasks}
        context.reason_by_task.update(
            dict.fromkeys(lost, "its supervisor is lost, and nothing can stop it there")
        )
        alive = {task for worker in living for task in worker.tasks}
        context.reason_by_task.update(dict.fromkeys(alive, "its worker lives and is living"))
    plans = {(plan.node, plan.port): plan for plan in (slot.plan() for slot in made)}
    plans |= {(worker.node, worker.port): worker for worker in [*unstopped, *living]}
    return sorted(plans.values(), key=lambda plan: plan.order)


def living_workers(context: AssignContext) -> list[PlannedWorker]:
    """Return the old workers that stay where they are."""
    cleaned = _without_unknown_tasks(context)
    return [*_unstopped_workers(cleaned), *_workers_to_keep(cleaned, _tasks_without_place(cleaned))]


def _without_unknown_tasks(context: AssignContext) -> AssignContext:
    """Return the context without tasks of no component: a rebalance removed them, and old workers
    still list them.
    """
    tasks = context.component_by_task.keys()
    if all(worker.tasks <= tasks for worker in context.old_workers):
        return context
    cleaned = [replace(worker, tasks=worker.tasks & tasks) for worker in context.old_workers]
    return replace(context, old_workers=tuple(worker for worker in cleaned if worker.tasks))


def _unstopped_workers(context: AssignContext) -> list[PlannedWorker]:
    """Return workers on lost supervisors with the tasks that still run there; their other tasks
    need a place.
    """
    running = [
        replace(worker, tasks=worker.tasks & context.unstopped_tasks)
        for worker in context.old_workers
    ]
    return [worker for worker in running if worker.tasks]


def _lost_among_unstopped(context: AssignContext) -> set[int]:
    """Return dead tasks of workers whose other tasks cannot be stopped; they get a worker beyond
    the wanted number.
    """
    mixed = [worker for worker in context.old_workers if worker.tasks & context.unstopped_tasks]
    return {task for worker in mixed for task in worker.tasks - context.unstopped_tasks}


def _free_used(context: AssignContext, supervisors: Iterable[Ports]) -> None:
    """Add the ports of the workers that a rebalance moves to the free ones."""
    ports_by_id = {ports.id: ports for ports in supervisors}
    for worker in context.old_workers:
        if worker.node in ports_by_id and worker.tasks & (
            context.component_by_task.keys() - context.unstopped_tasks
        ):
            ports_by_id[worker.node].give(worker.port)


def _tasks_without_place(context: AssignContext) -> set[int]:
    return _tasks_to_assign(context) - context.unstopped_tasks


def _tasks_to_assign(context: AssignContext) -> set[int]:
    everything = set(context.component_by_task)
    if context.assign_type is AssignType.NEW:
        return everything
    if context.assign_type is AssignType.REBALANCE:
        return everything - context.unstopped_tasks
    dead = set(context.dead_tasks)
    for worker in context.old_workers:
        # A worker with one dead task dies as a whole, unless it cannot be stopped.
        if worker.tasks & (context.dead_tasks - context.unstopped_tasks):
            dead |= worker.tasks
    return dead & everything


def _workers_to_keep(context: AssignContext, need: set[int]) -> list[PlannedWorker]:
    stay = context.component_by_task.keys() - context.unstopped_tasks - need
    return [worker for worker in context.old_workers if worker.tasks <= stay] if stay else []


def _set_master_memory(
    context: AssignContext, slots: Iterable[JStormSlot], master: int | None
) -> None:
    memory = context.conf.get(MASTER_MEMORY_KEY)
    for slot in slots:
        if memory is not None and master in (slot.tasks or ()):
            slot.memory_bytes = int(memory)
