"""Bases of states in Redis: the keys of a task, packed, in one hash per range of their hashes, so
that small hashes stay compact.

Redis keeps a hash of up to 512 short fields as one list of bytes (hash-max-listpack-entries, before
7 hash-max-ziplist-entries): a key costs little more than its bytes there, and about 90 bytes more
in a large hash. Empty ranges have no key. Left out: a string per key, which costs a key of Redis
each, and a base that is dealt to other tasks by ranges: the tasks of a topology are fixed (decision
5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any
from zlib import crc32

from sparkstorm.data_plane.transport.connection import Link, Script, damaged
from sparkstorm.data_plane.transport.keys import Keys, read_number

# Twice as many would keep twice the keys compact, at the price of more keys of Redis for a task
# with few; half would make hashes large, and dear, from four million keys on.
RANGES = 1 << 14
"""Ranges of a task: fixed, since they decide where a key lies. Compact up to some 8 million keys of
a task.
"""
# The server runs nothing else while it gathers them. Half doubles the round trips of a savepoint;
# double, the time for which commits wait. Not measured.
_PAIRS_OF_A_SCAN = 5000
_READ = Struct("<HI")
_WRITE = Struct("<HII")
State = Iterable[tuple[int, bytes, bytes | None]]


def range_of(key: bytes) -> int:
    """Return the range of a packed key."""
    # Not Python's hash, which differs from process to process. The range is computed here and not
    # in Lua, which has no fast CRC.
    return crc32(key) % RANGES


def write_commands(k: Keys, state: State) -> Iterator[tuple[Any, ...]]:
    """Yield the commands of a commit that write and delete these keys; STATE is one of
    commit.lua's.
    """
    # One word for all changes of a task: a command per key cost 31 us of CPU for each new key, this
    # 6 (commit d48c856f).
    words: dict[int, list[bytes]] = {}
    for task, key, value in state:
        of_task = words.setdefault(task, [])
        if value is None:
            # The length plus one, so that 0 can mean "deleted" and an empty value is still one.
            of_task += (_WRITE.pack(range_of(key), len(key), 0), key)
        else:
            of_task += (_WRITE.pack(range_of(key), len(key), len(value) + 1), key, value)
    for task, of_task in words.items():
        yield ("STATE", k("state", task), b"".join(of_task))


class StateReading:
    """Reads of bases over one connection."""

    def __init__(self, link: Link, k: Keys) -> None:
        self._keys = k
        self._read = Script("read_state.lua", link)
        self._scan = Script("scan_state.lua", link)

    def read(self, task: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of packed keys, in one round trip."""
        if not keys:
            return []
        wanted = b"".join(
            [word for key in keys for word in (_READ.pack(range_of(key), len(key)), key)]
        )
        data = self._read.call(self._keys.prefix, lambda: [task, wanted])[0]
        values: list[bytes | None] = []
        offset = 0
        while offset < len(data):
            size = int.from_bytes(data[offset : offset + 4], "little")
            values.append(data[offset + 4 : offset + 3 + size] if size else None)
            offset += max(4, size + 3)
        return values

    def scan(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield a task's base, some ranges at a time."""
        first = 0
        while first < RANGES:
            begin = first
            numbers = [task, first, RANGES, _PAIRS_OF_A_SCAN]
            answer = self._scan.call(self._keys.prefix, lambda: numbers)  # noqa: B023 - called before the next turn
            first = read_number(answer[0], self._keys("state", task))
            pairs = list(zip(answer[1::2], answer[2::2], strict=True))
            # A key in a hash that is not its own would be found by a scan and by no read: its task
            # would go on without it unnoticed.
            if any(not begin <= range_of(key) < first for key, _ in pairs):
                raise damaged(self._keys("state", task, "*"), "a key of another range")
            if pairs:
                yield pairs
