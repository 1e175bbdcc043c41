"""Measurements of a running topology and of a host, as schedulers see them. PURE.

A scheduler asks for them by a class attribute, `wants_measurements = True`; for all others nothing
is read. The record has a version, since cluster files keep it: a reader of another one refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkstorm.common.model.assignment import ExecutorId

VERSION = 1


@dataclass(frozen=True, slots=True)
class Flow:
    """Rows of one stream of a component to a component."""

    component: str
    stream: str
    receiver: str
    rows_per_s: float
    # What the rows would be in the store if all of them left their worker; rows that stay in it
    # have no bytes, so this does not depend on where the executors are.
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """One task; CPU and memory are the shares that it has of its worker's."""

    emitted_per_s: float = 0.0
    executed_per_s: float = 0.0
    busy: float = 0.0  # share of time in its code
    cpu: float = 0.0  # percent of a core
    memory_mb: float | None = None  # None: its worker's is not known


@dataclass(frozen=True, slots=True)
class Measurements:
    """One topology over the last `window_ms`; counts and bytes are exact, as commits have written
    them.
    """

    flows: tuple[Flow, ...] = ()
    tasks: Mapping[int, TaskLoad] = field(default_factory=dict)
    window_ms: int = 0
    # since an executor was placed last: for so long this placement has been what was measured
    settled_ms: int = 0
    written_per_s: float = 0.0  # bytes that workers have written into the store for each other
    version: int = VERSION

    def load(self, executor: ExecutorId) -> TaskLoad:
        """Return the load of an executor: the sum over those of its tasks that are known."""
        # An executor of a cluster file may claim two thousand million tasks.
        is_short = len(executor.tasks) <= len(self.tasks)
        tasks = executor.tasks if is_short else sorted(self.tasks)
        loads = [
            self.tasks[task] for task in tasks if task in self.tasks and task in executor.tasks
        ]
        if len(loads) == 1:
            return loads[0]
        memory = [load.memory_mb for load in loads if load.memory_mb is not None]
        return TaskLoad(
            sum(load.emitted_per_s for load in loads),
            sum(load.executed_per_s for load in loads),
            sum(load.busy for load in loads),
            sum(load.cpu for load in loads),
            sum(memory) if memory else None,
        )


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Processors of a host that a supervisor may use, and the share of their time that the
    hypervisor gave to others (0 to 1).
    """

    cores: float
    steal: float = 0.0

    @property
    def cpu(self) -> float:
        """Return what they can do, in percent of a core."""
        return 100.0 * self.cores * (1.0 - self.steal)
