"""Treatment of failed inputs under each delivery guarantee (docs/guarantees.md).

exactly-once: tried again at this task after a back-off, at most `topology.max.retries` times, then
parked in the dead-letter stream; only then does its tree fail. at-least-once: its tree fails, the
spout may emit it again. at-most-once: dropped and counted.

Law: a failed execution has left nothing behind before it comes here (the runner has undone it), and
each decision here is part of the same commit as the cursor that passes the input. Left out: trying
again in place, while the entries behind it wait: one bad input would hold up its task for the whole
back-off. So a retry runs after inputs that came later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.worker_spec import Suspect
from sparkstorm.data_plane.executor.runner import ReportError
from sparkstorm.data_plane.task_kit.held import PendingInput
from sparkstorm.data_plane.transport.progress import TaskCounts
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.circuit_breaker import CircuitBreaker
from sparkstorm.data_plane.worker.tasks.letters import Letters


class FailedInputs:
    """Treatment of failed inputs by the RetryPolicy of their topology; collects dead letters for
    the next commit.
    """

    def __init__(
        self,
        letters: Letters,
        count: Callable[[int], TaskCounts],
        report: ReportError,
        now_ms: Callable[[], int],
        breaker: CircuitBreaker,
    ) -> None:
        self._letters = letters
        plan = self._plan = letters.plan
        self._breaker = breaker
        self._count = count
        self._report = report
        self._now_ms = now_ms
        self._is_exactly_once = plan.delivery.is_exactly_once
        self._policy = plan.retry_policy
        self.parked: list[bytes] = []

    def poison(self, row: tuple[int, str, int]) -> Suspect | None:
        """Return the worker deaths over this input when their number reaches the limit."""
        suspect = self._plan.suspect_by_row.get(row)
        return (
            suspect
            if suspect is not None and suspect.deaths >= self._plan.settings.max_worker_deaths
            else None
        )

    def settle(
        self,
        epoch: Epoch,
        bolt: BoltTask,
        tup: Tuple,
        failure: Failure,
        which: tuple[int, int] | None = None,
    ) -> None:
        """Treat the first failure of an input; `which` of how many failed calls of this turn it
        is.
        """
        failure = self._noted(bolt, failure, self._waited_ms(bolt))
        self._breaker.note_failed(bolt.component)
        for observer in bolt.observers:
            observer.failed(tup, failure)
        if self._is_exactly_once:
            self._retry_or_park(epoch, bolt, bolt.pending(tup), failure, which)
        else:
            self._fail(epoch, bolt, tup, failure)

    def try_again(self, epoch: Epoch, bolt: BoltTask, held: PendingInput) -> None:
        """Try a held input that is due."""
        bolt.begin(held.born_ms)
        held.due_ms = None
        # Only the last try notes the keys that it uses: noting costs a call for each, and only a
        # dead letter holds them.
        is_last = held.attempts == self._policy.retries
        self._breaker.note_try(bolt.component)
        with (
            self._letters.noting(bolt) if is_last else contextlib.nullcontext(),
            bolt.placed(held.tuple),
        ):
            failed = bolt.execute_tuples(epoch, [held.tuple])
        if failed:
            self._retry_or_park(
                epoch, bolt, held, self._noted(bolt, failed[0][1], self._held_ms(held))
            )
        # A bolt that acks later may have kept it: it is held on, with the tries that it has had.
        elif not any(held.tuple is t for t in bolt.runner.unfinished([held.tuple])):
            bolt.finish(held.key)
            epoch.let_go(held.tuple.roots, held.edge)

    def take_late(self, epoch: Epoch, bolt: BoltTask) -> None:
        """Acks and fails of inputs held since an earlier epoch."""
        acks, failures = bolt.runner.take_late()
        for observer in bolt.observers:
            observer.settled_late(acks, failures)
        for tup in acks:
            if (held := bolt.finish_late(tup)) is not None:
                epoch.let_go(tup.roots, held.edge)
        for tup, failure in failures:
            key = bolt.held.key_of(tup)
            # It may not be held any more: a bolt may fail an input that its time-out has parked.
            if key is not None:
                held = bolt.held.by_key[key]
                self._take_late_failure(
                    epoch, bolt, held, self._noted(bolt, failure, self._held_ms(held))
                )

    def park(
        self, epoch: Epoch, bolt: BoltTask, tup: Tuple, attempts: int, failure: Failure
    ) -> None:
        """Put an input into the dead-letter stream with its cause; its tree fails."""
        failure = self._complete(bolt, failure, failure.waited_ms)
        what = bolt.runner.parked_as(tup, failure.kind is FailureKind.KILLED)
        # Encoded now and not with the commit: the state that the call met is that of this moment.
        self.parked.append(
            self._letters.letter(bolt, what, attempts, failure).encode(self._plan.codec)
        )
        self._count(bolt.task).parked += 1
        text = f"parked after {counted(attempts, 'try', 'tries')}: {failure.text}"
        # Without the traceback: the last failed try has been reported with it.
        self._report(replace(failure, kind=FailureKind.PARKED, text=text, traceback=""))
        self._fail(epoch, bolt, tup, failure)

    def _noted(self, bolt: BoltTask, failure: Failure, waited_ms: Mapping[str, int]) -> Failure:
        """Report a failed execution; return its failure with place, time and waits."""
        failure = self._complete(bolt, failure, waited_ms)
        self._report(failure)
        return failure

    def _complete(self, bolt: BoltTask, failure: Failure, waited_ms: Mapping[str, int]) -> Failure:
        placed = replace(
            failure,
            component=bolt.component,
            task=bolt.task,
            time_ms=self._now_ms(),
            waited_ms=waited_ms,
        )
        return self._plan.placed(placed)

    def _waited_ms(self, bolt: BoltTask) -> dict[str, int]:
        """Return the waits, by place, of an input that fails for the first time."""
        now_ms = self._now_ms()
        waited = {"tree": max(0, now_ms - bolt.oldest_ms)} if bolt.oldest_ms else {}
        # The store's clock may differ from this host's: a time that cannot be is left out.
        if bolt.turn.sent_ms is not None and bolt.oldest_ms <= bolt.turn.sent_ms <= now_ms:
            waited["stream"] = now_ms - bolt.turn.sent_ms
        return waited

    def _held_ms(self, held: PendingInput) -> dict[str, int]:
        """Return the waits of an input that fails again: those before its first failure, and
        since.
        """
        now_ms = self._now_ms()
        last = held.failure
        waited = {} if last is None else dict(last.waited_ms)
        since_ms = held.born_ms if last is None else last.time_ms - waited.get("retries", 0)
        return {
            **waited,
            "tree": max(0, now_ms - held.born_ms),
            "retries": max(0, now_ms - since_ms),
        }

    def _take_late_failure(
        self, epoch: Epoch, bolt: BoltTask, held: PendingInput, failure: Failure
    ) -> None:
        # A further failure of the same input is no first execution: the breaker's share is one of
        # those.
        if not held.attempts:
            self._breaker.note_failed(bolt.component)
        if self._is_exactly_once:
            self._retry_or_park(epoch, bolt, held, failure)
            return
        bolt.let_go(held.key)
        self._fail(epoch, bolt, held.tuple, failure)

    def _retry_or_park(
        self,
        epoch: Epoch,
        bolt: BoltTask,
        held: PendingInput,
        failure: Failure,
        which: tuple[int, int] | None = None,
    ) -> None:
        held.attempts += 1
        held.failure = failure
        bolt.held.renew(held, self._plan.codec)
        if (wait_ms := self._policy.wait_ms(held.attempts)) is None:
            if held.key in bolt.held.by_key:
                bolt.let_go(held.key)
            self.park(epoch, bolt, held.tuple, held.attempts, failure)
            return
        self._count(bolt.task).retried += 1
        held.due_ms = self._now_ms() + wait_ms
        bolt.hold(held, which)

    def _fail(self, epoch: Epoch, bolt: BoltTask, tup: Tuple, failure: Failure) -> None:
        """Fail the tree of an input: the epoch puts an edge into it that no task consumes, so it
        cannot end as acked.
        """
        epoch.fail(tup.roots, failure)
        self._count(bolt.task).failed += 1
        self._breaker.note_given_up(failure)
