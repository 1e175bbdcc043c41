"""Byte form of a frame: tuples, or acker messages, for one task.

Laws: a frame is read completely checked or not at all (MalformedFrameError); sizes are capped before anything is
allocated; nothing in it is ever executed. Layout: b"SF", version, kind, birth of the oldest root in it (8 bytes, ms),
then msgpack; ids and roots are columns of little-endian 64-bit integers, values are one list per field. `oldest.lua`
reads the birth where it stands.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkstorm.errors import MalformedFrameError
from sparkstorm.model.codec import Codec
from sparkstorm.model.failure import Failure, pack_failures, unpack_failures
from sparkstorm.model.tuples import Roots

Ids = npt.NDArray[np.uint64]
Row = tuple[tuple[Any, ...], Roots]

VERSION = 1
ROWS, MESSAGES, SETTLED, REPLAYED = 1, 2, 3, 4  # REPLAYED: one row of a dead letter, put back by people
MAX_FRAME_BYTES = 64 << 20
MAX_ROWS = 1 << 20
ID_LIMIT = 1 << 63  # roots and edge ids, and so every XOR of them, are below
TASK_LIMIT = 1 << 31
MAX_CONTAINERS = 4 << 20  # lists and mappings in a frame, which take 0.4 GB: no frame of several rows has room for more
NO_IDS: Ids = np.empty(0, np.uint64)
_MAGIC = b"SF"
_HEADER = struct.Struct("<2sBBq")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class RowFrame:
    """Tuples of one stream from one task: values, roots and edge ids row by row."""

    source_task: int
    stream: str
    oldest_ms: int  # birth of the oldest root among the rows: what still waits here cannot have timed out
    values: list[tuple[Any, ...]]
    roots: list[Roots]
    ids: Ids
    is_replayed: bool = False  # a dead letter that was put back: its sender has not sent it now, and does not count it

    def __len__(self) -> int:
        return len(self.values)


@dataclass(slots=True)
class AckerMessages:
    """Messages to ackers of one epoch, combined per root (streams __ack_init, __ack_ack, __ack_fail, __ack_reset_timeout)."""

    init_roots: Ids = field(default_factory=lambda: NO_IDS)
    init_values: Ids = field(default_factory=lambda: NO_IDS)
    init_tasks: Ids = field(default_factory=lambda: NO_IDS)
    ack_roots: Ids = field(default_factory=lambda: NO_IDS)
    ack_values: Ids = field(default_factory=lambda: NO_IDS)
    failures: dict[int, Failure] = field(default_factory=dict)
    renewed: Ids = field(default_factory=lambda: NO_IDS)  # roots whose time-out begins anew
    oldest_ms: int = 0  # no root in here was born before: while this frame waits, none of them may time out

    def __len__(self) -> int:
        return len(self.init_roots) + len(self.ack_roots) + len(self.failures) + len(self.renewed)


@dataclass(frozen=True, slots=True)
class SettledRoots:
    """Message of an acker to a spout task: trees fully processed, and trees that failed and why."""

    acked: list[int]
    failed: dict[int, Failure]
    oldest_ms: int = 0  # as in AckerMessages
    renewed: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.acked) + len(self.failed) + len(self.renewed)


Frame = RowFrame | AckerMessages | SettledRoots


def kind_of(data: bytes) -> int:
    """Kind of a frame by its first bytes; control frames (acks) never count as backlog."""
    if len(data) > MAX_FRAME_BYTES:
        raise MalformedFrameError(f"a frame of {len(data)} bytes; the limit is {MAX_FRAME_BYTES}")
    if len(data) < _HEADER.size or data[:2] != _MAGIC or data[2] != VERSION or data[3] not in _DECODERS:
        raise MalformedFrameError(f"not a frame of version {VERSION}: begins with {data[:4]!r}")
    return data[3]


def birth_of(data: bytes) -> int | None:
    """Birth of the oldest root in a frame, without opening it; None when it is not a frame."""
    try:
        kind_of(data)
    except MalformedFrameError:
        return None
    return int(_HEADER.unpack_from(data)[3])


def encode_rows(codec: Codec, source_task: int, stream: str, oldest_ms: int, rows: Sequence[Row], ids: Ids) -> bytes:
    """Bytes of rows; `ids` has one edge id per row, or none when nothing is tracked."""
    values, roots = zip(*rows, strict=True)
    several = {i: list(r) for i, r in enumerate(roots) if type(r) is tuple} if tuple in set(map(type, roots)) else None
    single = [0 if type(r) is tuple else r for r in roots] if several else roots
    columns = [list(column) for column in zip(*values, strict=True)]
    body = [
        source_task,
        stream,
        len(rows),
        columns,
        np.array(single, "<u8").tobytes() if len(ids) else b"",
        ids.astype("<u8").tobytes(),
        several,
    ]
    return _framed(ROWS, oldest_ms, codec.pack(body))


def encode_replayed(codec: Codec, source_task: int, stream: str, born_ms: int, values: Sequence[Any]) -> bytes:
    """Bytes of one row that a dead letter keeps: of no tree, since the tree that it belonged to has failed."""
    body = [source_task, stream, 1, [[value] for value in values], b"", b"", None]
    return _framed(REPLAYED, born_ms, codec.pack(body))


def travelled(codec: Codec, rows: Sequence[Row]) -> list[Row]:
    """Rows as they would come out of a frame: what one receiver does to its values, no other sees."""
    values = codec.unpack(codec.pack([list(row[0]) for row in rows]))
    return [(tuple(mine), row[1]) for mine, row in zip(values, rows, strict=True)]


def encode_messages(codec: Codec, messages: AckerMessages) -> bytes:
    """Bytes of one epoch's messages to one acker."""
    m = messages
    body = [
        _column(m.init_roots),
        _column(m.init_values),
        _column(m.init_tasks),
        _column(m.ack_roots),
        _column(m.ack_values),
        pack_failures(m.failures),
        _column(m.renewed),
    ]
    return _framed(MESSAGES, m.oldest_ms, codec.pack(body))


