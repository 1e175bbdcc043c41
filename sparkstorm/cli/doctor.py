"""The verb `doctor`: the health of a topology, with what is at fault; without a name, checks of
this machine and its servers (`driver/machine_checks.py`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sparkstorm.cli.cluster_verbs import add_watched_verb, opened
from sparkstorm.cli.common import FAILED, NAME_HELP, OK, add_window, write
from sparkstorm.cli.terminal import columns, show, table
from sparkstorm.common.config import load_conf, merge
from sparkstorm.common.model.heartbeats import NO_COUNTS, Counts
from sparkstorm.common.model.names import shown
from sparkstorm.common.stores.contexts import named
from sparkstorm.control_plane.insight.culprits import Culprit
from sparkstorm.control_plane.insight.health import Health
from sparkstorm.control_plane.insight.loads import TaskLoad
from sparkstorm.control_plane.insight.records import CulpritView

if TYPE_CHECKING:
    from sparkstorm.driver.machine_checks import MachineFinding


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = add_watched_verb(
        verbs,
        "doctor",
        doctor,
        epilog="exit status: 0 all is well, 1 something is at fault (or the question failed), 2 wrong arguments",
    )
    verb.add_argument("name", metavar="NAME", nargs="?", help=NAME_HELP)
    verb.add_argument(
        "--conf",
        metavar="CONF.yaml",
        help="without a name: check the servers that this file configures",
    )
    add_window(verb)


def doctor(arguments: argparse.Namespace) -> int:
    """Say how a topology has done in the last minutes and what is at fault, the gravest first."""
    if arguments.name is None:
        return check_machine(arguments)
    with opened(arguments) as cluster:
        health = cluster.topology(arguments.name).health(60 * arguments.minutes)
    record = {**asdict(health), "is_well": health.is_well}
    if not write(arguments, record, record["loads"]):
        show(health_text(health, columns()))
    return OK if health.is_well else FAILED


def check_machine(arguments: argparse.Namespace) -> int:
    """Check Python, Java, the row path, Spark's settings, and the servers: of --conf, else of the
    cluster that is named.
    """

    conf = merge(load_conf(arguments.conf) if arguments.conf else {})
    path = None if arguments.conf else named(arguments.cluster)
    from sparkstorm.driver.machine_checks import findings  # `list` has this module too

    machine_findings = findings(conf, str(path) if path else None, os.environ)
    is_well = all(finding.is_well for finding in machine_findings)
    rows = [asdict(finding) for finding in machine_findings]
    if not write(arguments, {"is_well": is_well, "findings": rows}, rows):
        show(table(("check", "verdict", "found"), findings_rows(machine_findings), columns()))
    return OK if is_well else FAILED


def health_text(health: Health, width: int | None = None) -> str:
    """Return the health of a topology as text; its tables in lines of `width` columns at most."""
    lines = [shown(health.sentence), *culprit_lines(health.culprits, width)]
    if health.loads:
        titles = ("component", "tasks", "busy", "held back", "executed/s", "emitted/s", "failed")
        lines += ["", table(titles, _load_rows(health), width)]
    wanted = "" if health.wanted_workers is None else f" of {health.wanted_workers} wanted"
    lines += ["", f"workers: {health.given_workers}{wanted}"]
    said = {culprit.sentence for culprit in health.culprits}
    lines += [f"problem: {shown(problem)}" for problem in health.problems if problem not in said]
    return "\n".join(lines)


def culprit_lines(culprits: Sequence[Culprit | CulpritView], width: int | None = None) -> list[str]:
    """Return the table of what is at fault; nothing where nothing is."""
    rows = [(culprit.fault, culprit.component, shown(culprit.sentence)) for culprit in culprits]
    return ["", table(("fault", "component", "why"), rows, width)] if rows else []


def _load_rows(health: Health) -> list[tuple[Any, ...]]:
    """Return a row for each component; busy and held back are those of the task with most of it."""
    by_component: dict[str, list[TaskLoad]] = {}
    for load in health.loads:
        if not load.component.startswith("__"):
            by_component.setdefault(load.component, []).append(load)
    return [
        _load_row(component, tasks, health.counts.get(component, NO_COUNTS))
        for component, tasks in by_component.items()
    ]


def _load_row(component: str, tasks: Sequence[TaskLoad], grown: Counts) -> tuple[Any, ...]:
    busy = max(load.busy for load in tasks)
    held = max(sum(load.paused.values()) for load in tasks)
    executed = sum(load.executed_per_s for load in tasks)
    emitted = sum(load.emitted_per_s for load in tasks)
    return (
        component,
        len(tasks),
        f"{busy:.0%}",
        f"{held:.0%}",
        round(executed),
        round(emitted),
        grown.failed + grown.retried,
    )


def findings_rows(machine_findings: Sequence[MachineFinding]) -> list[tuple[str, str, str]]:
    """Return the rows of a table: subject, verdict and sentence."""
    return [
        (finding.subject, "ok" if finding.is_well else "problem", finding.text)
        for finding in machine_findings
    ]
