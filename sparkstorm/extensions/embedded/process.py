"""Server process that cannot outlive the process that started it, and its log.

Law: any end of the starter, SIGKILL included, ends the server within seconds, and one starter at a
time uses a folder. Left out: atexit and signal handlers, which SIGKILL does not run, and a daemon
with a pid file, which an operator has to stop. `tether.py` has the reason for the process in
between.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.extensions.embedded.tether import started_at

# By its path and not by its name: the tether runs without the package and its imports, so that
# nothing but the standard library is between a server and its end.
_TETHER = Path(__file__).with_name("tether.py")
# Longer than the tether's own patience of 15 s with a server that saves its data, so that the
# tether decides as a rule.
_STOP_LIMIT_S = 20.0
# Each try draws another port, and only a race for one loses it: five losses in a row mean another
# fault.
_PORT_TRIES = 5
_LOOPBACK = "127.0.0.1"
_SERVER_PORTS = range(15_000, 32_000)  # Linux gives clients ports from 32768 on
_Server = TypeVar("_Server", bound="EmbeddedServer")


class TetheredProcess:
    """One server under a life line (see tether.py); starting it from a short-lived thread is
    safe.
    """

    def __init__(
        self, name: str, directory: Path, tether: subprocess.Popen[bytes], pid: int
    ) -> None:
        self.name = name
        self.pid = pid
        self._directory = directory
        self._tether = tether

    @property
    def log_path(self) -> Path:
        """The file that takes the server's standard output and error."""
        return self._directory / f"{self.name}.log"

    def is_alive(self) -> bool:
        """True until the server and its life line are both gone."""
        return self._tether.poll() is None

    def stop(self) -> None:
        """Ask the server to end, kill it when it does not, and return when it is gone."""
        self._order(b"t")

    def kill(self) -> None:
        """End the server as `kill -9` does, and return when it is gone."""
        self._order(b"k")

    def _order(self, letter: bytes) -> None:
        stdin = self._tether.stdin
        if stdin is None or stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            stdin.write(letter)
            stdin.flush()
        try:
            self._tether.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            # A tether that does not answer is ended from outside: the kernel's signal then ends the
            # server.
            self._tether.kill()  # the server goes with it, by its parent-death signal
            self._tether.wait()
        with contextlib.suppress(BrokenPipeError):
            stdin.close()

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Return once `is_ready` holds.

        Raises EmbeddedServerError, with the end of the log, when the server ended or needs longer
        than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while self.is_alive() and time.monotonic() < deadline:
            if is_ready():
                return
            # A server starts within some hundred milliseconds, so half of this would gain nothing
            # visible.
            time.sleep(0.01)
        reason = (
            f"was not ready after {timeout_s:g} s" if self.is_alive() else "ended while starting"
        )
        self.kill()
        raise EmbeddedServerError(
            f"embedded {self.name} {reason}; the end of {self.log_path}:\n{self.last_lines()}"
        )

    def last_lines(self, count: int = 15) -> str:
        """The end of the server's log, indented."""
        try:
            lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return "\n".join(f"  {line}" for line in lines[-count:]) or "  (empty)"


class EmbeddedServer(ABC):
    """A server that answers on loopback and ends with the process that started it."""

    def __init__(self, data_dir: Path, port: int, process: TetheredProcess) -> None:
        self.host = _LOOPBACK
        self.port = port
        self.data_dir = data_dir
        self._process = process

    @abstractmethod
    def answers(self, limit_s: float) -> bool:
        """Return whether the server answers a request within `limit_s` seconds; an error is an
        answer too.
        """

    @abstractmethod
    def _start_again(self) -> TetheredProcess:
        """Start the server on its port and data."""

    @property
    def pid(self) -> int:
        """Process id of the server itself."""
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """The server's log file."""
        return self._process.log_path

    def is_alive(self) -> bool:
        """True while the server runs."""
        return self._process.is_alive()

    def stop(self) -> None:
        """End the server after it has written everything."""
        self._process.stop()

    def kill(self) -> None:
        """End the server as `kill -9` does: a tail not yet written is lost."""
        self._process.kill()

    def restart(self) -> None:
        """Start the server again, on the same port and data; stops it first where it still runs."""
        self._process.stop()
        self._process = self._start_again()


