"""Load of a topology from its exact counts: what workers have committed over the last minutes. PURE.

Nothing is kept between two looks: workers' records hold the last ten minutes, so a command line and
a Nimbus that has just begun to lead see the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sparkstorm.common.model.assignment import Assignment, TopologyBase
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.control_plane.insight.loads import StoreSnapshot, loads
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements
from sparkstorm.control_plane.scheduling.measured.measuring import CountRecords, measure
from sparkstorm.data_plane.transport.progress import BACKLOG, PENDING, STATES, Progress
from sparkstorm.extensions.autoscale.model import ComponentLoad, Source, TaskWork, TopologyLoad

# Half would be one record of a worker; the double sees a step of the load two minutes later.
MEASURED_MS = 120_000
# The window begins at a record, which may be a minute older; before it workers start.
SETTLED_MS = MEASURED_MS + 60_000
# As long as workers' records go back: what came in this time may come again.
_REMEMBERED_MS = 600_000
_PAUSES = (STATES[PENDING], STATES[BACKLOG])
# A pause of more is that of a source that reads as fast as it may: what it could do is not known.
_MOST_HELD = 0.9
_KEYED = ("fields", "partial_key")


def look_of(stores: Sequence[CountRecords], now_ms: int) -> StoreSnapshot:
    """Return the records of a topology's stores as one look."""
    newest: dict[str, Progress] = {}
    earlier: dict[str, list[Progress]] = {}
    for number, store in enumerate(stores):
        newest |= {f"{owner}@{number}": record for owner, record in store.newest.items()}
        for owner, records in store.earlier.items():
            earlier.setdefault(owner, []).extend(records)
    return StoreSnapshot(newest, {}, now_ms=now_ms, earlier=earlier)


def load_of(
    base: TopologyBase,
    outline: TopologyOutline,
    assignment: Assignment,
    stores: Sequence[CountRecords],
    beats: Iterable[WorkerBeat],
    slots: int,
    now_ms: int,
) -> TopologyLoad | str:
    """Return the load over the last minutes, `slots` being those that the topology may use; a
    sentence where it cannot be measured yet.
    """
    placed = {task for executor in assignment.slot_by_executor for task in executor.tasks}
    if missing := outline.component_by_task.keys() - placed:
        have = "task of it has" if len(missing) == 1 else "tasks of it have"
        return f"{len(missing)} {have} no slot"
    measured = measure(outline, assignment, stores, beats, now_ms, MEASURED_MS)
    if measured is None or measured.settled_ms < SETTLED_MS:
        stood_s = measured.settled_ms // 1000 if measured else 0
        return f"its workers have run for {stood_s} s; {SETTLED_MS // 1000} s are needed to measure them"
    look = look_of(stores, now_ms)
    before = look.before(now_ms - MEASURED_MS)
    long_before = look.before(max(base.launch_ms, now_ms - _REMEMBERED_MS))
    held = {
        load.task: sum(load.paused.get(cause, 0.0) for cause in _PAUSES)
        for load in loads(before.progress, look.progress, now_ms)
    }
    work = _work(assignment, measured)
    waiting: dict[str, float] = {}
    for edge, counts in look.merged.edges.items():
        rows = max(0, counts.sent - counts.consumed)
        waiting[edge[2]] = waiting.get(edge[2], 0.0) + rows
    parts = []
    for name, part in sorted(outline.components.items()):
        tasks = [task for task, owner in outline.component_by_task.items() if owner == name]
        if name.startswith("__") or not tasks:
            continue
        source = None
        if part.kind == "spout":
            share = max((held.get(task, 0.0) for task in tasks), default=0.0)
            source = _source(tasks, look.merged, before.merged, long_before.merged, share)
        parts.append(
            ComponentLoad(
                name,
                tuple(work[task] for task in sorted(tasks) if task in work),
                _inputs(name, measured),
                waiting.get(name, 0.0),
                any(feed.grouping in _KEYED for feed in part.inputs),
                source,
            )
        )
    users = {task.task for part in parts for task in part.tasks}
    system = sum(load.cpu for task, load in measured.tasks.items() if task not in users)
    workers = len(set(assignment.slot_by_executor.values()))
    cells = len(base.stores)
    return TopologyLoad(tuple(parts), workers, slots, system / 100.0, measured.settled_ms, cells)


def _work(assignment: Assignment, measured: Measurements) -> dict[int, TaskWork]:
    work = {}
    for slot, executors in assignment.executors_by_slot().items():
        loads = {
            task: (executor, measured.tasks[task])
            for executor in executors
            for task in executor.tasks
            if task in measured.tasks
        }
        # A worker's loop runs one task at a time, so code that waits keeps the others waiting. More
        # than its whole time is that of tasks with threads of their own, which wait next to it.
        has_threads = sum(load.busy for _, load in loads.values()) > 1.0
        for task, (executor, load) in loads.items():
            # A bolt executes what it is sent, a spout emits.
            rows = load.executed_per_s or load.emitted_per_s
            cpu = load.cpu / 100.0
            core = cpu if has_threads else max(load.busy, cpu)
            work[task] = TaskWork(task, executor.first_task, str(slot), rows, load.busy, cpu, core)
    return work


def _inputs(component: str, measured: Measurements) -> Mapping[str, float]:
    inputs: dict[str, float] = {}
    for flow in measured.flows:
        if flow.receiver == component:
            inputs[flow.component] = inputs.get(flow.component, 0.0) + flow.rows_per_s
    return inputs


def _source(
    tasks: Sequence[int], now: Progress, before: Progress, long_before: Progress, held: float
) -> Source:
    """Return what a source has to read: by its extent where it knows one, else by what it emits and
    for how long it was held back.

    The rate is the greater of the last two and ten minutes, so that it falls slowly.
    """
    counts = [now.counts_by_task[task] for task in tasks if task in now.counts_by_task]
    is_exhausted = len(counts) == len(tasks) and all(count.is_exhausted for count in counts)
    total = sum(count.total for count in counts)
    done = sum(count.done for count in counts)
    emitted, read = (_grown(tasks, now, before, name) for name in ("emitted", "done"))
    # An extent has any unit: rows, bytes, files.
    lived = sum(count.emitted for count in counts) / done if done else 1.0
    rows_per_unit = emitted / read if read else lived
    rates = []
    for old in (before, long_before):
        seconds = max(1, now.now_ms - old.now_ms) / 1000
        if total:
            rates.append(_grown(tasks, now, old, "total") * rows_per_unit / seconds)
        else:
            rates.append(_grown(tasks, now, old, "emitted") / seconds)
    if not total:
        rates[0] /= 1.0 - min(held, _MOST_HELD)
    backlog = max(0, total - done) * rows_per_unit
    return Source(max(rates), backlog, held, bool(total), is_exhausted)


def _grown(tasks: Iterable[int], now: Progress, old: Progress, name: str) -> int:
    grown = 0
    for task in tasks:
        new, former = now.counts_by_task.get(task), old.counts_by_task.get(task)
        since = getattr(former, name) if former else 0
        # What was there when a source looked first has not arrived since.
        if new is not None and (since or name != "total"):
            grown += max(0, getattr(new, name) - since)
    return grown
