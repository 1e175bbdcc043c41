"""Records of the control plane: assignments, slots of supervisors, requested sizes of topologies,
heartbeats.

Everything here is stored in the state store (ZooKeeper) by control_plane/cluster/storm_state.py through
common/model/records.py. Times are integers of milliseconds since the epoch on the writer's clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

from sparkstorm.common.model.status import ADDED_LATER, JsonValue, PendingAction, TopologyStatus


# Tuples rather than dataclasses: schedulers hash and sort hundreds of thousands of these.
class ExecutorId(NamedTuple):
    """A run of contiguous task ids of one component that shares one executor; written "1-3"."""

    first_task: int
    last_task: int

    @property
    def tasks(self) -> range:
        """Task ids of this executor."""
        return range(self.first_task, self.last_task + 1)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "first-last"; raise ValueError for anything else."""
        first, dash, last = text.partition("-")
        if not (
            dash and first.isdecimal() and last.isdecimal() and first.isascii() and last.isascii()
        ):
            raise ValueError(f'expected an executor such as "1-3", got {text[:60]!r}')
        executor = cls(int(first), int(last))
        if executor.first_task > executor.last_task:
            raise ValueError(f"an executor's first task may not exceed its last, got {text[:60]!r}")
        return executor

    def __str__(self) -> str:
        return f"{self.first_task}-{self.last_task}"


