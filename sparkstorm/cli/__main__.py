"""The `sparkstorm` command: its parser, and exit statuses of its errors."""

from __future__ import annotations

import argparse
import difflib
import gc
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain
from typing import NoReturn

from sparkstorm import __version__
from sparkstorm.cli.common import FAILED, Verb
from sparkstorm.cli.completion import complete
from sparkstorm.cli.terminal import escape_unknown, show
from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model import compiled
from sparkstorm.common.model.names import shown
from sparkstorm.common.stores.contexts import file_of_context

_INTERRUPTED = 130
_HELP_COLUMN = 16
_UNKNOWN = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_WORD = re.compile(r"[\w-]+")

GROUPS: dict[str, dict[str, dict[str, str]]] = {
    "run": {
        "jobs": {
            "submit": "submit the topology of a job file and follow it",
            "run": "run a job file on a cluster of its own",
            "replay": "run a job file over history, as a Spark batch",
            "update": "replace a running topology's code by that of a job file",
            "follow": "watch a topology until its sources are drained",
            "cluster": "hold a cluster on Spark until stopped",
            "dev": "hold a cluster with Kafka, PostgreSQL and an object store",
        },
    },
    "look": {
        "topologies": {
            "list": "topologies of the cluster",
            "status": "status, workers, counts and problems of a topology; without a name, the cluster's drivers",
            "tasks": "what each task of a topology does: counts, latencies, what waits, its last error",
            "errors": "last errors of a topology's components",
            "failures": "why tuples failed, by cause: counts, the newest of each, its traceback",
        },
        "doctor": {
            "doctor": "health of a topology: what is slow, failing, late, held back or lost; "
            "without a name, of this machine and the servers",
        },
        "hosts": {
            "hosts": "hosts of the cluster: slots used and free, last heartbeat; drain, exclude",
        },
        "monitor": {
            "monitor": "rates of a topology, a line for each interval",
            "top": "topologies, components and workers in the terminal, live",
            "web": "serve the web UI of a cluster",
        },
        "logs": {
            "logs": "last lines of a topology's workers, from any host",
            "tail": "rows of a running topology's stream, as they are committed",
            "journey": "where one message is, or was given up; without one, the oldest open messages",
            "stacks": "what a worker's process does: its stacks, sampled for some seconds",
        },
    },
    "change": {
        "changes": {
            "kill": "end a topology after a wait in which its spouts rest",
            "savepoint": "write a running topology's states and positions into a folder",
            "activate": "let a topology's spouts emit",
            "deactivate": "let a topology's spouts rest",
            "rebalance": "change workers, executors or configuration; the plan is shown first",
            "scale": "how many executors and workers a topology needs, by true rates; apply it",
            "restart": "restart a topology's workers; nothing is moved or lost",
            "log-level": "set levels of loggers in a topology's workers",
            "blob": "files that the cluster keeps for its topologies: list, create, update, delete",
        },
        "upgrades": {
            "upgrade": "upgrade a running topology's workers in batches, and back",
        },
    },
    "repair": {
        "dead_letters": {
            "dead-letters": "list, show, replay or drop inputs that were given up",
        },
        "capsules": {
            "capsule": "a failed input as a file or a test",
        },
    },
    "without a cluster": {
        "new_project": {
            "init": "make a folder with a topology, its job file and its tests",
        },
        "offline": {
            "explain": "say what a configuration key does",
            "show": "show the topology of a job file",
            "schedule": "answer scheduling problems",
            "recorded": "show a bolt's recorded input",
        },
        "contexts": {
            "context": "name clusters: list, use, add, remove",
        },
        "completion": {
            "completion": "print a shell's script that completes verbs, options and names",
        },
    },
}
"""Verbs with their help, by purpose, then by module: of a given verb only its own is imported."""

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


class _Parser(argparse.ArgumentParser):
    """Parser that names the nearest word for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Write usage and error, and end with exit status 2."""
        match = _UNKNOWN.search(message)
        if match and match[1] in STORM_ELSEWHERE:
            super().error(f"Storm's {match[1]} is here: {STORM_ELSEWHERE[match[1]]}")
        near = difflib.get_close_matches(match[1], _WORD.findall(match[2]), 1) if match else []
        super().error(
            f"there is no {match[1]!r}; did you mean {near[0]}?" if match and near else message
        )


def parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The command line; a verb is a sub-command that sets `run`. With a verb it has that one alone,
    with a word that is none all of them by their names alone.
    """
    made = _Parser(
        prog="sparkstorm",
        description="Storm topologies in Python, hosted on Spark.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n\n".join(_text_of(title, modules) for title, modules in GROUPS.items()),
    )
    version = f"sparkstorm {__version__}, row path: {compiled.description}"
    made.add_argument("--version", action="version", version=version)
    verbs = made.add_subparsers(
        required=True, metavar="VERB", help="one of those below; sparkstorm VERB --help says more"
    )
    helps = {module: helps for modules in GROUPS.values() for module, helps in modules.items()}
    if verb is not None and not any(verb in group for group in helps.values()):
        for name in chain.from_iterable(helps.values()):
            verbs.add_parser(name)
        return made
    # Nothing that is imported is garbage: to look for it takes 7 % of a command's CPU.
    is_collecting = gc.isenabled()
    gc.disable()
    for module in helps:
        if verb is None or verb in helps[module]:
            import_module(f"sparkstorm.cli.{module}").add_verbs(verbs)
    if is_collecting:
        gc.enable()
    return made


def _text_of(title: str, modules: Mapping[str, Mapping[str, str]]) -> str:
    """Return a group's part of the help; argparse has no groups of sub-commands."""
    width = shutil.get_terminal_size().columns - _HELP_COLUMN
    lines = [f"{title}:"]
    for name, help in (pair for helps in modules.values() for pair in helps.items()):
        head = f"  {name}".ljust(_HELP_COLUMN)
        lines += textwrap.wrap(
            help, max(20, width), initial_indent=head, subsequent_indent=" " * _HELP_COLUMN
        )
    return "\n".join(lines)


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
    words[:1] = [STORM_VERBS.get(word, word) for word in words[:1]]
    if words[:1] == ["__complete"]:
        return complete(words[1:], parser(words[1] if len(words) > 2 else ""))
    arguments = parser(words[0] if words else "").parse_args(words)
    if getattr(arguments, "context", None):
        arguments.cluster = file_of_context(arguments.context)
    run: Verb = arguments.run
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
