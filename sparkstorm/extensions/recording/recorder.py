"""Recorder of bolts' input: rows go to disk after their commit, on their own thread.

Rows in the files were executed and committed, in their order, each once for every try. Missing are:
rows that the loop could not hand over in time and rows that the disk did not take (counted), and
rows in memory when a worker was killed. The loop never waits and nothing here fails it; next to a
list of the rows of its epochs it pays for a copy of the state's pairs at the beginning of each
segment, so that the rows can be executed again from there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.names import file_name
from sparkstorm.common.model.topology import WATERMARK_STREAM
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.settings import ComponentSettings
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.task_observer import TaskObserver, Values
from sparkstorm.extensions.recording.segments import (
    SEGMENTS,
    Beginning,
    Call,
    Header,
    Limits,
    SegmentFile,
)

COMPONENTS = "topology.record.components"
FOLDER = "recorded"
Noted = tuple[Source, Sequence[Values], Mapping[int, str]]
"""Values of tuples of one source that were executed together, and why some of them failed, by
place.
"""
MARK = Source("", 0, WATERMARK_STREAM, ("at_ms",))
"""Source of a noted watermark: up to when windows and timers were due."""
# places of a task's clocks and marks, next to those of windows and timers
_WATERMARKS = frozenset({"h", "m", "i", "g"})
Failures = Sequence[tuple[Tuple, Failure]]


class RowsFile(Protocol):
    """Receiver of committed rows: a recording's segments, or a live shadow."""

    codec: Codec
    over: int
    fill: tuple[int, int]
    rests_until_ms: int

    def take(self, beginning: Beginning | None, calls: Iterable[Call], now_ms: int) -> None:
        """Take rows, with a beginning when they do not follow those before."""

    def close(self) -> None:
        """Close the recording: no row follows."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Committed rows on their way to a file."""

    file: RowsFile
    beginning: Beginning | None
    noted: Sequence[Noted]
    rows: int
    now_ms: int

    def write(self) -> None:
        """Let the file take them."""
        self.file.take(self.beginning, map(self._call, self.noted), self.now_ms)

    def _call(self, noted: Noted) -> Call:
        source, values, failures = noted
        pack = self.file.codec.pack
        return Call(
            self.now_ms,
            source.component,
            source.task,
            source.stream,
            [pack(value) for value in values],
            failures,
        )


class Desk:
    """Writer of batches in the caller's thread (for simulations)."""

    def has_room(self) -> bool:
        """Return whether it would take more."""
        return True

    def take(self, batch: Batch) -> None:
        """Write, now or soon."""
        batch.write()

    def close(self, files: Sequence[RowsFile]) -> None:
        """Write what is left, and close."""
        for file in files:
            file.close()


class ThreadedDesk(Desk):
    """Writer of batches on a thread of the worker; it holds a bounded number of rows."""

    def __init__(self, most_rows: int = 100_000) -> None:
        self._most_rows = most_rows
        self._batches: deque[Batch] = deque()
        self._came = threading.Event()
        self._is_over = False
        self._taken = self._written = 0  # rows; each of the two is counted by one thread
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def has_room(self) -> bool:
        return self._taken - self._written < self._most_rows and self._thread.is_alive()

    def take(self, batch: Batch) -> None:
        self._taken += batch.rows
        self._batches.append(batch)
        self._came.set()

    def close(self, files: Sequence[RowsFile]) -> None:
        self._is_over = True
        self._came.set()
        self._thread.join()
        super().close(files)

    def _run(self) -> None:
        while not (self._is_over and not self._batches):
            self._came.wait()
            self._came.clear()
            while self._batches:
                batch = self._batches.popleft()
                batch.write()
                self._written += batch.rows
            if self._is_over:
                self._came.set()


