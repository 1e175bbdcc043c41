"""Owns how a caller waits for others to work: by sleeping in real time, or by driving a simulated cluster."""

import time
from collections.abc import Callable
from typing import TypeAlias

WaitUntil: TypeAlias = Callable[[Callable[[], bool], int], bool]
"""Waits until a condition holds or a number of milliseconds has passed; returns whether it holds."""

_PAUSE_S = 0.01


def wait_in_real_time(condition: Callable[[], bool], timeout_ms: int) -> bool:
    """Look at a condition every ten milliseconds."""
    deadline = time.monotonic() + timeout_ms / 1000
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)
    return True
