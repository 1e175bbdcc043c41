"""Order in which a topology's executors are placed (Storm's IExecSorter classes).

A search fills one node after the other, so what comes together in the order shares a worker or a
node: neighbours in the graph, whose tuples then need no network, or first what constraints leave
fewest places for.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.resource.constraints import Constraints

_SHUFFLES = frozenset({"shuffle", "loadawareshuffle", "localorshuffle"})


class Graph:
    """The user's components with their parents and children."""

    def __init__(self, topology: TopologyView) -> None:
        parts = [part for part in topology.components if not part.is_system]
        self.size = {part.id: len(part.executors) for part in parts}
        self.children: dict[str, set[str]] = {part.id: set() for part in parts}
        self.parents: dict[str, set[str]] = {part.id: set() for part in parts}
        self._shuffled: set[tuple[str, str]] = set()
        for part in parts:
            for subscription in part.inputs:
                if subscription.component in self.children:
                    self.children[subscription.component].add(part.id)
                    self.parents[part.id].add(subscription.component)
                    if subscription.grouping.replace("_", "").replace("-", "").lower() in _SHUFFLES:
                        self._shuffled.add((subscription.component, part.id))

    def neighbours(self, component: str) -> set[str]:
        """Return parents and children."""
        return self.parents[component] | self.children[component]

    def is_shuffled(self, parent: str, child: str) -> bool:
        """Return whether the child reads a stream of the parent by (local or) shuffle grouping."""
        return (parent, child) in self._shuffled


def _queues(topology: TopologyView, unassigned: set[ExecutorId]) -> dict[str, deque[ExecutorId]]:
    return {
        part.id: deque(executor for executor in sorted(part.executors) if executor in unassigned)
        for part in topology.components
        if not part.is_system
    }


def _with_the_rest(ordered: Iterable[ExecutorId], unassigned: set[ExecutorId]) -> list[ExecutorId]:
    seen = dict.fromkeys(ordered)
    return [*seen, *sorted(unassigned - seen.keys())]


def by_connection_count(topology: TopologyView, unassigned: set[ExecutorId]) -> list[ExecutorId]:
    """Return the most connected components first, one executor of each neighbour in turn (Storm's
    ExecSorterByConnectionCount).
    """
    graph = Graph(topology)
    queues = _queues(topology, unassigned)
    links = {
        name: graph.size[name] * sum(graph.size[neighbour] for neighbour in graph.neighbours(name))
        for name in graph.size
    }
    ordered: list[ExecutorId] = []
    for component in sorted(graph.size, key=lambda name: (-links[name], name)):
        own_size = graph.size[component]
        near = sorted(
            graph.neighbours(component), key=lambda name: (graph.size[name] * own_size, name)
        )
        ring = [queues[component], *(queues[name] for name in near)]
        while any(ring):
            ordered += [queue.popleft() for queue in ring if queue]
    return _with_the_rest(ordered, unassigned)


def by_proximity(topology: TopologyView, unassigned: set[ExecutorId]) -> list[ExecutorId]:
    """Return each executor followed by its share of downstream executors (Storm's
    ExecSorterByProximity).
    """
    graph = Graph(topology)
    queues = _queues(topology, unassigned)
    ordered: list[ExecutorId] = []
    for component in _topological(graph):
        for _ in range(len(queues[component])):
            ordered += _take(component, graph, queues)
    return _with_the_rest(ordered, unassigned)


def _topological(graph: Graph) -> list[str]:
    """Return a topological order, by id among equals; members of cycles last."""
    waiting = {name: len(graph.parents[name]) for name in sorted(graph.size)}
    ordered: list[str] = []
    while True:
        free = next((name for name, count in waiting.items() if count == 0), None)
        if free is None:
            return [*ordered, *waiting]
        del waiting[free]
        ordered.append(free)
        for child in graph.children[free] & waiting.keys():
            waiting[child] -= 1


def _take(
    component: str, graph: Graph, queues: Mapping[str, deque[ExecutorId]]
) -> list[ExecutorId]:
    queue = queues[component]
    queued = len(queue)
    if not queued:
        return []
    taken = [queue.popleft()]
    by_id = sorted(graph.children[component])
    shuffled = [child for child in by_id if graph.is_shuffled(component, child)]
    # Storm's comparator calls two children without shuffle grouping "less" both ways, which sorts
    # them last id first.
    for child in [child for child in reversed(by_id) if child not in shuffled] + shuffled:
        waiting = len(queues[child])
        share = max(1, waiting // queued) if graph.is_shuffled(component, child) else 1
        for _ in range(share if waiting else 0):
            taken += _take(child, graph, queues)
    return taken


def by_constraint_severity(
    topology: TopologyView, unassigned: set[ExecutorId], constraints: Constraints
) -> list[ExecutorId]:
    """Return executors of the most constrained components first (Storm's
    ExecSorterByConstraintSeverity).
    """
    parts = {part.id: part for part in topology.components if part.executors}

    def severity(name: str) -> int:
        limit = constraints.max_on_node.get(name)
        return len(constraints.incompatible[name]) + (len(parts) // limit if limit else 0)

    names = sorted(sorted(parts, reverse=True), key=severity, reverse=True)
    return [
        executor
        for name in names
        for executor in sorted(parts[name].executors)
        if executor in unassigned
    ]
