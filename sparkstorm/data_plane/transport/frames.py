"""Byte form of an entry of a task's stream: a block of tuples, or acker messages.

Laws: a frame is read completely checked or not at all (MalformedFrameError); sizes are capped
before anything is allocated; nothing in it is ever executed. Layout: b"SF", version, kind, birth of
the oldest root in it (8 bytes, ms), then msgpack; ids and roots are columns of little-endian 64-bit
integers, values are one list per field. `oldest.lua` reads the birth at its place.

A block has the rows of one channel (component and stream) for one task: their senders, roots as
runs (a root, or several, and their rows), and one edge id, which represents the block in the value
of each root that is tracked (a batch of trees has one, common/model/roots.py) until the last row of that
root is consumed. Left out: pickle and Storm's Kryo, which make objects of what they read; Arrow for
all rows, whose schema takes more bytes than a row; an edge id per row (decision 6); one entry for
the tasks of a worker (decision 7).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, groupby, repeat
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.failure import Failure, pack_failures, unpack_failures
from sparkstorm.common.model.roots import ID_LIMIT, tracked
from sparkstorm.common.model.tuples import Roots, Source, each_root
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.transport.batch_columns import pack_columns, unpack_columns

Ids = npt.NDArray[np.uint64]
Row = tuple[tuple[Any, ...], Roots, Source]
"""Values, roots and source of a tuple on its way."""
Ends = Sequence[tuple[int, int]]
"""(tracked root, place of its last row in the block), ascending by place."""

RootColumns = tuple[bytes, bytes, dict[int, bytes] | None]
"""Roots of runs and their lengths (none: each is one row), and the runs of several roots by
place.
"""
DrawEdge = Callable[[Collection[int]], int]
"""Draws the edge id of a block with these tracked roots."""

# A greater number refuses what older workers have written, at the claim and in one sentence. Frames
# of two versions side by side would need both readers for ever; a run is finished with the version
# that began it.
VERSION = 4
# REPLAYED: one row of a dead letter, put back by a client
ROWS = 1
MESSAGES = 2
SETTLED = 3
REPLAYED = 4
# Entries are cut at 256 kB, so that only one large row comes near. It bounds what a reader takes in
# before it can check anything. Half refuses rows that are allowed.
MAX_FRAME_BYTES = 64 << 20
# A sender cuts at 8,192 rows. The number in the frame is the sender's claim, and lists are made by
# it: columns of nothing would cost no bytes otherwise.
MAX_ROWS = 1 << 20
TASK_LIMIT = 1 << 31
# Of a frame's values. Only a frame of one large row can take so much: packed values of a few bytes
# may unfold to far more, and are weighed before they are unpacked.
MAX_MEMORY = 384 << 20
_NO_ROOTS: RootColumns = (b"", b"", None)
_NUMBERS = bytes(range(256))
_MAGIC = b"SF"
_HEADER = struct.Struct("<2sBBq")
HEADER_BYTES = _HEADER.size


class RootRuns:
    """Roots of a block's rows, run by run: neighbours with the same roots are one run."""

    __slots__ = ("roots", "lengths")

    def __init__(self, roots: Sequence[Roots], lengths: Sequence[int]) -> None:
        self.roots = roots
        self.lengths = lengths

    @classmethod
    def of(cls, roots: Sequence[Roots]) -> RootRuns:
        """Fold a list of roots, one or several per row."""
        runs = [
            (group[0], len(group)) for group in (list(run) for _, run in groupby(roots, key=_same))
        ]
        # Hardly any neighbours share a root: each row as a per-job run is shorter, and says the
        # same.
        if 4 * (len(runs) - 1) > 3 * len(roots):
            return cls(roots, [1] * len(roots))
        return cls([root for root, _ in runs], [length for _, length in runs])

    def distinct(self) -> Collection[int]:
        """Return every tracked root once; 0, which is no root, is left out."""
        return self._last_rows()

    def ends(self) -> Ends:
        """Return each distinct tracked root with the place of its last row; 0, which is no root, is
        left out.
        """
        return sorted(self._last_rows().items(), key=itemgetter(1))

    def _last_rows(self) -> dict[int, int]:
        if core is not None:
            last_rows: dict[int, int] = core.last_rows(self.roots, self.lengths)
            return last_rows
        last: dict[int, int] = {}
        for roots, end in zip(self.roots, accumulate(self.lengths), strict=True):
            for root in each_root(roots):
                if root:
                    last[tracked(root)] = end - 1
        return last


