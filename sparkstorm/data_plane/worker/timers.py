"""Time-driven work of a worker: ticks, timers and windows by processing time, idle watermarks, and
time-outs of trees.

Law: time passes only between two calls of user code, by the worker's one clock, and what it makes
due is part of the epoch in which it is looked at. So a crash fires a timer again or not at all, as
it does a row. Left out: a timer thread, whose calls would meet a bolt in the middle of an execute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from sparkstorm.common.grouping.routes import Target
from sparkstorm.common.model.failure import Failure, FailureKind, killed
from sparkstorm.common.settings import WorkerTimers
from sparkstorm.common.windowing.watermarks import NEVER
from sparkstorm.data_plane.executor.event_time import TaskEventTime
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner
from sparkstorm.data_plane.task_kit.task import TickSchedule
from sparkstorm.data_plane.worker.backpressure import LOOK_MS
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.tasks.blocking_bolt import ThreadedBolt
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.call_watch import ThreadWatch
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask


class TimerService:
    """Ticks, and the tasks of a worker that use time."""

    def __init__(self, parts: WorkerParts) -> None:
        plan = parts.plan
        now_ms = parts.clock.now_ms()
        self._bolts = parts.task_set.bolts
        bolts = self._bolts.values()
        periods = [(bolt, plan.component_settings(bolt.component).tick_ms) for bolt in bolts]
        self._ticks = [
            (bolt, TickSchedule.from_now(every_ms, now_ms))
            for bolt, every_ms in periods
            if every_ms
        ]
        threads = [
            (b.component, b.task, b.runner.bolt)
            for b in bolts
            if isinstance(b.runner.bolt, ThreadedBolt)
        ]
        self._threads = ThreadWatch(threads, WorkerTimers.of(plan.conf).progress_ms, parts.report)
        self._timed = [(bolt, bolt.time) for bolt in bolts if bolt.time is not None]
        self._senders = [
            sender.time for sender in parts.task_set.senders() if sender.time is not None
        ]
        self._clock = parts.clock
        self._backpressure = parts.backpressure
        self._report = parts.report
        self._failures = parts.failures

    def run_ticks(self, epoch: Epoch, now_ms: int) -> Iterator[BoltTask]:
        """Run ticks; names every bolt that had one, or that has something due by the clock."""
        self._threads.look(now_ms)
        for bolt, ticks in self._ticks:
            if ticks.due_ms is None or ticks.due_ms > now_ms:
                continue
            bolt.begin(now_ms)
            # Reported and not tried again: the next tick comes by itself, and no input would be
            # lost.
            for failure in bolt.tick(epoch, ticks.take(now_ms)):
                self._report(
                    replace(
                        failure,
                        text=f"on a tick: {failure.text}",
                        component=bolt.component,
                        task=bolt.task,
                    )
                )
            yield bolt
        # Named, not fired: `advance` fires what is due of each bolt that has run, in one place.
        for bolt, time in self._timed:
            due_ms = self._firing_ms(bolt, time, now_ms)
            if due_ms is not None and due_ms <= now_ms:
                bolt.begin(now_ms)
                yield bolt

    def advance(self, epoch: Epoch, bolt: BoltTask) -> None:
        """Fire what its marks and the clock have made due; park what keeps failing."""
        if bolt.time is None or bolt.time.timing is None:
            return
        watermark_ms = NEVER - 1
        # Twice where all senders have ended: once up to their newest mark, and then to the end.
        while watermark_ms < bolt.watermark_ms:
            watermark_ms = bolt.watermark_ms
            fired = bolt.time.timing.advance(watermark_ms, self._clock.now_ms())
            epoch.rows += fired
            for observer in bolt.observers:
                observer.fired(watermark_ms, fired)
            self._park_given_up(epoch, bolt, bolt.time.timing)

    def fire_one(
        self, epoch: Epoch, now_ms: int, trying: Callable[[int, str, int], None]
    ) -> BoltTask | None:
        """Fire a single window or timer, announced before, or park it when it has killed too often;
        whose it was.
        """
        for bolt, time in self._timed:
            name = None if time.timing is None else time.timing.next_name(bolt.watermark_ms, now_ms)
            if name is None and time.timing is not None:  # as in `advance`
                name = time.timing.next_name(bolt.watermark_ms, now_ms)
            if time.timing is None or name is None:
                continue
            bolt.begin(now_ms)
            # The name follows from the window or timer itself, so that deaths in it are counted
            # over restarts.
            if poison := self._failures.poison((bolt.task, name, 0)):
                time.timing.give_up_next(now_ms, poison.deaths, killed(poison.deaths, poison.end))
            else:
                trying(bolt.task, name, 0)
                epoch.rows += time.timing.advance(bolt.watermark_ms, now_ms, 1)
            self._park_given_up(epoch, bolt, time.timing)
            return bolt
        return None

    def _park_given_up(self, epoch: Epoch, bolt: BoltTask, timing: TimedRunner) -> None:
        for what, tries, failure in timing.take_given_up():
            self._failures.park(epoch, bolt, what, tries, failure)

    def tell(self, sender: BoltTask | SpoutTask) -> bool:
        """Put marks behind the rows for tasks of this worker; whether there were any."""
        return sender.time is not None and sender.time.put_marks(self._takes_rows)

    @property
    def has_senders(self) -> bool:
        """Return whether tasks of this worker send watermarks."""
        return bool(self._senders)

    def next_due_ms(self) -> int | None:
        """The earliest tick, timer or window by the clock."""
        # Most workers have none of these.
        if not self._ticks and not self._timed and not self._senders:
            return None
        now_ms = self._clock.now_ms() if self._timed else 0
        due = [
            *(ticks.due_ms for _, ticks in self._ticks),
            *(self._firing_ms(bolt, time, now_ms) for bolt, time in self._timed),
            *(time.next_idle_ms() for time in self._senders),
        ]
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    def _firing_ms(self, bolt: BoltTask, time: TaskEventTime, now_ms: int) -> int | None:
        """Return when this task has something due, but not before its downstream tasks have
        room.
        """
        # A window of a task whose receivers are full would only add to what waits for them.
        due_ms = time.next_firing_ms()
        return (
            due_ms
            if due_ms is None or not self._backpressure.holds_back(bolt.task)
            else max(due_ms, now_ms + LOOK_MS)
        )

    def _takes_rows(self, target: Target) -> bool:
        # A mark to a task of this worker comes at once; to others, and behind rows that lie in a
        # stream, it goes with the commit.
        return target.is_local and not self._bolts[target.task].older_entries.remain


class Timeouts:
    """Time-outs of spouts' trees and ageing of ackers' ledgers (topology.message.timeout.secs),
    looked at about once a second.

    A tuple that waits is not a failed tuple: nothing is given up that was born after the oldest
    root still waiting in any stream (acks on their way included), for its next try or for a thread;
    user code that simply never acks is not waiting, its trees time out as in Storm. Without
    time-outs ledgers forget only roots without an init: messages for trees that had already ended.

    The low watermark is read only when something is old enough to be given up.
    """

    def __init__(self, parts: WorkerParts) -> None:
        plan = parts.plan
        now_ms = parts.clock.now_ms()
        self._timeout_ms = plan.settings.message_timeout_ms
        self._is_tracking = bool(plan.ackers)
        self._gives_up = plan.settings.has_message_timeouts
        # A tenth of the time-out, at most a second: a tree fails that much too late. Half of it
        # looks twice as often at spouts without a late tree.
        self._every_ms = max(1, min(1000, self._timeout_ms // 10))
        self._plan = plan
        self._task_set = parts.task_set
        self._transport = parts.transport
        self._report = parts.report
        self._next_ms = now_ms + self._every_ms
        self._rotated_ms = now_ms
        topology = plan.topology.components
        # Streams of spouts and ackers count too: an ack that is on its way belongs to a tree that
        # is not late.
        self._told = [
            task
            for task, component in plan.component_by_task.items()
            if component not in topology or topology[component].kind == "spout"
        ]

    def next_due_ms(self) -> int | None:
        """Return when to check next; None while nothing is open."""
        if not self._is_tracking:
            return None
        if self._gives_up:
            for spout in self._task_set.spouts.values():
                if len(spout.pending):
                    return self._next_ms
        return self._next_ms if self._has_entries else None

    @property
    def _has_entries(self) -> bool:
        return any(len(acker.ledger) for acker in self._task_set.ackers.values())

    def check(self, now_ms: int) -> None:
        """Fail what is too old, and rotate ledgers."""
        if not self._is_tracking or now_ms < self._next_ms:
            return
        self._next_ms = now_ms + self._every_ms
        late_spouts = [
            s
            for s in self._task_set.spouts.values()
            if self._is_late(s.pending.oldest_emit_ms, now_ms)
        ]
        must_rotate = now_ms - self._rotated_ms >= self._timeout_ms and self._has_entries
        # The low watermark costs a question to the store for each stream: it is asked only when it
        # decides something.
        if not late_spouts and not must_rotate:
            return
        # what falls out of the last bucket was put two timeouts ago or more
        old_ms = now_ms - 2 * self._timeout_ms
        floors = [s.pending.oldest_emit_ms or 0 for s in late_spouts] + [old_ms] * must_rotate
        low_ms = self._transport.oldest_waiting_ms(self._told, min(floors))
        for spout in late_spouts:
            failure = self._timed_out(spout)
            if late := spout.expire(now_ms, self._timeout_ms, low_ms, failure):
                self._report(replace(failure, time_ms=now_ms), late)
        # What waits longest may still bring its ack: a ledger that forgot its tree would take the
        # ack for its own tree that never ends.
        if must_rotate and (low_ms is None or low_ms > old_ms):
            self._rotated_ms = now_ms
            for acker in self._task_set.ackers.values():
                acker.rotate(keeps_begun=not self._gives_up)

    def _timed_out(self, spout: SpoutTask) -> Failure:
        limit = f"{self._timeout_ms / 1000:g} s (topology.message.timeout.secs)"
        text = f"not acked within {limit}: a bolt has neither acked nor failed a tuple of its tree"
        return self._plan.placed(Failure(FailureKind.TIMED_OUT, text, spout.component, spout.task))

    def _is_late(self, emit_ms: int | None, now_ms: int) -> bool:
        return self._gives_up and emit_ms is not None and emit_ms <= now_ms - self._timeout_ms
