"""A worker's knowledge of its store's incarnation: what it expects at the claim, and the mark that its heartbeats carry."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from typing import Any

from sparkstorm.executor.runner import ReportError
from sparkstorm.model.failure import Failure, FailureKind
from sparkstorm.model.worker_spec import StoreMark
from sparkstorm.settings import CONTINUE
from sparkstorm.transport.base import Claim, Expected
from sparkstorm.worker.epoch import IdSource
from sparkstorm.worker.tasks.worker_plan import WorkerPlan


def expected_of(plan: WorkerPlan, ids: IdSource) -> Expected:
    """Return what a worker's claim expects of the store."""
    return Expected(plan.store_mark, plan.settings.store_loss == CONTINUE, f"{ids.root():016x}")


class StoreWitness:
    """Newest write of the store that this worker knows of, and the newest one that no tail may take.

    Once a second, with a heartbeat, the newest write becomes a sample; a commit costs two assignments.
    """

    def __init__(self, plan: WorkerPlan, claim: Claim, now_ms: int, report: ReportError) -> None:
        known = plan.store_mark
        self._step, self._time_ms = claim.step, now_ms
        self._tail_ms = plan.settings.store_tail_ms
        self._mark = StoreMark(
            claim.incarnation, claim.generation, claim.step, now_ms, known.floor if known else 0, known.losses if known else ()
        )
        if claim.loss:
            self._mark = self._mark.with_loss(claim.loss)
            task = min(plan.tasks)
            text = f"{claim.loss}; it goes on with what is left (topology.store.loss=continue)"
            report(Failure(FailureKind.SYSTEM, text, plan.component_by_task[task], task))
        self._samples = deque([(now_ms, claim.step)])  # (time, step), oldest first: the first is the floor once it is old enough

    def note(self, step: int, now_ms: int) -> None:
        """Take in the number of a commit."""
        self._step, self._time_ms = step, now_ms

    def mark(self) -> StoreMark:
        """Return what is known now."""
        if self._step > self._samples[-1][1]:
            self._samples.append((self._time_ms, self._step))
        bound_ms = self._time_ms - self._tail_ms
        while len(self._samples) > 1 and self._samples[1][0] <= bound_ms:
            self._samples.popleft()
        old_ms, old_step = self._samples[0]
        floor = max(self._mark.floor, old_step) if old_ms <= bound_ms else self._mark.floor
        before = self._mark
        self._mark = StoreMark(before.incarnation, before.generation, self._step, self._time_ms, floor, before.losses)
        return self._mark

    def figures(self) -> dict[str, Any]:
        """Return the mark for a heartbeat."""
        found = asdict(self.mark())
        return {**found, "losses": list(found["losses"])}
