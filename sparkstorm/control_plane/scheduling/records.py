"""Read-only records for schedulers: Storm's TopologyDetails, Component and SupervisorDetails (S4.2,
S4.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.measured.measurements import HostLoad, Measurements


@dataclass(frozen=True, slots=True)
class InputView:
    """One subscription of a component."""

    component: str
    stream: str = "default"
    grouping: str = "shuffle"


@dataclass(frozen=True, slots=True)
class ComponentView:
    """A component with its executors; kind is "spout", "bolt" or "system"."""

    id: str
    kind: str
    executors: tuple[ExecutorId, ...]
    conf: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[InputView, ...] = ()

    @property
    def is_system(self) -> bool:
        """Return whether the platform added it (an id beginning with two underscores)."""
        return self.kind == "system" or self.id.startswith("__")


@dataclass(frozen=True, slots=True)
class TopologyView:
    """A topology as schedulers see it (Storm's TopologyDetails); the caller measures
    `uptime_ms`.
    """

    id: str
    name: str
    components: tuple[ComponentView, ...]
    num_workers: int = 1
    owner: str = ""
    uptime_ms: int = 0
    conf: Mapping[str, Any] = field(default_factory=dict)
    # where it lies in several stores: no worker has tasks of two cells
    cell_by_task: Mapping[int, int] = field(default_factory=dict)
    # None: its scheduler did not ask for it, or it has not run for long enough
    measured: Measurements | None = None
    executors: tuple[ExecutorId, ...] = field(init=False)
    component_by_executor: Mapping[ExecutorId, str] = field(init=False)

    def __post_init__(self) -> None:
        """Index the executors; components in the order of their ids, executors by first task."""
        ordered = tuple(sorted(self.components, key=lambda component: component.id))
        by_executor = {executor: part.id for part in ordered for executor in part.executors}
        object.__setattr__(self, "components", ordered)
        object.__setattr__(self, "component_by_executor", by_executor)
        object.__setattr__(self, "executors", tuple(sorted(by_executor)))

    def cell_of(self, executor: ExecutorId) -> int:
        """Return the cell of an executor; of one that the topology had before a rebalance too."""
        return self.cell_by_task.get(executor.first_task, 0)

    def component(self, component_id: str) -> ComponentView:
        """Return the component of that id; KeyError when there is none."""
        for part in self.components:
            if part.id == component_id:
                return part
        raise KeyError(component_id)


@dataclass(frozen=True, slots=True)
class SupervisorView:
    """A living supervisor with its ports, dead ones excluded (Storm's SupervisorDetails)."""

    id: str
    host: str
    ports: tuple[int, ...]
    rack: str | None = None
    uptime_ms: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    measured: HostLoad | None = None


Conf: TypeAlias = Mapping[str, Any]
Topologies: TypeAlias = Mapping[str, TopologyView]
