"""One bolt task: calls user code row by row, undoes failed calls, keeps pending inputs.

A pending input was executed and waits for an ack, or failed and waits for its next try. It leaves
the stream, whose cursor moves on, and lives under {topology}:held:<task>, one field each, until it
is acked or parked.

Law: an input is in exactly one place: in the stream behind the cursor, in an open block, or held.
What moves it writes both ends in one commit. Left out: leaving a pending input in the stream and
moving the cursor later, as Kafka consumers do. One input that is never acked would keep everything
behind it in the store (decision 3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.topology import HOLD_STREAM, WATERMARK_STREAM
from sparkstorm.common.model.tuples import Tuple, tuples_of
from sparkstorm.common.windowing.watermarks import NEVER
from sparkstorm.data_plane.executor.column_runner import ColumnRunner
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.event_time import TaskEventTime
from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.executor.pieces import count_rows, unfold
from sparkstorm.data_plane.executor.runner import BasicRunner, FailedInput, Runner
from sparkstorm.data_plane.executor.sink_runner import SinkRunner
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.task_observer import TaskObserver
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner
from sparkstorm.data_plane.task_kit.held import Originals, PendingInput, fresh
from sparkstorm.data_plane.task_kit.task import Task
from sparkstorm.data_plane.transport.frames import Row
from sparkstorm.data_plane.worker.counting.loop_time import TaskTime
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.open_blocks import Births, BlockFeed
from sparkstorm.data_plane.worker.tasks.blocking_bolt import ThreadedBolt
from sparkstorm.data_plane.worker.tasks.call_watch import CallWatch, FailedT, RowT
from sparkstorm.data_plane.worker.tasks.held_inputs import HeldInputs
from sparkstorm.data_plane.worker.tasks.inbox import Chunk, Inbox, OlderEntries
from sparkstorm.data_plane.worker.tasks.states import Expect

_Way = Callable[[Epoch, Sequence[Row]], list[FailedInput]]


@dataclass(slots=True)
class InputCounts:
    """Inputs that were executed, and that are done, since the counts were taken."""

    executed: int = 0
    acked: int = 0


@dataclass(slots=True)
class _Turn:
    """Rows that run now."""

    originals: Originals | None = None
    sent_ms: int | None = None  # of their entry; None for rows of this worker
    began_us: int = 0


class BoltTask(Task):
    """One task of a bolt: its inbox, the open blocks that feed it, its held inputs and its
    runner.
    """

    def __init__(
        self,
        task: int,
        component: str,
        bolt: Any,
        runner: Runner,
        emitter: Emitter,
        state: MemoryState | None,
        inbox: Inbox,
        new_key: Callable[[], str],
        births: Births,
        feed: BlockFeed,
    ) -> None:
        super().__init__(task, component, bolt, emitter, state)
        self.runner = runner
        self.inbox = inbox
        self.feed = feed  # rows from tasks of this worker
        self.older_entries = OlderEntries(inbox)
        self.held = HeldInputs(runner.holds_at if isinstance(runner, TimedRunner) else None)
        self.counts = InputCounts()
        self.spent = TaskTime()
        self.is_paused = False  # by the circuit breaker
        self.oldest_ms = 0  # birth of the oldest root among the inputs of this epoch
        self.turn = _Turn()
        # Rows between two looks at the clock: few until the bolt has shown that it is fast, since
        # the first batch of a slow one would hold up every other task.
        self.pace = 1
        self.new_key = new_key  # not the entry's id: a row from an open block has none
        self.time: TaskEventTime | None = None  # none: nothing from here on uses event time
        self.observers: list[TaskObserver] = []
        self.watch: CallWatch | None = None
        self.expect: Expect | None = None  # of a lazy state
        self._all_births = births
        users_bolt = getattr(runner, "bolt", None)
        self.thread = users_bolt if isinstance(users_bolt, ThreadedBolt) else None
        self._execute_rows = self._way_of(runner, state)

    @property
    def takes_batches(self) -> bool:
        """Return whether rows run together."""
        return isinstance(self.runner, ColumnRunner)

    def execute(
        self,
        epoch: Epoch,
        rows: Sequence[Row],
        may_have_pieces: bool = False,
        keep: Callable[[Sequence[Row]], Originals | None] | None = None,
    ) -> list[FailedInput]:
        """Run rows of one channel, pieces of batches among them; returns failed ones. `keep` sees
        to their values, where these can be changed in place.

        Everything else is done or waits for its ack.
        """
        # A mark is no input of user code: it has no tree, no ack and no try.
        source = rows[0][2]
        if source.stream in (WATERMARK_STREAM, HOLD_STREAM):
            if self.time is not None:
                self.time.hear(rows)
            return []
        if source.is_again and self.time is not None:
            with self.time.outlook.at(self.time.outlook.heard_from(source), self.emitter.log):
                return self._execute(epoch, rows, may_have_pieces, keep)
        return self._execute(epoch, rows, may_have_pieces, keep)

    def placed(self, tup: Tuple) -> AbstractContextManager[None]:
        """Return the context in which a held input emits: where its first try was."""
        if self.time is None:
            return nullcontext()
        return self.time.outlook.at([(self.held.key_of(tup),)], self.emitter.log)

    def _execute(
        self,
        epoch: Epoch,
        rows: Sequence[Row],
        may_have_pieces: bool,
        keep: Callable[[Sequence[Row]], Originals | None] | None,
    ) -> list[FailedInput]:
        # A batch reaches a bolt of rows as rows; so does it where an observer sees each row.
        is_watched = self._is_watched
        has_rows = is_watched or not self.takes_batches
        if may_have_pieces and has_rows:
            rows = unfold(rows)
        self.turn.originals = None if keep is None else keep(rows)
        # A lazy state reads the keys of the block at once: one round trip instead of one per key.
        if has_rows and self.expect is not None:
            self.expect(rows)
        if is_watched:
            return self.execute_tuples(epoch, tuples_of(rows))
        return self._execute_rows(epoch, rows)

    def _way_of(self, runner: Runner, state: MemoryState | None) -> _Way:
        """Return the method that runs rows which no observer sees, as the runner takes them."""
        # Tuples are made only for runners and observers that need them: the fast ways use one
        # object for all rows unless user code keeps it, 90 ns a row against 350 (decision 52).
        if isinstance(runner, ColumnRunner):
            return partial(self._execute_columns, runner)
        if isinstance(runner, ManualRunner):
            return partial(self._execute_by_hand, runner)
        if isinstance(runner, BasicRunner | TimedRunner):
            return partial(self._execute_in_turn, runner, _kept_state(runner, state))
        return lambda epoch, rows: self.execute_tuples(epoch, tuples_of(rows))

    def _execute_columns(
        self, runner: ColumnRunner, epoch: Epoch, rows: Sequence[Row]
    ) -> list[FailedInput]:
        """Run rows and pieces of batches of a bolt that takes batches."""
        count = count_rows(rows)
        failed = self._run(epoch, runner.execute_columns, rows, count)
        self.counts.acked += count - len(failed)
        return [(Tuple(*row), failure) for row, failure in failed]

    def _execute_in_turn(
        self,
        runner: BasicRunner | TimedRunner,
        kept_state: MemoryState | None,
        epoch: Epoch,
        rows: Sequence[Row],
    ) -> list[FailedInput]:
        """Run rows that are done when their call has returned."""
        failed = self._run(epoch, runner.execute_rows, rows, len(rows))
        self.counts.acked += len(rows) - len(failed)
        if kept_state is not None:
            # Rows are done or undone now. Runners with calls of another kind have marks of their
            # own, and a lazy state finds by its log what must stay in memory.
            kept_state.keep_changes()
        return [(Tuple(*rows[index]), failure) for index, failure in failed]

    def _execute_by_hand(
        self, runner: ManualRunner, epoch: Epoch, rows: Sequence[Row]
    ) -> list[FailedInput]:
        """Run new rows of a bolt that acks: tuples live on for those that it does not ack at
        once.
        """
        failures = self._run(epoch, runner.execute_rows, rows, len(rows))
        waiting = runner.take_unfinished()
        self.counts.acked += len(rows) - len(failures) - len(waiting)
        self._hold_all(waiting)
        return failures

    def execute_tuples(self, epoch: Epoch, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Run tuples, new ones or held ones that are tried again; returns failed ones."""
        codec = self.inbox.codec
        came = [fresh(codec, tup.values) for tup in tuples] if self._is_watched else ()
        failures = self._run(epoch, self.runner.execute_tuples, tuples, len(tuples))
        waiting = self.runner.unfinished(tuples)
        self.counts.acked += len(tuples) - len(failures) - len(waiting)
        for observer in self.observers:
            observer.executed(tuples, failures, waiting, came)
        self._hold_all(waiting)
        return failures

    def _run(
        self,
        epoch: Epoch,
        run: Callable[[Sequence[RowT]], list[FailedT]],
        rows: Sequence[RowT],
        count: int,
    ) -> list[FailedT]:
        """Run so many rows, counted and under the bolt's watch."""
        self.counts.executed += count
        epoch.rows += count
        return run(rows) if self.watch is None else self.watch.call(run, rows)

    def _hold_all(self, waiting: Iterable[Tuple]) -> None:
        for tup in waiting:
            # One that is held already is tried again, and keeps its record with its tries.
            if self.held.key_of(tup) is None:
                self.hold(self.pending(tup))

    def pending(self, tup: Tuple) -> PendingInput:
        """Return the record of an input that is not done."""
        originals = self.turn.originals
        original = tup.values if originals is None else originals.of(tup.values)
        return PendingInput(tup, 0, self.oldest_ms, self.new_key(), original)

    def resume(self, last_entry: str, held: Iterable[PendingInput], version: int) -> None:
        """Go on where a former owner has stopped: newest entry in its stream, held inputs, version
        of its state's form.
        """
        self.older_entries.resume(last_entry)
        # Marks wait for those that have failed, whose holds are restored. One that was open when
        # the former owner ended runs as if for the first time, and follows the clock of the rows
        # before it.
        for pending in held:
            self.held.keep(pending, self.turn.began_us)
        self.held.changed.clear()
        if self.time is not None:
            self.time.outlook.keep_holds(self.held.by_key)
        if self.state is not None:
            self.stored_version = version

    def begin(self, oldest_ms: int) -> None:
        """Note that inputs with this oldest root are about to run; their effects may descend from
        held inputs as well.
        """
        oldest_ms = self.held.oldest_ms(oldest_ms)
        self.oldest_ms = min(self.oldest_ms or oldest_ms, oldest_ms)
        self._all_births.note(self.oldest_ms)

    def begin_rows(self, oldest_ms: int, sent_ms: int | None, now_us: int) -> None:
        """Rows with this oldest root, of an entry sent then or (None) of this worker, run from now
        on.
        """
        self.begin(oldest_ms)
        self.turn.sent_ms = sent_ms
        self.turn.began_us = now_us

    @property
    def users_state(self) -> MemoryState | None:
        """Return the state that user code works on: of a bolt with a thread, a copy."""
        return self.state if self.thread is None or self.thread.state is None else self.thread.state

    @property
    def _is_watched(self) -> bool:
        """Return whether an observer sees every input."""
        # Most tasks have none: without the first test each turn pays for a generator.
        return bool(self.observers) and any(observer.sees_inputs for observer in self.observers)

    def tick(self, epoch: Epoch, tick: Tuple) -> list[Failure]:
        """Run a tick; returns why it failed. A tick needs no ack and does not outlive the call."""
        self.counts.executed += 1
        epoch.rows += 1
        failures = self.execute_tick(tick)
        for observer in self.observers:
            observer.executed([tick], failures, (), [tick.values])
        return [failure for _, failure in failures]

    def hold(self, held: PendingInput, failed: tuple[int, int] | None = None) -> None:
        """Keep an input that is not done; `failed`: which of how many failed calls of this turn it
        is.
        """
        self.held.keep(held, self.turn.began_us)
        if self.time is not None and (held.due_ms is not None or held.tuple.source.is_again):
            self.time.outlook.hold((held.key,), failed)

    @property
    def watermark_ms(self) -> int:
        """Return the event time up to which windows and timers may fire."""
        heard_ms = NEVER if self.time is None else self.time.heard_ms
        return self.held.hold_back(heard_ms)

    def let_go(self, key: str) -> PendingInput:
        """Forget a held input; the next commit forgets it too."""
        if self.time is not None:
            self.time.outlook.release((key,))
        return self.held.let_go(key)

    def finish(self, key: str) -> PendingInput:
        """Drop a held input that is done."""
        held = self.let_go(key)
        self.held.done_since.append(held.since_us)
        return held

    def finish_late(self, tup: Tuple) -> PendingInput | None:
        """Drop a held input that was acked since; None when it is not held any more."""
        key = self.held.key_of(tup)
        if key is None:
            return None
        self.counts.acked += 1
        return self.finish(key)

    def consume(self, chunk: Chunk, rows: int, origin: int) -> None:
        """Mark the next rows of its oldest entry as done; `origin` names this process in the
        entries that it has written.
        """
        self.inbox.consume(chunk, rows)
        self.older_entries.note_consumed(chunk, origin)

    def settle(self) -> None:
        """Take note of a successful commit."""
        self.oldest_ms = 0

    def take_counts(self) -> tuple[int, int, int]:
        """Return the numbers of inputs executed, of those done, and of dead letters put back, since
        the last call.
        """
        counts = self.counts
        self.counts = InputCounts()
        return counts.executed, counts.acked, self.inbox.take_replayed()

    def take_version(self) -> dict[str, Any]:
        """Return the journal's field of the version in which its state is written, when that has
        changed.
        """
        if self.stored_version == self.state_version:
            return {}
        self.stored_version = self.state_version
        return {"v": self.stored_version}

    @property
    def is_full(self) -> bool:
        """Return whether this task may not run now: it is paused, or a blocking bolt's thread has
        enough to do.
        """
        return self.is_paused or (self.thread is not None and self.thread.is_full)

    @property
    def is_thread_busy(self) -> bool:
        """Return whether a blocking bolt's thread has rows, or their outcomes are not taken in
        yet.
        """
        return self.thread is not None and self.thread.is_busy

    @property
    def queued(self) -> Collection[int]:
        """Return Python's ids of the tuples that wait for the bolt's thread, or are with it."""
        return () if self.thread is None else self.thread.queued

    def next_due_ms(self) -> int | None:
        """Return when the next try is due, or a sink's epoch ends; None while a bolt's thread is
        busy (it wakes the loop).
        """
        due_ms = self.held.next_due_ms()
        # A sink's epoch ends by the clock also when no row comes any more.
        if due_ms is None:
            return self.runner.next_due_ms() if isinstance(self.runner, SinkRunner) else None
        return None if self.is_full else due_ms

    @property
    def is_waiting(self) -> bool:
        """Return whether anything of this task is in memory and not done."""
        if self.inbox.chunks or self.held.by_key or self.feed:
            return True
        # A window that is due is work too: a run must not end before its last windows have fired.
        is_firing = self.time is not None and self.time.is_firing
        return is_firing or (isinstance(self.runner, SinkRunner) and self.runner.is_waiting)

    @property
    def is_unchanged(self) -> bool:
        """Return whether nothing that its journal keeps can have changed since the last commit."""
        return (
            self.time is None
            and (self.state is None or not self.state.has_changes)
            and not isinstance(self.runner, SinkRunner)
        )

    @property
    def has_ended(self) -> bool:
        """Return whether this task will never emit again: all senders have ended, and no input is
        left.
        """
        return (
            self.time is not None
            and self.time.nobody_sends
            and not self.is_waiting
            and not self.is_thread_busy
        )


def _kept_state(runner: Runner, state: MemoryState | None) -> MemoryState | None:
    """Return the state whose changes nothing undoes once a turn has ended."""
    return state if type(state) is MemoryState and type(runner) is BasicRunner else None
