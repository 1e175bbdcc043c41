"""Threads, sockets and child processes of the test process: compared before and after a test."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_GRACE_S = 20.0  # a closed client's thread may take a moment to end
_POLL_S = 0.01
# started once per process and kept on purpose: py4j's connections to the JVM, the JVM itself
_kept_children: set[int] = set()
_KEPT_THREADS = ("py4j", "Thread-serve-DeathWatch")


@dataclass(frozen=True, slots=True)
class Held:
    """Resources of the test process: threads by identity, sockets by inode, children by pid."""

    threads: frozenset[threading.Thread]
    sockets: frozenset[str]
    children: frozenset[int]

    @classmethod
    def now(cls) -> Held:
        """Look at this process."""
        threads = (
            t
            for t in threading.enumerate()
            if not (t.name.startswith(_KEPT_THREADS) or _is_of_py4j(t))
        )
        return cls(
            frozenset(threads), frozenset(_sockets()), frozenset(_children()) - _kept_children
        )

    def more_than(self, before: Held) -> list[str]:
        """Describe what is held now and was not before."""
        return [
            *(
                f"thread {thread.name} ({getattr(thread, '_target', None)})"
                for thread in self.threads - before.threads
            ),
            *(f"socket {inode}" for inode in self.sockets - before.sockets),
            *(f"child process {pid}: {_command(pid)}" for pid in self.children - before.children),
        ]


def _is_of_py4j(thread: threading.Thread) -> bool:
    """Return whether it serves calls of the JVM, as foreachBatch has them: these threads have no
    name of their own.
    """
    return str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith("py4j.")


def keep_children() -> None:
    """Take the children of this moment out of the check: servers of the whole run, which a test may
    be the first to ask for.
    """
    _kept_children.update(_children())


def left_over(before: Held) -> list[str]:
    """Return descriptions of resources that a test has not released; wait some seconds for those
    that are being closed.
    """
    deadline = time.monotonic() + _GRACE_S
    while (more := Held.now().more_than(before)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return more


def _sockets() -> list[str]:
    """Return this process's sockets; none while it drives a JVM, because py4j keeps its connections
    in a pool that grows.
    """
    pyspark = sys.modules.get("pyspark")
    if pyspark is not None and pyspark.SparkContext._gateway is not None:
        return []
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith("socket:"):
            targets.append(target)
    return targets


def _children() -> set[int]:
    """Return this process's children. The kernel may skip one while another ends, so two readings
    in a row must agree.
    """
    children = _read_children()
    while (again := _read_children()) != children:
        children = again
    return children


def _read_children() -> set[int]:
    pids: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        # The thread ended meanwhile: its children are another thread's now. Not Path.read_bytes,
        # which takes twice as long: each test reads this four times or more.
        with (
            contextlib.suppress(OSError),
            open(f"/proc/self/task/{thread}/children", "rb", buffering=0) as file,
        ):
            pids.update(map(int, file.read().split()))
    return pids


def _command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")[:200]
        )
    except OSError:
        return "ended"
