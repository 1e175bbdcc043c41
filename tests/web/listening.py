"""The whole web server at a port of loopback, over any read model; and a source as large as one
wishes.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvicorn

from sparkstorm.api import BasicBolt, TopologyBuilder
from sparkstorm.client import ClusterClient
from sparkstorm.common.config import merge
from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.http_guard import local_hosts
from sparkstorm.common.model.assignment import (
    Assignment,
    ExecutorId,
    SupervisorInfo,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.heartbeats import TaskBeat, WorkerBeat
from sparkstorm.common.model.outline import TopologyOutline, outline_of
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.cluster.nimbus_state import NimbusInfo
from sparkstorm.control_plane.insight.loads import StoreSnapshot
from sparkstorm.control_plane.insight.reading import StoreReading, TopologyReading
from sparkstorm.control_plane.insight.sampler import ReadModel
from sparkstorm.data_plane.transport.progress import STATES, EdgeCounts, Progress, TaskCounts
from sparkstorm.testing import FeederSpout
from sparkstorm.web.app import make_app
from sparkstorm.web.commands import Commands, Connections
from sparkstorm.web.metrics import metrics_routes
from sparkstorm.web.page import Page
from sparkstorm.web.rest import rest_routes
from sparkstorm.web.security import Access
from sparkstorm.web.serve import options


def nowhere() -> ClusterClient:
    raise StoreUnavailableError("ZooKeeper does not answer")


@dataclass
class Listening:
    """A server that answers."""

    port: int
    token: str
    # its process
    pid: int = field(default_factory=os.getpid)

    def get(self, path: str, timeout: float = 60.0) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path, headers=self.headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of a program that has the token."""
        return {"authorization": f"Bearer {self.token}"}

    def socket(self) -> socket.socket:
        """Return a connection that has sent nothing yet."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def open_page(self, topology: str = "") -> Stream:
        """Open the page's stream of events."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", f"/page/stream?topology={topology}", headers=self.headers)
        return Stream(connection, connection.getresponse())


class Stream:
    """An open page: its events, one after the other."""

    def __init__(
        self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse
    ) -> None:
        self._connection, self._answer = connection, answer

    def next(self) -> tuple[str, Any]:
        """Return kind and data of the next event."""
        kind = ""
        while line := self._answer.readline().decode().rstrip("\n"):
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                self._answer.readline()
                return kind, json.loads(line[6:])
            elif line.startswith(":"):
                self._answer.readline()
        raise AssertionError("the stream has ended")

    def close(self) -> None:
        """Close the page."""
        self._answer.close()
        self._connection.close()


