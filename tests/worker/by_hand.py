"""Real workers over the in-process store, claimed and stepped by hand: for tests that need one
order of commits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from sparkstorm.common.clock import SimClock
from sparkstorm.common.config import default_conf, merge
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.tasks import number_tasks, tasks_by_component
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.worker_messages import SetStatus
from sparkstorm.data_plane.transport.base import Transport
from sparkstorm.data_plane.transport.local import LocalStore, LocalTransport
from sparkstorm.data_plane.worker.epoch import RandomIds
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.data_plane.worker.worker import Worker
from sparkstorm.extensions.cells.cells import CellsTransport
from sparkstorm.extensions.cells.local_foreign import LocalForeign


class Said:
    """A worker's Reporter that keeps the errors."""

    def __init__(self) -> None:
        self.errors: list[Failure] = []

    def trying(self, task: int, entry: str, row: int) -> None:
        pass

    def passed(self) -> None:
        pass

    def error(self, failure: Failure) -> None:
        self.errors.append(failure)


class Workers:
    """Workers of one topology; each claim makes a new process, and what was claimed before is
    fenced off.
    """

    def __init__(
        self,
        topology: Topology,
        conf: Mapping[str, Any],
        start_ms: int = 1_767_225_600_000,
        cells: int = 1,
    ) -> None:
        self.topology, self.conf = topology, merge(default_conf(), conf)
        self.clock, self.said = SimClock(start_ms), Said()
        self.stores = [LocalStore() for _ in range(cells)]
        self.store = self.stores[0]
        self.away: set[int] = set()  # cells whose stores other cells do not reach
        self.component_by_task = number_tasks(topology, self.conf)
        self.tasks = tasks_by_component(self.component_by_task)
        self._token = 0

    def claim(self, owner: str, components: Collection[str]) -> Worker:
        """Start a worker with all tasks of these components."""
        tasks = sorted(task for component in components for task in self.tasks[component])
        return self.claim_tasks(owner, tasks)

    def claim_tasks(self, owner: str, chosen: Collection[int], cell: int = 0) -> Worker:
        """Start a worker with these tasks, in that cell."""
        self._token += 1
        tasks = tuple(chosen)
        plan = WorkerPlan(
            "t-1-1",
            self.topology,
            self.component_by_task,
            tasks,
            owner,
            dict.fromkeys(tasks, self._token),
            self.conf,
            lambda component: copy.deepcopy(self.topology.components[component].instance),
        )
        worker = Worker(
            WorkerParts(plan, self._transport(cell), self.clock, RandomIds(self._token), self.said)
        )
        worker.follow(SetStatus("ACTIVE"))
        return worker

    def _transport(self, cell: int) -> Transport:
        own = LocalTransport(self.stores[cell])
        others = {
            each: LocalForeign(store, each, partial(self.away.__contains__, each))
            for each, store in enumerate(self.stores)
            if each != cell
        }
        return CellsTransport("t-1-1", own, others, self.clock.now_ms) if others else own

    def keys(self, component: str) -> Any:
        """Return what the store keeps of a component's first task."""
        return self.store.task(self.tasks[component][0])

    def step(self, *workers: Worker, times: int = 1) -> None:
        """Step each in turn, a millisecond apart."""
        for _ in range(times):
            for worker in workers:
                self.clock.advance(1)
                worker.step(self.clock.now_ms())

    def step_until(self, is_done: Callable[[], object], *workers: Worker, most: int = 1000) -> None:
        """Step each in turn until `is_done`; AssertionError after `most` turns: 100 entries take
        more than 100.
        """
        for _ in range(most):
            if is_done():
                return
            self.step(*workers)
        raise AssertionError(f"it is not done after {most} turns")
