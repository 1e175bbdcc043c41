"""Evidence that the order of arrival matters to a windowed or timed bolt: rows of the same time,
folds that do not commute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import Any

from sparkstorm.api.windows import FoldingBolt, TimedBolt, WindowedBolt
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.reorder import Row
from sparkstorm.common.windowing.settings import TimeSettings
from sparkstorm.common.windowing.timers import Timer
from sparkstorm.common.windowing.watermarks import LAST_MS, NEVER
from sparkstorm.common.windowing.windows import Firing
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.output_clock import OutputClock
from sparkstorm.data_plane.executor.runner import FailedInput
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner
from sparkstorm.replay.code_uses import uses_of

# First rows of a task that are all looked at. With those at each doubling the cost is that of 256
# rows and the logarithm of the rest. Half would miss more, twice as many means twice the folds.
_SAMPLE = 256
# Each time the number of rows has doubled.
_SAMPLE_LATER = 16
# Each holds a tuple; a sample of 256 rows and 16 at each doubling seldom has as many.
_MOST_KEYS = 1024


class WatchedRunner(TimedRunner):
    """A TimedRunner that measures how its results depend on chance.

    `has_chains`: a timer that fired has set another. `has_asked`: user code has asked for the
    watermark. `has_ties`: rows of the same time were in one window, or came next to each other.
    `behind_ms`: how far a row was behind the watermark that a live task can have announced before
    it emitted that row.
    """

    def __init__(
        self, bolt: WindowedBolt | TimedBolt, settings: TimeSettings, emitter: Emitter, *others: Any
    ) -> None:
        super().__init__(bolt, settings, emitter, *others)
        self.has_ties = False
        self.has_chains = False
        self.has_asked = False
        self._last_ms = NEVER
        self._moment_ms = NEVER  # greatest one at which something fired
        self._output_by_rows = {
            id(target.rows): output
            for output in emitter.timed_outputs
            if output.clock is not None
            for target in (*output.targets, *output.late)
        }
        if self._folded is not None and self._output_by_rows:
            self._folded.note_end = self._note_end
        self._behind_ms: dict[OutputClock, int] = {}
        self._oldest_on_arrival: dict[OutputClock, int] = {}

    def _may_set_event_timer(self) -> bool:
        self.has_chains |= self._timers.is_firing
        return super()._may_set_event_timer()

    def _watermark(self) -> int:
        self.has_asked = True
        return super()._watermark()

    def behind_ms(self, output: OutputClock) -> int:
        """Return how far a row of this output was behind; for rows emitted on arrival, any
        watermark counts as announced.
        """
        on_arrival = self._moment_ms - self._oldest_on_arrival.get(output, self._moment_ms)
        return max(0, on_arrival, self._behind_ms.get(output, 0))

    def execute_tuples(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Execute every tuple; return the failed ones, whose changes are undone."""
        if not self._output_by_rows:
            return super().execute_tuples(tuples)
        log_mark = len(self._emitter.log)
        failures = super().execute_tuples(tuples)
        for output, at_ms in self._emitted(log_mark):
            self._oldest_on_arrival[output] = min(at_ms, self._oldest_on_arrival.get(output, at_ms))
        return failures

    def _try(self, due: Firing | Timer | Row, now_ms: int) -> bool:
        if not self._output_by_rows:
            return super()._try(due, now_ms)
        log_mark = len(self._emitter.log)
        is_done = super()._try(due, now_ms)
        announced_ms = (
            due.at_ms
            if isinstance(due, Row)
            else (due.end if isinstance(due, Firing) else due.at_ms) - 1
        )
        self._note_end(announced_ms + 1, log_mark)
        return is_done

    def _note_end(self, end: int, log_mark: int) -> None:
        """Measure how far the rows emitted since the log had this length are behind the time before
        `end`.
        """
        self._moment_ms = max(self._moment_ms, end - 1)
        for output, at_ms in self._emitted(log_mark):
            self._behind_ms[output] = max(end - 1 - at_ms, self._behind_ms.get(output, 0))

    def _emitted(self, log_mark: int) -> Iterator[tuple[OutputClock, int]]:
        """Yield the times of rows emitted since the log had this length, each with its stream's
        output to a subscriber.
        """
        # The log has a block's list of rows once for each row that was added to it.
        ends: dict[int, int] = {}
        for rows in self._emitter.log[: log_mark - 1 if log_mark else None : -1]:
            rows_id = id(rows)
            output = self._output_by_rows.get(rows_id)
            if output is not None:
                ends[rows_id] = ends.get(rows_id, 0) - 1
                at_ms = output.time_of(rows[ends[rows_id]][0])
                if type(at_ms) is int and 0 <= at_ms <= LAST_MS:
                    yield output, at_ms

    def _call(self, firing: Firing) -> None:
        tuples = firing.content.tuples
        field = self._settings.timestamp_field
        if len(tuples) > 1 and not self.has_ties and field is not None:
            self.has_ties = len({tup[field] for tup in tuples}) < len(tuples)
        super()._call(firing)

    def _take_in(self, row: Row) -> None:
        self.has_ties = self.has_ties or row.at_ms == self._last_ms
        self._last_ms = row.at_ms
        super()._take_in(row)


