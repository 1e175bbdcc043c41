"""A topology's placement as a problem of numbers, and its traffic under a placement. PURE."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.measured.flows import SharedFlow, flows_of
from sparkstorm.control_plane.scheduling.records import SupervisorView, TopologyView
from sparkstorm.control_plane.scheduling.resource.constraints import Constraints
from sparkstorm.control_plane.scheduling.resource.resources import (
    CPU,
    MEMORY,
    Requests,
    ResourceShape,
    Vector,
    normalised,
)
from sparkstorm.control_plane.scheduling.traffic.division import UNBOUNDED, Item
from sparkstorm.control_plane.scheduling.view import ClusterView

Placed = Mapping[ExecutorId, WorkerSlot]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes a second of a topology under a placement."""

    total: float
    nodes: float  # between nodes, those between racks as often as they weigh
    workers: float  # between workers of a node
    racks: float  # part of `nodes`, once


class Demand:
    """Resources that each executor of a cluster needs, and those that each node has left."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._shape = ResourceShape(cluster.supervisors.values(), cluster.topologies.values())
        self._by_topology: dict[str, dict[ExecutorId, Vector]] = {}
        self.zero = self._shape.zero

    def of(self, topology: TopologyView) -> Mapping[ExecutorId, Vector]:
        """Return the resources that each executor of a topology needs.

        CPU is what was measured, else what was asked for; memory the larger of both, shared regions
        counted for each executor that names them.
        """
        needs = self._by_topology.get(topology.id)
        if needs is None:
            needs = self._by_topology[topology.id] = self._needs(topology)
        return needs

    def _needs(self, topology: TopologyView) -> dict[ExecutorId, Vector]:
        requests = Requests(topology, self._shape)
        measured = topology.measured
        needs_by_executor = {}
        for executor in topology.executors:
            needs = [*requests.of(executor).vector]
            if requests.shared:
                needs[MEMORY] += sum(requests.shared.on_worker([executor]))
                needs[MEMORY] += requests.shared.on_node([executor])
            if measured and all(task in measured.tasks for task in executor.tasks):
                load = measured.load(executor)
                needs[CPU] = load.cpu
                needs[MEMORY] = max(needs[MEMORY], load.memory_mb or 0.0)
            needs_by_executor[executor] = tuple(needs)
        return needs_by_executor

    def offer(self, supervisor: SupervisorView) -> Vector:
        """Return what a supervisor offers; CPU that it does not declare is what was measured."""
        offered = [*self._shape.offer(supervisor)]
        declared = normalised(supervisor.resources)
        if "cpu.pcore.percent" not in declared:
            offered[CPU] = supervisor.measured.cpu if supervisor.measured else UNBOUNDED
        if "memory.mb" not in declared:
            offered[MEMORY] = UNBOUNDED
        return tuple(offered)

    def taken_by_others(self, topology_id: str) -> dict[str, Vector]:
        """Return what the executors of all other topologies take, by node."""
        taken: dict[str, Vector] = {}
        for other in self._cluster.topologies.values():
            if other.id == topology_id:
                continue
            needs = self.of(other)
            for executor, slot in self._cluster.placement(other.id).slot_by_executor.items():
                need = needs.get(executor, self.zero)
                taken[slot.node] = tuple(map(add, taken.get(slot.node, self.zero), need))
        return taken


class TrafficProblem:
    """One topology: its executors as items of a search, and its flows."""

    def __init__(self, topology: TopologyView, needs: Mapping[ExecutorId, Vector]) -> None:
        self.topology = topology
        self.flows: tuple[SharedFlow, ...] = flows_of(topology)
        self.total = sum(flow.bytes_per_s for flow in self.flows)
        self.num_rows = 2 * len(self.flows)
        self.needs = needs
        self._number_by_id = {part.id: n for n, part in enumerate(topology.components)}
        constraints = Constraints(topology)
        self.most_of_component = {
            self._number_by_id[name]: most for name, most in constraints.max_on_node.items()
        }
        self.apart = {
            self._number_by_id[name]: frozenset(self._number_by_id[other] for other in others)
            for name, others in constraints.incompatible.items()
            if others
        }

    def load(self, executor: ExecutorId) -> float:
        """Return the CPU of an executor, by which nodes and workers are balanced.

        System executors ask for as much as others and do little: before they are measured they
        weigh nothing, else a worker with ackers alone would have its share.
        """
        component = self.topology.component_by_executor[executor]
        if self.topology.measured is None and component.startswith("__"):
            return 0.0
        return self.needs[executor][CPU]

    def items(self, executors: Iterable[ExecutorId], move_share: float = 0.0) -> list[Item]:
        """Return executors as items; a move costs `move_share` of an executor's traffic."""
        items = [self._items[executor] for executor in executors]
        if not move_share:
            return items
        return [replace(item, move_cost=move_share * item.traffic) for item in items]

    @cached_property
    def _items(self) -> dict[ExecutorId, Item]:
        executors = self.topology.executors
        pulls: dict[ExecutorId, list[tuple[int, float]]] = {executor: [] for executor in executors}
        shares: dict[ExecutorId, list[tuple[int, float]]] = {executor: [] for executor in executors}
        for row, flow in zip(range(0, self.num_rows, 2), self.flows, strict=True):
            ends = ((flow.sent, row, row + 1), (flow.taken, row + 1, row))
            for part, pulling, own in ends:
                for executor, share in part.items():
                    if share:
                        pulls[executor].append((pulling, flow.bytes_per_s * share))
                        shares[executor].append((own, share))
        return {
            executor: Item(
                self.needs[executor],
                self.load(executor),
                self._number_by_id[self.topology.component_by_executor[executor]],
                pulls[executor],
                shares[executor],
            )
            for executor in executors
        }

    def traffic(
        self, placed: Placed, racks: Mapping[str, str | None], rack_weight: float = 1.0
    ) -> Traffic:
        """Return the bytes a second between racks, nodes, and workers of a node."""
        in_slots = _inside(self.flows, placed)
        in_nodes = _inside(self.flows, {executor: slot.node for executor, slot in placed.items()})
        by_rack = {executor: racks.get(slot.node) for executor, slot in placed.items()}
        in_racks = _inside(self.flows, by_rack)
        amounts = [
            flow.bytes_per_s * _placed(flow.sent, placed) * _placed(flow.taken, placed)
            for flow in self.flows
        ]
        total = sum(amounts)
        between_racks = max(0.0, total - in_racks)
        nodes = max(0.0, in_racks - in_nodes) + rack_weight * between_racks
        return Traffic(total, nodes, max(0.0, in_nodes - in_slots), between_racks)

    def shared_with_node(self, executor: ExecutorId, placed: Placed) -> tuple[float, float]:
        """Return the bytes a second of an executor with those of its node, and with all."""
        here = total = 0.0
        for flow in self.flows:
            for mine, others in ((flow.sent, flow.taken), (flow.taken, flow.sent)):
                own = flow.bytes_per_s * mine.get(executor, 0.0)
                for other, share in others.items() if own else ():
                    total += own * share
                    if other in placed and placed[other].node == placed[executor].node:
                        here += own * share
        return here, total


def _placed(shares: Mapping[ExecutorId, float], placed: Placed) -> float:
    return sum(share for executor, share in shares.items() if executor in placed)


def _inside(flows: Iterable[SharedFlow], group_of: Mapping[ExecutorId, object]) -> float:
    """Return the bytes a second between executors of one group: a slot, a node or a rack."""
    total = 0.0
    for flow in flows:
        sent: defaultdict[object, float] = defaultdict(float)
        for executor, share in flow.sent.items():
            if executor in group_of:
                sent[group_of[executor]] += share
        both = 0.0
        for executor, share in flow.taken.items():
            if executor in group_of:
                both += share * sent.get(group_of[executor], 0.0)
        total += flow.bytes_per_s * both
    return total
