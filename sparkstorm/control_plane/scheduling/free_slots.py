"""Index of free ports, in the order in which Storm spreads workers over nodes (ServerUtils'
interleaveAll in EvenScheduler.sortSlots).

Nodes of several drivers on one machine (`w1`, `w1@2`) count as one: else a machine would get a
worker of each driver while another has none.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.names import machine_of_node


class FreeSlots:
    """Free ports per node; machines are bucketed by their number of free ports, so that taking k
    slots takes O(k).
    """

    def __init__(self) -> None:
        self._ports_by_node: dict[str, list[int]] = {}
        self._nodes_by_machine: dict[str, list[str]] = {}
        self._machines_by_count: dict[int, list[str]] = {}
        self.count = 0

    def copy(self) -> "FreeSlots":
        """Return an independent copy."""
        twin = FreeSlots()
        twin._ports_by_node = {node: list(ports) for node, ports in self._ports_by_node.items()}
        twin._nodes_by_machine = {
            machine: list(nodes) for machine, nodes in self._nodes_by_machine.items()
        }
        twin._machines_by_count = {
            count: list(machines) for count, machines in self._machines_by_count.items()
        }
        twin.count = self.count
        return twin

    def set_ports(self, node: str, ports: Iterable[int]) -> None:
        """Replace the free ports of one node."""
        change = -len(self._ports_of(node))
        self._ports_by_node[node] = new = sorted(ports)
        self._note(node, change + len(new))

    def ports(self, node: str) -> tuple[int, ...]:
        """Return the free ports of a node, ascending."""
        return tuple(self._ports_by_node.get(node, ()))

    def take(self, slot: WorkerSlot) -> None:
        """Mark a slot used; no change if it was not free."""
        ports = self._ports_by_node.get(slot.node)
        if ports is None:
            return
        index = bisect_left(ports, slot.port)
        if index < len(ports) and ports[index] == slot.port:
            del ports[index]
            self._note(slot.node, -1)

    def give(self, slot: WorkerSlot) -> None:
        """Mark a slot free; the caller checks that it may be used."""
        ports = self._ports_of(slot.node)
        index = bisect_left(ports, slot.port)
        if index == len(ports) or ports[index] != slot.port:
            ports.insert(index, slot.port)
            self._note(slot.node, 1)

    def interleaved(self, limit: int) -> list[WorkerSlot]:
        """Return the first `limit` free slots, one per machine in turn: those with most free ports
        first, then by id (S4.25).
        """
        chosen: list[WorkerSlot] = []
        counts = sorted(
            (count for count, machines in self._machines_by_count.items() if machines and count),
            reverse=True,
        )
        rank = 0
        while counts and len(chosen) < limit:
            for count in counts:
                room = limit - len(chosen)
                chosen += [
                    self._slot(machine, rank) for machine in self._machines_by_count[count][:room]
                ]
            rank += 1
            counts = [count for count in counts if count > rank]
        return chosen

    def _slot(self, machine: str, rank: int) -> WorkerSlot:
        """Return the free slot of that rank among all of a machine: node after node, in each by
        port.
        """
        for node in self._nodes_by_machine[machine]:
            ports = self._ports_by_node[node]
            if rank < len(ports):
                return WorkerSlot(node, ports[rank])
            rank -= len(ports)
        raise IndexError(f"{machine} has no free slot {rank}")

    def _ports_of(self, node: str) -> list[int]:
        if node not in self._ports_by_node:
            insort(self._nodes_by_machine.setdefault(machine_of_node(node), []), node)
        return self._ports_by_node.setdefault(node, [])

    def _note(self, node: str, change: int) -> None:
        """Put the node's machine among those with its new number of free ports."""
        self.count += change
        if not change:
            return
        machine = machine_of_node(node)
        new = sum(len(self._ports_by_node[node]) for node in self._nodes_by_machine[machine])
        if old := new - change:
            bucket = self._machines_by_count[old]
            del bucket[bisect_left(bucket, machine)]
        if new:
            insort(self._machines_by_count.setdefault(new, []), machine)