@contextmanager
def listening(
    model: ReadModel,
    opened: Callable[[], ClusterClient] = nowhere,
    send_buffer: int | None = None,
    is_read_only: bool = False,
) -> Iterator[Listening]:
    """Serve a read model at a free port, with the limits of `sparkstorm web`; the kernel keeps
    `send_buffer` bytes for a client that does not read, its own choice without it.
    """
    with socket.socket() as listener:
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        access = Access(local_hosts(port), is_read_only=is_read_only)
        connections = Connections(opened)
        rest = rest_routes(model, Commands(connections, is_read_only))
        routes = [
            *rest,
            *metrics_routes(model),
            *Page(model, access, connections, "listening").routes(),
        ]
        server = uvicorn.Server(
            uvicorn.Config(make_app(routes, access), **{**options(), "log_level": "critical"})
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Listening(port, access.token)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def running(connection: Path) -> Iterator[Listening]:
    """Run `sparkstorm web` for a cluster, in its own process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sparkstorm.cli", "web", "--until-input-ends"]
    command += ["--cluster", str(connection), "--port", str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        [token] = parse_qs(urlsplit(server.stdout.readline().strip()).query)["token"]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield Listening(port, token, server.pid)
        server.stdin.close()


class Nothing(BasicBolt):
    outputs = ("value",)

    def execute(self, tup: Any, collector: Any) -> None:
        return


class LargeSource:
    """Readings of a topology of many components in a chain, on two hosts of two workers, whose every
    count grows with each reading.
    """

    def __init__(self, components: int, tasks: int, name: str = "large") -> None:
        builder = TopologyBuilder()
        builder.set_spout("c0", FeederSpout(["value"]), tasks)
        for n in range(1, components):
            builder.set_bolt(f"c{n}", Nothing(), tasks).shuffle_grouping(f"c{n - 1}")
        self._outline: TopologyOutline = outline_of(builder.build(), merge({}))
        sizes = dict(self._outline.executors_by_component)
        self._base = TopologyBase(f"{name}-1-1", name, 0, TopologyStatus.ACTIVE, 4, sizes, "", "")
        slots = [WorkerSlot(node, port) for node in ("node-1", "node-2") for port in (6700, 6701)]
        placed = {
            ExecutorId(task, task): slots[task % 4] for task in self._outline.component_by_task
        }
        hosts = {"node-1": "host-1", "node-2": "host-2"}
        self._assignment = Assignment(self._base.topology_id, 1, "", "", hosts, placed)
        self.reads = 0
        self.now_ms = 0
        # until the next reading
        self.period_ms = 1_000

    def read(self) -> StoreReading:
        """Return the next moment."""
        self.reads += 1
        self.now_ms += self.period_ms
        placed = self._assignment.slot_by_executor
        counts: dict[str, dict[int, TaskCounts]] = {}
        beats = {}
        for task, component in self._outline.component_by_task.items():
            executor = ExecutorId(task, task)
            counts.setdefault(str(placed[executor]), {})[task] = self._counts(task, component)
            beats[task] = self._beat(component, executor)
        edges = {
            (each.component, each.stream, name): EdgeCounts(
                100 * self.reads, 100 * self.reads, self.reads, 1000
            )
            for name, component in self._outline.components.items()
            for each in component.inputs
        }
        progress = {
            slot: Progress(
                of,
                {40: 10 * self.reads},
                now_ms=self.now_ms,
                loop_us=[200 * self.now_ms for _ in STATES],
                edges=edges if at == 0 else {},
                commits=self.reads,
            )
            for at, (slot, of) in enumerate(sorted(counts.items()))
        }
        found = TopologyReading(
            self._base,
            self._outline,
            self._assignment,
            tuple(self._worker(slot) for slot in sorted(set(placed.values()))),
            beats,
            look=StoreSnapshot(progress, {}),
            dead_letters=0,
        )
        infos = tuple(
            SupervisorInfo(node, host, self.now_ms, self.now_ms, (6700, 6701))
            for node, host in self._assignment.host_by_node.items()
        )
        leader = NimbusInfo("leader", 0)
        return StoreReading(self.now_ms, {self._base.topology_id: found}, infos, leader=leader)

    def _counts(self, task: int, component: str) -> TaskCounts:
        return TaskCounts(
            component,
            1,
            executed=100 * self.reads + task,
            emitted=100 * self.reads,
            busy_us=300 * self.now_ms,
        )

    def _beat(self, component: str, executor: ExecutorId) -> TaskBeat:
        slot = self._assignment.slot_by_executor[executor]
        return TaskBeat(
            component,
            executor,
            slot,
            "RUNNING",
            self.now_ms,
            self.now_ms,
            queued=self.reads % 7,
            execute_us={"p50": 3.0, "p95": 5.0, "p99": 9.0 + self.reads % 5},
        )

    def _worker(self, slot: WorkerSlot) -> WorkerBeat:
        stats = {"memory_mb": 80 + self.reads % 3, "cpu_percent": 20 + self.reads % 9}
        of = self._base.topology_id
        return WorkerBeat(
            of, slot.node, slot.port, self.now_ms, 0, 4711, 1, "RUNNING", 1, stats=stats
        )
