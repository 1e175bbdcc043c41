"""Chaos in real processes: a standing cluster of four topologies on Spark, whose parts are killed, paused and cut.

Redis and ZooKeeper are the chaos run's own; the cluster reaches them through proxies. A recovery lasts from the fault (from its
end, where it is a pause, a cut or a full store) until every topology has acked some more of its numbers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkstorm.client import ClusterClient, TopologyHandle, connect
from sparkstorm.embedded import start_redis, start_zookeeper
from sparkstorm.errors import SparkStormError
from sparkstorm.testing.chaos.report import ChaosReport
from sparkstorm.testing.chaos.topologies import TOPOLOGIES
from sparkstorm.testing.system.processes import descendants, is_gone, parent_of
from sparkstorm.testing.system.proxy import TcpProxy, redis_request

_LIMIT_S = 180.0
_PAUSE_S = 3.0
_PER_SECOND = 500  # numbers of each source
_MORE = 20  # messages that each topology must ack after a fault
_CONF = {
    "topology.workers": 1,
    "topology.max.spout.pending": 50,
    "topology.max.worker.deaths": 1_000_000,
    "topology.message.timeout.secs": 600,
}


class ChaosCluster:
    """The servers behind their proxies, the driver's process, and a client."""

    def __init__(self, folder: Path, master: str, say: Callable[[str], None]) -> None:
        self.folder, self._master, self._say = folder, master, say
        self._open = ExitStack()
        self.redis = start_redis(folder / "redis", password="chaos")
        self._open.callback(self.redis.stop)
        self.zookeeper = start_zookeeper(folder / "zookeeper", password="chaos", user="chaos")
        self._open.callback(self.zookeeper.stop)
        self.redis_proxy = TcpProxy(self.redis.host, self.redis.port, redis_request)
        self._open.callback(self.redis_proxy.close)
        self.zookeeper_proxy = TcpProxy(self.zookeeper.host, self.zookeeper.port)
        self._open.callback(self.zookeeper_proxy.close)
        self.driver: subprocess.Popen[bytes] | None = None
        self.client: ClusterClient | None = None
        self.handles: list[TopologyHandle] = []

    def start_driver(self) -> None:
        """Start a driver and wait until its cluster is up."""
        conf = {
            "sparkstorm.redis.url": f"redis://{self.redis_proxy.host}:{self.redis_proxy.port}/0",
            "storm.zookeeper.servers": [f"{self.zookeeper_proxy.host}:{self.zookeeper_proxy.port}"],
            "storm.zookeeper.auth.user": "chaos",
            "storm.zookeeper.session.timeout": 6000,
            "storm.local.dir": str(self.folder / "driver"),
            "sparkstorm.slots.per.supervisor": 3,
        }
        (self.folder / "cluster.yaml").write_text(json.dumps(conf))
        secrets = {"SPARKSTORM_REDIS_PASSWORD": "chaos", "SPARKSTORM_ZOOKEEPER_PASSWORD": "chaos"}
        said_before = self.said().count("Ctrl-C stops the cluster")
        with (self.folder / "driver.log").open("ab") as log:
            command = [
                sys.executable,
                "-m",
                "sparkstorm.cli",
                "cluster",
                str(self.folder / "cluster.yaml"),
                "--master",
                self._master,
            ]
            self.driver = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env={**os.environ, **secrets})
        self.wait(lambda: self.said().count("Ctrl-C stops the cluster") > said_before, "the cluster")

    def said(self) -> str:
        """Return what the drivers have printed."""
        log = self.folder / "driver.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def submit_all(self) -> None:
        """Submit the four topologies."""
        self.client = self._open.enter_context(connect(self.folder / "driver" / "connection.json"))
        for chaos in TOPOLOGIES:
            topology = chaos.build(str(self.gate(chaos.name)), _PER_SECOND)
            self.handles.append(self.client.submit(chaos.name, topology, _CONF))
        self.wait(lambda: all(count > _MORE for count in self.acked()), "the work of all topologies")

    def gate(self, name: str) -> Path:
        """Return the file whose being there ends a topology's source."""
        return self.folder / f"gate-{name}"

    def acked(self) -> list[int]:
        """Return the acked messages of each topology; -1 while they cannot be read."""
        found = []
        for handle in self.handles:
            try:
                found.append(handle.progress().acked)
            except SparkStormError:
                found.append(-1)
        return found

    def wait(self, condition: Callable[[], object], what: str, limit_s: float = _LIMIT_S) -> float:
        """Poll until something holds; the seconds it took, AssertionError with the driver's words when it never does."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > limit_s:
                raise AssertionError(f"{what}: not within {limit_s:.0f} s; {self.acked()}\n{self.said()[-4000:]}")
            time.sleep(0.05)
        return time.monotonic() - began

    def wait_at_work(self) -> float:
        """Wait until every topology has acked more than now; the seconds it took."""
        began = time.monotonic()
        self.wait(lambda: min(self.acked()) >= 0, "readable counts")
        before = self.acked()
        self.wait(lambda: all(now >= was + _MORE for now, was in zip(self.acked(), before, strict=True)), "progress of all")
        return time.monotonic() - began

    def workers(self) -> list[int]:
        """Return the process ids of the running workers."""
        assert self.client is not None
        state, found = self.client.state, []
        for handle in self.handles:
            with suppress(SparkStormError):
                beats = [state.read_worker_beat(handle.topology_id, slot) for slot in state.worker_beat_slots(handle.topology_id)]
                found += [beat.pid for beat in beats if beat and beat.state == "RUNNING" and not is_gone(beat.pid)]
        return sorted(set(found))

    def finish(self, report: ChaosReport) -> None:
        """Open the gates, wait for the end of all sources and compare what was counted with what must be."""
        for chaos, handle in zip(TOPOLOGIES, self.handles, strict=True):
            self.gate(chaos.name).touch()
            self.wait(lambda handle=handle: _is_drained(handle), f"the end of {handle.name}")  # type: ignore[misc]
            found = Counter[str]()
            for key, value in handle.key_values(chaos.component):
                found[key] += value
            report.of(chaos.name).compare(chaos.expected(found.get("total", 0)), found)

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


def _is_drained(handle: TopologyHandle) -> bool:
    try:
        return handle.progress().is_drained
    except SparkStormError:  # a store that is away
        return False


def _pause(pid: int) -> None:
    """Stop a process for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(_PAUSE_S)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


