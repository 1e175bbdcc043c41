"""Verbs of gray upgrades: upgrade start, continue, complete, rollback, status."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from sparkstorm.cli.cluster_verbs import opened
from sparkstorm.cli.common import (
    FAILED,
    OK,
    add_job_options,
    add_topology_verb,
    add_verb,
    at_least,
    is_for_programs,
    lasted,
    say,
    steps,
    when,
    write_json,
)
from sparkstorm.cli.terminal import show, table
from sparkstorm.client import TopologyHandle
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.names import counted, shown
from sparkstorm.common.model.upgrade import UpgradeStage
from sparkstorm.driver.job_file import make_topology, read_job, topology_conf
from sparkstorm.extensions.upgrade.handle import UpgradeStatus

_LOOK_SECS = 0.2
_SHADOW = "exit status: 0 no difference, 1 differences or failed (one sentence on stderr), 2 wrong arguments"
_DEFAULT_PATIENCE_SECS = 300.0


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    group = verbs.add_parser("upgrade")
    under = group.add_subparsers(required=True, metavar="VERB")
    _add_start(under)
    _add_shadow(under)
    _add_batch(add_topology_verb(under, "continue", go_on, "upgrade the next batch"))
    _add_patience(
        add_topology_verb(
            under, "complete", complete, "end it as it is; the other workers keep their code"
        )
    )
    _add_patience(
        add_topology_verb(
            under, "rollback", roll_back, "restart upgraded workers with the code that they had"
        )
    )
    add_topology_verb(under, "status", status, "its stage, and which workers run what")


def _add_start(verbs: Any) -> None:
    verb = add_verb(
        verbs, "start", start, "restart a first batch of workers with the code of a job file"
    )
    verb.add_argument("conf", metavar="CONF.yaml", help="the job file with the new code")
    add_job_options(verb)
    verb.add_argument(
        "--force",
        action="store_true",
        help="also when the code before could not read the new code's state",
    )
    _add_batch(verb)
    verb.add_argument(
        "--shadow",
        metavar="RECORDING",
        help="first compare both codes over this recording of a live task",
    )
    verb.add_argument(
        "--live-shadow",
        default="",
        metavar="BOLT",
        help="first run the new code along with this bolt's first task",
    )
    verb.add_argument(
        "--tuples",
        type=at_least(0),
        default=0,
        metavar="N",
        help="with a shadow: that many without a difference",
    )


def _add_shadow(verbs: Any) -> None:
    verb = add_verb(
        verbs,
        "shadow",
        compare,
        "step new and running code through a live task's recording",
        epilog=_SHADOW,
    )
    verb.add_argument("conf", metavar="CONF.yaml", help="the job file with the new code")
    verb.add_argument(
        "--recording",
        required=True,
        metavar="FOLDER",
        help="of one task (topology.record.components)",
    )
    verb.add_argument(
        "--tuples", type=at_least(0), default=0, metavar="N", help="the newest N at least; else all"
    )
    add_job_options(verb)


def _add_batch(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--workers", nargs="+", default=[], metavar="NODE:PORT", help="these workers")
    verb.add_argument(
        "--component",
        default="",
        metavar="ID",
        help="workers of this component: --num of them, else all",
    )
    verb.add_argument("--num", type=at_least(0), default=0, metavar="N", help="number of workers")
    _add_patience(verb)


def _add_patience(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--no-wait", action="store_true", help="do not wait until the workers have restarted"
    )
    verb.add_argument(
        "--timeout",
        type=at_least(0, float),
        default=_DEFAULT_PATIENCE_SECS,
        metavar="SECS",
        help="at most (300)",
    )


def start(arguments: argparse.Namespace) -> int:
    """Begin a gray upgrade: a first batch of workers restarts with the new code next to the others;
    nothing is lost.
    """

    job = read_job(arguments)
    topology, by_value = make_topology(job)
    with opened(arguments, writes=True) as cluster:
        handle = cluster.topology(job.name)
        if arguments.shadow:
            _need_spark()
            from sparkstorm.extensions.recording.shadow import check_shadow, shadow

            recorded = arguments.shadow
            least = arguments.tuples
            check_shadow(
                job.name,
                shadow(handle, cluster, topology, topology_conf(job), recorded, least, by_value),
                least,
            )
        before = handle.upgrade.status().last_rollback
        handle.upgrade.start(
            topology,
            topology_conf(job),
            workers=_slots(arguments.workers),
            component=arguments.component,
            worker_num=arguments.num,
            is_forced=arguments.force,
            shadow=arguments.live_shadow,
            shadow_tuples=arguments.tuples if arguments.live_shadow else 0,
            by_value=by_value,
            progress=steps(arguments),
        )
        return _follow(arguments, handle, before)


def compare(arguments: argparse.Namespace) -> int:
    """Give new code what a live task was given, next to the code that runs, and compare what each
    row comes to.
    """
    _need_spark()
    from sparkstorm.extensions.recording.shadow import shadow

    job = read_job(arguments)
    topology, by_value = make_topology(job)
    with opened(arguments) as cluster:
        handle = cluster.topology(job.name)
        comparison = shadow(
            handle,
            cluster,
            topology,
            topology_conf(job),
            arguments.recording,
            arguments.tuples,
            by_value,
        )
    if is_for_programs(arguments):
        write_json(asdict(comparison))
    else:
        for difference in comparison.differences:
            show(shown(str(difference)))
        show(
            f"{counted(comparison.compared, 'tuple')} compared, {comparison.different:,} come out differently"
        )
    return FAILED if comparison.different else OK


def go_on(arguments: argparse.Namespace) -> int:
    """Upgrade the next batch of workers."""
    batch = (_slots(arguments.workers), arguments.component, arguments.num)
    return _act(arguments, lambda upgrade: upgrade.go_on(*batch))


def complete(arguments: argparse.Namespace) -> int:
    """End a gray upgrade as it is: upgraded workers keep the new code, the others theirs."""
    return _act(arguments, lambda upgrade: upgrade.complete())


def roll_back(arguments: argparse.Namespace) -> int:
    """Take a gray upgrade back: upgraded workers restart with the code that they had; nothing is
    lost.
    """
    return _act(arguments, lambda upgrade: upgrade.roll_back(), is_rollback=True)


def status(arguments: argparse.Namespace) -> int:
    """Show the stage of a gray upgrade and which workers run what."""
    with opened(arguments) as cluster:
        handle = cluster.topology(arguments.name)
        upgrade = handle.upgrade.status()
        _show(
            arguments,
            upgrade,
            status_text(upgrade, SystemClock().now_ms()),
            _parked(handle, upgrade.last_rollback),
        )
    return OK


def _act(
    arguments: argparse.Namespace, act: Callable[[Any], object], is_rollback: bool = False
) -> int:
    """Ask something of a gray upgrade, and follow it."""
    with opened(arguments, writes=True) as cluster:
        handle = cluster.topology(arguments.name)
        before = handle.upgrade.status().last_rollback
        act(handle.upgrade)
        return _follow(arguments, handle, before, is_rollback)


def _follow(
    arguments: argparse.Namespace,
    handle: TopologyHandle,
    before: Failure | None,
    is_rollback: bool = False,
) -> int:
    """Wait until the batch is done, the upgrade is over or it is taken back; show its result.

    `before` is the last rollback as of before the request: Nimbus may have reported a new one when
    the request returns.
    """
    until = time.monotonic() + arguments.timeout
    is_late = False
    while not arguments.no_wait and handle.upgrade.is_waiting() and not is_late:
        time.sleep(_LOOK_SECS)
        is_late = time.monotonic() >= until
    upgrade = handle.upgrade.status()
    is_old = upgrade.last_rollback == before  # of an earlier upgrade: `status` shows it
    shown_status = replace(upgrade, last_rollback=None) if is_old else upgrade
    is_over = (
        upgrade.stage is UpgradeStage.NONE and upgrade.status == "ACTIVE" and not arguments.no_wait
    )
    is_completed = is_over and shown_status.last_rollback is None
    text = (
        completed_text(upgrade)
        if is_completed
        else status_text(shown_status, SystemClock().now_ms())
    )
    _show(arguments, shown_status, text, _parked(handle, shown_status.last_rollback))
    if is_late:
        print(
            f"the workers have not restarted within {arguments.timeout:g} s; the cluster goes on with it",
            file=sys.stderr,
        )
    was_taken_back = not is_rollback and (
        upgrade.last_rollback != before or upgrade.stage is UpgradeStage.ROLLING_BACK
    )
    if was_taken_back:
        last = upgrade.last_rollback
        print(
            shown(
                last.text
                if last and last != before
                else f"gray upgrade is rolled back: {upgrade.rollback}"
            ),
            file=sys.stderr,
        )
    return FAILED if is_late or was_taken_back else OK


def _parked(handle: TopologyHandle, rollback: Failure | None) -> int:
    """Return how many dead letters the code has left that was taken back; 0 without a rollback."""
    return (
        handle.dead_letters.count_of(rollback.code_version)
        if rollback and rollback.code_version
        else 0
    )


def _show(arguments: argparse.Namespace, upgrade: UpgradeStatus, text: str, parked: int) -> None:
    if parked:
        text += (
            f"\n{counted(parked, 'tuple is a dead letter', 'tuples are dead letters')} of the code that was taken back: "
            f"`sparkstorm dead-letters replay {upgrade.topology_id} --all` gives them to the code that runs now"
        )
    say(arguments, text, {**status_record(upgrade), "parked": parked})


def completed_text(upgrade: UpgradeStatus) -> str:
    """Return the end of a gray upgrade as text."""
    line = f"{upgrade.topology_id} is {upgrade.status}; the gray upgrade is complete: "
    if not upgrade.other_code:
        return f"{line}all {len(upgrade.remaining)} workers run the new code"
    return f"{line}{', '.join(map(str, upgrade.other_code))} run other code than the rest, as they were when it was ended"


def status_record(upgrade: UpgradeStatus) -> dict[str, Any]:
    """Return a status for programs."""
    slots = ("upgraded", "upgrading", "remaining", "other_code")
    return {
        **asdict(upgrade),
        **{name: [str(slot) for slot in getattr(upgrade, name)] for name in slots},
    }


def status_text(upgrade: UpgradeStatus, now_ms: int) -> str:
    """Return a status as text."""
    if upgrade.stage is UpgradeStage.NONE:
        line = f"{upgrade.topology_id} is {upgrade.status}; no gray upgrade is under way"
        if upgrade.other_code:
            line += f"\nother code than the rest runs at {', '.join(map(str, upgrade.other_code))}"
        if upgrade.last_rollback:
            line += f"\n{when(upgrade.last_rollback.time_ms)}: {shown(upgrade.last_rollback.text)}"
            line += "".join(
                f"\n  {shown(trace_line)}"
                for trace_line in upgrade.last_rollback.traceback.splitlines()
            )
        return line
    ages = f"began {lasted(now_ms - upgrade.started_ms)} ago, ends in {lasted(upgrade.expires_ms - now_ms)} at the latest"
    lines = [
        f"{upgrade.topology_id} is {upgrade.status}: {upgrade.stage}, batch {upgrade.batches}; {ages}"
    ]
    if upgrade.shadow:
        lines.append(
            f"shadow of {shown(str(upgrade.shadow))}; {upgrade.shadow_tuples:,} without a difference are asked for"
        )
    if upgrade.rollback:
        lines.append(f"it is taken back: {shown(upgrade.rollback)}")
    rows = [
        (slot, word)
        for word in ("upgraded", "upgrading", "remaining")
        for slot in getattr(upgrade, word)
    ]
    return "\n".join(
        [*lines, table(("worker", "state"), [(str(slot), word) for slot, word in sorted(rows)])]
    )


def _need_spark() -> None:
    """InvalidConfigError in a Python without pyspark: what steps through recordings belongs to the
    replay.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise InvalidConfigError(
            "a shadow steps through recordings as a replay does, and this Python has no pyspark: pip install pyspark"
        )


def _slots(texts: Sequence[str]) -> list[WorkerSlot]:
    try:
        return [WorkerSlot.parse(text) for text in texts]
    except ValueError as error:
        raise InvalidConfigError(
            f"--workers: {error}; `sparkstorm status` shows the workers"
        ) from None
