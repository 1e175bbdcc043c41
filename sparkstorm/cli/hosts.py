"""Verb that shows hosts, their slots and supervisors, and drains, excludes and includes them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Set
from typing import Any

from sparkstorm.cli.changes import plan_record, plan_text
from sparkstorm.cli.cluster_verbs import add_watched_verb, opened, sampled
from sparkstorm.cli.common import FAILED, OK, is_for_programs, lasted, say, write, write_json
from sparkstorm.cli.terminal import columns, show, table
from sparkstorm.client import ClusterClient
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.names import counted, shown
from sparkstorm.common.model.requests import RebalancePlan
from sparkstorm.control_plane.insight.records import HostView, to_json
from sparkstorm.driver.console import is_wanted

_CHANGES = {
    "drain": "is drained: its workers move as far as slots elsewhere are free; `sparkstorm hosts` shows those that stay",
    "exclude": "is excluded: it gets no new workers, and those that are there stay",
    "include": "is included: it gets workers again",
}


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = add_watched_verb(verbs, "hosts", hosts)
    verb.add_argument(
        "change",
        nargs="?",
        choices=_CHANGES,
        metavar="drain|exclude|include",
        help="change a host; else show all",
    )
    verb.add_argument(
        "host", nargs="?", metavar="HOST", help="its name, as `sparkstorm hosts` shows it"
    )
    verb.add_argument(
        "--plan-only", action="store_true", help="show what a drain would move, and change nothing"
    )
    verb.add_argument("--yes", action="store_true", help="do not ask before a drain")
    verb.add_argument(
        "--reason",
        default="",
        metavar="TEXT",
        help="why it is drained or excluded; `hosts` shows it",
    )


def hosts(arguments: argparse.Namespace) -> int:
    """Show the hosts with their nodes, slots, last heartbeats and health, or change one.

    `exclude` keeps new workers away from a host. `drain` also moves those that are there, with
    their states, as far as free slots elsewhere allow. `include` takes both back. What is drained
    or excluded stays so when another Nimbus leads.
    """
    if arguments.change:
        return _change(arguments)
    with opened(arguments) as cluster:
        report = sampled(arguments, cluster).cluster()
    rows = [host_row(host) for host in report.hosts.values() if host.nodes]
    blacklist = "; ".join(report.problems.get("blacklist", ()))
    if write(
        arguments,
        {"hosts": [to_json(host) for host in report.hosts.values()], "blacklist": blacklist},
        rows,
    ):
        return OK
    now_ms = SystemClock().now_ms()
    titles = ("host", "rack", "slots", "used", "free", "up", "last beat", "health", "nodes")
    cells = [
        (*list(row.values())[:5], *_times(row, now_ms), row["health"], ", ".join(row["nodes"]))
        for row in rows
    ]
    show(table(titles, cells, columns()) if rows else "no host offers a slot")
    for host in report.hosts.values():
        if host.mark:
            show(shown(mark_text(host, now_ms)))
    if blacklist:
        show(f"blacklisted: {shown(blacklist)}")
    return OK


def _times(row: Mapping[str, Any], now_ms: int) -> tuple[str, str]:
    return lasted(row["uptime_ms"]), f"{lasted(now_ms - row['beat_ms'])} ago"


def _change(arguments: argparse.Namespace) -> int:
    """Drain, exclude or include one host."""
    if not arguments.host:
        raise InvalidConfigError(
            f"hosts {arguments.change}: name the host; `sparkstorm hosts` lists them"
        )
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
    say(
        arguments,
        f"{arguments.host} {_CHANGES[arguments.change]}",
        {"host": arguments.host, "change": arguments.change},
    )
    return OK


def _is_agreed(cluster: ClusterClient, arguments: argparse.Namespace) -> bool:
    """Show what a drain would move, and ask; whether it is to be carried out."""
    plans = cluster.plan_drain(arguments.host)
    nodes = {info.supervisor_id for info in cluster.supervisors() if info.host == arguments.host}
    there = {slot for slot in cluster.used_slots() if slot.node in nodes}
    if not is_for_programs(arguments):
        show(drain_text(arguments.host, plans, there))
        for plan in plans:
            show(plan_text(plan, cluster.topology(plan.topology_id).tasks()))
    elif arguments.plan_only:
        write_json({"host": arguments.host, "plans": [plan_record(plan) for plan in plans]})
    if arguments.plan_only or arguments.yes or is_wanted():
        return not arguments.plan_only
    print("nothing was changed; --yes carries the plan out", file=sys.stderr)
    return False


def drain_text(host: str, plans: Iterable[RebalancePlan], there: Set[WorkerSlot]) -> str:
    """Return how many of the workers on a host, which are in the slots `there`, a drain would
    move.
    """
    leaving = {
        slot
        for plan in plans
        for slot in there & set(plan.before.values()) - set(plan.after.values())
    }
    stay = (
        f"; {counted(len(there - leaving), 'stays', 'stay')} until slots elsewhere are free"
        if there - leaving
        else ""
    )
    return f"plan for {host}: {len(leaving)} of {counted(len(there), 'worker')} there move{stay}"


def mark_text(host: HostView, now_ms: int) -> str:
    """Return the sentence on a host that is drained or excluded."""
    why = f": {host.mark_reason}" if host.mark_reason else ""
    workers = f"; {counted(host.slots_used, 'worker is', 'workers are')} still there, until slots elsewhere are free"
    remaining = workers if host.mark == "drained" and host.slots_used else ""
    return f"{host.host} {host.mark} {lasted(now_ms - (host.mark_since_ms or now_ms))} ago by {host.mark_by}{why}{remaining}"


def host_row(host: HostView) -> dict[str, Any]:
    """Return the row of a host that has nodes, one for each driver. Times are those of its newest
    node, in ms.

    `health` is "ok", or what is wrong: excluded or drained, blacklisted, no Redis, no
    driver for some of its slots.
    """
    nodes = host.nodes.values()
    wrong = [host.mark] if host.mark else []
    wrong += ["blacklisted"] if host.is_blacklisted else []
    wrong += ["no Redis"] if all(node.store_problem for node in nodes) else []
    wrong += ["no driver"] if any(node.driver_problem for node in nodes) else []
    return {
        "host": host.host,
        "rack": host.rack,
        "slots": len(host.slots),
        "used": host.slots_used,
        "free": len(host.slots) - host.slots_used,
        "uptime_ms": max(node.uptime_ms for node in nodes),
        "beat_ms": max(node.beat_ms for node in nodes),
        "health": ", ".join(wrong) or "ok",
        "nodes": list(host.nodes),
    }
