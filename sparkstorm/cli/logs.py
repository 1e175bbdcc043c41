"""Verb `sparkstorm logs`: the last lines of a topology's workers, from any host."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from sparkstorm.cli.common import OK, add_verb, opened, write_json
from sparkstorm.client.logs import LogReader
from sparkstorm.errors import NotAliveError

_LOOK_EVERY_S = 1.0


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = add_verb(verbs, "logs", logs, "last lines of a topology's workers, from any host")
    verb.add_argument("name", metavar="NAME", help="name or id of the topology")
    verb.add_argument("--worker", metavar="NODE:PORT", help="of this worker alone")
    verb.add_argument("-n", "--lines", type=int, default=20, metavar="N", help="lines of each worker (20)")
    verb.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")


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
        if not any(found.values()) and not arguments.json:
            print(f"the workers of {handle.topology_id} have printed nothing yet", file=sys.stderr)
        while arguments.follow:
            time.sleep(_LOOK_EVERY_S)
            _write(arguments, reader.read(), is_several)
    return OK


def _write(arguments: argparse.Namespace, found: Any, is_several: bool) -> None:
    for slot, lines in found.items():
        for line in lines:
            if arguments.json:
                write_json({"worker": slot, "line": line})
            else:
                print(f"{slot}  {line}" if is_several else line, flush=True)
