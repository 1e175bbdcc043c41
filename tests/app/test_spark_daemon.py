"""The daemon from which Spark forks slots on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkConf

from sparkstorm.driver.cluster import SLOT_DAEMON, with_slot_daemon
from tests.waiting import wait_until

SECRET = "of-the-tests"
CALLS = (
    "import encodings.idna, os, socket, sys; os.setuid(65534); "
    "lines = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]; "
    "print(sum(not line.recv(4) for line in lines))"
)


class Daemon:
    """A daemon as Spark's JVM starts it."""

    def __init__(self, log: Path) -> None:
        environ = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": SECRET, "SPARK_REUSE_WORKER": "1"}
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", SLOT_DAEMON, "pyspark.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environ,
            )  # fmt: skip
        assert self.process.stdout
        self.port = struct.unpack(">i", self.process.stdout.read(4))[0]

    def call(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def children(self) -> set[int]:
        at = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return {int(pid) for pid in at.read_text().split()}

    def end(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path / "log")
    yield made
    made.end()


def said(secret: str) -> bytes:
    return struct.pack(">i", len(secret)) + secret.encode()


def answer(line: socket.socket) -> bytes:
    return line.recv(struct.unpack(">i", line.recv(4, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)


def test_it_forks_for_who_knows_the_secret(daemon: Daemon) -> None:
    with daemon.call() as line:
        pid = struct.unpack(">i", line.recv(4, socket.MSG_WAITALL))[0]
        line.sendall(said(SECRET))
        assert answer(line) == b"ok" and daemon.children() == {pid}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_it_does_not_fork_for_another_user(daemon: Daemon) -> None:
    calls = subprocess.run(
        [sys.executable, "-c", CALLS, str(daemon.port), "150"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(calls.stdout) == 150
    assert daemon.children() == set() and daemon.log.read_text() == ""


@pytest.mark.parametrize(
    "data", [b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 64], ids=["silence", "text", "bytes"]
)
def test_it_does_not_fork_for_who_speaks_first_or_is_gone(data: bytes, daemon: Daemon) -> None:
    daemon.process.send_signal(19)  # what is sent is there before the connection is accepted
    lines = [daemon.call() for _ in range(20)]
    for line in lines:
        line.sendall(data)
        if not data:
            line.close()
    daemon.process.send_signal(18)
    for line in lines if data else ():
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(4) == b""
        line.close()
    with daemon.call() as last:
        pid = struct.unpack(">i", last.recv(4, socket.MSG_WAITALL))[0]
        assert daemon.children() == {pid} and daemon.log.read_text() == ""


@pytest.mark.sampled
@pytest.mark.parametrize(
    "words",
    [said("wrong"), said("of-the-test!"), b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 64, b"\x00\x00"],
    ids=range(5),
)
def test_a_wrong_secret_ends_the_fork_without_a_word(words: bytes, daemon: Daemon) -> None:
    with daemon.call() as line:
        line.recv(4, socket.MSG_WAITALL)
        line.sendall(words)
        line.shutdown(socket.SHUT_WR)
        assert answer(line) == b"err"
    wait_until(lambda: not daemon.children(), "the end of the fork", 30)
    assert daemon.log.read_text() == ""


def test_silence_is_not_waited_for_long(daemon: Daemon) -> None:
    began = time.monotonic()
    with daemon.call() as line:
        line.recv(4, socket.MSG_WAITALL)
        assert answer(line) == b"err"
        wait_until(lambda: not daemon.children(), "the end of the fork", 30)
    assert time.monotonic() - began < 30 and daemon.log.read_text() == ""


def test_it_has_a_slots_modules_and_no_thread_when_it_forks() -> None:
    look = (
        f"import sys, threading, {SLOT_DAEMON}; "
        "print(threading.active_count(), "
        "*({'sparkstorm.control_plane.supervisor.slot_main', 'pyspark.worker'} - sys.modules.keys()))"
    )
    assert subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True
    ).stdout.split() == ["1"]


def test_masters_on_this_machine_use_it_and_no_others() -> None:
    for master, daemon in (
        ("local[2]", SLOT_DAEMON),
        ("local-cluster[2,1,1024]", SLOT_DAEMON),
        ("spark://head:7077", None),
    ):
        assert (
            with_slot_daemon(SparkConf(loadDefaults=False).setMaster(master)).get(
                "spark.python.daemon.module"
            )
            == daemon
        )


def test_it_leaves_the_archives_of_an_installed_pyspark_alone() -> None:
    """Spark names the archives first; every fork would read their directories again."""
    libraries = Path(pyspark.__file__).parent / "python" / "lib"
    archives = [str(path) for path in libraries.glob("*.zip")]
    assert any(path.endswith("pyspark.zip") for path in archives)
    look = f"import sys, {SLOT_DAEMON}, pyspark; print(pyspark.__file__, *sys.path, *sys.path_importer_cache)"
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*archives, os.environ.get("PYTHONPATH", "")]),
    }
    found = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, env=environ
    ).stdout
    assert not any(archive in found for archive in archives)
