"""Verb that looks at hosts: their slots, their supervisors, and what Nimbus has against them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Set
from typing import Any

from sparkstorm.cli.common import OK, add_watched_verb, lasted, opened, write_json
from sparkstorm.cli.terminal import columns, show, table
from sparkstorm.client.logs import shown
from sparkstorm.clock import SystemClock
from sparkstorm.model.assignment import SupervisorInfo, WorkerSlot


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    add_watched_verb(verbs, "hosts", hosts, "hosts of the cluster: nodes, slots used and free, last heartbeat")


def hosts(arguments: argparse.Namespace) -> int:
    """Show the hosts with their nodes, slots and last heartbeats, then the hosts that Nimbus has blacklisted."""
    with opened(arguments) as cluster:
        rows = host_rows(cluster.supervisors(), cluster.used_slots())
        blacklist = cluster.problems().get("blacklist", "")
    if arguments.json:
        write_json({"hosts": rows, "blacklist": blacklist})
        return OK
    now_ms = SystemClock().now_ms()
    titles = ("host", "rack", "slots", "used", "free", "up", "last beat", "nodes")
    cells = [(*list(row.values())[:5], *_times(row, now_ms), ", ".join(row["nodes"])) for row in rows]
    show(table(titles, cells, columns()) if rows else "no host offers a slot")
    if blacklist:
        show(f"blacklisted: {shown(blacklist)}")
    return OK


def _times(row: dict[str, Any], now_ms: int) -> tuple[str, str]:
    return lasted(row["uptime_ms"]), f"{lasted(now_ms - row['time_ms'])} ago"


def host_rows(supervisors: Iterable[SupervisorInfo], used: Set[WorkerSlot]) -> list[dict[str, Any]]:
    """Return a row for each host by name; a host has a node for each driver. Times are those of its newest node, in ms."""
    by_host: dict[str, list[SupervisorInfo]] = {}
    for info in sorted(supervisors, key=lambda each: each.supervisor_id):
        by_host.setdefault(info.host, []).append(info)
    rows = []
    for host, infos in sorted(by_host.items()):
        slots = {WorkerSlot(info.supervisor_id, port) for info in infos for port in info.ports}
        racks = sorted({rack for info in infos if isinstance(rack := info.scheduler_meta.get("rack"), str)})
        row = {"host": host, "rack": ", ".join(racks) or None, "slots": len(slots)}
        row |= {"used": len(slots & used), "free": len(slots - used)}
        row |= {"uptime_ms": max(info.uptime_ms for info in infos), "time_ms": max(info.time_ms for info in infos)}
        rows.append(row | {"nodes": [info.supervisor_id for info in infos]})
    return rows