class WorkerSlot(NamedTuple):
    """Port of a supervisor, where one worker process can run; written "node:port", with the
    supervisor's id as node.
    """

    node: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "node:port"; raise ValueError for anything else."""
        node, _, port = text.rpartition(":")
        if not (node and port.isdecimal() and port.isascii()):
            raise ValueError(f'expected a slot such as "node:6700", got {text[:60]!r}')
        return cls(node, int(port))

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


class AssignmentKind(StrEnum):
    """Reason for which an assignment was written (after JStorm's AssignmentType)."""

    NEW = "NEW"
    REBALANCE = "REBALANCE"
    MONITOR = "MONITOR"
    UPDATE = "UPDATE"


@dataclass(frozen=True, slots=True)
class WorkerCode:
    """Code and configuration that a worker runs, as content addresses of blobs."""

    code_key: str
    conf_key: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Slot and code of each executor of one topology (after Storm's Assignment)."""

    topology_id: str
    # Given by Nimbus: every write that changes placement, code or conf increases it.
    version: int
    code_key: str  # content address of the code blob
    conf_key: str  # content address of the conf blob
    host_by_node: Mapping[str, str] = field(default_factory=dict)
    slot_by_executor: Mapping[ExecutorId, WorkerSlot] = field(default_factory=dict)
    start_ms_by_executor: Mapping[ExecutorId, int] = field(default_factory=dict)
    # The assignment version that put the executor on its present slot: the major part of its fence
    # token. Executors that a new assignment does not move keep theirs.
    placed_version_by_executor: Mapping[ExecutorId, int] = field(default_factory=dict)
    kind: AssignmentKind = AssignmentKind.NEW
    # Slots whose worker runs other code than `code_key` and `conf_key`, by a gray upgrade.
    code_by_slot: Mapping[WorkerSlot, WorkerCode] = field(default_factory=dict)

    def code_at(self, slot: WorkerSlot) -> WorkerCode:
        """Return the code and configuration of one slot's worker."""
        return self.code_by_slot.get(slot) or WorkerCode(self.code_key, self.conf_key)

    def blob_keys(self) -> set[str]:
        """Keys of the blobs that its workers need."""
        codes = (WorkerCode(self.code_key, self.conf_key), *self.code_by_slot.values())
        return {key for code in codes for key in (code.code_key, code.conf_key)}

    def executors_by_slot(self) -> dict[WorkerSlot, list[ExecutorId]]:
        """Return the executors by slot; slots and executors in sorted order."""
        return grouped_by_slot(
            sorted(self.slot_by_executor.items(), key=lambda pair: (pair[1], pair[0]))
        )

    def executors_at(self, slot: WorkerSlot) -> list[ExecutorId]:
        """Return the executors of one slot, sorted."""
        return sorted(
            executor for executor, placed in self.slot_by_executor.items() if placed == slot
        )


def grouped_by_slot(
    places: Iterable[tuple[ExecutorId, WorkerSlot]],
) -> dict[WorkerSlot, list[ExecutorId]]:
    """Return the executors of each slot, both in the order of their places."""
    executors_by_slot: dict[WorkerSlot, list[ExecutorId]] = {}
    for executor, slot in places:
        executors_by_slot.setdefault(slot, []).append(executor)
    return executors_by_slot


@dataclass(frozen=True, slots=True)
class TopologyBase:
    """Requested sizes and life-cycle status of a topology (Storm's StormBase)."""

    topology_id: str
    name: str
    launch_ms: int
    status: TopologyStatus
    num_workers: int
    executors_by_component: Mapping[str, int]
    code_key: str
    conf_key: str
    previous_status: TopologyStatus | None = None
    pending: PendingAction | None = None
    owner: str = ""
    # requests that activated it: a worker that pauses a component goes on at the next one
    activations: int = 0
    # grows with every change, so that an old record that is put back is recognised
    version: int = 0
    # why Nimbus deactivated it: most inputs of a component fail; empty when it did not
    paused: str = ""
    # name of the Redis that holds all its data, or those of its first cell; empty: the home store
    store: str = field(default="", metadata=ADDED_LATER)
    # names of the stores of its cells, in order, where it lies in several; empty: in `store` alone
    cells: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)

    @property
    def stores(self) -> tuple[str, ...]:
        """Return the names of all stores that hold data of it."""
        return self.cells or (self.store,)


@dataclass(frozen=True, slots=True)
class SupervisorInfo:
    """Slots and resources of one supervisor (S3.41); its node in the store is ephemeral."""

    supervisor_id: str
    host: str
    time_ms: int
    uptime_ms: int
    ports: tuple[int, ...]
    used_ports: tuple[int, ...] = ()
    resources: Mapping[str, float] = field(default_factory=dict)
    scheduler_meta: Mapping[str, JsonValue] = field(default_factory=dict)
    # why submitted code does not open here ("": it does) by blob key; None: never tried
    trials: Mapping[str, str] | None = None
    store_problem: str = ""  # why this host does not reach Redis; empty while it does
    store_away_ms: int = 0  # for how long, when the record was written
    # Why this host does not reach each of the cluster's other stores, by name; empty while it does.
    # Its keys are the stores in the configuration of the host's slots.
    other_stores: Mapping[str, str] = field(default_factory=dict, metadata=ADDED_LATER)
    # address of Spark's driver, and why this host does not reach it; empty while it does
    driver: str = field(default="", metadata=ADDED_LATER)
    driver_problem: str = field(default="", metadata=ADDED_LATER)
    # processors that its host's slots may use, and the share of their time that the hypervisor gave
    # to others; 0: not known
    cores: float = field(default=0.0, metadata=ADDED_LATER)
    steal: float = field(default=0.0, metadata=ADDED_LATER)

    @property
    def unreached(self) -> str:
        """Return the reasons for which this host does not reach its stores, in one text; empty
        while it does.
        """
        others = (
            f"store {name}: {problem}"
            for name, problem in sorted(self.other_stores.items())
            if problem
        )
        return "; ".join([self.store_problem] * bool(self.store_problem) + list(others))


# the state of a heartbeat in which its executors count as alive; in any other only the slot does
RUNNING = "RUNNING"
# the state of a worker that failed topology.worker.max.start.failures times in a row
FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Component of a task; kind is "spout" or "bolt" (S0.58)."""

    component_id: str
    kind: str


@dataclass(frozen=True, slots=True)
class TaskTable:
    """Every task of a topology (S0.43, S0.55); it never changes while the topology exists
    (S3.12).
    """

    info_by_task: Mapping[int, TaskInfo]


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    """Record in the state store of a blob whose bytes are elsewhere."""

    key: str  # sha256 of the bytes, in hex
    size_bytes: int
    chunks: int
    created_ms: int
    signature: str  # HMAC-SHA256 of the bytes under the cluster's key, in hex


@dataclass(frozen=True, slots=True)
class NamedBlob:
    """Newest version of a blob with a name: the key of its bytes, its number, the client that
    stored it, and the time.
    """

    key: str
    size_bytes: int
    version: int
    changed_ms: int
    by: str = ""  # "user@host:pid", to be shown


@dataclass(frozen=True, slots=True)
class NamedBlobs:
    """Record of all blobs with names."""

    by_name: Mapping[str, NamedBlob] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopologySummary:
    """Line of a list of topologies."""

    topology_id: str
    name: str
    status: TopologyStatus
    launch_ms: int
    num_workers: int  # workers in the assignment
    num_executors: int
    num_tasks: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Movement:
    """Changes of a new assignment, for plans and dry runs."""

    stayed: tuple[ExecutorId, ...]
    moved: tuple[tuple[ExecutorId, WorkerSlot | None, WorkerSlot], ...]
    dropped: tuple[tuple[ExecutorId, WorkerSlot], ...]


def movement(
    before: Mapping[ExecutorId, WorkerSlot], after: Mapping[ExecutorId, WorkerSlot]
) -> Movement:
    """Compare two placements of one topology."""
    return Movement(
        stayed=tuple(
            sorted(executor for executor, slot in after.items() if before.get(executor) == slot)
        ),
        moved=tuple(
            sorted(
                (executor, before.get(executor), slot)
                for executor, slot in after.items()
                if before.get(executor) != slot
            )
        ),
        dropped=tuple(
            sorted((executor, slot) for executor, slot in before.items() if executor not in after)
        ),
    )
