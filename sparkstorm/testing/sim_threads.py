"""Threads of blocking spouts in a simulation: one of them runs at a time, while it is stepped."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from sparkstorm.data_plane.worker.tasks.blocking_spout import SourceThread
from sparkstorm.testing.simulation import SimulatedDeath, Simulation, spend_by


class SimThread(SourceThread):
    """A SourceThread as an actor: its code runs until it rests or spends time, and goes on when
    that time is over. `paused_until_ms` is that of its process.
    """

    def __init__(
        self, run: Callable[[], None], simulation: Simulation, paused_until_ms: Callable[[], int]
    ) -> None:
        self._run = run
        self._simulation = simulation
        self._paused_until_ms = paused_until_ms
        self._turn = threading.Semaphore(0)  # of this thread, given by the simulation's
        self._back = threading.Semaphore(0)
        self._due_ms = 0
        self._sleeps_until_ms = 0  # `spend`, which no ring ends
        self._hurry_ms = 0  # how much of it the end of its process takes no time for
        self._is_rung = self._is_dead = self._is_over = False
        self._thread = threading.Thread(target=self._body, name="blocking-spout", daemon=True)

    # -- as a source's wrapper sees it -------------------------------------------------------------

    def start(self) -> None:
        """Start it: it is due now."""
        self._thread.start()
        self._simulation.add(self, has_threads=False)

    def join(self, seconds: float) -> None:
        """Let it go on until its end without waiting, by so much time at the most."""
        self._hurry_ms = int(1000 * seconds)
        while self.is_alive:
            left_ms = max(0, self._sleeps_until_ms - self._simulation.clock.now_ms())
            if left_ms > self._hurry_ms:
                return
            self._hurry_ms -= left_ms
            self._go_on()

    def ring(self) -> None:
        """End its rest, or its next one."""
        self._is_rung = True
        self._simulation.wake(self)

    def rest(self, seconds: float) -> None:
        """Rest, on the thread itself."""
        if not self._is_rung:
            self._due_ms = self._simulation.clock.now_ms() + max(1, math.ceil(1000 * seconds))
            self._wait()
        self._is_rung = False

    # -- as the simulation sees it -----------------------------------------------------------------

    def step(self, now_ms: int) -> int | None:
        """Let it run until it waits."""
        due_ms = max(self._sleeps_until_ms, self._paused_until_ms())
        if due_ms > now_ms:
            return due_ms
        self._go_on()
        return self._due_ms

    def is_woken(self) -> bool:
        """Return False: who rings it makes it due."""
        return False

    def wait_for_threads(self) -> bool:
        """Do nothing: it runs only while it is stepped."""
        return False

    def kill(self) -> None:
        """End it where it is, with its process."""
        self._is_dead = True
        while self.is_alive:
            self._go_on()

    def _go_on(self) -> None:
        self._turn.release()
        self._back.acquire()
        if self._is_over:
            self._thread.join()
            self._simulation.discard(self)

    # -- the thread --------------------------------------------------------------------------------

    def _body(self) -> None:
        self._turn.acquire()
        spend_by(self._sleep)
        try:
            if not self._is_dead:
                self._run()
        except SimulatedDeath:
            pass
        finally:
            self._is_over = True
            self._back.release()

    def _sleep(self, ms: int) -> None:
        hurried_ms = min(ms, self._hurry_ms)
        self._hurry_ms -= hurried_ms
        if ms > hurried_ms:
            self._due_ms = self._sleeps_until_ms = self._simulation.clock.now_ms() + ms - hurried_ms
            self._wait()

    def _wait(self) -> None:
        """Give the turn back, and go on with the next one; raise in a process that is dead."""
        if not self._is_dead:
            self._back.release()
            self._turn.acquire()
        if self._is_dead:
            raise SimulatedDeath
