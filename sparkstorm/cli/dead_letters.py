"""Verb `sparkstorm dead-letters`: list, show, replay and drop the inputs that topologies have given
up.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sparkstorm.cli import terminal
from sparkstorm.cli.cluster_verbs import opened
from sparkstorm.cli.common import EXITS, FAILED, OK, add_verb, is_for_programs, say, write
from sparkstorm.client import ClusterClient
from sparkstorm.client.dead_letters import StoredLetters
from sparkstorm.common.errors import InvalidConfigError, NotAliveError, reason_of
from sparkstorm.common.model.dead_letter import Cause, DeadLetter
from sparkstorm.common.model.names import counted, shown
from sparkstorm.driver.dead_letter_file import Groups, line_of, read_dead_letters

_SHOWN_CAUSES = 20


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = verbs.add_parser("dead-letters", epilog=EXITS)
    actions = verb.add_subparsers(required=True, metavar="ACTION")
    action = add_verb(
        actions, "list", list_letters, "by cause, the most frequent first", is_listing=True
    )
    action.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="name or id of a topology, or a dead-letters.jsonl; else all",
    )
    action.add_argument(
        "--lines", action="store_true", help="each letter as a line of JSON, its values whole"
    )
    action = add_verb(actions, "show", show, "one letter with its values and its cause")
    _add_letters(action, nargs="+")
    action = add_verb(
        actions, "replay", replay, "give letters to their tasks once more, each exactly once"
    )
    _add_letters(action, nargs="*")
    action.add_argument("--all", action="store_true", help="all that are kept now")
    action = add_verb(actions, "drop", drop, "delete letters from Redis; files of runs stay")
    _add_letters(action, nargs="*")
    action.add_argument("--all", action="store_true", help="all of the topology")


def _add_letters(action: argparse.ArgumentParser, nargs: str) -> None:
    action.add_argument("name", metavar="NAME", help="name or id of the topology; it may be gone")
    action.add_argument("ids", nargs=nargs, metavar="ID", help="as `list --lines` shows them")


def list_letters(arguments: argparse.Namespace) -> int:
    """List dead letters by cause, or each as a line of JSON; they stay until they are dropped or
    replayed.
    """
    if arguments.name is not None and (
        arguments.name.endswith(".jsonl") or Path(arguments.name).is_dir()
    ):
        of_file = ((id, letter, b"") for id, letter in read_letters_of_file(Path(arguments.name)))
        return _list(arguments, [(arguments.name, of_file)])
    with opened(arguments) as cluster:
        letters_by_topology = cluster.dead_letters(arguments.name)
        if not letters_by_topology and not arguments.lines and not is_for_programs(arguments):
            terminal.show(
                f"no dead letters{f' of {arguments.name}' if arguments.name else ''} are kept"
            )
        return _list(
            arguments,
            [(topology_id, iter(letters)) for topology_id, letters in letters_by_topology.items()],
        )


def read_letters_of_file(path: Path) -> Iterator[tuple[str, DeadLetter]]:
    """Yield id and letter of each line of a file or folder; InvalidConfigError when it cannot be
    read.
    """
    try:
        yield from read_dead_letters(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{path} cannot be read: {reason_of(error)}") from error


def _list(
    arguments: argparse.Namespace,
    several: Iterable[tuple[str, Iterable[tuple[str, DeadLetter | None, bytes]]]],
) -> int:
    """Write the letters of topologies or of a file; for programs, one record for each."""
    rows = []
    for title, letters in several:
        if arguments.lines:
            for id, letter, data in letters:
                print(line_of(id, letter, data), flush=True)
            continue
        groups = Groups()
        ids_by_cause = dict[Cause, list[str]]()
        for id, letter, _ in letters:
            ids_by_cause.setdefault(groups.add(letter), []).append(id)
        count = sum(group.count for _, group in groups.largest())
        causes = [
            {"cause": str(cause), "count": group.count, "ids": ids_by_cause[cause]}
            for cause, group in groups.largest()
        ]
        rows += [{"of": title, **cause} for cause in causes]
        if arguments.output != "csv" and write(
            arguments, {"of": title, "count": count, "causes": causes}, ()
        ):
            continue
        if not is_for_programs(arguments):
            terminal.show(f"{title}: {counted(count, 'dead letter')}")
            for line in groups.lines(_SHOWN_CAUSES):
                terminal.show(f"  {shown(line)}")
    if arguments.output == "csv":
        write(arguments, None, rows)
    return OK


def show(arguments: argparse.Namespace) -> int:
    """Show letters with their values and causes; 1 when one is not there."""
    with opened(arguments) as cluster:
        letters = _of_one(cluster, arguments.name)
        letter_by_id = {id: letters.get(id) for id in arguments.ids}
    for id, letter in letter_by_id.items():
        if letter is None:
            print(f"{arguments.name} keeps no dead letter {id} that can be read", file=sys.stderr)
        elif is_for_programs(arguments):
            print(letter.to_line(id))
        else:
            terminal.show(letter_text(id, letter))
    return OK if all(letter_by_id.values()) else FAILED


def letter_text(id: str, letter: DeadLetter) -> str:
    """Return a letter as readable text."""
    pairs = zip(letter.fields, letter.values, strict=False)
    values = "".join(f"\n  {name}: {shown(repr(value))}" for name, value in pairs)
    return (
        f"{id}: {letter.component}#{letter.task} gave up after {counted(letter.attempts, 'try', 'tries')}: {shown(letter.reason)}\n"
        f"  from {letter.source_component}#{letter.source_task}, stream {letter.stream}{values}{_messages(letter)}"
    )


def _messages(letter: DeadLetter) -> str:
    """Return the messages from which an input descends, as `journey` takes them."""
    return "".join(f"\n  message {root:016x}" for root in letter.roots)


def replay(arguments: argparse.Namespace) -> int:
    """Give letters to their tasks once more: each leaves the dead letters and is delivered in one
    step.
    """
    with opened(arguments, writes=True) as cluster:
        letters = _of_one(cluster, arguments.name)
        ids = _chosen(arguments, letters)
        done = letters.replay(ids)
    record = {
        "topology_id": letters.topology_id,
        "replayed": list(done.done),
        "missing": list(done.missing),
    }
    missing = f"; {len(done.missing):,} were not there any more" if done.missing else ""
    say(
        arguments,
        f"{letters.topology_id}: {counted(len(done.done), 'dead letter is', 'dead letters are')} replayed{missing}",
        record,
    )
    return FAILED if done.missing and not done.done else OK


def drop(arguments: argparse.Namespace) -> int:
    """Delete letters of a topology from Redis, with --all those of every run of that name; 1 when
    there are none.
    """
    with opened(arguments, writes=True) as cluster:
        if arguments.all:
            _require_choice(arguments)
            letters_by_topology = _kept(cluster, arguments.name)
            dropped = {
                topology_id: letters.drop() for topology_id, letters in letters_by_topology.items()
            }
        else:
            letters = _of_one(cluster, arguments.name)
            dropped = {letters.topology_id: letters.drop(_chosen(arguments, letters))}
    for topology_id, count in dropped.items():
        say(
            arguments,
            f"{topology_id}: {counted(count, 'dead letter is', 'dead letters are')} dropped",
            {"of": topology_id, "dropped": count},
        )
    return OK if any(dropped.values()) else FAILED


def _chosen(arguments: argparse.Namespace, letters: StoredLetters) -> list[str]:
    _require_choice(arguments)
    return (
        [id for id, letter, _ in letters if letter is not None]
        if arguments.all
        else list(arguments.ids)
    )


def _require_choice(arguments: argparse.Namespace) -> None:
    if arguments.all == bool(arguments.ids):
        raise InvalidConfigError("name the dead letters by their ids, or give --all")


def _kept(cluster: ClusterClient, name: str) -> dict[str, StoredLetters]:
    letters_by_topology = cluster.dead_letters(name)
    if not letters_by_topology:
        raise NotAliveError(f"no dead letters of {name} are kept")
    return letters_by_topology


def _of_one(cluster: ClusterClient, name: str) -> StoredLetters:
    """Return the letters of a topology: of the one that runs, else of the newest that was called
    so.
    """
    letters_by_topology = _kept(cluster, name)
    running = cluster.service.find(name)
    if running is not None and running.topology_id in letters_by_topology:
        return letters_by_topology[running.topology_id]
    return list(letters_by_topology.values())[-1]
