"""Disasters of a chaos run: Redis or ZooKeeper emptied, or put back to an older copy, under a log,
a state and a sink.

The topology reads a log from any position, counts words (the state) and writes each number to files
(the target), with `topology.store.loss=continue`. The state must be exact. The target must lack no
number, and may have one number as many times as losses were reported before, and once more. A loss
that is not reported within three minutes ends the run.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from sparkstorm.api import TopologyBuilder
from sparkstorm.client import ClusterClient, TopologyHandle
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.worker_spec import StoreMark
from sparkstorm.connectors import FileSink
from sparkstorm.data_plane.transport.store_loss import LOST
from sparkstorm.extensions.embedded.process import EmbeddedServer
from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import end_driver
from tests.chaos.report import GUARANTEES, ChaosReport
from tests.chaos.topologies import END, Numbers, Sum, Words, counted_words

NAME = "log"
STATE = "log: state"
TARGET = "log: target"
_PER_SECOND = 200  # numbers of the log; a reader that is behind reads on without a pause
_TAIL_S = 1.0
_MARGIN = 200  # numbers between the last one of the target and the end of the log
_CONF = {
    "topology.workers": 2,
    "topology.max.spout.pending": 500,
    "topology.max.worker.deaths": 1_000_000,
    "topology.message.timeout.secs": 600,
    "topology.store.loss": "continue",
    "topology.store.tail.secs": _TAIL_S,
}
_REDIS_DATA = ("appendonly*", "dump.rdb")
_ZOOKEEPER_DATA = ("zookeeper-data",)


class Log(Numbers):
    """Numbers of a log that has grown since `began_ms`: number n is there n / per_second seconds
    later, for any reader.

    The gate's text is the number at which it ends.
    """

    def __init__(self, gate: str, per_second: int, began_ms: int) -> None:
        super().__init__(gate, per_second)
        self._began_ms = began_ms

    def _is_due(self) -> bool:
        return self._context.now_ms() >= self._began_ms + self._next * 1000 / self._per_second

    def _is_end(self, n: int) -> bool:
        return super()._is_end(n) and n >= int(Path(self._gate).read_text())


def log_to_files(gate: str, began_ms: int, target: str, per_second: int = _PER_SECOND) -> Topology:
    """Build the log, its word count and its sink."""
    builder = TopologyBuilder()
    builder.set_spout("log", Log(gate, per_second, began_ms))
    builder.set_bolt("words", Words(), parallelism=2).shuffle_grouping("log")
    builder.set_bolt("count", Sum(), parallelism=2).fields_grouping("words", "word")
    builder.set_bolt(
        "files", FileSink(target, "json", flush_secs=0.2), parallelism=2
    ).shuffle_grouping("log")
    return builder.build()


def numbers_of(target: Path) -> Counter[int]:
    """Return how often each number is in the target."""
    while True:
        with suppress(FileNotFoundError):  # a file that was replaced by a larger one meanwhile
            texts = [path.read_text() for path in target.glob("*.jsonl")]
            return Counter(json.loads(line)["n"] for text in texts for line in text.splitlines())


def step_since(mark: StoreMark | None, since_ms: int) -> int | None:
    """Return the newest write in a mark; None for a mark without a write since that time.

    A mark is a second old or more; one from before a disaster of ZooKeeper lacks all that a copy of
    Redis has. Its step is then below the copy's, and putting back the copy takes less than the tail
    away.
    """
    return None if mark is None or mark.time_ms < since_ms else mark.step


class DisasterRun:
    """The cluster, its one topology, and the number of losses that were reported."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self.cluster = cluster
        self.losses = 0
        self._target = cluster.folder / "target"
        self._began_ms = round(time.time() * 1000)

    @property
    def client(self) -> ClusterClient:
        """Return the client of the cluster."""
        assert self.cluster.client is not None
        return self.cluster.client

    @property
    def handle(self) -> TopologyHandle:
        """Return the handle of the topology."""
        return self.cluster.handles[0]

    def submit(self) -> None:
        """Submit the topology over the same log and target."""
        topology = log_to_files(str(self.cluster.gate(NAME)), self._began_ms, str(self._target))
        self.cluster.handles = [self.client.submit(NAME, topology, _CONF)]
        self.cluster.wait_at_work()

    def age(self) -> None:
        """Wait until what is written now is no tail of the store any more, by its mark in
        ZooKeeper.
        """
        step = self._known_step()
        self.cluster.wait(lambda: self._known_floor() > step, "writes beyond the tail")

    def _known_step(self) -> int:
        found: list[int] = []
        since_ms = round(time.time() * 1000)

        def look() -> bool:
            step = step_since(self.client.state.read_store_mark(self.handle.topology_id), since_ms)
            found[:] = [] if step is None else [step]
            return bool(found)

        self.cluster.wait(look, "the mark of the store")
        return found[0]

    def _known_floor(self) -> int:
        mark = self.client.state.read_store_mark(self.handle.topology_id)
        return 0 if mark is None else mark.floor

    def reported(self) -> tuple[set[str], set[str]]:
        """Return the losses of the topology as its mark and as its errors have them."""
        errors = {error.text for error in self.handle.errors() if LOST in error.text}
        return set(self.handle.losses()), errors

    def lose(self, strike: Callable[[], None]) -> None:
        """Let Redis lose data, and wait until that is in the topology's losses and errors and all
        tasks work.
        """
        losses, errors = self.reported()
        strike()

        def is_reported() -> bool:
            now = self.reported()
            return bool(now[0] - losses) and bool(now[1] - errors)

        self.cluster.wait(is_reported, "the sentence about the loss")
        self.losses += 1
        self.cluster.wait_at_work()

    def wait_for_nimbus(self) -> None:
        """Wait until a request is carried out and all tasks work."""

        def is_served() -> bool:
            self.handle.restart()
            return True

        self.cluster.wait(is_served, "a request to Nimbus")
        self.cluster.wait_at_work()

    def finish(self, report: ChaosReport) -> None:
        """End the log behind all that was ever read, and compare state and target with it."""
        cluster = self.cluster
        handle = self.handle
        gate = self.cluster.gate(NAME)
        end = max(numbers_of(self._target), default=0) + _MARGIN
        fresh = gate.with_suffix(".new")
        fresh.write_text(str(end))
        fresh.rename(gate)
        cluster.wait(lambda: handle.progress().is_drained, "the end of the log")
        found = Counter[str]()
        for key, value in handle.key_values("count"):
            found[key] += value
        total = found["total"]
        assert total >= end, f"the log has {end} numbers, {total} were read"
        report.of(STATE, GUARANTEES[0]).compare(counted_words(total), found)
        expected = dict.fromkeys((END, *range(total)), 1)
        report.of(TARGET, GUARANTEES[0]).compare(
            expected, numbers_of(self._target), most_said=self.losses
        )