Strike = Callable[[ChaosCluster, random.Random], None]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _worker(cluster: ChaosCluster, dice: random.Random) -> int:
    cluster.wait(cluster.workers, "a running worker")
    return dice.choice(cluster.workers())


def kill_worker(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill a worker."""
    _kill(_worker(cluster, dice))


def pause_worker(cluster: ChaosCluster, dice: random.Random) -> None:
    """Stop a worker for a while."""
    _pause(_worker(cluster, dice))


def kill_slot(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill a slot's Python process."""
    _kill(parent_of(_worker(cluster, dice)))


def pause_slot(cluster: ChaosCluster, dice: random.Random) -> None:
    """Stop a slot's Python process for a while."""
    _pause(parent_of(_worker(cluster, dice)))


def kill_daemon(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill the Python daemon that Spark forks slots from."""
    _kill(parent_of(parent_of(_worker(cluster, dice))))


def kill_executor(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill an executor's JVM, above the Python daemon."""
    _kill(parent_of(parent_of(parent_of(_worker(cluster, dice)))))


def kill_driver(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill the driver, and start another one."""
    assert cluster.driver is not None
    below = descendants(cluster.driver.pid)
    cluster.driver.kill()
    cluster.driver.wait()
    cluster.wait(lambda: all(map(is_gone, below)), "the end of the driver's processes", 60)
    cluster.start_driver()


def kill_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill Redis and start it again."""
    cluster.redis.kill()
    cluster.redis.restart()


def pause_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Stop Redis for a while."""
    _pause(cluster.redis.pid)


def kill_zookeeper(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill ZooKeeper and start it again."""
    cluster.zookeeper.kill()
    cluster.zookeeper.restart()


def pause_zookeeper(cluster: ChaosCluster, dice: random.Random) -> None:
    """Stop ZooKeeper for a while."""
    _pause(cluster.zookeeper.pid)


def cut_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Break every connection to Redis."""
    cluster.redis_proxy.cut_all()


def cut_zookeeper(cluster: ChaosCluster, dice: random.Random) -> None:
    """Break every connection to ZooKeeper."""
    cluster.zookeeper_proxy.cut_all()


def half_open_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Keep the connections to Redis open, and forward nothing for a while."""
    _half_open(cluster.redis_proxy)


def half_open_zookeeper(cluster: ChaosCluster, dice: random.Random) -> None:
    """Keep the connections to ZooKeeper open, and forward nothing for a while."""
    _half_open(cluster.zookeeper_proxy)


def _half_open(proxy: TcpProxy) -> None:
    proxy.pause()
    try:
        time.sleep(_PAUSE_S)
    finally:
        proxy.resume()


def full_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Leave Redis without memory for a while."""
    with cluster.redis.client() as client:
        limit = client.config_get("maxmemory")["maxmemory"]
        client.config_set("maxmemory", "1mb")
        try:
            time.sleep(_PAUSE_S)
        finally:
            client.config_set("maxmemory", limit)


def torn_log(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill Redis, cut the end off its append-only file in the middle of a command, and start it again."""
    cluster.redis.kill()
    files = [path for path in cluster.redis.data_dir.rglob("*.aof") if path.stat().st_size]
    newest = max(files, key=lambda path: path.stat().st_mtime_ns)
    with newest.open("r+b") as file:
        file.truncate(max(0, newest.stat().st_size - dice.randint(1, 200)))
    cluster.redis.restart()


def worker_and_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill a worker and Redis at once."""
    kill_worker(cluster, dice)
    kill_redis(cluster, dice)


def slot_and_zookeeper(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill a slot and ZooKeeper at once."""
    kill_slot(cluster, dice)
    kill_zookeeper(cluster, dice)


FAULTS: Mapping[str, Strike] = {
    "kill worker": kill_worker,
    "pause worker": pause_worker,
    "kill slot": kill_slot,
    "pause slot": pause_slot,
    "kill Python daemon": kill_daemon,
    "kill driver": kill_driver,
    "kill Redis": kill_redis,
    "pause Redis": pause_redis,
    "kill ZooKeeper": kill_zookeeper,
    "pause ZooKeeper": pause_zookeeper,
    "cut Redis": cut_redis,
    "cut ZooKeeper": cut_zookeeper,
    "half-open Redis": half_open_redis,
    "half-open ZooKeeper": half_open_zookeeper,
    "full Redis": full_redis,
    "torn AOF": torn_log,
    "worker and Redis": worker_and_redis,
    "slot and ZooKeeper": slot_and_zookeeper,
}
CLUSTER_FAULTS: Mapping[str, Strike] = {"kill executor JVM": kill_executor}
"""Only on masters that have executors, such as local-cluster[2,4,1024]."""
_ENDURED = {"pause worker", "pause slot", "pause Redis", "pause ZooKeeper", "half-open Redis", "half-open ZooKeeper", "full Redis"}


def schedule(seed: int, names: Sequence[str]) -> Iterator[str]:
    """Yield names of faults without end: all in a drawn order, then all again in another."""
    dice = random.Random(seed)
    while True:
        yield from dice.sample(list(names), len(names))


def run_processes(
    seconds: float,
    seed: int,
    report: ChaosReport,
    folder: Path,
    master: str = "local[7]",
    names: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> ChaosReport:
    """Strike for so many seconds, let all recover each time, and compare the counts at the end."""
    faults: dict[str, Strike] = {**FAULTS, **({} if master.startswith("local[") else CLUSTER_FAULTS)}
    cluster, dice = ChaosCluster(folder, master, say), random.Random(seed)
    try:
        cluster.start_driver()
        cluster.submit_all()
        until = time.monotonic() + seconds
        for name in schedule(seed, [*(names or faults)]):
            if time.monotonic() >= until:
                break
            began = time.monotonic()
            faults[name](cluster, dice)
            began = time.monotonic() if name in _ENDURED else began
            cluster.wait_at_work()
            report.add(name, time.monotonic() - began)
            say(f"{name}: recovered after {report.seconds_by_kind[name][-1]:.2f} s")
        cluster.finish(report)
    finally:
        cluster.close()
    return report


def as_json(report: ChaosReport) -> dict[str, Any]:
    """Return a report for programs."""
    exact = {name: asdict(each) for name, each in report.exactness.items()}
    return {"backend": report.backend, "seconds_by_kind": report.seconds_by_kind, "topologies": exact}
