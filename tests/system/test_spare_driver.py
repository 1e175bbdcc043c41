"""Two drivers of one cluster on servers of the user's: the leading one is killed in each kind of
request, the spare goes on.
"""

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
from sparkstorm.common.model.requests import OutcomeState
from sparkstorm.extensions.embedded import start_redis, start_zookeeper
from tests.client.bare import ended, sparkstorm
from tests.sim.watched_redis import until
from tests.system.test_standing_cluster import JOB, LINES, WORDS, versions_of_exact_counts

pytestmark = [pytest.mark.system, pytest.mark.nightly]
LIMIT_S = 400.0
SESSION_MS = 10_000  # a stopped leader keeps its office while clients start


class Drivers:
    """A Redis, a ZooKeeper, and driver processes that share them, each with its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.redis = start_redis(folder / "redis", password="redis-secret")
        self.zookeeper = start_zookeeper(
            folder / "zookeeper", password="zookeeper-secret", user="keeper"
        )
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
            (folder / f"{file}.yaml").write_text(
                JOB.format(name=name, module=module, folder=folder)
            )

    def conf(self, name: str) -> dict[str, Any]:
        return {
            "sparkstorm.redis.url": f"redis://{self.redis.host}:{self.redis.port}/0",
            "storm.zookeeper.servers": [self.zookeeper.hosts],
            "storm.zookeeper.auth.user": "keeper",
            "storm.zookeeper.session.timeout": SESSION_MS,
            "storm.local.dir": str(self.folder / name),
            "sparkstorm.slots.per.supervisor": 2,
            # a machine that is busy starts a slot in more than the minute of the default
            "sparkstorm.slots.start.timeout.ms": round(1000 * LIMIT_S),
        }

    def start(self, name: str, python: str = sys.executable) -> None:
        """Start a driver; it is given the connection file of the first one, as on another host."""
        path = self.folder / f"{name}.cluster.yaml"
        path.write_text(yaml.safe_dump(self.conf(name)))
        if name != "one" and not (self.folder / name).exists():
            (self.folder / name).mkdir(mode=0o700)
            shutil.copy2(self.connection, self.folder / name / "connection.json")
        command = [
            python,
            "-m",
            "sparkstorm.cli",
            "cluster",
            str(path),
            "--master",
            "local[5]",
        ]
        secrets = {
            "SPARKSTORM_REDIS_PASSWORD": "redis-secret",
            "SPARKSTORM_ZOOKEEPER_PASSWORD": "zookeeper-secret",
        }
        with self.output(name).open("ab") as output:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=output,
                stderr=output,
                env={**os.environ, **secrets},
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
        status, out, err = ended(
            sparkstorm(*arguments, folder=self.folder, cluster=self.connection)
        )
        most = arguments[0] == "status"  # 1: the topology is not well, as after a death
        assert status <= most, f"{arguments}: {out}{err}\n{self.all_said()}"
        return out

    def wait(self, condition: Callable[[], Any], what: str, every_s: float = 0.05) -> None:
        words = lambda: f"{what} did not come about:\n{self.all_said()}"  # noqa: E731
        until(condition, words, LIMIT_S, every_s)

    def wait_up(self, name: str, times: int = 1) -> None:
        self.wait(
            lambda: self.said(name).count("Ctrl-C stops the cluster") == times, f"driver {name}"
        )

    def kill(self, name: str) -> float:
        """Kill a driver; the time of it."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(240)
        return time.monotonic()

    def stop_all(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self.processes.values():
            process.wait(900)
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
class Asked:
    """A request in whose middle the leading driver dies, and what must be true in the end."""

    request: str
    arguments: tuple[str, ...]
    holds: Callable[[ClusterClient], bool]


def has_status(name: str, wanted: str) -> Callable[[ClusterClient], bool]:
    return lambda cluster: cluster.topology(name).status() == wanted


SUBMIT = Asked(
    "submit",
    ("submit", "gamma.yaml", "--detach"),
    lambda cluster: len(cluster.topology("gamma").slots()) == 1,
)
DEACTIVATE = Asked("deactivate", ("deactivate", "alpha"), has_status("alpha", "INACTIVE"))
REBALANCE = Asked(
    "rebalance",
    ("rebalance", "beta", "--workers", "2", "--wait", "8", "--yes"),
    lambda cluster: len(cluster.topology("beta").slots()) == 2,
)
UPDATE = Asked("update", ("update", "beta-new.yaml"), has_status("beta", "ACTIVE"))
ACTIVATE = Asked("activate", ("activate", "alpha"), has_status("alpha", "ACTIVE"))
RESTART = Asked("restart", ("restart", "beta"), has_status("beta", "ACTIVE"))
KILL = Asked(
    "kill",
    ("kill", "gamma", "--wait", "1"),
    lambda cluster: "gamma" not in [each.name for each in cluster.topologies()],
)
ROUNDS = ((SUBMIT, DEACTIVATE), (REBALANCE,), (UPDATE,), (ACTIVATE, RESTART, KILL))
"""Requests under way at each death of a leader.

One that takes Nimbus some time is alone: the leader dies when it has accepted it. Others would be
over before a signal arrives: the leader is stopped, they are written, and it dies without having
served them.
"""


def open_requests(cluster: ClusterClient) -> list[tuple[str, str]]:
    """Requests that are not over, plans left out, each with its state."""
    found = []
    for number in cluster.state.request_ids():
        request, outcome = cluster.state.read_request(number), cluster.state.read_outcome(number)
        if request and not request.is_plan and (outcome is None or not outcome.is_final):
            found.append((number, str(outcome.state) if outcome else "written"))
    return found


def take_over(
    drivers: Drivers, cluster: ClusterClient, dies: str, asked: tuple[Asked, ...]
) -> list[str]:
    """Kill the leading driver in the middle of requests, wait until the spare has ended them and
    works; return the times.
    """
    leader, process, is_alone = cluster.leader(), drivers.processes[dies], len(asked) == 1
    assert leader and leader.driver and leader.driver.pid == process.pid
    # both: else the spare leads as soon as the leader's session ends, however late the clients are
    if not is_alone:
        for each_driver in drivers.processes.values():
            each_driver.send_signal(signal.SIGSTOP)
    begun = [
        sparkstorm(*each.arguments, folder=drivers.folder, cluster=drivers.connection)
        for each in asked
    ]
    wanted = [OutcomeState.ACCEPTED] if is_alone else ["written"] * len(asked)
    drivers.wait(
        lambda: [state for _, state in open_requests(cluster)] == wanted, f"{asked}", 0.002
    )
    killed = drivers.kill(dies)
    assert len(open_requests(cluster)) == len(asked), "a request was over before the leader died"
    for name in drivers.processes.keys() - {dies}:
        drivers.processes[name].send_signal(signal.SIGCONT)
    drivers.wait(lambda: (now := cluster.leader()) and now.owner != leader.owner, "another leader")
    led_s, times = time.monotonic() - killed, []
    for each, process_of_client in zip(asked, begun, strict=True):
        status, out, err = ended(process_of_client)
        assert status == 0, f"{each.request}: {out}{err}\n{drivers.all_said()}"
        times.append(
            f"{each.request:<12}{wanted[0].lower():<10}{led_s:>8.1f}{time.monotonic() - killed:>8.1f}"
        )
    for each in asked:
        drivers.wait(lambda each=each: each.holds(cluster), f"the end of {each.request}")  # type: ignore[misc]
    handles = [
        each for each in map(cluster.topology, ("alpha", "beta")) if each.status() == "ACTIVE"
    ]
    acked = [handle.progress().acked for handle in handles]
    drivers.wait(
        lambda: all(h.progress().acked > a + 20 for h, a in zip(handles, acked, strict=True)),
        "the work goes on",
    )
    return [f"{line}{time.monotonic() - killed:>8.1f}" for line in times]


def test_a_spare_ends_each_kind_of_request_in_whose_middle_the_leader_was_killed(
    drivers: Drivers,
) -> None:
    drivers.start("one")
    drivers.wait_up("one")
    for name in ("alpha", "beta"):
        drivers.run("submit", f"{name}.yaml", "--detach")
    times, leads, spare = (
        [f"{'killed in':<12}{'when':<10}{'led':>8}{'done':>8}{'at work':>8}  (s after the kill)"],
        "one",
        "two",
    )
    with connect(drivers.connection) as cluster:
        alpha = cluster.topology("alpha")
        drivers.wait(
            lambda: alpha.progress().acked > 20 and cluster.topology("beta").progress().acked > 20,
            "the work of both",
        )
        for number, asked in enumerate(ROUNDS):
            # from the third on, a driver that was killed joins again, with its nodes' names
            drivers.start(spare)
            drivers.wait_up(spare, times=1 + (number + 1) // 2)
            drivers.wait(lambda: len(cluster.drivers()) == 2, f"{spare} as a follower")
            assert [each.number for each in cluster.drivers()] == [1, 2]
            times += take_over(drivers, cluster, leads, asked)
            leads, spare = spare, leads
        print("\n" + "\n".join(times))
        beta = cluster.topology("beta")
        own = {"node-1@2", "node-2@2"} if leads == "two" else {"node-1", "node-2"}
        drivers.wait(
            lambda: homes(alpha) | homes(beta) <= own, "all workers on the last driver's nodes"
        )
        for handle in (alpha, beta):
            (drivers.folder / f"gate-{handle.name}").touch()
            drivers.run("follow", handle.name)
        assert versions_of_exact_counts(alpha, drivers.folder) == {"$v1"}
        assert versions_of_exact_counts(beta, drivers.folder) == {"$v1", "$v2"}
    print(drivers.all_said())
