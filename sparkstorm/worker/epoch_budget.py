"""Budget of an epoch: limits on its time, rows and bytes, and batch sizes within it."""

from __future__ import annotations

from sparkstorm.settings import EpochSettings
from sparkstorm.worker.epoch import Epoch


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
