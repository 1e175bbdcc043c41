"""A Grafana board and alert rules for Prometheus over /metrics: `python -m sparkstorm.web.boards
conf/monitoring`. PURE.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

BOARD = "grafana.json"
RULES = "alerts.yaml"
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_TOPOLOGY = 'topology=~"$topology"'
_WIDE = 24
_LATENCY = f"histogram_quantile(0.SHARE, sum by (le) (rate(sparkstorm_complete_latency_seconds_bucket{{{_TOPOLOGY}}}[1m])))"


class Chart(NamedTuple):
    """A chart of the board: its title, Grafana's unit, and PromQL expressions by legend."""

    title: str
    unit: str
    lines: Mapping[str, str]
    about: str = ""


ROWS: Mapping[str, tuple[Chart, ...]] = {
    "Does it keep up?": (
        Chart(
            "executed",
            "ops",
            {
                "{{component}}": f"sum by (component) (rate(sparkstorm_tuples_executed_total{{{_TOPOLOGY}}}[1m]))"
            },
        ),
        Chart(
            "complete latency",
            "s",
            {f"p{share}": _LATENCY.replace("SHARE", str(share)) for share in (50, 99)},
        ),
        Chart(
            "busy",
            "percentunit",
            {
                "{{component}}": f"max by (component) (sparkstorm_component_busy_ratio{{{_TOPOLOGY}}})"
            },
            "Share of the last minute in user code, of the busiest task.",
        ),
        Chart(
            "held back",
            "percentunit",
            {
                "{{component}} {{cause}}": f"max by (component, cause) (sparkstorm_component_paused_ratio{{{_TOPOLOGY}}})"
            },
        ),
    ),
    "What waits, what fails?": (
        Chart(
            "open trees",
            "short",
            {"{{component}}": f"sum by (component) (sparkstorm_trees_pending{{{_TOPOLOGY}}})"},
        ),
        Chart(
            "backlog",
            "bytes",
            {"{{component}}": f"sum by (component) (sparkstorm_backlog_bytes{{{_TOPOLOGY}}})"},
        ),
        Chart(
            "age of the backlog",
            "s",
            {
                "{{component}}": f"max by (component) (sparkstorm_backlog_age_seconds{{{_TOPOLOGY}}})"
            },
        ),
        Chart(
            "failed and given up",
            "ops",
            {
                "{{component}} failed": f"sum by (component) (rate(sparkstorm_tuples_failed_total{{{_TOPOLOGY}}}[5m])) > 0",
                "{{component}} parked": f"sum by (component) (rate(sparkstorm_tuples_parked_total{{{_TOPOLOGY}}}[5m])) > 0",
                "{{component}} late": f"sum by (component) (rate(sparkstorm_tuples_late_total{{{_TOPOLOGY}}}[5m])) > 0",
            },
        ),
    ),
    "Workers": (
        Chart(
            "loop time",
            "percentunit",
            {
                "{{state}}": f"avg by (state) (rate(sparkstorm_worker_time_seconds_total{{{_TOPOLOGY}}}[1m]))"
            },
            "Mean over the workers.",
        ),
        Chart("memory", "bytes", {"{{worker}}": f"sparkstorm_worker_memory_bytes{{{_TOPOLOGY}}}"}),
        Chart("CPU", "percentunit", {"{{worker}}": f"sparkstorm_worker_cpu_ratio{{{_TOPOLOGY}}}"}),
        Chart(
            "commits",
            "ops",
            {"{{worker}}": f"rate(sparkstorm_worker_commits_total{{{_TOPOLOGY}}}[1m])"},
        ),
    ),
    "User code": (
        Chart(
            "counters",
            "ops",
            {
                "{{component}} {{name}}": f"sum by (component, name) (rate(sparkstorm_user_counter_total{{{_TOPOLOGY}}}[1m]))"
            },
        ),
        Chart(
            "gauges",
            "short",
            {"{{component}}#{{task}} {{name}}": f"sparkstorm_user_gauge{{{_TOPOLOGY}}}"},
        ),
        Chart(
            "histograms, p99",
            "short",
            {
                "{{component}} {{name}}": "histogram_quantile(0.99, sum by (component, name, le) "
                f"(rate(sparkstorm_user_histogram_bucket{{{_TOPOLOGY}}}[5m])))"
            },
        ),
    ),
    "Cluster": (
        Chart(
            "slots", "short", {"used": "sum(sparkstorm_slots_used)", "all": "sum(sparkstorm_slots)"}
        ),
        Chart("Redis's memory", "percentunit", {"full": "sparkstorm_store_fullness_ratio"}),
        Chart("dead letters", "short", {"{{topology}}": f"sparkstorm_dead_letters{{{_TOPOLOGY}}}"}),
    ),
}


