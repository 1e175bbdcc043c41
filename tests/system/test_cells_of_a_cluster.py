"""A topology over two real Redis servers, on drivers of a standing cluster: exact over a kill -9 of
its workers and of the driver with Nimbus, and both stores are empty at its end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.client import TopologyHandle, connect
from sparkstorm.embedded import RedisServer, start_redis
from sparkstorm.model.assignment import WorkerBeat
from sparkstorm.model.tasks import cell_by_task
from tests.system.test_spare_driver import Drivers, homes
from tests.system.test_standing_cluster import JOB, versions_of_exact_counts
from tests.system.test_two_stores import names_in

pytestmark = pytest.mark.system
CUT = JOB + "topology.cells: 2\n"


class DriversOfTwoStores(Drivers):
    """Drivers that know two Redis servers; the job gamma lies in both."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.second = start_redis(folder / "second", password="redis-secret", maxmemory_mb=64)
        job = CUT.format(name="gamma", module="first", folder=folder)
        (folder / "gamma.yaml").write_text(job.replace("workers: 1", "workers: 2"))

    def conf(self, name: str) -> dict[str, Any]:
        conf = super().conf(name)
        first = conf.pop("sparkstorm.redis.url")
        second = f"redis://{self.second.host}:{self.second.port}"
        return {**conf, "sparkstorm.redis.urls": [f"{first}#near", f"{second}#far"]}

    @property
    def stores(self) -> list[RedisServer]:
        return [self.redis, self.second]

    def stop_all(self) -> None:
        super().stop_all()
        self.second.stop()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[DriversOfTwoStores]:
    made = DriversOfTwoStores(tmp_path)
    try:
        yield made
    finally:
        made.stop_all()


def beat_by_cell(handle: TopologyHandle) -> dict[int, WorkerBeat]:
    """Return the worker of each cell."""
    components = {task: info.component_id for task, info in handle.tasks().items()}
    cell = cell_by_task(components, 2)
    return {
        cell[min(each.first_task for each in beat.stats_by_executor)]: beat
        for beat in handle.beats()
        if beat.state == "RUNNING" and beat.stats_by_executor
    }


def is_another(handle: TopologyHandle, cell: int, pid: int) -> bool:
    """Return whether a cell has a worker that is not this process."""
    found = beat_by_cell(handle).get(cell)
    return found is not None and found.pid != pid


def test_a_topology_over_two_stores_is_exact_over_kills_of_workers_and_of_nimbus(
    drivers: DriversOfTwoStores,
) -> None:
    drivers.start("one")
    drivers.wait_up("one")
    drivers.run("submit", "gamma.yaml", "--detach")
    with connect(drivers.connection) as cluster:
        handle = cluster.topology("gamma")

        def works(rows: int) -> None:
            acked = handle.progress().acked
            drivers.wait(lambda: handle.progress().acked > acked + rows, "work")

        works(500)
        base = cluster.state.read_base(handle.topology_id)
        assert base is not None and base.cells == ("near", "far")
        for server in drivers.stores:
            parts = names_in(server)["gamma"]
            assert {"fence", "steps", "progress"} <= parts
            assert any(part.startswith("foreign:") for part in parts), "it reads from the other"
        for cell in (0, 1):
            drivers.wait(lambda: len(beat_by_cell(handle)) == 2, "workers of both cells")
            killed = beat_by_cell(handle)[cell].pid
            os.kill(killed, signal.SIGKILL)
            drivers.wait(partial(is_another, handle, cell, killed), "another worker")
            works(500)
        drivers.start("two")
        drivers.wait_up("two")
        drivers.wait(lambda: len(cluster.drivers()) == 2, "the spare")
        drivers.kill("one")
        drivers.wait(lambda: homes(handle) <= {"node-1@2", "node-2@2"}, "the spare's slots")
        works(500)
        assert "gamma" in drivers.run("list")
        assert "count" in drivers.run("status", "gamma")
        (drivers.folder / "gate-gamma").touch()
        drivers.run("follow", "gamma")
        assert versions_of_exact_counts(handle, drivers.folder) == {"$v1"}
        assert not handle.losses() and not handle.dead_letters.count()
        drivers.run("kill", "gamma", "--wait", "0")
        drivers.wait(lambda: cluster.find("gamma") is None, "its end")
    for server in drivers.stores:
        assert names_in(server) == {"gamma": {"ended"}}
