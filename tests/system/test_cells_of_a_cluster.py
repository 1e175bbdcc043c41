"""A topology over two real Redis servers, on drivers of a standing cluster: exact over a kill -9 of
its workers and of the driver with Nimbus, and both stores are empty at its end; each command that
looks inside finds what lies in both.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.client import TopologyHandle, connect
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.tasks import cell_by_task
from sparkstorm.extensions.embedded import RedisServer, start_redis
from tests.client.bare import ended, sparkstorm
from tests.system.test_spare_driver import Drivers, homes
from tests.system.test_standing_cluster import JOB, versions_of_exact_counts
from tests.system.test_two_stores import names_in

pytestmark = [pytest.mark.system, pytest.mark.nightly]
CUT = JOB + "topology.cells: 2\n"
SPOILED = " ".join(f"spoiled-{n}" for n in range(8))
_ADDS = "        super().execute(tup, collector)\n"
_REFUSES = """
        if tup["word"].startswith("spoiled") and not Path("FOLDER/allowed").exists():
            raise ValueError("a spoiled word")
"""


class DriversOfTwoStores(Drivers):
    """Drivers that know two Redis servers; the jobs gamma and delta lie in both. Delta refuses some
    words until the file `allowed` is there.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.second = start_redis(folder / "second", password="redis-secret", maxmemory_mb=64)
        job = CUT.format(name="gamma", module="first", folder=folder)
        (folder / "gamma.yaml").write_text(job.replace("workers: 1", "workers: 2"))
        refuses = _REFUSES.replace("FOLDER", str(folder)).removeprefix("\n")
        for file, of in (("delta", "first"), ("delta-new", "second")):
            text = (folder / f"{of}.py").read_text().replace(_ADDS, refuses + _ADDS)
            (folder / f"spoiled_{of}.py").write_text("from pathlib import Path\n" + text)
            job = CUT.format(name="delta", module=f"spoiled_{of}", folder=folder)
            job = job.replace("workers: 1", "workers: 2") + "topology.max.retries: 0\n"
            (folder / f"{file}.yaml").write_text(job)

    def conf(self, name: str) -> dict[str, Any]:
        conf = super().conf(name)
        first = conf.pop("sparkstorm.redis.url")
        second = f"redis://{self.second.host}:{self.second.port}"
        return {**conf, "sparkstorm.redis.urls": [f"{first}#near", f"{second}#far"]}

    @property
    def stores(self) -> list[RedisServer]:
        return [self.redis, self.second]

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def refused(self, *arguments: str) -> str:
        """Return what a command that is refused has said."""
        command = sparkstorm(*arguments, folder=self.folder, cluster=self.connection)
        status, out, err = ended(command)
        assert status == 1 and not out, f"{arguments}: {status}, {out}{err}"
        return err

    def works(self, handle: TopologyHandle, rows: int) -> None:
        """Wait until so many more messages are acked."""
        acked = handle.progress().acked
        self.wait(lambda: handle.progress().acked > acked + rows, "work")

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


def cells_of(handle: TopologyHandle) -> dict[int, int]:
    """Return the cell of each task."""
    components = {task: info.component_id for task, info in handle.tasks().items()}
    return cell_by_task(components, 2)


def beat_by_cell(handle: TopologyHandle) -> dict[int, WorkerBeat]:
    """Return the worker of each cell."""
    cell = cells_of(handle)
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
        works = partial(drivers.works, handle, 500)
        works()
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
            works()
        drivers.start("two")
        drivers.wait_up("two")
        drivers.wait(lambda: len(cluster.drivers()) == 2, "the spare")
        drivers.kill("one")
        drivers.wait(lambda: homes(handle) <= {"node-1@2", "node-2@2"}, "the spare's slots")
        works()
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


