"""Records of autoscaling: the measured load of a topology, the bounds of a plan, the plan. PURE.

Rates are rows per second, loads are shares of a core or of an executor's time (1.0 is all of it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.common.settings import AutoscaleSettings


# A tuple: made by the dozen for each look.
class TaskWork(NamedTuple):
    """One task: the rows that it executes, a source's that it emits."""

    task: int
    executor: int  # its first task
    worker: str
    rows_per_s: float
    busy: float  # share of time in its code, waiting included
    cpu: float  # of a core, its share of the worker's commits and reads included
    core: float  # for which no other task of its worker can run, waiting included

    @property
    def useful(self) -> float:
        """Return DS2's useful time: what the task cannot spend on more rows."""
        return max(self.busy, self.cpu)


@dataclass(frozen=True, slots=True)
class Source:
    """Arrivals and backlog of a component without inputs."""

    arrived_per_s: float  # rows
    backlog: float = 0.0  # rows that it has not read
    held: float = 0.0  # share of time in which it was not allowed to emit
    knows_backlog: bool = True
    is_exhausted: bool = False


# without slots: sums are kept with it
@dataclass(frozen=True)
class ComponentLoad:
    """One component of users; `inputs` are rows per second by sender."""

    id: str
    tasks: tuple[TaskWork, ...]
    inputs: Mapping[str, float] = field(default_factory=dict)
    waiting: float = 0.0  # rows before it
    is_keyed: bool = False
    source: Source | None = None

    @cached_property
    def rows_per_s(self) -> float:
        """Return its rate."""
        return sum(task.rows_per_s for task in self.tasks)

    @cached_property
    def useful(self) -> float:
        """Return the useful time of all its tasks."""
        return sum(task.useful for task in self.tasks)

    @cached_property
    def cores(self) -> float:
        """Return the time of its workers that it takes."""
        return sum(task.core for task in self.tasks)

    @cached_property
    def executors(self) -> Mapping[int, float]:
        """Return the useful time of each executor."""
        loads: dict[int, float] = {}
        for task in self.tasks:
            loads[task.executor] = loads.get(task.executor, 0.0) + task.useful
        return loads

    @property
    def true_rate(self) -> float | None:
        """Return the rows per second of useful time, which is what one executor could do; None
        where nothing was measured.
        """
        if self.rows_per_s <= 0.0 or self.useful <= 0.0:
            return None
        return self.rows_per_s / self.useful


@dataclass(frozen=True, slots=True)
class TopologyLoad:
    """A topology over the last minutes."""

    components: tuple[ComponentLoad, ...]
    workers: int
    slots: int  # that it may use, its own included
    system_cpu: float = 0.0  # cores of ackers and other parts of the platform
    settled_ms: int = 0  # since its executors were placed
    cells: int = 1  # stores that it lies in, each with a worker and executors of its own


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a plan: workers, the band of utilisation, and the time for a backlog."""

    min_workers: int = 1
    max_workers: int | None = None
    low: float = 0.4
    high: float = 0.8
    catch_up_s: float = 600.0

    @classmethod
    def of(cls, settings: AutoscaleSettings) -> Bounds:
        """Return the limits that a topology's settings give."""
        return cls(
            settings.min_workers,
            settings.max_workers,
            settings.low,
            settings.high,
            settings.catch_up_ms / 1000,
        )

    @property
    def target(self) -> float:
        """Return the utilisation that a change aims at."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class ComponentPlan:
    """One component's line of a plan."""

    id: str
    rows_per_s: float
    true_rate: float | None
    busy: float  # mean useful time of its executors
    wanted_per_s: float
    executors: int
    wanted: int
    why: str
    bottleneck: str = ""  # why more executors would not raise its rate


@dataclass(frozen=True, slots=True)
class Plan:
    """Executors and workers that a topology should have; nothing changes where they are the same
    as now.
    """

    components: tuple[ComponentPlan, ...]
    workers: int
    wanted_workers: int
    why: str  # of the workers
    shortage: str = ""  # why it gets fewer workers than it needs

    @property
    def is_change(self) -> bool:
        """Return whether anything is to be changed."""
        return self.workers != self.wanted_workers or any(
            part.executors != part.wanted for part in self.components
        )

    def options(self) -> RebalanceOptions:
        """Return the rebalance that carries it out."""
        executors = {
            part.id: part.wanted for part in self.components if part.wanted != part.executors
        }
        workers = self.wanted_workers if self.wanted_workers != self.workers else None
        return RebalanceOptions(workers, executors)

    def sentence(self) -> str:
        """Return it in one sentence."""
        changes = [
            f"{part.id} {part.executors} -> {part.wanted}"
            for part in self.components
            if part.executors != part.wanted
        ]
        if self.workers != self.wanted_workers:
            changes.insert(0, f"workers {self.workers} -> {self.wanted_workers}")
        named = [part.bottleneck for part in self.components if part.bottleneck]
        text = f"scale {', '.join(changes)}" if changes else "it has what it needs"
        return "; ".join([text, *named, *([self.shortage] if self.shortage else [])])
