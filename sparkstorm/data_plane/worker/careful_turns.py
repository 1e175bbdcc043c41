"""Careful mode: one input per commit, announced to the slot first, because an earlier process died
in one of them.

Law: an input that runs was announced and is alone in its commit, so the input that was announced
last is the suspect when the process dies. An input with too many deaths is parked instead of run
(topology.max.worker.deaths).

Law: bolts take turns, and the mode lasts until each of them has run as many inputs as the slot asks
for, or has none left. The process may have died in any of them: in the order of components,
the first one with a backlog would use the mode up, and the next process would die as the last one.

Left out: halving a suspected batch until one row is left. It needs as many deaths as halvings, each
with a restart; a commit per row costs throughput only while it lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparkstorm.common.model.failure import killed
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.data_plane.executor.pieces import unfold
from sparkstorm.data_plane.worker.bolt_turns import BoltTurns
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.spout_turns import SpoutTurns
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.timers import TimerService

_TIMERS = -1  # in the place of a task


class CarefulTurns:
    """Turns of a worker in careful mode; true until so many inputs of each bolt have run without a
    death.
    """

    def __init__(
        self,
        parts: WorkerParts,
        timers: TimerService,
        bolt_turns: BoltTurns,
        spout_turns: SpoutTurns,
    ) -> None:
        self._timers = timers
        self._bolt_turns = bolt_turns
        self._spout_turns = spout_turns
        self._task_set = parts.task_set
        self._backpressure = parts.backpressure
        self._failures = parts.failures
        self._reporter = parts.reporter
        self._units = parts.plan.careful
        self._is_on = parts.plan.careful > 0
        self._runs: Counter[int] = Counter()  # by task
        self._first = 0  # of the bolts, in the next turn

    def __bool__(self) -> bool:
        return self._is_on

    def run(self, epoch: Epoch, now_ms: int) -> bool:
        """Run one input; return whether there was any."""
        self._bolt_turns.take_posts(epoch)
        bolts = list(self._task_set.bolts.values())
        if any(bolt.is_thread_busy for bolt in bolts):
            # The suspected input is with a thread: no other input may be announced in its place.
            return False
        self._bolt_turns.run_ticks(epoch, now_ms)
        task = self._fire(epoch, now_ms)
        if task is None:
            task = self._run_bolt(epoch, bolts, now_ms)
        if task is None:
            task = self._ask_spouts(epoch)
        # An idle turn does not count: it has executed no input.
        if task is not None:
            self._runs[task] += 1
            if self._runs[task] >= self._units and not any(map(self._is_unproven, bolts)):
                self._is_on = False
                self._bolt_turns.end_careful()
                self._reporter.passed()
        return task is not None

    def _fire(self, epoch: Epoch, now_ms: int) -> int | None:
        """Fire one timer or window; return what stands for its task, None if none is due."""
        fired = self._timers.fire_one(epoch, now_ms, self._reporter.trying)
        if fired is None:
            return None
        self._bolt_turns.deliver(epoch, fired)
        return _TIMERS

    def _run_bolt(self, epoch: Epoch, bolts: Sequence[BoltTask], now_ms: int) -> int | None:
        """Run one input of the next bolt that has one; return its task, None if none has."""
        for index in range(self._first, self._first + len(bolts)):
            bolt = bolts[index % len(bolts)]
            did = not bolt.is_paused and self._try_held(epoch, bolt, now_ms)
            if not did and not self._backpressure.holds_back(bolt.task):
                did = self._try_bolt(epoch, bolt)
            if did:
                self._first = (index + 1) % len(bolts)
                return bolt.task
        return None

    def _ask_spouts(self, epoch: Epoch) -> int | None:
        """Ask each spout for one tuple; return the task of one that emitted, None if none did."""
        asked = None
        for spout in self._task_set.spouts.values():
            # A spout that kills its worker is named too, but has no row that could be parked.
            self._reporter.trying(spout.task, "spout", 0)
            if self._spout_turns.ask_one(epoch, spout, 1):
                asked = spout.task
        return asked

    def _is_unproven(self, bolt: BoltTask) -> bool:
        """Return whether a bolt has an input to run, and has not run as many as prove it."""
        return (
            self._runs[bolt.task] < self._units
            and not bolt.is_full
            and not self._backpressure.holds_back(bolt.task)
            and bolt.inbox.next_chunk() is not None
        )

    def _try_held(self, epoch: Epoch, bolt: BoltTask, now_ms: int) -> bool:
        if (held := bolt.held.take_due(now_ms)) is None:
            return False
        # A held input has left the stream; its key is the name that it keeps over restarts.
        if poison := self._failures.poison(row := (bolt.task, f"held:{held.key}", 0)):
            bolt.let_go(held.key)
            self._failures.park(
                epoch, bolt, held.tuple, poison.deaths, killed(poison.deaths, poison.end)
            )
        else:
            self._reporter.trying(*row)
            self._failures.try_again(epoch, bolt, held)
            self._bolt_turns.finish(epoch, bolt)
        return True

    def _try_bolt(self, epoch: Epoch, bolt: BoltTask) -> bool:
        chunk = bolt.inbox.next_chunk()
        if chunk is None or bolt.is_full:
            return False
        if poison := self._failures.poison(row := (bolt.task, chunk.name, chunk.done)):
            tup = Tuple(*unfold(chunk.part(chunk.done, chunk.done + 1))[0])
            self._failures.park(epoch, bolt, tup, poison.deaths, killed(poison.deaths, poison.end))
            self._bolt_turns.consume(epoch, bolt, chunk, 1)
            return True
        self._reporter.trying(*row)
        self._bolt_turns.run_chunk(epoch, bolt, chunk, 1)
        return True
