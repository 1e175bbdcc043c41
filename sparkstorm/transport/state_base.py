"""Bases of states in Redis: the keys of a task, packed, in one hash per range of their hashes, so that small hashes stay compact.

Redis keeps a hash of up to 512 short fields as one list of bytes (hash-max-listpack-entries, before 7 hash-max-ziplist-entries): a
key costs little more than its bytes there, and about 90 bytes more in a large hash. Empty ranges have no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any
from zlib import crc32

from sparkstorm.transport.connection import Link, Script, damaged
from sparkstorm.transport.keys import Keys, read_number

RANGES = 1 << 14
"""Ranges of a task: fixed, since they say where a key lies. Compact up to some 8 million keys of a task."""
_PAIRS_OF_A_SCAN = 5000
_READ, _WRITE = Struct("<HI"), Struct("<HII")
State = Iterable[tuple[int, bytes, bytes | None]]


def range_of(key: bytes) -> int:
    """Return the range of a packed key."""
    return crc32(key) % RANGES


def write_commands(k: Keys, state: State) -> Iterator[tuple[Any, ...]]:
    """Yield the commands of a commit that write and delete these keys; STATE is one of commit.lua's."""
    words: dict[int, list[bytes]] = {}
    for task, key, value in state:
        of_task = words.setdefault(task, [])
        if value is None:
            of_task += (_WRITE.pack(range_of(key), len(key), 0), key)
        else:
            of_task += (_WRITE.pack(range_of(key), len(key), len(value) + 1), key, value)
    for task, of_task in words.items():
        yield ("STATE", k("state", task), b"".join(of_task))


class StateReading:
    """Reads of bases over one connection."""

    def __init__(self, link: Link, k: Keys) -> None:
        self._keys = k
        self._read, self._scan = Script("read_state.lua", link), Script("scan_state.lua", link)

    def read(self, task: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of packed keys, in one round trip."""
        if not keys:
            return []
        wanted = b"".join([word for key in keys for word in (_READ.pack(range_of(key), len(key)), key)])
        data = self._read.run(self._keys.prefix, lambda: [task, wanted])[0]
        found: list[bytes | None] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            found.append(data[at + 4 : at + 3 + size] if size else None)
            at += max(4, size + 3)
        return found

    def scan(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield a task's base, some ranges at a time."""
        first = 0
        while first < RANGES:
            begin, numbers = first, [task, first, RANGES, _PAIRS_OF_A_SCAN]
            answer = self._scan.run(self._keys.prefix, lambda: numbers)  # noqa: B023 - called before the next turn
            first = read_number(answer[0], self._keys("state", task))
            pairs = list(zip(answer[1::2], answer[2::2], strict=True))
            if any(not begin <= range_of(key) < first for key, _ in pairs):
                raise damaged(self._keys("state", task, "*"), "a key of another range")
            if pairs:
                yield pairs