class Alert(NamedTuple):
    """An alert rule: name, expression, how long it must hold, how grave it is, and a readable
    sentence.
    """

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str


ALERTS = (
    Alert(
        "SparkStormBacklogIsOld",
        "max by (topology, component) (sparkstorm_backlog_age_seconds) > 60",
        "5m",
        "warning",
        "{{ $labels.component }} of {{ $labels.topology }} is {{ $value | humanizeDuration }} behind",
    ),
    Alert(
        "SparkStormTuplesGivenUp",
        "sum by (topology, component) (increase(sparkstorm_tuples_parked_total[10m])) > 0",
        "0m",
        "warning",
        "{{ $labels.component }} of {{ $labels.topology }} gave tuples up: see its dead letters",
    ),
    Alert(
        "SparkStormWorkerDies",
        "sum by (topology, worker) (delta(sparkstorm_worker_restarts[10m])) > 3",
        "0m",
        "critical",
        "worker {{ $labels.worker }} of {{ $labels.topology }} died more than three times in ten minutes",
    ),
    Alert(
        "SparkStormWorkersMissing",
        "sparkstorm_topology_workers < sparkstorm_topology_workers_wanted",
        "5m",
        "warning",
        "{{ $labels.topology }} has fewer workers than it wants",
    ),
    Alert(
        "SparkStormNotWell",
        'sparkstorm_topology_well == 0 and on (topology) sparkstorm_topology_status{status="ACTIVE"} == 1',
        "10m",
        "warning",
        "{{ $labels.topology }} loses, fails or delays tuples, or has a known problem: sparkstorm doctor {{ $labels.topology }}",
    ),
    Alert(
        "SparkStormStoreFills",
        "sparkstorm_store_fullness_ratio > 0.5",
        "5m",
        "critical",
        "Redis is at {{ $value | humanizePercentage }} of its memory: spouts stop at 60 %",
    ),
    Alert(
        "SparkStormStoreAway",
        "sparkstorm_store_up == 0",
        "30s",
        "critical",
        "Redis does not answer",
    ),
    Alert(
        "SparkStormZooKeeperAway",
        "sparkstorm_zookeeper_up == 0",
        "30s",
        "critical",
        "ZooKeeper does not answer",
    ),
    Alert(
        "SparkStormNoLeader",
        "sum(sparkstorm_nimbus_leader) < 1",
        "30s",
        "critical",
        "no driver's Nimbus leads",
    ),
    Alert(
        "SparkStormFiguresAreOld",
        "max by (topology) (sparkstorm_scrape_age_seconds) > 60",
        "1m",
        "warning",
        "the counts of {{ $labels.topology }} could not be read for a minute",
    ),
)


def board() -> dict[str, Any]:
    """Return the board as Grafana imports it; it asks for the data source."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, charts in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "gridPos": {"x": 0, "y": y, "w": _WIDE, "h": 1},
                "panels": [],
            }
        )
        wide = _WIDE // len(charts)
        for place, chart in enumerate(charts):
            at = {"x": place * wide, "y": y + 1, "w": wide, "h": 8}
            panels.append(_panel(len(panels) + 1, chart, at))
        y += 9
    topologies = {
        "name": "topology",
        "type": "query",
        "datasource": _SOURCE,
        "query": {
            "query": "label_values(sparkstorm_topology_info, topology)",
            "refId": "topologies",
        },
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "data source"}
    return {
        "uid": "sparkstorm",
        "title": "SparkStorm",
        "tags": ["sparkstorm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, topologies]},
        "panels": panels,
    }


def _panel(number: int, chart: Chart, at: Mapping[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + place),
            "expr": expr,
            "legendFormat": legend,
            "datasource": _SOURCE,
        }
        for place, (legend, expr) in enumerate(chart.lines.items())
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": chart.title,
        "description": chart.about,
        "gridPos": dict(at),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": chart.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def rules() -> dict[str, Any]:
    """Return the alert rules as Prometheus reads them."""
    found = [
        {
            "alert": each.name,
            "expr": each.expr,
            "for": each.lasts,
            "labels": {"severity": each.severity},
            "annotations": {"summary": each.summary},
        }
        for each in ALERTS
    ]
    return {"groups": [{"name": "sparkstorm", "rules": found}]}


def texts() -> dict[str, str]:
    """Return both files by name."""
    return {
        BOARD: json.dumps(board(), indent=1) + "\n",
        RULES: "# made by `python -m sparkstorm.web.boards`\n"
        + yaml.safe_dump(rules(), sort_keys=False, width=140),
    }


def main(folder: str) -> None:
    """Write both files into a folder."""
    for name, text in texts().items():
        Path(folder, name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
