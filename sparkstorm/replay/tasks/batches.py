"""Arrow batches in a replay: output edges, partitioning of batches among tasks, batch sizes, bytes in a chunk.

Laws: a batch's rows reach the same tasks as rows emitted one by one (shuffles distribute whole batches in turn); splitting
and concatenating batches changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sparkstorm.api.columns import rows_of
from sparkstorm.errors import CodecError, ReplayFailedError
from sparkstorm.grouping.hashing import stable_hash
from sparkstorm.grouping.routes import Target, is_single, pick_many, pick_one
from sparkstorm.model.topology import Grouping
from sparkstorm.model.tuples import Source
from sparkstorm.model.values.codec import Codec

if TYPE_CHECKING:
    from sparkstorm.replay.tasks.combiner import Combiner

_IPC = b"\xff\xff\xff\xff"  # an Arrow stream begins so, a packed value never does
_MOST_ROWS, _MOST_BYTES, _FULL_ROWS, PIECE_ROWS = 65_536, 1 << 20, 8_192, 16_384
_WHOLE_ROWS, _WHOLE_BYTES = 1 << 18, 16 << 20  # where rows are never Python's objects
_CACHED_KEYS = 1 << 17


@dataclass(slots=True)
class OutEdge:
    """Output buffer from one task to another on one stream: rows, and batches with the time of their emission.

    Rows are (values, time), or values alone (`is_bare`) in a replay without times.
    """

    source: Source
    target: int
    is_local: bool
    rows: list[Any]
    batches: list[tuple[pa.RecordBatch, int]] = field(default_factory=list)
    is_bare: bool = False
    combiner: Combiner | None = None  # of rows for a bolt that sums up by key

    @property
    def is_full(self) -> bool:
        """Return whether the batches are worth a chunk."""
        rows: int = sum(batch.num_rows for batch, _ in self.batches)
        return rows >= _FULL_ROWS

    def is_due(self, whole: bool) -> bool:
        """Return whether combined rows are to be sent: all that there are if `whole`, else only full tables."""
        return self.combiner is not None and (whole or self.combiner.is_full)

    def unpackable(self, codec: Codec, error: CodecError) -> ReplayFailedError:
        """Return the error that names the first value that cannot be packed: component, task, stream and field."""
        where = f"component '{self.source.component}' (task {self.source.task}), stream '{self.source.stream}'"
        for values in self.take_bare():
            for name, value in zip(self.source.fields, values, strict=True):
                try:
                    codec.normalise(value)
                except CodecError as found:
                    return ReplayFailedError(f"{where}, field '{name}': emitted {found}")
        return ReplayFailedError(f"{where}: {error}")

    def take_bare(self) -> list[tuple[Any, ...]]:
        """Remove and return everything as rows without times."""
        return [values for values, _ in self.take_rows()] if not self.is_bare or self.batches else self._take_all()

    def _take_all(self) -> list[tuple[Any, ...]]:
        taken, self.rows[:] = list(self.rows), []
        return taken

    def take_rows(self) -> list[Any]:
        """Remove and return everything as rows with times."""
        taken = [(values, 0) for values in self.rows] if self.is_bare else [(values, at_ms) for values, at_ms, _ in self.rows]
        self.rows.clear()
        for batch, at_ms in self.batches:
            taken += [(values, at_ms) for values in rows_of(batch)]
        self.batches.clear()
        return taken


class BatchPartitioner:
    """Partitions the batches of one task's stream among the tasks of its subscribers."""

    def __init__(self, task: int, seed: int) -> None:
        self._task = task
        self._seed = seed
        self._divide: list[Callable[[pa.RecordBatch, int], None]] = []

    def subscribe(self, grouping: Grouping, positions: Sequence[int], edges: Sequence[OutEdge]) -> None:
        """Add one subscriber's tasks, sorted."""
        match grouping.kind:
            case "all":
                self._divide.append(lambda batch, at_ms: _to_all(edges, batch, at_ms))
            case "global":
                self._divide.append(lambda batch, at_ms: edges[0].batches.append((batch, at_ms)))
            case "fields":
                self._divide.append(_ByKey(positions, edges).divide)
            case "shuffle" | "none" | "local_or_shuffle":
                preferred = [w for w in edges if w.is_local and grouping.kind == "local_or_shuffle"] or list(edges)
                start = self._seed % len(preferred)
                turns = cycle([*preferred[start:], *preferred[:start]])
                self._divide.append(lambda batch, at_ms: next(turns).batches.append((batch, at_ms)))
            case _:
                self._divide.append(self._by_rows(grouping, positions, edges))

    def spread(self, batch: pa.RecordBatch, at_ms: int) -> None:
        """Append a batch's rows to the edges of every subscriber."""
        if batch.num_rows:
            for divide in self._divide:
                divide(batch, at_ms)

    def _by_rows(
        self, grouping: Grouping, positions: Sequence[int], edges: Sequence[OutEdge]
    ) -> Callable[[pa.RecordBatch, int], None]:
        """Return a partitioner row by row, for groupings such as partial key and custom."""
        targets, source = [Target(edge.target, edge.rows, edge.is_local) for edge in edges], edges[0].source
        one = pick_one(grouping, positions, targets, self._seed) if is_single(grouping) else None
        many = None if one else pick_many(grouping, self._task, targets)

        def divide(batch: pa.RecordBatch, at_ms: int) -> None:
            for values in rows_of(batch):
                for rows in [one(values)] if one else many(values) if many else ():
                    rows.append((values, at_ms, source))

        return divide


