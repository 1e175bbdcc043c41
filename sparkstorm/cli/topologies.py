"""Verbs that look at topologies: list, status, tasks, errors."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sparkstorm.app.console import bad_lines, held_lines, late_lines
from sparkstorm.cli.common import NAME_HELP, OK, add_watched_verb, lasted, opened, when, write_json
from sparkstorm.cli.terminal import columns, show, table
from sparkstorm.client import TopologyHandle
from sparkstorm.client.logs import shown
from sparkstorm.client.worker_problems import DEAD
from sparkstorm.clock import SystemClock
from sparkstorm.cluster.nimbus_state import DriverInfo
from sparkstorm.model.assignment import TopologySummary, WorkerSlot
from sparkstorm.model.failure import Failure, FailureGroup
from sparkstorm.model.names import driver_of_node
from sparkstorm.model.task_beats import TaskBeat
from sparkstorm.nimbus.error_reports import FAILED
from sparkstorm.worker.progress import TaskCounts

_FIGURES = ("memory_mb", "memory_growth_mb_per_minute", "cpu_percent")
_COUNTS = ("emitted", "executed", "acked", "failed", "parked", "pending")


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    add_watched_verb(verbs, "list", list_topologies, "topologies of the cluster")
    verb = add_watched_verb(
        verbs, "status", status, "status, workers, counts and problems of a topology; without a name, the cluster's drivers"
    )
    verb.add_argument("name", metavar="NAME", nargs="?", help=NAME_HELP)
    verb = add_watched_verb(
        verbs, "tasks", tasks, "what each task of a topology does: counts, latencies, what waits, its last error"
    )
    verb.add_argument("name", metavar="NAME", help=NAME_HELP)
    verb = add_watched_verb(verbs, "errors", errors, "last errors of a topology's components")
    verb.add_argument("name", metavar="NAME", help=NAME_HELP)
    verb.add_argument("--component", metavar="ID", help="of this component alone")
    verb = add_watched_verb(verbs, "failures", failures, "why tuples failed, by cause: counts, the newest of each, its traceback")
    verb.add_argument("name", metavar="NAME", help=NAME_HELP)
    verb.add_argument("--component", metavar="ID", help="of this component alone")


def list_topologies(arguments: argparse.Namespace) -> int:
    """List every topology with its status and size, then Nimbus's problems."""
    with opened(arguments) as cluster:
        summaries, sentences = cluster.summaries(), cluster.problem_sentences()
        now_ms = SystemClock().now_ms()
    if arguments.json:
        problems = {about: "; ".join(each) for about, each in sentences.items()}
        write_json({"topologies": [asdict(each) for each in summaries], "problems": problems})
        return OK
    titles = ("name", "status", "workers", "executors", "tasks", "up", "owner", "id")
    show(table(titles, [_row(each, now_ms) for each in summaries], columns()) if summaries else "no topology runs here")
    for about, each in sorted(sentences.items()):
        for sentence in each:
            show(f"problem ({about}): {shown(sentence)}")
    return OK


def _row(each: TopologySummary, now_ms: int) -> tuple[Any, ...]:
    up = lasted(now_ms - each.launch_ms)
    return (each.name, each.status, each.num_workers, each.num_executors, each.num_tasks, up, each.owner or "-", each.topology_id)


def status(arguments: argparse.Namespace) -> int:
    """Show what a topology does: status, exact counts by component, workers with their heartbeats, problems."""
    if arguments.name is None:
        return cluster_status(arguments)
    with opened(arguments) as cluster:
        handle = cluster.topology(arguments.name)
        found = status_of(handle)
    if arguments.json:
        write_json(found)
    else:
        show(status_text(found, SystemClock().now_ms(), columns()))
    return OK


def tasks(arguments: argparse.Namespace) -> int:
    """Show the task heartbeats of a topology, gathered every task.heartbeat.frequency.secs."""
    with opened(arguments) as cluster:
        handle = cluster.topology(arguments.name)
        found = handle.task_beats()
    if arguments.json:
        write_json(asdict(found))
        return OK
    if not found.by_task:
        print(f"no task of {handle.topology_id} has reported yet")
        return OK
    titles = ("task", "worker", "up", "emitted", "executed", "failed", "queued", "execute us p50/p95/p99", "last error")
    show(table(titles, [_task_row(task, each) for task, each in sorted(found.by_task.items())], columns()))
    print(f"as of {lasted(SystemClock().now_ms() - found.time_ms)} ago")
    return OK


