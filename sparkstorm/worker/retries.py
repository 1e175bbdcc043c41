"""Treatment of failed inputs under each delivery guarantee (docs/guarantees.md).

exactly-once: tried again at this task after a back-off, at most `topology.max.retries` times, then parked in the
dead-letter stream; only then does its tree fail. at-least-once: its tree fails, the spout may emit it again.
at-most-once: dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable

from sparkstorm.executor.runner import ReportError
from sparkstorm.model.dead_letter import DeadLetter
from sparkstorm.model.tuples import Tuple
from sparkstorm.worker.epoch import Epoch
from sparkstorm.worker.progress import TaskCounts
from sparkstorm.worker.tasks.bolt_task import BoltTask
from sparkstorm.worker.tasks.pending_inputs import PendingInput
from sparkstorm.worker.tasks.task_factory import WorkerPlan

_LONGEST_BACK_OFF_MS = 30_000


class RetryPolicy:
    """Decides per failed input; collects dead letters for the next commit."""

    def __init__(
        self, plan: WorkerPlan, count: Callable[[int], TaskCounts], report: ReportError, now_ms: Callable[[], int]
    ) -> None:
        self._plan = plan
        self._count = count
        self._report = report
        self._now_ms = now_ms
        self._delivery = plan.delivery
        self.parked: list[bytes] = []

    def deaths_of(self, row: tuple[int, str, int]) -> int:
        """Return the number of worker deaths over this input when it reaches the limit, else 0."""
        deaths = self._plan.deaths_by_row.get(row, 0)
        return deaths if deaths >= self._plan.settings.max_worker_deaths else 0

    def settle(self, epoch: Epoch, bolt: BoltTask, tup: Tuple, reason: str) -> None:
        """A first failure of an input."""
        self._report(bolt.component, bolt.task, reason)
        if self._delivery.is_exactly_once:
            self._retry_or_park(epoch, bolt, PendingInput(tup, 0, bolt.oldest_ms, bolt.new_key()), reason)
        else:
            self._fail(epoch, bolt, tup, reason)

    def try_again(self, epoch: Epoch, bolt: BoltTask, held: PendingInput) -> None:
        """A held input is due."""
        bolt.begin(held.born_ms)
        held.due_ms = None
        failed = bolt.run(epoch, [held.tuple])
        if failed:
            self._report(bolt.component, bolt.task, failed[0][1])
            self._retry_or_park(epoch, bolt, held, failed[0][1])
        elif not any(held.tuple is t for t in bolt.runner.unfinished([held.tuple])):
            bolt.let_go(held.key)
            bolt.done_since.append(held.since_us)
            epoch.let_go(held.tuple.roots, held.edge)

    def take_late(self, epoch: Epoch, bolt: BoltTask) -> None:
        """Acks and fails of inputs held since an earlier epoch."""
        runner = bolt.runner
        acks, runner.late_acks = runner.late_acks, []
        failures, runner.late_failures = runner.late_failures, []
        for tup in acks:
            key = bolt.held_key(tup)
            if key is not None:
                held = bolt.let_go(key)
                bolt.done_since.append(held.since_us)
                epoch.let_go(tup.roots, held.edge)
        for tup, reason in failures:
            key = bolt.held_key(tup)
            if key is not None:
                self._report(bolt.component, bolt.task, reason)
                self._take_late_failure(epoch, bolt, bolt.held[key], reason)

    def park(self, epoch: Epoch, bolt: BoltTask, tup: Tuple, attempts: int, reason: str) -> None:
        """Put an input into the dead-letter stream with its cause; its tree fails."""
        letter = DeadLetter(
            bolt.component, bolt.task, tup.component, tup.task, tup.stream, tup.fields, tup.values, attempts, reason, self._now_ms()
        )
        self.parked.append(letter.encode(self._plan.codec))
        self._count(bolt.task).parked += 1
        self._report(bolt.component, bolt.task, f"parked after {attempts} tries: {reason}")
        self._fail(epoch, bolt, tup, reason)

    def _take_late_failure(self, epoch: Epoch, bolt: BoltTask, held: PendingInput, reason: str) -> None:
        if self._delivery.is_exactly_once:
            self._retry_or_park(epoch, bolt, held, reason)
            return
        bolt.let_go(held.key)
        self._fail(epoch, bolt, held.tuple, reason)

    def _retry_or_park(self, epoch: Epoch, bolt: BoltTask, held: PendingInput, reason: str) -> None:
        held.attempts += 1
        held.reason = reason
        if held.attempts > self._delivery.retries:
            if held.key in bolt.held:
                bolt.let_go(held.key)
            self.park(epoch, bolt, held.tuple, held.attempts, reason)
            return
        self._count(bolt.task).retried += 1
        back_off_ms = min(self._delivery.back_off_ms * 2 ** (held.attempts - 1), _LONGEST_BACK_OFF_MS)
        held.due_ms = self._now_ms() + back_off_ms
        bolt.hold(held)

    def _fail(self, epoch: Epoch, bolt: BoltTask, tup: Tuple, reason: str) -> None:
        """Fail the tree of an input: the epoch puts an edge into it that nobody consumes, so it cannot end as acked."""
        epoch.fail(tup.roots, f"{bolt.component}: {reason}")
        self._count(bolt.task).failed += 1