@dataclass(frozen=True, slots=True)
class RowFrame:
    """A block: tuples of one channel for one task, from any number of tasks of the sending
    component.
    """

    tasks: list[int]  # that sent the rows
    # of each row's sender among `tasks`; none when there is one
    numbers: Sequence[int]
    stream: str
    # birth of the oldest root among the rows: what still waits here cannot have timed out
    oldest_ms: int
    values: list[tuple[Any, ...]]
    roots: list[Roots]
    edge: int = 0  # 0: nothing is tracked
    root_runs: RootRuns | None = None  # as they came; None: nothing is tracked
    origin: int = 0  # of the worker process that has written it
    # a dead letter that was put back: its sender has not sent it now, and does not count it
    is_replayed: bool = False
    # the values as an Arrow batch, in place of `values`; roots are by run then, with their lengths
    batch: Any = None
    lengths: list[int] = field(default_factory=list)

    @property
    def senders(self) -> list[int]:
        """Return the task of each row, or the one of all rows."""
        return list(map(self.tasks.__getitem__, self.numbers)) if self.numbers else self.tasks

    def __len__(self) -> int:
        return len(self.values) if self.batch is None else int(self.batch.num_rows)


@dataclass(slots=True)
class AckerMessages:
    """Messages to ackers of one epoch, combined per root (streams __ack_init, __ack_ack,
    __ack_fail, __ack_reset_timeout).
    """

    init_roots: Sequence[int] = ()
    init_values: Sequence[int] = ()
    init_tasks: Sequence[int] = ()
    ack_roots: Sequence[int] = ()
    ack_values: Sequence[int] = ()
    failures: dict[int, Failure] = field(default_factory=dict)
    renewed: Sequence[int] = ()  # roots whose time-out begins anew
    # no root in here was born before: while this frame waits, none of them may time out
    oldest_ms: int = 0

    def __len__(self) -> int:
        return len(self.init_roots) + len(self.ack_roots) + len(self.failures) + len(self.renewed)


@dataclass(frozen=True, slots=True)
class SettledRoots:
    """Message of an acker to a spout task: trees and batches fully processed, and trees that failed
    and why.
    """

    acked: list[int]
    failed: dict[int, Failure]
    oldest_ms: int = 0  # as in AckerMessages
    renewed: list[int] = field(default_factory=list)
    # split roots of acked batches: not acked with these
    kept: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.acked) + len(self.failed) + len(self.renewed)


Frame = RowFrame | AckerMessages | SettledRoots


def kind_of(data: bytes) -> int:
    """Kind of a frame by its first bytes; control frames (acks) never count as backlog."""
    if len(data) > MAX_FRAME_BYTES:
        raise MalformedFrameError(f"a frame of {len(data)} bytes; the limit is {MAX_FRAME_BYTES}")
    if (
        len(data) < _HEADER.size
        or data[:2] != _MAGIC
        or data[2] != VERSION
        or data[3] not in _DECODERS
    ):
        raise MalformedFrameError(f"not a frame of version {VERSION}: begins with {data[:4]!r}")
    return data[3]


def birth_of(data: bytes) -> int | None:
    """Birth of the oldest root in a frame, without opening it; None when it is not a frame."""
    try:
        kind_of(data)
    except MalformedFrameError:
        return None
    return int(_HEADER.unpack_from(data)[3])