def start_on_free_port(port: int | None, start: Callable[[int], _Server]) -> _Server:
    """Start a server on a port, or on a free one; another free one is tried when that port is
    taken.
    """
    for tries_left in reversed(range(_PORT_TRIES)):
        try:
            return start(port or free_port())
        except EmbeddedServerError as error:
            # A port from the configuration must not be changed silently: clients connect to it.
            lost_race = port is None and "Address already in use" in str(error)
            if not (lost_race and tries_left):
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def start_tethered(
    name: str,
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> TetheredProcess:
    """Start `command` in `directory`, which one starter at a time may use; a server that a dead
    starter left there is ended first.

    `environment`: variables of the server besides those of this process.

    Raises EmbeddedServerError when another process uses the folder or the program cannot be
    started.
    """
    tether = subprocess.Popen(
        # Isolated: neither PYTHONPATH nor a user's site may put another code between us and the
        # server.
        [sys.executable, "-I", "-S", str(_TETHER), name, *command],
        cwd=directory,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the driver's terminal must not reach the server
    )
    assert tether.stdout is not None and tether.stderr is not None
    # The tether writes one line in any case: the server's process id, or the holder of the lock. So
    # nothing waits here for a time limit.
    word, _, rest = tether.stdout.readline().decode(errors="replace").strip().partition(" ")
    tether.stdout.close()
    if word == "pid":
        tether.stderr.close()
        return TetheredProcess(name, directory, tether, int(rest))
    _, complaint = tether.communicate()
    if word == "locked":
        raise _busy(directory, name, rest)
    reason = complaint.decode(errors="replace").strip().rpartition("\n")[2]
    raise EmbeddedServerError(
        f"embedded {name} could not be started in {directory}: {reason or 'no reason given'}"
    )


def refuse_busy(directory: Path, name: str) -> None:
    """Raise EmbeddedServerError when a living process uses this folder; called before any file in
    it is written.

    A holder that is ending is left to the tether, which waits for it.
    """
    try:
        descriptor = os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        # Taken and released at once, only as a test: the lock that counts is the tether's.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        if holder.isdecimal() and started_at(int(holder)):
            raise _busy(directory, name, holder) from None
    finally:
        os.close(descriptor)


def _busy(directory: Path, name: str, holder: str) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"{directory} is in use: the {name} server in it belongs to process {holder}, which still runs; "
        "stop that run first, or set storm.local.dir to another folder for a second run"
    )


def free_port() -> int:
    """Return a free TCP port on loopback, as `free_ports` does."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return different free TCP ports on loopback, below those that the kernel gives to clients
    where it has such.

    A client's connection would else take a port before its server starts, or between its server's
    end and restart.
    """
    with contextlib.ExitStack() as stack:
        # All bound at once, or two that are asked for in a row could be one.
        return [_bound(stack.enter_context(socket.socket())) for _ in range(count)]


def _bound(probe: socket.socket) -> int:
    for _ in range(_PORT_TRIES):
        with contextlib.suppress(OSError):
            probe.bind((_LOOPBACK, _SERVER_PORTS.start + secrets.randbelow(len(_SERVER_PORTS))))
            return int(probe.getsockname()[1])
    probe.bind((_LOOPBACK, 0))
    return int(probe.getsockname()[1])


def require_free(port: int, name: str, key: str) -> None:
    """Raise EmbeddedServerError when `port` is in use; `key` is the setting that chose it."""
    with socket.socket() as probe:
        # As servers do: connections of a run that has just ended linger for a minute and take
        # nothing away.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError as error:
            raise EmbeddedServerError(
                f"port {port} on {_LOOPBACK}, wanted for the embedded {name}, is taken ({error.strerror}); "
                f"free it, or leave {key} unset to have a free port chosen"
            ) from error
