"""/metrics: the read model as OpenMetrics text, for Prometheus.

Written by hand: the counts are gathered already, so a client library would add nothing but a copy.
Histograms come from our exact buckets, every fourth of them (a factor of 1.41 between two bounds).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.assignment import RUNNING
from sparkstorm.common.model.values.metric_values import PER_OCTAVE
from sparkstorm.control_plane.insight.records import (
    ClusterReport,
    ComponentReport,
    TopologyReport,
    UserMetricView,
)
from sparkstorm.control_plane.insight.sampler import ReadModel
from sparkstorm.data_plane.transport.progress import BUCKETS, bucket_bound_ms

MEDIA_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_RECENT = "1m"
_EVERY = 4
_POWERS = range(-20, 41, 2)
"""Exponents of two that bound buckets of user histograms: a millionth to a million millions."""
_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]
"""Suffix of the name, labels, value."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name without the prefix, its type and what it means."""

    name: str
    kind: str  # "counter", "gauge" or "histogram"
    help: str
    unit: str = ""


FAMILIES = (
    Family("tuples_emitted", "counter", "Tuples emitted by a component."),
    Family("tuples_transferred", "counter", "Tuples emitted, times the tasks that receive them."),
    Family("tuples_executed", "counter", "Inputs executed by a bolt."),
    Family("tuples_acked", "counter", "Inputs acked by a bolt."),
    Family("tuples_failed", "counter", "Inputs failed by a bolt."),
    Family("tuples_retried", "counter", "Tries that failed and were made again."),
    Family("tuples_parked", "counter", "Inputs given up after their tries."),
    Family("tuples_late", "counter", "Tuples that came too late for their windows."),
    Family("tuples_bad", "counter", "Records that no tuple can carry."),
    Family("tuples_replayed", "counter", "Dead letters that were put back and executed."),
    Family("trees_completed", "counter", "Trees of a spout that are done."),
    Family("trees_failed", "counter", "Trees of a spout that failed or timed out."),
    Family("topology_workers", "gauge", "Workers that the topology has."),
    Family("topology_workers_wanted", "gauge", "Workers that the topology wants."),
    Family("topology_executors", "gauge", "Executors of the topology."),
    Family("topology_tasks", "gauge", "Tasks of the topology."),
    Family("user_counter", "counter", "Counters of user code, exact across crashes."),
    Family("user_gauge", "gauge", "Gauges of user code, by task, as of the last commit."),
    Family("user_histogram", "histogram", "Histograms of user code, exact across crashes."),
    Family("topology_status", "gauge", "1 for the status that a topology has."),
    Family("topology_info", "gauge", "1; its labels tell what the topology is."),
    Family("topology_uptime_seconds", "gauge", "Time since the submission.", "seconds"),
    Family(
        "topology_well",
        "gauge",
        "1 while nothing is lost, failing or late and no problem is known.",
    ),
    Family("trees_pending", "gauge", "Trees of a spout that are neither acked nor failed."),
    Family("tuples_held", "gauge", "Inputs that a bolt has neither acked nor failed."),
    Family(
        "complete_latency_seconds",
        "histogram",
        "Time from the emit of a tree to its end.",
        "seconds",
    ),
    Family(
        "component_busy_ratio",
        "gauge",
        "Share of the last minute in user code, of the busiest task.",
        "ratio",
    ),
    Family(
        "component_paused_ratio",
        "gauge",
        "Share of the last minute held back, by cause, of the task held most.",
        "ratio",
    ),
    Family("backlog_bytes", "gauge", "Bytes that wait in the streams of a component.", "bytes"),
    Family("backlog_tuples", "gauge", "Tuples that were sent to a component and not executed yet."),
    Family(
        "backlog_age_seconds", "gauge", "Age of the oldest tree of which a tuple waits.", "seconds"
    ),
    Family(
        "watermark_timestamp_seconds",
        "gauge",
        "Event time up to which the windows and timers of a component may fire, from heartbeats.",
        "seconds",
    ),
    Family("edge_tuples_sent", "counter", "Tuples sent from a stream to a component."),
    Family("edge_tuples_consumed", "counter", "Tuples taken in by the receiver of an edge."),
    Family("failures", "counter", "Failed calls, reports and time-outs by cause."),
    Family("dead_letters", "gauge", "Dead letters that are kept."),
    Family("worker_time_seconds", "counter", "Time of a worker's loop by state.", "seconds"),
    Family("worker_commits", "counter", "Commits of a worker."),
    Family(
        "worker_commit_bytes",
        "counter",
        "Bytes of entries, messages and journals committed by a worker.",
        "bytes",
    ),
    Family("worker_up", "gauge", "1 while the worker runs and its slot sends heartbeats."),
    Family("worker_restarts", "gauge", "Deaths of a worker under its present assignment."),
    Family("worker_memory_bytes", "gauge", "Resident memory of a worker.", "bytes"),
    Family(
        "worker_cpu_ratio", "gauge", "CPU time of a worker by time; 1 is a whole core.", "ratio"
    ),
    Family("slots", "gauge", "Slots of a node."),
    Family("slots_used", "gauge", "Slots of a node that have a worker."),
    Family("supervisors", "gauge", "Nodes that are alive."),
    Family("nimbus_leader", "gauge", "1 while a driver's Nimbus leads."),
    Family("store_up", "gauge", "1 while Redis answers."),
    Family(
        "store_fullness_ratio",
        "gauge",
        "Share of Redis's memory limit in use, as workers see it.",
        "ratio",
    ),
    Family("zookeeper_up", "gauge", "1 while ZooKeeper answers."),
    Family(
        "scrape_age_seconds",
        "gauge",
        "Age of the figures when they were asked for, by the time of the newest.",
        "seconds",
    ),
)
"""Every metric that there is, by the order of /metrics; documents, boards and alert rules may
name no other.
"""
_COUNTERS = [
    family.name.removeprefix("tuples_")
    for family in FAMILIES
    if family.kind == "counter" and family.name.startswith("tuples_")
]
_TREES = {"acked": "trees_completed", "failed": "trees_failed"}
_STATUSES = ("ACTIVE", "INACTIVE", "KILLED", "REBALANCING", "UPGRADING", "ROLLBACK")


