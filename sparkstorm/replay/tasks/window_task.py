"""One task of a windowed or timed bolt in a replay: the live runner, driven by watermarks and row
times.

Senders decide which rows are late, as live. Windows fire when the watermarks of all sending tasks
allow it; for data, the times of its rows replace the watermarks of a spout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from sparkstorm.api.windows import FoldingBolt, TimedBolt, WindowedBolt
from sparkstorm.common.model.topology import WATERMARK_STREAM
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.settings import TimeSettings
from sparkstorm.common.windowing.watermarks import END, LAST_MS, NEVER, Channel, Watermarks
from sparkstorm.data_plane.executor.output_clock import OutputClock
from sparkstorm.data_plane.executor.runner import BasicCollector
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.window_records import Due
from sparkstorm.data_plane.task_kit.task_parts import Outputs, TaskParts
from sparkstorm.replay.savepoints import Begun
from sparkstorm.replay.tasks.arrival_order import FoldProbe, WatchedRunner
from sparkstorm.replay.tasks.task import ClockedEmitter, ReplayTask, TaskMode


@dataclass(frozen=True, slots=True)
class TimeInputs:
    """Time inputs of a task: its settings, its sending channels, and those of them that are data
    with a known time.
    """

    settings: TimeSettings
    channels: Sequence[Channel]
    data: Sequence[Channel]
    find_source: Callable[[int, str], Source]
    # of data that continues after this replay: an upper bound of its watermarks
    newest_ms: Mapping[Channel, int] = field(default_factory=dict)


class WindowTask(ReplayTask):
    """A ReplayTask around windows and timers."""

    def __init__(
        self,
        bolt: WindowedBolt | TimedBolt,
        outputs: Outputs,
        codec: Codec,
        mode: TaskMode,
        times: TimeInputs,
    ) -> None:
        self._timed: WatchedRunner
        super().__init__(bolt, outputs, codec, mode)
        self._times = times
        self._store = MemoryState(codec, mode.skip_bad)
        self._marks = Watermarks(times.channels)
        self._probe: FoldProbe | None = None
        # A bolt that declares order_insensitive needs no probe.
        if (
            isinstance(bolt, FoldingBolt)
            and times.settings.is_event_time
            and not getattr(bolt, "order_insensitive", False)
        ):
            self._probe = FoldProbe(bolt, codec)
        # Timers, and windows by the clock, may be due between two rows of a list.
        # Windows by event time wait for a watermark, which comes behind the list.
        self._one_by_one = mode.is_timed and (
            isinstance(bolt, TimedBolt) or not times.settings.is_event_time
        )

    def begin(self, begun: Begun, parts: TaskParts, tasks: Collection[int]) -> None:
        """Continue windows and timers too."""
        self._store.load(begun.windows)
        super().begin(begun, parts, tasks)

    def _make_runner(self) -> Any:
        assert isinstance(self.bolt, WindowedBolt | TimedBolt) and self.state is not None
        collector = BasicCollector(self.emitter, self.task, self._report)
        self._timed = WatchedRunner(
            self.bolt,
            self._times.settings,
            self.emitter,
            self.state,
            self._store,
            collector,
            self._times.find_source,
            self.now_ms,
            self._mode.policy,
        )
        return self._timed

    def end(self, is_open: bool = False) -> None:
        """End of input: fire the remaining windows, unless more input follows (`is_open`)."""
        # A back-fill's windows stay open: the live run that follows has more rows for them.
        if not is_open:
            self._advance(END, self.now_ms())
        super().end(is_open)
        self.counts.ties = int(self._timed.has_ties)
        self.counts.chains = int(self._timed.has_chains)
        self.counts.asked = int(self._timed.has_asked)
        if self._probe is not None:
            self.counts.order_matters = int(self._probe.order_matters)
            self.counts.untried = int(bool(self._probe.untried))
            self.counts.shared = int(self._probe.is_shared())
            self.counts.floats += self._probe.floats

    def release(self) -> None:
        """Free the states of the bolt and of its windows."""
        super().release()
        self._store.release()

    def behind_mark_ms(self, output: OutputClock) -> int:
        """Return how far a row was behind a watermark that this task can have announced before
        it.
        """
        return self._timed.behind_ms(output)

    def step(self, what: Tuple, due: Due, at_ms: int, watermark_ms: int) -> None:
        """Execute one window, timer or tuple by itself at that time of the clock; a failed one is
        put aside as `what`.
        """
        self._set_clock(at_ms)
        failure = self._timed.fire(due, watermark_ms)
        if failure is not None:
            self._park(what, 1, failure)

    def kept_time(self) -> list[list[Any]]:
        """Return these entries with those of windows, timers and queues."""
        return [*super().kept_time(), *self._store.snapshot()]

    def take_emitted(self) -> None:
        """Count emitted and late rows; they can no longer be undone."""
        super().take_emitted()
        self._store.undo.clear()
        self.counts.late += self._timed.take_late_rows()

    @property
    def settings(self) -> TimeSettings:
        """Return the settings of windows and lateness."""
        return self._times.settings

    @property
    def low_ms(self) -> int:
        """Return the time up to which windows and timers have fired."""
        low_ms = self._timed.low_ms
        return self._marks.newest_ms if low_ms == END else low_ms

    def _execute(self, rows: Sequence[Any]) -> None:
        # Sources are few objects, so their set is cheaper than a look at every row's stream.
        has_marks = any(
            source.stream == WATERMARK_STREAM for source in set(map(itemgetter(2), rows))
        )
        for are_marks, group in groupby(rows, key=_is_mark) if has_marks else [(False, rows)]:
            part = list(group) if has_marks else rows
            if not are_marks:
                if self._probe is not None:
                    self._probe.look(part)
                self._take_in(part)
            for (stream, mark_ms), _, source in part if are_marks else ():
                self._marks.hear((source.task, stream), mark_ms)
        if isinstance(self.bolt, TimedBolt):
            self._note_newest(rows)
        at_ms = rows[-1][1]
        self._hear_data(at_ms)
        self._set_clock(at_ms)
        self._advance(self._marks.low_ms, at_ms)

    def _note_newest(self, rows: Sequence[Any]) -> None:
        """Keep the newest mark that the senders of these rows have made: timers that timers set go
        on up to it, as live.
        """
        field = self._times.settings.timestamp_field
        for values, _, source in rows if field is not None else ():
            if source.stream != WATERMARK_STREAM and not source.is_late:
                at_ms = values[source.position(field)]
                if type(at_ms) is int and at_ms <= LAST_MS:
                    mark_ms = at_ms - self._times.settings.lag_ms
                    self._marks.newest_ms = max(self._marks.newest_ms, mark_ms)

    def _take_in(self, rows: Sequence[Any]) -> None:
        if not self._one_by_one:
            self._execute_rows(rows)
            return
        for row in rows:
            while (due_ms := self._timed.next_due_ms()) is not None and due_ms <= row[1]:
                self._set_clock(due_ms)
                self._advance(self._marks.low_ms, max(due_ms, self.now_ms()))
            self._execute_rows([row])

    def _hear_data(self, at_ms: int) -> None:
        """Advance the watermarks of data: rows come in the order of times, so later ones are at
        most the lag older.
        """
        if self._mode.is_timed:
            for channel in self._times.data:
                # The history of a back-fill ends here, not at the newest row of all sources: a
                # window that the slowest source would hold open live stays open.
                newest_ms = min(at_ms, self._times.newest_ms.get(channel, at_ms))
                self._marks.hear(channel, max(NEVER, newest_ms - self._times.settings.lag_ms))

    def _set_clock(self, at_ms: int) -> None:
        assert isinstance(self.emitter, ClockedEmitter)
        self.emitter.at_ms = max(self.emitter.at_ms, at_ms)

    def _advance(self, low_ms: int, now_ms: int) -> None:
        """Fire due windows and timers; a failing one is tried again at once, then put aside."""
        newest_ms = self._marks.newest_ms
        if low_ms == END and self._timed.low_ms < newest_ms:
            self._advance(newest_ms, now_ms)  # before the end, as live
        self._timed.advance(low_ms, now_ms)
        # Virtual time goes to the next try at once: nothing else happens in between.
        while self._timed.is_waiting:
            now_ms = max(now_ms, self._timed.next_due_ms() or now_ms)
            self._timed.advance(low_ms, now_ms)
        for what, tries, failure in self._timed.take_given_up():
            self._require_parking("windows", repr(what), tries, failure)
            self._park(what, tries, failure)


def _is_mark(row: Any) -> bool:
    return bool(row[2].stream == WATERMARK_STREAM)
