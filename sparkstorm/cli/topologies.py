"""Verbs that look at topologies: list, status, tasks, errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sparkstorm.cli.cluster_verbs import add_watched_verb, opened, sampled, sampled_topology
from sparkstorm.cli.common import (
    FAILED,
    NAME_HELP,
    OK,
    add_window,
    is_for_programs,
    lasted,
    when,
    write,
)
from sparkstorm.cli.doctor import culprit_lines
from sparkstorm.cli.terminal import columns, show, table
from sparkstorm.client import TopologyHandle
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.errors import SparkStormError, StoreUnavailableError
from sparkstorm.common.model.assignment import FAILED as CANNOT_START
from sparkstorm.common.model.failure import Cause, FailureGroup
from sparkstorm.common.model.names import counted, driver_of_node, shown
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.settings import AutoscaleMode
from sparkstorm.control_plane.insight.records import (
    ClusterReport,
    DriverView,
    ErrorView,
    TaskView,
    TopologyLine,
    TopologyReport,
    WorkerView,
    to_json,
)
from sparkstorm.driver.console import held_lines

_LAST_ERROR = 60  # as long as a row of `tasks` without it: the double would fold every table
_COUNTS = ("emitted", "executed", "acked", "failed", "parked")


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    add_window(add_watched_verb(verbs, "list", list_topologies))
    verb = add_watched_verb(
        verbs,
        "status",
        status,
        epilog="exit status: 0 all is well, 1 something is at fault (or the question failed), 2 wrong arguments",
    )
    verb.add_argument("name", metavar="NAME", nargs="?", help=NAME_HELP)
    add_window(verb)
    verb = add_watched_verb(verbs, "tasks", tasks)
    verb.add_argument("name", metavar="NAME", help=NAME_HELP)
    verb = add_watched_verb(verbs, "errors", errors)
    verb.add_argument("name", metavar="NAME", help=NAME_HELP)
    verb.add_argument("--component", metavar="ID", help="of this component alone")
    verb = add_watched_verb(verbs, "failures", failures)
    verb.add_argument("name", metavar="NAME", help=NAME_HELP)
    verb.add_argument("--component", metavar="ID", help="of this component alone")


def list_topologies(arguments: argparse.Namespace) -> int:
    """List every topology with its status and size, those that are not well, then Nimbus's
    problems.
    """
    with opened(arguments) as cluster:
        model = sampled(arguments, cluster)
        report = model.cluster()
        views = [model.topology(topology_id) for topology_id in report.topologies]
    problems = problems_of(report, views)
    records = [to_json(topology) for topology in report.topologies.values()]
    if write(arguments, {"topologies": records, "problems": problems}, records):
        return OK
    titles = ("name", "status", "workers", "executors", "tasks", "up", "owner", "id")
    now_ms = SystemClock().now_ms()
    rows = [_row(topology, now_ms) for topology in report.topologies.values()]
    show(table(titles, rows, columns()) if rows else "no topology runs here")
    said = {sentence for sentences in problems.values() for sentence in sentences}
    for view in views:
        if not view.is_well and not any(sentence in view.sentence for sentence in said):
            show(shown(view.sentence))
    for about, sentences in problems.items():
        for sentence in sentences:
            show(f"problem ({about}): {shown(sentence)}")
    return OK


def problems_of(cluster: ClusterReport, views: Iterable[TopologyReport]) -> dict[str, list[str]]:
    """Return Nimbus's problems, and those of topologies that are not being killed, in sentences by
    subject, each once.
    """
    problems = {about: list(sentences) for about, sentences in cluster.problems.items()}
    said = {sentence for sentences in problems.values() for sentence in sentences}
    for view in views:
        own = [*view.problems, *([view.problem] if view.problem else [])]
        if view.status != TopologyStatus.KILLED and (
            new := [sentence for sentence in own if sentence not in said]
        ):
            problems.setdefault(view.id, []).extend(new)
    return dict(sorted(problems.items()))


def _row(topology: TopologyLine, now_ms: int) -> tuple[Any, ...]:
    return (
        topology.name,
        topology.status,
        topology.workers,
        topology.executors,
        topology.tasks,
        lasted(now_ms - topology.launch_ms),
        topology.owner or "-",
        topology.id,
    )


def status(arguments: argparse.Namespace) -> int:
    """Show how a topology does: status, health, exact counts by component, workers with their
    heartbeats, problems.
    """
    if arguments.name is None:
        return cluster_status(arguments)
    with opened(arguments) as cluster:
        view = sampled_topology(arguments, cluster)
        scaling = (
            "" if is_for_programs(arguments) else scaling_line(cluster.topology(view.id), view)
        )
    rows = [{"component": name, **sums} for name, sums in counts_by_component(view).items()]
    if not write(arguments, to_json(view), rows):
        show(status_text(view, SystemClock().now_ms(), columns()) + scaling)
    return OK if view.is_well else FAILED


def scaling_line(handle: TopologyHandle, view: TopologyReport) -> str:
    """Return the plan of a topology with `topology.autoscale` as a line; empty without one."""
    mode = AutoscaleMode.of(view.conf).mode
    if not mode:
        return ""
    try:
        sentence = handle.scaling.plan().sentence()
    except SparkStormError as error:  # not measured yet; the rest of the status is
        sentence = str(error)
    return f"\nautoscale {'is on' if mode is True else 'advises'}: {shown(sentence)}"


def tasks(arguments: argparse.Namespace) -> int:
    """Show what each task of a topology does: exact counts, and latencies, queue and last error of
    its last heartbeat.
    """
    with opened(arguments) as cluster:
        view = sampled_topology(arguments, cluster)
    by_task = {
        task: task_view
        for component in view.components.values()
        for task, task_view in component.tasks.items()
    }
    records = to_json(dict(sorted(by_task.items())))
    if write(
        arguments,
        {"topology_id": view.id, "read_ms": view.read_ms, "tasks": records},
        records.values(),
    ):
        return FAILED if view.problem else OK
    show(tasks_text(by_task, columns()))
    if view.problem:
        print(f"counts cannot be read: {shown(view.problem)}", file=sys.stderr)
    return FAILED if view.problem else OK


def tasks_text(by_task: Mapping[int, TaskView], width: int | None = None) -> str:
    """Return a row for each task; its lines have `width` columns at most."""
    titles = (
        "task",
        "worker",
        "up",
        "emitted",
        "executed",
        "failed",
        "queued",
        "execute us p50/p95/p99",
        "last error",
    )
    return table(titles, [_task_row(task_view) for _, task_view in sorted(by_task.items())], width)


def _task_row(task_view: TaskView) -> tuple[Any, ...]:
    latencies = "/".join(
        f"{task_view.execute_us[word]:.0f}"
        for word in ("p50", "p95", "p99")
        if word in task_view.execute_us
    )
    up = "-" if task_view.uptime_ms is None else lasted(task_view.uptime_ms)
    counts = (
        task_view.counts.emitted,
        task_view.counts.executed,
        task_view.counts.failed + task_view.counts.retried,
        task_view.queued or 0,
    )
    return (
        f"{task_view.component}#{task_view.task}",
        task_view.slot,
        up,
        *counts,
        latencies or "-",
        _begin(shown(task_view.last_error)) or "-",
    )


def _begin(text: str) -> str:
    """Return the beginning of a text: `errors` has the whole."""
    return text if len(text) <= _LAST_ERROR else f"{text[: _LAST_ERROR - 3]}..."


def cluster_status(arguments: argparse.Namespace) -> int:
    """Show the drivers of the cluster, which of them leads, and their slots."""
    with opened(arguments) as cluster:
        report = sampled(arguments, cluster).cluster()
    slots = {
        node: node_view.slots
        for host in report.hosts.values()
        for node, node_view in host.nodes.items()
    }
    rows = [
        _driver(driver, slots)
        for driver in sorted(report.drivers.values(), key=lambda driver: driver.number)
    ]
    if write(arguments, {"drivers": rows}, rows):
        return OK
    now_ms = SystemClock().now_ms()
    titles = ("driver", "state", "host", "pid", "slots", "up", "nodes")
    cells = [
        (*list(row.values())[:5], lasted(now_ms - row["since_ms"]), ", ".join(row["nodes"]))
        for row in rows
    ]
    show(table(titles, cells, columns()) if rows else "no driver is here: start a cluster")
    return OK


def _driver(driver: DriverView, slots: Mapping[str, int]) -> dict[str, Any]:
    own = {node: count for node, count in slots.items() if driver_of_node(node) == driver.number}
    return {
        "driver": driver.number,
        "state": "leads" if driver.is_leader else "stands by",
        "host": driver.host,
        "pid": str(driver.pid),
        "slots": sum(own.values()),
        "since_ms": driver.since_ms,
        "nodes": sorted(own),
    }


def counts_by_component(view: TopologyReport) -> dict[str, dict[str, int]]:
    """Return what `status` shows of each component; the system's own are left out, and what was
    replayed is not parked.
    """
    sums_by_component = {}
    for name, component in view.components.items():
        if not name.startswith("__"):
            counts = {key: getattr(component.counts, key) for key in _COUNTS}
            counts["parked"] = max(0, counts["parked"] - component.counts.replayed)
            sums_by_component[name] = {
                "tasks": len(component.tasks),
                **counts,
                "pending": component.pending,
            }
    return sums_by_component


def status_text(view: TopologyReport, now_ms: int, width: int | None = None) -> str:
    """Return the status of a topology as text; its tables in lines of `width` columns at most."""
    owner = f", of {view.owner}" if view.owner else ""
    lines = [f"{view.id} is {view.status}, up {lasted(now_ms - view.launch_ms)}{owner}"]
    if view.problem:
        lines.append(f"problem: counts cannot be read: {shown(view.problem)}")
    else:
        lines += _figures(view, width)
    workers = [
        (
            worker.slot,
            worker.state,
            _text(worker.pid),
            *_ages(worker, now_ms),
            worker.memory_mb,
            worker.cpu_percent,
        )
        for worker in view.workers.values()
    ]
    if workers:
        lines += [
            "",
            table(("worker", "state", "pid", "up", "last beat", "MiB", "CPU %"), workers, width),
        ]
    messages = {
        # The end of its log is worth the room where a worker cannot start; `errors` has it for each
        # death.
        f"worker {worker.slot}: {worker.message if worker.state == CANNOT_START else worker.message.partition(chr(10))[0]}"
        for worker in view.workers.values()
        if worker.message
    }
    lines += [shown(message) for message in sorted(messages)]
    said = {message.partition("\n")[0] for message in messages}
    said |= {culprit.sentence for culprit in view.culprits}
    lines += [f"problem: {shown(problem)}" for problem in view.problems if problem not in said]
    if view.dead_letters:
        lines.append(
            f"{counted(view.dead_letters, 'dead letter')}: sparkstorm dead-letters list {view.name}"
        )
    return "\n".join(lines)


def _figures(view: TopologyReport, width: int | None) -> list[str]:
    """Return the lines from counts: health, what is at fault, components, latencies."""
    lines = [shown(view.sentence), *culprit_lines(view.culprits, width)]
    if view.components:
        rows = [(name, *sums.values()) for name, sums in counts_by_component(view).items()]
        lines += ["", table(("component", "tasks", *_COUNTS, "pending"), rows, width)]
    users = {
        name: component for name, component in view.components.items() if not name.startswith("__")
    }
    marks = [
        f"{name} {when(user.watermark_ms)}"
        for name, user in users.items()
        if user.watermark_ms is not None
    ]
    # windows that do not fire, as their watermark stands, are seen nowhere else
    lines += [f"watermark: {', '.join(marks)}"] if marks else []
    lines += held_lines({name: user.held for name, user in users.items() if user.held})
    if view.complete.p50_ms is not None and view.complete.p99_ms is not None:
        lines.append(
            f"complete latency: p50 {view.complete.p50_ms:,.0f} ms, p99 {view.complete.p99_ms:,.0f} ms"
        )
    return lines


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)


def _ages(worker: WorkerView, now_ms: int) -> tuple[str, str]:
    up = "-" if worker.start_ms is None else lasted(now_ms - worker.start_ms)
    return up, "-" if worker.beat_ms is None else f"{lasted(now_ms - worker.beat_ms)} ago"


def errors(arguments: argparse.Namespace) -> int:
    """Show the last ten errors of every component, oldest first."""
    with opened(arguments) as cluster:
        model = sampled(arguments, cluster, arguments.name)
        error_views = model.errors(arguments.name, arguments.component)
    if not write(arguments, records := to_json(error_views), records):
        show("\n".join(map(error_text, error_views)) or f"no errors of {arguments.name} are kept")
    return OK


def failures(arguments: argparse.Namespace) -> int:
    """Show why tuples failed, by cause, the most frequent first, each with its newest failure and
    the user's frames.
    """
    with opened(arguments) as cluster:
        view = sampled_topology(arguments, cluster)
        if view.problem:
            raise StoreUnavailableError(view.problem)
        counts = {
            Cause(failure.component, failure.error, failure.place): failure.count
            for failure in view.failures
        }
        groups = cluster.topology(view.id).failures(arguments.component, counts)
    records = [{**asdict(group), "text": str(group.cause)} for group in groups]
    rows = [
        {"cause": record["text"], "count": record["count"], **(record["newest"] or {})}
        for record in records
    ]
    if not write(arguments, records, rows):
        show("\n".join(map(failures_text, groups)) or f"nothing of {arguments.name} has failed")
    return OK


def failures_text(group: FailureGroup) -> str:
    """Return the failures of one cause as text."""
    newest = group.newest
    is_masked = (
        newest is not None
        and not group.cause.place
        and ("*" in group.cause.error or len(group.cause.error) >= 100)
    )
    cause = (
        f"{group.cause.component}: {newest.text.partition(chr(10))[0]}"
        if newest and is_masked
        else str(group.cause)
    )
    lines = [f"{group.count:>9,}  {shown(cause)}"]
    if newest is not None:
        waits = ", ".join(f"{name} {ms:,} ms" for name, ms in newest.waited_ms.items())
        code = f", code {newest.code_version[:12]}" if newest.code_version else ""
        waited = f"; waited: {waits}" if waits else ""
        lines.append(f"{newest.kind} {when(newest.time_ms)} on {newest.place or '?'}{code}{waited}")
        lines += newest.text.splitlines()[1 if is_masked else 0 :]  # the first line is the cause's
        lines += [f"  {line}" for line in newest.traceback.splitlines()]
    return "\n".join([lines[0], *(f"{'':11}{shown(line)}" for line in lines[1:])])


def error_text(error: ErrorView) -> str:
    """Return one error as text."""
    text = "\n".join(map(shown, error.text.splitlines()))
    has_own_name = not error.host or error.place.rpartition(":")[0] == error.host
    where = error.place if has_own_name else f"{error.place} ({error.host})"
    return f"{when(error.time_ms)}  {error.component}#{error.task} on {where}: {text}"
