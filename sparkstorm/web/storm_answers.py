"""Answers of Storm's REST interface from the read model: its fields, its texts for numbers, its
windows. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus

from sparkstorm import __version__
from sparkstorm.common.settings import SubmissionSettings
from sparkstorm.control_plane.insight.records import (
    ClusterReport,
    ComponentReport,
    CountWindow,
    ErrorView,
    HostView,
    NodeView,
    TopologyLine,
    TopologyReport,
    WorkerView,
)

WINDOWS = {":all-time": "all", "600": "10m", "10800": "3h", "86400": "24h"}
"""Storm's windows, and ours."""
_RESOURCES = ("requestedMemOnHeap", "requestedMemOffHeap", "requestedTotalMem", "requestedCpu")
_ASSIGNED = ("assignedMemOnHeap", "assignedMemOffHeap", "assignedTotalMem", "assignedCpu")
ERROR_CHARS = 200


def pretty(seconds: float) -> str:
    """Return a span as Storm writes it: "1d 5h 30m 10s"."""
    seconds_left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds_left >= size or parts:
            parts.append(f"{seconds_left // size}{unit}")
            seconds_left %= size
    return " ".join([*parts, f"{seconds_left}s"]) if seconds >= 1 else ""


def window_hint(window: str) -> str:
    """Return a window as readable text."""
    return "All time" if window == ":all-time" else pretty(int(window))


def number(value: float | None) -> str:
    """Return a number as Storm's tables have it."""
    return "0" if value is None else f"{value:.3f}"


