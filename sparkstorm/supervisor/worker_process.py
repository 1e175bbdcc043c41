"""One worker process as its slot sees it: commanded and read through pipes, killed with its children.

Started by exec; a slot's first one is forked before the slot has threads or secrets, with the modules of Spark's Python daemon,
because an interpreter that imports them takes half a second, and several on a busy machine. Made and used by the slot's main
thread only: the kernel ties the child's life to the very thread that started it.
"""

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn, Protocol

from sparkstorm.errors import InvalidConfigError
from sparkstorm.model.worker_messages import (
    MAX_LINE_BYTES,
    WorkerCommand,
    WorkerReport,
    decode_report,
    encode_command,
)
from sparkstorm.model.worker_spec import WorkerSpec
from sparkstorm.supervisor.worker_memory import Usage, usage_of
from sparkstorm.worker.main import main

_LOG = logging.getLogger(__name__)
# Spark's own variables carry its secrets and make a child believe that it is a Spark worker.
_SPARK_PREFIXES = ("PYTHON_WORKER_", "PYTHON_DAEMON_", "PYSPARK_", "_PYSPARK", "SPARK_", "_SPARK_")
_PASSWORDS = ("SPARKSTORM_REDIS_PASSWORD", "SPARKSTORM_REDIS_VIEWER_PASSWORD", "SPARKSTORM_ZOOKEEPER_PASSWORD")
_READ_BYTES = 65536


class _Process(Protocol):
    """Part of subprocess.Popen that a worker child needs."""

    @property
    def pid(self) -> int: ...
    def wait(self) -> int: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int, /) -> None: ...


class _Forked:
    """A child of os.fork."""

    def __init__(self, pid: int) -> None:
        self.pid, self._exit_code = pid, None  # type: int, int | None

    def wait(self) -> int:
        if self._exit_code is None:
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._exit_code

    def poll(self) -> int | None:
        if self._exit_code is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self.wait()
        return self._exit_code

    def send_signal(self, sig: int, /) -> None:
        if self._exit_code is None:
            os.kill(self.pid, sig)


