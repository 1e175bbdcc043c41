"""Runners of bolts: their protocol (rows in, failures out; time in for windows and timers), and that of BasicBolt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import length_hint
from sys import getrefcount
from typing import Any, Protocol

from sparkstorm.api.components import BasicBolt
from sparkstorm.executor.emitter import Emitter, fast_emit
from sparkstorm.executor.state import MemoryState
from sparkstorm.executor.user_traceback import USER_ERRORS, failure_of
from sparkstorm.model.compiled import core
from sparkstorm.model.failure import Failure, FailureKind
from sparkstorm.model.tuples import Roots, Source, Tuple

Row = tuple[tuple[Any, ...], Roots, Source]
FailedInput = tuple[Tuple, Failure]
ReportError = Callable[[Failure], None]
"""Takes what went wrong, with component and task."""
_NO_SOURCE = Source("", -1, "", ())


class Runner(Protocol):
    """Around any bolt."""

    bolt: Any
    late_acks: list[Tuple]
    late_failures: list[FailedInput]

    def run(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Execute every tuple; a failed one leaves no trace but its entry in the result."""

    def unfinished(self, tuples: Sequence[Tuple]) -> list[Tuple]:
        """Inputs of a run that wait for an ack."""

    def forget(self, tup: Tuple) -> None:
        """Expect no ack of this input."""


class Timing(Protocol):
    """Around a bolt with windows or timers."""

    given_up: list[tuple[Tuple, int, Failure]]
    late: int
    low_ms: int

    @property
    def is_waiting(self) -> bool:
        """Return whether something is due and has not fired."""

    def advance(self, watermark_ms: int, now_ms: int, most: int = ...) -> int:
        """Fire what is due, `most` at the most; return the number fired."""

    def next_name(self, watermark_ms: int, now_ms: int) -> str | None:
        """Return the next firing's name, which is the same after a restart; None when nothing is due."""

    def give_up_next(self, now_ms: int, tries: int, failure: Failure) -> None:
        """Park what would fire next instead of firing it."""

    def parked_as(self, tup: Tuple, is_killer: bool = False) -> Tuple:
        """Return the tuple to park for an input that keeps failing: itself, or the window by count that it completes."""

    def next_due_ms(self) -> int | None:
        """Return when to call `advance` again without a new watermark."""


def report_of(error: BaseException | str | Failure, component: str, task: int) -> Failure:
    """Return what user code has reported without failing anything, or a failure with its component and task."""
    failure = error if isinstance(error, Failure) else failure_of(error, FailureKind.REPORTED)
    return replace(failure, component=component, task=task)


class BasicCollector:
    """BasicOutputCollector: everything emitted descends from the input being executed."""

    __slots__ = ("_emitter", "_report", "_task", "emit", "emit_direct")

    def __init__(self, emitter: Emitter, task: int, report: ReportError) -> None:
        self._emitter = emitter
        self._report = report
        self._task = task
        self.emit = fast_emit(emitter)
        self.emit_direct = emitter.emit_direct

    def report_error(self, error: BaseException | str | Failure) -> None:
        """Record an error without failing anything."""
        self._report(report_of(error, self._emitter.component, self._task))


