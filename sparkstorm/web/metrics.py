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


_COUNTERS = {
    "emitted": Family("tuples_emitted", "counter", "Tuples emitted by a component."),
    "transferred": Family(
        "tuples_transferred", "counter", "Tuples emitted, times the tasks that receive them."
    ),
    "executed": Family("tuples_executed", "counter", "Inputs executed by a bolt."),
    "acked": Family("tuples_acked", "counter", "Inputs acked by a bolt."),
    "failed": Family("tuples_failed", "counter", "Inputs failed by a bolt."),
    "retried": Family("tuples_retried", "counter", "Tries that failed and were made again."),
    "parked": Family("tuples_parked", "counter", "Inputs given up after their tries."),
    "late": Family("tuples_late", "counter", "Tuples that came too late for their windows."),
    "bad": Family("tuples_bad", "counter", "Records that no tuple can carry."),
    "replayed": Family(
        "tuples_replayed", "counter", "Dead letters that were put back and executed."
    ),
}
_TREES = {
    "acked": Family("trees_completed", "counter", "Trees of a spout that are done."),
    "failed": Family("trees_failed", "counter", "Trees of a spout that failed or timed out."),
}
_STATUS = Family("topology_status", "gauge", "1 for the status that a topology has.")
_INFO = Family("topology_info", "gauge", "1; its labels tell what the topology is.")
_UP = Family("topology_uptime_seconds", "gauge", "Time since the submission.", "seconds")
_WELL = Family(
    "topology_well", "gauge", "1 while nothing is lost, failing or late and no problem is known."
)
_SIZES = {
    "workers": Family("topology_workers", "gauge", "Workers that the topology has."),
    "wanted": Family("topology_workers_wanted", "gauge", "Workers that the topology wants."),
    "executors": Family("topology_executors", "gauge", "Executors of the topology."),
    "tasks": Family("topology_tasks", "gauge", "Tasks of the topology."),
}
_PENDING = Family("trees_pending", "gauge", "Trees of a spout that are neither acked nor failed.")
_HELD = Family("tuples_held", "gauge", "Inputs that a bolt has neither acked nor failed.")
_LATENCY = Family(
    "complete_latency_seconds", "histogram", "Time from the emit of a tree to its end.", "seconds"
)
_BUSY = Family(
    "component_busy_ratio",
    "gauge",
    "Share of the last minute in user code, of the busiest task.",
    "ratio",
)
_PAUSED = Family(
    "component_paused_ratio",
    "gauge",
    "Share of the last minute held back, by cause, of the task held most.",
    "ratio",
)
_BACKLOG = Family(
    "backlog_bytes", "gauge", "Bytes that wait in the streams of a component.", "bytes"
)
_QUEUED = Family("backlog_tuples", "gauge", "Tuples read and not executed yet, from heartbeats.")
_AGE = Family(
    "backlog_age_seconds", "gauge", "Age of the oldest tree of which a tuple waits.", "seconds"
)
_WATERMARK = Family(
    "watermark_timestamp_seconds",
    "gauge",
    "Event time up to which the windows and timers of a component may fire, from heartbeats.",
    "seconds",
)
_EDGE = Family("edge_tuples_sent", "counter", "Tuples sent from a stream to a component.")
_CONSUMED = Family("edge_tuples_consumed", "counter", "Tuples taken in by the receiver of an edge.")
_FAILURES = Family("failures", "counter", "Failed calls, reports and time-outs by cause.")
_LETTERS = Family("dead_letters", "gauge", "Dead letters that are kept.")
_USER = {
    "counter": Family("user_counter", "counter", "Counters of user code, exact across crashes."),
    "gauge": Family("user_gauge", "gauge", "Gauges of user code, by task, as of the last commit."),
    "histogram": Family(
        "user_histogram", "histogram", "Histograms of user code, exact across crashes."
    ),
}
_LOOP = Family("worker_time_seconds", "counter", "Time of a worker's loop by state.", "seconds")
_COMMITS = Family("worker_commits", "counter", "Commits of a worker.")
_COMMIT_BYTES = Family(
    "worker_commit_bytes",
    "counter",
    "Bytes of entries, messages and journals committed by a worker.",
    "bytes",
)
_WORKER_UP = Family("worker_up", "gauge", "1 while the worker runs and its slot sends heartbeats.")
_DEATHS = Family("worker_restarts", "gauge", "Deaths of a worker under its present assignment.")
_MEMORY = Family("worker_memory_bytes", "gauge", "Resident memory of a worker.", "bytes")
_CPU = Family(
    "worker_cpu_ratio", "gauge", "CPU time of a worker by time; 1 is a whole core.", "ratio"
)
_SLOTS = Family("slots", "gauge", "Slots of a node.")
_USED = Family("slots_used", "gauge", "Slots of a node that have a worker.")
_SUPERVISORS = Family("supervisors", "gauge", "Nodes that are alive.")
_LEADER = Family("nimbus_leader", "gauge", "1 while a driver's Nimbus leads.")
_STORE_UP = Family("store_up", "gauge", "1 while Redis answers.")
_FULLNESS = Family(
    "store_fullness_ratio",
    "gauge",
    "Share of Redis's memory limit in use, as workers see it.",
    "ratio",
)
_AWAY = Family("zookeeper_up", "gauge", "1 while ZooKeeper answers.")
_SCRAPED = Family(
    "scrape_age_seconds",
    "gauge",
    "Age of the figures when they were asked for, by the time of the newest.",
    "seconds",
)
FAMILIES = (
    *_COUNTERS.values(),
    *_TREES.values(),
    *_SIZES.values(),
    *_USER.values(),
    *(
        _STATUS,
        _INFO,
        _UP,
        _WELL,
        _PENDING,
        _HELD,
        _LATENCY,
        _BUSY,
        _PAUSED,
        _BACKLOG,
        _QUEUED,
        _AGE,
        _WATERMARK,
        _EDGE,
        _CONSUMED,
    ),
    *(
        _FAILURES,
        _LETTERS,
        _LOOP,
        _COMMITS,
        _COMMIT_BYTES,
        _WORKER_UP,
        _DEATHS,
        _MEMORY,
        _CPU,
        _SLOTS,
        _USED,
        _SUPERVISORS,
    ),
    *(_LEADER, _STORE_UP, _FULLNESS, _AWAY, _SCRAPED),
)
"""Every metric that there is; documents, boards and alert rules may name no other."""
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
    for family, found in samples_by_family(cluster, views):
        name = f"sparkstorm_{family.name}"
        lines += [f"# TYPE {name} {family.kind}", f"# HELP {name} {family.help}"]
        if family.unit:
            lines.insert(len(lines) - 1, f"# UNIT {name} {family.unit}")
        lines += [
            f"{name}{suffix}{_labels(labels)} {_value(value)}" for suffix, labels, value in found
        ]
    return "\n".join([*lines, "# EOF", ""])


