"""A standing cluster over a Redis Cluster of two nodes, through its commands: a topology is submitted,
looked into, updated while its slot moves from node to node, saved and killed; counts are exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.client import connect
from sparkstorm.common.model.requests import topology_name
from sparkstorm.data_plane.transport.servers.slots import slot_of
from tests.system.test_spare_driver import Drivers
from tests.system.test_standing_cluster import versions_of_exact_counts
from tests.system.test_two_stores import names_in
from tests.transport.cluster_redis import PASSWORD, ClusterRedis

pytestmark = [pytest.mark.system, pytest.mark.nightly]
SLOT = slot_of("{beta}")


class DriversOfACluster(Drivers):
    """Drivers whose store is a cluster of Redis."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.store = ClusterRedis(folder)

    def conf(self, name: str) -> dict[str, Any]:
        own = {"sparkstorm.redis.url": self.store.url, "sparkstorm.redis.password": PASSWORD}
        return {**super().conf(name), **own}

    def works(self, acked: int = 100) -> None:
        """Wait until so many more messages of beta are acked."""
        with connect(self.connection) as cluster:
            handle = cluster.topology("beta")
            before = handle.progress().acked
            self.wait(lambda: handle.progress().acked > before + acked, "work")

    def move(self) -> None:
        """Move the topology's slot to the other node."""
        source = self.store.node_of("beta-1-1")
        target = next(each for each in self.store.primaries if each is not source)
        assert self.store.move(SLOT, source, target, 0.01) > 10, "its keys were not there"

    def stop_all(self) -> None:
        super().stop_all()
        self.store.close()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[DriversOfACluster]:
    made = DriversOfACluster(tmp_path)
    try:
        yield made
    finally:
        made.stop_all()


def test_a_topology_is_exact_over_its_commands_while_its_slot_moves(
    drivers: DriversOfACluster,
) -> None:
    drivers.start("one")
    drivers.wait_up("one")
    drivers.run("submit", "beta.yaml", "--detach")
    drivers.works()
    rows = drivers.run("tail", "beta", "split", "-n", "20", "--json").splitlines()
    assert len(rows) == 20 and json.loads(rows[0])
    drivers.move()
    drivers.works()
    drivers.run("update", "beta-new.yaml")
    drivers.works()
    drivers.move()
    drivers.works()
    # slots publish what a worker logs within a second
    drivers.wait(lambda: "counting" in drivers.run("logs", "beta"), "a line of the heir's logs")
    assert "beta" in drivers.run("status", "beta")
    drivers.run("savepoint", "beta", "saved")
    (drivers.folder / "gate-beta").touch()
    drivers.run("follow", "beta")
    with connect(drivers.connection) as cluster:
        handle = cluster.topology("beta")
        assert versions_of_exact_counts(handle, drivers.folder) == {"$v1", "$v2"}
        assert not handle.losses() and not handle.dead_letters.count()
        assert topology_name(handle.topology_id) == "beta"
        drivers.run("kill", "beta", "--wait", "0")
        drivers.wait(lambda: cluster.find("beta") is None, "its end")
    left = [names_in(node) for node in drivers.store.nodes]  # type: ignore[arg-type]
    assert sorted(map(str, left)) == sorted(map(str, [{"beta": {"ended"}}, {}]))
