"""Rows of a FoldingBolt that are folded together, and its windows that fire together.

Law: what is stored, emitted and fired is what TimedRunner does row by row and window by window;
rows and windows that need a closer look go that way. A keyed sum over windows of 10 s in a replay
takes 1.64 times the CPU without it (decision 77).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkstorm.api.windows import FoldingBolt, Window, WindowedBolt
from sparkstorm.common.model.dead_letter import REPLAYED_FIELDS
from sparkstorm.common.model.topology import TICK_STREAM
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.windowing.settings import TimeSettings
from sparkstorm.common.windowing.store import Key
from sparkstorm.common.windowing.watermarks import LAST_MS, NEVER
from sparkstorm.common.windowing.window_contents import Content, own_initial
from sparkstorm.common.windowing.windows import Firing, TimeWindows
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.runner import BasicCollector
from sparkstorm.data_plane.executor.state import Cells, MemoryState
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, raise_out_of_memory

RollBack = Callable[[int, int, int], None]


class FoldedRows:
    """Windows of a task whose rows are in one cell each, by event time."""

    def __init__(
        self,
        bolt: FoldingBolt,
        windows: TimeWindows,
        settings: TimeSettings,
        emitter: Emitter,
        state: MemoryState,
        times: MemoryState,
        roll_back: RollBack,
    ) -> None:
        self._bolt = bolt
        self._windows = windows
        self._time_field = settings.timestamp_field or ""
        self._emitter = emitter
        self._state = state
        self._times = times
        self._roll_back = roll_back
        # of time and key in the rows of a source
        self._places_by_source: dict[Source, tuple[int, tuple[int, ...]]] = {}
        # else timers may be due between two windows
        self.fires = type(bolt).on_timer is WindowedBolt.on_timer
        # called behind the windows of one end, with it and the emitter's log before them
        self.note_end: Callable[[int, int], None] | None = None

    def cells_of(self, source: Source) -> Cells | None:
        """Return the cells of rows of a source; None for late rows, ticks and records."""
        places = self._places_by_source.get(source)
        if places is None:
            if source.is_late or source.stream == TICK_STREAM or source.stream in REPLAYED_FIELDS:
                return None
            key_at = tuple(map(source.position, self._bolt.key_fields))
            places = source.position(self._time_field), key_at
            self._places_by_source[source] = places
        return Cells(*places, self._windows.cell, max(self._windows.floor, 0), LAST_MS)

    def fold(self, rows: list[Any], begin: int, cells: Cells) -> tuple[int, BaseException | None]:
        """Fold rows of one source; return the place of the first one that failed, with its error,
        or that needs a closer look.
        """
        marks = [0, 0, 0, 0]
        begun: list[Any] = []
        failed: BaseException | None = None
        try:
            place = self._times.fold_cells(
                rows,
                begin,
                cells,
                own_initial(self._bolt.initial),
                self._bolt.fold,
                (self._emitter.log, self._state.undo),
                marks,
                begun,
            )
        except USER_ERRORS as error:
            raise_out_of_memory(error)
            place, *lengths = marks
            self._roll_back(*lengths)
            failed = error
        self._windows.begin(begun)
        return place, failed

    def fire(
        self, watermark_ms: int, most: int, collector: BasicCollector
    ) -> tuple[int, Firing | None, BaseException | None]:
        """Fire due windows of one accumulator each; return how many have fired, and the one that
        failed with its error.
        """
        emitter = self._emitter
        execute = self._bolt.execute
        log = emitter.log
        undo = self._state.undo
        times_undo = self._times.undo
        fired = 0
        first = len(log)
        last_end = NEVER
        marks = (0, 0, 0)
        key: Key = ()
        start = 0
        end = 0
        value = None
        try:
            for key, start, end, value in self._windows.due_folded(watermark_ms) if most else ():
                if fired == most:
                    break
                emitter.roots = 0
                marks = len(log), len(undo), len(times_undo)
                if end != last_end:
                    self._note(last_end, first)
                    first = len(log)
                    last_end = end
                execute(Window(key, start, end, Content(value=value), False, False), collector)
                fired += 1
        except USER_ERRORS as error:  # the window is still the first one
            self._roll_back(*marks)
            self._note(last_end, first)
            return fired, Firing(key, start, end, Content(value=value)), error
        self._note(last_end, first)
        return fired, None, None

    def _note(self, end: int, log_mark: int) -> None:
        if self.note_end is not None and end != NEVER:
            self.note_end(end, log_mark)
