"""Storm's multitenant Node, a node as the pools see it: free ports, and used ports by topology."""

from collections.abc import Iterable

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.view import ClusterView


class Node:
    """A supervisor, alive or dead; freeing and assigning update the cluster too."""

    def __init__(self, node_id: str, ports: Iterable[int], alive: bool) -> None:
        self.id = node_id
        self.is_alive = alive
        self._free = set(ports) if alive else set()
        self._used: dict[str, set[int]] = {}

    @property
    def num_free(self) -> int:
        """Free ports."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Used ports."""
        return sum(map(len, self._used.values()))

    @property
    def num_slots(self) -> int:
        """Free and used ports."""
        return self.num_free + self.num_used

    def num_used_by(self, topology_id: str) -> int:
        """Return the number of ports that one topology uses."""
        return len(self._used.get(topology_id, ()))

    def topologies(self) -> frozenset[str]:
        """Topologies with workers on this node."""
        return frozenset(self._used)

    def occupy(self, topology_id: str, port: int) -> None:
        """Note that a topology uses a port already."""
        self._free.discard(port)
        self._used.setdefault(topology_id, set()).add(port)

    def free_everything(self, cluster: ClusterView) -> None:
        """Free every worker on this node."""
        for topology_id in sorted(self._used):
            self.free_topology(topology_id, cluster)

    def free_topology(self, topology_id: str, cluster: ClusterView) -> None:
        """Free one topology's workers on this node; even a port that was hidden as dead may be used
        again.
        """
        ports = self._used.pop(topology_id, set())
        cluster.free_slots(WorkerSlot(self.id, port) for port in ports)
        if self.is_alive:
            self._free |= ports

    def assign(
        self,
        topology_id: str,
        executors: Iterable[ExecutorId],
        cluster: ClusterView,
        words: str = "",
    ) -> None:
        """Place executors on the lowest free port; no port is used without executors. `words` is
        the reason for this node.
        """
        chosen = sorted(executors)
        if chosen:
            port = min(self._free)
            slot = WorkerSlot(self.id, port)
            cluster.assign(slot, topology_id, chosen, f"{words}, lowest port")
            self.occupy(topology_id, port)


def nodes_of(cluster: ClusterView) -> dict[str, Node]:
    """Return every node, by id; a node that is known from an assignment only is dead."""
    nodes = {
        node: Node(node, supervisor.ports, not cluster.is_blacklisted(node))
        for node, supervisor in cluster.supervisors.items()
    }
    for slot, topology_id in cluster.used_slots().items():
        nodes.setdefault(slot.node, Node(slot.node, (), alive=False)).occupy(topology_id, slot.port)
    return dict(sorted(nodes.items()))


def free_on(nodes: Iterable[Node]) -> int:
    """Return the number of free slots on living nodes."""
    return sum(node.num_free for node in nodes if node.is_alive)


def used_on(nodes: Iterable[Node], topology_id: str) -> int:
    """Return the number of slots that a topology uses on these nodes."""
    return sum(node.num_used_by(topology_id) for node in nodes)
