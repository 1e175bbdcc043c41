"""Simulation: steps actors in one thread in a seeded order and advances time to the next due step.
A worker's clock may be ahead of the simulation's while the worker is busy, and behind it by what its
machine's was set back.

After trio's autojump clock and timely's `step`. Equal seeds give equal runs: no actor reads a real
clock or unseeded random numbers.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from sparkstorm.common.clock import SimClock

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
_stepping: list[WorkerClock] = []
_of_thread = threading.local()


class Actor(Protocol):
    """Part of a simulation that is stepped. `step` never sleeps; its result None means that only a
    wake-up makes it due again.
    """

    def step(self, now_ms: int) -> int | None:
        """Do what is due; return when to be called again."""

    def is_woken(self) -> bool:
        """Return whether it has new input since its last step."""

    def wait_for_threads(self) -> bool:
        """Wait in real time for its busy threads; return whether they left something to do."""


class Simulation:
    """Clock, random numbers and actors; `watchers` are called after every step."""

    def __init__(self, seed: int = 0, start_ms: int = START_MS) -> None:
        self.clock = SimClock(start_ms)
        self.start_ms = start_ms
        self.most_steps: int | None = None
        self.random = random.Random(seed)
        self.watchers: list[Callable[[], None]] = []
        self.steps = 0
        # of simulated processes: counted here, so that equal seeds show equal numbers
        self.pids = itertools.count(1000)
        self._due_ms: dict[Actor, int | None] = {}
        self._threaded: dict[Actor, None] = {}

    @property
    def actors(self) -> tuple[Actor, ...]:
        """Actors in the order of their addition."""
        return tuple(self._due_ms)

    def add(self, actor: Actor, has_threads: bool = True) -> None:
        """Let an actor take part; `wait_for_threads` of one without its own threads is never
        called.
        """
        self._due_ms[actor] = self.clock.now_ms()
        if has_threads:
            self._threaded[actor] = None

    def discard(self, actor: Actor) -> None:
        """Remove an actor."""
        self._due_ms.pop(actor, None)
        self._threaded.pop(actor, None)

    def wake(self, actor: Actor) -> None:
        """Make an actor due now."""
        if actor in self._due_ms:
            self._due_ms[actor] = self.clock.now_ms()

    def rest(self, actor: Actor) -> None:
        """Step an actor when it is woken, not before, unless it is due now or was woken already."""
        due_ms = self._due_ms.get(actor)
        if due_ms is not None and due_ms > self.clock.now_ms():
            self._due_ms[actor] = None

    def wake_all(self) -> None:
        """Make every actor due now."""
        for actor in self._due_ms:
            self.wake(actor)

    def next_due_ms(self) -> int | None:
        """Return when an actor is due next; None if all wait to be woken."""
        return min((due for due in self._due_ms.values() if due is not None), default=None)

    def run_round(self) -> bool:
        """Step every due or woken actor once, in random order; return whether there was any."""
        now_ms = self.clock.now_ms()
        ready = [
            a
            for a, due in self._due_ms.items()
            if (due is not None and due <= now_ms) or a.is_woken()
        ]
        self.random.shuffle(ready)
        for actor in ready:
            self.step(actor)
        return bool(ready)

    def step(self, actor: Actor) -> None:
        """Step one actor, unless it was removed."""
        if actor not in self._due_ms:
            return
        self.steps += 1
        if self.most_steps is not None and self.steps > self.most_steps:
            raise TimeoutError(
                f"the simulation has not come to its end after {self.most_steps} steps"
            )
        due_ms = actor.step(self.clock.now_ms())
        if actor in self._due_ms:
            self._due_ms[actor] = due_ms
        for watch in self.watchers:
            watch()

    def advance(self, ms: int) -> None:
        """Advance time by `ms`, stepping every actor that becomes due."""
        until_ms = self.clock.now_ms() + ms
        while self.run_round() or self.leap(until_ms):
            pass

    def leap(self, until_ms: int) -> bool:
        """Move time on to what is due next, at most to a limit; return whether anything is due
        before.
        """
        posted = [actor.wait_for_threads() for actor in self._threaded]  # every actor gets one
        if any(posted):
            return True
        due_ms = self.next_due_ms()
        is_over = due_ms is None or due_ms > until_ms
        self.clock.advance(
            max(0, (until_ms if due_ms is None or is_over else due_ms) - self.clock.now_ms())
        )
        return not is_over


class SimulatedDeath(BaseException):
    """Exception in a component (`die()`): its worker is gone at once, as after a kill -9."""


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
