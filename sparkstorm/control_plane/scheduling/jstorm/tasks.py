"""JStorm's TaskScheduler, the second half of its scheduler: assigns tasks to workers
(S0.97-S0.106).
"""

from collections.abc import Callable, Iterable

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.control_plane.scheduling.jstorm.records import (
    MASTER,
    SYSTEM,
    AssignContext,
    AssignType,
    PlannedWorker,
    flag,
)
from sparkstorm.control_plane.scheduling.jstorm.selectors import Chooser, PlacedTasks, relationship
from sparkstorm.control_plane.scheduling.jstorm.slots import JStormSlot

DIFFER_NODE_KEY = "task.on.differ.node"


class TaskScheduler:
    """JStorm's TaskScheduler: a pool of workers with room; a worker with a full quota leaves the
    pool.

    The quota is the average number of tasks per worker, plus one for as many workers as tasks
    remain.
    """

    def __init__(
        self,
        context: AssignContext,
        tasks: set[int],
        slots: list[JStormSlot],
        single_master: bool,
        master: int | None,
    ) -> None:
        self._context = context
        self._tasks = tasks
        self._single_master = single_master
        self._master = master
        self._parts = {part.id: part for part in context.components}
        ordered = sorted(slots, key=lambda slot: slot.order)
        self._placed = PlacedTasks(
            slots, relationship(context.components), context.component_by_task
        )
        self._slot_at = {(slot.host, slot.port): slot for slot in slots}
        self._slot_of_node = {(slot.node, slot.port): slot for slot in slots}
        self._pool: dict[JStormSlot, int] = {slot: slot.num_tasks for slot in ordered}
        self._done: list[JStormSlot] = []
        self._num_workers = len(slots)
        self._average = self._left_over = 0
        self._chooser: Chooser | None = None
        if tasks:
            self._prepare()

    # -- before the first task ---------------------------------------------------------------------

    @property
    def _keeps_placement(self) -> bool:
        return self._context.assign_type is AssignType.REBALANCE and not self._context.is_reassign

    def _prepare(self) -> None:
        if self._single_master and self._master in self._tasks:
            if not self._keeps_placement:
                self._place_master(self._empty_slot(lambda slot: True))
            else:
                self._move_displaced_master()
        num_tasks = len(self._tasks) + sum(self._pool.values())
        self._share_out(num_tasks)
        for slot in [slot for slot, count in self._pool.items() if count > 0]:
            if slot in self._pool:
                for done in self._retire_if_full(slot):
                    num_tasks -= done.num_tasks
                    self._num_workers -= 1
        self._share_out(num_tasks)
        if self._keeps_placement:
            self._keep(num_tasks)

    def _share_out(self, num_tasks: int) -> None:
        if num_tasks >= 0 and self._num_workers > 0:
            self._average, self._left_over = divmod(num_tasks, self._num_workers)

    def _place_master(self, chosen: JStormSlot | None) -> None:
        """Give the topology master its own empty worker; FailedAssignTopologyError if there
        is none.
        """
        if chosen is None or self._master is None:
            raise FailedAssignTopologyError(
                "there's no enough workers for the assignment of topology master"
            )
        self._give_master(chosen, self._master)
        self._num_workers -= 1

    def _empty_slot(self, is_allowed: Callable[[JStormSlot], bool]) -> JStormSlot | None:
        """Return an empty worker on the supervisor with most of the topology's workers, or None."""
        chosen: JStormSlot | None = None
        most = 0
        for slot in self._pool:
            mates = self._placed.slots_by_node[slot.node]
            empties = (
                (mate for mate in mates if not mate.tasks and is_allowed(mate))
                if len(mates) > most
                else iter(())
            )
            empty = next(empties, None)
            if empty is not None:
                chosen = empty
                most = len(mates)
        return chosen

    def _move_displaced_master(self) -> None:
        """Give the master another worker if a defined worker got its old port; preferably one that
        no old worker keeps.
        """
        old = self._context.old_workers
        slots = [self._slot_like(worker) for worker in old if self._master in worker.tasks]
        if not any(slot is not None and self._is_taken(slot) for slot in slots):
            return
        old_places = {(worker.host, worker.port) for worker in old}
        empty = self._empty_slot(
            lambda slot: (slot.host, slot.port) not in old_places
        ) or self._empty_slot(lambda slot: True)
        if empty is not None:  # otherwise the selectors place it next to other tasks
            self._place_master(empty)

    def _slot_like(self, worker: PlannedWorker) -> JStormSlot | None:
        """Return the slot of an old worker: its supervisor's, else the port's on its host, whose
        supervisor may have begun anew under another id.
        """
        own = self._slot_of_node.get((worker.node, worker.port))
        return own or self._slot_at.get((worker.host, worker.port))

    def _is_taken(self, slot: JStormSlot) -> bool:
        """Return whether a worker has tasks, which the master must not replace (defect 18 of the
        comparison).
        """
        return bool(slot.tasks)

    def _give_master(self, slot: JStormSlot, master: int) -> None:
        if self._context.reason_by_task is not None:
            self._context.reason_by_task[master] = (
                f"the topology master has a worker of its own; {slot.placed_by}"
            )
        slot.tasks = {master}
        del self._pool[slot]
        self._done.append(slot)
        self._tasks.discard(master)

    def _keep(self, num_tasks: int) -> None:
        """Put tasks back on their old workers (rebalance without reassign); full workers leave the
        pool.
        """
        old = sorted(self._context.old_workers, key=lambda worker: worker.order)
        placed: set[int] = set()
        for worker in old:
            slot = self._slot_like(worker)
            if slot is None or slot not in self._pool:
                continue
            if self._single_master and self._master in worker.tasks:
                if self._master in self._tasks and not self._is_taken(slot):
                    self._give_master(slot, self._master)
                    num_tasks = num_tasks - 1
                    self._num_workers = self._num_workers - 1
                continue
            for task in sorted(worker.tasks & self._tasks):
                if self._context.reason_by_task is not None:
                    self._context.reason_by_task[task] = (
                        f"a rebalance keeps it with its worker; {slot.placed_by}"
                    )
                self._add(task, slot)
                placed.add(task)
        with_master = [worker for worker in old if self._master in worker.tasks]
        if with_master:
            self._share_out(num_tasks)
        self._retire_kept([worker for worker in old if worker not in with_master], num_tasks)
        self._tasks -= placed

    def _retire_kept(self, workers: Iterable[PlannedWorker], num_tasks: int) -> None:
        slots = [self._slot_like(worker) for worker in workers]
        waiting = [slot for slot in dict.fromkeys(slots) if slot is not None]
        while True:
            full = [slot for slot in waiting if slot in self._pool and self._is_full(slot)]
            if not full:
                return
            for slot in full:
                del self._pool[slot]
                self._done.append(slot)
            self._num_workers -= len(full)
            num_tasks -= sum(slot.num_tasks for slot in full)  # this round's only (defect 12)
            self._share_out(num_tasks)

    def _is_full(self, slot: JStormSlot) -> bool:
        quota = self._average if self._left_over <= 0 else self._average + 1
        return slot.tasks is not None and len(slot.tasks) >= quota

    # -- task by task ------------------------------------------------------------------------------

    def assign(self) -> list[JStormSlot]:
        """Assign every task: differ-node components first, then users' components, then system
        components.
        """
        for group in self._groups():
            for task in group:
                self._place(task)
        return self._done + [slot for slot in self._pool if slot.tasks]

    def _groups(self) -> tuple[list[int], list[int], list[int]]:
        differ: list[int] = []
        user: list[int] = []
        system: list[int] = []
        for task in sorted(self._tasks):
            part = self._parts[self._context.component_by_task[task]]
            if flag(part.conf, DIFFER_NODE_KEY):
                differ.append(task)
            else:
                (system if part.is_system else user).append(task)
        return differ, user, system

    def _place(self, task: int) -> None:
        part = self._parts[self._context.component_by_task[task]]
        if self._chooser is None or self._chooser.component != part.id:
            self._chooser = Chooser(self._placed, self._pool, part.id, part.is_system)
        slot = self._chooser.best()
        if flag(part.conf, DIFFER_NODE_KEY) and (
            slot is None or self._placed.on_node(slot.node, part.id)
        ):
            raise FailedAssignTopologyError(
                f"there's no enough supervisor for making component: {part.id} 's tasks on different node"
            )
        if slot is None:
            raise FailedAssignTopologyError(f"no worker has room for task {task} of {part.id}")
        if self._context.reason_by_task is not None:
            self._context.reason_by_task[task] = self._chosen_words(part.id, slot)
        self._add(task, slot)
        self._retire_if_full(slot)
        self._chooser.touched(slot.node)

    def _chosen_words(self, component: str, slot: JStormSlot) -> str:
        """Return the reason for a chosen worker: the numbers that the selectors compared."""
        own, own_on_node, tasks, tasks_on_node, near, near_on_node, *_ = self._placed.key(
            slot, component, component in SYSTEM
        )
        return (
            f"best of the {len(self._pool)} workers with room: {own} tasks of {component} in it and {own_on_node} on its node, "
            f"{tasks} tasks in it and {tasks_on_node} on its node, {-near} neighbours in it and {-near_on_node} on its node; "
            f"{slot.placed_by}"
        )

    def _add(self, task: int, slot: JStormSlot) -> None:
        slot.tasks = slot.tasks if slot.tasks is not None else set()
        slot.tasks.add(task)
        self._pool[slot] += 1
        self._placed.count(self._context.component_by_task[task], slot)

    def _retire_if_full(self, slot: JStormSlot) -> list[JStormSlot]:
        """Remove full workers from the pool and return them: this one by its quota, average ones if
        no task is left over.
        """
        retired: list[JStormSlot] = []
        if self._left_over <= 0:
            if self._pool[slot] >= self._average:
                retired.append(slot)
        else:
            if self._pool[slot] > self._average:
                self._left_over -= self._pool[slot] - self._average
                retired.append(slot)
            if self._left_over <= 0 and self._average:
                retired += [
                    other
                    for other, n in self._pool.items()
                    if n == self._average and other is not slot
                ]
        for full in retired:
            del self._pool[full]
        self._done += retired
        return retired


def master_task(context: AssignContext) -> int | None:
    """Return the task of the topology master, if there is one."""
    return next(
        (task for task, name in sorted(context.component_by_task.items()) if name == MASTER), None
    )
