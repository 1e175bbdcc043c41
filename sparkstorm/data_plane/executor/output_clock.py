"""Event time of outputs: the clock of the rows that one task sends to one subscriber, and their
watermarks.

Law: whether a row is late is decided by its sender, by a clock that follows from the sender's rows
alone, so it is the same live, after any crash and in a replay. Left out: a clock at the receiver,
which depends on how senders interleave, and a mark in the header of a frame, which would not reach
targets that get no rows (decision 11).

A row that a further try emits has its place where the first try was: the clock of that place is
kept (`hold`), no mark passes it, and the row is judged by it (`go_back`). A receiver without event
time of its own is told of the hold before later rows, and of its end behind those of the try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from sparkstorm.common.grouping.routes import PickMany, PickOne, Rows, Target
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.topology import HOLD_STREAM
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.windowing.settings import TimeSettings
from sparkstorm.common.windowing.watermarks import END, IDLE, LAST_MS, NEVER, SourceClock


class Idleness:
    """Silence of an output, which counts as idle when no row has come for a time-out (as by Flink's
    `withIdleness`).
    """

    __slots__ = ("has_rows", "at_ms", "_timeout_ms", "_mine")

    def __init__(self, timeout_ms: int, lists: Iterable[Rows]) -> None:
        """`lists`: those into which the output puts its rows."""
        self.has_rows = True  # since it was put off; a beginning counts as well
        # when the output counts as idle if no row comes; none: never, or it does already
        self.at_ms: int | None = None
        self._timeout_ms = timeout_ms
        self._mine = frozenset(map(id, lists))

    def note(self, log: Iterable[Rows]) -> None:
        """Take note of rows; `log` has the list of each."""
        if not self.has_rows:
            self.has_rows = any(id(rows) in self._mine for rows in log)

    def put_off(self, now_ms: int) -> bool:
        """Begin the time-out anew; return whether the output was idle."""
        was_idle = self.at_ms is None
        self.at_ms = now_ms + self._timeout_ms
        self.has_rows = False
        return was_idle

    def begins(self, now_ms: int) -> bool:
        """Return whether the output is idle from now on."""
        if self.at_ms is None or now_ms < self.at_ms:
            return False
        self.at_ms = None
        return True


class OutputClock:
    """One stream of one task to one subscriber that receives watermarks."""

    __slots__ = (
        "stream",
        "subscriber",
        "clock",
        "targets",
        "late",
        "base_ms",
        "marks",
        "mark_source",
        "idleness",
        "_position",
        "_sent",
        "_late_by_rows",
        "_newest_by_hold",
        "_floor",
        "_undone",
        "_ahead",
        "_tellers",
        "_again_by_rows",
        "_releases",
    )

    def __init__(
        self,
        stream: str,
        subscriber: str,
        targets: Sequence[Target],
        marks: Mapping[int, Target],
        mark_source: Source,
    ) -> None:
        self.stream = stream
        self.subscriber = subscriber
        self.targets = targets
        # None: the subscriber does not use the time of rows
        self.clock: SourceClock | None = None
        self.late: list[Target] = []
        self.base_ms = NEVER  # newest time among rows that can no longer be taken back
        self.marks = marks
        self.mark_source = mark_source  # of this task's rows among those of others
        self.idleness: Idleness | None = None  # of a subscriber that has an idle time-out
        self._position = 0
        self._sent = {target.task: NEVER for target in targets}
        self._late_by_rows: dict[int, Rows] = {}
        # newest time before each input that waits for its next try, by number; a heap of these
        self._newest_by_hold: dict[int, int] = {}
        self._floor: list[tuple[int, int]] = []
        self._undone: list[int] = []  # newest time at each failed call since rows were final
        # of the clock while it is set back: that place, and the newest time before
        self._ahead: tuple[int, int] | None = None
        # of a receiver without event time: targets of holds, and of rows of further tries
        self._tellers: list[Target] = []
        self._again_by_rows: dict[int, Rows] = {}
        self._releases: dict[int, list[int]] = {}

    def watch(self, settings: TimeSettings, source: Source, late: Sequence[Target]) -> None:
        """Keep the subscriber's clock for these rows; `late` are the targets of late ones, in the
        order of the others.
        """
        assert settings.timestamp_field is not None
        self._position = source.position(settings.timestamp_field)
        self.clock = SourceClock(settings.lag_ms, settings.lateness_ms)
        self.late = list(late)
        self._late_by_rows = {
            id(on_time.rows): late.rows
            for on_time, late in zip(self.targets, self.late, strict=True)
        }
        if settings.idle_ms:
            rows = (target.rows for target in (*self.targets, *self.late))
            self.idleness = Idleness(settings.idle_ms, rows)

    def pass_holds(self, tellers: Sequence[Target], again: Sequence[Target]) -> None:
        """Tell a receiver without event time of inputs that wait for their next try; `again` are
        the targets of what these emit, in the order of the others.
        """
        self._tellers = list(tellers)
        self._again_by_rows = {
            id(target.rows): more.rows for target, more in zip(self.targets, again, strict=True)
        }

    def hold(self, number: int, failed: tuple[int, int] | None = None) -> int:
        """Let no mark pass the place of an input that waits; `failed`: which of how many failed
        calls since rows were final. Return the newest time at that place.
        """
        newest_ms = self.base_ms if self._ahead is None else self._ahead[0]
        if failed is not None and len(self._undone) == failed[1]:
            newest_ms = self._undone[failed[0]]
        self.restore_hold(number, newest_ms)
        for target in self._tellers:
            target.rows.append(((self.stream, number), 0, self.mark_source.beside(HOLD_STREAM)))
        return newest_ms

    def restore_hold(self, number: int, newest_ms: int) -> None:
        """Go on with a stored hold."""
        self._newest_by_hold[number] = newest_ms
        heappush(self._floor, (newest_ms, number))

    def release(self, number: int) -> None:
        """Forget a hold: its input is done or parked."""
        del self._newest_by_hold[number]
        if self._tellers:
            for task in self._sent:
                self._releases.setdefault(task, []).append(number)

    @property
    def held_ms(self) -> int:
        """Return the newest time that marks may cover; END where nothing waits."""
        # Dropped lazily, as the inputs of a task.
        while self._floor and self._floor[0][1] not in self._newest_by_hold:
            heappop(self._floor)
        return self._floor[0][0] if self._floor else END

    def go_back(self, numbers: Sequence[int]) -> None:
        """Set the clock to the first of these holds, for the rows of a further try."""
        if self.clock is not None:
            back_ms = min(self._newest_by_hold[number] for number in numbers)
            self._ahead = back_ms, self.clock.newest_ms
            self.clock.set_newest(back_ms)

    def go_on(self, log: list[Rows], mark: int) -> None:
        """Set the clock on again. Rows emitted since the log had this length are of a further
        try.
        """
        if self.clock is not None and self._ahead is not None:
            self.clock.set_newest(max(self._ahead[1], self.clock.newest_ms))
            self._ahead = None
        moved: list[tuple[Rows, Any]] = []
        for index in range(len(log) - 1, mark - 1, -1) if self._again_by_rows else ():
            if (again := self._again_by_rows.get(id(log[index]))) is not None:
                moved.append((again, log[index].pop()))
                log[index] = again
        for again, row in reversed(moved):
            again.append(row)

    def time_of(self, values: tuple[Any, ...]) -> Any:
        """Return what a row has in the field of the subscriber's event time."""
        return values[self._position]

    def restore(self, newest_ms: int) -> None:
        """Go on from a stored clock."""
        if self.clock is not None:
            self.clock.set_newest(newest_ms)
            self.base_ms = newest_ms

    def one(self, pick: PickOne) -> PickOne:
        """A picker that keeps the clock and diverts late rows."""
        if self.clock is None:
            return pick
        clock = self.clock
        position = self._position
        late_by_rows = self._late_by_rows

        def look(rows: Rows, at_ms: int) -> Rows:
            if at_ms > clock.newest_ms:
                if at_ms <= LAST_MS:
                    clock.set_newest(at_ms)
            elif 0 <= at_ms < clock.edge_ms and clock.is_older(at_ms):
                return late_by_rows[id(rows)]
            return rows

        def pick_by_time(values: tuple[Any, ...]) -> Rows:
            rows = pick(values)
            at_ms = values[position]
            return look(rows, at_ms) if type(at_ms) is int else rows

        return (
            pick_by_time if core is None else core.TimedPick(pick, position, clock, LAST_MS, look)
        )

    def many(self, pick: PickMany) -> PickMany:
        """The same for groupings that choose several tasks."""
        if self.clock is None:
            return pick
        clock = self.clock
        position = self._position
        late_by_rows = self._late_by_rows

        def pick_by_time(values: tuple[Any, ...]) -> Sequence[Rows]:
            chosen = pick(values)
            return (
                [late_by_rows[id(rows)] for rows in chosen]
                if clock.is_late(values[position])
                else chosen
            )

        return pick_by_time

    def divert(self, rows: Rows, values: tuple[Any, ...]) -> Rows:
        """The same for a row whose task is known."""
        is_late = self.clock is not None and self.clock.is_late(values[self._position])
        return self._late_by_rows[id(rows)] if is_late else rows

    def recount(self) -> None:
        """Set the clock back to the rows that are left after some were taken back."""
        if self.clock is not None and self._ahead is not None:
            self.clock.take_back(self._ahead[0])
            self._undone.append(self.clock.newest_ms)
        elif self.clock is not None:
            task = self.mark_source.task
            times_ms = [
                row[0][self._position]
                for target in self.targets
                for row in target.rows
                if row[2].task == task
            ]
            self.clock.take_back(
                max(
                    (at_ms for at_ms in times_ms if type(at_ms) is int and at_ms <= LAST_MS),
                    default=NEVER,
                )
            )
            if self.clock.newest_ms < self.base_ms:
                self.clock.take_back(self.base_ms)
            self._undone.append(self.clock.newest_ms)

    def settle(self, log: Sequence[Rows]) -> None:
        """Make emitted rows final; `log` has the list of each."""
        if self.clock is not None:
            self.base_ms = self.clock.newest_ms
            self._undone.clear()
            if self.idleness is not None:
                self.idleness.note(log)

    def put_marks(
        self,
        low_ms: int,
        has_ended: bool,
        may_have: Callable[[Target], bool],
        now_ms: int | None = None,
    ) -> bool:
        """Put a mark behind the rows of every target that may have one now and lacks it.

        With the time of the clock it also sends the mark of an idle output, where the subscriber
        has an idle time-out.
        """
        if now_ms is not None and self.idleness is not None:
            self._watch_silence(self.idleness, now_ms)
        mark_ms = NEVER if self.clock is None else self.clock.mark_ms(low_ms, self.held_ms)
        did = self._put_releases(may_have) if self._releases else False
        # The newest mark goes before the end: a receiver whose other senders are idle needs it.
        for each_ms in (mark_ms, END) if has_ended else (mark_ms,):
            for task, sent_ms in self._sent.items():
                target = self.marks[task]
                if sent_ms < each_ms and may_have(target):
                    self._put_mark(target.rows, each_ms)
                    self._sent[task] = each_ms
                    did = True
        return did

    def _put_releases(self, may_have: Callable[[Target], bool]) -> bool:
        told = [task for task in self._releases if may_have(self.marks[task])]
        for task in told:
            self.marks[task].rows.extend(
                ((self.stream, IDLE - number), 0, self.mark_source)
                for number in self._releases.pop(task)
            )
        return bool(told)

    def _watch_silence(self, idleness: Idleness, now_ms: int) -> None:
        if idleness.has_rows or self._newest_by_hold:
            # a receiver of an idle mark must get the end of the silence, even if time stood still
            if idleness.put_off(now_ms):
                self._sent = dict.fromkeys(self._sent, NEVER)
        elif idleness.begins(now_ms):
            for task, sent_ms in self._sent.items():
                if sent_ms < END:
                    self._put_mark(self.marks[task].rows, IDLE)

    def _put_mark(self, rows: Rows, mark_ms: int) -> None:
        """Replace this task's former mark of the stream; the end and idleness follow it."""
        if 0 <= mark_ms < END:
            rows[:] = [
                row for row in rows if row[0][0] != self.stream or row[2] is not self.mark_source
            ]
        rows.append(((self.stream, mark_ms), 0, self.mark_source))