def _uptime(since_ms: int | None, now_ms: int) -> dict[str, Any]:
    seconds = max(0, (now_ms - since_ms) // 1000) if since_ms else 0
    return {"uptime": pretty(seconds), "uptimeSeconds": seconds}


def cluster_summary(cluster: ClusterReport) -> dict[str, Any]:
    """GET /cluster/summary."""
    memory = sum(
        node.memory_mb or 0.0 for host in cluster.hosts.values() for node in host.nodes.values()
    )
    cpu = sum(
        node.cpu_percent or 0.0 for host in cluster.hosts.values() for node in host.nodes.values()
    )
    info = {"version": __version__, "revision": "", "branch": "", "date": "", "srcChecksum": ""}
    return {
        "user": None,
        "stormVersion": __version__,
        "stormVersionInfo": info,
        "supervisors": sum(len(host.nodes) for host in cluster.hosts.values()),
        "topologies": len(cluster.topologies),
        "slotsTotal": cluster.slots,
        "slotsUsed": cluster.slots_used,
        "slotsFree": cluster.slots - cluster.slots_used,
        "executorsTotal": cluster.executors,
        "tasksTotal": cluster.tasks,
        "schedulerDisplayResource": False,
        "totalMem": memory,
        "availMem": memory,
        "fragmentedMem": 0.0,
        "memAssignedPercentUtil": "0.000",
        "totalCpu": cpu,
        "availCpu": cpu,
        "fragmentedCpu": 0.0,
        "cpuAssignedPercentUtil": "0.000",
        "totalGenerics": "",
        "availGenerics": "",
        "bugtracker-url": None,
        "central-log-url": None,
    }


def nimbus_summary(cluster: ClusterReport) -> dict[str, Any]:
    """GET /nimbus/summary: the drivers."""
    nimbuses = []
    for driver in cluster.drivers.values():
        up = _uptime(driver.since_ms, cluster.time_ms)
        nimbuses.append(
            {
                "host": driver.host,
                "port": 0,
                "status": "Leader" if driver.is_leader else "Not a Leader",
                "version": __version__,
                "nimbusUpTime": up["uptime"],
                "nimbusUpTimeSeconds": up["uptimeSeconds"],
                "nimbusLogLink": "",
            }
        )
    return {"nimbuses": nimbuses}


def supervisor(node: NodeView, host: HostView) -> dict[str, Any]:
    """SUPERVISOR: the slots of one driver on a host."""
    memory = node.memory_mb or 0.0
    cpu = node.cpu_percent or 0.0
    used_memory = node.memory_used_mb or 0.0
    used_cpu = node.cpu_used_percent or 0.0
    return {
        "id": node.id,
        "host": node.host,
        "uptime": pretty(node.uptime_ms // 1000),
        "uptimeSeconds": node.uptime_ms // 1000,
        "slotsTotal": node.slots,
        "slotsUsed": node.slots_used,
        "slotsFree": node.slots - node.slots_used,
        "totalMem": memory,
        "usedMem": used_memory,
        "availMem": memory - used_memory,
        "totalCpu": cpu,
        "usedCpu": used_cpu,
        "availCpu": cpu - used_cpu,
        "totalGenericResources": "",
        "usedGenericResources": "",
        "availGenericResources": "",
        "blacklisted": host.mark is not None,
        "version": __version__,
        "logLink": "",
    }


def _viewer() -> dict[str, Any]:
    return {"schedulerDisplayResource": False, "logviewerPort": 0, "logviewerScheme": "http"}


def supervisor_summary(cluster: ClusterReport) -> dict[str, Any]:
    """GET /supervisor/summary."""
    supervisors = [
        supervisor(node, host) for host in cluster.hosts.values() for node in host.nodes.values()
    ]
    return {**_viewer(), "supervisors": supervisors}


def supervisor_page(
    cluster: ClusterReport, topologies: Mapping[str, TopologyReport], node: str, host: str
) -> dict[str, Any]:
    """GET /supervisor: one by id, else all of a host."""
    nodes_and_hosts = [
        (node_view, host_view)
        for host_view in cluster.hosts.values()
        for node_view in host_view.nodes.values()
        if (node_view.id == node if node else node_view.host == host)
    ]
    ids = {node_view.id for node_view, _ in nodes_and_hosts}
    workers = [
        worker(worker_view, view, cluster.time_ms)
        for view in topologies.values()
        for worker_view in view.workers.values()
        if worker_view.slot.rpartition(":")[0] in ids
    ]
    return {
        **_viewer(),
        "supervisors": [supervisor(*pair) for pair in nodes_and_hosts],
        "workers": workers,
    }


def worker(worker_view: WorkerView, view: TopologyReport, now_ms: int) -> dict[str, Any]:
    """WORKER."""
    node, _, port = worker_view.slot.rpartition(":")
    return {
        "supervisorId": node,
        "host": worker_view.host or "",
        "port": int(port),
        "topologyId": view.id,
        "topologyName": view.name,
        "executorsTotal": len(worker_view.executors),
        "assignedMemOnHeap": 0.0,
        "assignedMemOffHeap": 0.0,
        "assignedCpu": 0.0,
        "componentNumTasks": dict(worker_view.tasks),
        **_uptime(worker_view.start_ms, now_ms),
        "workerLogLink": log_link(view.id, worker_view.slot),
        "owner": view.owner,
    }


def log_link(topology_id: str, slot: str | None) -> str:
    """Return where a worker's log is."""
    return f"/api/v1/log?file={quote_plus(f'{topology_id}/{slot}/worker.log')}" if slot else ""


def _owner(owner: str, lines: list[TopologyLine]) -> dict[str, Any]:
    zeros = (
        "totalMemoryUsage",
        "totalCpuUsage",
        "totalReqOnHeapMem",
        "totalReqOffHeapMem",
        "totalReqMem",
        "totalReqCpu",
    )
    return {
        "owner": owner,
        "totalTopologies": len(lines),
        "totalExecutors": sum(line.executors for line in lines),
        "totalWorkers": sum(line.workers for line in lines),
        "totalTasks": sum(line.tasks for line in lines),
        **dict.fromkeys((*zeros, "totalAssignedOnHeapMem", "totalAssignedOffHeapMem"), 0.0),
        **dict.fromkeys(
            (
                "memoryGuarantee",
                "cpuGuarantee",
                "memoryGuaranteeRemaining",
                "cpuGuaranteeRemaining",
            ),
            "N/A",
        ),
        "isolatedNodes": -1,
    }


def owner_resources(cluster: ClusterReport, owner: str | None = None) -> dict[str, Any]:
    """GET /owner-resources and /owner-resources/{owner}."""
    lines = list(cluster.topologies.values())
    if owner is not None:
        own = [line for line in lines if line.owner == owner]
        topologies = [topology_line(line, cluster.time_ms) for line in own]
        return {**_owner(owner, own), "topologies": topologies, "schedulerDisplayResource": False}
    owners = sorted({line.owner for line in lines})
    resources = [_owner(name, [line for line in lines if line.owner == name]) for name in owners]
    return {"schedulerDisplayResource": False, "owners": resources}


def topology_line(line: TopologyLine | TopologyReport, now_ms: int) -> dict[str, Any]:
    """TOPOLOGY: identity, size and resources."""
    is_line = isinstance(line, TopologyLine)
    tasks = (
        line.tasks
        if isinstance(line, TopologyLine)
        else sum(len(component.tasks) for component in line.components.values())
    )
    return {
        "id": line.id,
        "encodedId": quote_plus(line.id),
        "owner": line.owner,
        "name": line.name,
        "status": line.status,
        **_uptime(line.launch_ms, now_ms),
        "tasksTotal": tasks,
        "workersTotal": line.workers if is_line else line.workers_given,  # type: ignore[union-attr]
        "executorsTotal": line.executors,
        "replicationCount": 1,
        "schedulerInfo": None,
        **dict.fromkeys((*_RESOURCES, *_ASSIGNED), 0.0),
        "requestedGenericResources": "",
        "assignedGenericResources": "",
        "topologyVersion": None,
        "stormVersion": __version__,
    }


def topology_summary(cluster: ClusterReport) -> dict[str, Any]:
    """GET /topology/summary."""
    topologies = [
        topology_line(topology, cluster.time_ms) for topology in cluster.topologies.values()
    ]
    return {"schedulerDisplayResource": False, "topologies": topologies}


def shown(view: TopologyReport, is_sys: bool) -> list[ComponentReport]:
    """Return the components to show."""
    return [
        component
        for name, component in view.components.items()
        if is_sys or not name.startswith("__")
    ]


def topology_page(view: TopologyReport, window: str, is_sys: bool, now_ms: int) -> dict[str, Any]:
    """GET /topology/{id}."""
    stats = []
    for storm, ours in WINDOWS.items():
        count_window = view.windows[ours]
        stats.append(
            {
                "window": storm,
                "windowPretty": window_hint(storm),
                "emitted": count_window.counts.emitted,
                "transferred": count_window.counts.transferred,
                "completeLatency": number(count_window.complete.mean_ms),
                "acked": count_window.counts.acked,
                "failed": count_window.counts.failed,
            }
        )
    kinds = [
        f"{kind}{part}{where}Mem"
        for kind in ("requested", "assigned")
        for part in ("Regular", "Shared")
        for where in ("OnHeap", "OffHeap")
    ]
    components = shown(view, is_sys)
    return {
        **topology_line(view, now_ms),
        **dict.fromkeys(kinds, 0.0),
        "schedulerDisplayResource": False,
        "user": None,
        "window": window,
        "windowHint": window_hint(window),
        "msgTimeout": (SubmissionSettings.of_partial(view.conf).message_timeout_ms or 0) // 1000,
        "debug": False,
        "samplingPct": 100.0,
        "configuration": {"topology.eventlogger.executors": 0, **view.conf},
        "visualizationTable": [],
        "bugtracker-url": None,
        "central-log-url": None,
        "workers": [worker(worker_view, view, now_ms) for worker_view in view.workers.values()],
        "topologyStats": stats,
        "spouts": [
            _spout(view, component, window, now_ms)
            for component in components
            if component.kind == "spout"
        ],
        "bolts": [
            _bolt(view, component, window, now_ms)
            for component in components
            if component.kind != "spout"
        ],
    }


def error_fields(view: TopologyReport, error: ErrorView | None, now_ms: int) -> dict[str, Any]:
    """Return the fields of a last error."""
    port = error.place.rpartition(":")[2] if error else ""
    return {
        "errorTime": error.time_ms // 1000 if error else None,
        "errorLapsedSecs": max(0, (now_ms - error.time_ms) // 1000) if error else None,
        "errorHost": error.host if error else "",
        "errorPort": int(port) if port.isdecimal() else None,
        "errorWorkerLogLink": log_link(view.id, error.place) if error and error.place else "",
    }


def _common(
    view: TopologyReport, component: ComponentReport, window: CountWindow, now_ms: int
) -> dict[str, Any]:
    return {
        "executors": component.executors,
        "tasks": len(component.tasks),
        **{
            name: getattr(window.counts, name)
            for name in ("emitted", "transferred", "acked", "failed")
        },
        **dict.fromkeys(("requestedMemOnHeap", "requestedMemOffHeap", "requestedCpu"), 0.0),
        "requestedGenericResourcesComp": "",
        "lastError": component.last_error.text[:ERROR_CHARS] if component.last_error else "",
        **error_fields(view, component.last_error, now_ms),
    }


def _spout(
    view: TopologyReport, component: ComponentReport, window: str, now_ms: int
) -> dict[str, Any]:
    of = component.windows[WINDOWS[window]]
    summary = {
        "spoutId": component.id,
        "encodedSpoutId": quote_plus(component.id),
        "completeLatency": number(of.complete.mean_ms),
    }
    return {**summary, **_common(view, component, of, now_ms)}


def _bolt(
    view: TopologyReport, component: ComponentReport, window: str, now_ms: int
) -> dict[str, Any]:
    of = component.windows[WINDOWS[window]]
    return {
        "boltId": component.id,
        "encodedBoltId": quote_plus(component.id),
        "capacity": number(component.windows["10m"].busy),
        "executed": of.counts.executed,
        "executeLatency": number(of.execute_ms),
        "processLatency": process(component.process_us, of),
        **_common(view, component, of, now_ms),
    }


def process(process_us: Mapping[str, float], of: CountWindow) -> str:
    """Return the median from the execute to the ack, where it was measured, else the mean execute
    latency.
    """
    return number(process_us["p50"] / 1000 if "p50" in process_us else of.execute_ms)
