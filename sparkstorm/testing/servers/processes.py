"""Reading of /proc: the descendants of a process and their commands (Linux only)."""

from __future__ import annotations

import os
from pathlib import Path

from sparkstorm.control_plane.supervisor.fork_server import NAME as FORK_SERVER


def parent_of(pid: int) -> int:
    """The parent's id; 0 when the process is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def slot_of(worker_pid: int) -> int:
    """Return the slot process of a worker: the parent of its fork server, or its own where it was
    exec'ed; 0 when it is gone.
    """
    parent = parent_of(worker_pid)
    return parent_of(parent) if name_of(parent) == FORK_SERVER else parent


def name_of(pid: int) -> str:
    """Return the name that a process has or has given itself; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    """Return whether a process is dead, reaped or not."""
    fields = _stat(pid)
    return not fields or fields[0] == "Z"


def descendants(pid: int) -> set[int]:
    """All processes below one."""
    parent_by_pid = {
        int(name): parent_of(int(name)) for name in os.listdir("/proc") if name.isdigit()
    }
    pids = {pid}
    while more := {child for child, parent in parent_by_pid.items() if parent in pids} - pids:
        pids |= more
    return pids - {pid}


def command_of(pid: int) -> str:
    """The command line; empty when the process is gone."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """Return what follows the command's name in /proc/PID/stat: state, parent, ..."""
    # not Path.read_text, which takes three times as long: waits read this of all processes
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().decode(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
