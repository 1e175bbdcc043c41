"""Schedule of tick tuples per bolt task (topology.tick.tuple.freq.secs, per component or for all)."""

from __future__ import annotations

from collections.abc import Mapping

from sparkstorm.model.topology import SYSTEM, TICK_STREAM
from sparkstorm.model.tuples import Source, Tuple
from sparkstorm.worker.tasks.bolt_task import BoltTask
from sparkstorm.worker.tasks.worker_plan import WorkerPlan


class Ticks:
    """The clock's own tuples: untracked, never held, gone with the worker."""

    def __init__(self, plan: WorkerPlan, bolts: Mapping[int, BoltTask], now_ms: int) -> None:
        self._bolts = bolts
        self._every_ms: dict[int, int] = {}
        for task, bolt in bolts.items():
            if every_ms := plan.component_settings(bolt.component).tick_ms:
                self._every_ms[task] = every_ms
        self._due_ms = {task: now_ms + every for task, every in self._every_ms.items()}
        self._source = Source(SYSTEM, -1, TICK_STREAM, ("rate_secs",))

    def due(self, now_ms: int) -> list[tuple[BoltTask, Tuple]]:
        """Bolts whose tick is due, each with a tick tuple."""
        found = []
        for task, due_ms in self._due_ms.items():
            if due_ms <= now_ms:
                every_ms = self._every_ms[task]
                self._due_ms[task] = now_ms + every_ms
                found.append((self._bolts[task], Tuple((every_ms // 1000,), 0, self._source)))
        return found

    def next_due_ms(self) -> int | None:
        """The earliest tick."""
        return min(self._due_ms.values(), default=None)
