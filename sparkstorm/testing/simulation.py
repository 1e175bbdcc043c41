"""Owns the schedule of a simulation: one thread, actors stepped in a seeded order, time that leaps to what is due next.

After trio's autojump clock and timely's `step`. Equal seeds give equal runs: nothing reads a real clock or real chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from sparkstorm.clock import SimClock

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


class Actor(Protocol):
    """Something that is stepped. Laws: `step` never sleeps; None means that only a wake-up makes it due again."""

    def step(self, now_ms: int) -> int | None:
        """Do what is due; return when to be called again."""

    def is_woken(self) -> bool:
        """Whether something has come for it since its last step."""

    def wait_for_threads(self) -> bool:
        """Wait, in real time, for threads of its own that are at work; whether they left something to do."""


class Simulation:
    """A clock, a source of chance and actors; `watchers` are called after every step, to check what must hold."""

    def __init__(self, seed: int = 0, start_ms: int = START_MS) -> None:
        self.clock = SimClock(start_ms)
        self.start_ms = start_ms
        self.most_steps: int | None = None
        self.random = random.Random(seed)
        self.watchers: list[Callable[[], None]] = []
        self.steps = 0
        self._due_ms: dict[Actor, int | None] = {}
        self._threaded: dict[Actor, None] = {}

    @property
    def actors(self) -> tuple[Actor, ...]:
        """Everybody, in the order of arrival."""
        return tuple(self._due_ms)

    def add(self, actor: Actor, has_threads: bool = True) -> None:
        """Let an actor take part, from now on; one without threads of its own is never asked for them."""
        self._due_ms[actor] = self.clock.now_ms()
        if has_threads:
            self._threaded[actor] = None

    def discard(self, actor: Actor) -> None:
        """Step it no more."""
        self._due_ms.pop(actor, None)
        self._threaded.pop(actor, None)

    def wake(self, actor: Actor) -> None:
        """Step it at the next opportunity."""
        if actor in self._due_ms:
            self._due_ms[actor] = self.clock.now_ms()

    def rest(self, actor: Actor) -> None:
        """Step it when it is woken, not before; one that is due now or was woken already is stepped first."""
        due_ms = self._due_ms.get(actor)
        if due_ms is not None and due_ms > self.clock.now_ms():
            self._due_ms[actor] = None

    def wake_all(self) -> None:
        """Step everybody at the next opportunity."""
        for actor in self._due_ms:
            self.wake(actor)

    def next_due_ms(self) -> int | None:
        """When somebody is due next; None when all wait to be woken."""
        return min((due for due in self._due_ms.values() if due is not None), default=None)

    def run_round(self) -> bool:
        """Step everybody who is due or woken, once, in random order; whether there was anybody."""
        now_ms = self.clock.now_ms()
        ready = [a for a, due in self._due_ms.items() if (due is not None and due <= now_ms) or a.is_woken()]
        self.random.shuffle(ready)
        for actor in ready:
            self.step(actor)
        return bool(ready)

    def step(self, actor: Actor) -> None:
        """Step one actor, unless it has gone."""
        if actor not in self._due_ms:
            return
        self.steps += 1
        if self.most_steps is not None and self.steps > self.most_steps:
            raise TimeoutError(f"the simulation has not come to its end after {self.most_steps} steps")
        due_ms = actor.step(self.clock.now_ms())
        if actor in self._due_ms:
            self._due_ms[actor] = due_ms
        for watch in self.watchers:
            watch()

    def advance(self, ms: int) -> None:
        """Let so much time pass, everybody doing what falls into it."""
        until_ms = self.clock.now_ms() + ms
        while self.run_round() or self.leap(until_ms):
            pass

    def leap(self, until_ms: int) -> bool:
        """Move time on to what is due next, at most to a limit; whether there is anything to do before the limit."""
        posted = [actor.wait_for_threads() for actor in self._threaded]  # everybody gets the chance
        if any(posted):
            return True
        due_ms = self.next_due_ms()
        is_over = due_ms is None or due_ms > until_ms
        self.clock.advance(max(0, (until_ms if due_ms is None or is_over else due_ms) - self.clock.now_ms()))
        return not is_over
