"""Chunks: many rows of one stream for one task as one cell of bytes; Spark moves nothing else in a
replay.

Spark's shuffle has no cost per row: the emitting task has chosen the target with the live grouping.
Laws: chunks are sorted by `order_of`, in any order of delivery by Spark, so a retried stage reads
the same rows in the same order; times never fall within a chunk, nor between chunks of one source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from sparkstorm.api.columns import batch_of, rows_of
from sparkstorm.common.errors import CodecError
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.pieces import is_piece
from sparkstorm.replay.tasks.batches import (
    OutEdge,
    Sizer,
    is_batch,
    pack_batch,
    put_together,
    slices,
    unpack_batch,
)

# The order in which a task reads them: its state before the clocks, and these before any row.
START, STATE, CLOCK, ROWS, DEAD, KEPT_STATE, KEPT_TIME, REPORT = range(8)
# Target of rows without a receiving task: they are results. Tasks are numbered from 1.
KEPT = 0
_MOST_ROWS = 8192
_SMALL_BYTES = 128 << 10
_LARGE_BYTES = 1 << 20
Row = tuple[tuple[Any, ...], int, Source]
"""Values with the virtual time they were emitted at (in the place where a live row carries its
roots), and the source.
"""


class EdgeChunk(NamedTuple):
    """One cell of rows with its routing columns."""

    kind: int
    target: int  # task id, or KEPT
    first_ms: int  # virtual time of the first row
    source: int  # number of the producing stage and partition: unique, and orders ties
    seq: int  # position among the chunks of its source
    sender: int  # task id of the emitter
    stream: str
    rows: int
    data: bytes


class OpenChunk(EdgeChunk):
    """A chunk of a state that does not leave its process: its columns instead of their bytes."""

    columns: list[Sequence[Any]]


DDL = "kind int, target int, first_ms long, source long, seq long, sender int, stream string, rows int, data binary"
ORDER = ("target", "kind", "first_ms", "source", "seq")
order_of = attrgetter(*ORDER)
# More partitions than a job of Spark can have tasks in practice; 39 bits are left for stages.
_SOURCE_STRIDE = 1 << 24


def source_number(stage: int, partition: int) -> int:
    """Return the source number of one partition of a stage."""
    return stage * _SOURCE_STRIDE + partition


def pack_rows(codec: Codec, rows: Sequence[Row], is_timed: bool) -> bytes:
    """Return the bytes of rows, column by column; CodecError for a value outside the codec's closed
    set.
    """
    # By columns: that is how results are written, and a
    # batch of Arrow is made of columns, not of rows.
    if core is not None and (split := core.split(rows)) is not None:
        columns, times, *_ = split
    else:
        values, times, *_ = zip(*rows, strict=True)
        columns = [list(column) for column in zip(*values, strict=True)]
    return codec.pack([list(times) if is_timed else None, columns])


def unpack_rows(codec: Codec, chunk: EdgeChunk) -> tuple[Iterable[tuple[Any, ...]], Iterable[int]]:
    """Return the values and the times of a chunk's rows."""
    if is_batch(chunk.data):
        return rows_of(unpack_batch(chunk.data)), repeat(chunk.first_ms, chunk.rows)
    times, columns = codec.unpack(chunk.data)
    values = zip(*columns, strict=True) if columns else repeat((), chunk.rows)
    return values, repeat(0, chunk.rows) if times is None else times


def rows_in(codec: Codec, chunk: EdgeChunk, source: Source) -> list[Any]:
    """Return a chunk's rows, of one source."""
    return list(zip(*unpack_rows(codec, chunk), repeat(source), strict=False))


def piece_in(codec: Codec, chunk: EdgeChunk, source: Source, types: Mapping[str, Any]) -> list[Any]:
    """Return a chunk's rows as one piece, or as they are if no Arrow columns hold them."""
    if is_batch(chunk.data):
        return [(unpack_batch(chunk.data), chunk.first_ms, source)]
    _, columns = codec.unpack(chunk.data)
    try:
        return [(batch_of(source.fields, columns, types), 0, source)]
    except (pa.ArrowException, CodecError):
        return rows_in(codec, chunk, source)


