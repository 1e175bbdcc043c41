"""Simulated time of workers: a worker's clock may be ahead of the simulation's while the worker is
busy, and behind it by what its machine's was set back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkstorm.common.clock import SimClock

_stepping: list[WorkerClock] = []
_of_thread = threading.local()


class SimulatedDeath(BaseException):
    """Exception in a component (die()): its worker's process is gone at once, as after a segfault
    or a kill -9.
    """


class WorkerClock:
    """The simulation's clock plus what its worker has spent on the step at hand, less what its
    machine's clock is behind.
    """

    def __init__(self, clock: SimClock, behind_ms: int = 0) -> None:
        self._clock = clock
        self.behind_ms = behind_ms
        self.busy_until_ms = 0  # of the simulation's time

    def now_ms(self) -> int:
        """The present moment for this worker."""
        return self.sim_ms() - self.behind_ms

    def sim_ms(self) -> int:
        """The present moment of the simulation, or when this worker is done with its step."""
        return max(self._clock.now_ms(), self.busy_until_ms)

    def now_us(self) -> int:
        """The present moment for this worker in microseconds."""
        return 1000 * self.now_ms()

    def spend(self, ms: int) -> None:
        """Be busy for so long from now on."""
        if ms < 0:
            raise ValueError(f"time does not run backwards: {ms} ms")
        self.busy_until_ms = self.sim_ms() + ms

    @property
    def is_busy(self) -> bool:
        """Return whether this worker is still at its last step."""
        return self.busy_until_ms > self._clock.now_ms()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the clock that `spend` means."""
        _stepping.append(self)
        try:
            yield
        finally:
            _stepping.pop()


def spend(ms: int) -> None:
    """Keep the calling component's worker busy for `ms` simulated milliseconds.

    RuntimeError outside a simulation, and on a real thread of a blocking component.
    """
    if (sleep := getattr(_of_thread, "sleep", None)) is not None:
        sleep(ms)
        return
    if not _stepping:
        raise RuntimeError("spend() can only be called by a component that a LocalCluster runs")
    _stepping[-1].spend(ms)


def spend_by(sleep: Callable[[int], None]) -> None:
    """Have `spend` on the calling thread, a simulated one, wait by this function."""
    _of_thread.sleep = sleep
