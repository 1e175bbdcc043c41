"""Names of a topology's keys in Redis, and checked reads of their values (docs/maintaining/keys.md).

Law: every key of a topology begins with its id, whose name is in braces, and what is read from one
is checked, however sure it is that we wrote it. Left out: one hash for each task, which a claim could read at
once; a list and a stream cannot be fields of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.requests import topology_name
from sparkstorm.data_plane.transport.base import START, Cursor
from sparkstorm.data_plane.transport.connection import damaged, text

# names of topologies have no braces and no colon
_KEY = re.compile(r"\{([^{}:]+)\}([^{}:]*):")
_CURSOR = re.compile(rb"(([0-9]{1,20})-([0-9]{1,20})) ([0-9]{1,9})")


def prefix_of(topology_id: str) -> str:
    """Return the beginning of all keys of a topology: its id, with the name in braces.

    A Redis Cluster keeps keys with the same word in braces on one node. It is the name, since a hot
    deploy renames the keys to those of another id of the same name.
    """
    name = topology_name(topology_id)
    return f"{{{name}}}{topology_id.removeprefix(name)}"


def topology_of(key: str) -> str | None:
    """Return the id of the topology that a key belongs to; None for a key of none."""
    match = _KEY.match(key)
    return match and match[1] + match[2]


class Keys:
    """Names of a topology's keys; the braces keep them on one node of a Redis Cluster."""

    def __init__(self, topology_id: str) -> None:
        # A script in a Redis Cluster may write keys of one slot only, and a commit writes keys of
        # many tasks.
        self.prefix = prefix_of(topology_id)
        self._names: dict[tuple[object, ...], str] = {}  # every commit uses the same few

    def __call__(self, *parts: object) -> str:
        name = self._names.get(parts)
        if name is None:
            name = self._names[parts] = ":".join([self.prefix, *map(str, parts)])
        return name

    def stream(self, task: int | str) -> str:
        """The stream of one task's entries; of no task: the prefix of all names."""
        return self("task", task)

    def tap(self, name: str) -> str:
        """Mark that a client looks at a stream ("component:stream")."""
        return f"{self.prefix}:tap:{name}"

    def samples(self, name: str) -> str:
        """The stream of the samples of a tap."""
        return f"{self.prefix}:samples:{name}"

    def log(self, slot: WorkerSlot | str) -> str:
        """The stream of the last lines of one worker's log, by its slot ("node:port")."""
        return f"{self.prefix}:log:{slot}"


def tap_name(component: str, stream: str) -> str:
    """Return the name of a stream's tap: "component:stream"."""
    return f"{component}:{stream}"


TRACE_BITS = (0, 4, 8, 12, 16)
"""Shares of messages that can be traced: one in 2**bits. A client takes the share that fits its
topology's rate.
"""


LOOKS = "looks"
"""Event of a worker by which it says, once a second, that it traces; it has no root."""


def trace_name(bits: int) -> str:
    """Return the name of the tap of traces of one message in 2**bits; no component has it, since
    users' names do not begin so.
    """
    return tap_name("__trace", str(bits))


def stacks_name(slot: str) -> str:
    """Return the name of the tap of the stacks of the worker in a slot ("node:port")."""
    return tap_name("__stacks", slot)


def read_cursor(stored: bytes | None, key: str) -> Cursor:
    """A stored cursor, START when there is none; StoreInconsistentError names the key when it holds
    something else.
    """
    if stored is None:
        return START
    # Read as strictly as it is written. A damaged cursor that were taken for the beginning would
    # have the task execute everything that its stream still holds a second time.
    match = _CURSOR.fullmatch(stored)
    if match is None or any(int(part) >= 1 << 64 for part in match.group(2, 3)):
        raise damaged(key, stored)
    return Cursor(text(match[1]), int(match[4]))


def read_cursors_by_cell(pairs: Sequence[bytes], key: str) -> dict[int, Cursor]:
    """The stored cursors of a task in other cells' streams, by cell; raises as `read_cursor`."""
    return {
        read_number(cell, key): read_cursor(stored, key)
        for cell, stored in zip(pairs[::2], pairs[1::2], strict=True)
    }


def read_number(stored: Any, key: str) -> int:
    """A stored whole number; StoreInconsistentError names the key when it holds something else."""
    try:
        return int(stored)
    except ValueError as error:
        raise damaged(key, stored) from error
