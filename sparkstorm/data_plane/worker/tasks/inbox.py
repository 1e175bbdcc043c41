"""Inbox of one task: frames read from its stream and not executed yet, and the position of its
cursor.

Law: the cursor points behind the last row that a commit has consumed, and only moves forward;
an entry that cannot be decoded is stepped over as if it had been consumed, so that it is read once.
Rows are consumed from the front (decision 6: the edge of an entry leaves a root with the root's
last row in it). Left out: acks per row, which would need a list of gaps instead of one position.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise, repeat
from operator import itemgetter
from typing import Any, overload

import numpy as np

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.tuples import Roots, Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.pieces import part_of, unfold
from sparkstorm.data_plane.transport import frames
from sparkstorm.data_plane.transport.base import (
    START,
    Commit,
    Cursor,
    Entry,
    ForeignProgress,
    entry_order,
)
from sparkstorm.data_plane.transport.frames import (
    AckerMessages,
    Ends,
    Frame,
    RootRuns,
    Row,
    RowFrame,
    SettledRoots,
)

FindSource = Callable[[int, str], Source]


class FrameRows(Sequence[Row]):
    """Rows of a decoded frame, made when they are asked for.

    All rows of all entries that were read would lie in memory until their tasks' turns: with 64
    tasks that is more than the processor's caches hold.
    """

    __slots__ = ("_frame", "_sources")

    def __init__(self, frame: RowFrame, sources: list[Source]) -> None:
        """`sources`: of the frame's sending tasks, in their order."""
        self._frame = frame
        self._sources = sources

    def __len__(self) -> int:
        return len(self._frame.values)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            frame = self._frame
            return _join(frame.values, frame.roots, self._sources, frame.numbers, start, stop)
        if index < 0:
            index += len(self)
        return self[index : index + 1][0]


def _join_plainly(
    values: list[tuple[Any, ...]],
    roots: list[Roots],
    sources: list[Source],
    numbers: Sequence[int],
    start: int,
    stop: int,
) -> list[Row]:
    """Return rows from `start` to before `stop`; `numbers`: of each one's source, none when there
    is one. Twin of the core's `join`.
    """
    of_rows = (
        map(sources.__getitem__, numbers[start:stop])
        if numbers
        else repeat(sources[0], stop - start)
    )
    return list(zip(values[start:stop], roots[start:stop], of_rows, strict=True))


_join: Callable[..., list[Row]] = _join_plainly if core is None else core.join


class Chunk:
    """One decoded entry and how many of its rows are done."""

    __slots__ = (
        "entry",
        "cell",
        "sent_ms",
        "size",
        "frame",
        "rows",
        "done",
        "total",
        "edge",
        "origin",
        "oldest_ms",
        "is_batch",
        "is_replayed",
        "_runs",
        "_ends",
        "_ended",
        "_decode",
        "_fresh",
    )

    def __init__(
        self,
        entry: str,
        size: int,
        frame: Frame,
        rows: Sequence[Row],
        done: int = 0,
        sent_ms: int | None = None,
        cell: int | None = None,
        decode: Callable[[], Sequence[Row]] = list,
    ) -> None:
        self.entry = entry
        self._decode = decode
        self._fresh: Sequence[Row] = ()
        self.cell = cell  # as in Entry
        self.sent_ms = sent_ms  # as in Entry
        self.size = size  # bytes that count as backlog; 0 for control frames
        self.frame = frame
        self.rows = rows
        self.total = len(frame) if isinstance(frame, RowFrame) else 1
        self.is_batch = isinstance(frame, RowFrame) and frame.batch is not None
        self.done = done
        self.edge = self.origin = 0
        self.is_replayed = isinstance(frame, RowFrame) and frame.is_replayed
        self.oldest_ms = frame.oldest_ms
        self._runs: RootRuns | None = None
        if isinstance(frame, RowFrame):
            self.edge = frame.edge
            self._runs = frame.root_runs
            self.origin = 0 if self.is_replayed else frame.origin
        # Most entries are done in one part: where roots end is found only for those that are not.
        self._ends: Ends | None = None  # found when the rows are done in several parts
        self._ended = 0  # roots whose last row is done
        if done:
            self.take_ended()

    @property
    def name(self) -> str:
        """Return a name that no other entry of its task has: ids are those of one store."""
        return self.entry if self.cell is None else f"{self.entry}@{self.cell}"

    def part(self, start: int, stop: int) -> list[Row]:
        """Return the rows, or pieces of a batch, from one place to another."""
        rows = self.rows
        return part_of(rows, start, stop) if self.is_batch else rows[start:stop]  # type: ignore[return-value]

    def original(self, index: int) -> tuple[Any, ...]:
        """Return the values of a row as they were before user code had them, once: decoded again,
        as few rows fail.
        """
        self._fresh = self._fresh or self._decode()
        values: tuple[Any, ...] = unfold(part_of(self._fresh, index, index + 1))[0][0]
        return values

    def take_ended(self) -> Collection[int]:
        """Return the roots whose last row was done since the last call."""
        if self._runs is None:
            return ()
        if self._ends is None:
            if self.done == self.total:
                # All at once: no places are needed.
                return self._runs.distinct()
            self._ends = self._runs.ends()
        ends = self._ends
        start = self._ended
        stop = len(self._ends)
        if self.done < self.total:
            stop = bisect_left(ends, self.done, start, key=itemgetter(1))
        self._ended = stop
        return [root for root, _ in ends[start:stop]]


