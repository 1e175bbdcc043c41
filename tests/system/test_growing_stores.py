"""A cluster that grows from one Redis to three while its topologies work: those that run stay, new
ones get the new stores, and one moves by a savepoint.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.client import connect
from sparkstorm.embedded import start_redis
from tests.system.test_spare_driver import Drivers, homes
from tests.system.test_standing_cluster import JOB, NUMBERS, versions_of_exact_counts
from tests.system.test_two_stores import names_in

pytestmark = pytest.mark.system
NUMBERED = """
name: alpha
topology: numbers_of_alpha:build
arguments: {{gate: {folder}/gate-alpha}}
"""


class GrowingDrivers(Drivers):
    """A driver `one` that knows a Redis, and a driver `two` that knows that one and two more."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.present = "one"
        self.added = {
            name: start_redis(folder / name, password="redis-secret", maxmemory_mb=64)
            for name in ("second", "third")
        }
        job = JOB.format(name="delta", module="first", folder=folder)
        (folder / "delta.yaml").write_text(job)
        # 200 numbers, and 200 more when its gate opens
        (folder / "alpha.yaml").write_text(NUMBERED.format(folder=folder))
        numbers = NUMBERS.replace("1 / (tup['n'] - 13)", "1")
        (folder / "numbers_of_alpha.py").write_text(numbers)

    def conf(self, name: str) -> dict[str, Any]:
        conf = super().conf(name)
        if name == "one":
            return conf
        first = conf.pop("sparkstorm.redis.url")
        more = [f"redis://{each.host}:{each.port}#{name}" for name, each in self.added.items()]
        return {**conf, "sparkstorm.redis.urls": [first, *more]}

    @property
    def connection(self) -> Path:
        return self.folder / self.present / "connection.json"

    def stop_all(self) -> None:
        super().stop_all()
        for server in self.added.values():
            server.stop()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[GrowingDrivers]:
    made = GrowingDrivers(tmp_path)
    try:
        yield made
    finally:
        made.stop_all()


def test_a_cluster_grows_from_one_store_to_three_without_stopping(drivers: GrowingDrivers) -> None:
    drivers.start("one")
    drivers.wait_up("one")
    for name in ("alpha", "beta"):
        drivers.run("submit", f"{name}.yaml", "--detach")
    with connect(drivers.connection) as cluster:
        alpha, beta = (cluster.topology(name) for name in ("alpha", "beta"))
        drivers.wait(
            lambda: alpha.progress().acked == 200 and beta.progress().acked > 20, "their work"
        )
        change_drivers(drivers)
        drivers.wait(lambda: len(cluster.drivers()) == 1, "the end of the first driver")
        nodes = {"node-1@2", "node-2@2"}
        drivers.wait(lambda: homes(alpha) | homes(beta) <= nodes, "the move")
        acked = beta.progress().acked
        drivers.wait(lambda: beta.progress().acked > acked + 20, "work on the new slots")
    drivers.present = "two"
    for name in ("gamma", "delta"):
        drivers.run("submit", f"{name}.yaml", "--detach")
    saved = str(drivers.folder / "saved")
    drivers.run("savepoint", "alpha", saved, "--kill")
    with connect(drivers.connection) as cluster:
        drivers.wait(lambda: cluster.find("alpha") is None, "the end of alpha")
        move = ("--from", saved, "-c", "topology.redis.store=third")
        drivers.run("submit", "alpha.yaml", "--detach", *move)
        handles = {each.name: each for each in cluster.topologies()}
        bases = {name: cluster.state.read_base(each.topology_id) for name, each in handles.items()}
        assert {name: base.store if base else None for name, base in bases.items()} == {
            "alpha": "third",
            "beta": "",
            "gamma": "second",
            "delta": "third",
        }
        for name in handles:
            (drivers.folder / f"gate-{name}").touch()
            drivers.run("follow", name)
        numbers = dict(handles.pop("alpha").key_values("count"))
        assert numbers == dict(Counter(n % 7 for n in range(400)))
        for each in handles.values():
            assert versions_of_exact_counts(each, drivers.folder) == {"$v1"}
    held = {name: names_in(server) for name, server in drivers.added.items()}
    home = names_in(drivers.redis)
    assert home.pop("alpha") == {"ended"} and home.keys() == {"beta"}
    assert held["second"].keys() == {"gamma"} and held["third"].keys() == {"alpha", "delta"}


def change_drivers(drivers: GrowingDrivers) -> None:
    """Start the driver with the new list, and stop the former one, as operations.md says."""
    drivers.start("two")
    drivers.wait_up("two")
    drivers.processes["one"].send_signal(signal.SIGINT)
    drivers.processes["one"].wait(900)
