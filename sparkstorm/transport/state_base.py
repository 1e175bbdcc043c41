"""Bases of states in Redis: the keys of a task, packed, in one hash per range of their hashes, so that small hashes stay compact.

Redis keeps a hash of up to 512 short fields as one list of bytes (hash-max-listpack-entries, before 7 hash-max-ziplist-entries): a
key costs little more than its bytes there, and about 90 bytes more in a large hash. Empty ranges have no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from zlib import crc32

from sparkstorm.transport.connection import Link, Script, damaged
from sparkstorm.transport.keys import Keys, read_number

RANGES = 1 << 14
"""Ranges of a task: fixed, since they say where a key lies. Compact up to some 8 million keys of a task."""
_PAIRS_OF_A_SCAN = 5000
_PAIRS_AT_ONCE = 1000  # Lua hands on some thousands of words at most
State = Iterable[tuple[int, bytes, bytes | None]]


def range_of(key: bytes) -> int:
    """Return the range of a packed key."""
    return crc32(key) % RANGES


def write_commands(k: Keys, state: State) -> Iterator[tuple[Any, ...]]:
    """Yield the commands of a commit that write and delete these keys."""
    kept: dict[tuple[int, int], list[bytes]] = {}
    gone: dict[tuple[int, int], list[bytes]] = {}
    last = {(task, key): value for task, key, value in state}
    for (task, key), value in last.items():
        place = task, range_of(key)
        if value is None:
            gone.setdefault(place, []).append(key)
        else:
            kept.setdefault(place, []).extend((key, value))
    for verb, words_by_place in (("HDEL", gone), ("HSET", kept)):
        for (task, number), words in words_by_place.items():
            for at in range(0, len(words), 2 * _PAIRS_AT_ONCE):
                yield (verb, k("state", task, number), *words[at : at + 2 * _PAIRS_AT_ONCE])


def read_state(link: Link, k: Keys, task: int, keys: Sequence[bytes]) -> list[bytes | None]:
    """Return the values of packed keys, in one round trip."""
    if not keys:
        return []
    return link.ask(*(("HGET", k("state", task, range_of(key)), key) for key in keys))


def scan_state(link: Link, k: Keys, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield a task's base, some ranges at a time."""
    script, first = Script("scan_state.lua", link), 0
    while first < RANGES:
        begin, numbers = first, [task, first, RANGES, _PAIRS_OF_A_SCAN]
        answer = script.run(k.prefix, lambda: numbers)  # noqa: B023 - called before the next turn
        first = read_number(answer[0], k("state", task))
        pairs = list(zip(answer[1::2], answer[2::2], strict=True))
        if any(not begin <= range_of(key) < first for key, _ in pairs):
            raise damaged(k("state", task, "*"), "a key of another range")
        if pairs:
            yield pairs