def test_every_command_finds_what_lies_in_both_stores_and_an_upgrade_goes_over_both(
    drivers: DriversOfTwoStores,
) -> None:
    lines = drivers.folder / "lines.txt"
    lines.write_text(f"{lines.read_text()}{SPOILED}\n")
    drivers.start("one")
    drivers.wait_up("one")
    drivers.run("submit", "delta.yaml", "--detach")
    with connect(drivers.connection) as cluster:
        handle = cluster.topology("delta")
        drivers.works(handle, 200)
        require_both_seen(drivers, handle)
        require_letters_of_both_given_back(drivers, handle)
        for words, arguments in (
            ("set topology.workers to 2 or more, not 1", ("--workers", "1")),
            ("give it 2 executors or more", ("--executors", "count=1")),
        ):
            assert words in drivers.refused("rebalance", "delta", *arguments, "--yes")
        first = drivers.json("upgrade", "start", "delta-new.yaml", "--num", "1")
        assert (len(first["upgraded"]), len(first["remaining"])) == (1, 1), first
        drivers.works(handle, 200)
        last = drivers.json("upgrade", "continue", "delta", "--num", "1")
        assert (last["status"], last["other_code"]) == ("ACTIVE", []), last
        drivers.works(handle, 200)
        (drivers.folder / "gate-delta").touch()
        drivers.run("follow", "delta")
        assert versions_of_exact_counts(handle, drivers.folder) == {"$v1", "$v2"}
        assert not handle.losses() and not handle.dead_letters.count()
        drivers.run("kill", "delta", "--wait", "0")
        drivers.wait(lambda: cluster.find("delta") is None, "its end")
    for server in drivers.stores:
        # the stream of dead letters, empty now, outlives its topology
        assert names_in(server) == {"delta": {"ended", "dead"}}


def require_both_seen(drivers: DriversOfTwoStores, handle: TopologyHandle) -> None:
    """Rows, traces and stacks come from workers of both cells."""
    cell = cells_of(handle)

    def tailed() -> set[int]:
        rows = drivers.run("tail", "delta", "split", "-n", "200", "--json").splitlines()
        return {cell[json.loads(row)["task"]] for row in rows}

    # again where the machine gave one of the workers no time
    drivers.wait(lambda: tailed() == {0, 1}, "rows of both cells")

    def traced() -> set[int]:
        """Return the cells of the trace that has been in the most of them."""
        found = drivers.json("journey", "delta", "--trace", "3")["traces"]
        cells = [{cell[event["task"]] for event in trace["events"]} for trace in found]
        return max(cells, key=len, default=set())

    drivers.wait(lambda: traced() == {0, 1}, "a message in both cells")
    for beat in beat_by_cell(handle).values():
        at = f"{beat.node}:{beat.port}"
        stacks = drivers.run("stacks", "delta", at, "--seconds", "1", "--folded")
        assert "MainThread;" in stacks and "(worker/loop.py" in stacks
    assert "count" in drivers.run("status", "delta")


def require_letters_of_both_given_back(drivers: DriversOfTwoStores, handle: TopologyHandle) -> None:
    """Dead letters of both stores are listed, one of each is shown, and all are replayed."""
    drivers.wait(lambda: handle.dead_letters.count() >= len(SPOILED.split()), "dead letters")
    ids = drivers.json("dead-letters", "list", "delta")["causes"][0]["ids"]
    by_store = {id.partition("@")[2]: id for id in ids}
    assert by_store.keys() == {"near", "far"}, ids
    assert "a spoiled word" in drivers.run("dead-letters", "show", "delta", *by_store.values())
    for beat in beat_by_cell(handle).values():
        logs = drivers.run("logs", "delta", "--worker", f"{beat.node}:{beat.port}")
        assert "a spoiled word" in logs, "each has parked some"
    (drivers.folder / "allowed").touch()

    def is_empty() -> bool:
        # rows that failed before may be parked after it
        drivers.run("dead-letters", "replay", "delta", "--all")
        return not handle.dead_letters.count()

    drivers.wait(is_empty, "an end of the dead letters")
