"""Read model: frozen records that page, REST, metrics, command line and notebooks show. PURE.

`Sampler` (sampler.py) makes them. Counts are exact and since the topology began, gauges as of the
last commit; None is "not known", which is never 0. Shares are between 0 and 1, times in
milliseconds since the epoch, latencies in milliseconds unless a name ends in `_us`. Mappings are
sorted by key, and their keys are ids that stay, so that two records can be compared by path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any

from sparkstorm.common.model.heartbeats import NO_COUNTS, Counts

WINDOWS_S = {"1m": 60, "10m": 600, "3h": 10_800, "24h": 86_400, "all": 0}
"""Windows by name, in seconds; "all" is the whole life of the topology."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Latency:
    """Distribution of latencies, from buckets 9 % wide; None where nothing was measured."""

    count: int = 0
    mean_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class CountWindow:
    """Counts, rates, shares and latencies of a span of time."""

    # That it covers: less than its name while the sampler or the topology is younger; 0: none.
    seconds: float
    counts: Counts = NO_COUNTS
    emitted_per_s: float | None = None  # None: it covers no time
    executed_per_s: float | None = None
    acked_per_s: float | None = None
    failed_per_s: float | None = None
    # share of time in user code: of a component its busiest task's, of a topology its busiest
    # component's
    busy: float | None = None
    mean_busy: float | None = None  # over all tasks
    # share by cause (pending, backlog, store, inactive), of the same task
    paused: Mapping[str, float] = field(default_factory=dict)
    # mean time in user code of an executed input, from exact counts
    execute_ms: float | None = None
    complete: Latency = Latency()  # of whole trees; of a topology and its spouts


@dataclass(frozen=True, slots=True)
class ErrorView:
    """An error that a component reported or raised."""

    component: str
    task: int
    host: str
    place: str  # "node:port"
    time_ms: int
    text: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task; its other windows: `Sampler.task_window`."""

    task: int
    component: str
    executor: str  # "1-3"
    slot: str | None  # "node:port"; None: not assigned
    host: str | None
    state: str | None  # of its worker
    uptime_ms: int | None  # of its worker process
    counts: Counts
    pending: int  # of a spout: trees neither acked nor failed
    held: int  # of a bolt: inputs that its code has neither acked nor failed
    is_exhausted: bool
    backlog_bytes: int  # in its stream
    queued: int | None  # rows read and not executed, from the heartbeat
    queued_ms: int | None  # age of the oldest tree of which a row waits
    emitted_per_s: float | None  # of the last minute, as are the next three
    executed_per_s: float | None
    busy: float | None
    paused: Mapping[str, float]
    execute_us: Mapping[str, float]  # p50, p95, p99 since its process began
    process_us: Mapping[str, float]
    last_error: str = ""
    last_error_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ComponentReport:
    """One component: a node of the graph."""

    id: str
    kind: str  # "spout", "bolt" or "system"
    executors: int
    tasks: Mapping[int, TaskView]
    inputs: tuple[InputReport, ...]
    streams: Mapping[str, tuple[str, ...]]  # fields by stream
    has_state: bool
    counts: Counts
    windows: Mapping[str, CountWindow]  # by the names of WINDOWS_S
    pending: int
    held: int
    backlog_bytes: int
    queued: int  # rows sent to it and not executed
    queued_ms: int | None
    execute_us: Mapping[str, float]  # p50, p95, p99 of its slowest executor
    process_us: Mapping[str, float]
    total: int | None  # of a spout that knows: what it has to emit in all
    done: int | None
    is_exhausted: bool
    faults: tuple[str, ...]  # kinds of its faults (health.Fault)
    watermark_ms: int | None = None  # least of its tasks with windows or timers, from heartbeats
    last_error: ErrorView | None = None


@dataclass(frozen=True, slots=True)
class InputReport:
    """A subscription of a component."""

    component: str
    stream: str
    grouping: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EdgeView:
    """An edge of the graph: a stream of a component to a component.

    sent = consumed + waiting; `fault` names what is wrong with its rows.
    """

    sender: str
    stream: str
    receiver: str
    grouping: str
    fields: tuple[str, ...]
    sent: int
    consumed: int  # also what is held, tried again or parked
    waiting: int
    entries: int
    bytes: int
    sent_per_s: Mapping[str, float | None]  # by window
    fault: str = ""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker of a topology: a process in a slot."""

    slot: str  # "node:port"
    host: str | None
    topology_id: str
    state: str  # of its slot ("RUNNING", "STARTING", ...), "DEAD", or "no heartbeat"
    pid: int | None
    start_ms: int | None
    beat_ms: int | None  # time of its last heartbeat
    executors: tuple[str, ...]
    tasks: Mapping[str, int]  # number of its tasks by component
    memory_mb: float | None
    cpu_percent: float | None
    deaths: int  # under this assignment
    # share of the last minute by state (loop_time.STATES); empty: unknown
    loop: Mapping[str, float]
    loop_us: Mapping[str, int]  # exact, since the topology began
    commits: int
    commit_bytes: int
    commits_per_s: float | None
    message: str = ""  # why it failed


