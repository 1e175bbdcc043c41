"""Turns of a worker's bolts within an epoch: rows of entries and of open blocks run, their results
moved into the epoch.

Law: rows of one sender reach a task in the order in which they were sent. So rows from open blocks
wait while older ones of this worker lie in the task's stream, and marks follow the rows before
them. Left out: one queue of a task for both, which would have to decode entries before their turn
comes and keep them in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.executor.pieces import count_rows
from sparkstorm.data_plane.task_kit.held import Originals, copied
from sparkstorm.data_plane.transport.frames import Row
from sparkstorm.data_plane.transport.progress import BACKLOG, INACTIVE
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.epoch_budget import Budget
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.inbox import Chunk
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask
from sparkstorm.data_plane.worker.timers import TimerService

# A turn's limit for bolts row by row: at 1 us a row some 4 ms, after which the clock is looked at
# again. Half of it costs another look per 2,048 rows; double lets a bolt that has become slow hold
# up the others for twice as long. For bolts that take batches a batch has its own price, which
# many rows share: half as many rows, twice the price a row; MOST_ROWS of data_plane/executor/column_runner.py.
_ROWS_PER_TURN = 4096
_ROWS_PER_BATCH = 1 << 16


class BoltTurns:
    """Runner of rows of bolts; `is_careful` while a worker runs one input per epoch: windows and
    marks then wait for their own turn.
    """

    def __init__(self, parts: WorkerParts, budget: Budget, timers: TimerService) -> None:
        self._budget = budget
        self._timers = timers
        self._task_set = parts.task_set
        self._clock = parts.clock
        self._backpressure = parts.backpressure
        self._failures = parts.failures
        self._counters = parts.counters
        self._meters = parts.meters
        self._origin = parts.origin
        self._copies = partial(copied, parts.plan.codec)
        self.is_careful = parts.plan.careful > 0
        bolts = self._task_set.bolts.values()
        self._manual = [
            (bolt, bolt.runner) for bolt in bolts if isinstance(bolt.runner, ManualRunner)
        ]

    def end_careful(self) -> None:
        """Run as many inputs per epoch as its budget allows from now on."""
        self.is_careful = False

    def run_timed(self, epoch: Epoch, now_ms: int) -> bool:
        """Run ticks, calls of other threads and second tries, before anything newer; return whether
        the budget is over.
        """
        self.run_ticks(epoch, now_ms)
        self.take_posts(epoch)
        for bolt in self._task_set.bolts.values():
            # One at a time: many retries at once must not overrun the budget, which is checked
            # after each.
            while not bolt.is_full and (held := bolt.held.take_due(now_ms)) is not None:
                began_us = self._clock.now_us()
                self._failures.try_again(epoch, bolt, held)
                self.finish(epoch, bolt)
                bolt.spent.add(self._clock.now_us() - began_us)
                if self._budget.is_over(epoch, self._clock.now_ms()):
                    return True
        return False

    def run_ticks(self, epoch: Epoch, now_ms: int) -> None:
        """Run the ticks that are due, and fire what is due by the clock."""
        began_us = self._clock.now_us()
        # The generator runs user code between two of its steps, so the time belongs to the bolt
        # that it yields.
        for bolt in self._timers.run_ticks(epoch, now_ms):
            self.finish(epoch, bolt)
            ended_us = self._clock.now_us()
            bolt.spent.add(ended_us - began_us)
            began_us = ended_us

    def take_posts(self, epoch: Epoch) -> None:
        """Make the calls that other threads have posted."""
        for bolt, runner in self._manual:
            if runner.has_posts:
                began_us = self._clock.now_us()
                bolt.begin(began_us // 1000)
                runner.take_posts()
                self.finish(epoch, bolt)
                bolt.spent.add(self._clock.now_us() - began_us)

    def run_bolt(self, epoch: Epoch, bolt: BoltTask) -> bool:
        """Run rows of a bolt's blocks and of its oldest entry, unless it is held back; return
        whether there were any.
        """
        is_held_back = self._backpressure.holds_back(bolt.task)
        if is_held_back or bolt.is_paused or bolt.spent.pause is not None:
            bolt.spent.hold(
                INACTIVE if bolt.is_paused else BACKLOG if is_held_back else None,
                self._clock.now_us(),
            )
        if is_held_back or bolt.is_full:
            return False
        # Rows of this worker first: what is left of them at the end of the epoch has to cross the
        # store.
        did = self.run_local(epoch, bolt, bolt.pace)
        if (chunk := bolt.inbox.next_chunk()) is None:
            return did
        self.run_chunk(epoch, bolt, chunk, _ROWS_PER_BATCH if bolt.takes_batches else bolt.pace)
        return True

    def run_local(self, epoch: Epoch, bolt: BoltTask, most: int) -> bool:
        """Run rows of this worker's own tasks, unless older ones lie in the stream."""
        did = False
        # Rows that overtook older ones in the stream would break the order of their sender.
        if bolt.feed and not bolt.older_entries.remain:
            for block, rows in bolt.feed.take(_ROWS_PER_BATCH if bolt.takes_batches else most):
                flow = self._counters.edge(block.component, block.stream, bolt.component)
                count = count_rows(rows) if block.has_pieces else len(rows)
                # Both ends at once: rows that are handed over in memory are counted by no commit.
                flow.sent += count
                flow.consumed += count
                self._execute(
                    epoch,
                    bolt,
                    self._task_set.blocks.handed_over(block, rows),
                    block.births.oldest_ms,
                    block.has_pieces,
                    keep=self._copies,
                )
                did = True
        return did

    def run_chunk(self, epoch: Epoch, bolt: BoltTask, chunk: Chunk, rows: int) -> None:
        """Run the next rows of an entry, `rows` at the most, and consume them."""
        stop = min(chunk.done + rows, chunk.total)
        rows_here = chunk.part(chunk.done, stop)
        done = chunk.done

        def keep(rows: Sequence[Row]) -> Originals:
            return Originals(
                lambda: (row[0] for row in rows), lambda index: chunk.original(done + index)
            )

        self._execute(epoch, bolt, rows_here, chunk.oldest_ms, chunk.is_batch, chunk.sent_ms, keep)
        self.consume(epoch, bolt, chunk, stop - chunk.done)

    def consume(self, epoch: Epoch, bolt: BoltTask, chunk: Chunk, rows: int) -> None:
        """Mark the next rows of an entry as done; its edge leaves the roots whose last rows they
        are.
        """
        # A dead letter was counted as consumed before it was given up: with it twice, the audit of
        # edges would see more rows consumed than sent.
        if not chunk.is_replayed:
            source = chunk.rows[0][2]
            flow = self._counters.edge(source.component, source.stream, bolt.component)
            flow.consumed += rows
        bolt.consume(chunk, rows, self._origin)
        epoch.consume(chunk.take_ended(), chunk.edge)

    def _execute(
        self,
        epoch: Epoch,
        bolt: BoltTask,
        rows: Sequence[Row],
        oldest_ms: int,
        may_have_pieces: bool,
        sent_ms: int | None = None,
        keep: Callable[[Sequence[Row]], Originals | None] | None = None,
    ) -> None:
        bolt.begin_rows(oldest_ms, sent_ms, self._clock.now_us())
        sent_bytes = epoch.bytes
        held = len(bolt.held.by_key)
        failed = bolt.execute(epoch, rows, may_have_pieces, keep)
        for index, (tup, failure) in enumerate(failed):
            self._failures.settle(epoch, bolt, tup, failure, (index, len(failed)))
        self.finish(epoch, bolt)
        took_us = self._clock.now_us() - bolt.turn.began_us
        count = count_rows(rows) if may_have_pieces else len(rows)
        # The time to hand inputs over to a thread is none of their execute's.
        if bolt.thread is None:
            num_kept = min(count, max(0, len(bolt.held.by_key) - held))
            self._meters.of(bolt.task).add(count, took_us, num_kept)
        bolt.spent.add(took_us)
        bolt.pace = self._budget.pace(
            bolt.pace, count, took_us // 1000, _ROWS_PER_TURN, epoch.bytes - sent_bytes
        )

    def finish(self, epoch: Epoch, bolt: BoltTask) -> None:
        """Move the results of a user call into the epoch as a whole: its emissions, and its acks of
        earlier inputs.
        """
        if bolt.runner.late_acks or bolt.runner.late_failures:
            self._failures.take_late(epoch, bolt)
        if bolt.held.done_since:
            self._meters.note_done(bolt, self._clock.now_us())
        # A window that fires here would be in the commit of the row that made it due, and if it
        # kills the process the row would be the suspect.
        if not self.is_careful:
            self._timers.advance(epoch, bolt)
        self.deliver(epoch, bolt)

    def take_emitted(self, epoch: Epoch, spout: SpoutTask, now_ms: int) -> None:
        """Take tuples that a spout emitted outside next_tuple, such as in `fail`."""
        spout.begin(now_ms)
        spout.take_births(epoch, now_ms)
        self.deliver(epoch, spout)

    def deliver(self, epoch: Epoch, sender: BoltTask | SpoutTask) -> None:
        """Make what a task has emitted final: count it, and put marks behind rows for tasks of this
        worker.
        """
        emitter = sender.emitter
        # Most turns of an idle task end here: an epoch of few rows asks every bolt.
        if sender.time is None and not (emitter.log or emitter.spreads or emitter.renewed):
            return
        if emitter.renewed:
            epoch.renew(emitter.renewed)
            emitter.renewed.clear()
        epoch.bytes += emitter.weight()
        counts = self._counters.of(sender.task)
        for observer in sender.observers:
            observer.emitted(emitter)
        emitted, transferred, bad = emitter.take_counts()
        counts.add_emitted(emitted, transferred, bad)
        epoch.sent += transferred
        if not self.is_careful:
            self._timers.tell(sender)
