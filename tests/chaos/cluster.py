"""Cluster of a chaos run in real processes: Redis and ZooKeeper behind proxies, a driver with its
slots, four topologies.

A topology works when each of its tasks has worked off some more tuples: spouts emitted them, bolts
executed them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from sparkstorm.client import ClusterClient, TopologyHandle, connect
from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.assignment import RUNNING
from sparkstorm.extensions.embedded import start_redis, start_zookeeper
from sparkstorm.testing.servers.processes import descendants, is_gone
from tests.chaos.clock import HostClock
from tests.chaos.report import ChaosReport
from tests.chaos.standalone import STANDALONE, StandalonePair
from tests.chaos.topologies import TOPOLOGIES
from tests.system.proxy import TcpProxy, redis_request

_LIMIT_S = 180.0
_PER_SECOND = 500  # numbers of each source
_MORE = 10  # tuples that each task must work off after a fault
_SUPERVISORS = 2
_SLOTS = 8  # for seven workers
_SLOTS_WITH_EXECUTORS = 14  # of two executors: one of them has room for all workers
_CONF = {
    "topology.max.spout.pending": 50,
    "topology.max.worker.deaths": 1_000_000,
    "topology.message.timeout.secs": 600,
}
_READY = "Ctrl-C stops the cluster"


class ChaosCluster:
    """The servers behind their proxies, the driver's process, and a client; all below one
    folder.
    """

    def __init__(self, folder: Path, master: str, guarantee: str) -> None:
        self.folder = folder
        self._master = master
        self._guarantee = guarantee
        self._open = ExitStack()
        self.has_own_disk = self._mount(folder / "redis")
        self.redis = start_redis(folder / "redis", password="chaos")
        self._open.callback(self.redis.stop)
        self.zookeeper = start_zookeeper(folder / "zookeeper", password="chaos", user="chaos")
        self._open.callback(self.zookeeper.stop)
        self.redis_proxy = TcpProxy(self.redis.host, self.redis.port, redis_request)
        self._open.callback(self.redis_proxy.close)
        self.zookeeper_proxy = TcpProxy(self.zookeeper.host, self.zookeeper.port)
        self._open.callback(self.zookeeper_proxy.close)
        self.clock = HostClock(folder)
        self.pair = (
            StandalonePair(folder / STANDALONE, self.clock.environ)
            if master == STANDALONE
            else None
        )
        if self.pair is not None:
            self._open.callback(self.pair.close)
        self.driver: subprocess.Popen[bytes] | None = None
        self.client: ClusterClient | None = None
        self.handles: list[TopologyHandle] = []

    @property
    def is_local(self) -> bool:
        """Return whether slots are children of the driver's own JVM, so that there is no executor
        to kill.
        """
        return self._master.startswith("local[")

    def _mount(self, folder: Path) -> bool:
        """Give Redis a small file system of its own, which a fault can fill; False where that is
        not permitted.
        """
        folder.mkdir(mode=0o700, parents=True)
        mount = shutil.which("mount")
        umount = shutil.which("umount")
        if mount is None or umount is None:
            return False
        command = [mount, "-t", "tmpfs", "-o", "size=1g,mode=0700", "sparkstorm-chaos", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return False
        self._open.callback(subprocess.run, [umount, "--lazy", str(folder)], check=False)
        return True

    def start_driver(self) -> None:
        """Start a driver and wait until its cluster is up."""
        conf = {
            "sparkstorm.redis.url": f"redis://{self.redis_proxy.host}:{self.redis_proxy.port}/0",
            "storm.zookeeper.servers": [f"{self.zookeeper_proxy.host}:{self.zookeeper_proxy.port}"],
            "storm.zookeeper.auth.user": "chaos",
            "storm.zookeeper.session.timeout": 6000,
            "storm.local.dir": str(self.folder / "driver"),
            "sparkstorm.supervisors": _SUPERVISORS,
            "sparkstorm.slots.per.supervisor": (_SLOTS if self.is_local else _SLOTS_WITH_EXECUTORS)
            // _SUPERVISORS,
            "nimbus.monitor.freq.secs": 3,
        }
        (self.folder / "cluster.yaml").write_text(json.dumps(conf))
        secrets = {"SPARKSTORM_REDIS_PASSWORD": "chaos", "SPARKSTORM_ZOOKEEPER_PASSWORD": "chaos"}
        ready_before = self.output().count(_READY)
        master = self._master if self.pair is None else self.pair.url
        command = [
            sys.executable,
            "-m",
            "sparkstorm.cli",
            "cluster",
            str(self.folder / "cluster.yaml"),
            "--master",
            master,
        ]
        environ = {**os.environ, **secrets, **self.clock.environ}
        if self.pair is not None:
            environ |= {
                "SPARK_CONF_DIR": str(self.pair.spark_conf),
                "PYSPARK_PYTHON": sys.executable,
            }
        with (self.folder / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env=environ
            )
        self.wait(lambda: self.output().count(_READY) > ready_before, "the cluster")

    def output(self) -> str:
        """Return what the drivers have printed."""
        log = self.folder / "driver.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def connect(self) -> ClusterClient:
        """Return a client, which ends with the cluster."""
        self.client = self._open.enter_context(connect(self.folder / "driver" / "connection.json"))
        return self.client

    def submit_all(self) -> None:
        """Submit the five topologies."""
        client = self.connect()
        for chaos in TOPOLOGIES:
            topology = chaos.build(str(self.gate(chaos.name)), _PER_SECOND)
            conf = {
                **_CONF,
                "topology.workers": chaos.workers,
                "topology.delivery.guarantee": self._guarantee,
            }
            self.handles.append(client.submit(chaos.name, topology, conf))
        self.wait_at_work()

    def gate(self, name: str) -> Path:
        """Return the file whose being there ends a topology's source."""
        return self.folder / f"gate-{name}"

    def done(self) -> Counter[tuple[str, int]]:
        """Return how many tuples each task of the topologies has emitted (spouts) or executed
        (bolts), as committed.

        SparkStormError while that cannot be read.
        """
        found = Counter[tuple[str, int]]()
        for handle in self.handles:
            counts = handle.counts()
            tasks = handle.tasks()
            for task, info in tasks.items():
                if not info.component_id.startswith("__"):
                    one = counts.get(task)
                    is_spout = info.kind == "spout"
                    found[handle.topology_id, task] = (
                        0 if one is None else one.emitted if is_spout else one.executed
                    )
        return found

    def wait(self, condition: Callable[[], object], what: str, limit_s: float = _LIMIT_S) -> None:
        """Poll until something holds, which it does not while a store is away.

        AssertionError with the driver's last words when it never does.
        """
        until = time.monotonic() + limit_s
        while not _holds(condition):
            if time.monotonic() > until or (
                self.driver is not None and self.driver.poll() not in (None, -signal.SIGKILL)
            ):
                raise AssertionError(f"{what}: not within {limit_s:.0f} s\n{self.output()[-4000:]}")
            time.sleep(0.02)

    def wait_at_work(self) -> None:
        """Wait until every task of every topology has worked off more than now."""
        before: list[Counter[tuple[str, int]]] = []

        def is_at_work() -> bool:
            now = self.done()
            if not before:
                before.append(now)
            return all(count >= before[0][task] + _MORE for task, count in now.items())

        self.wait(is_at_work, "the work of all tasks")

    def workers(self) -> list[int]:
        """Return the process ids of the running workers."""
        found = [
            beat.pid for handle in self.handles for beat in handle.beats() if beat.state == RUNNING
        ]
        return sorted({pid for pid in found if not is_gone(pid)})

    def finish(self, report: ChaosReport) -> None:
        """Open the gates, wait for the end of all sources and compare what was counted with what
        must be.
        """
        for chaos, handle in zip(TOPOLOGIES, self.handles, strict=True):
            self.gate(chaos.name).touch()
            self.wait(
                lambda handle=handle: handle.progress().is_drained,  # type: ignore[misc]
                f"the end of {handle.name}",
            )
            found = Counter[str]()
            for key, value in handle.key_values(chaos.component):
                found[key] += value
            assert found["total"], f"{chaos.name}: the last row of its source did not arrive"
            report.of(chaos.name, self._guarantee).compare(chaos.expected(found["total"]), found)

    def close(self) -> None:
        """End everything that this run has started."""
        if self.driver is not None and self.driver.poll() is None:
            below = descendants(self.driver.pid)
            self.driver.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.driver.wait(40)
            for pid in [*below, self.driver.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.driver.wait()
        self._open.close()


def _holds(condition: Callable[[], object]) -> bool:
    try:
        return bool(condition())
    except SparkStormError:  # a store that is away
        return False