class Inbox:
    """Frames read but not consumed, oldest first; of the stores of all cells in the order in which
    they were read, with a cursor for each.
    """

    __slots__ = (
        "task",
        "chunks",
        "read_to",
        "cursor",
        "waiting",
        "drained",
        "consumed",
        "replayed",
        "moved",
        "_codec",
        "_source",
        "_skip",
        "_kind",
        "_spouts",
        "_foreign",
        "_foreign_skips",
        "_passed",
    )

    def __init__(
        self,
        task: int,
        codec: Codec,
        source: FindSource,
        cursor: Cursor = START,
        kind: int = frames.ROWS,
        spouts: frozenset[int] = frozenset(),
        foreign: Mapping[int, Cursor] | None = None,
    ) -> None:
        """`kind` of the frames that belong into this task's stream; `spouts`: tasks to which an
        acker may send verdicts; `foreign`: cursors in the stores of other cells.
        """
        self.task = task
        self.chunks: deque[Chunk] = deque()
        self.read_to = cursor.entry
        self.cursor = cursor
        self.waiting = 0  # bytes of frames read and not consumed
        self.drained = 0  # bytes of frames consumed since the last commit
        self.consumed = 0  # the same, with the share of frames that are not consumed as a whole
        # rows of dead letters that were put back, consumed since the counts were brought up to date
        self.replayed = 0
        self.moved = False
        self._codec = codec
        self._source = source
        self._skip = cursor.row
        self._kind = kind
        self._spouts = spouts
        self._foreign = dict(foreign or {})
        self._foreign_skips = {cell: cursor.row for cell, cursor in self._foreign.items()}
        # cells whose cursors have moved since the last commit, with the bytes done with
        self._passed: dict[int, int] = {}

    def add(self, entry: Entry) -> None:
        """Decode a frame; MalformedFrameError leaves the inbox as if the frame had been
        consumed.
        """
        # Before decoding: a frame that cannot be read must not be asked for again.
        cell = entry.cell
        if cell is None:
            self.read_to = entry.id
        # Acker traffic is no backlog: it is taken whole with the next commit and would hold senders
        # back for a moment.
        size = len(entry.data) if self._kind == frames.ROWS else 0
        # The cursor may point into the first frame only.
        if cell is None:
            skip = self._skip
            self._skip = 0
        else:
            skip = self._foreign_skips.pop(cell, 0)
        try:
            frame = self._checked(entry.data)
            rows = self._rows(frame) if isinstance(frame, RowFrame) else []
        except MalformedFrameError:
            self._step_over(entry, size)
            raise
        total = len(frame) if isinstance(frame, RowFrame) else 1
        if skip >= total:  # a stored cursor never points behind the last row of a frame
            self._step_over(entry, size)
            raise MalformedFrameError(f"the cursor {skip} rows into a frame of {total}")
        self.chunks.append(
            Chunk(
                entry.id, size, frame, rows, skip, entry.sent_ms, cell, partial(self._again, entry)
            )
        )
        self.waiting += size

    @property
    def codec(self) -> Codec:
        """Return the codec of the topology's values."""
        return self._codec

    def _again(self, entry: Entry) -> Sequence[Row]:
        frame = self._checked(entry.data)
        return self._rows(frame) if isinstance(frame, RowFrame) else []

    def consume(self, chunk: Chunk, rows: int) -> None:
        """Mark the next `rows` rows of the oldest frame as done."""
        chunk.done += rows
        if chunk.cell is not None:
            self._consume_foreign(chunk, chunk.cell)
            return
        # By rows, since senders watch the bytes that wait: an entry in work drains little by
        # little.
        self.consumed += chunk.size * rows // chunk.total
        self.moved = True
        if chunk.done < chunk.total:
            self.cursor = Cursor(self.cursor.entry, chunk.done)
            return
        self.chunks.popleft()
        self.waiting -= chunk.size
        self.cursor = Cursor(chunk.entry, 0)
        self.drained += chunk.size
        self.replayed += chunk.total if chunk.is_replayed else 0

    def _consume_foreign(self, chunk: Chunk, cell: int) -> None:
        # Not as `consumed`: what is passed frees nothing in the own store, so a full one must not
        # take a commit for it.
        if chunk.done < chunk.total:
            self._move(cell, Cursor(self._foreign.get(cell, START).entry, chunk.done), 0)
            return
        self.chunks.popleft()
        self.waiting -= chunk.size
        self._move(cell, Cursor(chunk.entry, 0), chunk.size)
        self.replayed += chunk.total if chunk.is_replayed else 0

    def _move(self, cell: int, cursor: Cursor, size: int) -> None:
        self._foreign[cell] = cursor
        self._passed[cell] = self._passed.get(cell, 0) + size

    def take_progress(self, commit: Commit) -> None:
        """Write into a commit what was consumed since the last one."""
        if self._passed:
            for cell, size in self._passed.items():
                commit.foreign[cell, self.task] = ForeignProgress(self._foreign[cell], size)
            self._passed = {}
        # Commits of small epochs would pay for each task of the worker.
        if not self.moved:
            return
        commit.cursors[self.task] = self.cursor
        if self.drained:
            commit.drained_bytes[self.task] = self.drained
        commit.consumed_bytes += self.consumed
        self.moved = False
        self.drained = 0
        self.consumed = 0

    def take_replayed(self) -> int:
        """Return the number of rows of dead letters consumed since the last call."""
        replayed = self.replayed
        self.replayed = 0
        return replayed

    def take_controls(self) -> list[AckerMessages | SettledRoots]:
        """All acker messages or verdicts at the head, consumed at once."""
        taken: list[AckerMessages | SettledRoots] = []
        while self.chunks and not isinstance(self.chunks[0].frame, RowFrame):
            taken.append(self.chunks[0].frame)
            self.consume(self.chunks[0], 1)
        return taken

    def next_chunk(self) -> Chunk | None:
        """Return the oldest entry of rows that is not consumed; control frames before it, which do
        not belong there, are stepped over.
        """
        if not self.chunks:
            return None
        self.take_controls()
        return self.chunks[0] if self.chunks else None

    def _checked(self, data: bytes) -> Frame:
        """The frame, when it is one that belongs here."""
        kind = frames.kind_of(data)
        if kind != self._kind and (kind, self._kind) != (frames.REPLAYED, frames.ROWS):
            raise MalformedFrameError(f"a frame of kind {kind} in a stream of kind {self._kind}")
        frame = frames.decode(self._codec, data, kind)
        # The acker would write a verdict into the stream of a task that cannot take it.
        if isinstance(frame, AckerMessages) and not self._spouts.issuperset(frame.init_tasks):
            raise MalformedFrameError("a tree of a task that is no spout")
        return frame

    def _step_over(self, entry: Entry, size: int) -> None:
        # frames before it are still to be consumed: an empty chunk keeps its place in the order
        if self.chunks:
            empty = Chunk(entry.id, size, SettledRoots([], {}), [], cell=entry.cell)
            self.chunks.append(empty)
            self.waiting += size
        elif entry.cell is not None:
            self._move(entry.cell, Cursor(entry.id, 0), size)
        else:
            self.cursor = Cursor(entry.id, 0)
            self.moved = True
            self.drained += size

    def _rows(self, frame: RowFrame) -> Sequence[Row]:
        # Senders before values: an unknown task makes the whole frame foreign.
        sources = [self._source(task, frame.stream) for task in frame.tasks]
        first = sources[0]
        for source in sources:
            # Fields and widths are those of one component: rows of two would be read under the
            # names of the first.
            if source.component != first.component:
                raise MalformedFrameError(
                    f"rows of '{first.component}' and '{source.component}' in one frame"
                )
        width = len(frame.values[0]) if frame.batch is None else frame.batch.num_columns
        if width != len(first.fields):
            raise MalformedFrameError(
                f"{width} columns for the {len(first.fields)} fields of '{first.component}', stream '{first.stream}'"
            )
        return FrameRows(frame, sources) if frame.batch is None else _pieces(frame, sources)