def encode_rows(
    codec: Codec,
    stream: str,
    oldest_ms: int,
    rows: Sequence[Row],
    draw_edge: DrawEdge | None = None,
    origin: int = 0,
) -> bytes:
    """Bytes of a block; `draw_edge` is given its roots and returns its edge id; None: nothing is
    tracked.
    """
    if core is not None and (split := core.split(rows)) is not None:
        columns, roots, tasks, numbers = split
        senders = tasks, numbers
    else:
        values, roots, sources = zip(*rows, strict=True)
        columns = [list(column) for column in zip(*values, strict=True)]
        senders = _senders_of(sources)
    packed = None if draw_edge is None else _packed(roots)
    return _encoded(
        codec, stream, oldest_ms, senders, len(rows), columns, packed, draw_edge, origin
    )


def encode_packed(
    codec: Codec,
    stream: str,
    oldest_ms: int,
    columns: Sequence[bytes],
    roots: Sequence[Roots],
    sources: Sequence[Source],
    draw_edge: DrawEdge | None = None,
    origin: int = 0,
) -> bytes:
    """Bytes of a block whose columns' values are packed, one behind the other, as `encode_rows`."""
    count = len(roots)
    packed = None if draw_edge is None else _packed(roots)
    values = _array_head(len(columns)) + b"".join(_array_head(count) + column for column in columns)
    senders = (core and core.senders(sources)) or _senders_of(sources)
    return _encoded(codec, stream, oldest_ms, senders, count, values, packed, draw_edge, origin)


def encode_pieces(
    codec: Codec,
    stream: str,
    oldest_ms: int,
    pieces: Sequence[Row],
    draw_edge: DrawEdge | None = None,
    origin: int = 0,
) -> bytes:
    """Bytes of a block of pieces (Arrow batches of the same columns in place of values), as
    `encode_rows`.
    """
    import pyarrow as pa

    sizes = [batch.num_rows for batch, _, _ in pieces]  # type: ignore[attr-defined]
    joined_batch = (
        pieces[0][0] if len(pieces) == 1 else pa.concat_batches([batch for batch, _, _ in pieces])
    )
    senders, numbers = _senders_of([source for _, _, source in pieces])
    if numbers:
        numbers = np.repeat(
            np.frombuffer(numbers, np.uint8 if len(senders) <= 256 else "<u2"), sizes
        ).tobytes()
    packed = None
    if draw_edge is not None:
        runs = RootRuns([roots for _, roots, _ in pieces], sizes)
        packed = runs.distinct(), _packed_roots(runs, sum(sizes))
    columns = {"arrow": pack_columns(joined_batch)}
    return _encoded(
        codec, stream, oldest_ms, (senders, numbers), sum(sizes), columns, packed, draw_edge, origin
    )


def _encoded(
    codec: Codec,
    stream: str,
    oldest_ms: int,
    senders: tuple[list[int], bytes],
    count: int,
    columns: Any,
    packed: tuple[Collection[int], RootColumns] | None,
    draw_edge: DrawEdge | None,
    origin: int,
) -> bytes:
    # Rows without a tree, and rows of topologies without ackers, pay no byte for tracking.
    edge = 0
    head = _NO_ROOTS
    if packed is not None and draw_edge is not None and packed[0]:
        edge = draw_edge(packed[0])
        head = packed[1]
    first = [origin, edge, stream, *senders, count]
    if type(columns) is bytes:  # packed already: they take their place among the ten parts
        parts = codec.pack(first)[1:], columns, codec.pack([*head])[1:]
        return _framed(ROWS, oldest_ms, _array_head(10) + b"".join(parts))
    return _framed(ROWS, oldest_ms, codec.pack([*first, columns, *head]))