class WorkerChild:
    """A child process, from its start (idle, as a spare) to the end of everything it started."""

    def __init__(self, process: _Process, control_fd: int, status_fd: int) -> None:
        self._process, self._control_fd, self._status_fd = process, control_fd, status_fd
        os.set_blocking(self._control_fd, False)
        os.set_blocking(self._status_fd, False)
        self._unsent, self._received = bytearray(), bytearray()
        self._at_end = False
        self._pid_fd = _watch_pid(self._process.pid)
        self._log: Path | None = None
        self.exit_code: int | None = None

    @classmethod
    def spawn(cls, entry: str, early_log: Path) -> "WorkerChild":
        """Start it by exec; `early_log` takes what it prints before its spec names a log. OSError when the machine refuses."""
        (control_read, control_write), (status_read, status_write) = os.pipe(), os.pipe()
        command = [sys.executable, "-m", "sparkstorm.worker.main", str(status_write), str(os.getpid()), entry]
        try:
            with early_log.open("wb") as log:
                process = subprocess.Popen(
                    command,
                    stdin=control_read,
                    stdout=log,
                    stderr=log,
                    pass_fds=(status_write,),
                    env=child_environment(),
                    start_new_session=True,
                )
        except BaseException:
            os.close(control_write)
            os.close(status_read)
            raise
        finally:
            os.close(control_read)
            os.close(status_write)
        return cls(process, control_write, status_read)

    @classmethod
    def fork(cls, entry: str) -> "WorkerChild | None":
        """Start it by a fork of this process; None where that is not safe: beside threads, and outside Linux.

        It keeps this process's modules and memory, and neither its descriptors nor its environment.
        """
        if sys.platform != "linux" or threading.active_count() > 1:
            return None
        (control_read, control_write), (status_read, status_write) = os.pipe(), os.pipe()
        slot_pid = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            pid = os.fork()
        except OSError:
            for fd in (control_read, control_write, status_read, status_write):
                os.close(fd)
            return None
        if pid == 0:
            _run_forked(control_read, status_write, slot_pid, entry)
        os.close(control_read)
        os.close(status_write)
        return cls(_Forked(pid), control_write, status_read)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def filenos(self) -> list[int]:
        """Descriptors that are readable when there are reports, or when the child is dead."""
        status = [] if self._at_end else [self._status_fd]
        return status if self._pid_fd is None else [*status, self._pid_fd]

    def give(self, spec: WorkerSpec) -> None:
        """Turn a spare into the worker of that spec."""
        self._log = Path(spec.log_path)
        self._send(spec.to_json() + b"\n")

    def order(self, command: WorkerCommand) -> None:
        """Send a command."""
        self._send(encode_command(command))

    def poll_reports(self) -> list[WorkerReport]:
        """Return the reports of the process since the last call; lines that are no reports are dropped with a warning."""
        self._send(b"")
        with contextlib.suppress(BlockingIOError, OSError):
            while chunk := os.read(self._status_fd, _READ_BYTES):
                self._received += chunk
            self._at_end = True
        *lines, rest = self._received.split(b"\n")
        self._received = rest if len(rest) <= MAX_LINE_BYTES else bytearray()
        return [report for line in lines if (report := _report_of(bytes(line))) is not None]

    def poll_exit(self) -> int | None:
        """The exit code (negative: the signal) once the child is dead; what it left in its process group dies too."""
        if self.exit_code is None and self._is_dead():
            # Before the reaping: as long as the corpse holds the pid, the group id can be nobody else's.
            self._signal_group(signal.SIGKILL)
            self.exit_code = self._process.wait()
        return self.exit_code

    def dump_stacks(self) -> None:
        """Ask for the stacks of all its threads in its log; only for a child that has had its spec."""
        self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """SIGKILL to the child and its process group."""
        if self.exit_code is None:
            self._signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Kill what still lives, reap it and give the pipes back."""
        if self._status_fd < 0:
            return
        self.kill()
        if self.exit_code is None:
            self.exit_code = self._process.wait()
        os.close(self._control_fd)
        os.close(self._status_fd)
        self._status_fd = -1
        if self._pid_fd is not None:
            os.close(self._pid_fd)

    def usage(self) -> Usage | None:
        """Return the memory and CPU that the child itself uses, its own children left out."""
        return usage_of(self.pid)

    def rotate_log(self, cap_bytes: int) -> bool:
        """Move a log that outgrew its cap aside; True if it did."""
        return self._log is not None and rotate_log(self._log, cap_bytes)

    def last_lines(self) -> list[str]:
        """The end of its log."""
        return [] if self._log is None else last_lines(self._log)

    def _send(self, line: bytes) -> None:
        # Never blocks: a spare may still be importing while a large spec fills the pipe.
        self._unsent += line
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                del self._unsent[: os.write(self._control_fd, self._unsent)]

    def _is_dead(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS: the corpse is reaped at once
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _run_forked(control_fd: int, status_fd: int, slot_pid: int, entry: str) -> NoReturn:
    """Become a worker in a forked child, as exec would make it."""
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.disable()  # it writes to a file of the slot's
        os.dup2(control_fd, 0)
        os.closerange(3, status_fd)
        os.closerange(status_fd + 1, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        environment = child_environment()
        os.environ.clear()
        _wipe_first_environment()
        os.environ.update(environment)
        sys.argv = ["sparkstorm.worker.main", str(status_fd), str(slot_pid), entry]
        if (numpy_random := sys.modules.get("numpy.random")) is not None:
            numpy_random.seed()  # else all forks of one process would draw the same; `random` sees to it by itself
        main(sys.argv[1:])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # never back into the slot's stack


def _wipe_first_environment() -> None:
    """Overwrite the variables that this process image began with, Spark's secret among them, as /proc/PID/environ shows them.

    Only when none of them is in use any more: those that are set from then on lie elsewhere.
    """
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start and env_end of proc(5)
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)


def _watch_pid(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none, and polling must do."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def child_environment() -> dict[str, str]:
    """The slot's environment without Spark's variables and our passwords, and with its import path."""
    kept = {n: value for n, value in os.environ.items() if not n.startswith(_SPARK_PREFIXES) and n not in _PASSWORDS}
    kept["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))
    return kept


def rotate_log(path: Path, cap_bytes: int) -> bool:
    """Move a log that outgrew its cap to `<name>.1` (the older one goes) and go on with an empty one; True if it did.

    By copy and truncation: the writer appends through its own open descriptor and need not know.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return False
    if size <= cap_bytes:
        return False
    with path.open("rb") as log:
        log.seek(size - cap_bytes)
        path.with_name(path.name + ".1").write_bytes(log.read(cap_bytes))
    os.truncate(path, 0)
    return True


def last_lines(path: Path, count: int = 20, cap_bytes: int = 16_384) -> list[str]:
    """The end of a log, empty when there is none; bytes that are no text are shown as escapes."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - cap_bytes))
            return log.read(cap_bytes).decode(errors="backslashreplace").splitlines()[-count:]
    except OSError:
        return []


def _report_of(line: bytes) -> WorkerReport | None:
    try:
        return decode_report(line)
    except InvalidConfigError as fault:
        _LOG.warning("worker child: %s", fault)
        return None
