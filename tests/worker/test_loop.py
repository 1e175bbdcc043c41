"""A worker's drive on a real Redis that refuses writes or is away: it waits, says why, and then
goes on.
"""

from __future__ import annotations

import hashlib
import os
import resource
import select
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import Spout
from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.common.model.worker_messages import (
    Beat,
    ExitCode,
    Ready,
    Stop,
    WorkerCommand,
    WorkerReport,
)
from sparkstorm.common.model.worker_spec import PlacedExecutor, RedisAddress, WorkerSpec
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.data_plane.worker.loop import WakeUp, open_transport, run_worker
from sparkstorm.extensions.cells.cells import CellsTransport
from sparkstorm.extensions.embedded import RedisServer
from tests.topologies import Count
from tests.waiting import wait_until
from tests.worker.building import chain

pytestmark = pytest.mark.system


class Quiet(Spout):
    """Emits nothing."""

    outputs = ("value",)

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        pass

    def next_tuple(self) -> None:
        pass


class Line:
    """A worker's line to its slot, seen from the slot."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._commands: list[WorkerCommand] = []
        self.reports: list[WorkerReport] = []

    def order(self, command: WorkerCommand) -> None:
        self._commands.append(command)
        os.write(self._write, b".")

    def poll(self) -> list[WorkerCommand]:
        taken, self._commands = self._commands, []
        return taken

    def send(self, report: WorkerReport) -> None:
        self.reports.append(report)

    def fileno(self) -> int:
        return self._read

    def blocked(self) -> str:
        """Return the causes in all heartbeats."""
        return "\n".join(
            cause
            for beat in list(self.reports)
            if isinstance(beat, Beat)
            for cause in beat.stats.get("blocked", ())
        )

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


def spec_of(folder: Path, server: RedisServer) -> WorkerSpec:
    code = pack_topology(chain(Quiet(), Count()))
    (folder / "code").write_bytes(code)
    placed = tuple(PlacedExecutor(ExecutorId(task, task), 1) for task in (1, 2))
    address = RedisAddress(server.host, server.port, server.password)
    components = {1: "spout", 2: "bolt"}
    return WorkerSpec(
        "words-1-1",
        "node-1",
        6700,
        "localhost",
        1,
        1,
        placed,
        components,
        {},
        hashlib.sha256(code).hexdigest(),
        "",
        address,
        str(folder / "log"),
        code_path=str(folder / "code"),
    )


class Running:
    """run_worker on a thread."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.line, self.code = Line(), -1
        self._spec = spec
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.code = run_worker(self._spec, self.line)

    def stop(self) -> int:
        self.line.order(Stop())
        self._thread.join(60)
        self.line.close()
        return self.code


@contextmanager
def full_disk(server: RedisServer) -> Iterator[None]:
    """write(2) to files fails in the running server."""
    client: Any = server.client()
    former = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, former[1]))
    client.set("makes it notice", b"x")
    wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "err")
    client.close()
    yield
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, former)


def test_a_worker_starts_once_there_is_room_on_redis_disk_and_says_so_until_then(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    with full_disk(own_redis):
        running = Running(spec_of(tmp_path, own_redis))
        wait_until(lambda: "MISCONF" in running.line.blocked())
        assert Ready() not in running.line.reports
    wait_until(lambda: Ready() in running.line.reports)
    assert running.stop() == ExitCode.STOPPED


def test_a_worker_that_waits_for_room_can_be_stopped(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    with full_disk(own_redis):
        running = Running(spec_of(tmp_path, own_redis))
        wait_until(running.line.blocked)
        assert running.stop() == ExitCode.STOPPED


def test_a_worker_whose_redis_is_away_goes_on_beating_and_names_it(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    running = Running(spec_of(tmp_path, own_redis))
    wait_until(lambda: any(isinstance(report, Beat) for report in running.line.reports))
    own_redis.kill()
    wait_until(
        lambda: f"Redis at 127.0.0.1:{own_redis.port} cannot be reached" in running.line.blocked()
    )
    own_redis.restart()
    wait_until(
        lambda: isinstance(last := running.line.reports[-1], Beat) and not last.stats.get("blocked")
    )
    assert running.stop() == ExitCode.STOPPED


def test_a_worker_goes_on_and_says_nothing_while_the_store_of_another_cell_is_away(
    own_redis: RedisServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    plain = replace(spec_of(tmp_path, redis_server), topology_id="cut-1-1")
    other = RedisAddress(own_redis.host, own_redis.port, own_redis.password)
    spec = replace(plain, cells=(plain.redis, other))
    for each, kind in ((plain, RedisTransport), (spec, CellsTransport)):
        with closing(open_transport(each, lambda _: None)) as transport:
            assert type(transport) is kind
    own_redis.kill()
    running = Running(spec)
    wait_until(lambda: Ready() in running.line.reports)
    begun = len(running.line.reports)
    wait_until(lambda: sum(isinstance(each, Beat) for each in running.line.reports[begun:]) >= 3)
    # the own store may still rewrite its log, as each does once after its start
    assert other.place not in running.line.blocked()
    own_redis.restart()
    assert running.stop() == ExitCode.STOPPED


def test_a_wake_up_is_seen_until_it_is_taken() -> None:
    wake_up = WakeUp()
    assert not wake_up.take()
    assert not select.select(wake_up.fds, [], [], 0)[0]

    def send() -> None:
        for _ in range(500):
            wake_up.send()

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        wake_up.take()
    wake_up.take()
    assert not select.select(wake_up.fds, [], [], 0)[0]
    wake_up.send()
    assert select.select(wake_up.fds, [], [], 0)[0]
    assert wake_up.take()
    assert not wake_up.take()
