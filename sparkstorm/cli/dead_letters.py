"""Verb `sparkstorm dead-letters`: list what is kept in a Redis or a file, by cause or one by one; drop it from Redis."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import redis

from sparkstorm.app.dead_letter_file import Groups, line_of, read_dead_letters, stored_letters
from sparkstorm.embedded.connection import load_connection
from sparkstorm.embedded.redis import client_of
from sparkstorm.errors import SparkStormError, StoreUnavailableError
from sparkstorm.model.dead_letter import DeadLetter
from sparkstorm.model.redis_address import RedisAddress
from sparkstorm.transport.keys import Keys
from sparkstorm.transport.reader import RedisReader

_SHOWN_CAUSES = 20
_PATIENCE_S = 5.0


def list_letters(arguments: argparse.Namespace) -> int:
    """Show dead letters by cause, or each as a line of JSON; 1 when they cannot be read."""
    try:
        path = Path(arguments.where)
        if path.suffix == ".jsonl":
            _show_file(path, arguments.lines)
        else:
            _show_stored(load_connection(path).redis, arguments.topology, arguments.lines)
    except (SparkStormError, OSError, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def drop_letters(arguments: argparse.Namespace) -> int:
    """Delete a topology's dead letters from Redis; 1 when there are none."""
    try:
        address = load_connection(Path(arguments.where)).redis
        found = kept_in(address, arguments.topology)
        for topology_id, count in found.items():
            with closing(RedisReader(address, topology_id, _PATIENCE_S)) as reader:
                reader.drop_dead_letters()
            print(f"{topology_id}: {count:,} dead letters are dropped")
        if not found:
            print(f"no dead letters of '{arguments.topology}' are kept", file=sys.stderr)
    except SparkStormError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if found else 1


def kept_in(address: RedisAddress, topology: str | None = None) -> dict[str, int]:
    """Return the number of dead letters by topology id, of all topologies or of one by its name or id."""
    found = {}
    try:
        with client_of(address, _PATIENCE_S) as client:
            for key in client.scan_iter(match="{*}:dead", count=1000, _type="stream"):
                topology_id = key.decode(errors="replace").removeprefix("{").removesuffix("}:dead")
                if topology in (None, topology_id, topology_id.rsplit("-", 2)[0]) and Keys(topology_id)("dead").encode() == key:
                    found[topology_id] = int(client.xlen(key))
    except redis.RedisError as error:
        raise StoreUnavailableError(f"Redis at {address.host}:{address.port} cannot be read: {error}") from error
    return dict(sorted(found.items()))


def _show_stored(address: RedisAddress, topology: str | None, one_by_one: bool) -> None:
    for topology_id in kept_in(address, topology):
        with closing(RedisReader(address, topology_id, _PATIENCE_S)) as reader:
            letters = stored_letters(reader.parked)
            if one_by_one:
                for id, letter, data in letters:
                    print(line_of(id, letter, data), flush=True)
            else:
                _show_causes(topology_id, (letter for _, letter, _ in letters))


def _show_file(path: Path, one_by_one: bool) -> None:
    letters = read_dead_letters(path)
    if one_by_one:
        for id, letter in letters:
            print(letter.to_line(id), flush=True)
    else:
        _show_causes(str(path), (letter for _, letter in letters))


def _show_causes(title: str, letters: Iterable[DeadLetter | None]) -> None:
    groups = Groups()
    for letter in letters:
        groups.add(letter)
    print(f"{title}: {sum(group.count for _, group in groups.largest()):,} dead letters")
    for line in groups.lines(_SHOWN_CAUSES):
        print(f"  {line}", flush=True)
