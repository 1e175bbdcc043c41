"""Runner of windowed and timed bolts: rows into windows, firings by watermark or processing time.

TimedRunner reads no clock and no channel: rows come by `execute_rows`, time by `advance`. The
worker calls it with the times of marks and of its clock, a replay with the times of its rows, so
that both do the same. Law: windows and timers fire in the order of their times, each once its call
has succeeded; one that keeps failing holds up the later ones until it is parked.

Left out: a thread or an alarm that fires by itself, which would fall between two rows of one entry,
live and not in a replay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from sparkstorm.api.windows import FoldingBolt, TimedBolt, Window, WindowedBolt
from sparkstorm.common.errors import RecordingError
from sparkstorm.common.model.dead_letter import REPLAYED_FIELDS
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.topology import TICK_STREAM, TIMER_STREAM
from sparkstorm.common.model.tuples import Source, Tuple, tuples_of
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.counts import CountWindows
from sparkstorm.common.windowing.reorder import Reorder, Row
from sparkstorm.common.windowing.settings import TimeSettings
from sparkstorm.common.windowing.timers import Timer, TimerTable
from sparkstorm.common.windowing.watermarks import END, NEVER
from sparkstorm.common.windowing.window_contents import FindSource
from sparkstorm.common.windowing.windows import Firing, TimeWindows, Windows
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.folded_rows import FoldedRows
from sparkstorm.data_plane.executor.runner import BasicCollector, FailedInput, RetryPolicy, Runner
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.task_windows import (
    TaskTimers,
    TimedInputs,
    make_windows,
    must_reorder,
)
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, failure_of
from sparkstorm.data_plane.executor.window_records import (
    Due,
    Record,
    WindowTuple,
    as_tuple,
    bounded,
    cells_of,
    content_of,
    replayed_due,
)

# Windows and timers per call of advance: between two of them rows may come and commits be made.
# Half of it commits twice as often when many are due; double makes an epoch that is over late by as
# many calls.
MOST_AT_ONCE = 4096


class TimedRunner(Runner):
    """Runner of one task of a WindowedBolt or TimedBolt."""

    def __init__(
        self,
        bolt: WindowedBolt | TimedBolt,
        settings: TimeSettings,
        emitter: Emitter,
        state: MemoryState,
        times: MemoryState,
        collector: BasicCollector,
        find_source: FindSource,
        now_ms: Callable[[], int],
        policy: RetryPolicy,
    ) -> None:
        super().__init__(bolt)
        # (window or timer as a tuple, tries, failure)
        self.given_up: list[tuple[Tuple, int, Failure]] = []
        self.late = 0  # late tuples since the number was last taken
        self.low_ms = NEVER  # everything that was due until then has fired
        self._settings = settings
        self._emitter = emitter
        self._state = state
        self._times = times
        self._collector = collector
        self._find_source = find_source
        self._inputs = TimedInputs(settings.timestamp_field, bolt.key_fields, now_ms)
        self._policy = policy
        self._timers = TimerTable(times)
        self._windows = (
            make_windows(bolt, settings, times, find_source)
            if isinstance(bolt, WindowedBolt)
            else None
        )
        self._reorder = Reorder(times, find_source) if must_reorder(bolt, settings) else None
        self._step_by_source: dict[Source, Callable[[Tuple], None]] = {}
        self._folded = (
            FoldedRows(bolt, self._windows, settings, emitter, state, times, self._roll_back)
            if isinstance(bolt, FoldingBolt)
            and isinstance(self._windows, TimeWindows)
            and self._windows.has_one_cell_per_row
            and settings.is_event_time
            else None
        )
        self._watermark_ms = NEVER
        self._attempts = 0
        self._retry_ms = 0
        self._has_more = True  # unknown before the first look
        bolt.timers = TaskTimers(self._timers, self._watermark, self._may_set_event_timer)

    def take_given_up(self) -> list[tuple[Tuple, int, Failure]]:
        """Return the windows and timers that were given up since the last call, as tuples, with
        tries and failure.
        """
        taken = self.given_up
        self.given_up = []
        return taken

    def take_late_rows(self) -> int:
        """Return the number of late tuples since the last call."""
        taken = self.late
        self.late = 0
        return taken

    # -- rows --------------------------------------------------------------------------------------

    def execute_rows(self, rows: Sequence[Any]) -> list[tuple[int, Failure]]:
        """Take in every row (values, roots, source); return the places of the failed ones, which
        leave no other trace, and why.
        """
        every = rows if type(rows) is list else list(rows)
        folded = self._folded
        if folded is None:
            return self._execute_each(every, 0, len(every))
        failures: list[tuple[int, Failure]] = []
        place = 0
        while place < len(every):
            source = every[place][2]
            cells = folded.cells_of(source)
            if cells is None:
                end = place + 1
                while end < len(every) and every[end][2] is source:
                    end += 1
                failures += self._execute_each(every, place, end)
                place = end
                continue
            place, error = folded.fold(every, place, cells)
            if error is not None:
                failures += self._failed(place, Tuple(*every[place]), error)
                place += 1
            elif place < len(every) and every[place][2] is source:
                failures += self._execute_each(every, place, place + 1)
                place += 1
        return failures

    def _failed(self, place: int, tup: Tuple, error: BaseException) -> list[tuple[int, Failure]]:
        failure = self._inputs.failure(tup, error)
        if self.take_failed is None:
            return [(place, failure)]
        self.take_failed((tup, failure))
        return []

    def _execute_each(self, rows: list[Any], begin: int, end: int) -> list[tuple[int, Failure]]:
        """Execute some of the rows one by one."""
        tuples = tuples_of(rows[begin:end])
        failed = self.execute_tuples(tuples) if tuples else []
        place_by_id = {id(tup): place for place, tup in enumerate(tuples, begin)} if failed else {}
        return [(place_by_id[id(tup)], failure) for tup, failure in failed]

    def execute_tuples(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Take in every tuple; a failed one leaves no trace but its entry in the result."""
        failures: list[FailedInput] = []
        log = self._emitter.log
        undo = self._state.undo
        times_undo = self._times.undo
        mark = undo_mark = times_mark = 0
        rest = iter(tuples)
        tup = tuples[0]
        source: Source | None = None
        while True:
            try:
                for tup in rest:
                    mark = len(log)
                    undo_mark = len(undo)
                    times_mark = len(times_undo)
                    if tup.source is not source:
                        source = tup.source
                        step = self._step_by_source.get(source) or self._step_for(source)
                    step(tup)
                return failures
            except USER_ERRORS as error:
                self._roll_back(mark, undo_mark, times_mark)
                failed = tup, self._inputs.failure(tup, error)
            if self.take_failed is None:
                failures.append(failed)
            else:
                self.take_failed(failed)

    # -- time --------------------------------------------------------------------------------------

    def advance(self, watermark_ms: int, now_ms: int, most: int = MOST_AT_ONCE) -> int:
        """Fire what is due by event time (END: all of it) and by the clock; returns how many have
        fired.

        Stops behind one that is given up, so that its dead letter gets the state that it met.
        """
        self._watermark_ms = max(watermark_ms, self._watermark_ms)
        if now_ms < self._retry_ms:
            return 0
        given_up = len(self.given_up)
        last_end = NEVER
        fired = self._fire_cells(now_ms, most)
        if now_ms < self._retry_ms:
            return fired
        while (
            (due := self._next_due(now_ms)) is not None
            and fired < most
            and len(self.given_up) == given_up
        ):
            if not self._try(due, now_ms):
                return fired
            fired += 1
            # By the clock, windows are settled up to the last one that has fired.
            last_end = max(last_end, due.end if isinstance(due, Firing) else NEVER)
        self._has_more = due is not None
        if due is not None:
            self._pause()
            return fired
        self.low_ms = self._watermark_ms
        if self._windows is not None:
            self._windows.settle(self._watermark_ms if self._settings.is_event_time else last_end)
        return fired

    def _fire_cells(self, now_ms: int, most: int) -> int:
        """Fire due windows of one accumulator each, before all others; return how many have
        fired.
        """
        if self._folded is None or not self._folded.fires:
            return 0
        fired, firing, error = self._folded.fire(self._watermark_ms, most, self._collector)
        if fired:
            self._attempts = 0
        if firing is not None and error is not None:
            self._put_off(firing, failure_of(error), now_ms)
        return fired

    def next_name(self, watermark_ms: int, now_ms: int) -> str | None:
        """Return the next firing's name, which is the same after a restart; None when nothing is
        due.
        """
        # With none to fire: it only takes in the progress of time.
        self.advance(watermark_ms, now_ms, most=0)
        due = None if now_ms < self._retry_ms else self._next_due(now_ms)
        return (
            None if due is None else f"due:{_moment(due)}:{crc32(repr(as_tuple('', due)).encode())}"
        )

    def give_up_next(self, now_ms: int, tries: int, failure: Failure) -> None:
        """Park what would fire next instead of firing it."""
        due = self._next_due(now_ms)
        if due is not None:
            self._give_up(due, tries, failure)

    def parked_as(self, tup: Tuple, is_killer: bool = False) -> Tuple:
        """Return the tuple to park for an input that keeps failing: itself, or the window by count
        that it completes.

        That window then holds the input; else every later tuple of its key would complete the same
        window and fail. `is_killer`: worker processes died in it, so a fold is not called with it
        again.
        """
        windows = self._windows
        mark = len(self._times.undo)
        letter = self.as_letter(tup)
        is_input = letter.stream != TICK_STREAM and letter.stream not in REPLAYED_FIELDS
        if (
            not is_input
            or not isinstance(windows, CountWindows)
            or (is_killer and isinstance(self.bolt, FoldingBolt))
        ):
            return letter
        try:
            for firing in windows.add(
                self._inputs.time_of(tup.source)(tup),
                self._inputs.key_of(tup.source)(tup.values),
                tup,
            ):
                windows.done(firing)
                return WindowTuple(self._emitter.component, firing)
        except USER_ERRORS:
            pass
        self._times.roll_back(mark)
        return tup

    def as_letter(self, tup: Tuple) -> Tuple:
        """Return a window or timer that was replayed as it was in its dead letter; other tuples as
        they are.
        """
        if tup.stream in REPLAYED_FIELDS and tup.source.task >= 0:
            with contextlib.suppress(RecordingError):
                return as_tuple(self._emitter.component, replayed_due(tup, self._source_of))
        return tup

    def holds_at(self, tup: Tuple) -> int:
        """Return the event time at which an input that waits for its next try holds the watermark
        back; END for one that has none, or is late.
        """
        field = self._settings.timestamp_field
        if field is None or tup.source.is_late or field not in tup.fields:
            return END
        with contextlib.suppress(ValueError):
            return self._inputs.time_of(tup.source)(tup)
        return END

    def next_due_ms(self) -> int | None:
        """Return when to call `advance` again without a new watermark; 0 means now."""
        if self._has_more:
            return self._retry_ms
        by_clock = [self._timers.next_at("processing")]
        if self._windows is not None and not self._settings.is_event_time:
            by_clock.append(self._windows.next_end())
        return min((at_ms for at_ms in by_clock if at_ms is not None), default=None)

    def record_of(self, tup: Tuple, codec: Codec) -> Record:
        """Return what a failed window, timer or tuple has met, for its dead letter."""
        record: Record = {"watermark_ms": self._watermark_ms}
        if isinstance(tup, WindowTuple):
            record |= content_of(tup.firing)
        elif tup.stream != TIMER_STREAM and self._windows is not None:
            cells = cells_of(self._times, self._inputs.key_of(tup.source)(tup.values))
            record |= {"is_left_out": True} if cells is None else {"cells": cells}
        return bounded(record, codec)

    def fire(self, due: Due, watermark_ms: int) -> Failure | None:
        """Execute a window, a timer or a tuple once, apart from all others; return why it failed,
        what it did is then undone.
        """
        self._watermark_ms, self._emitter.roots = watermark_ms, 0
        marks = len(self._emitter.log), len(self._state.undo), len(self._times.undo)
        try:
            if isinstance(due, Timer):
                self.bolt.on_timer(due, self._collector)
            elif isinstance(due, Row):
                self._take_in(replace(due, at_ms=self._inputs.time_of(due.tuple.source)(due.tuple)))
            else:
                self._call(due)
        except USER_ERRORS as error:
            self._roll_back(*marks)
            return self._failure(due, error)
        return None

    @property
    def is_waiting(self) -> bool:
        """Return whether something is due and has not fired."""
        return self._has_more

    # -- inside ------------------------------------------------------------------------------------

    def _next_due(self, now_ms: int) -> Due | None:
        """Return what comes first: of the same moment windows, then timers, then tuples; event time
        before the clock.

        Windows are asked last, and only for one that is not after the others: a window that is
        handed out has its tuples read.
        """
        timer = self._timers.next_due("event", self._watermark_ms) or self._timers.next_due(
            "processing", now_ms
        )
        row = None if self._reorder is None else self._reorder.next_due(self._watermark_ms)
        first: Due | None = timer if row is None else row
        if timer is not None and row is not None and timer.at_ms <= row.at_ms:
            first = timer
        if self._windows is None:
            return first
        by_clock = END if self._watermark_ms == END else now_ms
        until = self._watermark_ms if self._settings.is_event_time else by_clock
        window = self._windows.next_due(until if first is None else min(until, _moment(first)))
        return first if window is None else window

    def _try(self, due: Due, now_ms: int) -> bool:
        """Fire it, or undo what it did and put it off; True when it is done with."""
        marks = len(self._emitter.log), len(self._state.undo), len(self._times.undo)
        try:
            self._emitter.roots = 0
            if isinstance(due, Timer):
                self._timers.fire(due, self.bolt.on_timer, self._collector)
            elif isinstance(due, Row):
                self._done(due)
                self._take_in(due)
            else:
                self._call(due)
                self._done(due)
            self._attempts = 0
            return True
        except USER_ERRORS as error:
            self._roll_back(*marks)
            return self._put_off(due, self._failure(due, error), now_ms)

    def _failure(self, due: Due, error: BaseException) -> Failure:
        return self._inputs.failure(due.tuple, error) if isinstance(due, Row) else failure_of(error)

    def _watermark(self) -> int:
        return self._watermark_ms

    def _may_set_event_timer(self) -> bool:
        """Return whether a timer may be set: after the end of all input, timers that set timers
        would never end.
        """
        return not (self._timers.is_firing and self._watermark_ms == END)

    def _take_in(self, row: Row) -> None:
        """Take in a tuple whose turn has come."""
        source = row.tuple.source
        if self._windows is None:
            self._execute(row.tuple)
            return
        for firing in self._windows.add(
            row.at_ms, self._inputs.key_of(source)(row.tuple.values), row.tuple
        ):
            self._call(firing)
            self._windows.done(firing)

    def _done(self, due: Due) -> None:
        if isinstance(due, Timer):
            self._timers.done(due)
        elif isinstance(due, Row):
            assert self._reorder is not None
            self._reorder.done(due)
        elif self._windows is not None:
            self._windows.done(due)

    def _put_off(self, due: Due, failure: Failure, now_ms: int) -> bool:
        self._attempts += 1
        self._collector.report_error(
            replace(failure, text=f"{as_tuple(self._emitter.component, due)!r}: {failure.text}")
        )
        if (wait_ms := self._policy.wait_ms(self._attempts)) is not None:
            self._retry_ms = now_ms + wait_ms
            self._has_more = True
            self._pause()
            return False
        # Read again: the failed call may have changed lists and mappings in it.
        again = self._next_due(now_ms)
        self._give_up(again if type(again) is type(due) else due, self._attempts, failure)
        return True

    def _give_up(self, due: Due, tries: int, failure: Failure) -> None:
        what = as_tuple(self._emitter.component, due)
        self.given_up.append(
            (self.parked_as(what, failure.kind is FailureKind.KILLED), tries, failure)
        )
        self._attempts = 0
        self._done(due)

    def _call(self, firing: Firing) -> None:
        assert isinstance(self.bolt, WindowedBolt)
        window = Window(
            firing.key,
            firing.start,
            firing.end,
            firing.content,
            firing.is_update,
            self.bolt.keeps_expired,
        )
        self.bolt.execute(window, self._collector)

    def _pause(self) -> None:
        if self._windows is not None:
            self._windows.pause()

    def _roll_back(self, mark: int, undo_mark: int, times_mark: int) -> None:
        self._emitter.roll_back(mark)
        self._state.roll_back(undo_mark)
        self._times.roll_back(times_mark)

    def _step_for(self, source: Source) -> Callable[[Tuple], None]:
        """Return the function for tuples of a source: looked up once, since field positions are the
        same for all of them.
        """
        step: Callable[[Tuple], None] = _ignore
        if source.stream == TICK_STREAM:
            step = self._execute if isinstance(self.bolt, TimedBolt) else _ignore
        elif source.stream in REPLAYED_FIELDS:
            step = self._fire_again
        elif source.is_late:
            step = self._late_step(source)
        elif self._reorder is not None:
            step = self._reorder_step(source, self._reorder)
        elif self._windows is not None:
            step = self._window_step(source, self._windows)
        else:
            step = self._timed_step(source)
        self._step_by_source[source] = step
        return step

    def _window_step(self, source: Source, windows: Windows) -> Callable[[Tuple], None]:
        add = windows.add
        is_gone = windows.is_gone
        key_of = self._inputs.key_of(source)
        time_of = self._inputs.time_of(source)
        take_late = self._late_step(source)
        is_by_clock = not self._settings.is_event_time

        def step(tup: Tuple) -> None:
            time_ms = time_of(tup)
            if time_ms < windows.floor:
                if is_by_clock:  # the clock of a former process was ahead of this one's
                    time_ms = windows.floor
                # its sender was left behind after a silence, or the bolt's settings changed
                elif is_gone(time_ms, key_of(tup.values)):
                    take_late(tup)
                    return
            for firing in add(time_ms, key_of(tup.values), tup):
                self._emitter.roots = 0
                self._call(firing)
                windows.done(firing)

        return step

    def _timed_step(self, source: Source) -> Callable[[Tuple], None]:
        if not self._settings.is_event_time:
            return self._execute
        time_of = self._inputs.time_of(source)

        def step(tup: Tuple) -> None:
            time_of(tup)
            self._execute(tup)

        return step

    def _reorder_step(self, source: Source, reorder: Reorder) -> Callable[[Tuple], None]:
        time_of = self._inputs.time_of(source)
        key_of = self._inputs.key_of(source)
        take_late = self._late_step(source)

        def step(tup: Tuple) -> None:
            at_ms = time_of(tup)
            if at_ms < self.low_ms:  # as in _window_step
                take_late(tup)
                return
            hash(key_of(tup.values))
            reorder.add(at_ms, tup)

        return step

    def _late_step(self, source: Source) -> Callable[[Tuple], None]:
        stream = self._settings.late_stream
        time_of = self._inputs.time_of(source)

        def step(tup: Tuple) -> None:
            self.late += 1
            if stream is not None:
                self._emitter.roots = tup.roots
                self._emitter.emit((tup.component, tup.stream, time_of(tup), tup.as_dict()), stream)

        return step

    def _fire_again(self, tup: Tuple) -> None:
        """A window or timer out of a dead letter."""
        due = replayed_due(tup, self._source_of)
        self._emitter.roots = tup.roots
        if isinstance(due, Timer):
            self.bolt.on_timer(due, self._collector)
        else:
            self._call(due)

    def _source_of(self, component: str, task: int, stream: str) -> Source:
        return self._find_source(task, stream)

    def _execute(self, tup: Tuple) -> None:
        assert isinstance(self.bolt, TimedBolt)
        self._emitter.roots = tup.roots
        self.bolt.execute(tup, self._collector)


def _moment(due: Due) -> int:
    return due.end if isinstance(due, Firing) else due.at_ms


def _ignore(tup: Tuple) -> None:
    """Ignore ticks: windows do not use them."""
