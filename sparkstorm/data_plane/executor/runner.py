"""Runners of bolts: what all have in common (rows in, failures out), that of BasicBolt, and what
becomes of failures.

Law: rows go in, failures come out, and a failed row has left no trace: emissions and state are cut
back to their lengths before it. The loop, the compiled core's where there is one, ends at a row
that raises and is entered again behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkstorm.api.components import BasicBolt
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.tuples import Roots, Source, Tuple
from sparkstorm.data_plane.executor.emitter import Emitter, fast_emit
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, failure_of

Row = tuple[tuple[Any, ...], Roots, Source]
FailedInput = tuple[Tuple, Failure]
ReportError = Callable[[Failure], None]
"""Function that takes a failure, with component and task."""


class Runner:
    """Runner of any bolt. An input is done when its call has returned, unless the bolt acks by
    itself.
    """

    def __init__(self, bolt: Any) -> None:
        self.bolt = bolt
        self.late_acks: list[Tuple] = []  # of inputs from earlier epochs
        self.late_failures: list[FailedInput] = []
        # A replay tries a failed input again in its place, before the rows that follow it.
        self.take_failed: Callable[[FailedInput], None] | None = None

    def execute_tuples(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Execute every tuple; a failed one leaves no trace but its entry in the result."""
        raise NotImplementedError

    def take_late(self) -> tuple[list[Tuple], list[FailedInput]]:
        """Return the inputs of earlier epochs that were acked, and those that were failed, since
        the last call.
        """
        taken = self.late_acks, self.late_failures
        self.late_acks = []
        self.late_failures = []
        return taken

    def unfinished(self, tuples: Sequence[Tuple]) -> list[Tuple]:
        """Inputs of a run that wait for an ack."""
        return []

    def forget(self, tup: Tuple) -> None:
        """Expect no ack of this input."""

    def parked_as(self, tup: Tuple, is_killer: bool = False) -> Tuple:
        """Return the tuple to park for an input that keeps failing; `is_killer`: worker processes
        died in it.
        """
        return tup


def report_of(error: BaseException | str | Failure, component: str, task: int) -> Failure:
    """Return what user code has reported without failing anything, or a failure with its component
    and task.
    """
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


def _run_rows(
    rows: list[Row],
    start: int,
    execute: Callable[..., Any],
    collector: BasicCollector,
    emitter: Emitter,
    log: list[Any],
    undo: list[Any],
    marks: list[Any],
    kind: type[Tuple],
) -> None:
    """Execute rows from `start` on; where one raises, `marks` has its index and the lengths of log
    and undo before it.

    Twin of the core's `run_rows`, which saves the object: it uses one tuple for all rows unless
    user code keeps it.
    """
    for index in range(start, len(rows)):
        values, roots, source = rows[index]
        emitter.roots = roots
        marks[:] = index, len(log), len(undo)
        execute(kind(values, roots, source), collector)


def _run_values(
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
    """Execute values of one source; where a call raises, `marks` has them first, where `values`
    itself does, None.

    Twin of the core's `run_values`.
    """
    emitter.roots = 0
    for row in values:
        marks[:] = row, len(log), len(undo)
        execute(kind(row, 0, source), collector)
        undo.clear()
        marks[0] = None


class BasicRunner(Runner):
    """Runner of a BasicBolt over rows: an input is done when execute returns."""

    def __init__(
        self,
        bolt: BasicBolt,
        emitter: Emitter,
        state: MemoryState | None,
        collector: BasicCollector,
    ) -> None:
        super().__init__(bolt)
        self._emitter = emitter
        self._state = state
        self._collector = collector

    def execute_tuples(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Execute every tuple; a failed one leaves no trace but its entry in the result."""
        failures = self.execute_rows([(tup.values, tup.roots, tup.source) for tup in tuples])
        return [(tuples[index], failure) for index, failure in failures]

    def execute_rows(self, rows: Sequence[Row]) -> list[tuple[int, Failure]]:
        """Execute every row; return the places of the failed ones, which leave no other trace, and
        why.
        """
        failures: list[tuple[int, Failure]] = []
        run = _run_rows if core is None else core.run_rows
        every = rows if type(rows) is list else list(rows)
        emitter = self._emitter
        state = self._state
        execute = self.bolt.execute
        # Some list, so that the loop needs no test: its length is taken and not used.
        undo = state.undo if state is not None else emitter.log
        marks = [0, 0, 0]
        index = 0
        while index < len(every):
            try:
                run(
                    every, index, execute, self._collector, emitter, emitter.log, undo, marks, Tuple
                )
                return failures
            except USER_ERRORS as error:
                index, mark, undo_mark = marks
                emitter.roll_back(mark)
                if state is not None:
                    state.roll_back(undo_mark)
                failure = failure_of(error)
            if self.take_failed is None:
                failures.append((index, failure))
            else:
                self.take_failed((Tuple(*every[index]), failure))
            index += 1
        return failures

    def execute_values(
        self, values: Iterator[tuple[Any, ...]], source: Source
    ) -> list[FailedInput]:
        """Execute values of one source that belong to no tree; a failed one leaves no trace but its
        entry in the result.

        What undoes a row is forgotten once it is done: nothing is left in the state's `undo` for a
        commit. An error of the iterator itself is raised as it is: no input has caused it, and what
        the rows before it emitted stays.
        """
        failures: list[FailedInput] = []
        marks: list[Any] = [None, 0, 0]  # values and lengths of log and undo where a call raised
        run = _run_values if core is None else core.run_values
        emitter = self._emitter
        undo = self._state.undo if self._state is not None else list[Any]()
        undo.clear()
        while True:
            try:
                run(
                    values,
                    source,
                    self.bolt.execute,
                    self._collector,
                    emitter,
                    emitter.log,
                    undo,
                    marks,
                    Tuple,
                )
                return failures
            except USER_ERRORS as error:
                # The iterator has raised and not user code: no row has caused it.
                if marks[0] is None:
                    raise
                emitter.roll_back(marks[1])
                if self._state is not None:
                    self._state.roll_back(0)
                failed = Tuple(marks[0], 0, source), failure_of(error)
                marks[0] = None
            if self.take_failed is None:
                failures.append(failed)
            else:
                self.take_failed(failed)
                undo.clear()


# A longer one would outlive the users' patience, half of it asks a target twice as often.
_LONGEST_BACK_OFF_MS = 30_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of retries, the first wait (each further one is twice as long), and whether the last
    failure parks the input.

    It holds for inputs, windows and timers. A worker and a replay differ in its values alone.
    """

    retries: int
    back_off_ms: int = 0
    is_parking: bool = True  # else the run ends with the error

    def wait_ms(self, tries: int) -> int | None:
        """Return how long to wait for the next try after so many failed ones; None when it is given
        up.
        """
        if tries > self.retries:
            return None
        wait_ms: int = self.back_off_ms * 2 ** (tries - 1)
        return min(wait_ms, _LONGEST_BACK_OFF_MS)
