"""Event time of one task: watermarks sent, watermarks received, windows and timers still to fire.

Law: marks and clocks are state like any other: they are in the commit of the rows that they follow,
so event time after a crash is that before it. Left out: finding it again from later rows: a row
that was late would be on time after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparkstorm.common.grouping.routes import Rows, Target
from sparkstorm.common.model.topology import HOLD_STREAM
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.windowing.watermarks import END, IDLE, NEVER, Channel, Watermarks
from sparkstorm.data_plane.executor.output_clock import OutputClock
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner
from sparkstorm.data_plane.transport.frames import Row

Place = tuple[Any, ...]
"""What marks wait for: (key,) of a held input, or (task, stream, number) of a sender's hold."""


class OutputWatermarks:
    """Watermarks that one task sends."""

    def __init__(self, times: MemoryState, timed_outputs: Sequence[OutputClock]) -> None:
        self._times = times
        self.timed_outputs = timed_outputs
        self.has_ended = False
        self._number_by_place: dict[Place, int] = {}
        outputs = {(output.stream, output.subscriber): output for output in timed_outputs}
        for output in timed_outputs:
            output.restore(times.get(("h", output.stream, output.subscriber), NEVER))
        for (kind, *place), hold in list(times.items()):
            if kind == "r":
                self._number_by_place[tuple(place)] = hold[0]
                for stream, subscriber, newest_ms in hold[1]:
                    if (stream, subscriber) in outputs:
                        outputs[stream, subscriber].restore_hold(hold[0], newest_ms)

    def hold(self, place: Place, failed: tuple[int, int] | None = None) -> None:
        """Let marks wait for an input that is tried again, or for one of a sender; `failed`: which
        of how many failed calls of this turn.
        """
        if place in self._number_by_place or not self.timed_outputs:
            return
        number = self._number_by_place[place] = self._times.get(("n",), 0) + 1
        self._times.put(("n",), number)
        holds = [
            [output.stream, output.subscriber, output.hold(number, failed)]
            for output in self.timed_outputs
        ]
        self._times.put(("r", *place), [number, holds])

    def release(self, place: Place) -> None:
        """Let marks go on: that input is done, or parked."""
        if (number := self._number_by_place.pop(place, None)) is not None:
            self._times.delete(("r", *place))
            for output in self.timed_outputs:
                output.release(number)

    def keep_holds(self, held: Container[str]) -> None:
        """Release what waits for inputs that are not held any more."""
        for place in [*self._number_by_place]:
            if len(place) == 1 and place[0] not in held:
                self.release(place)

    @contextmanager
    def at(self, places: Iterable[Place], log: list[Rows]) -> Iterator[None]:
        """Emit rows as of the first of these places that are held."""
        number_by_place = self._number_by_place
        numbers = [number_by_place[place] for place in places if place in number_by_place]
        mark = len(log)
        for output in self.timed_outputs if numbers else ():
            output.go_back(numbers)
        try:
            yield
        finally:
            for output in self.timed_outputs if numbers else ():
                output.go_on(log, mark)

    def heard_from(self, source: Source) -> list[Place]:
        """Return the places at which senders of this stream hold."""
        return [place for place in self._number_by_place if place[1:2] == (source.stream,)]

    def put_marks(
        self, low_ms: int, may_have: Callable[[Target], bool], now_ms: int | None = None
    ) -> bool:
        """Send new watermarks; `low_ms` is the task's own watermark, if it uses event time."""
        did = False
        for output in self.timed_outputs:
            did |= output.put_marks(low_ms, self.has_ended, may_have, now_ms)
        return did

    def next_idle_ms(self) -> int | None:
        """Return when an idle output must send a watermark."""
        return min(
            (
                idleness.at_ms
                for output in self.timed_outputs
                if (idleness := output.idleness) is not None and idleness.at_ms is not None
            ),
            default=None,
        )

    def save(self) -> None:
        """Put the clocks that have moved into the store."""
        for output in self.timed_outputs:
            key = ("h", output.stream, output.subscriber)
            if output.clock is not None and output.clock.newest_ms > self._times.get(key, NEVER):
                self._times.put(key, output.clock.newest_ms)


