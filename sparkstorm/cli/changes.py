"""Verbs that change a topology: kill, activate, deactivate, rebalance, scale, restart, log-level; and
the blobs that topologies use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkstorm.cli.cluster_verbs import opened
from sparkstorm.cli.common import (
    EXITS,
    FAILED,
    OK,
    add_topology_verb,
    add_verb,
    at_least,
    is_for_programs,
    lasted,
    say,
    steps,
    write,
    write_json,
)
from sparkstorm.cli.terminal import columns, show, table
from sparkstorm.client import ClusterClient, TopologyHandle
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.config import check, parse_override
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import ExecutorId, NamedBlob, TaskInfo, WorkerSlot
from sparkstorm.common.model.names import counted, shown
from sparkstorm.common.model.requests import LOG_LEVELS, LogLevel, RebalancePlan
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.control_plane.blobs.named import check_size
from sparkstorm.driver.console import is_wanted
from sparkstorm.driver.job_options import add_overrides
from sparkstorm.extensions.autoscale.model import Plan

_SCALE_TITLES = (
    "component",
    "rows/s",
    "rows/s per executor",
    "busy",
    "rows/s wanted",
    "executors",
)


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    verb = add_topology_verb(verbs, "kill", kill)
    verb.add_argument(
        *("-w", "--wait"),
        type=at_least(0, float),
        metavar="SECS",
        help="default: topology.message.timeout.secs",
    )
    _add_savepoint(verbs)
    add_topology_verb(verbs, "activate", activate)
    add_topology_verb(verbs, "deactivate", deactivate)
    _add_rebalance(verbs)
    verb = add_topology_verb(verbs, "scale", scale)
    verb.add_argument("--why", action="store_true", help="a sentence for each component")
    verb.add_argument("--apply", action="store_true", help="carry the plan out, after a question")
    verb.add_argument("--yes", action="store_true", help="do not ask")
    verb = add_topology_verb(verbs, "restart", restart)
    verb.add_argument("--worker", metavar="NODE:PORT", help="this worker alone")
    verb = add_topology_verb(verbs, "log-level", log_level)
    verb.add_argument(
        "levels",
        nargs="+",
        metavar="LOGGER=LEVEL[:SECS]",
        help="root=DEBUG:60 for a minute; LOGGER=RESET takes the level back",
    )


def _add_savepoint(verbs: Any) -> None:
    verb = add_topology_verb(verbs, "savepoint", savepoint)
    verb.add_argument(
        "folder", metavar="FOLDER", help="`submit JOB.yaml --from FOLDER` begins with it"
    )
    verb.add_argument(
        "--kill", action="store_true", help="end the topology with it; else its spouts go on"
    )
    verb.add_argument("--overwrite", action="store_true", help="replace a checkpoint that is there")
    verb.add_argument(
        "--patience",
        type=at_least(0, float),
        default=60.0,
        metavar="SECS",
        help="for what is under way (60)",
    )


def _add_rebalance(verbs: Any) -> None:
    verb = add_topology_verb(verbs, "rebalance", rebalance)
    verb.add_argument("-n", "--workers", type=int, metavar="N", help="number of workers")
    verb.add_argument(
        *("-e", "--executors"),
        action="extend",
        nargs="+",
        default=[],
        metavar="COMPONENT=N",
        help="executors of components",
    )
    add_overrides(verb, "change one key of its configuration")
    verb.add_argument(
        "--reassign", action="store_true", help="place every worker afresh; else keep what may stay"
    )
    verb.add_argument(
        *("-w", "--wait"),
        type=at_least(0, float),
        metavar="SECS",
        help="default: topology.message.timeout.secs",
    )
    verb.add_argument("--plan-only", action="store_true", help="show the plan and change nothing")
    verb.add_argument("--yes", action="store_true", help="do not ask")

    _add_blob(verbs)


def _add_blob(verbs: Any) -> None:
    verb = verbs.add_parser("blob", epilog=EXITS)
    actions = verb.add_subparsers(required=True, metavar="ACTION")
    add_verb(
        actions, "list", list_blobs, "all blobs with size, version and author", is_listing=True
    )
    for name, run, help in (
        ("create", create_blob, "keep a file under a name"),
        ("update", update_blob, "replace a blob, also of topologies that run"),
        ("delete", delete_blob, "delete a blob that no topology uses"),
    ):
        action = add_verb(actions, name, run, help)
        action.add_argument("blob", metavar="NAME", help="its name in topology.blobstore.map")
        if name != "delete":
            action.add_argument("file", metavar="FILE", help="its bytes")


def list_blobs(arguments: argparse.Namespace) -> int:
    """List the blobs that topologies may use by topology.blobstore.map."""
    with opened(arguments) as cluster:
        blobs = cluster.blobs()
    rows = [{"blob": name, **asdict(blobs[name])} for name in sorted(blobs)]
    if write(arguments, {"blobs": rows}, rows):
        return OK
    now_ms = SystemClock().now_ms()
    cells = [
        (
            row["blob"],
            row["size_bytes"],
            row["version"],
            f"{lasted(now_ms - row['changed_ms'])} ago",
            shown(str(row["by"])),
        )
        for row in rows
    ]
    none = "the cluster keeps no blob: sparkstorm blob create NAME FILE"
    show(table(("blob", "bytes", "version", "changed", "by"), cells, columns()) if rows else none)
    return OK


def create_blob(arguments: argparse.Namespace) -> int:
    """Keep a file under a name; topologies get it by topology.blobstore.map."""
    return _put_blob(
        arguments, "is kept", lambda cluster, name, data: cluster.create_blob(name, data)
    )


def update_blob(arguments: argparse.Namespace) -> int:
    """Replace a blob; workers that use it get the new version while they run."""
    return _put_blob(
        arguments, "is replaced", lambda cluster, name, data: cluster.update_blob(name, data)
    )


def delete_blob(arguments: argparse.Namespace) -> int:
    """Delete a blob; refused while a topology uses it."""
    with opened(arguments, writes=True) as cluster:
        cluster.delete_blob(arguments.blob)
    say(arguments, f"{arguments.blob} is deleted", {"blob": arguments.blob})
    return OK


def _put_blob(
    arguments: argparse.Namespace, done: str, put: Callable[[ClusterClient, str, bytes], NamedBlob]
) -> int:
    try:
        check_size(arguments.blob, Path(arguments.file).stat().st_size)
        data = Path(arguments.file).read_bytes()
    except OSError as error:
        raise InvalidConfigError(
            f"blob {arguments.blob}: {arguments.file} cannot be read: {error.strerror}"
        ) from error
    with opened(arguments, writes=True) as cluster:
        made = put(cluster, arguments.blob, data)
    text = f"{arguments.blob} {done}: {made.size_bytes} bytes, version {made.version}"
    say(arguments, text, {"blob": arguments.blob, **asdict(made)})
    return OK


def kill(arguments: argparse.Namespace) -> int:
    """End a topology: its spouts rest for the wait, then its workers are stopped and its data is
    deleted.
    """
    with opened(arguments, writes=True) as cluster:
        topology_id = cluster.kill(arguments.name, arguments.wait)
    say(
        arguments,
        f"{topology_id} is killed",
        {"topology_id": topology_id, "status": TopologyStatus.KILLED},
    )
    return OK


def savepoint(arguments: argparse.Namespace) -> int:
    """Let a topology's spouts rest, finish what is under way, write its states and positions, and
    let the spouts go on.
    """
    with opened(arguments, writes=True) as cluster:
        handle = cluster.topology(arguments.name)
        handle.savepoint(arguments.folder, arguments.patience, arguments.kill, arguments.overwrite)
    ending = "; it is killed" if arguments.kill else ""
    record = {
        "topology_id": handle.topology_id,
        "folder": arguments.folder,
        "killed": arguments.kill,
    }
    say(arguments, f"savepoint of {handle.topology_id} in {arguments.folder}{ending}", record)
    return OK


def activate(arguments: argparse.Namespace) -> int:
    """Let a topology's spouts emit again."""
    return _change_status(arguments, lambda handle: handle.activate(), "active")


