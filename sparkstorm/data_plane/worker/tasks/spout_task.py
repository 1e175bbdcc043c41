"""One spout task: calls user code for tuples, remembers the tracked ones, calls ack and fail.

Law: what is emitted, the message ids that are open for it, and the source's position are in one
commit, so a restart neither skips a message of a replayable source nor emits it twice. `ack` and
`fail` are called after the commit with the verdict, and confirmed by the next: at least once, since
user code cannot be undone. Storm's pending messages are in memory, and die with their worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparkstorm.api.components import ReplayableSpout, Spout
from sparkstorm.common.errors import (
    CodecError,
    InvalidConfigError,
    SparkStormError,
    WorkerFailedError,
)
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.values.codec import INT_MAX, INT_MIN, Codec
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.data_plane.acking.new_trees import NewTrees
from sparkstorm.data_plane.acking.pending import MessageOutcome, Pending
from sparkstorm.data_plane.executor.column_runner import BatchEmitter
from sparkstorm.data_plane.executor.emitter import Emitter, fast_emit
from sparkstorm.data_plane.executor.event_time import TaskEventTime
from sparkstorm.data_plane.executor.runner import ReportError, report_of
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


class SpoutCollector:
    """SpoutOutputCollector: every tracked emission is a new root, that of the next member of a
    batch.
    """

    __slots__ = (
        "_batches",
        "_codec",
        "_emit",
        "_emitter",
        "_expect_batches",
        "_new_root",
        "_report",
        "_task",
        "born",
        "emit",
        "immediate",
        "trees",
    )

    def __init__(
        self,
        emitter: Emitter,
        task: int,
        draw_root: Callable[[], int] | None,
        report: ReportError,
        codec: Codec,
        expect_batches: Callable[[], None],
    ) -> None:
        self._emitter = emitter
        self._codec = codec
        self._task = task
        self._expect_batches = expect_batches
        self._batches: BatchEmitter | None = None
        self.trees = NewTrees(draw_root)
        # None: nothing is tracked
        self._new_root = None if draw_root is None else self.trees.next_root
        self._report = report
        self.born = self.trees.ids
        self._emit = fast_emit(emitter)
        # message ids of untracked emissions: acked at once, as Storm does without ackers
        self.immediate: list[Any] = []
        self.emit = self._emit_plainly
        if core is not None and draw_root is not None:
            self.emit = core.SpoutEmit(
                emitter, emitter.roots_slot, self.trees, self.born, self._emit, self._emit_plainly
            )

    def _emit_plainly(self, values: Any, message_id: Any = None, stream: str = "default") -> None:
        """Send values to every subscriber of a stream."""
        if message_id is None:
            self._emitter.roots = 0
            self._emit(values, stream)
            return
        # The usual id needs no look into the codec: this is called for every tuple.
        if type(message_id) is not int or not INT_MIN <= message_id <= INT_MAX:
            message_id = self._checked(message_id)
        if self._new_root is None:
            self._emitter.roots = 0
            self._emit(values, stream)
            # After the emit: one that raises leaves no message that would be acked.
            self.immediate.append(message_id)
        else:
            self._emitter.roots = self._new_root()
            self._emit(values, stream)
            self.born.append(message_id)

    def emit_direct(
        self, task: int, values: Any, message_id: Any = None, stream: str = "default"
    ) -> None:
        """Send values to one task of a direct stream's subscriber."""
        if message_id is not None:
            message_id = self._checked(message_id)
        self._emitter.roots = root = self._root(message_id)
        self._emitter.emit_direct(task, values, stream)
        self._note(root, message_id)

    def emit_batch(self, batch: Any, message_id: Any = None, stream: str = "default") -> None:
        """Send every row of an Arrow batch, all under one message id."""
        if self._batches is None:
            self._batches = BatchEmitter(self._emitter)
            self._expect_batches()
        if message_id is not None:
            message_id = self._checked(message_id)
        self._emitter.roots = root = self._root(message_id)
        try:
            self._batches.emit_batch(batch, stream)
        except BaseException:
            # some of its rows may stay, and must not be those of the next message too
            self.trees.end_batch()
            raise
        self._note(root, message_id)

    def keep_position(self, message_id: Any) -> None:
        """Begin a tree without tuples: it is done with the next commit, which has the source's
        position.
        """
        message_id = self._checked(message_id)
        if self._new_root is None:
            self.immediate.append(message_id)
        else:
            self.trees.begin_alone()
            self.born.append(message_id)

    def count(self, value: MetricValue, amount: float) -> None:
        """Change a metric of user code, as a blocking spout's thread has asked for it."""
        self._emitter.note(value, amount)

    def check(
        self, values: Any, message_id: Any, stream: str, task: int | None = None
    ) -> tuple[tuple[Any, ...], Any]:
        """Check values in the emitting thread, so that an error names its line; return them as the
        loop takes them.
        """
        return self._emitter.check(
            values, stream, task
        ), None if message_id is None else self._checked(message_id)

    def report_error(self, error: BaseException | str | Failure) -> None:
        """Record an error without failing anything."""
        self._report(report_of(error, self._emitter.component, self._task))

    def checked_position(self, position: Any, method: str = "snapshot") -> Any:
        """A position that can be written, or WorkerFailedError: the spout could not go on from it
        after a crash.
        """
        try:
            return self._codec.normalise(position)
        except CodecError as error:
            raise WorkerFailedError(
                f"spout '{self._emitter.component}': {method}() returned {error}"
            ) from error

    def _checked(self, message_id: Any) -> Any:
        """The id as `ack` and `fail` will be given it, also by a later owner: from the codec's
        closed set.
        """
        if type(message_id) is int and INT_MIN <= message_id <= INT_MAX:
            return message_id
        try:
            return as_message_id(self._codec.normalise(message_id))
        except CodecError as error:
            raise CodecError(
                f"component '{self._emitter.component}', message id: {error}"
            ) from error

    def _root(self, message_id: Any) -> int:
        return 0 if message_id is None or self._new_root is None else self._new_root()

    def _note(self, root: int, message_id: Any) -> None:
        if root:
            self.born.append(message_id)
        elif message_id is not None:
            self.immediate.append(message_id)


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
        self._tell = teller(spout)
        self._is_told = has_callbacks(spout.inner if isinstance(spout, ThreadedSpout) else spout)
        self.observers: list[TaskObserver] = []
        self._batch_size = batch_size
        self.is_open = False
        self.is_active = False
        self.is_dry = False
        self.wait_until_ms = 0.0
        # calls between two looks at the clock: few until the source is known to be fast
        self.pace = 1
        self.acked = self.failed = 0
        self.spent = TaskTime()
        self.time: TaskEventTime | None = None  # None if no downstream component uses event time
        self._births = births
        self._idle_ms = 0.0
        self._emitted_us = -_WARM_US
        self._failures = 0
        self._position: Any = None
        self._has_moved = False
        self._must_hand_over = True
        self.handed: list[Any] = []
        self._due: list[MessageOutcome] = []  # callbacks of messages whose end is committed

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
            or self._due
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
                self._failures = 0
        except USER_ERRORS as error:
            # Of the call that raised alone: those before it in this turn stay.
            self._take_back(mark, born_mark, immediate_mark)
            self._note_failure(error, now_ms)
        # Without tracking a message is done when it is emitted.
        self.acked += len(immediate) - had
        did = self.emitter.emitted > start or bool(born) or len(immediate) > had
        self.take_births(epoch, now_ms)
        epoch.rows += self.emitter.emitted - start
        self._has_moved |= did
        if isinstance(self.spout, ThreadedSpout):
            self._confirm_called(self.spout)  # in the epoch that has what the calls have emitted
        return did

    def take_births(self, epoch: Epoch, now_ms: int) -> None:
        """Track what was emitted with a message id since the last call."""
        for root, ids in self.collector.trees.take() if self.collector.born else ():
            epoch.births[root] = self.task
            self.pending.add_batch(root, ids, now_ms)

    def rest(self, now_us: int, shortest_ms: int, longest_ms: int) -> None:
        """Wait a little after an empty call, and longer each time once the source has been silent
        (Storm's progressive wait).
        """
        is_silent = now_us - self._emitted_us >= _WARM_US
        self._idle_ms = (
            min(max(shortest_ms, self._idle_ms * 2), longest_ms) if is_silent else shortest_ms / 4
        )
        self.wait_until_ms = max(self.wait_until_ms, now_us / 1000 + self._idle_ms)

    def wake(self, now_us: int) -> None:
        """Have the next call made at once: something came."""
        self._idle_ms = 0.0
        self._emitted_us = now_us

    def settle(self, verdict: SettledRoots, now_ms: int) -> list[int]:
        """Take in verdicts of an acker; return complete latencies in milliseconds."""
        self.pending.renew(verdict.renewed, now_ms)
        done = self.pending.settle(verdict.acked, (), now_ms, kept=verdict.kept)
        self.acked += done.acked
        for root, failure in verdict.failed.items():
            self.failed += self.pending.settle((), (root,), now_ms, failure).failed
        return done.latencies_ms

    def expire(self, now_ms: int, timeout_ms: int, low_ms: int | None, failure: Failure) -> int:
        """Fail trees that are too old; return how many."""
        late = len(self.pending.expire(now_ms, timeout_ms, low_ms, failure))
        self.failed += late
        return late

    def take_counts(self) -> tuple[int, int]:
        """Return the numbers of trees that were acked and that failed since the last call."""
        taken = self.acked, self.failed
        self.acked = self.failed = 0
        return taken

    def next_due_ms(self, now_ms: int, rested_ms: int, is_active: bool) -> float | None:
        """Return when to call `ack` and `fail` for messages that have ended, or `next_tuple`: at
        `rested_ms` if its wait is over.
        """
        if self.has_callbacks:
            return now_ms
        if not is_active or self.is_exhausted or not self.pending.room:
            return None
        return self.wait_until_ms if self.wait_until_ms > now_ms else rested_ms

    @property
    def has_callbacks(self) -> bool:
        """Return whether `ack` or `fail` is to be called for messages that have ended, or has
        returned on a thread.
        """
        return bool(self._due) or (isinstance(self.spout, ThreadedSpout) and self.spout.has_called)

    def settle_commit(self) -> None:
        """Take note of a successful commit: what it settled, or emitted untracked, has ended."""
        self._due += self.pending.take_callbacks()
        self._due += [MessageOutcome(0, message_id) for message_id in self.collector.immediate]
        self.collector.immediate.clear()

    def make_callbacks(self) -> bool:
        """Call `ack` and `fail` for what commits have settled; return whether they emitted
        anything.
        """
        # Ids come back as the user gave them: what the codec made a list is a tuple again.
        outcomes = [o._replace(message_id=as_message_id(o.message_id)) for o in self._due]
        self._due = []
        if isinstance(self.spout, ThreadedSpout):
            self.spout.call_back(outcomes)
            self._confirm_called(self.spout)
            return False  # what these calls emit comes as a batch
        # By `ack` and `fail` a source may have changed what its position has.
        self._has_moved |= self._is_told and bool(outcomes)
        self._show(outcomes)
        had = len(self.collector.immediate)
        for outcome in outcomes:
            self._call(lambda o=outcome: self._tell(o))  # type: ignore[misc]
        self.acked += len(self.collector.immediate) - had
        # After the calls: a death in one of them repeats it with the next owner.
        self.pending.confirm(outcomes)
        return bool(self.emitter.log or self.collector.born)

    def _confirm_called(self, spout: ThreadedSpout) -> None:
        called = spout.take_called()
        self._has_moved |= self._is_told and bool(called)
        self._show(called)
        self.pending.confirm(called)

    def set_active(self, is_active: bool) -> None:
        """Follow the topology's status; a spout that rests returns what it would hand over."""
        # A savepoint is made of resting spouts: what they hand over is written once, with the next
        # commit (decision 31).
        self._must_hand_over = not is_active
        self.handed = []
        self._asked("activate" if is_active else "deactivate")

    def take_handed(self) -> list[Any]:
        """Return what a later submission needs to go on here, in a list, once the spout rests;
        empty when it is known already.
        """
        if not self._must_hand_over or not isinstance(self.spout, ReplayableSpout):
            return []
        self._must_hand_over = False
        self.handed = [self.collector.checked_position(self._asked("hand_over"), "hand_over")]
        return self.handed

    def take_position(self) -> Any:
        """The source's position if it has moved since the last commit, else None."""
        # Asked only after an emission: `snapshot` may cost a source more than a tuple.
        if not self._has_moved or not isinstance(self.spout, ReplayableSpout):
            return None
        self._has_moved = False
        self._must_hand_over |= bool(self.handed)  # it has emitted while it rests, in `fail`
        self._position = self.collector.checked_position(self._asked("snapshot"))
        return self._position

    @property
    def position(self) -> Any:
        """The position as last taken or restored."""
        return self._position

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
        self._position = position
        if isinstance(self.spout, ReplayableSpout):
            self.spout.restore(position)

    def close(self) -> None:
        """Make the last callbacks, of what is committed, and close the source."""
        self.make_callbacks()
        self._call(self.spout.close)

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
        self._failures += 1
        self.collector.report_error(failure_of(error))
        # A mistake of the job, which a further call would only find again. Not at the first: what
        # calls before it have emitted is committed in between.
        if isinstance(error, InvalidConfigError) and self._failures > 1:
            raise WorkerFailedError(
                f"spout '{self.component}' (task {self.task}): {describe_error(error)}"
            ) from error
        if self._failures >= _FAILURES_IN_A_ROW:
            raise WorkerFailedError(
                f"spout '{self.component}' (task {self.task}) raised {self._failures} times in a row: {describe_error(error)}"
            )
        self.wait_until_ms = now_ms + min(2**self._failures, _LONGEST_BACK_OFF_MS)


def as_message_id(value: Any) -> Any:
    """A message id as users hand it in: what the codec made a list is a tuple again, so that it can
    be a key.
    """
    return tuple(as_message_id(item) for item in value) if isinstance(value, list) else value
