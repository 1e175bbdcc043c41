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

import heapq
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from sparkstorm.data_plane.task_kit.held import Originals, PendingInput, fresh, has_containers
from sparkstorm.data_plane.task_kit.task import Task
from sparkstorm.data_plane.transport.base import entry_order
from sparkstorm.data_plane.transport.frames import Row
from sparkstorm.data_plane.transport.progress import EdgeCounts
from sparkstorm.data_plane.worker.counting.loop_time import TaskTime
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.open_blocks import Births, BlockFeed
from sparkstorm.data_plane.worker.tasks.blocking_bolt import ThreadedBolt
from sparkstorm.data_plane.worker.tasks.call_watch import CallWatch, FailedT, RowT
from sparkstorm.data_plane.worker.tasks.inbox import Chunk, Inbox
from sparkstorm.data_plane.worker.tasks.states import Expect


class BoltTask(Task):
    """One task of a bolt: its inbox, the open blocks that feed it, its held inputs and its
    runner.
    """

    _originals: Originals | None = None  # of the rows that run

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
        self.held: dict[str, PendingInput] = {}
        self.changed_held: dict[str, None] = {}
        self.released: list[str] = []
        self.retries: list[tuple[int, str]] = []
        # since the counts were brought up to date; acked: inputs that are done
        self.executed = self.acked = 0
        self.spent = TaskTime()
        # counts of its inputs by component and stream
        self.flow_by_channel: dict[tuple[str, str], EdgeCounts] = {}
        self.is_paused = False  # by the circuit breaker
        self.oldest_ms = 0  # birth of the oldest root among the inputs of this epoch
        # Entries of this worker's own tasks that lie in this task's stream: later rows queue behind
        # them, or they would overtake.
        self.spilled = 0
        # newest frame of former owners; until it is consumed, local rows queue behind it too
        self.caught_up_at = (0, 0)
        self._is_caught_up = False
        # of the entry that is executed; None for rows of this worker
        self.sent_ms: int | None = None
        # Rows between two looks at the clock: few until the bolt has shown that it is fast, since
        # the first batch of a slow one would hold up every other task.
        self.pace = 1
        self.new_key = new_key  # not the entry's id: a row from an open block has none
        self.time: TaskEventTime | None = None  # none: nothing from here on uses event time
        self.observers: list[TaskObserver] = []
        self.watch: CallWatch | None = None
        self.expect: Expect | None = None  # of a lazy state
        self._all_births = births
        self._thread = (
            runner.bolt if isinstance(getattr(runner, "bolt", None), ThreadedBolt) else None
        )
        self._rows_runner = runner if isinstance(runner, BasicRunner | TimedRunner) else None
        self._kept_state = _kept_state(runner, state)
        self._manual_runner = runner if isinstance(runner, ManualRunner) else None
        self._columns_runner = runner if isinstance(runner, ColumnRunner) else None
        self.began_us = 0  # when the call under way began
        # begin of the first execute of inputs that are done since the meter has looked
        self.done_since: list[int] = []
        self._held_by_tuple: dict[int, str] = {}
        # heaps over held inputs, by birth and by event time (where there are windows or timers);
        # those that are not held any more are dropped when they surface
        self._births: list[tuple[int, str]] = []
        self._held_times: list[tuple[int, str]] = []

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
        return self.time.outlook.at([(self.held_key(tup),)], self.emitter.log)

    def _execute(
        self,
        epoch: Epoch,
        rows: Sequence[Row],
        may_have_pieces: bool,
        keep: Callable[[Sequence[Row]], Originals | None] | None,
    ) -> list[FailedInput]:
        # A batch reaches a bolt of rows as rows; so does it where an observer sees each row.
        if may_have_pieces and (self._columns_runner is None or self._is_watched):
            rows = unfold(rows)
        self._originals = None if keep is None else keep(rows)
        if self._columns_runner is not None and not self._is_watched:
            count = count_rows(rows)
            lost = self._run(epoch, self._columns_runner.execute_columns, rows, count)
            self.acked += count - len(lost)
            return [(Tuple(*row), failure) for row, failure in lost]
        # A lazy state reads the keys of the block at once: one round trip instead of one per key.
        if self.expect is not None:
            self.expect(rows)
        if self._is_watched:
            return self.execute_tuples(epoch, tuples_of(rows))
        # Tuples are made only for runners and observers that need them: the fast ways use one
        # object for all rows unless user code keeps it, 90 ns a row against 350 (decision 52).
        if self._manual_runner is not None:
            return self._execute_by_hand(epoch, self._manual_runner, rows)
        if self._rows_runner is None:
            return self.execute_tuples(epoch, tuples_of(rows))
        failed = self._run(epoch, self._rows_runner.execute_rows, rows, len(rows))
        self.acked += len(rows) - len(failed)
        if self._kept_state is not None:
            # Rows are done or undone now. Runners with calls of another kind have marks of their
            # own, and a lazy state finds by its log what must stay in memory.
            self._kept_state.keep_changes()
        return [(Tuple(*rows[index]), failure) for index, failure in failed]

    def execute_tuples(self, epoch: Epoch, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Run tuples, new ones or held ones that are tried again; returns failed ones."""
        codec = self.inbox.codec
        came = [fresh(codec, tup.values) for tup in tuples] if self._is_watched else ()
        failures = self._run(epoch, self.runner.execute_tuples, tuples, len(tuples))
        waiting = self.runner.unfinished(tuples)
        self.acked += len(tuples) - len(failures) - len(waiting)
        for observer in self.observers:
            observer.executed(tuples, failures, waiting, came)
        self._hold_all(waiting)
        return failures

    def _execute_by_hand(
        self, epoch: Epoch, runner: ManualRunner, rows: Sequence[Row]
    ) -> list[FailedInput]:
        """Run new rows of a bolt that acks: tuples live on for those that it does not ack at
        once.
        """
        failures = self._run(epoch, runner.execute_rows, rows, len(rows))
        waiting = runner.take_unfinished()
        self.acked += len(rows) - len(failures) - len(waiting)
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
        self.executed += count
        epoch.rows += count
        return run(rows) if self.watch is None else self.watch.call(run, rows)

    def _hold_all(self, waiting: Iterable[Tuple]) -> None:
        for tup in waiting:
            # One that is held already is tried again, and keeps its record with its tries.
            if id(tup) not in self._held_by_tuple:
                self.hold(self.pending(tup))

    def pending(self, tup: Tuple) -> PendingInput:
        """Return the record of an input that is not done."""
        original = tup.values if self._originals is None else self._originals.of(tup.values)
        return PendingInput(tup, 0, self.oldest_ms, self.new_key(), original)

    def renew(self, held: PendingInput) -> None:
        """Give a failed input the values that it had before user code had them."""
        if has_containers(held.original):
            key = self._held_by_tuple.pop(id(held.tuple), None)
            values = fresh(self.inbox.codec, held.original)
            held.tuple = Tuple(values, held.tuple.roots, held.tuple.source)
            if key is not None:
                self._held_by_tuple[id(held.tuple)] = key

    def resume(self, last_entry: str, held: Iterable[PendingInput], version: int) -> None:
        """Go on where a former owner has stopped: newest entry in its stream, held inputs, version
        of its state's form.
        """
        self.caught_up_at = entry_order(last_entry)
        self._is_caught_up = False
        # Marks wait for those that have failed, whose holds are restored. One that was open when
        # the former owner ended runs as if for the first time, and follows the clock of the rows
        # before it.
        for pending in held:
            self._keep(pending)
        self.changed_held.clear()
        if self.time is not None:
            self.time.outlook.keep_holds(self.held)
        if self.state is not None:
            self.stored_version = version

    def begin(self, oldest_ms: int) -> None:
        """Note that inputs with this oldest root are about to run; their effects may descend from
        held inputs as well.
        """
        if self.held:
            oldest_ms = min(oldest_ms, self._first_held(self._births))
        self.oldest_ms = min(self.oldest_ms or oldest_ms, oldest_ms)
        self._all_births.note(self.oldest_ms)

    def begin_rows(self, oldest_ms: int, sent_ms: int | None, now_us: int) -> None:
        """Rows with this oldest root, of an entry sent then or (None) of this worker, run from now
        on.
        """
        self.begin(oldest_ms)
        self.sent_ms = sent_ms
        self.began_us = now_us

    def end_rows(self, took_us: int, pace: int) -> None:
        """Take note of the time that they took, and how many to run next time."""
        self.spent.add(took_us)
        self.pace = pace

    def set_paused(self, is_paused: bool) -> None:
        """Pause, or go on, as the circuit breaker decides."""
        self.is_paused = is_paused

    @property
    def users_state(self) -> MemoryState | None:
        """Return the state that user code works on: of a bolt with a thread, a copy."""
        return (
            self.state if self._thread is None or self._thread.state is None else self._thread.state
        )

    @property
    def has_thread(self) -> bool:
        """Return whether its inputs run on its own thread."""
        return self._thread is not None

    def take_thread_calls_us(self) -> list[int]:
        """Return the time of each call on a blocking bolt's thread that has ended since it was
        asked last, to a millisecond.
        """
        calls_ms = () if self._thread is None else self._thread.take_calls_ms()
        return [1000 * call_ms for call_ms in calls_ms]

    @property
    def takes_batches(self) -> bool:
        """Return whether rows run together as a batch."""
        return self._columns_runner is not None

    @property
    def _is_watched(self) -> bool:
        """Return whether an observer sees every input."""
        # Most tasks have none: without the first test each turn pays for a generator.
        return bool(self.observers) and any(observer.sees_inputs for observer in self.observers)

    def tick(self, epoch: Epoch, tick: Tuple) -> list[Failure]:
        """Run a tick; returns why it failed. A tick needs no ack and does not outlive the call."""
        self.executed += 1
        epoch.rows += 1
        failures = self.execute_tick(tick)
        for observer in self.observers:
            observer.executed([tick], failures, (), [tick.values])
        return [failure for _, failure in failures]

    def hold(self, held: PendingInput, failed: tuple[int, int] | None = None) -> None:
        """Keep an input that is not done; `failed`: which of how many failed calls of this turn it
        is.
        """
        self._keep(held)
        if self.time is not None and (held.due_ms is not None or held.tuple.source.is_again):
            self.time.outlook.hold((held.key,), failed)

    def _keep(self, held: PendingInput) -> None:
        if held.key not in self.held:
            heapq.heappush(self._births, (held.born_ms, held.key))
            if isinstance(self.runner, TimedRunner):
                heapq.heappush(self._held_times, (self.runner.holds_at(held.tuple), held.key))
        self.held[held.key] = held
        held.since_us = held.since_us or self.began_us
        self._held_by_tuple[id(held.tuple)] = held.key
        self.changed_held[held.key] = None
        if held.due_ms is not None:
            heapq.heappush(self.retries, (held.due_ms, held.key))

    def _first_held(self, heap: list[tuple[int, str]]) -> int:
        """Return the least number of a heap over held inputs, of which there must be one."""
        # Dropped lazily: taking an input out of the middle of a heap would cost a search for each
        # ack.
        while heap[0][1] not in self.held:
            heapq.heappop(heap)
        return heap[0][0]

    @property
    def watermark_ms(self) -> int:
        """Return the event time up to which windows and timers may fire."""
        heard_ms = NEVER if self.time is None else self.time.heard_ms
        # An input that waits for its next try is on time as it was at its first: marks behind it
        # may not fire its windows.
        return (
            min(heard_ms, self._first_held(self._held_times))
            if self.held and self._held_times
            else heard_ms
        )

    def let_go(self, key: str) -> PendingInput:
        """Forget a held input; the next commit forgets it too."""
        held = self.held.pop(key)
        self._held_by_tuple.pop(id(held.tuple), None)
        if self.time is not None:
            self.time.outlook.release((key,))
        # Held and done within one epoch: it is never written to the store.
        self.changed_held.pop(key, None)
        # Only what was stored needs a delete; the others cost the commit nothing.
        if held.is_stored:
            self.released.append(key)
        return held

    def finish(self, key: str) -> PendingInput:
        """Drop a held input that is done."""
        held = self.let_go(key)
        self.done_since.append(held.since_us)
        return held

    def finish_late(self, tup: Tuple) -> PendingInput | None:
        """Drop a held input that was acked since; None when it is not held any more."""
        key = self.held_key(tup)
        if key is None:
            return None
        self.acked += 1
        return self.finish(key)

    def take_back_done(self) -> None:
        """Count an input as not done after all: a sink has refused what was written for it."""
        self.acked -= 1

    def held_key(self, tup: Tuple) -> str | None:
        """The key under which this input is held."""
        return self._held_by_tuple.get(id(tup))

    def take_due(self, now_ms: int) -> PendingInput | None:
        """Take an input whose next try is due."""
        while self.retries and self.retries[0][0] <= now_ms:
            _, key = heapq.heappop(self.retries)
            held = self.held.get(key)
            # The heap may name an input that was acked, or put off again, since it was queued.
            if held is not None and held.due_ms is not None and held.due_ms <= now_ms:
                return held
        return None

    def next_chunk(self) -> Chunk | None:
        """The oldest entry of rows that is not consumed; control frames do not belong here and are
        stepped over.
        """
        if not self.inbox.chunks:
            return None
        self.inbox.take_controls()
        return self.inbox.chunks[0] if self.inbox.chunks else None

    def consume(self, chunk: Chunk, rows: int, origin: int) -> None:
        """Mark the next rows of its oldest entry as done; `origin` names this process in the
        entries that it has written.
        """
        self.inbox.consume(chunk, rows)
        # Entries of this process alone: those of a former owner of the sender are covered by
        # `caught_up_at`.
        is_done = chunk.done == chunk.total and entry_order(chunk.entry) > self.caught_up_at
        if is_done and self.spilled and chunk.origin == origin:
            self.spilled -= 1

    def spill(self, entries: int) -> None:
        """Take note that rows of this worker's own tasks go into its stream, as so many entries."""
        self.spilled += entries

    def settle(self) -> None:
        """Take note of a successful commit."""
        self.oldest_ms = 0

    def take_counts(self) -> tuple[int, int, int]:
        """Return the numbers of inputs executed, of those done, and of dead letters put back, since
        the last call.
        """
        taken = self.executed, self.acked, self.inbox.take_replayed()
        self.executed = self.acked = 0
        return taken

    def take_done(self) -> list[int]:
        """Return when the first executes began of inputs that were done late, or by another try,
        since the last call.
        """
        taken = self.done_since
        self.done_since = []
        return taken

    def take_version(self) -> dict[str, Any]:
        """Return the journal's field of the version in which its state is written, when that has
        changed.
        """
        if self.stored_version == self.state_version:
            return {}
        self.stored_version = self.state_version
        return {"v": self.stored_version}

    @property
    def is_behind(self) -> bool:
        """Return whether rows of this worker's own tasks are still in the stream; newer ones must
        then queue after them.
        """
        # Once and not in each turn: a cursor never goes back.
        if not self._is_caught_up:
            self._is_caught_up = entry_order(self.inbox.cursor.entry) >= self.caught_up_at
        return not self._is_caught_up or bool(self.spilled)

    @property
    def is_full(self) -> bool:
        """Return whether this task may not run now: it is paused, or a blocking bolt's thread has
        enough to do.
        """
        return self.is_paused or (self._thread is not None and self._thread.is_full)

    @property
    def is_thread_busy(self) -> bool:
        """Return whether a blocking bolt's thread has rows, or their outcomes are not taken in
        yet.
        """
        return self._thread is not None and self._thread.is_busy

    @property
    def num_kept(self) -> int:
        """Return how many inputs user code keeps, neither acked nor failed: held ones but those
        that wait for a try, or for the bolt's thread.
        """
        if not self.held:
            return 0
        queued = 0 if self._thread is None else len(self._thread.queued)
        return max(0, len(self.held) - len(self.retries) - queued)

    def waiting_since_ms(self) -> int | None:
        """Birth of the oldest root among held inputs that wait for their next try or for the thread
        (not for an ack).
        """
        queued = () if self._thread is None else self._thread.queued
        # Inputs that user code keeps do not count: a bolt that forgets to ack would switch
        # time-outs off (decision 32).
        if not queued and not self.retries:
            return None
        return min(
            (
                h.born_ms
                for h in self.held.values()
                if h.due_ms is not None or id(h.tuple) in queued
            ),
            default=None,
        )

    def next_due_ms(self) -> int | None:
        """Return when the next try is due, or a sink's epoch ends; None while a bolt's thread is
        busy (it wakes the loop).
        """
        # A sink's epoch ends by the clock also when no row comes any more.
        if isinstance(self.runner, SinkRunner) and not self.retries:
            return self.runner.next_due_ms()
        return self.retries[0][0] if self.retries and not self.is_full else None

    @property
    def is_waiting(self) -> bool:
        """Return whether anything of this task is in memory and not done."""
        if self.inbox.chunks or self.held or self.feed:
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
