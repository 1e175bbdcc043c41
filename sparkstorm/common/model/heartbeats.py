"""Heartbeats: of a worker, of its tasks, and a topology's task heartbeats gathered from those of its
workers; counts of a task for all readers. PURE.

The heartbeats are JStorm's TopologyTaskHbInfo (S0.52). The topology master gathers them, for a
topology without one Nimbus does. A worker counts in `transport.progress.TaskCounts`, which grows in
place: a new record for each turn of a task would cost more than the turn. Heartbeats, windows and
what clients show hold `Counts`, which do not change under their reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.status import JsonValue
from sparkstorm.common.model.topology import MASTER

_NUMBERS = ("pending", "queued", "queued_ms", "uptime_ms", "last_error_ms", "watermark_ms")
_LATENCIES = ("execute_us", "process_us")
_ERROR_CHARS = 300
_MOST_DETAILED = 1500  # tasks with latencies and errors: more would not fit a node


@dataclass(frozen=True, slots=True)
class WorkerBeat:
    """Heartbeat of a worker, with the statistics of its executors (S3.38)."""

    topology_id: str
    node: str
    port: int
    time_ms: int
    start_ms: int
    pid: int
    # grows with each launch of this slot, from the clock's seconds on: the minor part of the fence
    # token
    launch: int
    state: str  # state of the slot's machine; only "RUNNING" is a heartbeat of the executors
    assignment_version: int
    stats_by_executor: Mapping[ExecutorId, JsonValue] = field(default_factory=dict)
    stats: Mapping[str, JsonValue] = field(default_factory=dict)  # of the worker as a whole
    message: str = ""  # why it is FAILED: its last message and the end of its log

    @property
    def slot(self) -> WorkerSlot:
        """Slot of the worker."""
        return WorkerSlot(self.node, self.port)

    def causes(self, name: str) -> list[str]:
        """Return the sentences of one of the statistics, "blocked" or "held_back"."""
        causes = self.stats.get(name)
        return [str(cause) for cause in causes] if isinstance(causes, list) else []


@dataclass(frozen=True, slots=True)
class Counts:
    """Exact counts: in a window what was added within it, else since the topology began."""

    emitted: int = 0
    transferred: int = 0  # emitted times receiving tasks
    executed: int = 0
    acked: int = 0  # of a spout: trees that are done; of a bolt: inputs
    failed: int = 0
    retried: int = 0
    parked: int = 0  # all that was given up
    late: int = 0
    bad: int = 0
    replayed: int = 0  # dead letters that were put back


COUNTS = tuple(field.name for field in fields(Counts))
"""Names of the counts."""
NO_COUNTS = Counts()


counts_of = attrgetter(*COUNTS)
"""Return the counts of a record that has them all, in the order of `COUNTS`."""


def added(several: Iterable[Any]) -> Counts:
    """Return the sums over records that have all of these counts; zeros without any."""
    return Counts(*map(sum, zip(*map(counts_of, several), strict=True)))


@dataclass(frozen=True, slots=True)
class TaskBeat:
    """One task: where it runs, exact counts since the topology began, and statistics of its process
    since its start.
    """

    component: str
    executor: ExecutorId
    slot: WorkerSlot
    state: str  # of its worker
    time_ms: int  # of its worker's heartbeat
    uptime_ms: int = 0
    counts: Counts = NO_COUNTS
    pending: int = 0  # trees of a spout that are neither acked nor failed
    queued: int = 0  # rows that wait to be executed, and inputs that wait for their ack or next try
    queued_ms: int = 0  # age of the oldest tree of which a row waits
    execute_us: Mapping[str, float] = field(default_factory=dict)  # p50, p95, p99 in microseconds
    process_us: Mapping[str, float] = field(default_factory=dict)  # from the execute to the ack
    last_error: str = ""
    last_error_ms: int = 0
    watermark_ms: int | None = None  # of windows and timers: event time up to which they may fire


@dataclass(frozen=True, slots=True)
class TaskBeats:
    """A topology's task heartbeats as of `time_ms`; empty until its workers have beaten."""

    topology_id: str
    master_task: int | None = None  # task of the topology master
    time_ms: int = 0
    by_task: Mapping[int, TaskBeat] = field(default_factory=dict)


def master_task(component_by_task: Mapping[int, str]) -> int | None:
    """Return the task of the topology master; None when the topology has none."""
    return min((task for task, name in component_by_task.items() if name == MASTER), default=None)


def gather(
    topology_id: str,
    beats: Iterable[WorkerBeat],
    component_by_task: Mapping[int, str],
    now_ms: int,
) -> TaskBeats:
    """Return the record of these workers' heartbeats; what is no statistic of ours is left out.

    Of a task that two workers have beaten for, the newer placement counts, then the newer
    heartbeat.
    """
    beat_by_task: dict[int, TaskBeat] = {}
    for beat in sorted(
        beats, key=lambda worker_beat: (worker_beat.assignment_version, worker_beat.time_ms)
    ):
        for executor, stats in beat.stats_by_executor.items():
            if not isinstance(stats, Mapping):
                continue
            own = stats.get("tasks")
            for task in executor.tasks:
                of_task = own.get(str(task), {}) if isinstance(own, Mapping) else stats
                if task in component_by_task and isinstance(of_task, Mapping):
                    beat_by_task[task] = _task_beat(
                        beat, executor, component_by_task[task], of_task
                    )
    if len(beat_by_task) > _MOST_DETAILED:
        beat_by_task = {
            task: replace(beat, execute_us={}, process_us={}, last_error="")
            for task, beat in beat_by_task.items()
        }
    master = master_task(component_by_task)
    return TaskBeats(topology_id, master, now_ms, dict(sorted(beat_by_task.items())))


def _task_beat(
    beat: WorkerBeat, executor: ExecutorId, component: str, stats: Mapping[str, Any]
) -> TaskBeat:
    counts = Counts(**_whole_numbers(stats, COUNTS))
    numbers: dict[str, Any] = _whole_numbers(stats, _NUMBERS)
    latencies: dict[str, Any] = {name: _numbers(stats.get(name)) for name in _LATENCIES}
    error = stats.get("last_error")
    text = error[:_ERROR_CHARS] if isinstance(error, str) else ""
    slot = beat.slot
    return TaskBeat(
        component,
        executor,
        slot,
        beat.state,
        beat.time_ms,
        counts=counts,
        last_error=text,
        **numbers,
        **latencies,
    )


def _whole_numbers(stats: Mapping[str, Any], names: Iterable[str]) -> dict[str, int]:
    return {name: value for name in names if type(value := stats.get(name)) is int}


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    return {
        str(name): float(number)
        for name, number in value.items()
        if isinstance(number, int | float)
    }
