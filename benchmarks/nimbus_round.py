"""Figures of Nimbus's round: liveness and records to write in a calm round and after a node's loss,
with no store.

Run: python -m benchmarks.nimbus_round [--scheduler default] [--executors 100000] [--nodes 5000]. A
round is what Nimbus does between reading and writing: sightings, liveness, the scheduler, the check
of its answer, the differences. Executors are in topologies of 1,000, a tenth as many workers. Each
time is the median of five.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sparkstorm.config import default_conf
from sparkstorm.model.assignment import (
    Assignment,
    SupervisorInfo,
    TopologyBase,
    WorkerBeat,
    WorkerSlot,
)
from sparkstorm.model.outline import ComponentOutline, InputOutline, TopologyOutline
from sparkstorm.model.status import TopologyStatus
from sparkstorm.scheduling.liveness import LastSeen, Timeouts, alive_executors, mates_of, observe
from sparkstorm.scheduling.per_topology import chosen_scheduler
from sparkstorm.scheduling.round import plan_round
from sparkstorm.scheduling.round_memory import RoundMemory
from sparkstorm.scheduling.snapshot import KnownTopology, Plan, Snapshot

PORTS = (6700, 6701, 6702, 6703)
PER_TOPOLOGY = 1000
ResultT = TypeVar("ResultT")


def topology(number: int, size: int, conf: Mapping[str, Any]) -> KnownTopology:
    """A spout and a bolt, half of the executors each."""
    half = size // 2
    components = {
        "spout": ComponentOutline("spout"),
        "bolt": ComponentOutline("bolt", {}, (InputOutline("spout", "default", "shuffle"),)),
    }
    tasks = {task: "bolt" if task <= half else "spout" for task in range(1, size + 1)}
    executors = {"bolt": half, "spout": size - half}
    workers = max(1, size // 10)
    name = f"topology{number}"
    base = TopologyBase(
        f"{name}-1-1", name, 0, TopologyStatus.ACTIVE, workers, executors, "code", "conf"
    )
    return KnownTopology(
        base, TopologyOutline(components, executors, tasks), {**conf, "topology.workers": workers}
    )


class World:
    """A cluster in steady state."""

    def __init__(self, scheduler: str, executors: int, nodes: int) -> None:
        self.conf = {**default_conf().as_dict(), "storm.scheduler": scheduler}
        sizes = [PER_TOPOLOGY] * (executors // PER_TOPOLOGY) or [executors]
        made = [topology(number, size, self.conf) for number, size in enumerate(sizes)]
        self.topologies = {each.base.topology_id: each for each in made}
        resources = {"supervisor.memory.capacity.mb": 65536.0, "supervisor.cpu.capacity": 6400.0}
        names = [f"node{n:05}" for n in range(nodes)]
        self.supervisors = {
            name: SupervisorInfo(name, f"host-{name}", 0, 0, PORTS, resources=resources)
            for name in names
        }
        self.scheduler = chosen_scheduler(self.conf)
        self.memory = RoundMemory()
        self.assignments: dict[str, Assignment] = {}

    def lose(self, node: str) -> Snapshot:
        """Return what is read after a node's loss."""
        left = {name: info for name, info in self.supervisors.items() if name != node}
        return Snapshot(self.topologies, self.assignments, left)

    def plan(
        self, snapshot: Snapshot, seen: LastSeen, mates: Mapping[str, Any], now_ms: int
    ) -> Plan:
        """One round."""
        limits = Timeouts()
        alive = {
            each: alive_executors(found, seen, now_ms, limits, mates.get(each))
            for each, found in snapshot.assignments.items()
        }
        return plan_round(snapshot, alive, self.scheduler, self.conf, now_ms, memory=self.memory)


def beats(world: World, time_ms: int, lost: str = "") -> list[WorkerBeat]:
    """Every living worker's beat."""
    workers = {
        (each, slot)
        for each, found in world.assignments.items()
        for slot in found.slot_by_executor.values()
    }
    return [
        WorkerBeat(each, slot.node, slot.port, time_ms, 0, 1, 1, "RUNNING", 99, {})
        for each, slot in workers
        if slot.node != lost
    ]


def timed(work: Callable[[], ResultT], times: int = 5) -> tuple[float, ResultT]:
    """The median time in milliseconds, and the result."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        result = work()
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken), result


def measure(scheduler: str, executors: int, nodes: int) -> tuple[float, float, float, int]:
    """First schedule, calm round, round after a node's loss (ms), and how many assignments that
    wrote.
    """
    world = World(scheduler, executors, nodes)
    empty = Snapshot(world.topologies, {}, world.supervisors)
    first, plan = timed(lambda: world.plan(empty, LastSeen(), {}, 0), 1)
    world.assignments = {each.topology_id: each for each in plan.assignments}
    assert len(world.assignments) == len(world.topologies), dict(plan.status)
    mates = {each: mates_of(found) for each, found in world.assignments.items()}
    offered = [WorkerSlot(name, port) for name in world.supervisors for port in PORTS]
    seen = observe(LastSeen(), beats(world, 1), offered, 200_000)
    whole = Snapshot(world.topologies, world.assignments, world.supervisors)
    calm, plan = timed(lambda: world.plan(whole, seen, mates, 200_000))
    assert not plan.assignments
    lost = next(iter(next(iter(world.assignments.values())).slot_by_executor.values())).node
    later = observe(
        seen, beats(world, 2, lost), [slot for slot in offered if slot.node != lost], 210_000
    )
    loss, plan = timed(lambda: world.plan(world.lose(lost), later, mates, 210_000))
    assert plan.assignments and not any(
        slot.node == lost for each in plan.assignments for slot in each.slot_by_executor.values()
    )
    return first, calm, loss, len(plan.assignments)


def main() -> None:
    """Print a table over three sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", default="default")
    parser.add_argument("--executors", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=5000)
    asked = parser.parse_args()
    print(
        f"{'executors':>10} {'nodes':>6} {'first ms':>9} {'calm ms':>9} {'node lost ms':>13} {'written':>8}"
    )
    for part in (100, 10, 1):
        executors = asked.executors // part
        nodes = max(10, asked.nodes // part)
        first, calm, loss, written = measure(asked.scheduler, executors, nodes)
        print(f"{executors:>10,} {nodes:>6,} {first:>9.1f} {calm:>9.1f} {loss:>13.1f} {written:>8}")


if __name__ == "__main__":
    main()
