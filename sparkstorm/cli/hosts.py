"""Verb that shows hosts, their slots and supervisors, and drains, excludes and includes them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict
from typing import Any

from sparkstorm.cli.changes import is_wanted, plan_record, plan_text
from sparkstorm.cli.common import FAILED, OK, add_watched_verb, lasted, opened, say, write_json
from sparkstorm.cli.terminal import columns, show, table
from sparkstorm.client import ClusterClient
from sparkstorm.client.logs import shown
from sparkstorm.clock import SystemClock
from sparkstorm.errors import InvalidConfigError
from sparkstorm.model.assignment import SupervisorInfo, WorkerSlot
from sparkstorm.model.names import counted
from sparkstorm.model.requests import HostMark, RebalancePlan

_CHANGES = {
    "drain": "is drained: its workers move as far as slots elsewhere are free; `sparkstorm hosts` shows those that stay",
    "exclude": "is excluded: it gets no new workers, and those that are there stay",
    "include": "is included: it gets workers again",
}


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = add_watched_verb(verbs, "hosts", hosts, "hosts of the cluster: slots used and free, last heartbeat; drain, exclude")
    verb.add_argument("change", nargs="?", choices=_CHANGES, metavar="drain|exclude|include", help="change a host; else show all")
    verb.add_argument("host", nargs="?", metavar="HOST", help="its name, as `sparkstorm hosts` shows it")
    verb.add_argument("--plan-only", action="store_true", help="show what a drain would move, and change nothing")
    verb.add_argument("--yes", action="store_true", help="do not ask before a drain")
    verb.add_argument("--reason", default="", metavar="TEXT", help="why it is drained or excluded; `hosts` shows it")


def hosts(arguments: argparse.Namespace) -> int:
    """Show the hosts with their nodes, slots, last heartbeats and health, or change one.

    `exclude` keeps new workers away from a host. `drain` also moves those that are there, with their states, as far as free slots
    elsewhere allow. `include` takes both back. What is drained or excluded stays so when another Nimbus leads.
    """
    if arguments.change:
        return _change(arguments)
    with opened(arguments) as cluster:
        marks, problems = cluster.host_marks(), cluster.problems()
        rows = host_rows(cluster.supervisors(), cluster.used_slots(), marks, problems)
        blacklist = problems.get("blacklist", "")
    if arguments.json:
        write_json({"hosts": rows, "marks": {host: asdict(mark) for host, mark in marks.items()}, "blacklist": blacklist})
        return OK
    now_ms = SystemClock().now_ms()
    titles = ("host", "rack", "slots", "used", "free", "up", "last beat", "health", "nodes")
    cells = [(*list(row.values())[:5], *_times(row, now_ms), row["health"], ", ".join(row["nodes"])) for row in rows]
    show(table(titles, cells, columns()) if rows else "no host offers a slot")
    for host, mark in sorted(marks.items()):
        show(shown(mark_text(host, mark, next((row["used"] for row in rows if row["host"] == host), 0), now_ms)))
    if blacklist:
        show(f"blacklisted: {shown(blacklist)}")
    return OK


def _times(row: dict[str, Any], now_ms: int) -> tuple[str, str]:
    return lasted(row["uptime_ms"]), f"{lasted(now_ms - row['time_ms'])} ago"


def _change(arguments: argparse.Namespace) -> int:
    """Drain, exclude or include one host."""
    if not arguments.host:
        raise InvalidConfigError(f"hosts {arguments.change}: name the host; `sparkstorm hosts` lists them")
    if arguments.watch is not None:
        raise InvalidConfigError(f"hosts {arguments.change}: --watch only shows; leave it out")
    with opened(arguments, writes=True) as cluster:
        if arguments.change == "include":
            cluster.include_host(arguments.host)
        elif arguments.change == "drain":
            if not _is_agreed(cluster, arguments):
                return OK if arguments.plan_only else FAILED
            cluster.drain_host(arguments.host, arguments.reason)
        else:
            cluster.exclude_host(arguments.host, arguments.reason)
    say(arguments, f"{arguments.host} {_CHANGES[arguments.change]}", {"host": arguments.host, "change": arguments.change})
    return OK


def _is_agreed(cluster: ClusterClient, arguments: argparse.Namespace) -> bool:
    """Show what a drain would move, and ask; whether it is to be carried out."""
    plans = cluster.plan_drain(arguments.host)
    nodes = {info.supervisor_id for info in cluster.supervisors() if info.host == arguments.host}
    there = {slot for slot in cluster.used_slots() if slot.node in nodes}
    if not arguments.json:
        print(drain_text(arguments.host, plans, there))
        for plan in plans:
            print(plan_text(plan, cluster.topology(plan.topology_id).tasks()))
    elif arguments.plan_only:
        write_json({"host": arguments.host, "plans": [plan_record(plan) for plan in plans]})
    if arguments.plan_only or arguments.yes or is_wanted():
        return not arguments.plan_only
    print("nothing was changed; --yes carries the plan out", file=sys.stderr)
    return False


def drain_text(host: str, plans: Iterable[RebalancePlan], there: Set[WorkerSlot]) -> str:
    """Return how many of the workers on a host, which are in the slots `there`, a drain would move."""
    left = {slot for plan in plans for slot in there & set(plan.before.values()) - set(plan.after.values())}
    stay = f"; {counted(len(there - left), 'stays', 'stay')} until slots elsewhere are free" if there - left else ""
    return f"plan for {host}: {len(left)} of {counted(len(there), 'worker')} there move{stay}"


def mark_text(host: str, mark: HostMark, num_workers: int, now_ms: int) -> str:
    """Return what is said of a host that is drained or excluded and has that many workers."""
    why = f": {mark.reason}" if mark.reason else ""
    workers = f"; {counted(num_workers, 'worker is', 'workers are')} still there, until slots elsewhere are free"
    left = workers if mark.is_drained and num_workers else ""
    return f"{host} {_word(mark)} {lasted(now_ms - mark.since_ms)} ago by {mark.by}{why}{left}"


def _word(mark: HostMark) -> str:
    return "drained" if mark.is_drained else "excluded"


def host_rows(
    supervisors: Iterable[SupervisorInfo],
    used: Set[WorkerSlot],
    marks: Mapping[str, HostMark] | None = None,
    problems: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each host by name; a host has a node for each driver. Times are those of its newest node, in ms.

    `health` is "ok", or what is wrong: excluded or drained, blacklisted, no Redis. `problems` are those of Nimbus by subject.
    """
    problems = problems or {}
    blacklisted = problems.get("blacklist", "").partition(":")[0].split(", ")
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
        wrong = [_word(mark)] if (mark := (marks or {}).get(host)) else []
        wrong += ["blacklisted"] if host in blacklisted else []
        wrong += ["no Redis"] if all(info.store_problem for info in infos) else []
        rows.append(row | {"health": ", ".join(wrong) or "ok", "nodes": [info.supervisor_id for info in infos]})
    return rows
