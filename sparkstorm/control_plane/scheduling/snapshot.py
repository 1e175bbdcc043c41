"""Input and result of a scheduling round: Snapshot and Plan. PURE."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from sparkstorm.common.model.assignment import (
    Assignment,
    ExecutorId,
    SupervisorInfo,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import HostMark
from sparkstorm.common.model.tasks import compute_executors
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements

Placed = Mapping[ExecutorId, WorkerSlot]


@dataclass(frozen=True, slots=True)
class KnownTopology:
    """A topology from its records; `conf` is the topology's configuration over the cluster's."""

    base: TopologyBase
    outline: TopologyOutline
    conf: Mapping[str, Any]

    def executors(self) -> list[ExecutorId]:
        """Return the executors that the topology should have."""
        return compute_executors(
            self.outline.component_by_task, self.base.executors_by_component, len(self.base.stores)
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Input of a round; `reserved` slots belong to topologies whose records cannot be read."""

    topologies: Mapping[str, KnownTopology]
    assignments: Mapping[str, Assignment]
    supervisors: Mapping[str, SupervisorInfo]
    reserved: Set[WorkerSlot] = frozenset()
    # of a former topology of the name, by the new id
    backups: Mapping[str, Assignment] = field(default_factory=dict)
    marks: Mapping[str, HostMark] = field(default_factory=dict)  # of excluded and drained hosts
    beats: tuple[WorkerBeat, ...] = ()
    # of topologies whose schedulers ask
    measured: Mapping[str, Measurements] = field(default_factory=dict)

    def open_slots(self) -> set[WorkerSlot]:
        """Return the slots of living supervisors whose hosts are not excluded, used or not."""
        offering = [
            supervisor
            for supervisor in self.supervisors.values()
            if supervisor.host not in self.marks
        ]
        return {
            WorkerSlot(supervisor.supervisor_id, port)
            for supervisor in offering
            for port in supervisor.ports
        }


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Assignments to write, and the scheduler's status of each topology."""

    assignments: tuple[Assignment, ...] = ()
    placed: Mapping[str, Placed] = field(default_factory=dict)
    status: Mapping[str, str] = field(default_factory=dict)
    # topologies that the scheduler refused to place, with the reason
    refused: Mapping[str, str] = field(default_factory=dict)
    blacklisted_hosts: Set[str] = frozenset()
