"""Waiting in tests: for a condition, with a limit that a loaded machine keeps too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from tests.system.polling import pause

LIMIT_S = 180.0


def wait_until(
    condition: Callable[[], object], what: str = "the condition", limit_s: float = LIMIT_S
) -> float:
    """Wait until the condition is true and return the seconds that it took; AssertionError naming
    `what` after the limit.
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, f"{what}: not within {limit_s:g} s"
        pause(time.monotonic() - began)
    return time.monotonic() - began


def limit_here(limit_s: float) -> float:
    """Return a limit in seconds, times the load of a core where that is above 1: so many processes
    share it.
    """
    return limit_s * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def assert_once_within(limit_s: float, attempt: Callable[[], float], tries: int = 5) -> None:
    """Assert that one of some attempts takes less than the limit; the machine may be busy during
    any of them.
    """
    taken: list[float] = []
    while not taken or taken[-1] >= limit_s:
        assert len(taken) < tries, f"none of {taken} s is below {limit_s:g} s"
        taken.append(attempt())


def wait_for_aof(client: Any) -> None:
    """Wait until a Redis has written its append-only file: behind a slow fsync it postpones that by
    up to 2 s.
    """

    def is_written() -> bool:
        info = client.info("persistence")
        return not (info["aof_pending_bio_fsync"] or info["aof_buffer_length"])

    wait_until(is_written, "the append-only file is written")
