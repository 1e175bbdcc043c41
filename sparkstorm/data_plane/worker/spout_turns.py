"""Spout tasks of a worker: turns in which they are asked for tuples, and the waits of those that
have none.

Law: a spout is asked only for what the topology can take: not while receivers have too much, as
many trees are open as allowed, the store fills, older rows of this worker wait, or the topology
rests. Left out: asking and keeping
the tuples back, which would hold in memory what the source keeps for us. Storm's spouts wait by the
same causes (skipped-max-spout-ms, skipped-backpressure-ms, skipped-inactive-ms).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

from sparkstorm.common.model.names import counted
from sparkstorm.data_plane.transport.progress import BACKLOG, IDLE, INACTIVE, PENDING, STORE
from sparkstorm.data_plane.worker.backpressure import SPOUTS_STOP_AT
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.epoch_budget import Budget
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask

# Of all spout tasks together: so many rows stay in the processor's caches until the bolts take
# them. With 512 for each task, 16 tasks cost 2.94 us a word instead of 2.12, 64 tasks 3.33 instead
# of 2.35 (two workers in one thread, best of 3; decision 26). Half of it looks at the clock twice
# as often.
_CALLS_PER_TURN = 512
# Of one spout task at least, where there are more than four: its turn costs some 15 us next to its
# calls, and its messages of a turn are one tree batch. Half of it saved half as much with 64 tasks,
# four times as much nothing more (decision 65).
_LEAST_CALLS = 128
# Between two polls of a source that has nothing. Double of it is the latency of the first tuple
# after a silence; half of it costs an idle worker twice the CPU.
_LONGEST_PAUSE_MS = 10
# Bolts go first, but rows from spouts elsewhere must not be able to keep them busy for ever. Half
# of it lets more in before what is there has drained; double makes a source that must be polled (a
# broker's session) wait longer.
_BOLTS_FIRST_MS = 200


class SpoutTurns:
    """Turns of a worker's spout tasks. Method `deliver` of the worker counts what a task has
    emitted.
    """

    def __init__(
        self, parts: WorkerParts, budget: Budget, deliver: Callable[[Epoch, SpoutTask], None]
    ) -> None:
        self._spouts = parts.task_set.spouts
        self._bolts = parts.task_set.bolts
        self._clock = parts.clock
        self._budget = budget
        self._deliver = deliver
        self._backpressure = parts.backpressure
        self._breaker = parts.breaker
        self._pause_ms = parts.plan.settings.spout_sleep_ms
        self._ran_ms = 0
        self._order = deque(self._spouts.values())
        self._asked_ms: dict[int, int] = {}
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
        """Let spout tasks emit until the rows of a turn are there, so that they stay in the
        processor's caches; the tasks that are left out begin the next turn.
        """
        self._ran_ms = self._clock.now_ms()
        calls = max(1, min(_CALLS_PER_TURN, self._budget.rows - epoch.rows))
        share = min(calls, max(_LEAST_CALLS, calls // max(1, len(self._order))))
        until_rows = epoch.rows + calls
        # Once and not for each spout: a worker may have a hundred tasks of either kind.
        older = [bolt.task for bolt in self._bolts.values() if bolt.older_entries.are_at_hand]
        did = False
        for _ in range(len(self._order)):
            did |= self.ask_one(epoch, self._order[0], share, older)
            self._order.rotate(-1)
            if epoch.rows >= until_rows:
                break
        return did

    def ask_one(
        self, epoch: Epoch, spout: SpoutTask, calls: int, older: Collection[int] = ()
    ) -> bool:
        """Let one spout task emit, unless it rests or is held back; return whether it did.

        `older`: bolt tasks of this worker with rows to run that have crossed Redis.
        """
        began_us = self._clock.now_us()
        spent = spout.spent
        if (cause := self._held_by(spout)) is not None or spent.pause is not None:
            spent.hold(cause, began_us)
        # The pause is noted before: time that a spout is held back is its own figure, not
        # idleness.
        if cause is not None or began_us < 1000 * spout.rest.until_ms or spout.is_exhausted:
            return False
        now_ms = began_us // 1000
        if older and self._must_wait(spout.task, older, now_ms):
            return False
        self._asked_ms[spout.task] = now_ms
        spout.begin(now_ms)
        calls = min(calls, spout.pace)
        sent_bytes = epoch.bytes
        did = spout.ask(epoch, calls, now_ms)
        self._deliver(epoch, spout)
        now_us = self._clock.now_us()
        spent.add(now_us - began_us)
        spout.pace = self._budget.pace(
            spout.pace, calls, now_us // 1000 - now_ms, _CALLS_PER_TURN, epoch.bytes - sent_bytes
        )
        if did:
            spout.rest.end(now_us)
        # Dry also when it has emitted: its last call gave nothing, so another call at once would
        # give nothing again.
        if not did or spout.is_dry:
            spout.rest.begin(now_us, self._pause_ms, _LONGEST_PAUSE_MS)
        return did

    def _must_wait(self, task: int, older: Collection[int], now_ms: int) -> bool:
        """Return whether such a bolt is behind this task: newer rows would cross Redis too, since
        they may not overtake the older ones.
        """
        # Once a batch had crossed, all did: by columns the Yahoo benchmark took twice the CPU.
        return (
            self._backpressure.feeds_any(task, older)
            and now_ms - self._asked_ms.get(task, 0) < _BOLTS_FIRST_MS
        )

    def _held_by(self, spout: SpoutTask) -> int | None:
        """Return why a spout task may not run, even if its source has tuples; None when it may."""
        if not self.is_active or self._breaker.is_open:
            return INACTIVE
        # The order decides which cause is shown when several hold: a cause that an operator can
        # change comes first.
        if self._backpressure.is_store_filling:
            return STORE
        if self._backpressure.holds_back(spout.task):
            return BACKLOG
        return PENDING if spout.pending.room == 0 else None

    def next_due_ms(self, now_ms: int, rested_ms: int) -> float | None:
        """Return when a spout task is to be called: one that is held back at `rested_ms` at the
        earliest.
        """
        is_active = self.is_active and not self._breaker.is_open
        due = (spout.next_due_ms(now_ms, rested_ms, is_active) for spout in self._spouts.values())
        return min((at_ms for at_ms in due if at_ms is not None), default=None)


class Waiting:
    """Reasons why a worker's spouts emit nothing at this moment, as sentences for its heartbeat."""

    def __init__(self, parts: WorkerParts) -> None:
        self._plan = parts.plan
        self._task_set = parts.task_set
        self._count = parts.counters.of
        self._backpressure = parts.backpressure

    def blocked(self, refusal: str) -> list[str]:
        """Causes outside of the topology, which need an operator: a store that is full or refuses
        writes.

        `refusal`: the error of the commit that the store refuses, empty when there is none.
        """
        if refusal:
            return [refusal]
        if self._backpressure.is_store_filling and any(
            not spout.is_exhausted for spout in self._task_set.spouts.values()
        ):
            return [
                f"Redis is at {self._backpressure.fullness:.0%} of its maxmemory, and spouts pause from {SPOUTS_STOP_AT:.0%} on: "
                "raise maxmemory there (embedded: sparkstorm.embedded.redis.maxmemory.mb), or delete what fills it"
            ]
        return []

    def state(self) -> int:
        """Return the state of the loop while it waits: paused when that holds every spout with
        anything left, else idle.

        A worker without such spouts is paused when one of its bolts is held back.
        """
        open_spouts = [
            spout.spent.pause
            for task, spout in self._task_set.spouts.items()
            if not self._count(task).is_exhausted
        ]
        if open_spouts:
            return IDLE if None in open_spouts else open_spouts[0] or IDLE
        return next(
            (p for bolt in self._task_set.bolts.values() if (p := bolt.spent.pause) is not None),
            IDLE,
        )

    def held_back(self) -> list[str]:
        """Backpressure inside the topology: a sentence for each component and cause; normal unless
        nothing moves.
        """
        reasons = (
            reason
            for spout in self._task_set.spouts.values()
            if not spout.is_exhausted
            for reason in self._of(spout)
        )
        return list(dict.fromkeys(reasons))

    def _of(self, spout: SpoutTask) -> Iterator[str]:
        for task, size in self._backpressure.held_back_by(spout.task):
            yield (
                f"spout '{spout.component}' pauses: {size:,} bytes wait for '{self._plan.component_by_task[task]}' "
                "(topology.inbox.high.bytes)"
            )
        if spout.pending.room == 0:
            yield (
                f"spout '{spout.component}' pauses: each task has {counted(len(spout.pending), 'tree')} open "
                "(topology.max.spout.pending)"
            )
