"""Answers of Storm's REST interface on a component, and of its visualisation, from the read model.
PURE.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus

from sparkstorm.control_plane.insight.records import (
    ComponentReport,
    CountWindow,
    TaskView,
    TopologyReport,
)
from sparkstorm.web.storm_answers import (
    ERROR_CHARS,
    WINDOWS,
    error_fields,
    log_link,
    number,
    pretty,
    process,
    shown,
    window_hint,
)

_LAG = re.compile(r"lag\.(.+)/([0-9]+)\.(position|head)")
_GROUPINGS = {
    "local_or_shuffle": "localOrShuffle",
    "load_aware_shuffle": "shuffle",
    "custom": "customObject",
    "key_range": "customObject",
    "global": "fields",
}
TaskWindow = Callable[[int, str], CountWindow]
"""Gives a window of a task by its name."""


def component_page(
    view: TopologyReport,
    component: ComponentReport,
    window: str,
    now_ms: int,
    task_window: TaskWindow,
) -> dict[str, Any]:
    """GET /topology/{id}/component/{component}."""
    of = component.windows[WINDOWS[window]]
    is_spout = component.kind == "spout"
    page = {
        "user": None,
        "id": component.id,
        "encodedId": quote_plus(component.id),
        "name": view.name,
        "topologyId": view.id,
        "encodedTopologyId": quote_plus(view.id),
        "topologyStatus": view.status,
        "componentType": "spout" if is_spout else "bolt",
        "executors": component.executors,
        "tasks": len(component.tasks),
        "window": window,
        "windowHint": window_hint(window),
        **dict.fromkeys(("requestedMemOnHeap", "requestedMemOffHeap", "requestedCpu"), 0.0),
        "requestedGenericResources": "",
        "schedulerDisplayResource": False,
        "debug": False,
        "samplingPct": 100.0,
        "profilingAndDebuggingCapable": False,
        "profileActionEnabled": False,
        "profilerActive": [],
        "componentErrors": [
            {"error": component.last_error.text, **error_fields(view, component.last_error, now_ms)}
        ]
        if component.last_error
        else [],
        "executorStats": _executors(view, component, window, task_window),
        "outputStats": _outputs(view, component, of, is_spout),
    }
    if is_spout:
        return {**page, "spoutSummary": [_spout_window(component, storm) for storm in WINDOWS]}
    return {
        **page,
        "boltStats": [_bolt_window(component, storm) for storm in WINDOWS],
        "inputStats": _inputs(view, component, of),
    }


def _window(component: ComponentReport, storm: str) -> dict[str, Any]:
    """Return the counts of a component in one of Storm's windows."""
    counts = component.windows[WINDOWS[storm]].counts
    names = ("emitted", "transferred", "acked", "failed")
    figures = {name: getattr(counts, name) for name in names}
    return {"window": storm, "windowPretty": window_hint(storm), **figures}


def _spout_window(component: ComponentReport, storm: str) -> dict[str, Any]:
    return {
        **_window(component, storm),
        "completeLatency": component.windows[WINDOWS[storm]].complete.mean_ms or 0.0,
        "lastError": component.last_error.text[:ERROR_CHARS] if component.last_error else "",
    }


def _bolt_window(component: ComponentReport, storm: str) -> dict[str, Any]:
    of = component.windows[WINDOWS[storm]]
    return {
        **_window(component, storm),
        "executed": of.counts.executed,
        "executeLatency": number(of.execute_ms),
        "processLatency": process(component.process_us, of),
        "capacity": number(of.busy),
    }


def _inputs(
    view: TopologyReport, component: ComponentReport, of: CountWindow
) -> list[dict[str, Any]]:
    """Return a row per input stream, from what its edge has delivered since the topology began."""
    edges = [edge for edge in view.edges.values() if edge.receiver == component.id]
    return [
        {
            "component": edge.sender,
            "encodedComponentId": quote_plus(edge.sender),
            "stream": edge.stream,
            "executeLatency": number(of.execute_ms),
            "processLatency": process(component.process_us, of),
            "executed": edge.consumed,
            "acked": of.counts.acked if len(edges) == 1 else edge.consumed,
            "failed": of.counts.failed if len(edges) == 1 else 0,
        }
        for edge in edges
    ]


def _outputs(
    view: TopologyReport, component: ComponentReport, of: CountWindow, is_spout: bool
) -> list[dict[str, Any]]:
    """Return a row per declared stream; a stream without subscribers is not counted apart."""
    streams = [name for name in component.streams if not name.startswith("__")]
    rows = []
    for stream in streams:
        sent = max(
            (
                edge.sent
                for edge in view.edges.values()
                if (edge.sender, edge.stream) == (component.id, stream)
            ),
            default=0,
        )
        emitted, transferred = (
            (of.counts.emitted, of.counts.transferred) if len(streams) == 1 else (sent, sent)
        )
        row: dict[str, Any] = {"stream": stream, "emitted": emitted, "transferred": transferred}
        if is_spout:
            row |= {
                "completeLatency": number(of.complete.mean_ms),
                "acked": of.counts.acked,
                "failed": of.counts.failed,
            }
        rows.append(row)
    return rows


