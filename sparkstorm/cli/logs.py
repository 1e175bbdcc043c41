"""Verbs that look into workers, from any host: `logs`, their last lines, `tail`, the rows of a
stream, `journey`, the way of one message, and `stacks`, what a process does."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkstorm.cli.cluster_verbs import opened, sampled_topology
from sparkstorm.cli.common import (
    OK,
    add_topology_verb,
    at_least,
    clock_time,
    is_for_programs,
    lasted,
    say,
    when,
    write_json,
)
from sparkstorm.cli.terminal import columns, table
from sparkstorm.client.cluster import ClusterClient
from sparkstorm.client.handle import TopologyHandle
from sparkstorm.client.logs import LogReader
from sparkstorm.client.looks.stacks import Stacks
from sparkstorm.client.looks.taps import Sample
from sparkstorm.client.looks.traces import Trace, spans
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.errors import InvalidConfigError, NotAliveError
from sparkstorm.common.model.names import counted, shown
from sparkstorm.common.model.values.tagged import to_json
from sparkstorm.notebook.flame_graph import flame_graph

if TYPE_CHECKING:
    from sparkstorm.client.looks.journey import Journey, Message

_LOOK_EVERY_S = 1.0


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    verb = add_topology_verb(verbs, "logs", logs)
    verb.add_argument("--worker", metavar="NODE:PORT", help="of this worker alone")
    verb.add_argument(
        "-n", "--lines", type=at_least(0), default=20, metavar="N", help="lines of each worker (20)"
    )
    verb.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    verb = add_topology_verb(verbs, "tail", tail)
    verb.add_argument("component", metavar="COMPONENT", help="component whose rows are shown")
    verb.add_argument("--stream", default="default", metavar="STREAM", help="its stream (default)")
    verb.add_argument(
        "-n",
        "--rows",
        type=at_least(1),
        metavar="N",
        help="end after so many rows; else go on until Ctrl-C",
    )
    verb.add_argument(
        "--seconds", type=at_least(0, float), metavar="SECS", help="end after this time"
    )
    _add_journey(verbs)
    _add_stacks(verbs)


def _add_journey(verbs: Any) -> None:
    verb = add_topology_verb(verbs, "journey", journey)
    verb.add_argument(
        "message",
        metavar="MESSAGE",
        nargs="?",
        help="root (16 hexadecimal digits), or the id of an open message",
    )
    verb.add_argument(
        "--trace",
        type=at_least(0, float),
        metavar="SECS",
        help="follow a sample of messages for this time instead",
    )
    verb.add_argument(
        "-n",
        "--rows",
        type=at_least(1),
        default=20,
        metavar="N",
        help="messages, or traces, that are shown (20)",
    )


def _add_stacks(verbs: Any) -> None:
    verb = add_topology_verb(verbs, "stacks", stacks)
    verb.add_argument("worker", metavar="NODE:PORT", help="worker that is looked at")
    verb.add_argument(
        "--seconds",
        type=at_least(1, float),
        default=5.0,
        metavar="SECS",
        help="time of the look (5)",
    )
    shape = verb.add_mutually_exclusive_group()
    shape.add_argument(
        "--svg", metavar="FILE", help="write a flame graph, a picture without scripts"
    )
    shape.add_argument(
        "--folded",
        action="store_true",
        help='write "thread;call;call N" for each stack, for other tools',
    )


def logs(arguments: argparse.Namespace) -> int:
    """Show how the logs of a topology's workers end; their slots publish up to 1 MiB of each, a
    second later.
    """
    with opened(arguments) as cluster:
        handle = cluster.topology(arguments.name)
        slots = handle.log_slots()
        if arguments.worker is not None and arguments.worker not in slots:
            names = ", ".join(slots) or "none yet"
            raise NotAliveError(
                f"{handle.topology_id} has no worker {arguments.worker} whose log is kept; there are {names}"
            )
        reader = LogReader(handle, arguments.worker)
        is_several = arguments.worker is None
        lines_by_slot = {
            slot: lines[-arguments.lines :] if arguments.lines > 0 else []
            for slot, lines in reader.read().items()
        }
        _write(arguments, lines_by_slot, is_several)
        if not any(lines_by_slot.values()) and not is_for_programs(arguments):
            print(_why_empty(cluster, handle), file=sys.stderr)
        while arguments.follow:
            time.sleep(_LOOK_EVERY_S)
            _write(arguments, reader.read(), is_several)
    return OK


def _why_empty(cluster: ClusterClient, handle: TopologyHandle) -> str:
    log_config = cluster.state.read_log_config(handle.topology_id)
    level = log_config.levels[""].level if log_config and "" in log_config.levels else "INFO"
    return (
        f"the workers of {handle.topology_id} have printed nothing yet; their loggers print {level} and above "
        f"(sparkstorm log-level {handle.name} root=DEBUG shows more)"
    )


def _write(arguments: argparse.Namespace, lines_by_slot: Any, is_several: bool) -> None:
    for slot, lines in lines_by_slot.items():
        for line in lines:
            if is_for_programs(arguments):
                write_json({"worker": slot, "line": line})
            else:
                print(f"{slot}  {line}" if is_several else line, flush=True)


def tail(arguments: argparse.Namespace) -> int:
    """Show samples of a stream's committed rows: the newest 50 of each worker, ten times a second;
    changes no count.
    """
    with opened(arguments, writes=True) as cluster:
        try:
            rows = cluster.topology(arguments.name).tail(
                arguments.component, arguments.stream, arguments.seconds
            )
        except ValueError as error:
            raise InvalidConfigError(str(error)) from error
        with contextlib.closing(rows):
            if not is_for_programs(arguments):
                what = f"{arguments.component}/{arguments.stream}"
                print(f"waiting for rows of {what}; Ctrl-C ends", file=sys.stderr)
            read = (sample for sample in rows if sample is not None)
            shown_rows = 0
            for sample in islice(read, arguments.rows):
                shown_rows += 1
                _show(arguments, sample)
    if not shown_rows and not is_for_programs(arguments):
        stream = f"{arguments.component}/{arguments.stream}"
        print(f"no row of {stream} was committed meanwhile", file=sys.stderr)
    return OK


def _show(arguments: argparse.Namespace, sample: Sample) -> None:
    said = {"task": sample.task, "time_ms": sample.time_ms, "values": sample.values}
    if is_for_programs(arguments):
        print(to_json({**said, "problem": sample.problem} if sample.problem else said), flush=True)
    else:
        what = sample.problem or "  ".join(
            f"{name}={to_json(value)}" for name, value in sample.values.items()
        )
        print(f"{clock_time(sample.time_ms)}  #{sample.task}  {what}", flush=True)


def journey(arguments: argparse.Namespace) -> int:
    """Show what the store keeps of a message: emitted when, waiting where, failed how often, given
    up by whom.
    """
    with opened(arguments, writes=arguments.trace is not None) as cluster:
        handle = cluster.topology(arguments.name)
        if arguments.trace is not None:
            view = sampled_topology(arguments, cluster)
            traces = handle.traces(arguments.trace, view.spouts_per_s)
            say(
                arguments,
                traces_text(traces[: arguments.rows]),
                {"traces": [asdict(trace) for trace in traces[: arguments.rows]]},
            )
        elif arguments.message is None:
            messages = handle.journeys.open(arguments.rows)
            say(
                arguments,
                messages_text(messages, SystemClock().now_ms()),
                {"open": [asdict(message) for message in messages]},
            )
        else:
            message_journey = handle.journeys.find(arguments.message)
            say(
                arguments,
                journey_text(message_journey),
                {**asdict(message_journey), "sentence": message_journey.sentence},
            )
    return OK


def messages_text(messages: Sequence[Message], now_ms: int) -> str:
    """Return a row for each open message."""
    if not messages:
        return "no message is open"
    rows = [
        (
            message.root,
            f"{message.component}#{message.task}",
            lasted(now_ms - message.emit_ms),
            message.message_id,
        )
        for message in messages
    ]
    return table(("message", "spout", "open for", "id"), rows, columns())


def journey_text(message_journey: Journey) -> str:
    """Return a journey as readable text."""
    lines = [shown(message_journey.sentence)]
    if message_journey.message is not None:
        began = message_journey.message
        lines.append(
            f"emitted {when(began.emit_ms)} by {began.component}#{began.task}, id {began.message_id}"
        )
    for stay in message_journey.stays:
        since = "" if stay.since_ms is None else f" since {when(stay.since_ms)}"
        values = "  ".join(f"{name}={value}" for name, value in stay.values.items())
        tries = (
            f", {counted(stay.attempts, 'try', 'tries')}: {shown(stay.failure)}"
            if stay.attempts
            else ""
        )
        lines.append(
            f"  {stay.component}#{stay.task} {stay.state}{since}{tries}  {values}".rstrip()
        )
    lines += [
        f"  dead letter {letter.id}: {letter.component}#{letter.task} {when(letter.time_ms)}: {letter.reason}"
        for letter in message_journey.parked
    ]
    return "\n".join(lines)


def traces_text(traces: Sequence[Trace]) -> str:
    """Return traces as text: a line for each message, then one for each of its events."""
    if not traces:
        return "no message was traced: none was emitted meanwhile, or the topology has no ackers, so that its rows have no roots"

    lines = []
    for trace in traces:
        lines.append(
            f"message {trace.root}: {trace.took_us / 1000:,.1f} ms{', failed' if trace.has_failed else ''}"
        )
        for span in spans(trace):
            text = f"  {shown(span['text'])}" if span["text"] else ""
            source = f" from {span['source']}" if span["source"] else ""
            times = f"{span['began_ms']:>9,.1f}  {span['took_ms']:>8,.1f}  {span['committed_ms']:>9,.1f} ms"
            lines.append(
                f"{times}  {span['where']} {span['what']}{source} on {span['worker']}{text}"
            )
    return "\n".join(["    begun      took  committed", *lines])


def stacks(arguments: argparse.Namespace) -> int:
    """Sample the stacks of a worker's threads fifty times a second, and show where they are, by CPU
    time and by samples.
    """
    # Before the sample, which a file that cannot be written would lose.
    if arguments.svg:
        Path(arguments.svg).touch()
    with opened(arguments, writes=True) as cluster:
        stack_counts = cluster.topology(arguments.name).stacks(arguments.worker, arguments.seconds)
    if arguments.svg:
        title = f"{arguments.name}, {stack_counts.slot}"
        Path(arguments.svg).write_text(
            flame_graph(
                stack_counts.stacks, stack_counts.samples, stack_counts.seconds, title
            ).text,
            encoding="utf-8",
        )
    elif arguments.folded:
        print("\n".join(map(shown, stack_counts.folded().splitlines())))
        return OK
    say(
        arguments,
        stacks_text(stack_counts) if not arguments.svg else f"{arguments.svg} is written",
        asdict(stack_counts),
    )
    return OK


def stacks_text(stack_counts: Stacks, most: int = 20) -> str:
    """Return where a worker's threads are, those that use most CPU first: lines of user code, and
    the innermost calls.
    """
    sums: dict[tuple[str, str, str], list[int]] = {}
    for stack in stack_counts.stacks:
        place = stack.thread, stack.user, stack.calls[-1] if stack.calls else "-"
        figures = sums.setdefault(place, [0, 0])
        figures[0] += stack.samples
        figures[1] += stack.cpu_us
    order = sorted(sums.items(), key=lambda item: (-item[1][1], -item[1][0], item[0]))[:most]
    of = max(1, stack_counts.samples)
    rows = [
        (shown(thread), f"{count / of:.0%}", f"{us / 1000:,.0f}", shown(user) or "-", shown(call))
        for (thread, user, call), (count, us) in order
    ]
    head = f"{stack_counts.slot}: {stack_counts.samples:,} samples in {stack_counts.seconds:g} s"
    titles = ("thread", "samples", "CPU ms", "user code", "inside of")
    return f"{head}\n\n{table(titles, rows, columns())}"
