"""View of a running topology of a simulated cluster: its workers, states, counts, and what is not
done yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from sparkstorm.common.errors import NotAliveError
from sparkstorm.common.model.assignment import TaskInfo
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.tasks import cell_by_task, tasks_by_component
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.common.model.values.metric_values import merged as merged_metrics
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.slot_machine import LocalAssignment
from sparkstorm.control_plane.supervisor.supervisor import part_of
from sparkstorm.data_plane.transport.base import START, entry_order
from sparkstorm.data_plane.transport.local import LocalStore, TaskKeys
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.data_plane.transport.progress import Progress, TaskCounts, merge
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.extensions.cells.cells_reader import CellsReader
from sparkstorm.testing.sim_data import TopologyData
from sparkstorm.testing.sim_slot import SimSlot
from sparkstorm.testing.sim_transport import Arrivals

_GAUGES = {"component", "token", "is_exhausted", "is_waiting", "total", "done"}
_SUMMED = [field.name for field in fields(TaskCounts) if field.name not in _GAUGES]


class MomentReader(LocalReader):
    """Reader for a sampler: between two steps of a simulation nothing is committed."""

    is_one_moment = True

    def newest_step(self) -> int:
        """Return the number of the store's newest write."""
        return self._store.history.step

    def progress_and_backlog(self) -> tuple[dict[str, bytes], dict[int, int]]:
        """Return both as of one moment."""
        return self.progress(), self.backlog()


def unconsumed(stores: Sequence[LocalStore], cells: Mapping[int, int]) -> list[LocalStore]:
    """Return the stores of a topology's cells with what waits in them; the entries that cells have
    consumed from each other, and which stay a while, are left out. `cells`: the cell of each task.
    """
    if len(stores) == 1:
        return list(stores)
    views = []
    for cell, store in enumerate(stores):
        view = LocalStore()
        for task, keys in store.task_keys.items():
            home = cells.get(task, cell)
            if home == cell:
                view.task_keys[task] = keys
                continue
            cursor = stores[home].task(task).foreign.get(cell, START)
            done = entry_order(cursor.entry)[0]
            stream = [pair for pair in keys.stream if pair[0] > done]
            view.task_keys[task] = TaskKeys(stream=stream, cursor=cursor)
        views.append(view)
    return views


