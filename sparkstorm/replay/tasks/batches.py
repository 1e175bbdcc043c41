"""Rows between the tasks of a replay: output edges, concatenated pieces, batch sizes, bytes of a
batch in a chunk.

Rows have the form of live ones, (values, virtual time, source), with the time in the place of
roots; a piece is an Arrow batch in the place of the values (data_plane/executor/pieces.py). Law: splitting and
concatenating pieces changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from sparkstorm.api.value_columns import with_values
from sparkstorm.common.errors import CodecError, ReplayFailedError
from sparkstorm.common.grouping.routes import Target
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.pieces import count_rows, is_piece, joined, sliced, unfold
from sparkstorm.data_plane.task_kit.held import can_change
from sparkstorm.data_plane.transport.frames import travelled
from sparkstorm.replay.tasks.combiner import Combiner

# An Arrow stream begins so. Rows are packed as a list of two, which never does.
_IPC = b"\xff\xff\xff\xff"
# 65,536 rows of a batch, as many as live. A megabyte a chunk: Spark holds several
# copies of each. An edge with pieces is written from 8,192 rows on, a chunk of rows;
# 16,384 rows are given to a bolt at once. No measurement chose the last two: half
# means more chunks and calls, twice more memory where each row makes many.
_MOST_ROWS = 65_536
_MOST_BYTES = 1 << 20
_FULL_ROWS = 8_192
PIECE_ROWS = 16_384
# Where rows are never Python's objects a batch may be far larger: Arrow's work has a price per
# batch.
_WHOLE_ROWS = 1 << 18
_WHOLE_BYTES = 16 << 20


@dataclass(slots=True)
class OutEdge:
    """Output buffer from one task to another on one stream: rows (values, virtual time, source),
    and pieces among them.
    """

    source: Source
    to: Target
    may_hold_pieces: bool = False  # its sender emits batches
    is_shared: bool = False  # its rows go to others too: results, or a second receiver
    combiner: Combiner | None = None  # of rows for a bolt that sums up by key

    @property
    def target(self) -> int:
        """Return the receiving task."""
        return self.to.task

    @property
    def is_local(self) -> bool:
        """Return whether the receiver is a task of the same stage."""
        return self.to.is_local

    @property
    def rows(self) -> list[Any]:
        """Return the rows that wait."""
        return self.to.rows

    def is_due(self, least: int, whole: bool) -> bool:
        """Return whether there is enough to be sent: `least` rows, a full table of a combiner;
        anything if `whole`.
        """
        # A combiner waits for as many rows of a key as it may:
        # each that it puts together is one less to send.
        if self.combiner is not None and (whole or self.combiner.is_full):
            return True
        if whole or not self.may_hold_pieces:
            return len(self.rows) >= (1 if whole else least)
        return count_rows(self.rows) >= _FULL_ROWS

    def packing_error(self, codec: Codec, error: CodecError) -> ReplayFailedError:
        """Return the error that names the first value that cannot be packed: component, task,
        stream and field.
        """
        where = f"component '{self.source.component}' (task {self.source.task}), stream '{self.source.stream}'"
        for values, *_ in unfold(self.rows):
            for name, value in zip(self.source.fields, values, strict=True):
                try:
                    codec.normalise(value)
                except CodecError as fault:
                    return ReplayFailedError(f"{where}, field '{name}': emitted {fault}")
        return ReplayFailedError(f"{where}: {error}")


def with_own_values(codec: Codec, rows: list[Any]) -> list[Any]:
    """Return rows whose receiver may change lists and mappings in them: no other one sees it, as
    with rows that were sent to another process.
    """
    return travelled(codec, rows) if can_change(rows) else rows


def is_batch(data: bytes) -> bool:
    """Return whether a chunk's bytes are a batch."""
    return data.startswith(_IPC)


def pack_batch(batch: pa.RecordBatch) -> bytes:
    """Return the bytes of a batch."""
    sink = pa.BufferOutputStream()
    # A stream, not a file: a file has a footer for random access, which a cell of bytes needs not.
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def unpack_batch(data: bytes) -> pa.RecordBatch:
    """Return the batch in a chunk."""
    return with_values(pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch())


