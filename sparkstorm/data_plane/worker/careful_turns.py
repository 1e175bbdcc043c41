"""Careful mode: one input per commit, announced to the slot first, because an earlier process died
in one of them.

Law: an input that runs was announced and is alone in its commit, so the input that was announced
last is the suspect when the process dies. An input with too many deaths is parked instead of run
(topology.max.worker.deaths).

Left out: halving a suspected batch until one row is left. It needs as many deaths as halvings, each
with a restart; a commit per row costs throughput only while it lasts.
"""

from __future__ import annotations

from sparkstorm.common.model.failure import killed
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.data_plane.executor.pieces import unfold
from sparkstorm.data_plane.worker.bolt_turns import BoltTurns
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.spout_turns import SpoutTurns
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.timers import TimerService

# Some 1.3 s of commits of 0.25 ms each next to the store. With half of it the process is more often
# careless again when a poison row comes, which costs one more restart; twice as many keep a worker
# slow for longer after a death that no row has caused. Not measured.
_UNITS = 5000


class CarefulTurns:
    """Turns of a worker in careful mode; true until so many inputs have run without a death."""

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
        self._left = _UNITS if parts.plan.is_careful else 0

    def __bool__(self) -> bool:
        return self._left > 0

    def run(self, epoch: Epoch, now_ms: int) -> bool:
        """Run one input; return whether there was any."""
        self._bolt_turns.take_posts(epoch)
        bolts = self._task_set.bolts.values()
        if any(bolt.is_thread_busy for bolt in bolts):
            # The suspected input is with a thread: no other input may be announced in its place.
            return False
        self._bolt_turns.run_ticks(epoch, now_ms)
        if (fired := self._timers.fire_one(epoch, now_ms, self._reporter.trying)) is not None:
            self._bolt_turns.deliver(epoch, fired)
        did = (
            fired is not None
            or any(self._try_held(epoch, bolt, now_ms) for bolt in bolts if not bolt.is_paused)
            or any(
                self._try_bolt(epoch, bolt)
                for bolt in bolts
                if not self._backpressure.holds_back(bolt.task)
            )
        )
        if not did:
            for spout in self._task_set.spouts.values():
                # A spout that kills its worker is named too, but has no row that could be parked.
                self._reporter.trying(spout.task, "spout", 0)
                did |= self._spout_turns.ask_one(epoch, spout, 1)
        # An idle turn does not count: it has executed no input.
        self._left -= did
        if not self._left:
            self._bolt_turns.end_careful()
            self._reporter.passed()
        return did

    def _try_held(self, epoch: Epoch, bolt: BoltTask, now_ms: int) -> bool:
        if (held := bolt.take_due(now_ms)) is None:
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
        chunk = bolt.next_chunk()
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
