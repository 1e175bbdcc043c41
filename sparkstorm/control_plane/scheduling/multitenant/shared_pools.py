"""Pools that lend nodes to others: Storm's FreePool, and its DefaultPool of all other users.

A pool that is short takes free nodes first and, for a user with a limit of its own, nodes of the
default pool next: guaranteed machines come before machines that nobody was promised.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.control_plane.scheduling.multitenant.node import Node, free_on, used_on
from sparkstorm.control_plane.scheduling.multitenant.round_robin import RoundRobinWorkers
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.view import ClusterView


class LendingPool(Protocol):
    """Pool that gives nodes to a pool of higher rank (Storm's NodePool)."""

    def num_slots(self) -> int:
        """Slots that could be taken."""

    def num_nodes(self) -> int:
        """Nodes that could be taken."""

    def nodes_for(self, slots: int) -> list[Node]:
        """Return the nodes that `take` needs for that many slots."""

    def take(self, nodes: Iterable[Node]) -> None:
        """Remove these nodes from the pool, without workers, and return them."""

    def first(self, count: int) -> list[Node]:
        """Return the first nodes that could be taken."""


def nodes_with_slots(slots: int, nodes: Iterable[Node]) -> list[Node]:
    """Return the first nodes that together have that many slots."""
    chosen: list[Node] = []
    for node in nodes:
        if slots <= 0:
            break
        chosen.append(node)
        slots -= node.num_slots
    return chosen


def count_for_slots(slots: int, pools: Sequence[LendingPool]) -> int:
    """Return how many nodes that many slots need."""
    total = 0
    for pool in pools:
        chosen = pool.nodes_for(slots)
        total += len(chosen)
        slots -= sum(node.num_slots for node in chosen)
    return total


def take_slots(slots: int, pools: Sequence[LendingPool]) -> list[Node]:
    """Take nodes with that many slots, pool after pool."""
    taken: list[Node] = []
    for pool in pools:
        chosen = pool.nodes_for(slots)
        pool.take(chosen)
        taken += chosen
        slots -= free_on(chosen)
    return taken


def take_nodes(count: int, pools: Sequence[LendingPool]) -> list[Node]:
    """Take that many nodes, pool after pool."""
    taken: list[Node] = []
    for pool in pools:
        chosen = pool.first(count - len(taken))
        pool.take(chosen)
        taken += chosen
    return taken


class FreePool:
    """Living nodes without workers."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = {
            node.id: node for node in nodes.values() if node.is_alive and not node.topologies()
        }

    def num_slots(self) -> int:
        """Slots that could be taken."""
        return sum(node.num_free for node in self.nodes.values())

    def num_nodes(self) -> int:
        """Nodes that could be taken."""
        return len(self.nodes)

    def nodes_for(self, slots: int) -> list[Node]:
        """Return the nodes to take, by id."""
        return nodes_with_slots(slots, self.nodes.values())

    def first(self, count: int) -> list[Node]:
        """Return the first nodes, by id."""
        return list(self.nodes.values())[: max(count, 0)]

    def take(self, nodes: Iterable[Node]) -> None:
        """Remove nodes from the pool and return them."""
        for node in nodes:
            del self.nodes[node.id]


class DefaultPool:
    """Nodes that run what no user pool accepts; takes nodes from the free pool."""

    def __init__(self, cluster: ClusterView, nodes: Mapping[str, Node]) -> None:
        self._cluster = cluster
        self._all_nodes = nodes
        self._topologies: dict[str, TopologyView] = {}
        self.nodes: dict[str, Node] = {}

    def add_topology(self, topology: TopologyView) -> None:
        """Accept a topology with the nodes it runs on."""
        self._topologies[topology.id] = topology
        for slot in self._cluster.placement(topology.id).executors_by_slot:
            self.nodes[slot.node] = self._all_nodes[slot.node]

    def num_slots(self) -> int:
        """Return the slots that could be taken, used or not."""
        return sum(node.num_slots for node in self.nodes.values() if node.is_alive)

    def num_nodes(self) -> int:
        """Nodes that could be taken."""
        return sum(node.is_alive for node in self.nodes.values())

    def _least_used(self) -> list[Node]:
        alive = [node for node in self.nodes.values() if node.is_alive]
        return sorted(alive, key=lambda node: (node.num_used, node.id))

    def nodes_for(self, slots: int) -> list[Node]:
        """Return the nodes to take, least used first."""
        return nodes_with_slots(slots, self._least_used()) if slots > 0 else []

    def first(self, count: int) -> list[Node]:
        """Return the first nodes, least used first."""
        return self._least_used()[: max(count, 0)]

    def take(self, nodes: Iterable[Node]) -> None:
        """Free all workers of these nodes, remove them from the pool and return them."""
        for node in nodes:
            node.free_everything(self._cluster)
            del self.nodes[node.id]

    def schedule(self, lenders: Sequence[LendingPool]) -> None:
        """Schedule every topology of the pool, by id, borrowing nodes where slots are missing."""
        for topology_id, topology in sorted(self._topologies.items()):
            if self._cluster.needs_scheduling(topology):
                self._cluster.status[topology_id] = self._schedule_one(topology, lenders)
            else:
                self._cluster.status[topology_id] = "Fully Scheduled"

    def _schedule_one(self, topology: TopologyView, lenders: Sequence[LendingPool]) -> str:
        requested = min(len(topology.executors), topology.num_workers)
        used = used_on(self.nodes.values(), topology.id)
        free = free_on(self.nodes.values())
        lendable = sum(pool.num_slots() for pool in lenders) if requested > free else 0
        to_use = min(requested - used, free + lendable)
        missing = self._cluster.placement(topology.id).num_missing
        if to_use <= 0:
            return self._no_room(topology, requested, used, missing)
        self.nodes.update((node.id, node) for node in take_slots(to_use - free, lenders))
        self.nodes = dict(sorted(self.nodes.items()))
        if missing <= 0:
            for node in self.nodes.values():
                node.free_topology(topology.id, self._cluster)
            to_use = min(requested, free_on(self.nodes.values()))
        self._fill(RoundRobinWorkers(topology, to_use, self._cluster))
        return self._outcome(topology, requested)

    def _fill(self, workers: RoundRobinWorkers) -> None:
        more = True
        for node in self.nodes.values():
            while more and node.num_free:
                more = workers.assign_next(node)
        if more:
            raise FailedAssignTopologyError(
                "the default pool counted more free slots than its nodes have"
            )

    def _no_room(self, topology: TopologyView, requested: int, used: int, missing: int) -> str:
        if missing > 0:
            return f"Not fully scheduled (No free slots in default pool) {missing} executors not scheduled"
        if used < requested:
            return f"Running with fewer slots than requested ({used}/{topology.num_workers})"
        return (
            f"Fully Scheduled (requested {topology.num_workers} slots, but could only use {used})"
        )

    def _outcome(self, topology: TopologyView, requested: int) -> str:
        used = used_on(self.nodes.values(), topology.id)
        if used < requested:
            return f"Running with fewer slots than requested ({used}/{topology.num_workers})"
        if used < topology.num_workers:
            return f"Fully Scheduled (requested {topology.num_workers} slots, but could only use {used})"
        return "Fully Scheduled"