class OlderEntries:
    """Entries in a bolt task's stream which newer rows of this worker's own tasks may not overtake,
    though these are handed over in memory: they queue behind them.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._spilled = 0  # entries of this worker's own tasks that are not consumed
        self._newest = (0, 0)  # of those that former owners of the task have left
        self._is_caught_up = False

    def resume(self, last_entry: str) -> None:
        """Begin with the newest entry that former owners have left."""
        self._newest = entry_order(last_entry)
        self._is_caught_up = False

    def spill(self, entries: int) -> None:
        """Note that rows of this worker's own tasks go into the stream, as so many entries."""
        self._spilled += entries

    def note_consumed(self, chunk: Chunk, origin: int) -> None:
        """Note that rows of an entry are done; `origin` names this process in the entries that it
        has written.
        """
        # Entries of this process alone: those of a former owner of the sender are before the
        # newest that was left.
        is_done = chunk.done == chunk.total and entry_order(chunk.entry) > self._newest
        if is_done and self._spilled and chunk.origin == origin:
            self._spilled -= 1

    @property
    def are_at_hand(self) -> bool:
        """Return whether entries of this worker's own tasks wait here to be run."""
        return bool(self._spilled and self._inbox.chunks)

    @property
    def remain(self) -> bool:
        """Return whether any is not consumed."""
        # Once and not in each turn: a cursor never goes back.
        if not self._is_caught_up:
            self._is_caught_up = entry_order(self._inbox.cursor.entry) >= self._newest
        return not self._is_caught_up or bool(self._spilled)


def _pieces(frame: RowFrame, sources: list[Source]) -> list[Row]:
    """Pieces of a batch: neighbours with the same roots and sender."""
    fields = sources[0].fields
    batch = frame.batch.rename_columns(list(fields))
    numbers = frame.numbers
    root_ends = list(accumulate(frame.lengths))
    changes: list[int] = []
    if numbers:
        column = np.array(list(numbers))
        changes = (np.flatnonzero(column[1:] != column[:-1]) + 1).tolist()
    return [
        (
            batch.slice(start, stop - start),
            frame.roots[bisect_right(root_ends, start)],
            sources[numbers[start] if numbers else 0],
        )
        for start, stop in pairwise(sorted({0, *root_ends, *changes}))
    ]