def _array_head(count: int) -> bytes:
    """First bytes of a list of so many packed values, in msgpack's shortest form."""
    return bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def _senders_of(sources: Sequence[Source]) -> tuple[list[int], bytes]:
    """Sender tasks, and the number of each row's among them (one byte, or two from 257 senders on);
    none for one sender.
    """
    if sources.count(sources[0]) == len(sources):
        return [sources[0].task], b""
    tasks = [source.task for source in sources]
    number = {task: n for n, task in enumerate(dict.fromkeys(tasks))}
    if len(number) == 1:  # several objects for one task
        return [*number], b""
    numbers = map(number.__getitem__, tasks)
    # A byte a row where it is enough: a component rarely has 257 tasks in one worker.
    return list(number), bytes(numbers) if len(number) <= 256 else np.fromiter(
        numbers, "<u2", len(tasks)
    ).tobytes()


def _packed(roots: Sequence[Roots]) -> tuple[Collection[int], RootColumns]:
    """Return the distinct tracked roots of rows, and their columns."""
    if core is not None and (packed := core.pack_roots(roots)) is not None:
        column, lengths, distinct = packed
        return distinct, (column, lengths, None)
    runs = RootRuns.of(roots)
    return runs.distinct(), _packed_roots(runs, len(roots))


def _packed_roots(runs: RootRuns, count: int) -> RootColumns:
    """Roots and lengths of runs as columns (no lengths: each is one row), and the runs of several
    roots by place.
    """
    # Apart from the column of single roots, since nearly all rows have one root: the column stays
    # eight bytes a run, and reading it is one call.
    several = (
        {n: _column(roots) for n, roots in enumerate(runs.roots) if type(roots) is tuple}
        if _has_tuple(runs.roots)
        else None
    )
    single = (
        [0 if type(roots) is tuple else roots for roots in runs.roots] if several else runs.roots
    )
    lengths = b"" if len(runs.roots) == count else np.array(runs.lengths, "<u4").tobytes()
    return _column(single), lengths, several


def _same(roots: Roots) -> int:
    # By identity: comparing anchors of many roots would cost more than writing a run twice.
    return id(roots) if type(roots) is tuple else roots  # type: ignore[return-value]


def _has_tuple(roots: Iterable[Roots]) -> bool:
    return tuple in set(map(type, roots))


def encode_replayed(
    codec: Codec, source_task: int, stream: str, born_ms: int, values: Sequence[Any]
) -> bytes:
    """Bytes of one row that a dead letter keeps: of no tree, since the tree that it belonged to has
    failed.
    """
    body = [0, 0, stream, [source_task], b"", 1, [[value] for value in values], b"", b"", None]
    return _framed(REPLAYED, born_ms, codec.pack(body))


def travelled(codec: Codec, rows: Sequence[Row]) -> list[Row]:
    """Rows as they would come out of a frame: changes of one receiver to its values do not reach
    another.
    """
    if any(type(row[0]) is not tuple for row in rows):
        return [row if type(row[0]) is not tuple else travelled(codec, [row])[0] for row in rows]
    # The codec's own way there and back, so that a local hop and one through Redis give a bolt
    # values of the same types. Copying deeply would keep types that a frame does not have.
    values = codec.unpack(codec.pack([list(row[0]) for row in rows]))
    return [(tuple(mine), row[1], row[2]) for mine, row in zip(values, rows, strict=True)]


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
    body = [
        _column(settled.acked),
        pack_failures(settled.failed),
        _column(settled.renewed),
        _column(settled.kept),
    ]
    return _framed(SETTLED, settled.oldest_ms, codec.pack(body))


def decode(codec: Codec, data: bytes, kind: int = 0) -> Frame:
    """Check and open a frame; MalformedFrameError names what is wrong with it. `kind`: as `kind_of`
    has found it, 0: not asked.
    """
    kind = kind or kind_of(data)
    oldest_ms = _HEADER.unpack_from(data)[3]
    # Weighed before it is unpacked: 60 MB of nones became 567 MB, and texts of one letter more than
    # 2 GB, before a check of the form could refuse them.
    body = codec.unpack(memoryview(data)[_HEADER.size :], MAX_MEMORY)
    if not isinstance(body, list):
        raise MalformedFrameError("the body is not a list")
    try:
        return _DECODERS[kind](body, oldest_ms)
    except (ValueError, TypeError, OverflowError) as error:
        raise MalformedFrameError(f"frame of kind {kind}: {error}") from error


