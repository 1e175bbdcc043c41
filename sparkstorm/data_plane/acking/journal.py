"""Bytes of a ledger in the journal: one delta per epoch, and snapshots.

Layout (little-endian): a 12-byte header (b"AL", version, kind, rows put, rows removed), then the
columns root, value, spout task, flags of the rows put, then the removed roots. Rows carry absolute
values, so replaying a record twice has no effect; within a record removals happen before puts.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.roots import ID_LIMIT

Row: TypeAlias = tuple[int, int, int, int]
"""Root, value, spout task, flags."""

UNKNOWN_TASK = -1
"""In place of the spout task of a root whose ack came before its init (S1.18)."""
FAILED = 1
"""The only flag in the journal: a fail that waits for its init."""

_HEADER = struct.Struct("<2sBBII")
_MAGIC = b"AL"
_VERSION = 1
_DELTA = 0
_SNAPSHOT = 1


def pack_delta(put: Sequence[Row], removed: Collection[int]) -> bytes:
    """Bytes of what changed; empty when nothing did, so that an idle epoch writes nothing."""
    return _pack(_DELTA, put, removed) if put or removed else b""


def pack_snapshot(rows: Sequence[Row]) -> bytes:
    """Bytes of everything a ledger holds."""
    return _pack(_SNAPSHOT, rows, ())


def _pack(kind: int, put: Sequence[Row], removed: Collection[int]) -> bytes:
    header = _HEADER.pack(_MAGIC, _VERSION, kind, len(put), len(removed))
    numbers = [number for column in zip(*put, strict=True) for number in column]
    return header + _body(len(put), len(removed)).pack(*numbers, *removed)


def _body(puts: int, removals: int) -> struct.Struct:
    return struct.Struct(f"<{2 * puts}Q{puts}i{puts}B{removals}Q")


def replay(snapshot: bytes, deltas: Iterable[bytes]) -> list[Row]:
    """Return a ledger's rows after the last delta; an empty snapshot means that the ledger began
    empty.
    """
    records = [_unpack(snapshot, _SNAPSHOT, "ledger snapshot")] if snapshot else []
    records += [
        _unpack(delta, _DELTA, f"ledger delta {index}")
        for index, delta in enumerate(deltas)
        if delta
    ]
    rows: dict[int, Row] = {}
    for put, removed in records:
        for root in removed:
            rows.pop(root, None)
        rows |= put
    return list(rows.values())


def _unpack(packed: bytes, kind: int, name: str) -> tuple[dict[int, Row], Sequence[int]]:
    """Return the rows put, by root, and the removed roots."""
    if len(packed) < _HEADER.size:
        raise MalformedFrameError(f"{name}: {len(packed)} bytes are too short for a header")
    magic, version, packed_kind, puts, removals = _HEADER.unpack_from(packed)
    if (magic, version, packed_kind) != (_MAGIC, _VERSION, kind):
        raise MalformedFrameError(
            f"{name}: {magic!r} version {version} kind {packed_kind} is no record of this kind"
        )
    body = _body(puts, removals)
    if len(packed) != _HEADER.size + body.size:
        raise MalformedFrameError(
            f"{name}: {len(packed)} bytes where its header promises {_HEADER.size + body.size}"
        )
    numbers = body.unpack_from(packed, _HEADER.size)
    rows = zip(*(numbers[column * puts : (column + 1) * puts] for column in range(4)), strict=True)
    put = {row[0]: row for row in rows}
    if len(put) != puts:
        raise MalformedFrameError(f"{name}: a root is put twice")
    removed = numbers[4 * puts :]
    _require_legal(put, removed, name)
    return put, removed


def _require_legal(put: dict[int, Row], removed: Sequence[int], name: str) -> None:
    for root in (*put, *removed):
        if not 0 < root < ID_LIMIT:
            raise MalformedFrameError(f"{name}: a root is not between 1 and 2**63 - 1")
    for _, value, task, flags in put.values():
        if value >= ID_LIMIT:
            raise MalformedFrameError(f"{name}: a value is above 2**63 - 1")
        if task < UNKNOWN_TASK:
            raise MalformedFrameError(f"{name}: task id {task} is negative")
        if flags > FAILED:
            raise MalformedFrameError(f"{name}: flags {flags} are unknown")