@dataclass(frozen=True, slots=True)
class CulpritView:
    """A component at fault; the gravest is first in its list."""

    fault: str
    component: str
    sentence: str


@dataclass(frozen=True, slots=True)
class TopologyReport:
    """One topology. `components` are the nodes of its graph and `edges` its edges."""

    id: str
    name: str
    status: str
    paused: str  # why Nimbus deactivated it
    owner: str
    launch_ms: int
    sentence: str  # its health, in words
    judged_s: float  # time that it is about
    is_well: bool
    culprits: tuple[CulpritView, ...]
    problems: tuple[str, ...]
    workers_wanted: int | None
    workers_given: int
    executors: int
    counts: Counts
    windows: Mapping[str, CountWindow]  # acked and failed are trees of its spouts
    pending: int
    held: int
    backlog_bytes: int
    dead_letters: int | None
    total: int | None
    done: int | None
    is_settled: bool
    is_drained: bool
    failures: tuple[FailureView, ...]
    components: Mapping[str, ComponentReport]
    edges: Mapping[str, EdgeView]  # by "sender/stream/receiver"
    workers: Mapping[str, WorkerView]  # by slot
    # exact; bounds: `bucket_bound_ms`
    latency_buckets: Mapping[int, int] = field(default_factory=dict)
    complete: Latency = Latency()
    user_metrics: tuple[UserMetricView, ...] = ()
    conf: Mapping[str, Any] = field(default_factory=dict)  # without secrets; empty for a viewer
    read_ms: int = 0  # when its counts were read
    problem: str = ""  # why they could not be read again

    @property
    def spouts_per_s(self) -> float:
        """Return the rate at which its spouts emitted in the last minute."""
        spouts = [component for component in self.components.values() if component.kind == "spout"]
        return sum(spout.windows["1m"].emitted_per_s or 0.0 for spout in spouts)


@dataclass(frozen=True, slots=True)
class FailureView:
    """Failed calls, reports and time-outs of one cause."""

    component: str
    error: str
    place: str
    count: int


@dataclass(frozen=True, slots=True)
class UserMetricView:
    """A counter or histogram of user code, over all tasks of its component, or a gauge of one task;
    exact.
    """

    component: str
    task: int | None  # of a gauge
    name: str
    kind: str  # "counter", "gauge" or "histogram"
    value: float  # of a histogram its sum
    count: int = 0
    buckets: Mapping[int, int] = field(default_factory=dict)  # bounds: `value_bound`
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class TopologyLine:
    """A topology in a list."""

    id: str
    name: str
    status: str
    owner: str
    launch_ms: int
    sentence: str
    is_well: bool
    emitted_per_s: float | None  # of its spouts and bolts, in the last minute
    executed_per_s: float | None
    p99_ms: float | None  # in the last minute
    busy: float | None
    slowest: str | None  # its busiest component
    pending: int
    backlog_bytes: int
    dead_letters: int | None
    workers: int
    executors: int
    tasks: int


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot: a cell of the host's map."""

    slot: str
    port: int
    topology_id: str | None  # None: free
    state: str | None  # of its worker
    busy: float | None  # share of the last minute in which its loop neither idled nor paused