def deactivate(arguments: argparse.Namespace) -> int:
    """Let a topology's spouts rest; what is under way is finished."""
    return _change_status(arguments, lambda handle: handle.deactivate(), "inactive")


def _change_status(
    arguments: argparse.Namespace, change: Callable[[TopologyHandle], None], word: str
) -> int:
    with opened(arguments, writes=True) as cluster:
        handle = cluster.topology(arguments.name)
        change(handle)
        say(
            arguments,
            f"{handle.topology_id} is {word}",
            {"topology_id": handle.topology_id, "status": handle.status()},
        )
    return OK


def rebalance(arguments: argparse.Namespace) -> int:
    """Show what a rebalance would move, ask, and carry it out; no tuple is lost or counted twice by
    it.
    """
    options = rebalance_options(arguments)
    with opened(arguments, writes=True) as cluster:
        handle = cluster.topology(arguments.name)
        plan = handle.plan_rebalance(options)
        if not is_for_programs(arguments):
            show(plan_text(plan, handle.tasks()))
        elif arguments.plan_only:
            write_json(plan_record(plan))
        if arguments.plan_only:
            return OK
        if not arguments.yes and not is_wanted():
            print("nothing was changed; --yes carries the plan out", file=sys.stderr)
            return FAILED
        handle.rebalance(options, arguments.wait, steps(arguments))
        less = (
            f"; it has {plan.given_workers} of {plan.wanted_workers} workers: {plan.shortfall}"
            if plan.shortfall
            else ""
        )
        say(arguments, f"{handle.topology_id} is rebalanced{less}", plan_record(plan))
    return OK


