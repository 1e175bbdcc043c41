"""One spout task: calls user code for tuples, remembers the tracked ones, calls ack and fail.

Law: what is emitted, the message ids that are open for it, and the source's position are in one
commit, so a restart neither skips a message of a replayable source nor emits it twice. `ack` and
`fail` are called after the commit with the verdict, and confirmed by the next: at least once, since
user code cannot be undone. Storm's pending messages are in memory, and die with their worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkstorm.api.components import ReplayableSpout, Spout
from sparkstorm.common.errors import (
    InvalidConfigError,
    SparkStormError,
    WorkerFailedError,
)
from sparkstorm.common.model.failure import Failure
from sparkstorm.data_plane.acking.pending import MessageOutcome, Pending
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.event_time import TaskEventTime
from sparkstorm.data_plane.executor.task_observer import TaskObserver
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, describe_error, failure_of
from sparkstorm.data_plane.transport.frames import SettledRoots
from sparkstorm.data_plane.worker.counting.loop_time import TaskTime
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.open_blocks import Births
from sparkstorm.data_plane.worker.tasks.blocking_spout import (
    ThreadedSpout,
    has_callbacks,
    teller,
)
from sparkstorm.data_plane.worker.tasks.inbox import Inbox
from sparkstorm.data_plane.worker.tasks.spout_collector import SpoutCollector, as_message_id

# With doubled pauses a second of errors. Half of it gives up a source within 30 ms; with double one
# that can never answer is named ten seconds later.
_FAILURES_IN_A_ROW = 10
# Double of it would leave a source that is back without a poll for two seconds.
_LONGEST_BACK_OFF_MS = 1000
# Since the last emission. Within it the next tuple may come at any moment, and a long rest would be
# its latency. Half of it makes sources of 100 to 200 tuples/s cold between two of them; double
# polls for twice as long after each burst. A rest of a quarter of the pause took the latency over 3
# hops from 2.10 to 1.45 ms, with other changes.
_WARM_US = 10_000


class SourceRest:
    """When a source is to be asked again: after calls that had nothing, and after failed ones."""

    def __init__(self) -> None:
        self.until_ms = 0.0
        self._idle_ms = 0.0
        self._emitted_us = -_WARM_US
        self._failures = 0  # in a row

    def begin(self, now_us: int, shortest_ms: int, longest_ms: int) -> None:
        """Wait a little after an empty call, and longer each time once the source has been silent
        (Storm's progressive wait).
        """
        is_silent = now_us - self._emitted_us >= _WARM_US
        self._idle_ms = (
            min(max(shortest_ms, self._idle_ms * 2), longest_ms) if is_silent else shortest_ms / 4
        )
        self.until_ms = max(self.until_ms, now_us / 1000 + self._idle_ms)

    def end(self, now_us: int) -> None:
        """Have the next call made at once: something came."""
        self._idle_ms = 0.0
        self._emitted_us = now_us

    def back_off(self, now_ms: int) -> int:
        """Wait after a failed call, twice as long after each; return how many failed in a row."""
        self._failures += 1
        self.until_ms = now_ms + min(2**self._failures, _LONGEST_BACK_OFF_MS)
        return self._failures

    def succeed(self) -> None:
        """Take note of a call that did not fail."""
        self._failures = 0


class SourcePosition:
    """Position of a replayable source as commits write it, and what it hands over at rest."""

    def __init__(self, ask: Callable[[str], Any], check: Callable[[Any, str], Any]) -> None:
        """`ask` calls a method of the source, `check` its answer."""
        self._ask = ask
        self._check = check
        self.newest: Any = None  # as last taken or restored
        self.handed: list[Any] = []
        self.has_moved = False  # since the last commit
        self._must_hand_over = True

    def rest(self, is_resting: bool) -> None:
        """Follow the topology's status; a source that rests returns what it would hand over."""
        # A savepoint is made of resting spouts: what they hand over is written once, with the next
        # commit (decision 31).
        self._must_hand_over = is_resting
        self.handed = []

    def take_handed(self) -> list[Any]:
        """Return what a later submission needs to go on here, in a list, once the source rests;
        empty when it is known already.
        """
        if not self._must_hand_over:
            return []
        self._must_hand_over = False
        self.handed = [self._check(self._ask("hand_over"), "hand_over")]
        return self.handed

    def take(self) -> Any:
        """Return the position if it has moved since the last commit, else None."""
        # Asked only after an emission: `snapshot` may cost a source more than a tuple.
        if not self.has_moved:
            return None
        self.has_moved = False
        self._must_hand_over |= bool(self.handed)  # it has emitted while it rests, in `fail`
        self.newest = self._check(self._ask("snapshot"), "snapshot")
        return self.newest


class _Callbacks:
    """Messages whose end is committed, and whose `ack` or `fail` is to be called."""

    def __init__(self, spout: Spout) -> None:
        self.tell = teller(spout)
        # whether the source has callbacks that do anything
        self.are_heard = has_callbacks(spout.inner if isinstance(spout, ThreadedSpout) else spout)
        self.due: list[MessageOutcome] = []

    def take(self) -> list[MessageOutcome]:
        """Return what is due, and forget it."""
        # Ids come back as the user gave them: what the codec made a list is a tuple again.
        outcomes = [o._replace(message_id=as_message_id(o.message_id)) for o in self.due]
        self.due = []
        return outcomes


@dataclass(slots=True)
class _TreeCounts:
    """Trees that have ended since the counts were taken."""

    acked: int = 0
    failed: int = 0


class SpoutTask:
    """One task of a spout: its pending messages, its position and its pace."""

    def __init__(
        self,
        task: int,
        component: str,
        spout: Spout,
        emitter: Emitter,
        collector: SpoutCollector,
        pending: Pending,
        inbox: Inbox,
        births: Births,
        batch_size: int = 1,
    ) -> None:
        """`batch_size`: of trees, at the most."""
        self.task = task
        self.component = component
        self.spout = spout
        self.emitter = emitter
        self.collector = collector
        self.pending = pending
        self.inbox = inbox  # verdicts of the ackers
        self._callbacks = _Callbacks(spout)
        self.observers: list[TaskObserver] = []
        self._batch_size = batch_size
        self.is_open = False
        self.is_dry = False
        self.rest = SourceRest()
        # None: the source cannot go back
        self.position = (
            SourcePosition(self._asked, collector.checked_position)
            if isinstance(spout, ReplayableSpout)
            else None
        )
        # calls between two looks at the clock: few until the source is known to be fast
        self.pace = 1
        self._ended = _TreeCounts()
        self.spent = TaskTime()
        self.time: TaskEventTime | None = None  # None if no downstream component uses event time
        self._births = births

    @property
    def is_exhausted(self) -> bool:
        """Return whether the source has come to its end."""
        return self.is_open and bool(self._asked("is_exhausted"))

    @property
    def has_ended(self) -> bool:
        """Return whether this task will never emit again, not even to replace a tuple that
        fails.
        """
        return (
            self.time is not None
            and self.is_open
            and self._asked("has_ended")
            and not self.is_waiting
        )

    @property
    def is_waiting(self) -> bool:
        """Return whether messages are open, or `ack` or `fail` is still to return for some: it may
        emit them again.
        """
        return bool(
            len(self.pending)
            or self.pending.has_callbacks
            or self.collector.immediate
            or self._callbacks.due
            or (isinstance(self.spout, ThreadedSpout) and self.spout.has_calls)
        )

    @property
    def has_said_all(self) -> bool:
        """Return whether the end of this source was sent to all subscribers."""
        return self.time is None or self.time.outlook.has_ended or not self._asked("has_ended")

    @property
    def must_say_end(self) -> bool:
        """Return whether the source has ended, and its subscribers are still to be told."""
        return self.time is not None and not self.time.outlook.has_ended and self.has_ended

    def begin(self, now_ms: int) -> None:
        """Note the time at which trees may begin."""
        self._births.note(now_ms)

    def ask(self, epoch: Epoch, calls: int, now_ms: int) -> bool:
        """Call next_tuple up to `calls` times; return False when the source had nothing. `is_dry`:
        so did the last one.
        """
        log = self.emitter.log
        born = self.collector.born
        changes = self.emitter.changes
        next_tuple = self.spout.next_tuple
        limit = min(calls, self.pending.room)
        start = self.emitter.emitted
        immediate = self.collector.immediate
        had = len(immediate)
        self.collector.trees.size = self.pending.batch_size(self._batch_size)
        mark = born_mark = immediate_mark = change_mark = 0
        self.is_dry = False
        try:
            for _ in range(limit):
                mark = len(log)
                born_mark = len(born)
                immediate_mark = len(immediate)
                change_mark = len(changes)
                next_tuple()
                # A call that only counted a metric has emitted nothing.
                if len(born) == born_mark and len(log) - len(changes) == mark - change_mark:
                    self.is_dry = True
                    break
            # The thread's error comes as its own batch: a turn between two of them is no
            # success.
            if not (isinstance(self.spout, ThreadedSpout) and self.spout.is_failing):
                self.rest.succeed()
        except USER_ERRORS as error:
            # Of the call that raised alone: those before it in this turn stay.
            self._take_back(mark, born_mark, immediate_mark)
            self._note_failure(error, now_ms)
        # Without tracking a message is done when it is emitted.
        self._ended.acked += len(immediate) - had
        did = self.emitter.emitted > start or bool(born) or len(immediate) > had
        self.take_births(epoch, now_ms)
        epoch.rows += self.emitter.emitted - start
        self._note_moved(did)
        if isinstance(self.spout, ThreadedSpout):
            self._confirm_called(self.spout)  # in the epoch that has what the calls have emitted
        return did

    def take_births(self, epoch: Epoch, now_ms: int) -> None:
        """Track what was emitted with a message id since the last call."""
        for root, ids in self.collector.trees.take() if self.collector.born else ():
            epoch.births[root] = self.task
            self.pending.add_batch(root, ids, now_ms)

    def settle(self, verdict: SettledRoots, now_ms: int) -> dict[int, int]:
        """Take in verdicts of an acker; return the number of acked messages by latency in
        milliseconds.
        """
        self.pending.renew(verdict.renewed, now_ms)
        done = self.pending.settle(verdict.acked, (), now_ms, kept=verdict.kept)
        self._ended.acked += done.acked
        for root, failure in verdict.failed.items():
            self._ended.failed += self.pending.settle((), (root,), now_ms, failure).failed
        return done.count_by_latency

    def expire(self, now_ms: int, timeout_ms: int, low_ms: int | None, failure: Failure) -> int:
        """Fail trees that are too old; return how many."""
        late = len(self.pending.expire(now_ms, timeout_ms, low_ms, failure))
        self._ended.failed += late
        return late

    def take_counts(self) -> tuple[int, int]:
        """Return the numbers of trees that were acked and that failed since the last call."""
        taken = self._ended.acked, self._ended.failed
        self._ended = _TreeCounts()
        return taken

    def next_due_ms(self, now_ms: int, rested_ms: int, is_active: bool) -> float | None:
        """Return when to call `ack` and `fail` for messages that have ended, or `next_tuple`: at
        `rested_ms` if its wait is over.
        """
        if self.has_callbacks:
            return now_ms
        if not is_active or self.is_exhausted or not self.pending.room:
            return None
        return self.rest.until_ms if self.rest.until_ms > now_ms else rested_ms

    @property
    def has_callbacks(self) -> bool:
        """Return whether `ack` or `fail` is to be called for messages that have ended, or has
        returned on a thread.
        """
        return bool(self._callbacks.due) or (
            isinstance(self.spout, ThreadedSpout) and self.spout.has_called
        )

    def settle_commit(self) -> None:
        """Take note of a successful commit: what it settled, or emitted untracked, has ended."""
        self._callbacks.due += self.pending.take_callbacks()
        self._callbacks.due += [
            MessageOutcome(0, message_id) for message_id in self.collector.immediate
        ]
        self.collector.immediate.clear()

    def make_callbacks(self) -> bool:
        """Call `ack` and `fail` for what commits have settled; return whether they emitted
        anything.
        """
        outcomes = self._callbacks.take()
        if isinstance(self.spout, ThreadedSpout):
            self.spout.call_back(outcomes)
            self._confirm_called(self.spout)
            return False  # what these calls emit comes as a batch
        # By `ack` and `fail` a source may have changed what its position has.
        self._note_moved(self._callbacks.are_heard and bool(outcomes))
        self._show(outcomes)
        had = len(self.collector.immediate)
        for outcome in outcomes:
            self._call(lambda o=outcome: self._callbacks.tell(o))  # type: ignore[misc]
        self._ended.acked += len(self.collector.immediate) - had
        # After the calls: a death in one of them repeats it with the next owner.
        self.pending.confirm(outcomes)
        return bool(self.emitter.log or self.collector.born)

    def _confirm_called(self, spout: ThreadedSpout) -> None:
        called = spout.take_called()
        self._note_moved(self._callbacks.are_heard and bool(called))
        self._show(called)
        self.pending.confirm(called)

    def set_active(self, is_active: bool) -> None:
        """Follow the topology's status."""
        if self.position is not None:
            self.position.rest(not is_active)
        self._asked("activate" if is_active else "deactivate")

    def extent(self) -> tuple[int, int]:
        """Return (total, done) of the source in its own units; zeros when it has no such
        figures.
        """
        extent = self._asked("extent")
        try:
            total, done = extent
            return int(total), int(done)
        except (TypeError, ValueError):
            raise WorkerFailedError(
                f"spout '{self.component}': extent() returned {extent!r:.80}, not (total, done)"
            ) from None

    def restore(self, position: Any) -> None:
        """Go on from a stored position."""
        if self.position is not None and isinstance(self.spout, ReplayableSpout):
            self.position.newest = position
            self.spout.restore(position)

    def close(self) -> None:
        """Make the last callbacks, of what is committed, and close the source."""
        self.make_callbacks()
        self._call(self.spout.close)

    def _note_moved(self, has_moved: bool) -> None:
        if has_moved and self.position is not None:
            self.position.has_moved = True

    def _show(self, outcomes: Sequence[MessageOutcome]) -> None:
        for observer in self.observers:
            observer.settled(outcomes)

    def _asked(self, method: str) -> Any:
        """Return the spout's answer; WorkerFailedError when it raises, since nothing can be put in
        its place.
        """
        try:
            return getattr(self.spout, method)()
        except SparkStormError:
            raise
        except USER_ERRORS as error:
            raise WorkerFailedError(
                f"spout '{self.component}' (task {self.task}): {method}() raised {describe_error(error)}"
            ) from error

    def _call(self, callback: Callable[[], None]) -> None:
        marks = len(self.emitter.log), len(self.collector.born), len(self.collector.immediate)
        try:
            callback()
        except USER_ERRORS as error:
            self._take_back(*marks)
            self.collector.report_error(failure_of(error))

    def _take_back(self, mark: int, born_mark: int, immediate_mark: int) -> None:
        """Take back what a call emitted that raised, and its message ids: an untracked one would be
        acked without its row.
        """
        self.emitter.roll_back(mark)
        self.collector.trees.roll_back(born_mark)
        del self.collector.immediate[immediate_mark:]

    def _note_failure(self, error: BaseException, now_ms: int) -> None:
        self.collector.report_error(failure_of(error))
        failures = self.rest.back_off(now_ms)
        # A mistake of the job, which a further call would only find again. Not at the first: what
        # calls before it have emitted is committed in between.
        if isinstance(error, InvalidConfigError) and failures > 1:
            raise WorkerFailedError(
                f"spout '{self.component}' (task {self.task}): {describe_error(error)}"
            ) from error
        if failures >= _FAILURES_IN_A_ROW:
            raise WorkerFailedError(
                f"spout '{self.component}' (task {self.task}) raised {failures} times in a row: {describe_error(error)}"
            )
