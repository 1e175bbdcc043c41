"""Clocks: they are handed in, so that a whole cluster can run under simulated time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time in whole milliseconds since 1970; never runs backwards within a process."""

    def now_ms(self) -> int:
        """The present moment."""
        ...

    def now_us(self) -> int:
        """The same in microseconds, for durations."""
        ...


class SystemClock:
    """The machine's clock: wall-clock time at its creation, then the steps of the monotonic clock.

    A correction of the machine's time (NTP, an operator) thus never makes timeouts fire early or
    late.
    """

    __slots__ = ("_offset_ns",)

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """The present moment."""
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def now_us(self) -> int:
        """The present moment in microseconds."""
        return (time.monotonic_ns() + self._offset_ns) // 1_000


class SimClock:
    """A clock that moves only when it is advanced."""

    __slots__ = ("_now_ms",)

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """The present simulated moment."""
        return self._now_ms

    def now_us(self) -> int:
        """The present simulated moment in microseconds."""
        return 1000 * self._now_ms

    def advance(self, delta_ms: int) -> int:
        """Move time on by `delta_ms` and return the new moment; ValueError when that would be
        backwards.
        """
        if delta_ms < 0:
            raise ValueError(f"time does not run backwards: {delta_ms} ms")
        self._now_ms += delta_ms
        return self._now_ms


def time_of_day(time_ms: int) -> str:
    """Return a moment's local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(time_ms / 1000))