def scale(arguments: argparse.Namespace) -> int:
    """Show how many executors and workers a topology needs for what arrives and for its backlog,
    from its true rates (rows by the time that they take); carry it out with --apply.
    """
    if arguments.yes and not arguments.apply:
        raise InvalidConfigError("--yes carries nothing out without --apply: give both")
    with opened(arguments, writes=arguments.apply) as cluster:
        handle = cluster.topology(arguments.name)
        plan = handle.scaling.plan()
        record = scale_record(handle.topology_id, plan)
        if not is_for_programs(arguments):
            show(scale_text(plan, arguments.why, columns()))
        if not arguments.apply or not plan.is_change:
            if is_for_programs(arguments):
                write_json(record)
            return OK
        if not arguments.yes and not is_wanted():
            print("nothing was changed; --yes carries the plan out", file=sys.stderr)
            return FAILED
        handle.scaling.apply(plan, steps(arguments))
    say(arguments, f"{handle.topology_id} is scaled", record)
    return OK


def scale_text(plan: Plan, is_why: bool = False, width: int | None = None) -> str:
    """Return a plan as text; its lines have `width` columns at most."""
    rows = [
        (
            part.id,
            _rate(part.rows_per_s),
            "-" if part.true_rate is None else _rate(part.true_rate),
            f"{part.busy:.0%}",
            _rate(part.wanted_per_s),
            _change(part.executors, part.wanted),
        )
        for part in plan.components
    ]
    lines = [table(_SCALE_TITLES, rows, width)]
    for part in plan.components:
        if is_why or part.executors != part.wanted:
            lines.append(f"{part.id}: {part.why}")
        if part.bottleneck:
            lines.append(f"bottleneck: {part.bottleneck}")
    change = _change(plan.workers, plan.wanted_workers)
    lines.append(f"workers: {change}: {plan.why}")
    if plan.shortage:
        lines.append(f"shortage: {plan.shortage}")
    if not plan.is_change:
        is_enough = not plan.shortage and not any(part.bottleneck for part in plan.components)
        these = f"{counted(plan.workers, 'worker')} and these executors"
        lines.append(
            f"nothing to change: {these} do"
            if is_enough
            else f"nothing that scaling can change: {these} stay, see above"
        )
    return "\n".join(lines)


def scale_record(topology_id: str, plan: Plan) -> dict[str, Any]:
    """Return a plan for programs."""
    return {"topology_id": topology_id, **asdict(plan), "is_change": plan.is_change}


def _change(now: int, wanted: int) -> str:
    return str(now) if now == wanted else f"{now} -> {wanted}"


def _rate(rows_per_s: float) -> str:
    return f"{rows_per_s:,.0f}" if rows_per_s >= 10 else f"{rows_per_s:.1f}"


def rebalance_options(arguments: argparse.Namespace) -> RebalanceOptions:
    """Return the options of a command line; InvalidConfigError names an argument that is none."""
    executors = {}
    for component, number in _parts(arguments.executors, "COMPONENT=N").items():
        if not number.isascii() or not number.isdecimal():
            raise InvalidConfigError(
                f"--executors {component}={number}: expected a number of executors"
            )
        executors[component] = int(number)
    conf = check(dict(parse_override(override) for override in arguments.c), "-c")
    return RebalanceOptions(arguments.workers, executors, conf, reassign=arguments.reassign)


