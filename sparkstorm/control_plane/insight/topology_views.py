"""Records of one topology from a reading and its history. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.heartbeats import (
    NO_COUNTS,
    Counts,
    TaskBeat,
    WorkerBeat,
    added,
    counts_of,
)
from sparkstorm.common.model.values.metric_values import MetricKind, MetricValue, quantile
from sparkstorm.common.model.values.metric_values import merged as merged_metrics
from sparkstorm.control_plane.insight.health import Health
from sparkstorm.control_plane.insight.history import Grown, History, Later
from sparkstorm.control_plane.insight.loads import StoreSnapshot
from sparkstorm.control_plane.insight.reading import TopologyReading, is_settled
from sparkstorm.control_plane.insight.records import (
    ALL,
    WINDOWS_S,
    ComponentReport,
    CulpritView,
    EdgeView,
    ErrorView,
    FailureView,
    InputReport,
    TaskView,
    TopologyLine,
    TopologyReport,
    UserMetricView,
    WorkerView,
)
from sparkstorm.data_plane.transport.progress import STATES, Progress

RECENT = "1m"
NO_HEARTBEAT = "no heartbeat"


@dataclass(frozen=True, slots=True)
class _Parts:
    """Inputs of one topology's records: readings, assignment and heartbeats."""

    reading: TopologyReading
    look: StoreSnapshot
    history: History
    slots: Mapping[int, tuple[ExecutorId, WorkerSlot]]
    grown: Mapping[str, Grown]  # by window
    now_ms: int

    @property
    def merged(self) -> Progress:
        """Return all owners' progress as one."""
        return self.look.merged

    def host(self, slot: WorkerSlot | None) -> str | None:
        """Return the host of a slot."""
        assignment = self.reading.assignment
        return assignment.host_by_node.get(slot.node) if assignment and slot else None


def topology_view(
    reading: TopologyReading, look: StoreSnapshot, history: History, now_ms: int
) -> TopologyReport:
    """Return the records of a topology as of a snapshot."""
    parts = _parts(reading, look, history, now_ms)
    base = reading.base
    merged = parts.merged
    health = reading.health(look, now_ms)
    components = {name: _component(parts, name, health) for name in history.components}
    users = [component for name, component in components.items() if not name.startswith("__")]
    spouts = [user for user in users if user.kind == "spout"]
    grown = parts.grown
    windows = Later(WINDOWS_S, lambda name: grown[name].topology())
    total = sum(spout.total or 0 for spout in spouts)
    return TopologyReport(
        id=base.topology_id,
        name=base.name,
        status=str(base.status),
        paused=base.paused,
        owner=base.owner,
        launch_ms=base.launch_ms,
        sentence=health.sentence,
        judged_s=health.judged_s,
        is_well=health.is_well,
        culprits=_culprits(health),
        problems=reading.problems,
        workers_wanted=reading.workers_wanted,
        workers_given=reading.given_workers,
        executors=len(reading.assignment.slot_by_executor) if reading.assignment else 0,
        counts=_topology_counts(users, spouts),
        windows=windows,
        pending=sum(spout.pending for spout in spouts),
        held=sum(user.held for user in users),
        backlog_bytes=sum(look.backlog_by_task.values()),
        dead_letters=reading.dead_letters,
        total=total or None,
        done=sum(spout.done or 0 for spout in spouts) if total else None,
        is_settled=is_settled(look),
        is_drained=health.life.is_drained,
        failures=_failures(merged),
        components=components,
        edges=_edges(parts, health),
        workers=_workers(parts),
        latency_buckets=dict(sorted(merged.latency_buckets.items())),
        complete=windows[ALL].complete,
        user_metrics=_user_metrics(merged),
        conf=reading.conf,
        read_ms=now_ms,
    )


def topology_line(view: TopologyReport) -> TopologyLine:
    """Return a topology as it is listed."""
    recent = view.windows[RECENT]
    users = [component for name, component in view.components.items() if not name.startswith("__")]
    slowest = max(users, key=lambda component: component.windows[RECENT].busy or 0.0, default=None)
    return TopologyLine(
        id=view.id,
        name=view.name,
        status=view.status,
        owner=view.owner,
        launch_ms=view.launch_ms,
        sentence=view.sentence,
        is_well=view.is_well,
        emitted_per_s=recent.emitted_per_s,
        executed_per_s=recent.executed_per_s,
        p99_ms=recent.complete.p99_ms,
        busy=recent.busy,
        slowest=slowest.id if slowest is not None and slowest.windows[RECENT].busy else None,
        pending=view.pending,
        backlog_bytes=view.backlog_bytes,
        dead_letters=view.dead_letters,
        workers=view.workers_given,
        executors=view.executors,
        tasks=sum(len(component.tasks) for component in view.components.values()),
    )


def _parts(reading: TopologyReading, look: StoreSnapshot, history: History, now_ms: int) -> _Parts:
    placed = reading.assignment.slot_by_executor if reading.assignment else {}
    slots = {task: (executor, slot) for executor, slot in placed.items() for task in executor.tasks}
    grown = {name: history.grown(name) for name in WINDOWS_S}
    return _Parts(reading, look, history, slots, grown, now_ms)


