"""The `sparkstorm` command: its parser, and exit statuses of its errors."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from sparkstorm import __version__
from sparkstorm.cli import capsules, changes, dead_letters, jobs, logs, offline, topologies, upgrades
from sparkstorm.cli.common import FAILED, Verb
from sparkstorm.errors import SparkStormError
from sparkstorm.model import compiled

_INTERRUPTED = 130
_UNKNOWN = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_WORD = re.compile(r"[\w-]+")


class _Parser(argparse.ArgumentParser):
    """Parser that names the nearest word for one that it does not know."""

    def error(self, message: str) -> NoReturn:
        """Write usage and error, and end with exit status 2."""
        found = _UNKNOWN.search(message)
        near = difflib.get_close_matches(found[1], _WORD.findall(found[2]), 1) if found else []
        super().error(f"there is no {found[1]!r}; did you mean {near[0]}?" if found and near else message)


def parser() -> argparse.ArgumentParser:
    """The command line; a verb is a sub-command that sets `run`."""
    made = _Parser(prog="sparkstorm", description="Storm topologies in Python, hosted on Spark.")
    made.add_argument("--version", action="version", version=f"sparkstorm {__version__}, row path: {compiled.description}")
    verbs = made.add_subparsers(required=True, metavar="VERB")
    for group in (jobs, topologies, changes, upgrades, dead_letters, capsules, logs, offline):
        group.add_verbs(verbs)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; its exit status."""
    arguments = parser().parse_args(argv)
    run: Verb = arguments.run
    try:
        return run(arguments)
    except SparkStormError as error:
        sys.stdout.flush()
        print(error, file=sys.stderr, flush=True)
        return FAILED
    except KeyboardInterrupt as interrupt:  # a request that was waited for says what becomes of it
        print(interrupt, end="\n" if interrupt.args else "", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # whoever read our output has enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
