"""One worker process as its slot sees it: commanded and read through pipes, killed with its
children.

Forked by the slot's fork server (fork_server.py), or started by exec where there is none. Made and
used by the slot's main thread only: the kernel ties the child's life to the very thread that
started it.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.worker_messages import (
    MAX_LINE_BYTES,
    WorkerCommand,
    WorkerReport,
    decode_report,
    encode_command,
)
from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.control_plane.supervisor.worker_memory import Usage, oom_kills, usage_of

_LOG = logging.getLogger(__name__)
# Spark's own variables hold its secrets and make a child act as a Spark worker.
_SPARK_PREFIXES = ("PYTHON_WORKER_", "PYTHON_DAEMON_", "PYSPARK_", "_PYSPARK", "SPARK_", "_SPARK_")
_PASSWORDS = (
    "SPARKSTORM_REDIS_PASSWORD",
    "SPARKSTORM_REDIS_VIEWER_PASSWORD",
    "SPARKSTORM_ZOOKEEPER_PASSWORD",
)
_READ_BYTES = 65536


class ChildProcess(Protocol):
    """Part of subprocess.Popen that a worker child needs."""

    @property
    def pid(self) -> int: ...
    def wait(self) -> int: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int, /) -> None: ...


class WorkerChild:
    """A child process, from its start (idle, until it has a spec) to the end of everything it
    started.
    """

    def __init__(self, process: ChildProcess, control_fd: int, status_fd: int) -> None:
        self._process = process
        self._control_fd = control_fd
        self._status_fd = status_fd
        os.set_blocking(self._control_fd, False)
        os.set_blocking(self._status_fd, False)
        self._unsent = bytearray()
        self._received = bytearray()
        self._at_end = False
        self._pid_fd = _watch_pid(self._process.pid)
        self._log: Path | None = None
        self.exit_code: int | None = None

    @classmethod
    def spawn(cls, entry: str, early_log: Path) -> "WorkerChild":
        """Start it by exec; `early_log` takes what it prints before its spec names a log. OSError
        when the machine refuses.
        """

        def launch(control_fd: int, status_fd: int) -> ChildProcess:
            command = [
                sys.executable,
                "-m",
                "sparkstorm.data_plane.worker.main",
                str(status_fd),
                str(os.getpid()),
                entry,
            ]
            with early_log.open("wb") as log:
                return subprocess.Popen(
                    command,
                    stdin=control_fd,
                    stdout=log,
                    stderr=log,
                    pass_fds=(status_fd,),
                    env=child_environment(),
                    start_new_session=True,
                )

        return cls.start(launch)

    @classmethod
    def start(cls, launch: Callable[[int, int], ChildProcess]) -> "WorkerChild":
        """Start it by `launch`, which gets the child's ends of the control and the status pipe."""
        (control_read, control_write), (status_read, status_write) = os.pipe(), os.pipe()
        try:
            process = launch(control_read, status_write)
        except BaseException:
            os.close(control_write)
            os.close(status_read)
            raise
        finally:
            os.close(control_read)
            os.close(status_write)
        return cls(process, control_write, status_read)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def filenos(self) -> list[int]:
        """Descriptors that are readable when there are reports, or when the child is dead."""
        status = [] if self._at_end else [self._status_fd]
        return status if self._pid_fd is None else [*status, self._pid_fd]

    def give(self, spec: WorkerSpec) -> None:
        """Make it the worker of that spec."""
        self._log = Path(spec.log_path)
        self._send(spec.to_json() + b"\n")

    def order(self, command: WorkerCommand) -> None:
        """Send a command."""
        self._send(encode_command(command))

    def poll_reports(self) -> list[WorkerReport]:
        """Return the reports of the process since the last call; lines that are no reports are
        dropped with a warning.
        """
        self._send(b"")
        with contextlib.suppress(BlockingIOError, OSError):
            while chunk := os.read(self._status_fd, _READ_BYTES):
                self._received += chunk
            self._at_end = True
        *lines, rest = self._received.split(b"\n")
        self._received = rest if len(rest) <= MAX_LINE_BYTES else bytearray()
        return [report for line in lines if (report := _report_of(bytes(line))) is not None]

    def poll_exit(self) -> int | None:
        """The exit code (negative: the signal) once the child is dead; what it left in its process
        group dies too.
        """
        if self.exit_code is None and self._is_dead():
            # Before the reaping: as long as the unreaped process holds the pid, no other group can
            # have this id.
            self._signal_group(signal.SIGKILL)
            self.exit_code = self._process.wait()
        return self.exit_code

    def dump_stacks(self) -> None:
        """Ask for the stacks of all its threads in its log; only for a child that has had its
        spec.
        """
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

    def oom_kills(self) -> int:
        """Return the kills for lack of memory in this process's own cgroup, which its children
        share.
        """
        return oom_kills()

    def rotate_log(self, cap_bytes: int) -> bool:
        """Move a log that outgrew its cap aside; True if it did."""
        return self._log is not None and rotate_log(self._log, cap_bytes)

    def last_lines(self, has_crashed: bool = False) -> list[str]:
        """The end of its log, or the crash report of a process that `has_crashed`."""
        return [] if self._log is None else last_lines(self._log, has_crashed=has_crashed)

    def _send(self, line: bytes) -> None:
        # Never blocks: a child may still be importing while a large spec fills the pipe.
        self._unsent += line
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                del self._unsent[: os.write(self._control_fd, self._unsent)]

    def _is_dead(self) -> bool:
        if self._pid_fd is not None:
            return bool(select.select([self._pid_fd], [], [], 0)[0])
        if not hasattr(os, "waitid"):  # macOS: the dead process is reaped at once
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # it has not made its own group yet
                self._process.send_signal(number)


def _watch_pid(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none, and
    polling must do.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def child_environment() -> dict[str, str]:
    """The slot's environment without Spark's variables and our passwords, and with its import
    path.
    """
    environment = {
        n: value
        for n, value in os.environ.items()
        if not n.startswith(_SPARK_PREFIXES) and n not in _PASSWORDS
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys(path or os.getcwd() for path in sys.path)
    )
    return environment


def rotate_log(path: Path, cap_bytes: int) -> bool:
    """Move a log that outgrew its cap to `<name>.1` (the older one goes) and go on with an empty
    one; True if it did.

    By copy and truncation: the writer appends through its own open descriptor and is not affected.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return False
    if size <= cap_bytes:
        return False
    older = path.with_name(path.name + ".1")
    try:
        with path.open("rb") as log:
            log.seek(size - cap_bytes)
            older.write_bytes(log.read(cap_bytes))
    except OSError:  # a full disk: new lines of the worker are worth more than old ones
        older.unlink(missing_ok=True)
    os.truncate(path, 0)
    return True


def last_lines(
    path: Path, count: int = 20, cap_bytes: int = 16_384, has_crashed: bool = False
) -> list[str]:
    """The end of a log, empty when there is none; bytes that are no text are shown as escapes.

    Of a process that `has_crashed` they begin with its crash report, whose first frames are those
    of user code.
    """
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - cap_bytes))
            lines = log.read(cap_bytes).decode(errors="backslashreplace").splitlines()
    except OSError:
        return []
    crash = (
        max(
            (index for index, line in enumerate(lines) if line.startswith("Fatal Python error")),
            default=-1,
        )
        if has_crashed
        else -1
    )
    return lines[-count:] if crash < 0 else lines[crash : crash + count]


def _report_of(line: bytes) -> WorkerReport | None:
    try:
        return decode_report(line)
    except InvalidConfigError as fault:
        _LOG.warning("worker child: %s", fault)
        return None
