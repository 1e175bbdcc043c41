"""Tick tuples of one task, by the clock that its host has: the wall's, or the times of its rows."""

from __future__ import annotations

from sparkstorm.model.topology import SYSTEM, TICK_STREAM
from sparkstorm.model.tuples import Roots, Source, Tuple

TICK = Source(SYSTEM, -1, TICK_STREAM, ("rate_secs",))


class TickSchedule:
    """The clock's own tuples: untracked, never held, gone with the task. `due_ms` is when the next one is due."""

    __slots__ = ("_every_ms", "due_ms")

    def __init__(self, every_ms: int | None, due_ms: int | None = None) -> None:
        """Without a period there are no ticks; without a `due_ms` they begin with the first input."""
        self._every_ms = every_ms or 0
        self.due_ms = due_ms

    @staticmethod
    def from_now(every_ms: int, now_ms: int) -> TickSchedule:
        """Return a schedule whose first tick is a period from now."""
        return TickSchedule(every_ms, now_ms + every_ms)

    def begin(self, first_ms: int) -> None:
        """Begin with the first input at this time, unless it has begun: ticks then come at whole multiples of the period."""
        if self._every_ms and self.due_ms is None:
            self.due_ms = (first_ms // self._every_ms + 1) * self._every_ms

    def take(self, at_ms: int, roots: Roots = 0) -> Tuple:
        """Return the due tick; the next one is due a period after `at_ms`."""
        self.due_ms = at_ms + self._every_ms
        return Tuple((self._every_ms // 1000,), roots, TICK)
