"""Waiting in tests: for a condition, with a limit that a loaded machine keeps too."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 60.0


def wait_until(condition: Callable[[], object], what: str = "the condition", limit_s: float = LIMIT_S) -> float:
    """Wait until the condition is true and return the seconds that it took; AssertionError naming `what` after the limit."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, f"{what}: not within {limit_s:g} s"
        time.sleep(0.005)
    return time.monotonic() - began
