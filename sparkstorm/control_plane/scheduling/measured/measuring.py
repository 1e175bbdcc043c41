"""Measurements of one topology from its exact counts and its workers' heartbeats. PURE.

Counts are those that workers commit with their epochs; each keeps a record of every minute of the
last ten (data_plane/transport/progress.py). So one look at the store has the whole window, and a
leader that has just begun sees what the former one saw. Left out: an average that fades, as in
T-Storm, which somebody would have to keep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkstorm.common.model.assignment import Assignment, WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.control_plane.scheduling.measured.measurements import (
    Flow,
    Measurements,
    TaskLoad,
)
from sparkstorm.data_plane.transport.progress import EARLIER_MS, INHERITED, Edge, Progress

# Below it a rate is that of a start: half would measure the filling of caches, the double makes a
# topology wait for its first plan.
LEAST_MS = 60_000
_TYPICAL_ROW = 100.0  # bytes, where no row of a topology has left its worker
_LOCAL = "local_or_shuffle"


@dataclass(frozen=True, slots=True)
class CountRecords:
    """Progress records of one store: the newest of each owner ("node:port"), and its earlier
    ones.
    """

    newest: Mapping[str, Progress]
    earlier: Mapping[str, Sequence[Progress]] = field(default_factory=dict)

    @classmethod
    def decoded(
        cls, newest: Mapping[str, bytes], earlier: Mapping[str, Iterable[bytes]]
    ) -> CountRecords:
        """Read stored records; StoreInconsistentError when one is none."""
        return cls(
            {owner: Progress.decode(data) for owner, data in newest.items()},
            {owner: [*map(Progress.decode, several)] for owner, several in earlier.items()},
        )


@dataclass(slots=True)
class _Task:
    """Rates of one task, per second."""

    emitted: float = 0.0
    executed: float = 0.0
    busy_us: float = 0.0


@dataclass(slots=True)
class _Edge:
    """Rates of one edge, per second; `sent` by owner."""

    bytes: float = 0.0
    entries: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)


class _Rates:
    """Rates of tasks and edges over the window."""

    def __init__(self, stores: Iterable[CountRecords], now_ms: int, window_ms: int) -> None:
        self.tasks: defaultdict[int, _Task] = defaultdict(_Task)
        self.edges: defaultdict[Edge, _Edge] = defaultdict(_Edge)
        owners = [
            (owner, record, records.earlier.get(owner, ()))
            for records in stores
            for owner, record in records.newest.items()
            if owner != INHERITED
        ]
        started_ms = min((record.started_ms for _, record, _ in owners), default=now_ms)
        self.began_ms = max(now_ms - window_ms, started_ms)
        for owner, record, earlier in owners:
            self._add(owner, record, earlier, now_ms)

    def _add(self, owner: str, new: Progress, earlier: Sequence[Progress], now_ms: int) -> None:
        known = [progress for progress in (*earlier, new) if progress.started_ms == new.started_ms]
        begun = [progress for progress in known if progress.now_ms <= self.began_ms]
        # An owner that began within the window had counted nothing before it.
        old = max(
            begun, key=lambda progress: progress.now_ms, default=Progress(now_ms=self.began_ms)
        )
        # Where the record is older than a minute, nothing was committed for long behind it.
        since_ms = max(old.now_ms, self.began_ms - EARLIER_MS)
        seconds = max(1, now_ms - since_ms) / 1000
        for task, counts in new.counts_by_task.items():
            before = old.counts_by_task.get(task)
            rates = self.tasks[task]
            rates.emitted += _grown(counts, before, "emitted") / seconds
            rates.executed += _grown(counts, before, "executed") / seconds
            rates.busy_us += _grown(counts, before, "busy_us") / seconds
        for edge, flow in new.edges.items():
            former = old.edges.get(edge)
            rate = self.edges[edge]
            rate.bytes += _grown(flow, former, "bytes") / seconds
            rate.entries += _grown(flow, former, "entries") / seconds
            sent = _grown(flow, former, "sent") / seconds
            rate.sent[owner] = rate.sent.get(owner, 0.0) + sent


def _grown(new: object, old: object | None, name: str) -> int:
    # A store that went back makes counts smaller; nothing was done in less than no time.
    return max(0, int(getattr(new, name)) - (int(getattr(old, name)) if old else 0))


def measure(
    outline: TopologyOutline,
    assignment: Assignment,
    stores: Iterable[CountRecords],
    beats: Iterable[WorkerBeat],
    now_ms: int,
    window_ms: int,
) -> Measurements | None:
    """Return the measurements of a topology; None where it has counted for less than a minute."""
    rates = _Rates(stores, now_ms, window_ms)
    if now_ms - rates.began_ms < LEAST_MS:
        return None
    slots = {
        task: slot
        for executor, slot in assignment.slot_by_executor.items()
        for task in executor.tasks
    }
    placed_ms = max(assignment.start_ms_by_executor.values(), default=now_ms)
    return Measurements(
        tuple(_flows(outline, rates, slots)),
        _loads(rates, slots, {beat.slot: beat for beat in beats}),
        now_ms - rates.began_ms,
        max(0, now_ms - placed_ms),
        sum(edge.bytes for edge in rates.edges.values()),
    )


# -- flows -----------------------------------------------------------------------------------------


def _flows(
    outline: TopologyOutline, rates: _Rates, slots: Mapping[int, WorkerSlot]
) -> Iterable[Flow]:
    edges = {
        (source.component, source.stream, name): source.grouping
        for name, part in outline.components.items()
        if not name.startswith("__")
        for source in part.inputs
        if not source.component.startswith("__")
    }
    left = {edge: _left(rates, edge, grouping, outline, slots) for edge, grouping in edges.items()}
    rows = sum(left.values())
    mean = sum(rates.edges[edge].bytes for edge in edges) / rows if rows else _TYPICAL_ROW
    for edge in sorted(edges):
        rate = rates.edges[edge]
        size = rate.bytes / left[edge] if left[edge] else mean
        if rate.entries:
            # An entry has one row or more.
            size = min(size, rate.bytes / rate.entries)
        sent = sum(rate.sent.values())
        yield Flow(*edge, sent, sent * size)


def _left(
    rates: _Rates,
    edge: Edge,
    grouping: str,
    outline: TopologyOutline,
    slots: Mapping[int, WorkerSlot],
) -> float:
    """Return the rows a second that left their worker: those that were sent, without the share of
    the receivers that are in it.
    """
    by_slot: defaultdict[str, float] = defaultdict(float)
    for task, component in outline.component_by_task.items():
        if component == edge[2] and task in slots:
            by_slot[str(slots[task])] += rates.tasks[task].executed
    total = sum(by_slot.values())
    left = 0.0
    for owner, sent in rates.edges[edge].sent.items():
        inside = by_slot.get(owner, 0.0)
        share = inside / total if total else 0.0
        left += sent * (0.0 if grouping == _LOCAL and inside else 1.0 - share)
    return left


# -- loads -----------------------------------------------------------------------------------------


def _loads(
    rates: _Rates, slots: Mapping[int, WorkerSlot], beats: Mapping[WorkerSlot, WorkerBeat]
) -> dict[int, TaskLoad]:
    by_slot: defaultdict[WorkerSlot, list[int]] = defaultdict(list)
    for task, slot in sorted(slots.items()):
        by_slot[slot].append(task)
    loads: dict[int, TaskLoad] = {}
    for slot, tasks in by_slot.items():
        stats = beats[slot].stats if slot in beats else {}
        loads |= _of_worker(
            {task: rates.tasks[task] for task in tasks},
            _number(stats.get("cpu_percent")),
            _number(stats.get("memory_mb")),
        )
    return dict(sorted(loads.items()))


def _of_worker(
    tasks: Mapping[int, _Task], cpu: float | None, memory_mb: float | None
) -> dict[int, TaskLoad]:
    """Divide a worker's CPU and memory among its tasks: CPU in their code by the time there, the
    rest (commits, reads) by rows; memory evenly, since a process has one heap.
    """
    busy = {task: min(1.0, counts.busy_us / 1e6) for task, counts in tasks.items()}
    rows = {task: counts.emitted + counts.executed for task, counts in tasks.items()}
    in_code = 100.0 * sum(busy.values())
    all_rows = sum(rows.values())
    cpu = in_code if cpu is None else cpu
    # Time in code that waits, for a database or a lock, is no CPU.
    scale = min(1.0, cpu / in_code) if in_code else 0.0
    rest = max(0.0, cpu - in_code)
    return {
        task: TaskLoad(
            counts.emitted,
            counts.executed,
            busy[task],
            100.0 * busy[task] * scale
            + rest * (rows[task] / all_rows if all_rows else 1.0 / len(tasks)),
            memory_mb / len(tasks) if memory_mb is not None else None,
        )
        for task, counts in tasks.items()
    }


def _number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return max(0.0, float(value)) if is_number else None  # type: ignore[arg-type]