def metrics_routes(model: ReadModel) -> list[Route]:
    """Return the route /metrics."""

    async def metrics(_: Request) -> Response:
        try:
            cluster = model.cluster()
            views = [model.topology(topology_id) for topology_id in cluster.topologies]
        except StoreUnavailableError:
            text = "# TYPE sparkstorm_zookeeper_up gauge\nsparkstorm_zookeeper_up 0\n# EOF\n"
        else:
            text = metrics_text(cluster, views)
        return Response(
            text, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-cache, no-store"}
        )

    return [Route("/metrics", metrics, methods=["GET"])]


def metrics_text(cluster: ClusterReport, views: list[TopologyReport]) -> str:
    """Return all figures as OpenMetrics text."""
    lines = []
    for family, samples in samples_by_family(cluster, views):
        name = f"sparkstorm_{family.name}"
        lines += [f"# TYPE {name} {family.kind}", f"# HELP {name} {family.help}"]
        if family.unit:
            lines.insert(len(lines) - 1, f"# UNIT {name} {family.unit}")
        lines += [
            f"{name}{suffix}{_labels(labels)} {_value(value)}" for suffix, labels, value in samples
        ]
    return "\n".join([*lines, "# EOF", ""])


def samples_by_family(
    cluster: ClusterReport, views: list[TopologyReport]
) -> list[tuple[Family, list[Sample]]]:
    """Return the samples of each metric that has some, in the order of FAMILIES."""
    samples: dict[str, list[Sample]] = {family.name: [] for family in FAMILIES}
    for name, suffix, labels, value in _all(cluster, views):
        samples[name].append((suffix, labels, value))
    return [(family, samples[family.name]) for family in FAMILIES if samples[family.name]]


