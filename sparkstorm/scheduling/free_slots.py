"""Index of free ports, in the order in which Storm spreads workers over nodes."""

from bisect import bisect_left, insort
from collections.abc import Iterable

from sparkstorm.model.assignment import WorkerSlot


class FreeSlots:
    """Free ports per node; nodes are bucketed by their number of free ports, so that taking k slots takes O(k)."""

    def __init__(self) -> None:
        self._ports_by_node: dict[str, list[int]] = {}
        self._nodes_by_count: dict[int, list[str]] = {}
        self.count = 0

    def copy(self) -> "FreeSlots":
        """Return an independent copy."""
        twin = FreeSlots()
        twin._ports_by_node = {node: list(ports) for node, ports in self._ports_by_node.items()}
        twin._nodes_by_count = {count: list(nodes) for count, nodes in self._nodes_by_count.items()}
        twin.count = self.count
        return twin

    def set_ports(self, node: str, ports: Iterable[int]) -> None:
        """Replace the free ports of one node."""
        old = self._ports_by_node.get(node, [])
        new = sorted(ports)
        self._ports_by_node[node] = new
        self._move(node, len(old), len(new))

    def ports(self, node: str) -> tuple[int, ...]:
        """Return the free ports of a node, ascending."""
        return tuple(self._ports_by_node.get(node, ()))

    def take(self, slot: WorkerSlot) -> None:
        """Mark a slot used; no change if it was not free."""
        ports = self._ports_by_node.get(slot.node)
        if ports is None:
            return
        at = bisect_left(ports, slot.port)
        if at < len(ports) and ports[at] == slot.port:
            del ports[at]
            self._move(slot.node, len(ports) + 1, len(ports))

    def give(self, slot: WorkerSlot) -> None:
        """Mark a slot free; the caller checks that it may be used."""
        ports = self._ports_by_node.setdefault(slot.node, [])
        at = bisect_left(ports, slot.port)
        if at == len(ports) or ports[at] != slot.port:
            ports.insert(at, slot.port)
            self._move(slot.node, len(ports) - 1, len(ports))

    def interleaved(self, limit: int) -> list[WorkerSlot]:
        """Return the first `limit` free slots, one per node in turn: nodes with most free ports first, then by id (S4.25)."""
        chosen: list[WorkerSlot] = []
        counts = sorted((count for count, nodes in self._nodes_by_count.items() if nodes and count), reverse=True)
        rank = 0
        while counts and len(chosen) < limit:
            for count in counts:
                room = limit - len(chosen)
                nodes = self._nodes_by_count[count][:room]
                chosen += [WorkerSlot(node, self._ports_by_node[node][rank]) for node in nodes]
            rank += 1
            counts = [count for count in counts if count > rank]
        return chosen

    def _move(self, node: str, old: int, new: int) -> None:
        self.count += new - old
        if old == new:
            return
        if old:
            bucket = self._nodes_by_count[old]
            del bucket[bisect_left(bucket, node)]
        if new:
            insort(self._nodes_by_count.setdefault(new, []), node)