class Recorder(TaskObserver):
    """Recorder of one task: it notes executed rows, and passes them on after their commit.

    With `times`, the store of a task's windows and timers, a beginning holds these too, and
    watermarks are noted.
    """

    sees_inputs = True

    def __init__(
        self,
        desk: Desk,
        file: RowsFile,
        state: MemoryState | None,
        limits: Limits,
        now_ms: Callable[[], int],
        times: MemoryState | None = None,
    ) -> None:
        self._desk = desk
        self._file = file
        self._state = state
        self._now_ms = now_ms
        self._times = times
        self._mark: int | None = None
        self._most_keys = limits.state_keys
        self._most_rows = max(1, limits.rows // SEGMENTS)
        self._enough_bytes = limits.bytes // SEGMENTS * 3 // 4
        self._noted: list[Noted] = []
        self._number = self._rows = self._lost = 0
        self._is_waiting = False  # for the disk or the thread; what is executed meanwhile is lost
        self._beginning: Beginning | None = None
        self._begin_anew()

    def executed(
        self,
        tuples: Sequence[Tuple],
        failures: Failures,
        waiting: Sequence[Tuple],
        came: Sequence[Values],
    ) -> None:
        reasons = {id(tup): failure.text for tup, failure in failures}
        by_place = {
            index: reasons[id(tup)]
            for index, tup in enumerate(tuples if reasons else ())
            if id(tup) in reasons
        }
        self._noted.append((tuples[0].source, came, by_place))

    def fired(self, watermark_ms: int, count: int) -> None:
        if self._times is not None and (count or watermark_ms != self._mark):
            self._mark = watermark_ms
            self._noted.append((MARK, [(watermark_ms,)], {}))

    def committed(self) -> None:
        """Pass the noted rows, which are committed now, to the writer."""
        if not self._noted:
            return
        noted = self._noted
        self._noted = []
        now_ms = self._now_ms()
        rows = sum(len(values) for _, values, _ in noted)
        if self._is_waiting or self._file.over >= self._number or not self._desk.has_room():
            self._lost += rows
            self._is_waiting = now_ms < self._file.rests_until_ms or not self._desk.has_room()
            if not self._is_waiting:
                self._begin_anew()
            return
        self._desk.take(Batch(self._file, self._beginning, noted, rows, now_ms))
        self._beginning = None
        self._rows += rows
        number, size = self._file.fill
        if self._rows + rows > self._most_rows or (
            number == self._number and size >= self._enough_bytes
        ):
            self._begin_anew()

    @property
    def lost(self) -> int:
        """Rows that were not handed over, and are not counted in the file yet."""
        return self._lost + (self._beginning.lost if self._beginning is not None else 0)

    def _begin_anew(self) -> None:
        """Begin a segment with the next rows, and with the state as it is now."""
        state = self._state
        self._number += 1
        pairs = None if state is None or len(state) > self._most_keys else state.snapshot()
        times = (
            None
            if self._times is None or len(self._times) > self._most_keys
            else self._times.snapshot()
        )
        cells = None if times is None else [cell for cell in times if cell[0][0] not in _WATERMARKS]
        self._beginning = Beginning(self._number, self.lost, pairs, cells)
        self._rows = self._lost = 0


class Recording:
    """Recordings of one worker."""

    def __init__(
        self, directory: str, topology_id: str, now_ms: Callable[[], int], is_threaded: bool
    ) -> None:
        self._folder = Path(directory, FOLDER, file_name(topology_id))
        self._topology_id = topology_id
        self._now_ms = now_ms
        self._is_threaded = is_threaded
        self._desk: Desk | None = None
        self._files: list[SegmentFile] = []

    def recorder(
        self,
        component: str,
        task: int,
        index: int,
        token: int,
        settings: ComponentSettings,
        state: MemoryState | None,
    ) -> Recorder:
        """Return the recorder of one task; the first one starts the thread."""
        if self._desk is None:
            self._desk = ThreadedDesk() if self._is_threaded else Desk()
        limits = Limits(settings.record_rows, settings.record_bytes, settings.record_state_keys)
        header = Header(
            self._topology_id, component, task, index, token, 0, is_stateful=state is not None
        )
        file = SegmentFile(self._folder / file_name(component) / f"task-{task}", header, limits)
        self._files.append(file)
        return Recorder(self._desk, file, state, limits, self._now_ms)

    def abandon(self) -> None:
        """End as a killed process does."""
        for file in self._files:
            file.abandon()

    def close(self) -> None:
        """Close every segment."""
        if self._desk is not None:
            self._desk.close(self._files)
