"""Figures of the control plane at scale: slots, supervisors and Nimbus over the twin of ZooKeeper,
with workers that only beat.

Run: python -m benchmarks.control_plane [--hosts 100] [--slots 10] [--executors 10000]. Times are
simulated: what is due, polled or waited for takes its time, a request takes none. `round` is real
time of this machine: a calm turn of Nimbus, with its reads. Bytes are those of the nodes' data that
are read and written.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.blobs.topology_code import pack_topology
from sparkstorm.cluster.base import StateStore
from sparkstorm.cluster.local import LocalStateStore
from sparkstorm.model.assignment import WorkerSlot
from sparkstorm.model.worker_messages import Beat, Ready, Stop, WorkerCommand, WorkerReport
from sparkstorm.model.worker_spec import WorkerSpec
from sparkstorm.testing.local_cluster import LocalCluster
from sparkstorm.testing.sim_slot import SimSlot

TOPOLOGIES = 10
SECONDS = 36  # a slow read again comes within 38
READS = {"get", "children", "last_change"}
WRITES = {
    "put",
    "create",
    "put_ephemeral",
    "try_ephemeral",
    "create_sequential",
    "ensure_path",
    "delete",
}


class Idle(Spout):
    """A spout without messages."""

    outputs = ("word",)

    def open(self, conf: Any, context: Any, collector: SpoutOutputCollector) -> None:
        """Do nothing: there is no source to open."""

    def next_tuple(self) -> None:
        """Emit nothing."""


class Swallow(BasicBolt):
    """A bolt that does nothing."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Drop it."""