def _labels(labels: Labels) -> str:
    inner = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _value(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


Found = Iterator[tuple[str, str, Labels, float]]


def _all(cluster: ClusterReport, views: list[TopologyReport]) -> Found:
    for view in views:
        yield from _topology(view, cluster.time_ms)
        for component in view.components.values():
            yield from _component(view, component)
        yield from _workers(view)
    for host in cluster.hosts.values():
        for node in host.nodes.values():
            labels = {"node": node.id, "host": host.host}
            yield "slots", "", labels, node.slots
            yield "slots_used", "", labels, node.slots_used
    yield "supervisors", "", {}, sum(len(host.nodes) for host in cluster.hosts.values())
    for driver in cluster.drivers.values():
        yield (
            "nimbus_leader",
            "",
            {"driver": str(driver.number), "host": driver.host},
            int(driver.is_leader),
        )
    yield "store_up", "", {}, int(cluster.store.is_up)
    if cluster.store.fullness is not None:
        yield "store_fullness_ratio", "", {}, cluster.store.fullness
    yield "zookeeper_up", "", {}, int(cluster.stale_since_ms is None)
    for view in views:
        yield (
            "scrape_age_seconds",
            "",
            {"topology": view.name},
            (cluster.time_ms - view.read_ms) / 1000,
        )


def _topology(view: TopologyReport, now_ms: int) -> Found:
    labels = {"topology": view.name}
    yield "topology_info", "", {**labels, "id": view.id, "owner": view.owner}, 1
    for status in _STATUSES:
        yield "topology_status", "", {**labels, "status": status}, int(view.status == status)
    yield "topology_uptime_seconds", "", labels, max(0, now_ms - view.launch_ms) / 1000
    yield "topology_well", "", labels, int(view.is_well)
    yield "topology_workers", "", labels, view.workers_given
    if view.workers_wanted is not None:
        yield "topology_workers_wanted", "", labels, view.workers_wanted
    yield "topology_executors", "", labels, view.executors
    yield (
        "topology_tasks",
        "",
        labels,
        sum(len(component.tasks) for component in view.components.values()),
    )
    if view.dead_letters is not None:
        yield "dead_letters", "", labels, view.dead_letters
    for failure in view.failures:
        cause = {"component": failure.component, "error": failure.error, "place": failure.place}
        yield "failures", "_total", {**labels, **cause}, failure.count
    for edge in view.edges.values():
        between = {
            **labels,
            "sender": edge.sender,
            "stream": edge.stream,
            "receiver": edge.receiver,
        }
        yield "edge_tuples_sent", "_total", between, edge.sent
        yield "edge_tuples_consumed", "_total", between, edge.consumed
    yield from _histogram(view, labels)
    for metric in view.user_metrics:
        yield from _user(metric, {**labels, "component": metric.component, "name": metric.name})


def _user(metric: UserMetricView, labels: Labels) -> Found:
    family = f"user_{metric.kind}"
    if metric.kind == "counter":
        yield family, "_total", labels, metric.value
    elif metric.kind == "gauge":
        yield family, "", {**labels, "task": str(metric.task)}, metric.value
    else:
        seen = 0
        buckets = sorted(metric.buckets.items())
        for power in _POWERS:
            while buckets and buckets[0][0] <= power * PER_OCTAVE:
                seen += buckets.pop(0)[1]
            yield family, "_bucket", {**labels, "le": repr(2.0**power)}, seen
        yield family, "_bucket", {**labels, "le": "+Inf"}, metric.count
        yield family, "_count", labels, metric.count
        yield family, "_sum", labels, metric.value


def _histogram(view: TopologyReport, labels: Labels) -> Found:
    """Yield the complete latencies; the sum is from the buckets' middles."""
    seen = 0
    for bucket in range(BUCKETS):
        seen += view.latency_buckets.get(bucket, 0)
        if bucket % _EVERY == _EVERY - 1:
            yield (
                "complete_latency_seconds",
                "_bucket",
                {**labels, "le": repr(round(bucket_bound_ms(bucket) / 1000, 9))},
                seen,
            )
    yield "complete_latency_seconds", "_bucket", {**labels, "le": "+Inf"}, view.complete.count
    yield "complete_latency_seconds", "_count", labels, view.complete.count
    yield (
        "complete_latency_seconds",
        "_sum",
        labels,
        (view.complete.mean_ms or 0.0) * view.complete.count / 1000,
    )


def _component(view: TopologyReport, component: ComponentReport) -> Found:
    if component.id.startswith("__"):
        return
    labels = {"topology": view.name, "component": component.id}
    is_spout = component.kind == "spout"
    for name in _COUNTERS:
        family = _TREES.get(name) if is_spout else None
        yield family or f"tuples_{name}", "_total", labels, getattr(component.counts, name)
    if is_spout:
        yield "trees_pending", "", labels, component.pending
    else:
        yield "tuples_held", "", labels, component.held
    recent = component.windows[_RECENT]
    if recent.busy is not None:
        yield "component_busy_ratio", "", labels, recent.busy
    for cause, share in recent.paused.items():
        yield "component_paused_ratio", "", {**labels, "cause": cause}, share
    yield "backlog_bytes", "", labels, component.backlog_bytes
    yield "backlog_tuples", "", labels, component.queued
    if component.queued_ms is not None:
        yield "backlog_age_seconds", "", labels, component.queued_ms / 1000
    if component.watermark_ms is not None:
        yield "watermark_timestamp_seconds", "", labels, component.watermark_ms / 1000


def _workers(view: TopologyReport) -> Found:
    for worker in view.workers.values():
        labels = {"topology": view.name, "worker": worker.slot}
        yield "worker_up", "", labels, int(worker.state == RUNNING)
        yield "worker_restarts", "", labels, worker.deaths
        for state, us in worker.loop_us.items():
            yield "worker_time_seconds", "_total", {**labels, "state": state}, us / 1e6
        yield "worker_commits", "_total", labels, worker.commits
        yield "worker_commit_bytes", "_total", labels, worker.commit_bytes
        if worker.memory_mb is not None:
            yield "worker_memory_bytes", "", labels, worker.memory_mb * 1024 * 1024
        if worker.cpu_percent is not None:
            yield "worker_cpu_ratio", "", labels, worker.cpu_percent / 100