class FoldProbe:
    """Probe that folds neighbouring tuples of a key in both orders, on a sample, and compares the
    accumulators.

    It calls a fold that uses nothing but its arguments, which are copies. `untried` is the name of
    what another one uses.
    """

    def __init__(self, bolt: FoldingBolt, codec: Codec) -> None:
        self.order_matters = False
        self.untried = ""
        self.floats = 0  # floating-point results in the sample
        self._bolt = bolt
        self._codec = codec
        self._former: dict[Any, Tuple] = {}
        self._rows = 0
        self._next_look = _SAMPLE

    def look(self, rows: Sequence[Any]) -> None:
        """Add the next rows of the task."""
        first = self._rows
        self._rows = self._rows + len(rows)
        if self.order_matters or self.untried:
            return
        if first < _SAMPLE:
            self._look(rows[: _SAMPLE - first])
        elif self._rows >= self._next_look:
            self._next_look = 2 * self._rows
            self._look(rows[:_SAMPLE_LATER])

    def is_shared(self) -> bool:
        """Return whether the fold uses state or an attribute that `execute` uses as well."""
        if not self.untried:
            return False
        folded, fired = (
            {use.name for use in uses_of(self._bolt, *names) if use.is_own}
            for names in (("initial", "fold", "merge"), ("execute",))
        )
        # The bolt itself, which is no attribute's name, may stand for any of them.
        is_whole = any(not hasattr(self._bolt, name) for name in folded | fired)
        return bool(folded and fired and (is_whole or folded & fired))

    def _look(self, rows: Sequence[Any]) -> None:
        # Each time: an attribute may have become one that can change.
        self.untried = next((use.name for use in uses_of(self._bolt, "initial", "fold")), "")
        if self.untried:
            return
        for tup in starmap(Tuple, rows):
            if tup.source.is_late:
                continue
            key = repr([tup[field] for field in self._bolt.key_fields])
            former = self._former.get(key)
            if former is not None or len(self._former) < _MOST_KEYS:
                self._former[key] = tup
            if former is not None:
                self._compare(former, tup)

    def _compare(self, one: Tuple, other: Tuple) -> None:
        try:
            # From nothing, and behind a tuple: a fold may begin in
            # its own way and show the order only later.
            for begun in ((), (one,), (other,)):
                results = [self._folded((*begun, *order)) for order in ((one, other), (other, one))]
                self.order_matters |= results[0] != results[1]
                self.floats += isinstance(results[0], float)
        except (Exception, SystemExit):  # user code: the runner meets the same rows and reports it
            return

    def _folded(self, tuples: Sequence[Tuple]) -> Any:
        normalise = self._codec.normalise
        accumulator = self._bolt.initial()
        for tup in tuples:
            copied = Tuple(tuple(map(normalise, tup.values)), tup.roots, tup.source)
            accumulator = normalise(self._bolt.fold(accumulator, copied))
        return accumulator
