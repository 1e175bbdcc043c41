"""Waiting for another process: on a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 10.0) -> None:
    """Returns once the condition holds; AssertionError naming `what` after the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {limit_s:g} s: {what}"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
