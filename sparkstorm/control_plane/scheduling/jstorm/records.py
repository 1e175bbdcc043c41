"""Records of JStorm's scheduler: the input of one topology's assignment, and its workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sparkstorm.common.model.topology import ACKER
from sparkstorm.common.model.topology import MASTER as MASTER
from sparkstorm.control_plane.scheduling.records import Conf, InputView

SYSTEM = frozenset({ACKER, MASTER})


class AssignType(StrEnum):
    """Reason for which an assignment is made (JStorm's TopologyAssignContext)."""

    NEW = "NEW"
    REBALANCE = "REBALANCE"
    MONITOR = "MONITOR"


@dataclass(frozen=True, slots=True)
class SupervisorPorts:
    """A living supervisor that is not blacklisted: all its ports, and the free ones (S0.77)."""

    id: str
    host: str
    ports: tuple[int, ...]
    available: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JStormComponent:
    """A component, system ones included, with its parallelism."""

    id: str
    kind: str
    parallelism: int
    conf: Conf = field(default_factory=dict)
    inputs: tuple[InputView, ...] = ()

    @property
    def is_system(self) -> bool:
        """Return whether its tasks are placed last."""
        return self.kind == "system" or self.id in SYSTEM


@dataclass(frozen=True, slots=True)
class PlannedWorker:
    """A worker with its tasks; memory in bytes, cpu in slots (JStorm's ResourceWorkerSlot)."""

    node: str
    host: str
    port: int
    tasks: frozenset[int]
    memory_bytes: int = 0
    cpu: int = 0
    jvm: str | None = None

    @property
    def order(self) -> tuple[str, int, str]:
        """Sort key: host, port, then node: two supervisors of a host may have the same port."""
        return (self.host, self.port, self.node)


@dataclass(frozen=True, slots=True)
class AssignContext:
    """Input of one assignment (S0.74-S0.80); `conf` is Nimbus's overlaid by the topology's."""

    topology_id: str
    assign_type: AssignType
    components: tuple[JStormComponent, ...]
    supervisors: tuple[SupervisorPorts, ...]
    component_by_task: Mapping[int, str]
    conf: Conf = field(default_factory=dict)
    is_reassign: bool = False
    old_workers: tuple[PlannedWorker, ...] = ()
    dead_tasks: frozenset[int] = frozenset()
    unstopped_tasks: frozenset[int] = frozenset()
    # filled with the reasons, if set
    reason_by_task: dict[int, str] | None = field(default=None, compare=False)


def flag(conf: Conf, key: str) -> bool | None:
    """Return a boolean setting, which JStorm's files also write as text; None when it is not
    set.
    """
    value = conf.get(key)
    return None if value is None else str(value).lower() == "true"


def give_task_ids(components: tuple[JStormComponent, ...]) -> dict[int, str]:
    """Return components by task id from 1: bolts, then spouts, each in the order listed; system
    components are bolts.
    """
    bolts = [part for part in components if part.kind != "spout"]
    spouts = [part for part in components if part.kind == "spout"]
    names = [part.id for part in [*bolts, *spouts] for _ in range(part.parallelism)]
    return dict(enumerate(names, start=1))
