"""Common parts of the verbs: options, the connection, formats, times, and errors as one sentence
with an exit status.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from sparkstorm.cli import terminal
from sparkstorm.common.model.names import filled, shown
from sparkstorm.driver.job_options import add_overrides

Verb = Callable[[argparse.Namespace], int]
OK = 0
FAILED = 1
NAME_HELP = "name or id of the topology"
FORMATS = ("table", "json", "yaml", "csv")
EXITS = "exit status: 0 done, 1 refused or failed (one sentence on stderr), 2 wrong arguments, 130 stopped with Ctrl-C"


def add_verb(
    verbs: Any, name: str, run: Verb, help: str = "", is_listing: bool = False, **options: Any
) -> argparse.ArgumentParser:
    """Add a verb that connects to a cluster: with --cluster, --context and --json; one that lists
    things has all formats. `help` of a verb under a verb: of the others `cli/__main__.py` has it.
    """
    listed = {"help": help} if help else {}
    verb: argparse.ArgumentParser = verbs.add_parser(
        name, description=run.__doc__, **{"epilog": EXITS, **listed, **options}
    )
    add_cluster(verb)
    add_formats(verb) if is_listing else add_json(verb)
    verb.set_defaults(run=run)
    return verb


def add_cluster(verb: argparse.ArgumentParser) -> None:
    """Add the options that name a cluster."""
    named = verb.add_mutually_exclusive_group()
    named.add_argument(
        "--cluster",
        metavar="FILE",
        type=filled,
        help="connection file of the cluster; else SPARKSTORM_CLUSTER names it",
    )
    named.add_argument(
        "--context",
        metavar="CONTEXT",
        type=filled,
        help="the cluster of that name (`sparkstorm context list`)",
    )


def add_json(verb: argparse.ArgumentParser) -> None:
    """Add the option for programs."""
    verb.add_argument(
        "--json",
        dest="output",
        action="store_const",
        const="json",
        default="table",
        help="write JSON, for programs",
    )


def add_formats(verb: argparse.ArgumentParser) -> None:
    """Add the option for programs, and the one that chooses among all formats."""
    add_json(verb)
    verb.add_argument(
        "-o", "--output", choices=FORMATS, default="table", help="format of what is listed (table)"
    )


def add_window(verb: argparse.ArgumentParser) -> None:
    """Add the option for the time over which topologies are judged."""
    verb.add_argument(
        "--minutes",
        type=int,
        choices=range(1, 11),
        default=10,
        metavar="MINUTES",
        help="judge over the last MINUTES, 1 to 10 (10)",
    )


def add_topology_verb(
    verbs: Any, name: str, run: Verb, help: str = "", **options: Any
) -> argparse.ArgumentParser:
    """Add a verb that connects to a cluster for one topology: NAME is its first argument."""
    verb = add_verb(verbs, name, run, help, **options)
    verb.add_argument("name", metavar="NAME", help=NAME_HELP)
    return verb


def add_job_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of a verb that builds the topology of a job file: its input, configuration
    keys and name.
    """
    verb.add_argument(
        "--input",
        nargs="+",
        default=[],
        metavar="PATH",
        help="files or folders, the factory's `input`",
    )
    add_overrides(verb)
    verb.add_argument("--name", type=filled, help="name of the topology")


def say(arguments: argparse.Namespace, text: str, record: Mapping[str, Any]) -> None:
    """Write one result: a readable line, or an object."""
    if is_for_programs(arguments):
        write_json(record)
    else:
        terminal.show(text)


def is_for_programs(arguments: argparse.Namespace) -> bool:
    """Return whether the output is for a program."""
    return str(arguments.output) != "table"


def write(arguments: argparse.Namespace, record: Any, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Write a record as JSON or YAML, or its rows as CSV; return False, and write nothing, where a
    table is asked for.

    In CSV a mapping within a row has a column for each of its keys, and a list is one cell.
    """
    if arguments.output == "json":
        write_json(record)
    elif arguments.output == "yaml":
        import yaml

        plain = json.loads(json.dumps(record, default=str))  # enums and tuples are none of YAML's
        print(
            yaml.safe_dump(plain, allow_unicode=False, explicit_start=True, sort_keys=False),
            end="",
            flush=True,
        )
    elif arguments.output == "csv":
        flat = [_flat(row) for row in rows]
        titles = [*dict.fromkeys(name for row in flat for name in row)]
        table = csv.DictWriter(sys.stdout, titles, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(flat)
        sys.stdout.flush()
    return is_for_programs(arguments)


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            flat[f"{prefix}{name}"] = shown(text) if isinstance(text, str) else text
    return flat


def write_json(value: Any) -> None:
    """Write one JSON value in one line."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def steps(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return the printer of the steps of a request: on stderr when stdout is for a program."""
    return lambda step: terminal.show(
        step, sys.stderr if is_for_programs(arguments) else sys.stdout
    )


def when(time_ms: int) -> str:
    """Return a moment in local time."""
    return datetime.fromtimestamp(time_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def clock_time(time_ms: int) -> str:
    """Return a moment's local time of day, with milliseconds."""
    return datetime.fromtimestamp(time_ms / 1000).strftime("%H:%M:%S.%f")[:-3]


def lasted(ms: float) -> str:
    """Return a span of time in its two greatest units."""
    seconds = max(0, round(ms / 1000))
    for unit, size, smaller, part in (
        ("d", 86_400, "h", 3_600),
        ("h", 3_600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // part} {smaller}"
    return f"{seconds} s"


# Seconds of a longer wait end in no clock of the system's.
_YEAR_SECS = 366 * 86_400


def at_least(least: float, kind: Callable[[str], float] = int) -> Callable[[str], float]:
    """Return an argument's type: a number from `least` on; one that is not whole is of seconds, up
    to a year.
    """

    def number(text: str) -> float:
        value = kind(text)
        if not value >= least:  # NaN as well
            raise argparse.ArgumentTypeError(f"must be at least {least:g}, got {text}")
        if kind is float and value > _YEAR_SECS:
            raise argparse.ArgumentTypeError(f"must be at most a year, got {text} seconds")
        return value

    return number