class LocalTopology:
    """View of one topology of a simulated cluster."""

    def __init__(
        self,
        topology_id: str,
        name: str,
        state: StormState,
        data: Callable[[str], Sequence[TopologyData]],
        slots: Sequence[SimSlot],
    ) -> None:
        self.id = topology_id
        self.name = name
        self._state = state
        self._data = data
        self.slots = slots
        table = state.read_tasks(topology_id)
        self.info_by_task: Mapping[int, TaskInfo] = table.info_by_task if table else {}
        self.component_by_task = {
            task: info.component_id for task, info in self.info_by_task.items()
        }

    @property
    def data(self) -> TopologyData:
        """Its part of the simulated Redis, or that of its first cell."""
        return self.parts[0]

    @property
    def parts(self) -> Sequence[TopologyData]:
        """Its parts of the simulated Redis, one for each cell."""
        return self._data(self.id)

    @property
    def cells(self) -> Mapping[int, int]:
        """Return the cell of each task."""
        return cell_by_task(self.component_by_task, len(self.parts))

    def reader(self) -> MomentReader | CellsReader:
        """Return what a client would read its data with."""
        readers = [MomentReader(part.store) for part in self.parts]
        if len(readers) == 1:
            return readers[0]
        names = [str(cell) for cell in range(len(readers))]
        return CellsReader(readers, names, lambda: self.component_by_task)

    @property
    def store(self) -> LocalStore:
        """Return what Redis would hold, that of its first cell where it has several."""
        return self.data.store

    @property
    def stores(self) -> list[LocalStore]:
        """Return what the Redis of each cell would hold."""
        return [part.store for part in self.parts]

    @property
    def arrivals(self) -> Arrivals:
        """Frames on their way."""
        return self.data.arrivals

    @property
    def activity(self) -> int:
        """A number that grows with every step in which anything was emitted or sent."""
        return sum(part.activity for part in self.parts)

    @property
    def errors(self) -> list[Failure]:
        """Return what its components have reported or raised."""
        return [error for part in self.parts for error in part.errors]

    @property
    def is_active(self) -> bool:
        """Return whether its spouts may emit."""
        base = self._state.read_base(self.id)
        return base is not None and base.status in (
            TopologyStatus.ACTIVE,
            TopologyStatus.UPGRADING,
            TopologyStatus.ROLLBACK,
        )

    @property
    def workers(self) -> list[SimSlot]:
        """Slots that its assignment names, each with the worker of the moment."""
        assignment = self._state.read_assignment(self.id)
        wanted = set(assignment.slot_by_executor.values()) if assignment else set()
        return [slot for slot in self.slots if slot.slot in wanted]

    def is_placed(self) -> bool:
        """Return whether every slot matches the assignment, and no other slot has a worker of this
        topology.
        """
        assignment = self._state.read_assignment(self.id)
        return all(
            self._has_what_is_wanted(slot, part_of(assignment, slot.slot) if assignment else None)
            for slot in self.slots
        )

    def _has_what_is_wanted(self, slot: SimSlot, wanted: LocalAssignment | None) -> bool:
        machine = slot.machine
        sync = slot.sync
        process = slot.process
        if wanted is None:
            return slot.worker is None or slot.topology_id != self.id
        if machine is None or sync is None or process is None or sync.is_woken:
            return False
        is_up_to_date = sync.wish is not None and replace(sync.wish.assignment, turn=0) == wanted
        return is_up_to_date and machine.is_settled and process.is_obedient

    def tasks_at(self, slot: SimSlot) -> list[int]:
        """Tasks that the assignment gives to a slot."""
        assignment = self._state.read_assignment(self.id)
        executors = assignment.executors_at(slot.slot) if assignment else ()
        return sorted(task for executor in executors for task in executor.tasks)

    def worker_of(self, component: str) -> SimSlot:
        """The slot that runs a component's first task; KeyError names the components there are."""
        tasks = tasks_by_component(self.component_by_task)
        if component not in tasks:
            raise KeyError(f"there is no component '{component}', only {', '.join(tasks)}")
        worker_slot = next(
            (slot for slot in self.workers if tasks[component][0] in self.tasks_at(slot)), None
        )
        if worker_slot is None:
            raise NotAliveError(
                f"topology {self.name}: task {tasks[component][0]} of '{component}' has no slot now"
            )
        return worker_slot

    def states(self, component: str) -> dict[int, dict[Any, Any]]:
        """Return the key-value state of each of a component's tasks; KeyError when there is no such
        component.
        """
        tasks = tasks_by_component(self.component_by_task)
        if component not in tasks:
            raise KeyError(f"there is no component '{component}', only {', '.join(tasks)}")
        bolts = [
            (task, bolt)
            for slot in self.workers
            if slot.worker is not None and slot.topology_id == self.id
            for task, bolt in slot.worker.task_set.bolts.items()
        ]
        return {
            task: dict(b.state.items())
            for task, b in sorted(bolts)
            if b.component == component and b.state is not None
        }

    def counts(self, component: str) -> TaskCounts:
        """A component's counts over all tasks, as committed."""
        total = TaskCounts(component)
        for counts in self.progress().counts_by_task.values():
            if counts.component == component:
                for name in _SUMMED:
                    setattr(total, name, getattr(total, name) + getattr(counts, name))
        return total

    def metrics(self, component: str) -> dict[str, MetricValue]:
        """Return metrics of a component's code by name, over all tasks, as committed; of gauges the
        last task's.
        """
        progress = self.progress()
        own = sorted(
            task
            for task, counts in progress.counts_by_task.items()
            if counts.component == component
        )
        return merged_metrics(progress.metrics_by_task.get(task, {}) for task in own)

    def progress(self) -> Progress:
        """All workers' committed counts as one."""
        return merge(
            Progress.decode(data)
            for store in self.stores
            for data in store.progress_by_owner.values()
        )

    def dead_letters(self) -> list[DeadLetter]:
        """Inputs that were given up."""
        return [
            DeadLetter.decode(self.data.codec, data)
            for store in self.stores
            for _, data in LocalReader(store).parked(10_000)
        ]

    def waiting(self) -> list[str]:
        """Return what is not done yet, a phrase each."""
        phrases = (
            [] if self.is_placed() else ["the control plane: a slot has not what it is to have"]
        )
        phrases += [phrase for slot in self.workers for phrase in _waiting_in(slot)]
        return phrases + [
            f"{len(keys.stream)} frames in the stream of task {task}"
            for store in unconsumed(self.stores, self.cells)
            for task, keys in store.task_keys.items()
            if keys.stream
        ]


def _inputs_of(bolt: BoltTask) -> str:
    held = bolt.held.num_kept()
    name = f"{bolt.component}#{bolt.task}"
    return (
        f"{counted(held, 'input')} of {name} that it has neither acked nor failed"
        if held > 0
        else f"inputs of {name}"
    )


def _waiting_in(slot: SimSlot) -> list[str]:
    """Return what is open in a slot's worker, a phrase each."""
    worker = slot.worker
    if worker is None:
        cause = slot.host.failure if slot.host is not None else None
        return [f"worker {slot.slot} is down" + (f": {cause}" if cause else "")]
    task_set = worker.task_set
    phrases = [] if worker.is_settled else [f"a commit of {slot.slot}"]
    phrases += [
        f"{counted(len(s.pending), 'tree')} of {s.component}#{t}"
        for t, s in task_set.spouts.items()
        if not s.pending.idle
    ]
    phrases += [_inputs_of(bolt) for bolt in task_set.bolts.values() if bolt.is_waiting]
    return phrases + [
        f"frames for task {t}" for t, inbox in task_set.inboxes.items() if inbox.chunks
    ]
