"""Completion of the command line by a shell: scripts for bash, zsh and fish, and the words that they
ask for.

A script calls `sparkstorm __complete WORD...` with the words before the cursor, of which the last
may be empty. It answers with verbs, options and choices from the parsers themselves, and with names
of what runs: topologies, components, workers, hosts. It ends in silence after two seconds, or where
it finds nothing; the shell then completes names of files.
"""

from __future__ import annotations

import argparse
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparkstorm.cli.common import OK
from sparkstorm.common.config import keys
from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.stores.contexts import file_of_context, read_contexts

# half is too short for a cluster on another host, with the double the name has been typed
_PATIENCE_S = 2
_PLAIN = re.compile(r"[\w.:@/=+-]+")
"""Words that are plain to every shell; names with other characters are never offered."""

_SCRIPTS = Path(__file__).with_name("completion_scripts")


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = verbs.add_parser(
        "completion",
        description=completion.__doc__,
        epilog='in ~/.bashrc: eval "$(sparkstorm completion bash)"; in ~/.zshrc the same with zsh; '
        "in ~/.config/fish/config.fish: sparkstorm completion fish | source",
    )
    verb.add_argument("shell", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    verb.set_defaults(run=completion)


def completion(arguments: argparse.Namespace) -> int:
    """Print the script for a shell; it asks `sparkstorm` for names, so it need not be made again
    for a new version.
    """
    script = _SCRIPTS / f"sparkstorm.{arguments.shell}"
    print(script.read_text(encoding="utf-8"), end="")
    return OK


def complete(words: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """Print what the last of some words may become, a candidate a line."""
    signal.signal(signal.SIGALRM, lambda *_: _stop())
    signal.alarm(_PATIENCE_S)
    try:
        answers = candidates(words, parser, live_names)
    except _NoAnswerInTimeError:
        return OK
    finally:
        signal.alarm(0)
    print("\n".join(answers))
    return OK


class _NoAnswerInTimeError(BaseException):
    """Interrupt when the cluster has not answered in time; no client takes it for an error of its
    own.
    """


def _stop() -> None:
    raise _NoAnswerInTimeError


class _Read(NamedTuple):
    """Words before the last one, as far as they are understood."""

    parser: argparse.ArgumentParser  # of the verb, as far as it is named
    open_option: argparse.Action | None  # that takes the last word
    positionals: list[argparse.Action]  # that are not given yet, or take many
    given: dict[str, str]  # the words given so far, by the name of their argument


def candidates(
    words: Sequence[str],
    parser: argparse.ArgumentParser,
    names: Callable[[str, str | None, str | None], Iterable[str]],
) -> list[str]:
    """Return what the last word may become; `names` gives live ones: of a kind, of a topology, by a
    connection file.
    """
    *before, word = words or [""]
    read = _read(before, parser)
    if read is None:
        return []
    choices = _choices(read, word, names)
    return sorted(
        {
            choice
            for choice in map(str, choices)
            if choice.startswith(word) and _PLAIN.fullmatch(choice)
        }
    )


def _read(words: Sequence[str], parser: argparse.ArgumentParser) -> _Read | None:
    """Read the words before the last one; None where one is no verb."""
    given: dict[str, str] = {}
    positionals = _positionals(parser)
    open_option: argparse.Action | None = None
    for word in words:
        option = _option(parser, word)
        if option is not None:
            open_option = option if option.nargs != 0 else None
        elif open_option is not None:
            given[open_option.dest] = word
            open_option = open_option if _takes_many(open_option) else None
        elif positionals:
            action = positionals[0] if _takes_many(positionals[0]) else positionals.pop(0)
            given[action.dest] = word
            if isinstance(action, argparse._SubParsersAction):
                if word not in action.choices:
                    return None
                parser = action.choices[word]
                positionals = _positionals(parser)
    return _Read(parser, open_option, positionals, given)


def _choices(
    read: _Read, word: str, names: Callable[[str, str | None, str | None], Iterable[str]]
) -> Iterable[Any]:
    """Return all that may stand in the place of the last word."""
    if word.startswith("-"):
        return [
            name
            for action in read.parser._actions
            for name in action.option_strings
            if name.startswith("--")
        ]
    if read.open_option is None and not read.positionals:
        return []
    action = read.open_option or read.positionals[0]
    topology, file, context = (read.given.get(name) for name in ("name", "cluster", "context"))
    if context is not None:
        file = _file_of_context(context)
    if action.choices is not None:
        return action.choices
    return names(str(action.metavar or action.dest), topology, file)


def _takes_many(action: argparse.Action) -> bool:
    return action.nargs in ("+", "*")


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    return next((action for action in parser._actions if word in action.option_strings), None)


def _file_of_context(context: str) -> str:
    """Return the path of a context's connection file; one that is not there for a context that is
    none.
    """

    try:
        return file_of_context(context)
    except SparkStormError:
        return "/dev/null"


def live_names(metavar: str, topology: str | None, file: str | None) -> Iterable[str]:
    """Return the names of a kind that an argument's metavar asks for; nothing where the cluster
    cannot be asked.
    """
    if metavar in ("KEY", "KEY=VALUE"):
        return [f"{name}=" if metavar == "KEY=VALUE" else name for name in keys()]
    if metavar not in ("NAME", "CONTEXT", "ID", "COMPONENT", "COMPONENT=N", "NODE:PORT", "HOST"):
        return ()

    try:
        if metavar == "CONTEXT":
            return read_contexts().files
        from sparkstorm.client import connect  # a word that is no name is completed without it

        with connect(file) as cluster:
            if metavar == "NAME":
                return [summary.name for summary in cluster.summaries()]
            if metavar == "HOST":
                return [supervisor.host for supervisor in cluster.supervisors()]
            if topology is None:
                return ()
            handle = cluster.topology(topology)
            if metavar == "NODE:PORT":
                return [str(slot) for slot in handle.slots()]
            components = {info.component_id for info in handle.tasks().values()}
            return [
                f"{component}=" if metavar == "COMPONENT=N" else component
                for component in components
                if not component.startswith("__")
            ]
    except SparkStormError:
        return ()