def _executors(
    view: TopologyReport, component: ComponentReport, window: str, task_window: TaskWindow
) -> list[dict[str, Any]]:
    groups: dict[str, list[TaskView]] = {}
    for task in component.tasks.values():
        groups.setdefault(task.executor, []).append(task)
    return [_executor(view, component, tasks, window, task_window) for tasks in groups.values()]


def _executor(
    view: TopologyReport,
    component: ComponentReport,
    tasks: list[TaskView],
    window: str,
    task_window: TaskWindow,
) -> dict[str, Any]:
    windows = [task_window(task.task, WINDOWS[window]) for task in tasks]
    first, _, port = tasks[0], *(tasks[0].slot or ":0").rpartition(":")[1:]
    id = f"[{first.executor}]"
    executed = sum(of.counts.executed for of in windows)
    took = sum((of.execute_ms or 0.0) * of.counts.executed for of in windows)
    seconds = (first.uptime_ms or 0) // 1000
    counts = {
        name: sum(getattr(of.counts, name) for of in windows)
        for name in ("emitted", "transferred", "acked", "failed")
    }
    record = {
        "id": id,
        "encodedId": quote_plus(id),
        "uptime": pretty(seconds),
        "uptimeSeconds": seconds,
        "host": first.host or "",
        "port": int(port),
        **counts,
        "workerLogLink": log_link(view.id, first.slot),
    }
    if component.kind == "spout":
        return {
            **record,
            "completeLatency": number(component.windows[WINDOWS[window]].complete.mean_ms),
        }
    busy = max((task_window(task.task, "10m").busy or 0.0 for task in tasks), default=0.0)
    execute = number(took / executed if executed else None)
    return {
        **record,
        "capacity": number(busy),
        "executeLatency": execute,
        "executed": executed,
        "processLatency": execute,
    }


def visualization(view: TopologyReport, window: str, is_sys: bool) -> dict[str, Any]:
    """GET /topology/{id}/visualization."""
    node_by_id = {}
    for component in shown(view, is_sys):
        of = component.windows[WINDOWS[window]]
        streams = {
            edge.stream: edge.sent for edge in view.edges.values() if edge.sender == component.id
        }
        stats = [
            {
                ":host": task.host or "",
                ":port": int((task.slot or ":0").rpartition(":")[2]),
                ":uptime_secs": (task.uptime_ms or 0) // 1000,
                ":transferred": None,
            }
            for task in component.tasks.values()
        ]
        node_by_id[component.id] = {
            ":type": "spout" if component.kind == "spout" else "bolt",
            ":capacity": 0
            if component.kind == "spout"
            else round(component.windows["10m"].busy or 0.0, 3),
            ":latency": {
                source.stream: round(of.execute_ms or 0.0, 3) for source in component.inputs
            },
            ":transferred": streams,
            ":link": f"/component.html?id={quote_plus(component.id)}&topology_id={quote_plus(view.id)}",
            ":stats": stats,
            ":inputs": [
                {
                    ":component": source.component,
                    ":stream": source.stream,
                    ":sani-stream": sanitised(source.stream),
                    ":grouping": _GROUPINGS.get(source.grouping, source.grouping),
                }
                for source in component.inputs
                if is_sys or not source.component.startswith("__")
            ],
        }
    return node_by_id


def lag(view: TopologyReport) -> dict[str, Any]:
    """GET /topology/{id}/lag: spouts that read Kafka, by the gauges that they keep; a spout without
    them is left out.
    """
    rows: dict[str, Any] = {}
    ends: dict[tuple[str, str, str], dict[str, int]] = {}
    for metric in view.user_metrics:
        match = _LAG.fullmatch(metric.name)
        if match and metric.kind == "gauge" and view.components[metric.component].kind == "spout":
            topic, partition, what = match.groups()
            ends.setdefault((metric.component, topic, partition), {})[what] = int(metric.value)
    for (spout, topic, partition), both in ends.items():
        if both.keys() == {"position", "head"}:
            row = rows.setdefault(
                spout, {"spoutId": spout, "spoutType": "KAFKA", "spoutLagResult": {}}
            )
            row["spoutLagResult"].setdefault(topic, {})[partition] = {
                "logHeadOffset": both["head"],
                "consumerCommittedOffset": both["position"],
                "lag": max(0, both["head"] - both["position"]),
            }
    return rows


def sanitised(stream: str) -> str:
    """Return a stream's name as Storm's page needs it for ids."""
    safe = "".join(
        char if char.isascii() and (char.isalnum() or char in "_-.") else "_" for char in stream
    )
    return safe if safe[:1].isalpha() else f"_s{safe}"


def streams_table(view: TopologyReport) -> dict[str, Any]:
    """GET /topology/{id}/visualization-init: rows of four streams."""
    names = sorted({edge.stream for edge in view.edges.values()})
    cells = [
        {"stream": name, "sani-stream": sanitised(name), "checked": not name.startswith("__")}
        for name in names
    ]
    return {"visualizationTable": [cells[n : n + 4] for n in range(0, len(cells), 4)]}