# -- copies of servers -----------------------------------------------------------------------------


class ServerCopy:
    """Copy of a server's data, made while it is stopped."""

    def __init__(self, server: EmbeddedServer, names: tuple[str, ...], folder: Path) -> None:
        self._server = server
        self._names = names
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        server.kill()
        _copy(self._paths(server.data_dir), folder)
        server.restart()

    def put_back(self) -> None:
        """Kill the server, and start it over the copy."""
        self._server.kill()
        remove_data(self._server, self._names)
        _copy(self._paths(self._folder), self._server.data_dir)
        self._server.restart()

    def _paths(self, folder: Path) -> Iterator[Path]:
        return _paths(folder, self._names)


def _paths(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    return (path for name in names for path in folder.glob(name))


def remove_data(server: EmbeddedServer, names: tuple[str, ...]) -> None:
    """Remove the data of a server that does not run."""
    for path in list(_paths(server.data_dir, names)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _copy(paths: Iterator[Path], folder: Path) -> None:
    for path in paths:
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copy2(path, folder)


# -- the disasters ---------------------------------------------------------------------------------


def empty_redis(run: DisasterRun, dice: random.Random) -> Callable[[], None]:
    """Delete all keys of Redis, those of the topologies' code too."""

    def flush() -> None:
        with run.cluster.redis.client() as client:
            client.flushall()

    run.age()
    return lambda: run.lose(flush)


def _redis_copy(run: DisasterRun) -> ServerCopy:
    copy = ServerCopy(run.cluster.redis, _REDIS_DATA, run.cluster.folder / "redis-copy")
    run.cluster.wait_at_work()
    run.age()
    return copy


def older_redis(run: DisasterRun, dice: random.Random) -> Callable[[], None]:
    """Put Redis back to a copy that lacks more than the tail."""
    copy = _redis_copy(run)
    return lambda: run.lose(copy.put_back)


def older_redis_twice(run: DisasterRun, dice: random.Random) -> Callable[[], None]:
    """Put Redis back to the same copy a second time: the incarnation that followed the copy is lost
    with it.
    """
    copy = _redis_copy(run)
    run.lose(copy.put_back)
    run.age()
    return lambda: run.lose(copy.put_back)


def empty_zookeeper(run: DisasterRun, dice: random.Random) -> Callable[[], None]:
    """Empty ZooKeeper: the topology is forgotten and named among the problems; it is submitted anew
    and the old one killed.
    """
    zookeeper = run.cluster.zookeeper
    forgotten = run.handle.topology_id

    def strike() -> None:
        zookeeper.kill()
        remove_data(zookeeper, _ZOOKEEPER_DATA)
        zookeeper.restart()
        run.cluster.wait(
            lambda: forgotten in run.client.problems(), "the forgotten topology among the problems"
        )
        run.losses += 1
        run.submit()
        run.client.kill(forgotten, 0)
        run.cluster.wait(
            lambda: forgotten not in run.client.problems(), "the end of the forgotten topology"
        )

    return strike


def _older_zookeeper(run: DisasterRun) -> ServerCopy:
    """Copy ZooKeeper, and let the assignment get newer than the copy's."""
    copy = ServerCopy(run.cluster.zookeeper, _ZOOKEEPER_DATA, run.cluster.folder / "zookeeper-copy")
    run.wait_for_nimbus()
    return copy


def older_zookeeper(run: DisasterRun, dice: random.Random) -> Callable[[], None]:
    """Put ZooKeeper back to an older state under running drivers and slots."""
    copy = _older_zookeeper(run)

    def strike() -> None:
        copy.put_back()
        run.wait_for_nimbus()

    return strike


def older_zookeeper_for_new_driver(run: DisasterRun, dice: random.Random) -> Callable[[], None]:
    """Put ZooKeeper back while no driver runs: no session has seen the newer state."""
    copy = _older_zookeeper(run)

    def strike() -> None:
        end_driver(run.cluster)
        copy.put_back()
        run.cluster.start_driver()
        run.wait_for_nimbus()

    return strike


Disaster = Callable[[DisasterRun, random.Random], Callable[[], None]]
DISASTERS: Mapping[str, Disaster] = {
    "Redis emptied": empty_redis,
    "older copy of Redis": older_redis,
    "older copy of Redis twice": older_redis_twice,
    "ZooKeeper emptied": empty_zookeeper,
    "older state of ZooKeeper": older_zookeeper,
    "older state of ZooKeeper, new driver": older_zookeeper_for_new_driver,
}
"""Each prepares itself (a copy, some time) and returns the strike, which ends with the recovery."""