def put_together(pieces: Iterable[Any]) -> Iterator[Any]:
    """Yield pieces of one source concatenated while columns and time are the same and sizes
    allow.
    """
    for _, group in groupby(pieces, key=lambda piece: (piece[1], piece[0].schema)):
        yield from map(_as_one, _filled(group, itemgetter(0), _MOST_ROWS))


def whole_pieces(lists: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """Yield lists of rows, with neighbouring lists of one piece, one source and the same columns as
    one; others in their places.
    """
    for channel, group in groupby(lists, key=_channel_of_piece):
        if channel is None:
            yield from group
        else:
            yield from (
                [_as_one(part)]
                for part in _filled((rows[0] for rows in group), itemgetter(0), _WHOLE_ROWS)
            )


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield few large batches instead of many small ones: partitioning by key has a cost per key
    and batch.
    """
    return map(joined, _filled(batches, lambda batch: batch, _WHOLE_ROWS))


def _filled(
    items: Iterable[Any], batch_of: Callable[[Any], pa.RecordBatch], most_rows: int
) -> Iterator[list[Any]]:
    """Yield items together until their batches have so many rows or 16 MB."""
    waiting: list[Any] = []
    rows = size = 0
    for item in items:
        batch = batch_of(item)
        waiting.append(item)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= most_rows or size >= _WHOLE_BYTES:
            yield waiting
            waiting = []
            rows = 0
            size = 0
    if waiting:
        yield waiting


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most about a megabyte."""
    return sliced(batch, PIECE_ROWS, _MOST_BYTES)


def _channel_of_piece(rows: Sequence[Any]) -> tuple[Source, pa.Schema] | None:
    return (rows[0][2], rows[0][0].schema) if len(rows) == 1 and is_piece(rows[0]) else None


def _as_one(pieces: Sequence[Any]) -> Any:
    return joined([piece[0] for piece in pieces]), pieces[0][1], pieces[0][2]


# Few rows first: what one of them makes is not known yet, and a thousand rows that make a
# thousand each are hundreds of megabytes. 131,072 emitted rows are tens of megabytes of Python's
# objects; half means more calls, twice as many more memory. No measurement chose it.
_FIRST_ROWS = 64
_MOST_EMITTED = 1 << 17
TimedRows = tuple[Sequence[tuple[Any, ...]], list[int | None]]
"""Rows of data and their times, which may be missing."""


class Sizer:
    """Adaptive number of rows that go together: doubled while they make little, cut in proportion
    when they make too much.

    It depends on counts of rows and bytes alone, so a stage that runs again cuts its rows at the
    same positions."""

    def __init__(
        self, most_rows: int = PIECE_ROWS, little: int = _MOST_EMITTED, much: int = _MOST_EMITTED
    ) -> None:
        """`little` and `much` are rows or bytes that so many rows make; the defaults are for rows
        that a bolt emits.
        """
        self.rows = _FIRST_ROWS
        self._most_rows = most_rows
        self._little = little
        self._much = much

    def learn(self, taken: int, made: int) -> None:
        """Adapt the number: `taken` rows have made so much."""
        if made > self._much:
            self.rows = max(1, min(self.rows, taken) * self._much // made)
        elif made < self._little and taken >= self.rows:
            self.rows = min(self._most_rows, self.rows * 2)

    def parts(self, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield consecutive parts of rows, each of the batch size at that moment."""
        start = 0
        while start < len(rows):
            most = self.rows
            yield rows[start : start + most] if start or len(rows) > most else rows
            start += most

    def pieces(self, batch: pa.RecordBatch | TimedRows) -> Iterator[pa.RecordBatch | TimedRows]:
        """Yield consecutive parts of a batch, or of rows with times."""
        start = 0
        size = size_of(batch)
        while start < size:
            most = self.rows
            if isinstance(batch, pa.RecordBatch):
                yield batch.slice(start, most)
            else:
                yield batch[0][start : start + most], batch[1][start : start + most]
            start += most


def size_of(batch: pa.RecordBatch | TimedRows) -> int:
    """Return how many rows there are."""
    return batch.num_rows if isinstance(batch, pa.RecordBatch) else len(batch[1])
