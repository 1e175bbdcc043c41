"""Depth-first search for slots, executor after executor, with backtracking (Storm's
BaseResourceAwareStrategy): an early choice may leave a later executor without a place.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.names import counted
from sparkstorm.control_plane.scheduling.reasons import Reasons
from sparkstorm.control_plane.scheduling.resource.attempt import Attempt
from sparkstorm.control_plane.scheduling.resource.node_order import (
    NodeMap,
    NodeOrder,
    NodeSort,
    Preferences,
)
from sparkstorm.control_plane.scheduling.resource.resources import CPU, MEMORY
from sparkstorm.control_plane.scheduling.settings import MachineSettings


class SearchOutcome(Enum):
    """Outcome of an attempt."""

    SUCCESS = "success"
    NOT_ENOUGH_RESOURCES = "not enough resources"
    INVALID_TOPOLOGY = "invalid topology"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Outcome with its text."""

    outcome: SearchOutcome
    text: str


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of a strategy."""

    title: str
    sort: NodeSort = NodeSort.COMMON
    sorts_again: bool = True  # rank the nodes again after each executor
    round_robin: bool = False
    constrained: bool = False


class Search:
    """Storm's scheduleExecutorsOnNodes; the limit counts states, never time, so that a busy machine
    answers as an idle one.
    """

    def __init__(
        self, attempt: Attempt, nodes: NodeMap, options: SearchOptions, max_states: int
    ) -> None:
        self._attempt = attempt
        self._nodes = nodes
        self._options = options
        self._max_states = max_states
        self._preferences = Preferences(attempt.topology, nodes)
        self._component_of = attempt.topology.component_by_executor
        self._states = 0
        self._steps_back = 0
        self._reasons = attempt.ledger.cluster.reasons

    def order_for(self, executor: ExecutorId | None) -> NodeOrder:
        """Return the nodes, ranked for an executor or without one."""
        attempt = self._attempt
        request = (
            None if executor is None else attempt.ledger.requests(attempt.topology).of(executor)
        )
        return NodeOrder(self._nodes, self._preferences, attempt.held, request, self._options.sort)

    def _is_same_component(self, executors: list[ExecutorId], index: int) -> bool:
        """Return whether to rank the nodes again: Storm does if the component is the *same* as the
        one before.
        """
        return (
            index == 0
            or self._component_of[executors[index]] == self._component_of[executors[index - 1]]
        )

    def _place_one(self, executor: ExecutorId, slot: WorkerSlot) -> bool:
        """Place an executor and the ackers bound to its worker; return whether ackers were
        placed.
        """
        self._states += 1
        bound = len(self._attempt.bound_ackers)
        self._attempt.put(executor, slot)
        self._attempt.bind_ackers(executor, slot)
        return len(self._attempt.bound_ackers) > bound

    def place(self, executors: list[ExecutorId]) -> SearchResult:
        """Place every executor; return the outcome."""
        if self._options.round_robin:
            return self._go_round(executors)
        return self._go_deep(executors)

    def _go_deep(self, executors: list[ExecutorId]) -> SearchResult:
        attempt = self._attempt
        # number of slots tried by each executor since the search last reached it
        tried = [-1] * len(executors)
        with_ackers: set[ExecutorId] = set()
        order: Iterable[str] | None = None if self._options.sorts_again else self.order_for(None)
        seen = -1
        index = 0
        while self._states <= self._max_states:
            executor = executors[index]
            if executor not in attempt.bound_ackers:
                if order is None or (
                    self._options.sorts_again and self._is_same_component(executors, index)
                ):
                    order = self.order_for(executor)
                    seen = -1
                slot, seen, tried[index] = self._next_slot(executor, order, seen, tried[index])
                if slot is None:
                    order = None
                    if index == 0:
                        return (
                            self._last_left_out()
                            if len(executors) == 1
                            else self._short(0, len(executors))
                        )
                    tried[index] = -1
                    index = self._back(executors, index, with_ackers)
                    continue
                if self._reasons is not None:
                    self._explain(executor, slot, order, self._reasons)
                if self._place_one(executor, slot):
                    with_ackers.add(executor)
            if index == len(executors) - 1:
                return self._done()
            index += 1
        return self._short(index, len(executors))

    def _next_slot(
        self, executor: ExecutorId, order: Iterable[str], seen: int, tried: int
    ) -> tuple[WorkerSlot | None, int, int]:
        attempt = self._attempt
        shut = attempt.shut_nodes(executor)
        for node in order:
            if node in shut:
                count = len(attempt.open_ports(node))
                tried += max(count - max(tried - seen, 0), 0)
                seen += count
                continue
            if not attempt.could_ever_fit(executor, node):
                continue
            tries_all = seen >= tried
            for port in attempt.open_ports(node):
                seen += 1
                if seen <= tried:
                    continue
                tried += 1
                slot = WorkerSlot(node, port)
                if attempt.may_put(executor, slot):
                    return slot, seen, tried
            if tries_all:
                shut.add(node)
        return None, seen, tried

    def _back(self, executors: list[ExecutorId], index: int, with_ackers: set[ExecutorId]) -> int:
        """Remove the last executor that was not placed with another; return its position."""
        index -= 1
        while executors[index] in self._attempt.bound_ackers:
            index -= 1
        executor = executors[index]
        self._steps_back += 1
        slot = self._attempt.slot_by_executor[executor]
        self._attempt.take(executor)
        if executor in with_ackers:
            with_ackers.discard(executor)
            self._attempt.unbind_ackers(slot)
        return index

    def _go_round(self, executors: list[ExecutorId]) -> SearchResult:
        """Place executors round robin on nodes that no other topology uses, without
        backtracking.
        """
        attempt = self._attempt
        nodes = self._own_nodes()
        turn = iter(nodes)
        nodes_left = len(nodes)
        for index, executor in enumerate(executors):
            if self._states > self._max_states:
                return self._short(index, len(executors))
            if executor in attempt.bound_ackers:
                continue
            if nodes_left == 0 or self._is_same_component(executors, index):
                turn = iter(nodes)
                nodes_left = len(nodes)
            slot: WorkerSlot | None = None
            for node in turn:
                nodes_left -= 1
                slot = self._first_slot(executor, node)
                if slot is not None:
                    break
            if slot is None and index == len(executors) - 1:
                return self._last_left_out()
            if slot is None:
                return self._short(index, len(executors))
            if self._reasons is not None:
                self._explain(executor, slot, nodes, self._reasons)
            self._place_one(executor, slot)
        return self._done()

    def _own_nodes(self) -> list[str]:
        attempt = self._attempt
        wanted = MachineSettings.of_partial(attempt.topology.conf).machines
        alone = [
            node
            for node in self.order_for(None)
            if attempt.ledger.topologies_on(node) <= {attempt.topology.id}
        ]
        return alone if wanted is None else alone[:wanted]

    def _first_slot(self, executor: ExecutorId, node: str) -> WorkerSlot | None:
        if not self._attempt.could_ever_fit(executor, node):
            return None
        slots = (WorkerSlot(node, port) for port in self._attempt.open_ports(node))
        return next((slot for slot in slots if self._attempt.may_put(executor, slot)), None)

    def _explain(
        self, executor: ExecutorId, slot: WorkerSlot, order: Iterable[str], reasons: Reasons
    ) -> None:
        """Record the node's rank, why the nodes before it were refused, and its free resources."""
        attempt = self._attempt
        refused = []
        for node in order:
            if node == slot.node:
                break
            refused.append(f"{node} ({attempt.refusal(executor, node)})")
        held = int(attempt.held[attempt.ledger.index_by_node[slot.node]])
        available = attempt.ledger.available(slot.node)
        words = f"{slot.node} is number {len(refused) + 1} in the order of nodes (most executors of the topology first, "
        words += f"then {self._options.sort.value}): "
        words += f"{held} of its executors there, {available[MEMORY]:,.0f} MB and {available[CPU]:,.0f} % CPU left"
        if refused:
            more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
            words += f"; refused by {', '.join(refused[:3])}{more}"
        words += (
            f"; {slot.port} is the first port that takes it ({attempt.heap_words(executor, slot)})"
        )
        reasons.placed(attempt.topology.id, [executor], slot, words)

    def _done(self) -> SearchResult:
        words = f"Fully Scheduled by {self._options.title} ({self._states} states traversed, "
        return SearchResult(SearchOutcome.SUCCESS, f"{words}backtracked {self._steps_back} times)")

    def _last_left_out(self) -> SearchResult:
        # Storm takes reaching the last executor for success: placed executors stay, and no topology
        # is evicted for it.
        return SearchResult(
            SearchOutcome.SUCCESS, f"{self._done().text}; its last executor has no place"
        )

    def _short(self, index: int, total: int) -> SearchResult:
        words = f"Cannot schedule by {self._options.title} ({self._states} states traversed, "
        words += f"backtracked {counted(self._steps_back, 'time')}, {index} of {total} executors scheduled)"
        return SearchResult(SearchOutcome.NOT_ENOUGH_RESOURCES, words)
