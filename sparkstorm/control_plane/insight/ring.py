"""Points in time of the last 24 hours, the older the further apart, in bounded memory. PURE."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Generic, TypeVar

Item = TypeVar("Item")
Level = tuple[int, int]
"""Milliseconds between two points, and how many are kept."""

FINE: tuple[Level, ...] = ((1_000, 600), (10_000, 1_080), (60_000, 1_440))
"""For components: 10 minutes, 3 hours, 24 hours; 3,120 points."""
COARSE: tuple[Level, ...] = ((1_000, 75), (10_000, 75), (60_000, 190), (600_000, 150))
"""For tasks and whole records: enough for each window's begin; 490 points."""


_time = itemgetter(0)


class Ring(Generic[Item]):
    """Items by time; a level takes the first item of each of its steps."""

    def __init__(self, levels: Sequence[Level]) -> None:
        self._levels = [(step_ms, deque[tuple[int, Item]](maxlen=size)) for step_ms, size in levels]

    def add(self, time_ms: int, item: Item) -> None:
        """Keep an item; one that is older than the newest begins afresh: a clock was set back."""
        if self._levels[0][1] and time_ms < self._levels[0][1][-1][0]:
            self.clear()
        for step_ms, points in self._levels:
            if not points or points[-1][0] // step_ms != time_ms // step_ms:
                points.append((time_ms, item))

    def takes(self, time_ms: int) -> bool:
        """Return whether an item of that moment would be kept."""
        return any(
            not points or points[-1][0] // step_ms != time_ms // step_ms or time_ms < points[-1][0]
            for step_ms, points in self._levels
        )

    def clear(self) -> None:
        """Forget everything."""
        for _, points in self._levels:
            points.clear()

    def before(self, time_ms: int) -> tuple[int, Item] | None:
        """Return the newest point at or before a moment; None when all are later."""
        for _, points in self._levels:
            if points and points[0][0] <= time_ms:
                return points[bisect_right(points, time_ms, key=_time) - 1]
        return None

    def oldest(self) -> tuple[int, Item] | None:
        """Return the oldest point."""
        return min((points[0] for _, points in self._levels if points), key=_time, default=None)

    def since(self, time_ms: int) -> list[tuple[int, Item]]:
        """Return the points of the finest level that reaches back so far, with the one before."""
        oldest = self.oldest()
        if oldest is None:
            return []
        from_ms = max(time_ms, oldest[0])
        points = next(level for _, level in self._levels if level[0][0] <= from_ms)
        return list(points)[bisect_right(points, from_ms, key=_time) - 1 :]

    def times(self) -> list[int]:
        """Return the times of all points, oldest first."""
        return sorted({at_ms for _, points in self._levels for at_ms, _ in points})
