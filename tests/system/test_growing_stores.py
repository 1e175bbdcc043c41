"""A cluster that grows from one Redis to three while its topologies work: those that run stay, new
ones get the new stores, and one is cut over all three by a savepoint.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.client import connect
from sparkstorm.extensions.embedded import start_redis
from tests.system.test_spare_driver import Drivers, homes
from tests.system.test_standing_cluster import JOB, NUMBERS, versions_of_exact_counts
from tests.system.test_two_stores import names_in

pytestmark = [pytest.mark.system, pytest.mark.nightly]
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
        handles = {each.name: each for each in cluster.topologies()}
        bases = {name: cluster.state.read_base(each.topology_id) for name, each in handles.items()}
        result = {name: base.store if base else None for name, base in bases.items()}
        assert result == {"beta": "", "gamma": "second", "delta": "third"}
        for name, each in handles.items():
            (drivers.folder / f"gate-{name}").touch()
            drivers.run("follow", name)
            assert versions_of_exact_counts(each, drivers.folder) == {"$v1"}
        for name in ("gamma", "delta"):  # their slots are wanted
            drivers.run("kill", name, "--wait", "0")
            drivers.wait(lambda name=name: cluster.find(name) is None, f"the end of {name}")  # type: ignore[misc]
        cut = ("-c", "topology.cells=3", "-c", "topology.workers=3")
        drivers.run("submit", "alpha.yaml", "--detach", "--from", saved, *cut)
        alpha = cluster.topology("alpha")
        base = cluster.state.read_base(alpha.topology_id)
        # those without workers first, then beta's
        assert base is not None and base.cells[:2] == ("second", "third") and len(base.cells) == 3
        (drivers.folder / "gate-alpha").touch()
        drivers.run("follow", "alpha")
        assert dict(alpha.key_values("count")) == dict(Counter(n % 7 for n in range(400)))
    held = [names_in(server) for server in (drivers.redis, *drivers.added.values())]
    assert all("fence" in each["alpha"] for each in held)
    assert [each.keys() - {"alpha"} for each in held] == [{"beta"}, {"gamma"}, {"delta"}]
    assert [held[n][name] for n, name in ((1, "gamma"), (2, "delta"))] == [{"ended"}] * 2


def change_drivers(drivers: GrowingDrivers) -> None:
    """Start the driver with the new list, and stop the former one, as operations.md says."""
    drivers.start("two")
    drivers.wait_up("two")
    drivers.processes["one"].send_signal(signal.SIGINT)
    drivers.processes["one"].wait(900)