def _chunk_sizer() -> Sizer:
    return Sizer(_MOST_ROWS, _SMALL_BYTES, _LARGE_BYTES)


class ChunkWriter:
    """Writer of the rows of one partition as chunks, in one sequence."""

    def __init__(self, codec: Codec, source: int, is_timed: bool) -> None:
        self._codec = codec
        self._source = source
        self._is_timed = is_timed
        self._seq = 0
        self.sizer = _chunk_sizer()

    def edge(self, edge: OutEdge) -> Iterator[EdgeChunk]:
        """Yield chunks of an edge's rows and pieces, in their order, and empty it."""
        source = edge.source
        if not edge.may_hold_pieces:
            yield from self.rows(edge.target, source.task, source.channel, edge.rows)
            return
        for are_pieces, group in groupby(edge.rows, key=is_piece):
            if not are_pieces:
                yield from self.rows(edge.target, source.task, source.channel, list(group))
                continue
            for batch, at_ms, _ in put_together(group):
                for part in slices(batch):
                    yield self._chunk(
                        ROWS,
                        edge.target,
                        at_ms,
                        source.task,
                        source.channel,
                        part.num_rows,
                        pack_batch(part),
                    )
        edge.rows.clear()

    def rows(self, target: int, sender: int, stream: str, rows: list[Any]) -> Iterator[EdgeChunk]:
        """Yield chunks of these rows and empty the list."""
        for part in self.sizer.parts(rows):
            data = pack_rows(self._codec, part, self._is_timed)
            self.sizer.learn(len(part), len(data))
            yield self._chunk(ROWS, target, part[0][1], sender, stream, len(part), data)
        rows.clear()

    def state(self, kind: int, task: int, pairs: Iterable[Sequence[Any]]) -> Iterator[EdgeChunk]:
        """Yield chunks of a task's keys and values, read lazily."""
        sizer = _chunk_sizer()
        rest = iter(pairs)
        while part := list(islice(rest, sizer.rows)):
            data = self._codec.pack([None, list(map(list, zip(*part, strict=True)))])
            sizer.learn(len(part), len(data))
            yield self._chunk(kind, task, 0, task, "", len(part), data)

    def columns(self, task: int, keys: Sequence[Any], values: Sequence[Any]) -> Iterator[EdgeChunk]:
        """Yield chunks of a task's final keys and values that do not leave this process."""
        for start in range(0, len(keys), _MOST_ROWS):
            part = [keys[start : start + _MOST_ROWS], values[start : start + _MOST_ROWS]]
            chunk = OpenChunk(*self._chunk(KEPT_STATE, task, 0, task, "", len(part[0]), b""))
            chunk.columns = part
            yield chunk

    def clock(self, target: int, sender: int, stream: str, newest_ms: int) -> EdgeChunk:
        """Return a CLOCK chunk: the newest time of a sender's rows."""
        return self._chunk(CLOCK, target, 0, sender, stream, 1, self._codec.pack(newest_ms))

    def dead(self, sender: int, data: bytes) -> EdgeChunk:
        """Return a chunk of one dead letter."""
        return self._chunk(DEAD, KEPT, 0, sender, "", 1, data)

    def report(self, evidence: list[Any]) -> EdgeChunk:
        """Return a REPORT chunk: what the tasks of one partition did."""
        return self._chunk(REPORT, KEPT, 0, KEPT, "", 1, self._codec.pack(evidence))

    def _chunk(
        self,
        kind: int,
        target: int,
        first_ms: int,
        sender: int,
        stream: str,
        count: int,
        data: bytes,
    ) -> EdgeChunk:
        self._seq += 1
        return EdgeChunk(
            kind, target, first_ms, self._source, self._seq, sender, stream, count, data
        )
