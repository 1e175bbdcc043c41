"""Spark's Python daemon with a slot's modules loaded before it forks (spark.python.daemon.module).

Spark's own daemon imports nothing first, so that every new slot process spends its first half
second of CPU on imports, and several seconds on a busy machine. A worker's modules are for the
slot's first worker, which it forks. The modules named here start no threads of Python when they are
imported, which a process that forks must not have; those of numpy's BLAS end at a fork and start
again when they are needed.

Spark's own daemon forks for any process that connects to its port on loopback, and the fork asks
for the secret, with a traceback for every other word. Spark's JVM wants the fork's process id
before it sends the secret, so the secret cannot be asked before the fork. A connection is therefore
judged by what is known of it: the user of its other end, and its silence, as the JVM sends nothing
before the fork.
"""

from __future__ import annotations

import errno
import gc
import hmac
import os
import socket
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def _leave_archives() -> None:
    """Import pyspark and py4j from the folder that pip installed instead of from the archives that
    it holds.

    The archives have no compiled modules, and each forked process would read their directories
    again, once per package (`importlib.invalidate_caches` in pyspark's worker): 0.4 s of CPU per
    daemon and 0.17 s per slot.
    """
    archives = [path for path in sys.path if Path(path).name == "pyspark.zip"]
    for archive in archives:
        package = Path(archive).parents[2]
        if (
            package.name == "pyspark"
            and (package / "__init__.py").exists()
            and (package.parent / "py4j").exists()
        ):
            libraries = package / "python" / "lib"
            sys.path[:] = [path for path in sys.path if Path(path).parent != libraries]
            if str(package.parent) not in sys.path:
                sys.path.append(str(package.parent))
            for path in [
                path for path in sys.path_importer_cache if path.startswith(str(libraries))
            ]:
                del sys.path_importer_cache[path]


gc.disable()  # nothing that is imported is garbage
_leave_archives()

import pyspark.worker  # noqa: E402,F401
from pyspark import daemon  # noqa: E402

import sparkstorm.control_plane.supervisor.slot_main  # noqa: E402
import sparkstorm.data_plane.worker.loop  # noqa: E402,F401
from sparkstorm.driver.hosting.peers import is_of_another_user  # noqa: E402

gc.freeze()  # forks share these pages as long as the collector does not touch them
gc.enable()

_SECRET_S = 10.0  # a JVM sends it at once; a fork that waits for it without success ends
_work_for_spark = daemon.worker


class ListeningSocket(socket.socket):
    """Daemon's port, which gives it connections of its own user that have sent nothing yet."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection; InterruptedError, which the daemon passes over, for one that
        gets no fork.
        """
        connection, address = super().accept()
        if self.family != socket.AF_UNIX and (
            _has_spoken(connection) or is_of_another_user(connection)
        ):
            connection.close()
            raise InterruptedError(errno.EINTR, "a connection that is not Spark's")
        return connection, address


def _has_spoken(connection: socket.socket) -> bool:
    """Return whether the other end has sent something, or is gone."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def worker(connection: socket.socket, authenticated: bool) -> int:
    """Ask for the secret in silence and for a limited time, then work for Spark; return the fork's
    exit status.
    """
    if not authenticated:
        connection.settimeout(_SECRET_S)
        is_known = _knows_secret(connection)
        _answer(connection, b"ok" if is_known else b"err")
        if not is_known:
            connection.close()  # the daemon's code would wait for the other end to do so
            return 1
        connection.settimeout(None)
    return _work_for_spark(connection, True)


def _knows_secret(connection: socket.socket) -> bool:
    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    wanted = struct.pack(">i", len(secret)) + secret
    received = b""
    try:
        while wanted.startswith(received[:4]) and len(received) < len(wanted):
            if not (part := connection.recv(len(wanted) - len(received))):
                return False
            received += part
    except OSError:  # also when the time is over
        return False
    return hmac.compare_digest(received, wanted)


def _answer(connection: socket.socket, word: bytes) -> None:
    try:
        connection.sendall(struct.pack(">i", len(word)) + word)
    except OSError:  # the other end is closed
        return


def manager() -> None:
    """Run Spark's daemon with a port and a worker that are ours."""
    ours: Any = daemon
    ours.socket = SimpleNamespace(**{**vars(socket), "socket": ListeningSocket})
    ours.worker = worker
    daemon.manager()


if __name__ == "__main__":
    manager()
