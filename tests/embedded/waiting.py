"""Waiting for another process: on a condition, with a deadline."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