class InputWatermarks:
    """Watermarks that one task has received; kept in the store, since each is sent once."""

    def __init__(
        self, times: MemoryState, channels: Iterable[Channel], is_in_cycle: bool = False
    ) -> None:
        self._times = times
        self._is_in_cycle = is_in_cycle
        heard = {(key[1], key[2]): at_ms for key, at_ms in times.items() if key[0] == "m"}
        self.watermarks = Watermarks(channels, heard, times.get(("g",), NEVER))
        for key, _ in times.items():
            if key[0] == "i":
                self.watermarks.rest((key[1], key[2]))

    @property
    def has_ended(self) -> bool:
        """Return whether all senders have ended; never true for a task inside a cycle."""
        return self.watermarks.is_ended and not self._is_in_cycle

    def hear(self, marks: Iterable[Tuple]) -> None:
        """Take in rows of the watermark stream."""
        for mark in marks:
            stream, at_ms = mark.values
            channel = mark.source.task, stream
            if self.watermarks.is_idle(channel) and at_ms != IDLE:
                self._times.delete(("i", *channel))
            if self.watermarks.hear(channel, at_ms):
                self._times.put(("i" if at_ms == IDLE else "m", *channel), at_ms)
                if at_ms == END:  # in place of the sender's last mark, which may be the newest
                    self._times.put(("g",), self.watermarks.newest_ms)


class TaskEventTime:
    """A task's share in event time; `times` is what it keeps of windows, timers, clocks and
    marks.
    """

    def __init__(
        self,
        times: MemoryState,
        outlook: OutputWatermarks,
        hearing: InputWatermarks | None = None,
        timing: TimedRunner | None = None,
    ) -> None:
        self.times = times
        self.outlook = outlook
        self.timing = timing
        self._hearing = hearing

    def hear(self, rows: Iterable[Row]) -> None:
        """Take in rows of the streams of watermarks and holds."""
        marks: list[Tuple] = []
        for (stream, at_ms), _, source in rows:
            if type(at_ms) is not int or type(stream) is not str:
                continue  # not from a task of this topology
            if source.stream == HOLD_STREAM:
                self.outlook.hold((source.task, stream, at_ms))
            elif at_ms < IDLE:
                self.outlook.release((source.task, stream, IDLE - at_ms))
            else:
                marks.append(Tuple((stream, at_ms), 0, source))
        if self._hearing is not None:
            self._hearing.hear(marks)

    @property
    def heard_ms(self) -> int:
        """Event time up to which this task has received watermarks from all senders; before the
        end of all input the newest of their marks, whichever sender has ended last.
        """
        if self._hearing is None:
            return NEVER
        marks = self._hearing.watermarks
        is_early = self.timing is not None and self.timing.low_ms < marks.newest_ms
        return min(marks.low_ms, marks.newest_ms) if is_early else marks.low_ms

    @property
    def nobody_sends(self) -> bool:
        """Return whether every sender has ended."""
        return self._hearing is not None and self._hearing.has_ended

    @property
    def low_ms(self) -> int:
        """Up to when everything has fired here: what it emits from now on comes from later windows
        and timers.
        """
        return NEVER if self.timing is None else self.timing.low_ms

    @property
    def is_firing(self) -> bool:
        """Return whether something is due and has not fired."""
        return self.timing is not None and (
            self.timing.is_waiting or self.timing.low_ms < self.heard_ms
        )

    def next_firing_ms(self) -> int | None:
        """Return when windows or timers are due by processing time."""
        return None if self.timing is None else self.timing.next_due_ms()

    def next_idle_ms(self) -> int | None:
        """Return when an idle output must send a watermark."""
        return self.outlook.next_idle_ms()

    def put_marks(self, may_have: Callable[[Target], bool], now_ms: int | None = None) -> bool:
        """Put a mark behind the rows of every target that may have one now and lacks it."""
        low_ms = self.low_ms
        if low_ms == END and self._hearing is not None and self._hearing.has_ended:
            low_ms = self._hearing.watermarks.newest_ms
        return self.outlook.put_marks(low_ms, may_have, now_ms)
