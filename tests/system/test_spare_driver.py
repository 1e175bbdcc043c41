"""Two drivers of one cluster on servers of the user's: the leading one is killed in the middle of requests, the spare goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkstorm.client import ClusterClient, TopologyHandle, connect
from sparkstorm.embedded import start_redis, start_zookeeper
from tests.client.bare import ended, sparkstorm
from tests.system.test_standing_cluster import JOB, LINES, WORDS, versions_of_exact_counts

pytestmark = pytest.mark.system
LIMIT_S = 150.0
SESSION_MS = 4000


class Drivers:
    """A Redis, a ZooKeeper, and driver processes that share them, each with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.redis = start_redis(folder / "redis", password="redis-secret")
        self.zookeeper = start_zookeeper(folder / "zookeeper", password="zookeeper-secret", user="keeper")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "lines.txt").write_text("\n".join(LINES) + "\n")
        for module, version in (("first", "v1"), ("second", "v2")):
            (folder / f"{module}.py").write_text(WORDS.replace("VERSION", version))
        for file, name, module in (("alpha", "alpha", "first"), ("beta", "beta", "first"), ("beta-new", "beta", "second")):
            (folder / f"{file}.yaml").write_text(JOB.format(name=name, module=module, folder=folder))

    def conf(self, name: str) -> dict[str, Any]:
        return {
            "sparkstorm.redis.url": f"redis://{self.redis.host}:{self.redis.port}/0",
            "storm.zookeeper.servers": [self.zookeeper.hosts],
            "storm.zookeeper.auth.user": "keeper",
            "storm.zookeeper.session.timeout": SESSION_MS,
            "storm.local.dir": str(self.folder / name),
            "sparkstorm.slots.per.supervisor": 2,
        }

    def start(self, name: str) -> None:
        """Start a driver; it is given the connection file of the first one, as on another host."""
        path = self.folder / f"{name}.cluster.yaml"
        path.write_text(yaml.safe_dump(self.conf(name)))
        if name != "one" and not (self.folder / name).exists():
            (self.folder / name).mkdir(mode=0o700)
            shutil.copy2(self.connection, self.folder / name / "connection.json")
        command = [sys.executable, "-m", "sparkstorm.cli", "cluster", str(path), "--master", "local[5]"]
        secrets = {"SPARKSTORM_REDIS_PASSWORD": "redis-secret", "SPARKSTORM_ZOOKEEPER_PASSWORD": "zookeeper-secret"}
        with self.output(name).open("ab") as output:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, stdout=output, stderr=output, env={**os.environ, **secrets}
            )

    @property
    def connection(self) -> Path:
        return self.folder / "one" / "connection.json"

    def output(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        return self.output(name).read_text()

    def all_said(self) -> str:
        return "\n".join(f"--- {name}\n{self.said(name)}" for name in self.processes)

    def run(self, *arguments: str) -> str:
        status, out, err = ended(sparkstorm(*arguments, folder=self.folder, cluster=self.connection))
        assert status == 0, f"{arguments}: {out}{err}\n{self.all_said()}"
        return out

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come about:\n{self.all_said()}"
            time.sleep(0.05)

    def wait_up(self, name: str, times: int = 1) -> None:
        self.wait(lambda: self.said(name).count("Ctrl-C stops the cluster") == times, f"driver {name}")

    def kill(self, name: str) -> float:
        """Kill a driver; the time of it."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(30)
        return time.monotonic()

    def stop_all(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self.processes.values():
            process.wait(60)
        self.zookeeper.stop()
        self.redis.stop()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    made = Drivers(tmp_path)
    try:
        yield made
    finally:
        made.stop_all()


def homes(handle: TopologyHandle) -> set[str]:
    """Names of the nodes on which a topology is."""
    return {slot.node for slot in handle.slots()}


def take_over(drivers: Drivers, cluster: ClusterClient, dies: str, begun: subprocess.Popen[str], request: str) -> None:
    """Kill the leading driver in the middle of a request, wait until the spare has ended it and works; print the times."""
    leader = cluster.leader()
    assert leader and leader.driver and leader.driver.pid == drivers.processes[dies].pid
    drivers.wait(lambda: cluster.state.request_ids(), f"the request to {request}")
    killed = drivers.kill(dies)
    drivers.wait(lambda: (now := cluster.leader()) and now.owner != leader.owner, "another leader")
    led_s = time.monotonic() - killed
    status, out, err = ended(begun)
    assert status == 0, f"{out}{err}\n{drivers.all_said()}"
    done_s = time.monotonic() - killed
    handles = [cluster.topology("alpha"), cluster.topology("beta")]
    acked = [handle.progress().acked for handle in handles]
    drivers.wait(lambda: all(h.progress().acked > a + 20 for h, a in zip(handles, acked, strict=True)), "the work goes on")
    work_s = time.monotonic() - killed
    print(f"\nkilled in a {request}: led after {led_s:.1f} s, request done after {done_s:.1f} s, all at work after {work_s:.1f} s")


def test_a_spare_takes_over_in_the_middle_of_a_rebalance_and_of_an_update(drivers: Drivers) -> None:
    drivers.start("one")
    drivers.wait_up("one")
    for name in ("alpha", "beta"):
        drivers.run("submit", f"{name}.yaml", "--detach")
    drivers.start("two")
    drivers.wait_up("two")
    drivers.wait(lambda: "leads; this one stands by" in drivers.said("two"), "the second driver as a follower")
    print(drivers.run("status"))
    with connect(drivers.connection) as cluster:
        alpha = cluster.topology("alpha")
        drivers.wait(lambda: alpha.progress().acked > 20 and cluster.topology("beta").progress().acked > 20, "the work of both")
        assert homes(alpha) <= {"node-1", "node-2"}
        begun = sparkstorm(
            "rebalance", "alpha", "--workers", "2", "--wait", "2", "--yes", folder=drivers.folder, cluster=drivers.connection
        )
        take_over(drivers, cluster, "one", begun, "rebalance")
        assert len(alpha.slots()) == 2 and homes(alpha) <= {"node-1@2", "node-2@2"}
        drivers.wait(lambda: "this driver leads now" in drivers.said("two"), "the second driver as the leader")

        drivers.start("one")  # the killed driver joins, with its nodes' names
        drivers.wait_up("one", times=2)
        drivers.wait(lambda: "leads; this one stands by" in drivers.said("one"), "the first driver as a follower")
        assert [each.number for each in cluster.drivers()] == [1, 2]
        print(drivers.run("status"))
        begun = sparkstorm("update", "beta-new.yaml", folder=drivers.folder, cluster=drivers.connection)
        take_over(drivers, cluster, "two", begun, "update")
        beta = cluster.topology("beta")
        assert homes(alpha) | homes(beta) <= {"node-1", "node-2"}

        for handle in (alpha, beta):
            (drivers.folder / f"gate-{handle.name}").touch()
            drivers.run("follow", handle.name)
        assert versions_of_exact_counts(alpha, drivers.folder) == {"$v1"}
        assert versions_of_exact_counts(beta, drivers.folder) == {"$v1", "$v2"}
    print(drivers.all_said())
