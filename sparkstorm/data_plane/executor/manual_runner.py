"""Runner of a Bolt, which acks by itself: in the loop's thread, or in other threads whose calls the
loop takes in.

Law: only the loop's thread touches emitter, state and verdicts; calls of other threads are posted
and made by the loop, in their order. Left out: a lock around the collector, by which a thread could
emit into the middle of another input's execute, and be undone with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import Any

from sparkstorm.api.components import Bolt
from sparkstorm.common.errors import InvalidTopologyError, WorkerFailedError
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.tuples import Roots, Tuple, union_roots
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.data_plane.executor.emitter import Emitter, fast_emit
from sparkstorm.data_plane.executor.runner import FailedInput, ReportError, Row, Runner, report_of
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.user_traceback import (
    USER_ERRORS,
    failure_of,
    raise_out_of_memory,
)

Anchors = Tuple | Sequence[Tuple] | None
Call = Callable[[], None]


class _Answer:
    __slots__ = ("call", "is_done")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.is_done = False


class DeferredEmits:
    """Tuples emitted by other threads for open inputs, by input: they leave with the first ack of
    any of these, or not at all.

    Were they sent at once, a crash before the ack would have the input executed again, and
    everything emitted twice.
    """

    def __init__(self) -> None:
        # the compiled core looks whether there are any
        self.by_input: dict[int, list[_Answer]] = {}
        # of acked inputs: all, and those not given before
        self._given: dict[int, tuple[list[_Answer], list[_Answer]]] = {}

    def keep(self, inputs: Sequence[Tuple], call: Call) -> None:
        """Keep an emission until one of these inputs is acked."""
        answer = _Answer(call)
        for tup in inputs:
            self.by_input.setdefault(id(tup), []).append(answer)

    def give(self, tup: Tuple) -> None:
        """Make the emissions for this input; raises what they raise."""
        answers = self.by_input.pop(id(tup), [])
        new = [answer for answer in answers if not answer.is_done]
        for answer in new:
            answer.call()
        for answer in new:
            answer.is_done = True
        if new:
            self._given[id(tup)] = answers, new

    def take_back(self, tup: Tuple) -> None:
        """Undo an ack, and with it what it had sent."""
        if id(tup) in self._given:
            self.by_input[id(tup)], new = self._given.pop(id(tup))
            for answer in new:
                answer.is_done = False

    def drop(self, tup: Tuple) -> None:
        """Discard the tuples of a failed input."""
        for answer in self.by_input.pop(id(tup), ()):
            answer.is_done = True

    @property
    def is_settled(self) -> bool:
        """Return whether all emitted tuples are final."""
        return not self._given

    def settle(self) -> None:
        """Make emitted tuples final."""
        self._given.clear()


def anchored(anchors: Anchors) -> Sequence[Tuple]:
    """Anchors as a sequence."""
    if anchors is None:
        return ()
    return (anchors,) if isinstance(anchors, Tuple) else anchors


def roots_of(anchors: Anchors) -> Roots:
    """Roots of what is emitted with these anchors; InvalidTopologyError for what is no tuple."""
    if isinstance(anchors, Tuple):
        return anchors.roots
    try:
        return union_roots(tup.roots for tup in anchored(anchors))
    except (AttributeError, TypeError):
        raise InvalidTopologyError(
            f"anchors are tuples that execute was given, not {anchors!r:.80}; write emit(values, anchors=[tup])"
        ) from None


Changes = tuple[Sequence[Any], Sequence[Any]]
Calls = Sequence[tuple[str, tuple[Any, ...]]]


def _run_tuples(
    items: Sequence[Row | Tuple],
    start: int,
    execute: Callable[[Tuple], Any],
    outstanding: dict[int, Tuple],
    failed: list[FailedInput],
    log: list[Any],
    undo: list[Any],
    acked: list[Tuple],
    unacked: list[Tuple],
    marks: list[Any],
    kind: type[Tuple],
) -> int:
    """Execute rows, or tuples, from `start` on, each of them outstanding; stop behind the first
    call after which `failed` has anything.

    Return the index of that call's item, or the number of items. `unacked` gets the inputs before
    it that are outstanding still, `marks` its index, the lengths of log, undo and acked before it, and its
    tuple; also where a call raises. `acked` gets no input that was acked in its own call.

    Twin of the core's `run_tuples`. That one gets the runner's Ack in place of `outstanding`: an
    input that is acked at once is never put there. It also uses one tuple for all rows, unless user
    code keeps it.
    """
    for index in range(start, len(items)):
        item = items[index]
        tup = item if isinstance(item, Tuple) else kind(*item)
        outstanding[id(tup)] = tup
        marks[:] = index, len(log), len(undo), len(acked), tup
        execute(tup)
        if failed:
            return index
        if id(tup) in outstanding:
            unacked.append(tup)
        else:
            _leave_out(tup, acked, marks[3])
    marks[0] = len(items)
    return len(items)


def _leave_out(tup: Tuple, acked: list[Tuple], start: int) -> None:
    """Take an input that was acked in its own call out of the acks from a place on."""
    acked[start:] = [other for other in acked[start:] if other is not tup]


class ManualRunner(Runner):
    """Runner of a Bolt over rows, and its OutputCollector; calls from other threads are taken in by
    the loop.

    `is_answering`: what other threads emit for inputs that are open leaves with their ack.
    """

    def __init__(
        self,
        bolt: Bolt,
        emitter: Emitter,
        state: MemoryState | None,
        task: int,
        report: ReportError,
        wake: Callable[[], None],
        is_answering: bool = False,
    ) -> None:
        super().__init__(bolt)
        self._emitter = emitter
        self._emit = fast_emit(emitter)
        self._state = state
        self._task = task
        self._report = report
        self._wake = wake
        self._thread = get_ident()
        self._is_answering = is_answering
        self._answers = DeferredEmits()
        self._posts: deque[Call] = deque()
        self._is_closed = False
        self._outstanding: dict[int, Tuple] = {}
        # of inputs whose own call left them open: an ack within it leaves no trace
        self._acked: list[Tuple] = []
        self._kept: list[Tuple] = []  # inputs of the last run that their own call left open
        # what the loop puts an input into, and how to have the one that is executed in
        # `outstanding`
        self._acks: Any = self._outstanding
        self._show_current: Call = _nothing
        self._failed: list[FailedInput] = []
        # the context of what a held input emits
        self.placed: Callable[[Tuple], AbstractContextManager[None]] = _in_place
        self.held = 0  # inputs so far that were open when their execute had returned
        if core is not None:
            self._take_usual_calls()

    def _take_usual_calls(self) -> None:
        """Let the compiled core emit with one anchor and ack; it calls the methods of this class in
        all other cases.
        """
        emitter = self._emitter
        plain_emit = self.emit
        plain_ack = self.ack
        # A replay's emitter has the time of its task where others have roots.
        slot = emitter.roots_slot if emitter.roots_slot == "roots" else None
        acks = core.Ack(
            self._thread, self._outstanding, self._acked, self._answers.by_input, plain_ack
        )
        calls = {
            "emit": core.AnchoredEmit(self._thread, emitter, slot, self._emit, Tuple, plain_emit),
            "ack": acks,
        }
        vars(self).update(calls)
        self._acks = acks
        self._show_current = acks.show

    def execute_tuples(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Execute every tuple; return the inputs that raised or were failed in this run."""
        return self.execute_rows(tuples)

    def execute_rows(self, rows: Sequence[Row | Tuple]) -> list[FailedInput]:
        """Execute every row (or tuple); return the inputs that raised or were failed in this
        run.
        """
        failures: list[FailedInput] = []
        run = _run_tuples if core is None else core.run_tuples
        every = rows if type(rows) is list else list(rows)
        log = self._emitter.log
        # Some list, so that the loop needs no test: its length is taken and not used.
        undo = self._state.undo if self._state is not None else log
        holds_others = bool(self._outstanding or self._acked)
        marks: list[Any] = [0] * 5
        unacked = self._kept = []
        index = 0
        while index < len(every):
            failure = None
            try:
                index = run(
                    every,
                    index,
                    self.bolt.execute,
                    self._acks,
                    self._failed,
                    log,
                    undo,
                    self._acked,
                    unacked,
                    marks,
                    Tuple,
                )
                if index < len(every):
                    failure = next((f for failed, f in self._failed if failed is marks[4]), None)
            except USER_ERRORS as error:
                failure = failure_of(error)
            index, log_mark, undo_mark, acked_mark, tup = marks
            if index == len(every):
                break
            index += 1
            if failure is not None:
                self._undo(log_mark, undo_mark, acked_mark)
                # Raised after its own fail: one failure of one input.
                self._failed[:] = [f for f in self._failed if f[0] is not tup]
                self.forget(tup)
                if self.take_failed is None:
                    failures.append((tup, failure))
                else:
                    self.take_failed((tup, failure))
                    self._kept = unacked  # a further try was a per-job run
            elif id(tup) in self._outstanding:
                unacked.append(tup)
            else:
                _leave_out(tup, self._acked, acked_mark)
        self.held += len(unacked)
        # The usual run: each input was acked in its own call, and none waited before.
        if not holds_others and not self._failed and self._answers.is_settled:
            self._acked.clear()
            return failures
        return failures + self._sort_out(unacked)

    def unfinished(self, tuples: Sequence[Tuple]) -> list[Tuple]:
        """Inputs of this run that wait for an ack."""
        return [tup for tup in tuples if id(tup) in self._outstanding] if self._outstanding else []

    def take_unfinished(self) -> list[Tuple]:
        """Return the inputs of the last run that wait for an ack, once."""
        unacked = self._kept
        self._kept = []
        return self.unfinished(unacked)

    def forget(self, tup: Tuple) -> None:
        """Expect no ack of this input."""
        self._outstanding.pop(id(tup), None)
        self._answers.drop(tup)

    @property
    def outstanding(self) -> int:
        """Inputs that were neither acked nor failed so far."""
        return len(self._outstanding)

    @property
    def has_posts(self) -> bool:
        """Return whether other threads have posted calls."""
        return bool(self._posts)

    def take_posts(self) -> None:
        """Make the calls that other threads have posted since the last time."""
        # no more than there are now: threads may go on posting for ever
        for _ in range(len(self._posts)):
            mark = len(self._emitter.log)
            try:
                self._posts.popleft()()
            except WorkerFailedError:
                raise
            except USER_ERRORS as error:  # a grouping of the user's
                raise_out_of_memory(error)
                self._emitter.roll_back(mark)
                self.report_error(error)
        self._sort_out(())

    def emit(self, values: Any, anchors: Anchors = None, stream: str = "default") -> None:
        """Send values anchored to given tuples."""
        if get_ident() != self._thread:
            # In the emitting thread: there the error has the user's line.
            values = self.check(values, stream)
            self.post(lambda: self._answer(anchors, lambda: self.emit(values, anchors, stream)))
            return
        self._emitter.roots = roots_of(anchors)
        self._emit(values, stream)

    def emit_direct(
        self, task: int, values: Any, anchors: Anchors = None, stream: str = "default"
    ) -> None:
        """Send values to one task of a direct stream's subscriber."""
        if get_ident() != self._thread:
            values = self.check(values, stream, task)
            self.post(
                lambda: self._answer(
                    anchors, lambda: self.emit_direct(task, values, anchors, stream)
                )
            )
            return
        self._emitter.roots = roots_of(anchors)
        self._emitter.emit_direct(task, values, stream)

    def ack(self, tup: Tuple) -> None:
        """Take note that this input is done."""
        if get_ident() != self._thread:
            self.post(lambda: self.ack(tup))
            return
        self._show_current()
        if id(tup) not in self._outstanding:
            if not _is_tick(tup):
                self.report_error(
                    f"ack of a tuple that is not outstanding (acked twice, or not an input of this task): {tup!r}"
                )
        elif self._give_answers(tup):
            del self._outstanding[id(tup)]
            self._acked.append(tup)

    def fail(self, tup: Tuple, reason: str | BaseException | Failure = "") -> None:
        """Take note that this input failed."""
        if get_ident() != self._thread:
            self.post(lambda: self.fail(tup, reason))
            return
        self._show_current()
        if id(tup) not in self._outstanding:
            text = reason.text if isinstance(reason, Failure) else reason
            self.report_error(
                f"on a tick: {text}"
                if _is_tick(tup)
                else f"fail of a tuple that is not outstanding: {tup!r}"
            )
        else:
            self._failed.append((tup, verdict(reason)))

    def reset_timeout(self, tup: Tuple) -> None:
        """Let the time-out of this input's trees begin anew."""
        if get_ident() != self._thread:
            self.post(lambda: self.reset_timeout(tup))
            return
        self._show_current()
        if id(tup) in self._outstanding:
            self._emitter.renewed.append(tup.roots)
        elif not _is_tick(tup):
            self.report_error(f"reset_timeout of a tuple that is not outstanding: {tup!r}")

    def report_error(self, error: BaseException | str | Failure) -> None:
        """Record an error without failing anything."""
        self._report(report_of(error, self._emitter.component, self._task))

    def count(self, value: MetricValue, amount: float) -> None:
        """Change a metric of user code, as a blocking bolt's thread has asked for it."""
        self._emitter.note(value, amount)

    def check(self, values: Any, stream: str, task: int | None = None) -> tuple[Any, ...]:
        """Check values in the emitting thread, so that an error names its line; return them as the
        loop takes them.
        """
        return self._emitter.check(values, stream, task)

    def take_outcome(self, tup: Tuple, calls: Calls, changes: Changes | None) -> bool:
        """Take in the result of a blocking bolt's thread for one input, its calls and state
        changes, all or none; return whether.
        """
        marks = self._marks()
        try:
            with self.placed(tup):
                for method, arguments in calls:
                    getattr(self, method)(*arguments)
        except USER_ERRORS as error:  # a grouping of the user's
            self._undo(*marks)
            self.fail(tup, failure_of(error))
            return False
        self.take_changes(changes)
        return True

    def take_changes(self, changes: Changes | None) -> None:
        """Change the state as a blocking bolt's thread has changed its copy."""
        if changes is not None and self._state is not None:
            for key, value in changes[0]:
                self._state.put(key, value)
            for key in changes[1]:
                self._state.delete(key)

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop make this call; from any thread. WorkerFailedError once the worker has
        stopped: the call would never be made.
        """
        if self._is_closed:
            raise WorkerFailedError(
                f"component '{self._emitter.component}' (task {self._task}): a thread used its collector after cleanup; "
                "end threads in cleanup()"
            )
        self._posts.append(call)
        self._wake()

    def close(self) -> None:
        """Take no calls from other threads any more."""
        self._is_closed = True

    def _answer(self, anchors: Anchors, emit: Call) -> None:
        """Another thread's emission: made now, or with the ack of the first of its inputs."""
        inputs = (
            [tup for tup in anchored(anchors) if id(tup) in self._outstanding]
            if self._is_answering
            else []
        )
        if inputs:
            self._answers.keep(inputs, emit)
        else:
            emit()

    def _give_answers(self, tup: Tuple) -> bool:
        mark = len(self._emitter.log)
        try:
            with self.placed(tup):
                self._answers.give(tup)
            return True
        except USER_ERRORS as error:  # a grouping of the user's
            self._emitter.roll_back(mark)
            self.fail(tup, failure_of(error))
            return False

    def _marks(self) -> tuple[int, int, int]:
        return (
            len(self._emitter.log),
            len(self._state.undo) if self._state is not None else 0,
            len(self._acked),
        )

    def _undo(self, log_mark: int, undo_mark: int, acked_mark: int) -> None:
        self._emitter.roll_back(log_mark)
        if self._state is not None:
            self._state.roll_back(undo_mark)
        for tup in self._acked[acked_mark:]:
            self._outstanding[id(tup)] = tup
            self._answers.take_back(tup)
        del self._acked[acked_mark:]

    def _sort_out(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Split verdicts into those on this run's inputs and those on inputs held since earlier."""
        mine = {id(t) for t in tuples}
        failures: list[FailedInput] = []
        for tup, failure in self._failed:
            self.forget(tup)
            (failures if id(tup) in mine else self.late_failures).append((tup, failure))
        self.late_acks += [t for t in self._acked if id(t) not in mine]
        # The same lists as before: the compiled core has them.
        self._acked.clear()
        self._failed.clear()
        self._answers.settle()
        return failures


def _nothing() -> None:
    """Leave things as they are."""


def _in_place(tup: Tuple) -> AbstractContextManager[None]:
    return nullcontext()


def _is_tick(tup: Any) -> bool:
    return isinstance(tup, Tuple) and tup.is_tick


def verdict(reason: str | BaseException | Failure) -> Failure:
    """Return the failure that a bolt's `fail` with this reason is."""
    if isinstance(reason, Failure):
        return reason
    if isinstance(reason, BaseException):
        return failure_of(reason)
    return failure_of(reason or "failed by the bolt", FailureKind.FAILED)
