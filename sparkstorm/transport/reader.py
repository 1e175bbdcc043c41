"""What outsiders (drivers, clients, notebooks) read of a topology's keys in Redis, and the few changes that they may make."""

from __future__ import annotations

from typing import Any

from sparkstorm.model.redis_address import RedisAddress
from sparkstorm.transport.base import START, TaskRecord
from sparkstorm.transport.connection import Link, text
from sparkstorm.transport.keys import Keys, read_cursor, read_number


class RedisReader:
    """One topology's keys, seen from outside its workers."""

    def __init__(self, address: RedisAddress, topology_id: str, patience_s: float = 10.0) -> None:
        self._keys = Keys(topology_id)
        self._link = Link(address, patience_s)

    def progress(self) -> dict[str, bytes]:
        """Progress record of every owner."""
        pairs = self._link.ask(("HGETALL", self._keys("progress")))[0]
        return {text(owner): data for owner, data in zip(pairs[::2], pairs[1::2], strict=True)}

    def backlog(self) -> dict[int, int]:
        """Bytes that wait in each task's stream."""
        return _by_task(self._link, self._keys("backlog"))

    def record(self, task: int) -> TaskRecord:
        """What the store keeps of a task."""
        return read_task(self._link, self._keys, task)

    def parked(self, limit: int, after: str = "0") -> list[tuple[str, bytes]]:
        """Return the oldest dead letters with ids greater than `after`, with their ids."""
        entries = self._link.ask(("XRANGE", self._keys("dead"), f"({after}", "+", "COUNT", limit))[0]
        return [(text(id), fields[1]) for id, fields in entries]

    def drop_dead_letters(self) -> None:
        """Delete the topology's dead letters."""
        self._link.ask(("UNLINK", self._keys("dead")))

    def delete(self) -> None:
        """Delete everything of the topology but its dead letters, in steps that do not block the server."""
        kept = self._keys("dead").encode()
        pattern = self._keys.prefix.translate({ord(mark): f"\\{mark}" for mark in "\\[]*?^"}) + ":*"
        cursor: Any = b"0"
        while True:
            cursor, names = self._link.ask(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))[0]
            if names := [name for name in names if name != kept]:
                self._link.ask(("UNLINK", *names))
            if int(cursor) == 0:
                return

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()


def read_task(link: Link, k: Keys, task: int) -> TaskRecord:
    """Return what the store keeps of a task."""
    cursor, journal, held, newest = link.ask(
        ("HGET", k("cursor"), task),
        ("LRANGE", k("journal", task), 0, -1),
        ("HGETALL", k("held", task)),
        ("XREVRANGE", k.stream(task), "+", "-", "COUNT", 1),
    )
    pairs = zip(held[::2], held[1::2], strict=True)
    return TaskRecord(
        read_cursor(cursor, k("cursor")),
        list(journal),
        {text(key): data for key, data in pairs},
        text(newest[0][0]) if newest else START.entry,
    )


def _by_task(link: Link, key: str) -> dict[int, int]:
    pairs = link.ask(("HGETALL", key))[0]
    return {read_number(task, key): read_number(number, key) for task, number in zip(pairs[::2], pairs[1::2], strict=True)}