class BasicRunner:
    """Runs a BasicBolt over rows: an input is done when execute returns."""

    def __init__(self, bolt: BasicBolt, emitter: Emitter, state: MemoryState | None, collector: BasicCollector) -> None:
        self.bolt = bolt
        self._emitter = emitter
        self._state = state
        self._collector = collector
        self.late_acks: list[Tuple] = []  # of inputs from earlier epochs; basic bolts never have any
        self.late_failures: list[FailedInput] = []

    def run(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Execute every tuple; a failed one leaves no trace but its entry in the result."""
        failures = self.execute_rows([(tup.values, tup.roots, tup.source) for tup in tuples])
        return [(tuples[place], failure) for place, failure in failures]

    def execute_rows(self, rows: Sequence[Row]) -> list[tuple[int, Failure]]:
        """Execute every row; return the places of the failed ones, which leave no other trace, and why."""
        if core is not None:
            return self._execute_compiled(rows if type(rows) is list else list(rows))
        failures: list[tuple[int, Failure]] = []
        emitter, collector, execute = self._emitter, self._collector, self.bolt.execute
        log, undo = emitter.log, self._state.undo if self._state is not None else emitter.log
        mark = undo_mark = 0
        has_outputs = bool(emitter.routes)
        rest = iter(rows)
        tup = Tuple((), 0, _NO_SOURCE)
        ours_alone = getrefcount(tup)  # one object for all rows, unless user code keeps it: making one costs as much as a call
        while True:
            try:
                if has_outputs:
                    for values, roots, source in rest:
                        if getrefcount(tup) != ours_alone:
                            tup = Tuple(values, roots, source)
                        else:
                            tup.values = values
                            tup.roots = roots
                            tup.source = source
                        emitter.roots = roots
                        mark = len(log)
                        undo_mark = len(undo)
                        execute(tup, collector)
                else:
                    for values, roots, source in rest:
                        if getrefcount(tup) != ours_alone:
                            tup = Tuple(values, roots, source)
                        else:
                            tup.values = values
                            tup.roots = roots
                            tup.source = source
                        undo_mark = len(undo)
                        execute(tup, collector)
                return failures
            except USER_ERRORS as error:
                emitter.roll_back(mark)
                if self._state is not None:
                    self._state.roll_back(undo_mark)
                failures.append((len(rows) - length_hint(rest) - 1, failure_of(error)))

    def _execute_compiled(self, rows: list[Row]) -> list[tuple[int, Failure]]:
        failures: list[tuple[int, Failure]] = []
        emitter, state, execute = self._emitter, self._state, self.bolt.execute
        undo = state.undo if state is not None else emitter.log
        marks, place = [0, 0, 0], 0
        while place < len(rows):
            try:
                core.run_rows(rows, place, execute, self._collector, emitter, emitter.log, undo, marks, Tuple)
                return failures
            except USER_ERRORS as error:
                place, mark, undo_mark = marks
                emitter.roll_back(mark)
                if state is not None:
                    state.roll_back(undo_mark)
                failures.append((place, failure_of(error)))
                place += 1
        return failures

    def execute_values(self, values: Iterator[tuple[Any, ...]], source: Source) -> list[FailedInput]:
        """Execute values of one source that belong to no tree; a failed one leaves no trace but its entry in the result.

        What undoes a row is forgotten once it is done: nothing is left in the state's `undo` for a commit. An error of the
        iterator itself is raised as it is: no input is to blame, and what the rows before it emitted stays.
        """
        failures: list[FailedInput] = []
        marks: list[Any] = [None, 0, 0]  # values and lengths of log and undo where a call raised
        run = self._execute_values if core is None else core.run_values
        emitter, undo = self._emitter, self._state.undo if self._state is not None else list[Any]()
        undo.clear()
        while True:
            try:
                run(values, source, self.bolt.execute, self._collector, emitter, emitter.log, undo, marks, Tuple)
                return failures
            except USER_ERRORS as error:
                if marks[0] is None:
                    raise
                emitter.roll_back(marks[1])
                if self._state is not None:
                    self._state.roll_back(0)
                failures.append((Tuple(marks[0], 0, source), failure_of(error)))
                marks[0] = None

    @staticmethod
    def _execute_values(
        values: Iterator[Any],
        source: Source,
        execute: Callable[..., Any],
        collector: BasicCollector,
        emitter: Emitter,
        log: list[Any],
        undo: list[Any],
        marks: list[Any],
        kind: type[Tuple],
    ) -> None:
        emitter.roots, mark = 0, len(log)
        row: tuple[Any, ...] | None = None
        tup = kind((), 0, source)
        ours_alone = getrefcount(tup)
        try:
            for row in values:
                if getrefcount(tup) != ours_alone:
                    tup = kind((), 0, source)
                tup.values = row
                mark = len(log)
                execute(tup, collector)
                undo.clear()  # a short list stays in the processor's caches
                row = None
        except USER_ERRORS:
            marks[:2] = row, mark
            raise

    def unfinished(self, tuples: Sequence[Tuple]) -> list[Tuple]:
        """Inputs of a run that wait for an ack: none."""
        return []

    def forget(self, tup: Tuple) -> None:
        """Expect no ack of this input: there is none to expect."""