def _decode_rows(body: list[Any], oldest_ms: int) -> RowFrame:
    origin, edge, stream, tasks, numbers, count, columns, roots, lengths, several = body
    _check(type(origin) is int and type(stream) is str, "its source has wrong types")
    _check(type(edge) is int and 0 <= edge < ID_LIMIT, "an edge id is not between 0 and 2**63 - 1")
    _check(type(count) is int and 0 < count <= MAX_ROWS, f"it claims {count!r:.40} rows")
    senders = (tasks, _checked_numbers(tasks, numbers, count))
    batch = None
    values = list[tuple[Any, ...]]()
    if type(columns) is dict:
        batch = _unpacked(columns, count)
    else:
        _check(
            type(columns) is list and all(type(c) is list and len(c) == count for c in columns),
            "uneven columns",
        )
        values = list(zip(*columns, strict=True)) if columns else [()] * count
    # A frame with one and not the other would leave a tree that never ends, or end one too early.
    _check(bool(edge) == bool(roots), "an edge without roots, or roots without an edge")
    if not edge:
        _check(lengths == b"" and several is None, "anchors without an edge")
        none: list[Roots] = [0] if batch is not None else [0] * count
        return RowFrame(
            *senders, stream, oldest_ms, values, none, origin=origin, batch=batch, lengths=[count]
        )
    if batch is None:
        runs, row_roots = _row_roots(roots, lengths, several, count)
        return RowFrame(*senders, stream, oldest_ms, values, row_roots, edge, runs, origin)
    runs = _checked_roots(roots, lengths, several, count)
    return RowFrame(
        *senders,
        stream,
        oldest_ms,
        values,
        list(runs.roots),
        edge,
        runs,
        origin,
        batch=batch,
        lengths=list(runs.lengths),
    )


def _unpacked(columns: dict[Any, Any], count: int) -> Any:
    _check(set(columns) == {"arrow"}, "columns are no list and no batch")
    return unpack_columns(columns["arrow"], count)


def _checked_numbers(tasks: Any, numbers: Any, count: int) -> Sequence[int]:
    """Number of each row's sender among these tasks; none when there is one."""
    _check(
        type(tasks) is list and type(numbers) is bytes and all(type(t) is int for t in tasks),
        "its senders are not tasks",
    )
    if len(tasks) == 1:
        _check(not numbers, "numbers of senders, of which there is one")
        return b""
    complaint = "its rows have other senders than it names"
    if len(tasks) <= 256:
        # What is left without all numbers that there may be: one call for all rows.
        row_numbers: bytes = numbers
        unknown = row_numbers.translate(None, _NUMBERS[: len(tasks)])
        _check(len(row_numbers) == count and not unknown, complaint)
        return row_numbers
    _check(len(numbers) % 2 == 0, "numbers of senders are not bytes of 16-bit integers")
    column: list[int] = np.frombuffer(numbers, "<u2").tolist()
    _check(len(column) == count and max(column) < len(tasks), complaint)
    return column


def _row_roots(roots: Any, lengths: Any, several: Any, count: int) -> tuple[RootRuns, list[Roots]]:
    """Checked roots by run, and those of each row."""
    if core is not None and several is None:
        unpacked = core.unpack_roots(roots, lengths, count)
        if unpacked is not None:
            return RootRuns(unpacked[0], unpacked[1]), unpacked[2]
    runs = _checked_roots(roots, lengths, several, count)
    by_row = (
        runs.roots if lengths == b"" else chain.from_iterable(map(repeat, runs.roots, runs.lengths))
    )
    return runs, list(by_row)


