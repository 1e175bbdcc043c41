"""Two drivers of one cluster on servers of the user's: the leading one is killed in each kind of request, the spare goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
        for file, name, module in (
            ("alpha", "alpha", "first"),
            ("beta", "beta", "first"),
            ("beta-new", "beta", "second"),
            ("gamma", "gamma", "first"),
        ):
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

    def wait(self, condition: Callable[[], Any], what: str, every_s: float = 0.05) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come about:\n{self.all_said()}"
            time.sleep(every_s)

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


@dataclass(frozen=True)
class Kill:
    """One request in whose middle the leading driver dies, and what must be true in the end.

    A request that takes Nimbus some time is begun first: the leader dies when it has accepted it. The others would be over before
    a signal arrives, so the leader is stopped, the request is written, and it dies without having served it.
    """

    request: str
    arguments: tuple[str, ...]
    is_long: bool
    check: Callable[[ClusterClient], bool]


def status_of(name: str, wanted: str) -> Callable[[ClusterClient], bool]:
    return lambda cluster: cluster.topology(name).status() == wanted


KILLS = (
    Kill("submit", ("submit", "gamma.yaml", "--detach"), False, lambda cluster: len(cluster.topology("gamma").slots()) == 1),
    Kill("deactivate", ("deactivate", "alpha"), False, status_of("alpha", "INACTIVE")),
    Kill("activate", ("activate", "alpha"), False, status_of("alpha", "ACTIVE")),
    Kill("rebalance", ("rebalance", "alpha", "--workers", "2", "--wait", "2", "--yes"), True,
         lambda cluster: len(cluster.topology("alpha").slots()) == 2),
    Kill("update", ("update", "beta-new.yaml"), True, status_of("beta", "ACTIVE")),
    Kill("restart", ("restart", "alpha"), False, status_of("alpha", "ACTIVE")),
    Kill("kill", ("kill", "gamma", "--wait", "2"), False, lambda cluster: "gamma" not in [t.name for t in cluster.topologies()]),
)  # fmt: skip


def take_over(drivers: Drivers, cluster: ClusterClient, dies: str, kill: Kill) -> str:
    """Kill the leading driver in the middle of a request, wait until the spare has ended it and works; return the times."""
    leader, process = cluster.leader(), drivers.processes[dies]
    assert leader and leader.driver and leader.driver.pid == process.pid
    if not kill.is_long:
        process.send_signal(signal.SIGSTOP)
    begun = sparkstorm(*kill.arguments, folder=drivers.folder, cluster=drivers.connection)
    asked, accepted = cluster.state.request_ids, cluster.state.outcome_ids
    drivers.wait(lambda: set(asked()) & set(accepted()) if kill.is_long else asked(), f"the request to {kill.request}", 0.002)
    killed = drivers.kill(dies)
    (number,) = cluster.state.request_ids()
    outcome = cluster.state.read_outcome(number)
    assert outcome is None or not outcome.is_final, f"the {kill.request} was over before the leader died"
    drivers.wait(lambda: (now := cluster.leader()) and now.owner != leader.owner, "another leader")
    led_s = time.monotonic() - killed
    status, out, err = ended(begun)
    assert status == 0, f"{out}{err}\n{drivers.all_said()}"
    done_s = time.monotonic() - killed
    assert kill.check(cluster), f"{kill.request}\n{drivers.all_said()}"
    handles = [each for each in map(cluster.topology, ("alpha", "beta")) if each.status() == "ACTIVE"]
    acked = [handle.progress().acked for handle in handles]
    drivers.wait(lambda: all(h.progress().acked > a + 20 for h, a in zip(handles, acked, strict=True)), "the work goes on")
    work_s = time.monotonic() - killed
    phase = "accepted" if outcome else "written"
    return f"{kill.request:<12}{phase:<10}{led_s:>8.1f}{done_s:>8.1f}{work_s:>8.1f}"


def test_a_spare_ends_each_kind_of_request_in_whose_middle_the_leader_was_killed(drivers: Drivers) -> None:
    drivers.start("one")
    drivers.wait_up("one")
    for name in ("alpha", "beta"):
        drivers.run("submit", f"{name}.yaml", "--detach")
    times, leads, spare = [f"{'killed in':<12}{'when':<10}{'led':>8}{'done':>8}{'at work':>8}  (s after the kill)"], "one", "two"
    with connect(drivers.connection) as cluster:
        alpha = cluster.topology("alpha")
        drivers.wait(lambda: alpha.progress().acked > 20 and cluster.topology("beta").progress().acked > 20, "the work of both")
        for number, kill in enumerate(KILLS):
            drivers.start(spare)  # from the third on, a driver that was killed joins again, with its nodes' names
            drivers.wait_up(spare, times=1 + (number + 1) // 2)
            drivers.wait(lambda: len(cluster.drivers()) == 2, f"{spare} as a follower")
            assert [each.number for each in cluster.drivers()] == [1, 2]
            times.append(take_over(drivers, cluster, leads, kill))
            leads, spare = spare, leads
        print("\n" + "\n".join(times))
        beta = cluster.topology("beta")
        own = {"node-1@2", "node-2@2"} if leads == "two" else {"node-1", "node-2"}
        assert homes(alpha) | homes(beta) <= own
        for handle in (alpha, beta):
            (drivers.folder / f"gate-{handle.name}").touch()
            drivers.run("follow", handle.name)
        assert versions_of_exact_counts(alpha, drivers.folder) == {"$v1"}
        assert versions_of_exact_counts(beta, drivers.folder) == {"$v1", "$v2"}
    print(drivers.all_said())
