"""Fork server of a slot: a child without threads, connections and secrets, which forks worker
processes on request.

It is forked from the slot before the slot has any of these. Its forks share the modules that
Spark's Python daemon has loaded and are there in some milliseconds; an interpreter that imports
them takes half a second of CPU next to workers that run.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from sparkstorm.control_plane.supervisor.worker_process import WorkerChild, child_environment
from sparkstorm.data_plane.worker.main import die_with_parent, main, name_process

NAME = "fork-server"
_ANSWER_S = 10.0  # a server that is stopped must not stop its slot
_MOST_BYTES = 4096
_REFUSED = -1  # in place of a process id: the machine refuses a fork


class ForkServer:
    """The slot's end of a fork server. Workers die with their server, and the server dies with the
    thread that started it.
    """

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self._line = line
        self._is_open = True

    @classmethod
    def start(cls) -> "ForkServer | None":
        """Fork a server; None where that is not safe: next to threads, and on systems other than
        Linux.
        """
        if sys.platform != "linux" or not hasattr(os, "pidfd_open") or threading.active_count() > 1:
            return None
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        slot_pid = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            its.close()
            return None
        if pid == 0:
            _serve(its, slot_pid)
        its.close()
        return cls(pid, ours)

    def fork(self, entry: str) -> WorkerChild:
        """Start a worker process without a spec; OSError when the server is gone or the machine
        refuses.
        """

        def launch(control_fd: int, status_fd: int) -> _Forked:
            pid = self._ask(f"fork {entry}", [control_fd, status_fd])
            if pid == _REFUSED:
                raise OSError("the machine refuses another process")
            return _Forked(pid, self)

        return WorkerChild.start(launch)

    def reap(self, pid: int) -> int:
        """Return the exit code of a worker that is dead; that of a kill when the server died with
        it.
        """
        try:
            return self._ask(f"reap {pid}")
        except OSError:
            return -signal.SIGKILL

    def close(self) -> None:
        """End the server, and with it all its forks."""
        if not self._is_open:
            return
        self._is_open = False
        self._line.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _ask(self, request: str, fds: list[int] | None = None) -> int:
        if not self._is_open:
            raise OSError("the fork server is gone")
        self._line.settimeout(_ANSWER_S)
        try:
            socket.send_fds(self._line, [request.encode()], fds or [])
            answer = self._line.recv(_MOST_BYTES)
            if not answer:
                raise OSError("the fork server is gone")
            return int(answer)
        except OSError:
            self.close()
            raise


class _Forked:
    """A child of a fork server. Its process id stays its own until the server has reaped it."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid, self._server, self._exit_code = pid, server, None  # type: int, ForkServer, int | None

    def wait(self) -> int:
        if self._exit_code is None:
            self._exit_code = self._server.reap(self.pid)
        return self._exit_code

    def poll(self) -> int | None:
        return self._exit_code

    def send_signal(self, sig: int, /) -> None:
        if self._exit_code is None:
            os.kill(self.pid, sig)


def _serve(line: socket.socket, slot_pid: int) -> NoReturn:
    """Become the server in a forked child: answer requests until the slot closes its end."""
    try:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        name_process(NAME)
        die_with_parent(slot_pid)
        faulthandler.disable()  # it writes to a file of the slot's
        _close_all_but(line.fileno())
        environment = child_environment()
        os.environ.clear()
        _wipe_first_environment()
        os.environ.update(environment)
        while True:
            request, fds, _, _ = socket.recv_fds(line, _MOST_BYTES, 2)
            verb, _, argument = request.decode().partition(" ")
            if verb == "fork":
                answer = _fork(argument, fds)
            elif verb == "reap":
                answer = os.waitstatus_to_exitcode(os.waitpid(int(argument), 0)[1])
            else:
                break
            line.send(str(answer).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # never back into the slot's stack


def _fork(entry: str, fds: list[int]) -> int:
    server_pid = os.getpid()
    try:
        if (pid := os.fork()) == 0:
            control_fd, status_fd = fds
            _work(entry, control_fd, status_fd, server_pid)
        return pid
    except OSError:
        return _REFUSED
    finally:
        for fd in fds:
            os.close(fd)


def _work(entry: str, control_fd: int, status_fd: int, server_pid: int) -> NoReturn:
    """Become a worker in a forked child, as exec would make it."""
    try:
        os.setsid()
        os.dup2(control_fd, 0)
        _close_all_but(status_fd)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["sparkstorm.data_plane.worker.main", str(status_fd), str(server_pid), entry]
        if (numpy_random := sys.modules.get("numpy.random")) is not None:
            # else all forks of one process would draw the same; `random` sees to it by itself
            numpy_random.seed()
        main(sys.argv[1:])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _close_all_but(fd: int) -> None:
    os.closerange(3, fd)
    os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))


def _wipe_first_environment() -> None:
    """Overwrite the variables that this process image began with, Spark's secret among them, as
    /proc/PID/environ shows them.

    Only when none of them is in use any more: those that are set from then on lie elsewhere.
    """
    fields = (
        Path("/proc/self/stat")
        .read_text(encoding="utf-8", errors="replace")
        .rpartition(")")[2]
        .split()
    )
    # env_start and env_end of proc(5)
    start = int(fields[47])
    end = int(fields[48])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
