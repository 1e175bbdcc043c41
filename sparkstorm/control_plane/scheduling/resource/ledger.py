"""Free resources of each node while topologies are tried, evicted and restored (Storm's RasNodes)."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot, grouped_by_slot
from sparkstorm.common.settings import RequestSettings
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.resource.resources import (
    CPU,
    MEMORY,
    Requests,
    ResourceShape,
    Vector,
    minus,
    plus,
)
from sparkstorm.control_plane.scheduling.settings import ResourceAwareSettings
from sparkstorm.control_plane.scheduling.view import ClusterView


class ResourceLedger:
    """Resources by slot and topology; the cluster does not change before the scheduler commits."""

    def __init__(self, cluster: ClusterView) -> None:
        self.cluster = cluster
        self.shape = ResourceShape(cluster.supervisors.values(), cluster.topologies.values())
        parts = (part for topology in cluster.topologies.values() for part in topology.components)
        self.shares_memory = any(RequestSettings.of_partial(part.conf).shared for part in parts)
        self.min_cpu = float(ResourceAwareSettings.of_partial(cluster.conf).min_cpu)
        self._requests: dict[str, Requests] = {}
        self.node_ids = sorted(
            {*cluster.supervisors, *(slot.node for slot in cluster.used_slots())}
        )
        self.index_by_node = {node: index for index, node in enumerate(self.node_ids)}
        self._offers = {
            node: self.shape.offer(supervisor) for node, supervisor in cluster.supervisors.items()
        }
        self.alive = {node for node in cluster.supervisors if not cluster.is_blacklisted(node)}
        self._taken: dict[str, dict[int, Vector]] = {node: {} for node in self.node_ids}
        self._owner_by_slot: dict[WorkerSlot, str] = dict(cluster.used_slots())
        # off-heap memory shared within nodes, by node and topology
        self._shared: dict[str, dict[str, float]] = {}
        for slot, topology_id in self._owner_by_slot.items():
            executors = cluster.placement(topology_id).executors_by_slot[slot]
            taken, _ = self.worker(cluster.topologies[topology_id], executors)
            self._taken[slot.node][slot.port] = taken
        for topology in cluster.topologies.values() if self.shares_memory else ():
            self._book_shared(topology)
        self._available: dict[str, Vector] = {}
        self.matrix: npt.NDArray[np.float64] = np.zeros((len(self.node_ids), len(self.shape.zero)))
        # Plus each node's offer, minus its taken resources: the running sum is what the cluster has
        # left.
        self._ebb: npt.NDArray[np.float64] = np.zeros((len(self.node_ids), 2, len(self.shape.zero)))
        self._living_rows = [self.index_by_node[node] for node in sorted(self.alive)]
        for node in self.node_ids:
            self._ebb[self.index_by_node[node], 0] = self.offer(node)
            self._refresh(node)

    def requests(self, topology: TopologyView) -> Requests:
        """Return the requests of a topology, computed once."""
        requests = self._requests.get(topology.id)
        if requests is None:
            requests = self._requests[topology.id] = Requests(topology, self.shape)
        return requests

    def offer(self, node: str) -> Vector:
        """Return the node's total resources; zero when it is dead."""
        return self._offers.get(node, self.shape.zero)

    def available(self, node: str) -> Vector:
        """Return a node's free resources, at least zero."""
        return self._available[node]

    def taken(self, node: str) -> Vector:
        """Return the resources that workers on a node take."""
        total = self.shape.zero
        for vector in self._taken[node].values():
            total = plus(total, vector)
        if node in self._shared:
            memory = total[MEMORY]
            for _, amount in sorted(self._shared[node].items()):
                memory += amount
            return (memory, *total[CPU:])
        return total

    def memory_of(
        self, topology: TopologyView, slot_by_executor: Mapping[ExecutorId, WorkerSlot]
    ) -> float:
        """Return the memory in MB that a topology takes with its executors on these slots, shared
        memory included.
        """
        requests = self.requests(topology)
        total = 0.0
        by_node, by_slot = _grouped(slot_by_executor)
        for node in sorted(by_node):
            total += requests.shared.on_node(by_node[node])
        for slot in sorted(by_slot):
            total += requests.worker(by_slot[slot]).vector[MEMORY]
        return total

    def count_nodes(self) -> int:
        """Return the number of living nodes, and of lost ones with booked workers: an eviction may
        free the last of those.
        """
        return len(self._offers) + sum(
            bool(workers) for node, workers in self._taken.items() if node not in self._offers
        )

    def topologies_on(self, node: str) -> set[str]:
        """Return the topologies with workers on a node."""
        return {self._owner_by_slot[WorkerSlot(node, port)] for port in self._taken[node]}

    def free_ports(self, node: str) -> list[int]:
        """Return the free ports of a living node, ascending."""
        if node not in self.alive:
            return []
        return [
            port
            for port in sorted(self.cluster.supervisors[node].ports)
            if port not in self._taken[node]
        ]

    def put(self, slot: WorkerSlot, topology_id: str, taken: Vector, shared: float = 0.0) -> None:
        """Book the resources of a worker on a slot, and the memory that its topology shares on the
        node.
        """
        self._taken[slot.node][slot.port] = taken
        self._owner_by_slot[slot] = topology_id
        if shared or slot.node in self._shared:
            self._shared.setdefault(slot.node, {})[topology_id] = shared
        self._refresh(slot.node)

    def clear(self, slots: Iterable[WorkerSlot]) -> None:
        """Free these slots; memory that their topology shares on the nodes stays booked (see
        `settle`).
        """
        for slot in slots:
            self._taken[slot.node].pop(slot.port, None)
            self._owner_by_slot.pop(slot, None)
            self._refresh(slot.node)

    def evict(self, topology: TopologyView) -> None:
        """Free a topology's resources; the cluster still has its workers."""
        self.clear(list(self.cluster.placement(topology.id).executors_by_slot))
        self._forget_shared(topology.id)

    def restore(self, topology: TopologyView) -> None:
        """Book a topology's workers as the cluster has them."""
        for slot, executors in self.cluster.placement(topology.id).executors_by_slot.items():
            self.put(slot, topology.id, self.worker(topology, executors)[0])
        self.settle(topology)

    def settle(self, topology: TopologyView) -> None:
        """Book the memory that a topology shares on nodes, by its workers in the cluster."""
        if self.requests(topology).shared.is_on_nodes:
            nodes = self._forget_shared(topology.id) | self._book_shared(topology)
            for node in nodes:
                self._refresh(node)

    def _book_shared(self, topology: TopologyView) -> set[str]:
        shared = self.requests(topology).shared
        if not shared.is_on_nodes:
            return set()
        by_node, _ = _grouped(self.cluster.placement(topology.id).slot_by_executor)
        for node, executors in by_node.items():
            self._shared.setdefault(node, {})[topology.id] = shared.on_node(executors)
        return set(by_node)

    def _forget_shared(self, topology_id: str) -> set[str]:
        nodes = {node for node, amounts in self._shared.items() if topology_id in amounts}
        for node in nodes:
            del self._shared[node][topology_id]
            self._refresh(node)
        return nodes

    def worker(
        self, topology: TopologyView, executors: Sequence[ExecutorId]
    ) -> tuple[Vector, float]:
        """Return the resources of a worker with these executors, and its heap in MB."""
        load = self.requests(topology).worker(executors)
        return load.at_least(self.min_cpu), load.heap

    def left_in_cluster(self) -> Vector:
        """Return the free resources of all living nodes, added up node after node, at least
        zero.
        """
        steps = self._ebb[self._living_rows].reshape(-1, len(self.shape.zero))
        # in the order of the nodes: a sum in any other order may round differently
        sums = np.cumsum(steps, axis=0)
        if sums.size and sums.min() >= 0.0:
            return tuple(sums[-1].tolist())
        remaining = self.shape.zero
        for offered, taken in zip(steps[::2].tolist(), (-steps[1::2]).tolist(), strict=True):
            remaining, _ = minus(plus(remaining, tuple(offered)), tuple(taken))
        return remaining

    def _refresh(self, node: str) -> None:
        row = self.index_by_node[node]
        taken = self.taken(node)
        self._available[node], _ = minus(self.offer(node), taken)
        self.matrix[row] = self._available[node]
        self._ebb[row, 1] = taken
        np.negative(self._ebb[row, 1], out=self._ebb[row, 1])


def _grouped(
    slot_by_executor: Mapping[ExecutorId, WorkerSlot],
) -> tuple[dict[str, list[ExecutorId]], dict[WorkerSlot, list[ExecutorId]]]:
    by_node: dict[str, list[ExecutorId]] = {}
    places = sorted(slot_by_executor.items())
    for executor, slot in places:
        by_node.setdefault(slot.node, []).append(executor)
    return by_node, grouped_by_slot(places)