def samples_by_family(
    cluster: ClusterReport, views: list[TopologyReport]
) -> list[tuple[Family, list[Sample]]]:
    """Return the samples of each metric that has some, in the order of FAMILIES."""
    samples: dict[str, list[Sample]] = {}
    for family, suffix, labels, value in _all(cluster, views):
        samples.setdefault(family.name, []).append((suffix, labels, value))
    return [(family, samples[family.name]) for family in FAMILIES if family.name in samples]


def _labels(labels: Labels) -> str:
    inner = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _value(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


Found = Iterator[tuple[Family, str, Labels, float]]


def _all(cluster: ClusterReport, views: list[TopologyReport]) -> Found:
    for view in views:
        yield from _topology(view, cluster.time_ms)
        for component in view.components.values():
            yield from _component(view, component)
        yield from _workers(view)
    for host in cluster.hosts.values():
        for node in host.nodes.values():
            labels = {"node": node.id, "host": host.host}
            yield _SLOTS, "", labels, node.slots
            yield _USED, "", labels, node.slots_used
    yield _SUPERVISORS, "", {}, sum(len(host.nodes) for host in cluster.hosts.values())
    for driver in cluster.drivers.values():
        yield (
            _LEADER,
            "",
            {"driver": str(driver.number), "host": driver.host},
            int(driver.is_leader),
        )
    yield _STORE_UP, "", {}, int(cluster.store.is_up)
    if cluster.store.fullness is not None:
        yield _FULLNESS, "", {}, cluster.store.fullness
    yield _AWAY, "", {}, int(cluster.stale_since_ms is None)
    for view in views:
        yield _SCRAPED, "", {"topology": view.name}, (cluster.time_ms - view.read_ms) / 1000


def _topology(view: TopologyReport, now_ms: int) -> Found:
    labels = {"topology": view.name}
    yield _INFO, "", {**labels, "id": view.id, "owner": view.owner}, 1
    for status in _STATUSES:
        yield _STATUS, "", {**labels, "status": status}, int(view.status == status)
    yield _UP, "", labels, max(0, now_ms - view.launch_ms) / 1000
    yield _WELL, "", labels, int(view.is_well)
    tasks = sum(len(each.tasks) for each in view.components.values())
    sizes = {
        "workers": view.workers_given,
        "wanted": view.workers_wanted,
        "executors": view.executors,
        "tasks": tasks,
    }
    for name, size in sizes.items():
        if size is not None:
            yield _SIZES[name], "", labels, size
    if view.dead_letters is not None:
        yield _LETTERS, "", labels, view.dead_letters
    for each in view.failures:
        cause = {"component": each.component, "error": each.error, "place": each.place}
        yield _FAILURES, "_total", {**labels, **cause}, each.count
    for edge in view.edges.values():
        between = {
            **labels,
            "sender": edge.sender,
            "stream": edge.stream,
            "receiver": edge.receiver,
        }
        yield _EDGE, "_total", between, edge.sent
        yield _CONSUMED, "_total", between, edge.consumed
    yield from _histogram(view, labels)
    for metric in view.user_metrics:
        yield from _user(metric, {**labels, "component": metric.component, "name": metric.name})


def _user(metric: UserMetricView, labels: Labels) -> Found:
    family = _USER[metric.kind]
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
                _LATENCY,
                "_bucket",
                {**labels, "le": repr(round(bucket_bound_ms(bucket) / 1000, 9))},
                seen,
            )
    yield _LATENCY, "_bucket", {**labels, "le": "+Inf"}, view.complete.count
    yield _LATENCY, "_count", labels, view.complete.count
    yield _LATENCY, "_sum", labels, (view.complete.mean_ms or 0.0) * view.complete.count / 1000


