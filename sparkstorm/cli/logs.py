"""Verbs that look at what workers write: `logs`, their last lines, and `tail`, the rows of a stream; from any host."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

from sparkstorm.cli.common import OK, add_topology_verb, at_least, clock_time, is_for_programs, opened, write_json
from sparkstorm.client.logs import LogReader
from sparkstorm.client.tap import Sample
from sparkstorm.errors import InvalidConfigError, NotAliveError
from sparkstorm.model.values.tagged import to_json

_LOOK_EVERY_S = 1.0


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    verb = add_topology_verb(verbs, "logs", logs, "last lines of a topology's workers, from any host")
    verb.add_argument("--worker", metavar="NODE:PORT", help="of this worker alone")
    verb.add_argument("-n", "--lines", type=at_least(0), default=20, metavar="N", help="lines of each worker (20)")
    verb.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    verb = add_topology_verb(verbs, "tail", tail, "rows of a running topology's stream, as they are committed")
    verb.add_argument("component", metavar="COMPONENT", help="component whose rows are shown")
    verb.add_argument("--stream", default="default", metavar="STREAM", help="its stream (default)")
    verb.add_argument("-n", "--rows", type=at_least(1), metavar="N", help="end after so many rows; else go on until Ctrl-C")
    verb.add_argument("--seconds", type=at_least(0, float), metavar="SECS", help="end after this time")


def logs(arguments: argparse.Namespace) -> int:
    """Show how the logs of a topology's workers end; their slots publish up to 1 MiB of each, a second later."""
    with opened(arguments) as cluster:
        handle = cluster.topology(arguments.name)
        slots = handle.log_slots()
        if arguments.worker is not None and arguments.worker not in slots:
            known = ", ".join(slots) or "none yet"
            raise NotAliveError(f"{handle.topology_id} has no worker {arguments.worker} whose log is kept; there are {known}")
        reader = LogReader(handle, arguments.worker)
        is_several = arguments.worker is None
        found = {slot: lines[-arguments.lines :] if arguments.lines > 0 else [] for slot, lines in reader.read().items()}
        _write(arguments, found, is_several)
        if not any(found.values()) and not is_for_programs(arguments):
            print(f"the workers of {handle.topology_id} have printed nothing yet", file=sys.stderr)
        while arguments.follow:
            time.sleep(_LOOK_EVERY_S)
            _write(arguments, reader.read(), is_several)
    return OK


def _write(arguments: argparse.Namespace, found: Any, is_several: bool) -> None:
    for slot, lines in found.items():
        for line in lines:
            if is_for_programs(arguments):
                write_json({"worker": slot, "line": line})
            else:
                print(f"{slot}  {line}" if is_several else line, flush=True)


def tail(arguments: argparse.Namespace) -> int:
    """Show samples of a stream's committed rows: the newest 50 of each worker, ten times a second; changes no count."""
    shown = 0
    with opened(arguments, writes=True) as cluster:
        try:
            rows = cluster.topology(arguments.name).tail(arguments.component, arguments.stream, arguments.seconds)
        except ValueError as error:
            raise InvalidConfigError(str(error)) from error
        with contextlib.closing(rows):
            while arguments.rows is None or shown < arguments.rows:
                sample = next(rows, _END)
                if sample is _END:
                    break
                if isinstance(sample, Sample):
                    _show(arguments, sample)
                    shown += 1
    return OK


_END = object()


def _show(arguments: argparse.Namespace, sample: Sample) -> None:
    said = {"task": sample.task, "time_ms": sample.time_ms, "values": sample.values}
    if is_for_programs(arguments):
        print(to_json({**said, "problem": sample.problem} if sample.problem else said), flush=True)
    else:
        what = sample.problem or "  ".join(f"{name}={to_json(value)}" for name, value in sample.values.items())
        print(f"{clock_time(sample.time_ms)}  #{sample.task}  {what}", flush=True)
