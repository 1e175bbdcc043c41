"""Reasons why a worker's spouts emit nothing at this moment, as sentences for its heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sparkstorm.model.names import counted
from sparkstorm.transport.progress import IDLE, TaskCounts
from sparkstorm.worker.backpressure import SPOUTS_STOP_AT, Backpressure
from sparkstorm.worker.tasks.spout_task import SpoutTask
from sparkstorm.worker.tasks.task_factory import TaskSet
from sparkstorm.worker.tasks.worker_plan import WorkerPlan


class Waiting:
    """Looks at a worker's backpressure and spouts."""

    def __init__(self, plan: WorkerPlan, task_set: TaskSet, backpressure: Backpressure, count: Callable[[int], TaskCounts]) -> None:
        self._plan, self._task_set, self._backpressure, self._count = plan, task_set, backpressure, count

    def blocked(self, refusal: str) -> list[str]:
        """Causes outside of the topology, which need an operator: a store that is full or refuses writes.

        `refusal`: the error of the commit that the store refuses, empty when there is none.
        """
        if refusal:
            return [refusal]
        if self._backpressure.is_store_filling and any(not spout.is_exhausted for spout in self._task_set.spouts.values()):
            return [
                f"Redis is at {self._backpressure.fullness:.0%} of its maxmemory, and spouts pause from {SPOUTS_STOP_AT:.0%} on: "
                "raise maxmemory there (embedded: sparkstorm.embedded.redis.maxmemory.mb), or delete what fills it"
            ]
        return []

    def state(self) -> int:
        """Return the state of the loop while it waits: paused when that holds every spout with anything left, else idle.

        A worker without such spouts is paused when one of its bolts is held back.
        """
        open_spouts = [spout.spent.pause for task, spout in self._task_set.spouts.items() if not self._count(task).is_exhausted]
        if open_spouts:
            return IDLE if None in open_spouts else open_spouts[0] or IDLE
        return next((p for bolt in self._task_set.bolts.values() if (p := bolt.spent.pause) is not None), IDLE)

    def gated(self) -> list[str]:
        """Backpressure inside the topology: a sentence for each component and cause; normal unless nothing moves."""
        found = (reason for spout in self._task_set.spouts.values() if not spout.is_exhausted for reason in self._of(spout))
        return list(dict.fromkeys(found))

    def _of(self, spout: SpoutTask) -> Iterator[str]:
        for task, size in self._backpressure.shut_by(spout.task):
            yield (
                f"spout '{spout.component}' pauses: {size:,} bytes wait for '{self._plan.component_by_task[task]}' "
                "(topology.inbox.high.bytes)"
            )
        if spout.pending.room == 0:
            yield (
                f"spout '{spout.component}' pauses: each task has {counted(len(spout.pending), 'tree')} open "
                "(topology.max.spout.pending)"
            )
