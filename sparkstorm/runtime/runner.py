"""Owns what a bolt task wants of the code that runs a bolt: rows in, failures out; for windows and timers also time in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sparkstorm.model.tuples import Tuple

Failure = tuple[Tuple, str]
ReportError = Callable[[str, int, str], None]
"""Component, task and text of what went wrong."""


class Runner(Protocol):
    """Around any bolt."""

    bolt: Any
    late_acks: list[Tuple]
    late_failures: list[Failure]

    def run(self, tuples: Sequence[Tuple]) -> list[Failure]:
        """Execute every tuple; a failed one leaves no trace but its entry in the result."""

    def unfinished(self, tuples: Sequence[Tuple]) -> list[Tuple]:
        """Inputs of a run that wait for an ack."""

    def forget(self, tup: Tuple) -> None:
        """Expect no ack of this input."""


class Timing(Protocol):
    """Around a bolt with windows or timers."""

    given_up: list[tuple[Tuple, int, str]]
    late: int
    low_ms: int

    @property
    def is_waiting(self) -> bool:
        """Whether something is due and has not fired."""

    def advance(self, watermark_ms: int, now_ms: int, most: int = ...) -> int:
        """Fire what is due, no more than so many; returns how many have fired."""

    def next_name(self, watermark_ms: int, now_ms: int) -> str | None:
        """What would fire next, by a name that is the same after a restart; None when nothing would."""

    def give_up_next(self, now_ms: int, tries: int, reason: str) -> None:
        """Park what would fire next instead of firing it."""

    def next_due_ms(self) -> int | None:
        """When to call `advance` again though no watermark has come."""