def _task_row(task: int, each: TaskBeat) -> tuple[Any, ...]:
    latencies = "/".join(f"{each.execute_us[word]:.0f}" for word in ("p50", "p95", "p99") if word in each.execute_us)
    name, up = f"{each.component}#{task}", lasted(each.uptime_ms)
    counts = (each.emitted, each.executed, each.failed + each.retried, each.queued)
    return (name, str(each.slot), up, *counts, latencies or "-", shown(each.last_error)[:60] or "-")


def cluster_status(arguments: argparse.Namespace) -> int:
    """Show the drivers of the cluster, which of them leads, and their slots."""
    with opened(arguments) as cluster:
        drivers, leader, slots = cluster.drivers(), cluster.leader(), cluster.slots()
    leading = leader.driver.id if leader and leader.driver else ""
    rows = [_driver(each, leading, slots) for each in drivers]
    if arguments.json:
        write_json({"drivers": rows})
        return OK
    now_ms = SystemClock().now_ms()
    titles = ("driver", "state", "host", "pid", "slots", "up", "nodes")
    cells = [(*list(row.values())[:5], lasted(now_ms - row["since_ms"]), ", ".join(row["nodes"])) for row in rows]
    show(table(titles, cells, columns()) if rows else "no driver is here: start a cluster")
    return OK


def _driver(each: DriverInfo, leading: str, slots: Mapping[str, int]) -> dict[str, Any]:
    own = {node: count for node, count in slots.items() if driver_of_node(node) == each.number}
    return {
        "driver": each.number,
        "state": "leads" if each.id == leading else "stands by",
        "host": each.host,
        "pid": str(each.pid),
        "slots": sum(own.values()),
        "since_ms": each.since_ms,
        "nodes": sorted(own),
    }


def status_of(handle: TopologyHandle) -> dict[str, Any]:
    """Return everything that `status` shows."""
    summary, base, beats = handle.summary(), handle.status(), handle.beats()
    dead = handle.dead_slots(beats)
    return {
        "topology_id": handle.topology_id,
        "name": handle.name,
        "status": str(base) if base else None,
        "launch_ms": summary.launch_ms if summary else None,
        "owner": summary.owner if summary else "",
        "progress": asdict(handle.progress()),
        "components": counts_by_component(handle.counts()),
        "workers": [
            {
                "slot": f"{beat.node}:{beat.port}",
                "state": DEAD if WorkerSlot(beat.node, beat.port) in dead else beat.state,
                "pid": beat.pid,
                "start_ms": beat.start_ms,
                "beat_ms": beat.time_ms,
                "message": beat.message,
                **{name: figure for name in _FIGURES if type(figure := beat.stats.get(name)) is int},
            }
            for beat in beats
        ],
        "slots": sorted(map(str, handle.slots())),
        "problems": handle.problems(),
        "dead_letters": handle.dead_letters.count(),
    }


def counts_by_component(counts: Mapping[int, TaskCounts]) -> dict[str, dict[str, int]]:
    """Return the sums of all tasks by component; the system's own components are left out."""
    found: dict[str, dict[str, int]] = {}
    for _, each in sorted(counts.items()):
        if not each.component.startswith("__"):
            sums = found.setdefault(each.component, {"tasks": 0, **dict.fromkeys(_COUNTS, 0)})
            sums["tasks"] += 1
            for name in _COUNTS:
                sums[name] += getattr(each, name)
            sums["parked"] -= each.replayed
    return found


