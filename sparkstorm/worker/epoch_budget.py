"""Budget of an epoch: limits on its time, rows and bytes, and batch sizes within it."""

from __future__ import annotations

from sparkstorm.settings import EpochSettings
from sparkstorm.worker.epoch import Epoch
from sparkstorm.worker.tasks.task_factory import TaskSet
from sparkstorm.worker.tasks.worker_plan import WorkerPlan

_HELD_MS = 1


class Budget:
    """The budget of a worker's epochs: short ones while there is little to do, longer ones under load."""

    def __init__(self, settings: EpochSettings) -> None:
        self._idle_ms = settings.idle_ms
        self._loaded_ms = settings.loaded_ms
        self.rows = settings.rows
        self._bytes = settings.bytes
        self._ms = self._idle_ms
        self._deadline_ms = 0

    def begin(self, now_ms: int) -> None:
        """An epoch begins."""
        self._deadline_ms = now_ms + self._ms

    def is_over(self, epoch: Epoch, now_ms: int) -> bool:
        """Return whether this epoch must end."""
        return epoch.rows >= self.rows or epoch.bytes >= self._bytes or now_ms >= self._deadline_ms

    def left_to_drain(self, epoch: Epoch, now_ms: int) -> int:
        """Return how many local rows may still run once this epoch is over: up to twice its budget."""
        if epoch.bytes >= 2 * self._bytes or now_ms >= self._deadline_ms + self._ms:
            return 0
        return max(0, 2 * self.rows - epoch.rows)

    def end(self, was_over: bool) -> None:
        """An epoch ended because its budget was over, or because there was nothing left to do."""
        self._ms = min(self._ms * 2, self._loaded_ms) if was_over else max(self._ms // 2, self._idle_ms)

    def pace(self, pace: int, done: int, took_ms: int, most: int, sent_bytes: int) -> int:
        """Return the next batch size: work of a few milliseconds, from what the last batch took and sent."""
        adapted = pace
        if took_ms <= 1 and done == pace:
            adapted = min(pace * 2, most)
        elif took_ms > 4:
            adapted = max(1, pace * 4 // took_ms)
        share = self._bytes // 4
        return adapted if sent_bytes <= share else max(1, min(adapted, done * share // sent_bytes))


class AckHold:
    """An epoch without rows to send goes on for up to 1 ms: its acks leave with the next rows, in one commit instead of two."""

    def __init__(self, plan: WorkerPlan, crew: TaskSet, is_allowed: bool) -> None:
        """Nothing is held where the pace of a spout depends on its acks (topology.max.spout.pending)."""
        spouts = [name for name, component in plan.topology.components.items() if component.kind == "spout"]
        has_limit = any(plan.component_settings(name).max_spout_pending is not None for name in spouts)
        self._crew, self._is_allowed = crew, is_allowed and not has_limit
        self.until_ms = 0.0  # end of the epoch that is held; 0: none is

    def may_go_on(self, epoch: Epoch, now_us: int) -> bool:
        """Return whether an epoch need not be committed yet: it holds acks only, and has not waited for long."""
        crew = self._crew
        if not self._is_allowed or epoch.births or crew.blocks.has_rows:
            return False
        if not epoch.rows and not any(inbox.chunks or inbox.moved for inbox in crew.inboxes.values()):
            return False  # there is nothing to commit
        if any(spout.collector.immediate for spout in crew.spouts.values()):
            return False
        self.until_ms = self.until_ms or now_us / 1000 + _HELD_MS
        return now_us < 1000 * self.until_ms