def _component(view: TopologyReport, each: ComponentReport) -> Found:
    if each.id.startswith("__"):
        return
    labels = {"topology": view.name, "component": each.id}
    is_spout = each.kind == "spout"
    for name, family in _COUNTERS.items():
        if is_spout and name in _TREES:
            family = _TREES[name]
        yield family, "_total", labels, getattr(each.counts, name)
    if is_spout:
        yield _PENDING, "", labels, each.pending
    else:
        yield _HELD, "", labels, each.held
    recent = each.windows[_RECENT]
    if recent.busy is not None:
        yield _BUSY, "", labels, recent.busy
    for cause, share in recent.paused.items():
        yield _PAUSED, "", {**labels, "cause": cause}, share
    yield _BACKLOG, "", labels, each.backlog_bytes
    if each.queued is not None:
        yield _QUEUED, "", labels, each.queued
    if each.queued_ms is not None:
        yield _AGE, "", labels, each.queued_ms / 1000
    if each.watermark_ms is not None:
        yield _WATERMARK, "", labels, each.watermark_ms / 1000


def _workers(view: TopologyReport) -> Found:
    for each in view.workers.values():
        labels = {"topology": view.name, "worker": each.slot}
        yield _WORKER_UP, "", labels, int(each.state == RUNNING)
        yield _DEATHS, "", labels, each.deaths
        for state, us in each.loop_us.items():
            yield _LOOP, "_total", {**labels, "state": state}, us / 1e6
        yield _COMMITS, "_total", labels, each.commits
        yield _COMMIT_BYTES, "_total", labels, each.commit_bytes
        if each.memory_mb is not None:
            yield _MEMORY, "", labels, each.memory_mb * 1024 * 1024
        if each.cpu_percent is not None:
            yield _CPU, "", labels, each.cpu_percent / 100