def status_text(found: Mapping[str, Any], now_ms: int, width: int | None = None) -> str:
    """Return the status of a topology for people; its tables in lines of `width` columns at most."""
    up = f", up {lasted(now_ms - found['launch_ms'])}" if found["launch_ms"] is not None else ""
    owner = f", of {found['owner']}" if found["owner"] else ""
    lines = [f"{found['topology_id']} is {found['status'] or 'gone'}{up}{owner}"]
    if found["components"]:
        rows = [(name, *sums.values()) for name, sums in found["components"].items()]
        lines += ["", table(("component", "tasks", *_COUNTS), rows, width)]
    progress = found["progress"]
    lines += bad_lines(progress["bad"]) + late_lines(progress["late"]) + held_lines(progress["held"])
    if progress["p50_ms"] is not None:
        lines.append(f"complete latency: p50 {progress['p50_ms']:,.0f} ms, p99 {progress['p99_ms']:,.0f} ms")
    missing = set(found["slots"]) - {worker["slot"] for worker in found["workers"]}
    used = ("memory_mb", "cpu_percent")
    rows = [
        (each["slot"], each["state"], str(each["pid"]), *_ages(each, now_ms), *(each.get(name) for name in used))
        for each in found["workers"]
    ]
    rows += [(slot, "no heartbeat", *[None] * 5) for slot in sorted(missing)]
    if rows:
        lines += ["", table(("worker", "state", "pid", "up", "last beat", "MiB", "CPU %"), rows, width)]
    messages = {
        # The end of its log is worth the room where a worker cannot start; `errors` has it for each death.
        f"worker {each['slot']}: {each['message'] if each['state'] == FAILED else each['message'].partition(chr(10))[0]}"
        for each in found["workers"]
        if each["message"]
    }
    lines += [shown(each) for each in sorted(messages)]
    said = {each.partition("\n")[0] for each in messages}
    lines += [f"problem: {shown(problem)}" for problem in found["problems"] if problem not in said]
    if found["dead_letters"]:
        lines.append(f"{found['dead_letters']:,} dead letters: sparkstorm dead-letters list {found['name']}")
    return "\n".join(lines)


def _ages(worker: Mapping[str, Any], now_ms: int) -> tuple[str | None, str]:
    up = lasted(now_ms - worker["start_ms"]) if worker["start_ms"] else None
    return up, f"{lasted(now_ms - worker['beat_ms'])} ago"


def errors(arguments: argparse.Namespace) -> int:
    """Show the last ten errors of every component, oldest first."""
    with opened(arguments) as cluster:
        found = cluster.topology(arguments.name).errors(arguments.component)
    if arguments.json:
        write_json([asdict(each) for each in found])
    else:
        print("\n".join(map(error_text, found)) or f"no errors of {arguments.name} are kept")
    return OK


def failures(arguments: argparse.Namespace) -> int:
    """Show why tuples failed, by cause, the most frequent first, each with its newest failure and the user's frames."""
    with opened(arguments) as cluster:
        found = cluster.topology(arguments.name).failures(arguments.component)
    if arguments.json:
        write_json([{**asdict(each), "text": str(each.cause)} for each in found])
    else:
        print("\n".join(map(failures_text, found)) or f"nothing of {arguments.name} has failed")
    return OK


def failures_text(group: FailureGroup) -> str:
    """Return the failures of one cause for people."""
    newest = group.newest
    is_masked = newest is not None and not group.cause.place and ("*" in group.cause.error or len(group.cause.error) >= 100)
    cause = f"{group.cause.component}: {newest.text.partition(chr(10))[0]}" if newest and is_masked else str(group.cause)
    lines = [f"{group.count:>9,}  {shown(cause)}"]
    if newest is not None:
        waits = ", ".join(f"{name} {ms:,} ms" for name, ms in newest.waited_ms.items())
        code = f", code {newest.code_version[:12]}" if newest.code_version else ""
        waited = f"; waited: {waits}" if waits else ""
        lines.append(f"{newest.kind} {when(newest.time_ms)} on {newest.place or '?'}{code}{waited}")
        lines += newest.text.splitlines()[1 if is_masked else 0 :]  # the first line is the cause's
        lines += [f"  {line}" for line in newest.traceback.splitlines()]
    return "\n".join([lines[0], *(f"{'':11}{shown(line)}" for line in lines[1:])])


def error_text(error: Failure) -> str:
    """Return one error for people."""
    text = "\n".join(map(shown, error.text.splitlines()))
    return f"{when(error.time_ms)}  {error.component}#{error.task} on {error.place}: {text}"
