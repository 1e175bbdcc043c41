"""Time of a worker's loop by state, and of each of its tasks: in its code, and held back by cause.
PURE.

A lap gives all time since the last one to one state, so that the states of a loop sum to the time
that has passed. Laps are taken at the steps of the loop and at the turns of a task, never per
tuple: one clock read per tuple would cost more than most bolts. Microseconds, differences of
absolute readings: fractions that one lap loses, the next one has.
"""

from __future__ import annotations

from sparkstorm.data_plane.transport.progress import IDLE


class LoopTime:
    """Laps of one loop; `spent_us` by state grows in place."""

    __slots__ = ("spent_us", "rest", "_since_us")

    def __init__(self, spent_us: list[int], now_us: int) -> None:
        self.spent_us = spent_us
        self.rest = IDLE  # state between two steps
        self._since_us = now_us

    def lap(self, state: int, now_us: int) -> None:
        """Give the time since the last lap to a state."""
        # In place: the list is the progress record's own, so that no commit copies it.
        self.spent_us[state] += now_us - self._since_us
        self._since_us = now_us


class TaskTime:
    """One task's time since `take` was called last."""

    __slots__ = ("busy_us", "pause", "_paused_us", "_since_us")

    def __init__(self) -> None:
        self.busy_us = 0
        self.pause: int | None = None  # cause for which it is held back now
        self._paused_us = dict[int, int]()
        self._since_us = 0

    def add(self, took_us: int) -> None:
        """Count time in its code."""
        self.busy_us += took_us

    def hold(self, cause: int | None, now_us: int) -> None:
        """Begin a pause, end one (None), or go on with another cause."""
        # A pause that changes its cause is cut here: each cause has its own time.
        if self.pause is not None:
            self._paused_us[self.pause] = (
                self._paused_us.get(self.pause, 0) + now_us - self._since_us
            )
        self.pause = cause
        self._since_us = now_us

    @property
    def has_news(self) -> bool:
        """Return whether `take` would return anything."""
        return bool(self.busy_us) or self.pause is not None or bool(self._paused_us)

    def take(self, now_us: int) -> tuple[int, dict[int, int]]:
        """Return and forget the busy time and the paused time by cause; a pause goes on."""
        if self.pause is not None:
            # Else a pause that lasts would be counted only when it is over, and `status` shows none
            # meanwhile.
            self.hold(self.pause, now_us)
        busy_us = self.busy_us
        self.busy_us = 0
        paused_us = self._paused_us
        self._paused_us = {}
        return busy_us, paused_us
