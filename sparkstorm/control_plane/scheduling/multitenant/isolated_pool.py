"""Storm's IsolatedPool, the pool of one user: whole nodes for each topology, up to the user's limit.

No topology shares a node there, so that no neighbour takes its CPU; the limit keeps one user from
taking the cluster.
"""

import heapq
from collections.abc import Mapping, Sequence

from sparkstorm.control_plane.scheduling.multitenant.node import Node, free_on, used_on
from sparkstorm.control_plane.scheduling.multitenant.round_robin import RoundRobinWorkers
from sparkstorm.control_plane.scheduling.multitenant.shared_pools import (
    LendingPool,
    count_for_slots,
    take_nodes,
    take_slots,
)
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.settings import MachineSettings
from sparkstorm.control_plane.scheduling.view import ClusterView


class IsolatedPool:
    """Nodes of one user; topologies with `topology.isolate.machines` keep theirs and may take nodes
    from the user's others.
    """

    def __init__(self, max_nodes: int, cluster: ClusterView, nodes: Mapping[str, Node]) -> None:
        self._max_nodes = max_nodes
        self._used_nodes = 0
        self._cluster = cluster
        self._all_nodes = nodes
        self._topologies: dict[str, TopologyView] = {}
        self._nodes_of: dict[str, dict[str, Node]] = {}

    @property
    def nodes(self) -> dict[str, Node]:
        """Return every node of the pool, by id."""
        return {
            node_id: node for nodes in self._nodes_of.values() for node_id, node in nodes.items()
        }

    def _assigned_nodes(self, topology: TopologyView) -> dict[str, Node]:
        used = {slot.node for slot in self._cluster.placement(topology.id).executors_by_slot}
        return {node: self._all_nodes[node] for node in sorted(used)}

    def can_add(self, topology: TopologyView) -> bool:
        """Return whether the topology shares none of its nodes."""
        return all(len(node.topologies()) <= 1 for node in self._assigned_nodes(topology).values())

    def add_topology(self, topology: TopologyView) -> None:
        """Accept a topology with the nodes it runs on."""
        self._topologies[topology.id] = topology
        self._nodes_of[topology.id] = self._assigned_nodes(topology)
        self._used_nodes += len(self._nodes_of[topology.id])

    def schedule(self, lenders: Sequence[LendingPool]) -> None:
        """Schedule every topology of the pool, by id."""
        for topology_id, topology in sorted(self._topologies.items()):
            machines = self._machines(topology)
            held = len(self._nodes_of[topology_id])
            if self._cluster.needs_scheduling(topology) or machines not in (None, held):
                to_use = self._slots_to_use(topology, machines, lenders)
                if isinstance(to_use, str):
                    self._cluster.status[topology_id] = to_use + self._held(topology_id, machines)
                    continue
                self._fill(RoundRobinWorkers(topology, to_use, self._cluster), topology_id)
            self._cluster.status[topology_id] = (
                f"Scheduled Isolated on {len(self._nodes_of[topology_id])} Nodes"
                f"{self._held(topology_id, machines)}"
            )

    def _held(self, topology_id: str, machines: int | None) -> str:
        """Return that it has another number of machines than it asks for; nothing where it does
        not, or asks for none.
        """
        held = len(self._nodes_of[topology_id])
        return "" if machines in (None, held) else f" It has {held} of {machines} machines."

    def _machines(self, topology: TopologyView) -> int | None:
        wanted = MachineSettings.of_partial(topology.conf).machines
        return None if wanted is None else min(len(topology.executors), wanted)

    def _fill(self, workers: RoundRobinWorkers, topology_id: str) -> None:
        """Place each worker on the node with fewest used slots, then most free slots, then by
        id.
        """
        heap = [_rank(node) for node in self._nodes_of[topology_id].values() if node.num_free]
        heapq.heapify(heap)
        more = True
        while more and heap:
            node = self._all_nodes[heap[0][2]]
            more = workers.assign_next(node)
            if node.num_free:
                heapq.heapreplace(heap, _rank(node))
            else:
                heapq.heappop(heap)

    def _limit_text(self, more: int) -> str:
        return f"Max Nodes({self._max_nodes}) for this user would be exceeded. {more} more nodes needed to run topology."

    def _slots_to_use(
        self, topology: TopologyView, machines: int | None, lenders: Sequence[LendingPool]
    ) -> int | str:
        """Take the nodes that a topology needs; return how many more slots it may use, or the
        reason for none.
        """
        if machines is None:
            return self._share(topology, lenders)
        return self._isolate(topology, machines, lenders)

    def _isolate(
        self, topology: TopologyView, machines: int, lenders: Sequence[LendingPool]
    ) -> int | str:
        own = [
            node
            for key, lent in self._nodes_of.items()
            if self._is_open(key)
            for node in lent.values()
        ]
        needed = machines - len(self._nodes_of[topology.id])
        room = self._max_nodes - self._used_nodes
        if needed - len(own) > room:
            return self._limit_text(needed - len(own) - room)
        from_others = min(room, sum(pool.num_nodes() for pool in lenders), needed)
        if needed - from_others > len(own):
            return "Not Enough Nodes Available to Schedule Topology"
        self._adopt(topology.id, take_nodes(from_others, lenders))
        self._adopt(topology.id, self._release(needed - from_others))
        return self._slots_on_own_nodes(topology)

    def _slots_on_own_nodes(self, topology: TopologyView) -> int | str:
        nodes = self._nodes_of[topology.id].values()
        used = sum(node.num_used for node in nodes)
        free = free_on(nodes)
        to_use = min(min(len(topology.executors), topology.num_workers) - used, free)
        if to_use > 0:
            return to_use
        if topology.num_workers > used:
            return (
                f"Running with fewer slots than requested {used}/{topology.num_workers} "
                f"on {len(nodes)} node(s) with {used + free} total slots"
            )
        return "Node has partially crashed, if this situation persists rebalance the topology."

    def _share(self, topology: TopologyView, lenders: Sequence[LendingPool]) -> int | str:
        nodes = self._nodes_of[topology.id].values()
        requested = min(len(topology.executors), topology.num_workers)
        free = free_on(nodes)
        lendable = sum(pool.num_slots() for pool in lenders) if requested > free else 0
        to_use = min(requested - used_on(nodes, topology.id), free + lendable)
        if to_use <= 0:
            return "Not Enough Slots Available to Schedule Topology"
        new_nodes = count_for_slots(to_use - free, lenders)
        if new_nodes + self._used_nodes > self._max_nodes:
            return self._limit_text(new_nodes - (self._max_nodes - self._used_nodes))
        self._adopt(topology.id, take_slots(to_use - free, lenders))
        return to_use

    def _is_open(self, topology_id: str) -> bool:
        return MachineSettings.of_partial(self._topologies[topology_id].conf).machines is None

    def _adopt(self, topology_id: str, nodes: Sequence[Node]) -> None:
        self._used_nodes += len(nodes)
        merged = self._nodes_of[topology_id] | {node.id: node for node in nodes}
        self._nodes_of[topology_id] = dict(sorted(merged.items()))

    def _release(self, count: int) -> list[Node]:
        """Take nodes from the user's own topologies that did not ask for machines."""
        released: list[Node] = []
        for topology_id, nodes in self._nodes_of.items():
            if self._is_open(topology_id):
                for node in list(nodes.values())[: max(count - len(released), 0)]:
                    del nodes[node.id]
                    node.free_everything(self._cluster)
                    released.append(node)
        self._used_nodes -= len(released)
        return released


def _rank(node: Node) -> tuple[int, int, str]:
    return (node.num_used, -node.num_free, node.id)
