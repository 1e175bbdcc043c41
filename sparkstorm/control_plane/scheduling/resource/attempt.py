"""One attempt to place a topology: tentative workers, checked against the ledger and undone on
failure (Storm's SchedulingSearcherState, and the checks of BaseResourceAwareStrategy).
"""

import math

import numpy as np

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.resource.constraints import Constraints
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.resource.node_order import Ints
from sparkstorm.control_plane.scheduling.resource.resources import (
    ACKER,
    CPU,
    FIRST_GENERIC,
    MEMORY,
    Load,
    SharedRegions,
    Vector,
)
from sparkstorm.control_plane.scheduling.settings import WorkerLimits


def fits(available: Vector, asked: Vector, min_cpu: float) -> bool:
    """Return whether a node's free resources suffice for an executor; the minimum CPU of a worker
    counts as taken already.
    """
    cpu = asked[CPU] if min_cpu < 0.001 else max(asked[CPU] - min_cpu, 0.0)
    if available[CPU] < cpu or available[MEMORY] < asked[MEMORY]:
        return False
    return all(available[index] >= asked[index] for index in range(FIRST_GENERIC, len(asked)))


class Attempt:
    """Tentative workers of one topology; the scheduler commits them, `undo` removes them."""

    def __init__(
        self, topology: TopologyView, ledger: ResourceLedger, constraints: Constraints | None
    ) -> None:
        self.topology = topology
        self.ledger = ledger
        self._requests = ledger.requests(topology)
        self._shared = self._requests.shared if self._requests.shared else None
        # used only if memory is shared within nodes
        self._executors_by_node: dict[str, set[ExecutorId]] = {}
        self._constraints = constraints
        self._limits = WorkerLimits.of_partial(topology.conf)
        self.executors_by_slot: dict[WorkerSlot, list[ExecutorId]] = {}
        self._load_by_slot: dict[WorkerSlot, Load] = {}  # of what this attempt put there
        self.slot_by_executor: dict[ExecutorId, WorkerSlot] = {}
        self.bound_ackers_by_slot: dict[WorkerSlot, list[ExecutorId]] = {}
        self.bound_ackers: set[ExecutorId] = set()
        self.held: Ints = np.zeros(len(ledger.node_ids), dtype=np.int64)
        self._count_by_node: dict[str, dict[str | None, int]] = {}
        placement = ledger.cluster.placement(topology.id)
        for executor, slot in placement.slot_by_executor.items():
            self._count(executor, slot, 1)
        missing = [
            executor
            for executor in topology.executors
            if executor not in placement.slot_by_executor
        ]
        self.free_ackers = [
            executor for executor in missing if topology.component_by_executor[executor] == ACKER
        ]
        self.missing = set(missing)
        self._ports: dict[str, list[int]] = {}
        self._shut: dict[str, set[str]] = {part.id: set() for part in topology.components}

    def shut_nodes(self, executor: ExecutorId) -> set[str]:
        """Return nodes without a port for executors of this component; a node leaves the set when
        anything changes on it.
        """
        return self._shut[self.topology.component_by_executor[executor]]

    def open_ports(self, node: str) -> list[int]:
        """Return the ports that were free when this attempt began; ports of running workers are not
        used.
        """
        if node not in self._ports:
            self._ports[node] = self.ledger.free_ports(node)
        return self._ports[node]

    def could_ever_fit(self, executor: ExecutorId, node: str) -> bool:
        """Return whether the node is alive and has the executor's own request left."""
        asked = self._requests.of(executor).vector
        return node in self.ledger.alive and fits(
            self.ledger.available(node), asked, self.ledger.min_cpu
        )

    def may_put(self, executor: ExecutorId, slot: WorkerSlot) -> bool:
        """Return whether resources, heap, worker rules and constraints hold with the executor on
        the slot.
        """
        if not self._resources_hold(executor, slot):
            return False
        if not self._worker_rules_hold(executor, self.executors_by_slot.get(slot)):
            return False
        return self._constraints is None or self._constraints_hold(
            executor, slot, self._constraints
        )

    def _worker_rules_hold(self, executor: ExecutorId, here: list[ExecutorId] | None) -> bool:
        if not here or not (self._limits.one_executor or self._limits.one_component):
            return True
        component_of = self.topology.component_by_executor
        return not self._limits.one_executor and {component_of[other] for other in here} == {
            component_of[executor]
        }

    def _resources_hold(self, executor: ExecutorId, slot: WorkerSlot) -> bool:
        available = self.ledger.available(slot.node)
        request = self._requests.of(executor)
        min_cpu = self.ledger.min_cpu
        if not fits(available, request.vector, min_cpu):
            return False
        if self._shared is not None:
            return self._shared_memory_holds(executor, slot, self._shared)
        load = self._load_by_slot.get(slot)
        if load is None:
            cpu = max(request.vector[CPU], min_cpu)
            memory = request.vector[MEMORY]
            heap = request.on_heap
        else:
            total = load.vector
            cpu = max(total[CPU] + request.vector[CPU], min_cpu) - max(total[CPU], min_cpu)
            memory = total[MEMORY] + request.vector[MEMORY] - total[MEMORY]
            heap = load.heap + request.on_heap
        return (
            cpu <= available[CPU]
            and memory <= available[MEMORY]
            and heap <= self._limits.max_heap_mb
        )

    def _shared_memory_holds(
        self, executor: ExecutorId, slot: WorkerSlot, shared: SharedRegions
    ) -> bool:
        """Return `_resources_hold` for shared memory: regions that the executor adds count too."""
        available = self.ledger.available(slot.node)
        min_cpu = self.ledger.min_cpu
        here = self.executors_by_slot.get(slot, [])
        on_node = self._executors_by_node.get(slot.node, set())
        before = self._requests.worker(here)
        after = self._requests.worker([*here, executor])
        taken = before.at_least(min_cpu) if here else self.ledger.shape.zero
        memory = after.vector[MEMORY] + shared.on_node({*on_node, executor})
        memory -= taken[MEMORY] + shared.on_node(on_node)
        cpu = after.at_least(min_cpu)[CPU] - taken[CPU]
        return (
            cpu <= available[CPU]
            and memory <= available[MEMORY]
            and after.heap <= self._limits.max_heap_mb
        )

    def _constraints_hold(
        self, executor: ExecutorId, slot: WorkerSlot, constraints: Constraints
    ) -> bool:
        component = self.topology.component_by_executor[executor]
        barred = constraints.incompatible[component]
        here = self.executors_by_slot.get(slot, ())
        if barred and any(self.topology.component_by_executor[other] in barred for other in here):
            return False
        limit = constraints.max_on_node.get(component)
        return limit is None or self._count_by_node.get(slot.node, {}).get(component, 0) < limit

    def refusal(self, executor: ExecutorId, node: str) -> str:
        """Return the reason why a node takes an executor on none of its ports."""
        available = self.ledger.available(node)
        asked = self._requests.of(executor).vector
        names = ("MB", "% CPU", *self.ledger.shape.generic)
        for name, have, wanted in zip(names, available, asked, strict=True):
            if have < wanted:
                return f"{have:,.0f} of {wanted:,.0f} {name} left"
        if not self.open_ports(node):
            return "no free port"
        slots = [WorkerSlot(node, port) for port in self.open_ports(node)]
        if any(self._resources_hold(executor, slot) for slot in slots):
            return "the rules for workers and components"
        return "no room in its workers' heap, or for what they share"

    def heap_words(self, executor: ExecutorId, slot: WorkerSlot) -> str:
        """Return the heap of a worker with one more executor and its maximum, as text."""
        heap = self._requests.worker([*self.executors_by_slot.get(slot, []), executor]).heap
        return f"{heap:,.0f} of {self._limits.max_heap_mb:,.0f} MB heap"

    def put(self, executor: ExecutorId, slot: WorkerSlot) -> None:
        """Place an executor."""
        self.executors_by_slot.setdefault(slot, []).append(executor)
        self.slot_by_executor[executor] = slot
        self._count(executor, slot, 1)
        load = self._load_by_slot.get(slot) or self.ledger.shape.no_load
        self._book(slot, load.plus(self._requests.of(executor)))

    def take(self, executor: ExecutorId) -> None:
        """Remove an executor."""
        slot = self.slot_by_executor.pop(executor)
        self.executors_by_slot[slot].remove(executor)
        self._count(executor, slot, -1)
        here = self.executors_by_slot[slot]
        if here:
            # Added up again, not subtracted: floating point would not give the same sum.
            self._book(slot, self._requests.load(here))
        else:
            # As in Storm, the topology's shared memory on the node stays booked until it places an
            # executor there again.
            del self.executors_by_slot[slot], self._load_by_slot[slot]
            self._reopen(slot.node)
            self.ledger.clear([slot])

    def _book(self, slot: WorkerSlot, load: Load) -> None:
        self._load_by_slot[slot] = load
        self._reopen(slot.node)
        shared = 0.0
        if self._shared is not None:
            load = self._requests.worker(self.executors_by_slot[slot], load)
            shared = self._shared.on_node(self._executors_by_node.get(slot.node, ()))
        self.ledger.put(slot, self.topology.id, load.at_least(self.ledger.min_cpu), shared)

    def _reopen(self, node: str) -> None:
        for nodes in self._shut.values():
            nodes.discard(node)

    def _count(self, executor: ExecutorId, slot: WorkerSlot, change: int) -> None:
        component = self.topology.component_by_executor.get(executor)
        counts = self._count_by_node.setdefault(slot.node, {})
        counts[component] = counts.get(component, 0) + change
        if self._requests.shared.is_on_nodes:
            on_node = self._executors_by_node.setdefault(slot.node, set())
            (on_node.add if change > 0 else on_node.discard)(executor)
        self.held[self.ledger.index_by_node[slot.node]] += change

    def undo(self) -> None:
        """Remove everything that this attempt placed."""
        self.ledger.clear(list(self.executors_by_slot))
        self.ledger.settle(self.topology)
        self.executors_by_slot.clear()
        self._load_by_slot.clear()

    # -- ackers bound to workers -------------------------------------------------------------------

    def bind_ackers(self, executor: ExecutorId, slot: WorkerSlot) -> None:
        """Place ackers on a worker with its first executor, as far as heap and resources allow."""
        for _ in range(self._ackers_to_bind(executor, slot)):
            acker = self.free_ackers[0]
            if not self.may_put(acker, slot):
                return
            self.free_ackers.pop(0)
            self.put(acker, slot)
            if self.ledger.cluster.reasons is not None:
                words = "an acker bound to a new worker (topology.ras.acker.executors.per.worker)"
                self.ledger.cluster.reasons.placed(self.topology.id, [acker], slot, words)
            self.bound_ackers_by_slot.setdefault(slot, []).append(acker)
            self.bound_ackers.add(acker)

    def _ackers_to_bind(self, executor: ExecutorId, slot: WorkerSlot) -> int:
        alone = self._limits.one_executor or self._limits.one_component
        if alone or slot in self.bound_ackers_by_slot or not self.free_ackers:
            return 0
        if self.topology.component_by_executor[executor] == ACKER:
            return 0
        room = self._limits.max_heap_mb - self._requests.of(executor).on_heap
        acker_heap = self._requests.of(self.free_ackers[0]).on_heap
        by_heap = math.floor(room / acker_heap) if acker_heap > 0 else len(self.free_ackers)
        return min(by_heap, len(self.free_ackers), self._limits.ackers)

    def unbind_ackers(self, slot: WorkerSlot) -> None:
        """Remove a worker's ackers; they are free again in their former order."""
        ackers = self.bound_ackers_by_slot.pop(slot, [])
        for acker in ackers:
            self.take(acker)
            self.bound_ackers.discard(acker)
        self.free_ackers[:0] = ackers