class BeatingProcess:
    """A worker process that is ready at once and beats with the figures of an idle worker."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.pid = 1
        self.exit_code = cast(int | None, None)
        self._now_ms = now_ms
        self._beat_ms = 0
        self._spec = cast(WorkerSpec | None, None)

    def filenos(self) -> list[int]:
        return []

    def give(self, spec: WorkerSpec) -> None:
        self._spec = spec

    def order(self, command: WorkerCommand) -> None:
        self.exit_code = 0 if isinstance(command, Stop) else self.exit_code

    def poll_reports(self) -> list[WorkerReport]:
        if self._spec is None or self._now_ms() < self._beat_ms:
            return []
        first = not self._beat_ms
        self._beat_ms = self._now_ms() + 1_000
        idle = {
            "acked": 0,
            "emitted": 0,
            "executed": 0,
            "failed": 0,
            "pending": 0,
            "transferred": 0,
            "uptime_ms": self._now_ms(),
        }
        beat = Beat(
            {
                **{str(each.executor): idle for each in self._spec.executors},
                "blocked": [],
                "held_back": [],
            }
        )
        return [Ready(), beat] if first else [beat]

    def poll_exit(self) -> int | None:
        return self.exit_code

    def kill(self) -> None:
        self.exit_code = -9

    def __getattr__(self, name: str) -> Any:
        return lambda *_: {"oom_kills": 0, "last_lines": [], "rotate_log": False}.get(name)


class CountingSession:
    """A session whose requests and bytes are counted by who sent them."""

    def __init__(
        self, store: StateStore, who: str, requests: Counter[str], sizes: Counter[str]
    ) -> None:
        self._store = store
        self._who = who
        self._requests = requests
        self._sizes = sizes

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in READS | WRITES:
            return method

        def counted(*arguments: Any, **options: Any) -> Any:
            found = method(*arguments, **options)
            self._requests[self._who] += 1
            if name in WRITES:
                data: Any = arguments[1:2]
            else:
                data = "".join(found) if name == "children" else getattr(found, "data", b"")
            self._sizes[self._who] += len(data[0] if isinstance(data, tuple) and data else data)
            return found

        return counted


class BeatingSlot(SimSlot):
    """A simulated slot whose workers only beat."""

    def _spawn(self) -> Any:
        return BeatingProcess(self._around.simulation.clock.now_ms)


class ControlPlane(LocalCluster):
    """A simulated cluster of beating slots, whose requests are counted."""

    def __init__(self, hosts: int, slots: int) -> None:
        self.requests: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        super().__init__(hosts, slots, is_lively=True)

    def _make_slot(self, node: Any, port: int) -> SimSlot:
        return BeatingSlot(self, node, port)

    def open_session(self, who: str) -> StateStore:
        return cast(
            StateStore, CountingSession(LocalStateStore(self.tree), who, self.requests, self.sizes)
        )

    def running(self) -> set[tuple[str, WorkerSlot]]:
        """Return every worker that beats as running where it is assigned."""
        found = set()
        for topology_id, assignment in self.storm_state.read_assignments().items():
            for slot in set(assignment.slot_by_executor.values()):
                beat = self.storm_state.read_worker_beat(topology_id, slot)
                if beat is not None and beat.state == "RUNNING":
                    found.add((topology_id, slot))
        return found

    def wait_for(self, count: int, lost: str = "") -> float:
        """Let time pass until so many workers run, none on the lost node; return the simulated
        seconds.
        """
        began_ms = self.now_ms
        while len([None for _, slot in self.running() if slot.node != lost]) < count:
            self.simulation.advance(250)
            assert self.now_ms - began_ms < 600_000, f"{len(self.running())} of {count} workers run"
        return (self.now_ms - began_ms) / 1000

    def rates(self, seconds: int) -> tuple[float, float, float]:
        """Return requests and bytes a second of all slots, and requests of Nimbus, over so many
        simulated seconds.
        """
        self.requests.clear()
        self.sizes.clear()
        self.simulation.advance(seconds * 1000)
        of_slots = [who for who in self.requests if who not in ("nimbus", "client")]
        requests, sizes = (
            sum(counted[who] for who in of_slots) for counted in (self.requests, self.sizes)
        )
        return requests / seconds, sizes / seconds, self.requests["nimbus"] / seconds


def submit(cluster: ControlPlane, executors: int, workers: int) -> None:
    """Submit the topologies; two executors in three are bolts."""
    for number in range(TOPOLOGIES):
        spouts = executors // TOPOLOGIES // 3
        count = executors // TOPOLOGIES
        builder = TopologyBuilder()
        builder.set_spout("idle", Idle(), spouts)
        builder.set_bolt("swallow", Swallow(), count - spouts).shuffle_grouping("idle")
        topology = builder.build()
        conf = {"topology.workers": workers // TOPOLOGIES, "topology.acker.executors": 0}
        cluster.service.submit(f"t{number}", topology, conf, pack_topology(topology))


def main() -> None:
    """Print one line per figure."""

    def sent() -> int:
        return sum(cluster.requests.values()) - cluster.requests["client"]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--executors", type=int, default=10_000)
    asked = parser.parse_args()
    cluster = ControlPlane(asked.hosts, asked.slots)
    # one host's slots are spare
    workers = (asked.hosts - 1) * asked.slots // TOPOLOGIES * TOPOLOGIES
    cluster.simulation.advance(3_000)
    cluster.requests.clear()
    began_ms = cluster.now_ms
    submit(cluster, asked.executors, workers)
    cluster.wait_for(workers)
    print(
        f"{asked.hosts} hosts, {asked.hosts * asked.slots:,} slots, {workers:,} workers, {asked.executors:,} executors"
    )
    print(f"start all: {(cluster.now_ms - began_ms) / 1000:.1f} s, {sent():,} requests")
    cluster.simulation.advance(5_000)
    requests, sizes, of_nimbus = cluster.rates(SECONDS)
    print(
        f"at rest, slots: {requests:,.0f} requests/s ({requests / asked.hosts / asked.slots:.2f} a slot), {sizes / 1e6:.2f} MB/s"
    )
    print(f"at rest, Nimbus: {of_nimbus:,.0f} requests/s")
    taken = []
    for _ in range(5):
        cluster.nimbus.wake()
        began = time.perf_counter()
        cluster.nimbus.step(cluster.now_ms)
        taken.append(1000 * (time.perf_counter() - began))
    print(f"round: {statistics.median(taken):.0f} ms")
    lost = next(
        node
        for node in cluster.nodes
        if any(slot.node == node.name for _, slot in cluster.running())
    )
    cluster.requests.clear()
    for slot in cluster.slots:
        if slot.node is lost and (session := slot.die()) is not None:
            session.close()
    print(
        f"move a host's workers: {cluster.wait_for(workers, lost.name):.1f} s after its sessions have ended",
        end="",
    )
    print(f", {sent():,} requests")


if __name__ == "__main__":
    main()