class _ByKey:
    """Fields grouping with cached hashes of keys: the same task as live (stable_hash modulo tasks)."""

    def __init__(self, positions: Sequence[int], edges: Sequence[OutEdge]) -> None:
        self._positions = positions
        self._edges = edges
        self._place_by_key: dict[Any, int] = {}

    def divide(self, batch: pa.RecordBatch, at_ms: int) -> None:
        """Append to every task's edge its rows of the batch."""
        if len(self._edges) == 1:
            self._edges[0].batches.append((batch, at_ms))
            return
        places = self._places(batch)
        for place, edge in enumerate(self._edges):
            chosen = np.flatnonzero(places == place)
            if len(chosen):
                edge.batches.append((batch.take(pa.array(chosen)), at_ms))

    def _places(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        columns = [batch.column(p) for p in self._positions]
        if len(columns) == 1 and not pa.types.is_nested(columns[0].type):
            encoded = columns[0].dictionary_encode(null_encoding="encode")
            of_keys = np.array([self._place(key) for key in encoded.dictionary.to_pylist()], np.int64)
            found: np.ndarray[Any, Any] = of_keys[encoded.indices.to_numpy()]
            return found
        rows = rows_of(batch.select(list(self._positions)))
        keys = rows if len(columns) > 1 else [row[0] for row in rows]
        return np.array([self._place(key) for key in keys], np.int64)

    def _place(self, key: Any) -> int:
        try:
            place = self._place_by_key.get(key)
        except TypeError:  # a list or mapping cannot be remembered
            return stable_hash(key) % len(self._edges)
        if place is None:
            if len(self._place_by_key) >= _CACHED_KEYS:
                self._place_by_key.clear()
            place = self._place_by_key[key] = stable_hash(key) % len(self._edges)
        return place


def _to_all(edges: Sequence[OutEdge], batch: pa.RecordBatch, at_ms: int) -> None:
    for edge in edges:
        edge.batches.append((batch, at_ms))


def is_batch(data: bytes) -> bool:
    """Return whether a chunk's bytes are a batch."""
    return data.startswith(_IPC)


def pack_batch(batch: pa.RecordBatch) -> bytes:
    """Return the bytes of a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def unpack_batch(data: bytes) -> pa.RecordBatch:
    """Return the batch in a chunk."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()


def put_together(batches: Sequence[tuple[pa.RecordBatch, int]]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches concatenated while columns and time are the same and sizes allow."""
    waiting: list[pa.RecordBatch] = []
    rows, since_ms = 0, 0
    for batch, at_ms in batches:
        fits = waiting and at_ms == since_ms and batch.schema.equals(waiting[0].schema) and rows < _MOST_ROWS
        if waiting and not fits:
            yield _joined(waiting), since_ms
            waiting, rows = [], 0
        waiting.append(batch)
        rows += batch.num_rows
        since_ms = at_ms
    if waiting:
        yield _joined(waiting), since_ms


def whole_batches(parts: Iterable[tuple[Source, Any]]) -> Iterator[tuple[Source, Any]]:
    """Yield neighbouring batches of one source and the same columns concatenated; rows pass unchanged, in place."""
    waiting: list[pa.RecordBatch] = []
    since: Source | None = None
    for source, part in parts:
        is_batch_too = isinstance(part, pa.RecordBatch)
        fits = is_batch_too and source is since and part.schema.equals(waiting[0].schema) and not _is_enough(waiting)
        if since is not None and not fits:
            yield since, _joined(waiting)
            waiting, since = [], None
        if is_batch_too:
            waiting.append(part)
            since = source
        else:
            yield source, part
    if since is not None:
        yield since, _joined(waiting)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield few large batches instead of many small ones: partitioning by key has a cost per key and batch."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if _is_enough(waiting):
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _is_enough(batches: Sequence[pa.RecordBatch]) -> bool:
    rows: int = sum(b.num_rows for b in batches)
    size: int = sum(b.nbytes for b in batches)
    return rows >= _WHOLE_ROWS or size >= _WHOLE_BYTES


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most about a megabyte."""
    step = max(1, min(PIECE_ROWS, batch.num_rows * _MOST_BYTES // max(batch.nbytes, 1)))
    return (batch.slice(start, step) for start in range(0, batch.num_rows, step))


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


_FIRST_ROWS, _MOST_EMITTED = 64, 1 << 17
TimedRows = tuple[Sequence[tuple[Any, ...]], list[int | None]]
"""Rows of data and their times, which may be missing."""


class BatchSizer:
    """Adaptive batch size in rows: doubled while batches emit few rows, cut when they emit many.

    It depends on row counts alone, so a stage that runs again cuts its rows at the same positions."""

    def __init__(self) -> None:
        self.rows = _FIRST_ROWS

    def learn(self, taken: int, emitted: int) -> None:
        """Adapt the batch size: `taken` input rows emitted `emitted` rows."""
        if emitted > _MOST_EMITTED:
            self.rows = max(1, min(self.rows, taken) * _MOST_EMITTED // emitted)
        else:
            self.rows = min(PIECE_ROWS, self.rows * 2)

    def parts(self, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield consecutive parts of rows, each of the batch size at that moment."""
        start = 0
        while start < len(rows):
            most = self.rows
            yield rows[start : start + most] if start or len(rows) > most else rows
            start += most

    def pieces(self, batch: pa.RecordBatch | TimedRows) -> Iterator[pa.RecordBatch | TimedRows]:
        """Yield consecutive parts of a batch, or of rows with times."""
        start, size = 0, size_of(batch)
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
