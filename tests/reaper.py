"""Ends the processes that a test process leaves when it is killed: its own process, which
outlives a `kill -9` of that one.

Standing clusters, drivers and JVMs of tests have sessions of their own, so no signal of a terminal
reaches them. All of them inherit a mark in their environment. When the test process is gone, the
reaper kills whatever has the mark. PR_SET_PDEATHSIG would need a hook at each place that starts a
process, and ends no grandchild.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_MARK = "SPARKSTORM_TEST_PROCESS"
_POLL_S = 0.25
# a Popen that is dropped warns that its process still runs
_started: list[subprocess.Popen[bytes]] = []


def start_reaper() -> None:
    """Mark the children that this process starts from now on, and start the reaper that kills them
    after its end.
    """
    # the reaper must not find itself
    bare = {name: value for name, value in os.environ.items() if name != _MARK}
    os.environ[_MARK] = f"{os.getpid()}-{os.urandom(8).hex()}"
    command = [
        sys.executable,
        "-I",
        "-S",
        __file__,
        str(os.getpid()),
        f"{_MARK}={os.environ[_MARK]}",
    ]
    _started.append(
        subprocess.Popen(command, stdin=subprocess.DEVNULL, env=bare, start_new_session=True)
    )


def marked(mark: str) -> list[int]:
    """Return the processes that have a variable, as NAME=VALUE, in the environment that they began
    with.
    """
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # gone, or of another user
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes().split(
                b"\0"
            ):
                pids.append(int(entry.name))
    return pids


def main(starter: int, mark: str) -> None:
    """Wait for the end of the process that started this one, then kill until none has the mark."""
    while os.getppid() == starter:
        time.sleep(_POLL_S)
    while pids := marked(mark):  # again, since one may have started another meanwhile
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
