"""Bytes of a ledger in the journal: one delta per epoch, and snapshots.

Layout (little-endian): a 12-byte header (b"AL", version, kind, rows put, rows removed), then the
columns root, value, spout task, flags of the rows put, then the removed roots. Rows carry absolute
values, so replaying a record twice has no effect; within a record removals happen before puts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.roots import ID_LIMIT
from sparkstorm.data_plane.acking.batch import Roots, Tasks

UNKNOWN_TASK = -1
"""In place of the spout task of a root whose ack came before its init (S1.18)."""
FAILED = 1
"""The only flag in the journal: a fail that waits for its init."""

_HEADER = struct.Struct("<2sBBII")
_MAGIC = b"AL"
_VERSION = 1
_DELTA = 0
_SNAPSHOT = 1
_PUT_BYTES = 8 + 8 + 4 + 1
_REMOVED_BYTES = 8
DELTA_HEAD = _HEADER.pack(_MAGIC, _VERSION, _DELTA, 0, 0)[:4]
"""Head of a delta; the compiled core writes the rest (`take_delta`)."""
NO_DELTA = _HEADER.size
"""Bytes of a delta of no rows."""


class Entries(NamedTuple):
    """Rows of a ledger as columns."""

    roots: Roots
    values: Roots
    tasks: Tasks
    flags: NDArray[np.uint8]


class JournalEntry(NamedTuple):
    """A delta or snapshot, unpacked."""

    put: Entries
    removed: Roots


def entries_of(rows: Sequence[tuple[int, int, int, int]]) -> Entries:
    """Columns of (root, value, spout task, flags) rows."""
    roots, values, tasks, flags = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Entries(
        np.array(roots, np.uint64),
        np.array(values, np.uint64),
        np.array(tasks, np.int32),
        np.array(flags, np.uint8),
    )


def pack_delta(put: Entries, removed: Roots) -> bytes:
    """Bytes of what changed; empty when nothing did, so that an idle epoch writes nothing."""
    if not len(put.roots) and not len(removed):
        return b""
    return _pack(_DELTA, put, removed)


def pack_snapshot(entries: Entries) -> bytes:
    """Bytes of everything a ledger holds."""
    return _pack(_SNAPSHOT, entries, np.empty(0, np.uint64))


def _pack(kind: int, put: Entries, removed: Roots) -> bytes:
    header = _HEADER.pack(_MAGIC, _VERSION, kind, len(put.roots), len(removed))
    columns = (
        put.roots.astype("<u8", copy=False), put.values.astype("<u8", copy=False),
        put.tasks.astype("<i4", copy=False), put.flags, removed.astype("<u8", copy=False),
    )  # fmt: skip
    return header + b"".join(column.tobytes() for column in columns)


def replay(snapshot: bytes, deltas: Iterable[bytes]) -> Entries:
    """Return a ledger's entries after the last delta; an empty snapshot means that the ledger began
    empty.
    """
    records = [_unpack(snapshot, _SNAPSHOT, "ledger snapshot")] if snapshot else []
    records += [
        _unpack(delta, _DELTA, f"ledger delta {at}") for at, delta in enumerate(deltas) if delta
    ]
    return _merge(records)


def _merge(records: Sequence[JournalEntry]) -> Entries:
    """Keep the last record of each root; a removal leaves nothing."""
    if not records:
        return entries_of(())
    roots = np.concatenate(
        [part for record in records for part in (record.removed, record.put.roots)]
    )
    is_put = np.concatenate([_put_mask(record) for record in records])
    # np.unique reports first occurrences, so the sequence is read backwards to get each root's last
    # one.
    _, from_end = np.unique(roots[::-1], return_index=True)
    last = np.sort(len(roots) - 1 - from_end)
    rows = np.cumsum(is_put)[last[is_put[last]]] - 1
    return Entries(
        *(
            np.concatenate(column)[rows]
            for column in zip(*(record.put for record in records), strict=True)
        )
    )


def _put_mask(record: JournalEntry) -> NDArray[np.bool_]:
    return np.repeat(np.array([False, True]), [len(record.removed), len(record.put.roots)])


def _unpack(packed: bytes, kind: int, name: str) -> JournalEntry:
    if len(packed) < _HEADER.size:
        raise MalformedFrameError(f"{name}: {len(packed)} bytes are too short for a header")
    magic, version, found_kind, puts, removals = _HEADER.unpack_from(packed)
    if (magic, version, found_kind) != (_MAGIC, _VERSION, kind):
        raise MalformedFrameError(
            f"{name}: {magic!r} version {version} kind {found_kind} is no record of this kind"
        )
    expected = _HEADER.size + puts * _PUT_BYTES + removals * _REMOVED_BYTES
    if len(packed) != expected:
        raise MalformedFrameError(
            f"{name}: {len(packed)} bytes where its header promises {expected}"
        )
    record = _columns(packed, puts, removals)
    _require_legal(record, name)
    return record


def _columns(packed: bytes, puts: int, removals: int) -> JournalEntry:
    at = _HEADER.size
    columns = []
    for dtype, rows in (
        ("<u8", puts),
        ("<u8", puts),
        ("<i4", puts),
        ("u1", puts),
        ("<u8", removals),
    ):
        columns.append(np.frombuffer(packed, dtype, rows, at))
        at += columns[-1].nbytes
    roots, values, tasks, flags, removed = columns
    return JournalEntry(Entries(roots, values, tasks, flags), removed)


def _require_legal(record: JournalEntry, name: str) -> None:
    put, removed = record
    for roots in (put.roots, removed):
        if len(roots) and (int(roots.min()) == 0 or int(roots.max()) >= ID_LIMIT):
            raise MalformedFrameError(f"{name}: a root is not between 1 and 2**63 - 1")
    if len(np.unique(put.roots)) != len(put.roots):
        raise MalformedFrameError(f"{name}: a root is put twice")
    if len(put.values) and int(put.values.max()) >= ID_LIMIT:
        raise MalformedFrameError(f"{name}: a value is above 2**63 - 1")
    if len(put.tasks) and int(put.tasks.min()) < UNKNOWN_TASK:
        raise MalformedFrameError(f"{name}: task id {int(put.tasks.min())} is negative")
    if len(put.flags) and int(put.flags.max()) > FAILED:
        raise MalformedFrameError(f"{name}: flags {int(put.flags.max())} are unknown")