def plan_text(plan: RebalancePlan, tasks: Mapping[int, TaskInfo]) -> str:
    """Return a plan as text: executors that stay, move, begin or end, and topologies without a
    slot.
    """
    movement = plan.movement
    workers = f"{len(set(plan.before.values()))} -> {counted(plan.given_workers, 'worker')}"
    if plan.shortfall:
        workers += f" ({plan.wanted_workers} wanted: {plan.shortfall})"
    lines = [
        f"plan for {plan.topology_id}: {workers}, {counted(len(movement.stayed), 'executor stays', 'executors stay')}"
    ]
    for executor, before, after in movement.moved:
        lines.append(f"  {executor_text(executor, tasks)}: {before or 'new'} -> {after}")
    lines += [
        f"  {executor_text(executor, tasks)}: ends on {slot}" for executor, slot in movement.dropped
    ]
    lines += [
        f"  {executor_text(executor, tasks)}: no slot is free for it" for executor in plan.unplaced
    ]
    return "\n".join(lines)


def plan_record(plan: RebalancePlan) -> dict[str, Any]:
    """Return a plan for programs."""
    movement = plan.movement
    return {
        "topology_id": plan.topology_id,
        "workers": {
            "before": len(set(plan.before.values())),
            "wanted": plan.wanted_workers,
            "given": plan.given_workers,
        },
        "stay": [str(executor) for executor in movement.stayed],
        "move": [
            {"executor": str(e), "from": str(before) if before else None, "to": str(to)}
            for e, before, to in movement.moved
        ],
        "end": [
            {"executor": str(executor), "on": str(slot)} for executor, slot in movement.dropped
        ],
        "unplaced": [str(executor) for executor in plan.unplaced],
    }


def executor_text(executor: ExecutorId, tasks: Mapping[int, TaskInfo]) -> str:
    """Return `component#tasks`."""
    info = tasks.get(executor.first_task)
    return f"{info.component_id if info else 'task'}#{executor}"


def restart(arguments: argparse.Namespace) -> int:
    """Restart the workers of a topology, or one, where they are: each goes on from its last
    commit.
    """
    slot = None
    if arguments.worker is not None:
        try:
            slot = WorkerSlot.parse(arguments.worker)
        except ValueError as error:
            raise InvalidConfigError(
                f"--worker {arguments.worker!r}: {error}; `sparkstorm status` shows the workers"
            ) from None
    with opened(arguments, writes=True) as cluster:
        handle = cluster.topology(arguments.name)
        handle.restart(slot)
    what = f"worker {slot}" if slot else "every worker"
    record = {"topology_id": handle.topology_id, "worker": str(slot) if slot else None}
    say(arguments, f"{what} of {handle.topology_id} is being restarted", record)
    return OK


def log_level(arguments: argparse.Namespace) -> int:
    """Set the levels of loggers in all workers of a topology, for some seconds or until the next
    change.
    """
    levels = log_levels(arguments.levels)
    with opened(arguments, writes=True) as cluster:
        handle = cluster.topology(arguments.name)
        handle.set_log_level(levels)
    record = {
        "topology_id": handle.topology_id,
        "levels": {logger: level.level for logger, level in levels.items()},
    }
    say(arguments, f"the workers of {handle.topology_id} take the levels over", record)
    return OK


def log_levels(arguments: Sequence[str]) -> dict[str, LogLevel]:
    """Return levels by logger of LOGGER=LEVEL[:SECS] arguments; "root" is the root logger, RESET
    takes a level back.
    """
    levels = {}
    for logger, value in _parts(arguments, "LOGGER=LEVEL[:SECS]").items():
        level, _, secs = value.partition(":")
        if level.upper() not in (*LOG_LEVELS, "RESET") or (
            secs and not (secs.isascii() and secs.isdecimal())
        ):
            raise InvalidConfigError(
                f"{logger}={value}: expected a level ({', '.join(LOG_LEVELS)} or RESET), or LEVEL:SECONDS"
            )
        name = "" if logger == "root" else logger
        levels[name] = LogLevel(
            "" if level.upper() == "RESET" else level.upper(), 1000 * int(secs or 0)
        )
    return levels


def _parts(arguments: Sequence[str], form: str) -> dict[str, str]:
    value_by_name = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or not name or not value:
            raise InvalidConfigError(f"{argument!r} is not of the form {form}")
        value_by_name[name] = value
    return value_by_name