def _culprits(health: Health) -> tuple[CulpritView, ...]:
    return tuple(
        CulpritView(str(culprit.fault), culprit.component, culprit.sentence)
        for culprit in health.culprits
    )


def _topology_counts(users: list[ComponentReport], spouts: list[ComponentReport]) -> Counts:
    """Return the sums over user components, with acked and failed of spouts: whole trees."""
    trees = added(spout.counts for spout in spouts)
    return replace(added(user.counts for user in users), acked=trees.acked, failed=trees.failed)


def _task(parts: _Parts, task: int) -> TaskView:
    counts = parts.merged.counts_by_task.get(task)
    beat = parts.reading.beat_by_task.get(task)
    executor, slot = parts.slots.get(task, (None, None))
    recent = parts.grown[RECENT].task_rates[task]
    is_here = beat is not None and beat.slot == slot
    is_dead = slot is not None and slot in parts.reading.dead
    state = (
        None
        if slot is None
        else "DEAD"
        if is_dead
        else beat.state
        if is_here and beat
        else NO_HEARTBEAT
    )
    return TaskView(
        task=task,
        component=parts.reading.outline.component_by_task[task],
        executor=str(executor or ExecutorId(task, task)),
        slot=str(slot) if slot else None,
        host=parts.host(slot),
        state=state,
        uptime_ms=beat.uptime_ms if beat and is_here else None,
        counts=Counts(*counts_of(counts)) if counts else NO_COUNTS,
        pending=counts.pending if counts else 0,
        held=counts.held if counts else 0,
        is_exhausted=counts.is_exhausted if counts else False,
        backlog_bytes=parts.look.backlog_by_task.get(task, 0),
        queued=beat.queued if beat else None,
        queued_ms=beat.queued_ms if beat else None,
        emitted_per_s=recent.emitted_per_s,
        executed_per_s=recent.executed_per_s,
        busy=recent.busy,
        paused=recent.paused,
        execute_us=beat.execute_us if beat else {},
        process_us=beat.process_us if beat else {},
        last_error=beat.last_error if beat else "",
        last_error_ms=beat.last_error_ms or None if beat else None,
    )


def _component(parts: _Parts, name: str, health: Health) -> ComponentReport:
    outline = parts.reading.outline.components[name]
    tasks = parts.history.tasks_by_component[name]
    counts_by_task = parts.merged.counts_by_task
    counts = [counts_by_task[task] for task in tasks if task in counts_by_task]
    beats = [beat for task in tasks if (beat := parts.reading.beat_by_task.get(task)) is not None]
    grown = parts.grown
    is_spout = outline.kind == "spout"
    total = sum(count.total for count in counts) if is_spout else 0
    return ComponentReport(
        id=name,
        kind=outline.kind,
        executors=len(
            {str(parts.slots[task][0]) if task in parts.slots else task for task in tasks}
        ),
        tasks=Later(tasks, lambda task: _task(parts, task)),
        inputs=tuple(
            InputReport(source.component, source.stream, source.grouping, source.fields)
            for source in outline.inputs
        ),
        streams=dict(sorted(outline.streams.items())),
        has_state=bool(outline.state_backend),
        counts=added(counts),
        windows=Later(WINDOWS_S, lambda window: grown[window].component(name, is_spout)),
        pending=sum(count.pending for count in counts),
        held=sum(count.held for count in counts),
        backlog_bytes=sum(parts.look.backlog_by_task.get(task, 0) for task in tasks),
        queued=_waiting(parts.merged, name, beats),
        queued_ms=max((beat.queued_ms for beat in beats), default=None),
        watermark_ms=min(
            (beat.watermark_ms for beat in beats if beat.watermark_ms is not None), default=None
        ),
        execute_us=_slowest([beat.execute_us for beat in beats]),
        process_us=_slowest([beat.process_us for beat in beats]),
        total=total or None,
        done=sum(count.done for count in counts) if total else None,
        is_exhausted=is_spout
        and len(counts) == len(tasks)
        and all(count.is_exhausted for count in counts),
        faults=tuple(
            dict.fromkeys(
                str(culprit.fault) for culprit in health.culprits if culprit.component == name
            )
        ),
        last_error=next(
            (error_view(error) for error in parts.reading.errors if error.component == name), None
        ),
    )


def _waiting(merged: Progress, component: str, beats: Sequence[TaskBeat]) -> int:
    """Return how many rows wait for a component.

    By what was sent to it and not taken in, since a worker that is dead or starts sends no
    heartbeat; by heartbeats, which have tries that are put off. What a worker has read and not
    committed is in both: the larger one counts.
    """
    unread = sum(
        max(0, flow.sent - flow.consumed)
        for (_, _, receiver), flow in merged.edges.items()
        if receiver == component
    )
    return max(unread, sum(beat.queued for beat in beats))


