"""The `sparkstorm` command: its parser, and exit statuses of its errors."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from sparkstorm import __version__
from sparkstorm.cli.common import FAILED, Verb
from sparkstorm.cli.terminal import escape_unknown, show
from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.names import shown

_INTERRUPTED = 130
_HELP_COLUMN = 16
_UNKNOWN = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_WORD = re.compile(r"[\w-]+")

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "run": {"jobs": ("submit", "run", "replay", "update", "follow", "cluster", "dev")},
    "look": {
        "topologies": ("list", "status", "tasks", "errors", "failures"),
        "doctor": ("doctor",),
        "hosts": ("hosts",),
        "monitor": ("monitor", "top"),
        "logs": ("logs", "tail", "journey", "stacks"),
        "web": ("web",),
    },
    "change": {
        "changes": (
            "kill",
            "savepoint",
            "activate",
            "deactivate",
            "rebalance",
            "restart",
            "log-level",
            "blob",
        ),
        "upgrades": ("upgrade",),
    },
    "repair": {"dead_letters": ("dead-letters",), "capsules": ("capsule",)},
    "without a cluster": {
        "new_project": ("init",),
        "offline": ("explain", "show", "schedule", "recorded"),
        "contexts": ("context",),
        "completion": ("completion",),
    },
}
"""Verbs by purpose, then by module: of a given verb only its own module is imported."""

STORM_VERBS = {
    "blobstore": "blob",
    "get-errors": "errors",
    "local": "run",
    "node-health-check": "doctor",
    "set_log_level": "log-level",
    "ui": "web",
}
"""Commands of `storm` that have another name here; those with the same name are left out. Options
are those of our verb.
"""
STORM_ELSEWHERE = {
    "jar": "sparkstorm submit JOB.yaml, or a Flux document: no JVM takes part",
    "kill_workers": "sparkstorm hosts drain HOST, or sparkstorm restart NAME --worker NODE:PORT",
    "logviewer": "part of sparkstorm web",
    "nimbus": "the driver: sparkstorm cluster",
    "supervisor": "Spark's executors: sparkstorm cluster",
    "version": "sparkstorm --version",
}
"""Commands of `storm` that no verb is like, each with what to do instead."""


class _VerbGroup:
    """Verbs under one title of the help; argparse has no groups of sub-commands."""

    def __init__(self, title: str, verbs: Any) -> None:
        self._title = title
        self._verbs = verbs
        self._helps: dict[str, str] = {}

    def add_parser(self, name: str, *, help: str, **options: Any) -> argparse.ArgumentParser:
        """Add a verb; it is listed in this group and not among all."""
        self._helps[name] = help
        made: argparse.ArgumentParser = self._verbs.add_parser(name, **options)
        return made

    def __str__(self) -> str:
        """Return the group's part of the help."""
        width = shutil.get_terminal_size().columns - _HELP_COLUMN
        lines = [f"{self._title}:"]
        for name, help in self._helps.items():
            head = f"  {name}".ljust(_HELP_COLUMN)
            lines += textwrap.wrap(
                help, max(20, width), initial_indent=head, subsequent_indent=" " * _HELP_COLUMN
            )
        return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """Parser that names the nearest word for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Write usage and error, and end with exit status 2."""
        found = _UNKNOWN.search(message)
        if found and found[1] in STORM_ELSEWHERE:
            super().error(f"Storm's {found[1]} is here: {STORM_ELSEWHERE[found[1]]}")
        near = difflib.get_close_matches(found[1], _WORD.findall(found[2]), 1) if found else []
        super().error(
            f"there is no {found[1]!r}; did you mean {near[0]}?" if found and near else message
        )


class _Version(argparse.Action):
    """Option that writes the version, and which row path runs: to find that out imports it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from sparkstorm.common.model import compiled

        print(f"sparkstorm {__version__}, row path: {compiled.description}", flush=True)
        parser.exit()


def parser(verb: str = "") -> argparse.ArgumentParser:
    """The command line; a verb is a sub-command that sets `run`. With `verb` it may have that one
    alone.
    """
    made = _Parser(
        prog="sparkstorm",
        description="Storm topologies in Python, hosted on Spark.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--version", action=_Version, nargs=0, help="show program's version number and exit"
    )
    verbs = made.add_subparsers(
        required=True, metavar="VERB", help="one of those below; sparkstorm VERB --help says more"
    )
    groups = [_VerbGroup(title, verbs) for title in GROUPS]
    one = {name for modules in GROUPS.values() for name, known in modules.items() if verb in known}
    for group, modules in zip(groups, GROUPS.values(), strict=True):
        for name in modules if not one else one & modules.keys():
            import_module(f"sparkstorm.cli.{name}").add_verbs(group)
    made.epilog = "\n\n".join(map(str, groups))
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; its exit status."""
    # A stream that the shell has closed (`>&-`) is None here, and a file that is opened next would
    # take its number.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    escape_unknown(sys.stdout)
    words = sys.argv[1:] if argv is None else [*argv]
    try:
        try:
            status = _run(words)
        finally:  # also of --help, which exits: what cannot be written is reported here
            sys.stdout.flush()
        return status
    except SparkStormError as error:
        sys.stdout.flush()
        show("\n".join(map(shown, str(error).split("\n"))), sys.stderr)
        return FAILED
    except KeyboardInterrupt as interrupt:  # a request that was waited for reports its state
        print(interrupt, end="\n" if interrupt.args else "", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has ended (`| head`)
        # or the interpreter complains at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        file = None if error.filename is None else shown(str(error.filename))
        what = f"{file} cannot be read or written" if file else "the output cannot be written"
        show(f"{what}: {error.strerror or error}", sys.stderr)
        if error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _run(words: list[str]) -> int:
    if words[:1] == ["--cluster"] and len(words) > 2:  # an option of the verbs
        words = [*words[2:], *words[:2]]
    words[:1] = [STORM_VERBS.get(each, each) for each in words[:1]]
    if words[:1] == ["__complete"]:
        from sparkstorm.cli.completion import complete

        return complete(words[1:], parser(words[1] if len(words) > 2 else ""))
    arguments = parser(words[0] if words else "").parse_args(words)
    if getattr(arguments, "context", None):
        from sparkstorm.common.stores.contexts import file_of_context

        arguments.cluster = file_of_context(arguments.context)
    run: Verb = arguments.run
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
