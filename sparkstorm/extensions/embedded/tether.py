"""Tether between a process and a server it started: the server's parent process, which ends it with
the starter.

Run as a plain script (`python -I -S tether.py NAME COMMAND...`), so it imports nothing but the
standard library. Its standard input is a pipe whose other end only the starter holds: `t` asks for
a gentle stop, `k` for SIGKILL, and end of file means that the starter died. It is a pipe, and not
PR_SET_PDEATHSIG on the starter's side, because that signal follows the *thread* that forked; here,
where there is one thread only, the signal is safe, and ends the server when this very process is
killed. Its standard output carries one line for the starter: `pid N` or `locked N`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import time
from typing import NoReturn

PR_SET_PDEATHSIG = 1
# How often the starter's death is looked for where its pipe does not show it: a fork of the starter
# may hold the other end. Half costs twice the wake-ups of every run.
POLL_MS = 300
# Longer than a tether needs to end the server of a dead starter (ORPHAN_GRACE_S, then SIGKILL).
LOCK_WAIT_S = 4.0
# A server whose starter died has no client left; what Redis has not written by then is the tail
# that a kill may lose anyway.
ORPHAN_GRACE_S = 2.0
# For a Redis that writes a large file out at its end. Half may cut it off on a slow disk; double
# keeps a run from ending.
STOP_GRACE_S = 15.0


def say(line: str) -> None:
    """Write one line to the starter."""
    os.write(1, line.encode() + b"\n")


def take_lock(path: str) -> int:
    """Return the descriptor of the held lock, or end this process when another tether holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The lock shows that it is held, the file names the holder: flock itself names no
            # process.
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            if time.monotonic() > deadline or (holder.isdecimal() and started_at(int(holder))):
                say(f"locked {holder or '?'}")
                sys.exit(75)
            time.sleep(0.05)  # its starter is dead: it will release the lock in a moment
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getppid()).encode(), 0)
        return descriptor


def started_at(pid: int) -> str:
    """The kernel's start time of a process, in ticks since boot (with its pid: its name for ever);
    empty if gone.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def end_stale(pid_file: str) -> None:
    """Kill the server that a former run left behind in this folder, if it is still the very same
    process.
    """
    try:
        with open(pid_file, encoding="ascii") as file:
            pid_text, _, start = file.read().strip().partition(" ")
        pid = int(pid_text)
    except (OSError, ValueError):
        return
    # With the start time, since a process id alone may be another process's by now.
    while start and started_at(pid) == start:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            return
        time.sleep(0.02)


def start_server(command: list[str], log_path: str) -> int:
    """Fork and exec the server, so that it dies with this process; return its pid."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        become(command, log, prctl, parent)
    os.close(log)
    return pid


def become(
    command: list[str], log: int, prctl: ctypes._NamedFuncPointer | None, parent: int
) -> NoReturn:
    """Turn the forked child into the server, unless its parent died in between."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the signal was asked for; then it never comes.
    if os.getppid() != parent:
        os._exit(1)
    try:
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def watch(server: int, starter: int) -> int:
    """Wait for the server's end, stop it on demand or when the starter is gone; return its exit
    status.
    """
    # not `pipe2`, which macOS does not have; `pipe` is closed at an exec too
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    # A handler that does nothing, so that the signal wakes poll through the pipe.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(wake_read, select.POLLIN)
    poll.register(0, select.POLLIN)
    deadline: float | None = None
    while True:
        reaped, status = os.waitpid(server, os.WNOHANG)
        if reaped:
            return os.waitstatus_to_exitcode(status)
        asked = {descriptor for descriptor, _ in poll.poll(POLL_MS)}
        if wake_read in asked:
            os.read(wake_read, 512)
        # Once: a second order must not begin the grace anew.
        if deadline is None and (0 in asked or os.getppid() != starter):
            deadline = time.monotonic() + order(server, os.read(0, 1) if 0 in asked else b"")
            poll.unregister(0)
        if deadline is not None and time.monotonic() > deadline:
            os.kill(server, signal.SIGKILL)


def order(server: int, letter: bytes) -> float:
    """Carry out the starter's order (or its death) and return the seconds until SIGKILL follows."""
    if letter == b"k":
        os.kill(server, signal.SIGKILL)
        return STOP_GRACE_S
    os.kill(server, signal.SIGTERM)
    return STOP_GRACE_S if letter == b"t" else ORPHAN_GRACE_S


def main() -> int:
    """Hold the folder's lock, start the server in it and wait until it has ended."""
    name = sys.argv[1]
    command = sys.argv[2:]
    starter = os.getppid()
    lock = take_lock(f"{name}.lock")
    end_stale(f"{name}.pid")
    server = start_server(command, f"{name}.log")
    with open(f"{name}.pid", "w", encoding="ascii") as file:
        file.write(f"{server} {started_at(server)}\n")
    say(f"pid {server}")
    status = watch(server, starter)
    os.unlink(f"{name}.pid")
    os.close(lock)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