def _checked_roots(roots: Any, lengths: Any, several: Any, count: int) -> RootRuns:
    root_ids: list[Roots] = _ids(roots, 0, "a root")
    _check(
        type(lengths) is bytes and len(lengths) % 4 == 0,
        "lengths of runs are not bytes of 32-bit integers",
    )
    sizes: list[int] = np.frombuffer(lengths, "<u4").tolist() if lengths else [1] * len(root_ids)
    # A run of no rows would have no last row: its root's edge would never leave the tree's value.
    _check(
        len(sizes) == len(root_ids) and 0 not in sizes and sum(sizes) == count,
        "runs of roots have other rows than it claims",
    )
    _check(several is None or type(several) is dict, "anchors are not a mapping")
    for run, many in (several or {}).items():
        _check(type(run) is int and 0 <= run < len(root_ids), "an anchor points outside the rows")
        anchors = _ids(many, 1, "an anchor")
        _check(len(anchors) > 0, "anchors without a root")
        root_ids[run] = tuple(anchors)
    return RootRuns(root_ids, sizes)


def _decode_messages(body: list[Any], oldest_ms: int) -> AckerMessages:
    init_roots, init_values, init_tasks, ack_roots, ack_values, failures, renewed = body
    roots, acked, reset = (_ids(column, 1, "a root") for column in (init_roots, ack_roots, renewed))
    values, edges = (_ids(column, 0, "a value") for column in (init_values, ack_values))
    tasks = _ids(init_tasks, 0, "a spout task")
    _check(len(roots) == len(values) == len(tasks) and len(acked) == len(edges), "uneven columns")
    # The acker's journal keeps tasks in 32 bits; a larger one was refused there, and killed the
    # worker, before it was refused here.
    _check(not tasks or max(tasks) < TASK_LIMIT, "a spout task is above 2**31 - 1")
    return AckerMessages(
        roots, values, tasks, acked, edges, unpack_failures(failures, ID_LIMIT), reset, oldest_ms
    )


def _decode_settled(body: list[Any], oldest_ms: int) -> SettledRoots:
    acked, failed, renewed, kept = body
    roots, reset, kept_roots = (_ids(column, 1, "a root") for column in (acked, renewed, kept))
    return SettledRoots(roots, unpack_failures(failed, ID_LIMIT), oldest_ms, reset, kept_roots)


def _decode_replayed(body: list[Any], oldest_ms: int) -> RowFrame:
    frame = _decode_rows(body, oldest_ms)
    _check(
        len(frame.values) == 1 and not frame.edge,
        "a replayed dead letter is not one row of no tree",
    )
    return replace(frame, is_replayed=True)


_DECODERS: dict[int, Callable[[list[Any], int], Frame]] = {
    ROWS: _decode_rows,
    MESSAGES: _decode_messages,
    SETTLED: _decode_settled,
    REPLAYED: _decode_replayed,
}


def _framed(kind: int, oldest_ms: int, body: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, VERSION, kind, oldest_ms) + body


def _column(numbers: Sequence[Any]) -> bytes:
    # struct and not numpy, for few and many: lists of few and arrays of many had a threshold each,
    # and struct reads a list in the time of numpy's conversion (commit 6926200d).
    return struct.pack(f"<{len(numbers)}Q", *numbers) if len(numbers) else b""


def _ids(data: Any, least: int, name: str) -> list[Any]:
    """Checked ids of a column; of 2**63 or more is one that is negative here."""
    _check(
        type(data) is bytes and len(data) % 8 == 0,
        "a column of ids is not bytes of 64-bit integers",
    )
    # Signed, so that one comparison with the least finds ids of 2**63 and more too.
    ids = list(struct.unpack(f"<{len(data) // 8}q", data)) if data else []
    _check(not ids or min(ids) >= least, f"{name} is not between {least} and 2**63 - 1")
    return ids


def _check(holds: bool, complaint: str) -> None:
    if not holds:
        raise MalformedFrameError(complaint)
