"""SimTopology: one topology of a simulated cluster, with its code, store, assignment and workers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from sparkstorm.api.windows import check_times
from sparkstorm.blobs.topology_code import open_topology, pack_topology
from sparkstorm.checkpoint.files import read_checkpoint
from sparkstorm.checkpoint.restore import Seeds
from sparkstorm.errors import InvalidTopologyError
from sparkstorm.model.assignment import Assignment, TopologyBase, WorkerSlot
from sparkstorm.model.codec import Codec
from sparkstorm.model.dead_letter import DeadLetter
from sparkstorm.model.normalise import normalise_topology
from sparkstorm.model.outline import outline_of
from sparkstorm.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.model.tasks import tasks_by_component
from sparkstorm.model.topology import Topology, validate
from sparkstorm.model.worker_messages import ComponentError
from sparkstorm.recording.recorder import check_recorded
from sparkstorm.scheduling.snapshot import KnownTopology
from sparkstorm.supervisor.poison_detector import PoisonDetector
from sparkstorm.testing.sim_transport import Arrivals
from sparkstorm.testing.sim_worker import MakeTransport, SimWorker
from sparkstorm.testing.simulation import Simulation
from sparkstorm.transport.local import LocalReader, LocalSeeding, LocalStore
from sparkstorm.worker.progress import Progress, TaskCounts, merge
from sparkstorm.worker.tasks.task_factory import WorkerPlan

_GAUGES = {"component", "token", "is_exhausted", "is_waiting", "total", "done"}
_SUMMED = [field.name for field in fields(TaskCounts) if field.name not in _GAUGES]


class SimTopology:
    """A topology in the simulated cluster."""

    def __init__(
        self,
        id: str,
        name: str,
        topology: Topology,
        conf: Mapping[str, Any],
        simulation: Simulation,
        store_max_bytes: int | None = None,
        make_transport: MakeTransport | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        validate(topology)
        check_recorded(topology, conf)
        seeds = None if checkpoint is None else Seeds.of(read_checkpoint(checkpoint), topology)
        topology = topology if seeds is None else seeds.topology
        self.id = id
        self.name = name
        self.conf = dict(conf)
        self.store = LocalStore(store_max_bytes)
        self.activity = 0  # grows with every step in which anything was emitted or sent
        self.launches_by_slot: dict[WorkerSlot, int] = {}
        self.arrivals = Arrivals(self.store)
        self.errors: list[ComponentError] = []
        self.is_active = True
        self.patience_secs = 5.0
        self.assignment: Assignment | None = None
        self.worker_by_slot: dict[WorkerSlot, SimWorker] = {}
        self._simulation = simulation
        self._make_transport = make_transport
        self._codec = Codec()
        whole = normalise_topology(topology, self.conf)
        check_times(whole)
        self._outline = outline_of(whole, self.conf)
        self._submitted = topology  # keeps alive what components made for tests refer to
        code = pack_topology(whole)
        key = hashlib.sha256(code).hexdigest()
        self._topology, self._make_instance = open_topology(code, key)
        workers = int(self.conf["topology.workers"])
        executors = self._outline.executors_by_component
        for task, entries in () if seeds is None else seeds.journals(self.component_by_task):
            LocalSeeding(self.store).sow(task, entries)
        self._base = TopologyBase(id, name, simulation.clock.now_ms(), TopologyStatus.ACTIVE, workers, executors, key, "")

    @property
    def workers(self) -> list[SimWorker]:
        """Its workers, by slot."""
        return [self.worker_by_slot[slot] for slot in sorted(self.worker_by_slot)]

    @property
    def component_by_task(self) -> Mapping[int, str]:
        """The component of each task, ackers included."""
        return self._outline.component_by_task

    # -- placing ---------------------------------------------------------------------------------------------------

    def known(self) -> KnownTopology:
        """The topology as a scheduling round reads it."""
        return KnownTopology(self._base, self._outline, self.conf)

    def resize(self, options: RebalanceOptions) -> None:
        """Take over a rebalance's numbers; executors stay between one and a component's tasks."""
        tasks = tasks_by_component(self.component_by_task)
        for component, wanted in options.executors_by_component.items():
            if not 1 <= wanted <= len(tasks.get(component, ())):
                has = len(tasks.get(component, ()))
                raise InvalidTopologyError(f"rebalance: '{component}' has {has} tasks, so not {wanted} executors")
        executors = {**self._base.executors_by_component, **options.executors_by_component}
        workers = options.num_workers or self._base.num_workers
        self._base = replace(self._base, num_workers=workers, executors_by_component=executors)

    def assign(self, assignment: Assignment) -> None:
        """Stop the workers that the assignment takes tasks from, then start what it adds."""
        self.assignment = assignment
        wanted = {
            slot: {e: assignment.placed_version_by_executor[e] for e in executors}
            for slot, executors in assignment.executors_by_slot().items()
        }
        for slot, worker in list(self.worker_by_slot.items()):
            if wanted.get(slot) != worker.version_by_executor:
                self.worker_by_slot.pop(slot).stop()
        for slot in sorted(wanted.keys() - self.worker_by_slot.keys()):
            self.start_worker(slot, wanted[slot])

    def start_worker(self, slot: WorkerSlot, version_by_executor: Mapping[Any, int]) -> SimWorker:
        """Put a worker on a slot and start it now."""
        worker = SimWorker(self, slot, version_by_executor, self._simulation, self._make_transport)
        self.worker_by_slot[slot] = worker
        worker.start()
        self._simulation.add(worker)
        return worker

    def plan(self, slot: WorkerSlot, tokens: Mapping[int, int], suspicion: PoisonDetector) -> WorkerPlan:
        """What the worker on that slot is to run; values are checked at every emit, as on the way to another process."""
        return WorkerPlan(
            self.id,
            self._topology,
            self.component_by_task,
            tuple(tokens),
            str(slot),
            dict(tokens),
            self.conf,
            self._make_instance,
            self._codec,
            is_strict=True,
            is_careful=suspicion.careful,
            deaths_by_row=suspicion.deaths_by_row,
        )

    def set_active(self, is_active: bool) -> None:
        """Let spouts emit or rest."""
        self.is_active = is_active
        for worker in self.workers:
            if worker.worker is not None:
                worker.worker.set_active(is_active)
            self._simulation.wake(worker)

    def stop(self) -> None:
        """Stop every worker in an orderly way."""
        for worker in self.workers:
            worker.stop()
        self.worker_by_slot.clear()

    # -- looking ---------------------------------------------------------------------------------------------------

    def worker_of(self, component: str) -> SimWorker:
        """The worker that runs a component's first task; KeyError names the components there are."""
        tasks = tasks_by_component(self.component_by_task)
        if component not in tasks:
            raise KeyError(f"there is no component '{component}', only {', '.join(tasks)}")
        return next(worker for worker in self.workers if tasks[component][0] in worker.tasks)

    def states(self, component: str) -> dict[int, dict[Any, Any]]:
        """Return the key-value state of each of a component's tasks; KeyError when there is no such component."""
        self.worker_of(component)
        return dict(sorted((task, state) for worker in self.workers for task, state in worker.states(component).items()))

    def counts(self, component: str) -> TaskCounts:
        """A component's counts over all tasks, as committed."""
        total = TaskCounts(component)
        for counts in self.progress().counts_by_task.values():
            if counts.component == component:
                for name in _SUMMED:
                    setattr(total, name, getattr(total, name) + getattr(counts, name))
        return total

    def progress(self) -> Progress:
        """All workers' committed counts as one."""
        return merge(Progress.decode(data) for data in self.store.progress_by_owner.values())

    def dead_letters(self) -> list[DeadLetter]:
        """Inputs that were given up."""
        return [DeadLetter.decode(self._codec, data) for _, data in LocalReader(self.store).parked(10_000)]

    def waiting(self) -> list[str]:
        """What is not done yet, a phrase each."""
        found = [phrase for worker in self.workers for phrase in worker.waiting()]
        return found + [
            f"{len(keys.stream)} frames in the stream of task {task}" for task, keys in self.store.task_keys.items() if keys.stream
        ]
