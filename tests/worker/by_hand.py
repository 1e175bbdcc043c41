"""Real workers over the in-process store, claimed and stepped by hand: for tests that need one
order of commits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sparkstorm.clock import SimClock
from sparkstorm.config import default_conf, merge
from sparkstorm.model.failure import Failure
from sparkstorm.model.tasks import number_tasks, tasks_by_component
from sparkstorm.model.topology import Topology
from sparkstorm.model.worker_messages import SetStatus
from sparkstorm.transport.local import LocalStore, LocalTransport
from sparkstorm.worker.epoch import RandomIds
from sparkstorm.worker.parts import WorkerParts
from sparkstorm.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.worker.worker import Worker


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
        self, topology: Topology, conf: Mapping[str, Any], start_ms: int = 1_767_225_600_000
    ) -> None:
        self.topology, self.conf = topology, merge(default_conf(), conf)
        self.clock, self.store, self.said = SimClock(start_ms), LocalStore(), Said()
        self.component_by_task = number_tasks(topology, self.conf)
        self.tasks = tasks_by_component(self.component_by_task)
        self._token = 0

    def claim(self, owner: str, components: Collection[str]) -> Worker:
        """Start a worker with all tasks of these components."""
        self._token += 1
        tasks = tuple(sorted(task for component in components for task in self.tasks[component]))
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
            WorkerParts(
                plan, LocalTransport(self.store), self.clock, RandomIds(self._token), self.said
            )
        )
        worker.follow(SetStatus("ACTIVE"))
        return worker

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
