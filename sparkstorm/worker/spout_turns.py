"""Spout tasks of a worker: turns in which they are asked for tuples, and the waits of those that have none."""

from __future__ import annotations

from collections.abc import Callable

from sparkstorm.clock import Clock
from sparkstorm.transport.progress import BACKLOG, INACTIVE, PENDING, STORE
from sparkstorm.worker.backpressure import Backpressure
from sparkstorm.worker.epoch import Epoch
from sparkstorm.worker.epoch_budget import Budget
from sparkstorm.worker.tasks.circuit_breaker import CircuitBreaker
from sparkstorm.worker.tasks.spout_task import SpoutTask
from sparkstorm.worker.tasks.task_factory import TaskSet
from sparkstorm.worker.tasks.worker_plan import WorkerPlan

_CALLS_PER_TURN = 512  # of all spout tasks together
_LONGEST_PAUSE_MS = 10
_BOLTS_FIRST_MS = 200  # bolts go first, but spouts elsewhere must not be able to keep them busy for ever


class SpoutTurns:
    """Turns of a worker's spout tasks. Method `deliver` of the worker counts what a task has emitted."""

    def __init__(
        self,
        plan: WorkerPlan,
        task_set: TaskSet,
        clock: Clock,
        backpressure: Backpressure,
        budget: Budget,
        deliver: Callable[[Epoch, SpoutTask], None],
        breaker: CircuitBreaker,
    ) -> None:
        self._breaker = breaker
        self._spouts = task_set.spouts
        self._clock, self._backpressure, self._budget, self._deliver = clock, backpressure, budget, deliver
        self._pause_ms = plan.settings.spout_sleep_ms
        self._ran_ms = 0
        self.is_active = False

    def set_active(self, is_active: bool) -> None:
        """Follow the topology's status: spouts rest while it is inactive."""
        if is_active == self.is_active:
            return
        self.is_active = is_active
        for spout in self._spouts.values():
            spout.set_active(is_active)

    def have_waited(self, now_ms: int) -> bool:
        """Return whether bolts have kept the spouts waiting for too long."""
        return now_ms - self._ran_ms >= _BOLTS_FIRST_MS

    def ask_all(self, epoch: Epoch) -> bool:
        """Let every spout task emit: few tuples each where there are many, so that their rows stay in the processor's caches."""
        self._ran_ms = self._clock.now_ms()
        calls = max(1, min(_CALLS_PER_TURN, self._budget.rows - epoch.rows))
        calls = max(1, calls // max(1, len(self._spouts)))
        return sum(self.ask_one(epoch, spout, calls) for spout in self._spouts.values()) > 0

    def ask_one(self, epoch: Epoch, spout: SpoutTask, calls: int) -> bool:
        """Let one spout task emit, unless it rests or is held back; return whether it did."""
        began_us, spent = self._clock.now_us(), spout.spent
        if (cause := self._held_by(spout)) is not None or spent.pause is not None:
            spent.hold(cause, began_us)
        if cause is not None or began_us < 1000 * spout.wait_until_ms or spout.is_exhausted:
            return False
        spout.begin(now_ms := began_us // 1000)
        calls, sent_bytes = min(calls, spout.pace), epoch.bytes
        did = spout.ask(epoch, calls, now_ms)
        self._deliver(epoch, spout)
        now_us = self._clock.now_us()
        spent.busy_us += now_us - began_us
        spout.pace = self._budget.pace(spout.pace, calls, now_us // 1000 - now_ms, _CALLS_PER_TURN, epoch.bytes - sent_bytes)
        if did:
            spout.wake(now_us)
        if not did or spout.is_dry:
            spout.rest(now_us, self._pause_ms, _LONGEST_PAUSE_MS)
        return did

    def _held_by(self, spout: SpoutTask) -> int | None:
        """Return why a spout task may not run, whatever its source has; None when it may."""
        if not self.is_active or self._breaker.is_open:
            return INACTIVE
        if self._backpressure.is_store_filling:
            return STORE
        if self._backpressure.is_shut(spout.task):
            return BACKLOG
        return PENDING if spout.pending.room == 0 else None

    def next_due_ms(self, now_ms: int, rested_ms: int) -> float | None:
        """Return when a spout task is to be called: one that is held back at `rested_ms` at the earliest."""
        is_active = self.is_active and not self._breaker.is_open
        due = (spout.next_due_ms(now_ms, rested_ms, is_active) for spout in self._spouts.values())
        return min((at_ms for at_ms in due if at_ms is not None), default=None)
