"""Verb `sparkstorm capsule`: a failed input as a file, shown, or turned into a test."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkstorm.cli.cluster_verbs import opened
from sparkstorm.cli.common import EXITS, OK, add_cluster, add_json, is_for_programs, write_json
from sparkstorm.cli.dead_letters import letter_text, read_letters_of_file
from sparkstorm.cli.terminal import show
from sparkstorm.common.errors import InvalidConfigError, NotAliveError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.names import counted, file_name, shown
from sparkstorm.driver.job_file import read_job_file, topology_conf
from sparkstorm.extensions.recording.capsule_files import (
    BUILDER,
    ENDING,
    read_capsule,
    write_capsule,
)
from sparkstorm.extensions.recording.capsule_tests import name_of_test, text_of_test


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = verbs.add_parser("capsule", description=capsule.__doc__, epilog=EXITS)
    verb.add_argument(
        "source",
        metavar="FILE|NAME",
        help=f"a *{ENDING}; or, with ID, a dead-letters.jsonl or a topology",
    )
    verb.add_argument(
        "id", nargs="?", metavar="ID", help="a dead letter, as `dead-letters list --lines` shows it"
    )
    verb.add_argument(
        "--to",
        metavar="FILE",
        help=f"where to write the capsule of a dead letter (default: COMPONENT-ID{ENDING})",
    )
    verb.add_argument(
        "--pytest",
        nargs="?",
        const="",
        metavar="TEST.py",
        help="write a test that fails as the run did",
    )
    verb.add_argument(
        "--topology",
        metavar="MODULE:FUNCTION|JOB.yaml",
        help="what builds the topology, for --pytest (default, of a topology of a cluster: as its signed configuration says)",
    )
    verb.add_argument("--force", action="store_true", help="write over a test that is there")
    add_cluster(verb)
    add_json(verb)
    verb.set_defaults(run=capsule)


def capsule(arguments: argparse.Namespace) -> int:
    """Show a failure capsule, make one of a dead letter, or write the test that fails as the run
    did.
    """
    if arguments.id is None:
        path = Path(arguments.source)
        letter = read_capsule(path)
        conf: Mapping[str, Any] = {}
    else:
        path, letter, conf = _made(arguments)
    if arguments.pytest is None:
        _show(arguments, path, letter)
        return OK
    test = Path(arguments.pytest) if arguments.pytest else path.with_name(name_of_test(path))
    if test.exists() and not arguments.force:
        raise InvalidConfigError(f"{test} is there already: name another file, or give --force")
    text = text_of_test(path, letter, test, _built_by(arguments.topology) or conf)
    try:
        test.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidConfigError(f"{test} cannot be written: {error.strerror}") from error
    if is_for_programs(arguments):
        write_json({"capsule": str(path), "test": str(test)})
    else:
        print(
            f"{test}: run it with python -m pytest {test}, where the topology's modules can be imported"
        )
    return OK


def _built_by(topology: str | None) -> Mapping[str, Any]:
    """Return the settings that name what builds the topology, as the caller gives them."""
    if topology is None:
        return {}
    if topology.endswith((".yaml", ".yml")):
        return topology_conf(read_job_file(topology))
    return {BUILDER: topology}


def _made(arguments: argparse.Namespace) -> tuple[Path, DeadLetter, Mapping[str, Any]]:
    letter, conf = _letter(arguments)
    path = Path(arguments.to or file_name(f"{letter.component}-{arguments.id}") + ENDING)
    write_capsule(path, letter)
    return path, letter, conf


def _letter(arguments: argparse.Namespace) -> tuple[DeadLetter, Mapping[str, Any]]:
    """Return a letter and the signed configuration of its topology, where a cluster keeps it."""
    conf: Mapping[str, Any] = {}
    if arguments.source.endswith(".jsonl"):
        letter = next(
            (
                candidate
                for id, candidate in read_letters_of_file(Path(arguments.source))
                if id == arguments.id
            ),
            None,
        )
    else:
        with opened(arguments) as cluster:
            letters_by_topology = cluster.dead_letters(arguments.source)
            id, letter = next(
                (
                    (id, candidate)
                    for id, letters in letters_by_topology.items()
                    if (candidate := letters.get(arguments.id)) is not None
                ),
                ("", None),
            )
            if letter is not None and arguments.pytest is not None and arguments.topology is None:
                with contextlib.suppress(NotAliveError):
                    conf = cluster.handle(id).conf()
    if letter is None:
        raise NotAliveError(
            f"{arguments.source} keeps no dead letter {arguments.id} that can be read"
        )
    return letter, conf


def _show(arguments: argparse.Namespace, path: Path, letter: DeadLetter) -> None:
    if is_for_programs(arguments):
        write_json({"capsule": str(path), "letter": letter.as_record()})
        return
    show(letter_text(str(path), letter))
    state = "none" if letter.state is None else counted(len(letter.state), "key")
    show(f"  state: {state}; code {shown(letter.failure.code_version[:12]) or '?'}")
    show("\n".join(f"  {shown(line)}" for line in letter.failure.traceback.splitlines()))
