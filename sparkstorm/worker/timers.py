"""Time-driven work of a worker: ticks, timers and windows by processing time, and idle watermarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sparkstorm.clock import Clock
from sparkstorm.executor.event_time import TaskEventTime
from sparkstorm.executor.runner import ReportError, Timing
from sparkstorm.grouping.routes import Target
from sparkstorm.model.failure import Failure, killed
from sparkstorm.model.worker_spec import Suspect
from sparkstorm.settings import WorkerTimers
from sparkstorm.tasks.ticks import TickSchedule
from sparkstorm.worker.backpressure import Backpressure
from sparkstorm.worker.epoch import Epoch
from sparkstorm.worker.tasks.blocking_bolt import ThreadedBolt
from sparkstorm.worker.tasks.bolt_task import BoltTask
from sparkstorm.worker.tasks.call_watch import ThreadWatch
from sparkstorm.worker.tasks.spout_task import SpoutTask
from sparkstorm.worker.tasks.task_factory import TaskSet
from sparkstorm.worker.tasks.worker_plan import WorkerPlan

_GATED_MS = 5  # between two looks whether those that hold a task back have drained

Park = Callable[[Epoch, BoltTask, Any, int, Failure], None]


class TimerService:
    """Ticks, and the tasks of a worker that use time."""

    def __init__(
        self, plan: WorkerPlan, task_set: TaskSet, clock: Clock, backpressure: Backpressure, report: ReportError, park: Park
    ) -> None:
        now_ms, bolts = clock.now_ms(), task_set.bolts.values()
        periods = [(bolt, plan.component_settings(bolt.component).tick_ms) for bolt in bolts]
        self._ticks = [(bolt, TickSchedule.from_now(every_ms, now_ms)) for bolt, every_ms in periods if every_ms]
        self._bolts = task_set.bolts
        threads = [(b.component, t, b.runner.bolt) for t, b in task_set.bolts.items() if isinstance(b.runner.bolt, ThreadedBolt)]
        self._threads = ThreadWatch(threads, WorkerTimers.of(plan.conf).progress_ms, report)
        self._timed = [(bolt, bolt.time) for bolt in task_set.bolts.values() if bolt.time is not None]
        self._senders = [sender.time for sender in task_set.senders() if sender.time is not None]
        self._clock = clock
        self._backpressure = backpressure
        self._report = report
        self._park = park

    def run_ticks(self, epoch: Epoch, now_ms: int) -> Iterator[BoltTask]:
        """Run ticks; names every bolt that had one, or that has something due by the clock."""
        self._threads.look(now_ms)
        for bolt, ticks in self._ticks:
            if ticks.due_ms is None or ticks.due_ms > now_ms:
                continue
            bolt.begin(now_ms)
            for failure in bolt.tick(epoch, ticks.take(now_ms)):
                self._report(replace(failure, text=f"on a tick: {failure.text}", component=bolt.component, task=bolt.task))
            yield bolt
        for bolt, time in self._timed:
            due_ms = self._firing_ms(bolt, time, now_ms)
            if due_ms is not None and due_ms <= now_ms:
                bolt.begin(now_ms)
                yield bolt

    def advance(self, epoch: Epoch, bolt: BoltTask) -> None:
        """Fire what its marks and the clock have made due; park what keeps failing."""
        if bolt.time is not None and bolt.time.timing is not None:
            fired = bolt.time.timing.advance(bolt.time.heard_ms, self._clock.now_ms())
            epoch.rows += fired
            for recorder in bolt.recorders:
                recorder.note_watermark(bolt.time.heard_ms, fired)
            self._park_given_up(epoch, bolt, bolt.time.timing)

    def fire_one(
        self,
        epoch: Epoch,
        now_ms: int,
        trying: Callable[[int, str, int], None],
        poison_of: Callable[[tuple[int, str, int]], Suspect | None],
    ) -> BoltTask | None:
        """Fire a single window or timer, announced before, or park it when it has killed too often; whose it was."""
        for bolt, time in self._timed:
            name = None if time.timing is None else time.timing.next_name(time.heard_ms, now_ms)
            if time.timing is None or name is None:
                continue
            bolt.begin(now_ms)
            if poison := poison_of((bolt.task, name, 0)):
                time.timing.give_up_next(now_ms, poison.deaths, killed(poison.deaths, poison.end))
            else:
                trying(bolt.task, name, 0)
                epoch.rows += time.timing.advance(time.heard_ms, now_ms, 1)
            self._park_given_up(epoch, bolt, time.timing)
            return bolt
        return None

    def _park_given_up(self, epoch: Epoch, bolt: BoltTask, timing: Timing) -> None:
        given_up, timing.given_up = timing.given_up, []
        for what, tries, failure in given_up:
            self._park(epoch, bolt, what, tries, failure)

    def tell(self, sender: BoltTask | SpoutTask) -> bool:
        """Put marks behind the rows for tasks of this worker; whether there were any."""
        return sender.time is not None and sender.time.put_marks(self._takes_rows)

    @property
    def has_senders(self) -> bool:
        """Return whether tasks of this worker send watermarks."""
        return bool(self._senders)

    def next_due_ms(self) -> int | None:
        """The earliest tick, timer or window by the clock."""
        now_ms = self._clock.now_ms() if self._timed else 0
        due = [
            *(ticks.due_ms for _, ticks in self._ticks),
            *(self._firing_ms(bolt, time, now_ms) for bolt, time in self._timed),
            *(time.next_idle_ms() for time in self._senders),
        ]
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    def _firing_ms(self, bolt: BoltTask, time: TaskEventTime, now_ms: int) -> int | None:
        """Return when this task has something due, but not before its downstream tasks have room."""
        due_ms = time.next_firing_ms()
        return due_ms if due_ms is None or not self._backpressure.is_shut(bolt.task) else max(due_ms, now_ms + _GATED_MS)

    def _takes_rows(self, target: Target) -> bool:
        return target.is_local and not self._bolts[target.task].is_behind