@dataclass(frozen=True, slots=True)
class HostView:
    """A host with the slots of all its nodes."""

    host: str
    nodes: Mapping[str, NodeView]
    mark: str | None  # "drained", "excluded" or None
    mark_reason: str
    store_problem: str  # why it does not reach Redis
    slots: tuple[SlotView, ...]
    slots_used: int
    rack: str | None = None  # of its nodes, where their supervisors name one
    mark_by: str = ""  # client that drained or excluded it: "user@host:pid"
    mark_since_ms: int | None = None
    is_blacklisted: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """The slots of one driver on a host: Storm's supervisor."""

    id: str
    host: str
    uptime_ms: int
    beat_ms: int
    slots: int
    slots_used: int
    memory_mb: float | None  # resources for the resource-aware scheduler
    cpu_percent: float | None
    # by the workers in its slots, as they were measured; None: no worker
    memory_used_mb: float | None
    cpu_used_percent: float | None  # 100 is a whole core
    store_problem: str = ""  # why its supervisor does not reach Redis
    driver_problem: str = ""  # why its supervisor does not reach the driver of its slots


@dataclass(frozen=True, slots=True)
class DriverView:
    """A driver: the process that runs Nimbus."""

    id: str
    number: int
    host: str
    pid: int
    since_ms: int
    is_leader: bool


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request to Nimbus that is open or has ended lately."""

    id: str
    kind: str
    subject: str  # topology or host
    client: str  # "user@host:pid"
    created_ms: int
    state: str  # "open" before a Nimbus has taken it
    step: str
    error: str


@dataclass(frozen=True, slots=True)
class StoreView:
    """Redis, as far as the topologies' workers and this process see it."""

    is_up: bool
    problem: str
    # share of its limit, as the workers' last commits saw it; None: no limit, or no worker
    fullness: float | None


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The cluster at one moment."""

    time_ms: int
    number: int  # of the sample; grows by one
    sentence: str
    is_well: bool
    stale_since_ms: int | None  # None: fresh; else the values are those of that moment
    stale_reason: str
    drivers: Mapping[str, DriverView]
    leader: str | None  # host of the leading driver
    slots: int
    slots_used: int
    executors: int
    tasks: int
    windows: Mapping[str, CountWindow]  # over all topologies
    topologies: Mapping[str, TopologyLine]
    hosts: Mapping[str, HostView]
    store: StoreView
    problems: Mapping[str, tuple[str, ...]]  # by subject: topology id, host, "scheduler", ...
    requests: tuple[RequestView, ...]
    is_read_only: bool = False


_PLAIN = frozenset((str, int, bool, type(None)))
_WHOLE: frozenset[str] = frozenset()


# `fields` filters anew at each call, which was half of the time of `to_json`.
@cache
def _getter_of(
    kind: type, without: frozenset[str]
) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Return the names of a record's fields, and what reads their values at once."""
    names = tuple(
        record_field.name for record_field in fields(kind) if record_field.name not in without
    )
    if len(names) > 1:
        return names, attrgetter(*names)
    return names, lambda record: tuple(getattr(record, name) for name in names)


def to_json(view: Any, without: frozenset[str] = _WHOLE) -> Any:
    """Return a record as plain JSON: objects, lists, numbers; None for what is unknown, never
    NaN. `without` names fields of the record itself that are left out.
    """
    kind = type(view)
    # most of a record: the exact types, since a member of an Enum is a string too
    if kind in _PLAIN:
        return view
    if kind is float:
        return view if math.isfinite(view) else None
    if is_dataclass(kind):
        names, get = _getter_of(kind, without)
        return {
            name: value if type(value) in _PLAIN else to_json(value)
            for name, value in zip(names, get(view), strict=True)
        }
    if isinstance(view, Mapping):
        return {
            str(key): value if type(value) in _PLAIN else to_json(value)
            for key, value in view.items()
        }
    if isinstance(view, Enum):
        return view.value
    if isinstance(view, list | tuple | set | frozenset):
        return [to_json(item) for item in view]
    if isinstance(view, float):
        return view if math.isfinite(view) else None
    return view if isinstance(view, bool | int | str) else str(view)