def encode_settled(codec: Codec, settled: SettledRoots) -> bytes:
    """Bytes of an acker's verdicts for one spout task."""
    return _framed(
        SETTLED, settled.oldest_ms, codec.pack([_column(settled.acked), pack_failures(settled.failed), _column(settled.renewed)])
    )


def decode(codec: Codec, data: bytes) -> Frame:
    """Check and open a frame; MalformedFrameError says what is wrong with it."""
    kind = kind_of(data)
    oldest_ms = _HEADER.unpack_from(data)[3]
    body = codec.unpack(memoryview(data)[_HEADER.size :], MAX_CONTAINERS)
    if not isinstance(body, list):
        raise MalformedFrameError("the body is not a list")
    try:
        return _DECODERS[kind](body, oldest_ms)
    except (ValueError, TypeError, OverflowError) as error:
        raise MalformedFrameError(f"frame of kind {kind}: {error}") from error


def _decode_rows(body: list[Any], oldest_ms: int) -> RowFrame:
    source_task, stream, count, columns, roots, ids, several = body
    _check(type(source_task) is int and type(stream) is str, "its source has wrong types")
    _check(type(count) is int and 0 < count <= MAX_ROWS, f"it claims {count!r:.40} rows")
    _check(type(columns) is list and all(type(c) is list and len(c) == count for c in columns), "uneven columns")
    values = list(zip(*columns, strict=True)) if columns else [()] * count
    row_ids, single = _numbers(ids, count), _numbers(roots, count)
    _check(len(row_ids) == len(single), "ids without roots, or roots without ids")
    _check_ids(row_ids, 0, "an edge id")
    _check_ids(single, 0, "a root")
    _check(several is None or type(several) is dict, "anchors are not a mapping")
    row_roots: list[Roots] = single.tolist() if len(single) else [0] * count
    for position, many in (several or {}).items():
        _check(type(position) is int and 0 <= position < count, "an anchor points outside the rows")
        _check(type(many) is list and len(many) > 0, "anchors are not a list")
        _check(all(type(r) is int and 0 < r < ID_LIMIT for r in many), "anchors are not ids")
        row_roots[position] = tuple(many)
    return RowFrame(source_task, stream, oldest_ms, values, row_roots, row_ids)


def _decode_messages(body: list[Any], oldest_ms: int) -> AckerMessages:
    init_roots, init_values, init_tasks, ack_roots, ack_values, failures, renewed = body
    roots, values, tasks = (_numbers(column) for column in (init_roots, init_values, init_tasks))
    acked, edges, reset = (_numbers(column) for column in (ack_roots, ack_values, renewed))
    _check(len(roots) == len(values) == len(tasks) and len(acked) == len(edges), "uneven columns")
    for column in (roots, acked, reset):
        _check_ids(column, 1, "a root")
    for column in (values, edges):
        _check_ids(column, 0, "a value")
    _check(not len(tasks) or int(tasks.max()) < TASK_LIMIT, "a spout task is above 2**31 - 1")
    return AckerMessages(roots, values, tasks, acked, edges, unpack_failures(failures, ID_LIMIT), reset, oldest_ms)


def _decode_settled(body: list[Any], oldest_ms: int) -> SettledRoots:
    acked, failed, renewed = body
    roots, reset = _numbers(acked), _numbers(renewed)
    _check_ids(roots, 1, "a root")
    _check_ids(reset, 1, "a root")
    return SettledRoots(roots.tolist(), unpack_failures(failed, ID_LIMIT), oldest_ms, reset.tolist())


def _decode_replayed(body: list[Any], oldest_ms: int) -> RowFrame:
    frame = _decode_rows(body, oldest_ms)
    _check(frame.roots == [0] and not len(frame.ids), "a replayed dead letter is not one row of no tree")
    return replace(frame, is_replayed=True)


_DECODERS: dict[int, Callable[[list[Any], int], Frame]] = {
    ROWS: _decode_rows,
    MESSAGES: _decode_messages,
    SETTLED: _decode_settled,
    REPLAYED: _decode_replayed,
}


def _framed(kind: int, oldest_ms: int, body: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, VERSION, kind, oldest_ms) + body


def _column(numbers: Sequence[int] | Ids) -> bytes:
    return np.array(numbers, "<u8").tobytes()


def _numbers(data: Any, count: int | None = None) -> Ids:
    _check(type(data) is bytes and len(data) % 8 == 0, "a column of ids is not bytes of 64-bit integers")
    numbers = np.frombuffer(data, "<u8")
    _check(count is None or len(numbers) in (0, count), "a column of ids has the wrong length")
    return numbers.astype(np.uint64, copy=False)


def _check_ids(ids: Ids, least: int, name: str) -> None:
    _check(not len(ids) or (int(ids.min()) >= least and int(ids.max()) < ID_LIMIT), f"{name} is not between {least} and 2**63 - 1")


def _check(holds: bool, complaint: str) -> None:
    if not holds:
        raise MalformedFrameError(complaint)
