"""Time-outs of a spout's trees and ageing of an acker's ledger (topology.message.timeout.secs).

A tuple that waits is not a failed tuple: nothing is given up that was born after the oldest root still waiting in any
stream (acks on their way included), for its next try or for a thread; user code that simply never acks is not
waiting, its trees time out as in Storm. Without time-outs ledgers forget only what nobody has begun: messages for trees
that had already ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparkstorm.model.failure import Failure, FailureKind
from sparkstorm.transport.base import Transport
from sparkstorm.worker.tasks.spout_task import SpoutTask
from sparkstorm.worker.tasks.task_factory import TaskSet
from sparkstorm.worker.tasks.worker_plan import WorkerPlan

ReportMany = Callable[[Failure, int], None]
"""Takes a failure and how many trees ended by it."""


class Timeouts:
    """Looks about once a second; reads the low watermark only when something is old enough to be given up."""

    def __init__(self, plan: WorkerPlan, task_set: TaskSet, transport: Transport, now_ms: int, report: ReportMany) -> None:
        self._timeout_ms = plan.settings.message_timeout_ms
        self._is_tracking = bool(plan.ackers)
        self._gives_up = plan.settings.has_message_timeouts
        self._every_ms = max(1, min(1000, self._timeout_ms // 10))
        self._plan = plan
        self._task_set = task_set
        self._transport = transport
        self._report = report
        self._next_ms = now_ms + self._every_ms
        self._rotated_ms = now_ms
        topology = plan.topology.components
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
        late_spouts = [s for s in self._task_set.spouts.values() if self._is_late(s.pending.oldest_emit_ms, now_ms)]
        must_rotate = now_ms - self._rotated_ms >= self._timeout_ms and self._has_entries
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