def _slowest(latencies: list[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the latencies with the highest p99; none where nothing was measured."""
    return max(latencies, key=lambda latency: latency.get("p99", -1.0), default={})


def error_view(failure: Failure) -> ErrorView:
    """Return the record of an error."""
    return ErrorView(
        failure.component,
        failure.task,
        failure.host,
        failure.worker,
        failure.time_ms,
        failure.text,
        failure.traceback,
    )


def _failures(merged: Progress) -> tuple[FailureView, ...]:
    failures = [
        FailureView(cause.component, cause.error, cause.place, count)
        for cause, count in merged.failures.items()
    ]
    return tuple(
        sorted(
            failures,
            key=lambda failure: (-failure.count, failure.component, failure.error, failure.place),
        )
    )


def _user_metrics(merged: Progress) -> tuple[UserMetricView, ...]:
    by_component: dict[str, list[dict[str, MetricValue]]] = {}
    metrics = []
    for task, values in sorted(merged.metrics_by_task.items()):
        if task not in merged.counts_by_task:
            continue
        component = merged.counts_by_task[task].component
        gauges = {name: value for name, value in values.items() if value.kind is MetricKind.GAUGE}
        metrics += [
            UserMetricView(component, task, name, str(gauge.kind), gauge.value)
            for name, gauge in gauges.items()
        ]
        by_component.setdefault(component, []).append(
            {name: value for name, value in values.items() if name not in gauges}
        )
    for component, several in by_component.items():
        for name, metric in merged_metrics(several).items():
            shares = quantile(metric.buckets, 0.50), quantile(metric.buckets, 0.99)
            buckets = dict(sorted(metric.buckets.items()))
            metrics.append(
                UserMetricView(
                    component,
                    None,
                    name,
                    str(metric.kind),
                    metric.value,
                    metric.count,
                    buckets,
                    *shares,
                )
            )
    return tuple(
        sorted(metrics, key=lambda metric: (metric.component, metric.name, metric.task or 0))
    )


def _edges(parts: _Parts, health: Health) -> dict[str, EdgeView]:
    audited = {(edge.sender, edge.stream, edge.receiver): edge for edge in health.edges}
    rates = {window: grown.sent_per_s() for window, grown in parts.grown.items()}
    views = {}
    for edge in parts.history.edges:
        sender, stream, receiver = edge
        flow = parts.merged.edges.get(edge)
        audited_edge = audited.get(edge)
        inputs = parts.reading.outline.components[receiver].inputs
        grouping = next(
            source for source in inputs if (source.component, source.stream) == (sender, stream)
        )
        views["/".join(edge)] = EdgeView(
            sender,
            stream,
            receiver,
            grouping.grouping,
            grouping.fields,
            flow.sent if flow else 0,
            flow.consumed if flow else 0,
            audited_edge.waiting if audited_edge else 0,
            flow.entries if flow else 0,
            flow.bytes if flow else 0,
            {window: rate[edge] for window, rate in rates.items()},
            audited_edge.fault if audited_edge else "",
        )
    return views


def _workers(parts: _Parts) -> dict[str, WorkerView]:
    beats = {beat.slot: beat for beat in parts.reading.beats}
    placed = parts.reading.assignment.executors_by_slot() if parts.reading.assignment else {}
    return {
        str(slot): _worker(parts, slot, executors, beats.get(slot))
        for slot, executors in placed.items()
    }


def _worker(
    parts: _Parts, slot: WorkerSlot, executors: list[ExecutorId], beat: WorkerBeat | None
) -> WorkerView:
    table = parts.reading.outline.component_by_task
    own = parts.look.progress.get(str(slot))
    tasks: dict[str, int] = {}
    for task in (task for executor in executors for task in executor.tasks):
        tasks[table[task]] = tasks.get(table[task], 0) + 1
    recent = parts.grown[RECENT].loop(str(slot))
    spent = sum(recent[0]) if recent else 0
    seconds = parts.grown[RECENT].seconds
    state = "DEAD" if slot in parts.reading.dead else beat.state if beat else NO_HEARTBEAT
    figures = {
        name: value for name, value in (beat.stats if beat else {}).items() if type(value) is int
    }
    return WorkerView(
        slot=str(slot),
        host=parts.host(slot),
        topology_id=parts.reading.base.topology_id,
        state=state,
        pid=beat.pid or None if beat else None,
        start_ms=beat.start_ms or None if beat else None,
        beat_ms=beat.time_ms if beat else None,
        executors=tuple(map(str, executors)),
        tasks=dict(sorted(tasks.items())),
        memory_mb=figures.get("memory_mb"),
        cpu_percent=figures.get("cpu_percent"),
        deaths=figures.get("deaths", 0),
        loop={name: us / spent for name, us in zip(STATES, recent[0], strict=True)}
        if recent and spent
        else {},
        loop_us=dict(zip(STATES, own.loop_us, strict=True)) if own else {},
        commits=own.commits if own else 0,
        commit_bytes=own.commit_bytes if own else 0,
        commits_per_s=recent[1] / seconds if recent and seconds else None,
        message=beat.message if beat else "",
    )
