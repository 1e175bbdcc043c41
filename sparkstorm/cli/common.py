"""Common parts of the verbs: options, the connection, tables, times, and errors as one sentence with an exit status."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sparkstorm.client import ClusterClient, connect

Verb = Callable[[argparse.Namespace], int]
OK, FAILED = 0, 1
EXITS = "exit status: 0 done, 1 refused or failed (one sentence on stderr), 2 wrong arguments, 130 stopped with Ctrl-C"


def add_verb(verbs: Any, name: str, run: Verb, help: str, **options: Any) -> argparse.ArgumentParser:
    """Add a verb that speaks to a cluster: with --cluster and --json."""
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=run.__doc__, **{"epilog": EXITS, **options})
    verb.add_argument("--cluster", metavar="FILE", help="connection file of the cluster; else SPARKSTORM_CLUSTER names it")
    verb.add_argument("--json", action="store_true", help="write JSON, for programs")
    verb.set_defaults(run=run)
    return verb


def add_topology_verb(verbs: Any, name: str, run: Verb, help: str, **options: Any) -> argparse.ArgumentParser:
    """Add a verb that speaks to a cluster about one topology: NAME is its first argument."""
    verb = add_verb(verbs, name, run, help, **options)
    verb.add_argument("name", metavar="NAME", help="name or id of the topology")
    return verb


def opened(arguments: argparse.Namespace, writes: bool = False) -> ClusterClient:
    """Connect to the cluster that the arguments name; ReadOnlyConnectionError when the verb writes and may not."""
    cluster = connect(arguments.cluster)
    if writes and cluster.is_read_only:
        cluster.close()
        cluster.require_writer()
    return cluster


def say(arguments: argparse.Namespace, text: str, record: Mapping[str, Any]) -> None:
    """Write one result: a line for people, or an object."""
    if arguments.json:
        write_json(record)
    else:
        print(text, flush=True)


def write_json(value: Any) -> None:
    """Write one JSON value in one line."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def steps(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return what says the steps of a request: on stderr when stdout is for a program."""
    return lambda step: print(step, file=sys.stderr if arguments.json else sys.stdout, flush=True)


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table for people: numbers right, texts left."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    is_right = [bool(rows) and all(isinstance(row[n], (int, float)) for row in rows) for n in range(len(titles))]

    def line(row: Sequence[str]) -> str:
        parts = (cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, is_right, strict=True))
        return "  ".join(parts).rstrip()

    return "\n".join(map(line, [list(titles), *cells]))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def when(time_ms: int) -> str:
    """Return a moment in local time."""
    return datetime.fromtimestamp(time_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def clock_time(time_ms: int) -> str:
    """Return a moment's local time of day, with milliseconds."""
    return datetime.fromtimestamp(time_ms / 1000).strftime("%H:%M:%S.%f")[:-3]


def lasted(ms: float) -> str:
    """Return a span of time in its two greatest units."""
    seconds = max(0, round(ms / 1000))
    for unit, size, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // part} {smaller}"
    return f"{seconds} s"


def at_least(least: float, kind: Callable[[str], float] = int) -> Callable[[str], float]:
    """Return an argument's type: a number from `least` on."""

    def number(text: str) -> float:
        value = kind(text)
        if not value >= least:  # NaN as well
            raise argparse.ArgumentTypeError(f"must be at least {least:g}, got {text}")
        return value

    return number
