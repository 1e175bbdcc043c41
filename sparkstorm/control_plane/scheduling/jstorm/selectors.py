"""Choice of a worker for a task: JStorm's chain of selectors (ComponentNumSelector,
TotalTaskNumSelector, InputComponentNumSelector) as one sort key; the smallest wins (S0.102).

In that order: a component's tasks spread first, since they are the load that grows together; then
all tasks; of equal workers the one with most neighbours saves most of the network.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from sparkstorm.control_plane.scheduling.jstorm.records import JStormComponent
from sparkstorm.control_plane.scheduling.jstorm.slots import JStormSlot

Key: TypeAlias = tuple[int, int, int, int, int, int, str, int, str]


def relationship(components: Iterable[JStormComponent]) -> dict[str, set[str]]:
    """Return the neighbours of each component: a bolt's inputs, and the bolts that read a spout."""
    user = [part for part in components if not part.is_system]
    bolts = {part.id for part in user if part.kind == "bolt"}
    near: dict[str, set[str]] = {part.id: set() for part in user}
    for part in user:
        for subscription in part.inputs if part.kind == "bolt" else ():
            near[part.id].add(subscription.component)
            if subscription.component not in bolts:
                near.setdefault(subscription.component, set()).add(part.id)
    return near


class PlacedTasks:
    """Tasks per worker and per supervisor, by component (JStorm's TaskAssignContext)."""

    def __init__(
        self,
        slots: Iterable[JStormSlot],
        near: Mapping[str, set[str]],
        component_by_task: Mapping[int, str],
    ) -> None:
        self._near = near
        self.slots_by_node: dict[str | None, list[JStormSlot]] = {}
        self._on_worker: defaultdict[JStormSlot, Counter[str]] = defaultdict(Counter)
        self._on_node: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
        for slot in slots:
            self.slots_by_node.setdefault(slot.node, []).append(slot)
            for task in slot.tasks or ():
                self.count(component_by_task[task], slot)

    def count(self, component: str, slot: JStormSlot) -> None:
        """Count one more task of a component on a worker."""
        self._on_worker[slot][component] += 1
        self._on_node[slot.node][component] += 1

    def on_node(self, node: str | None, component: str) -> int:
        """Return the number of tasks of a component on a supervisor."""
        return self._on_node[node][component]

    def key(self, slot: JStormSlot, component: str, is_system: bool) -> Key:
        """Return the sort key: fewest of the component, fewest tasks, most neighbours (users'
        components); worker before node.
        """
        own = self._on_worker[slot]
        node = self._on_node[slot.node]
        near = () if is_system else self._near.get(component, ())
        return (
            own[component],
            node[component],
            slot.num_tasks,
            sum(neighbour.num_tasks for neighbour in self.slots_by_node.get(slot.node, ())),
            -sum(own[name] for name in near),
            -sum(node[name] for name in near),
            *slot.order,
        )


class Chooser:
    """Chooser of workers for the tasks of one component; keys of a changed supervisor's workers are
    computed again.
    """

    def __init__(
        self, placed: PlacedTasks, pool: Mapping[JStormSlot, int], component: str, is_system: bool
    ) -> None:
        self.component = component
        self._placed = placed
        self._pool = pool
        self._is_system = is_system
        self._keys = {slot: placed.key(slot, component, is_system) for slot in pool}
        self._rank = {
            slot: position for position, slot in enumerate(pool)
        }  # slots cannot be compared
        self._heap = [(key, self._rank[slot], slot) for slot, key in self._keys.items()]
        heapq.heapify(self._heap)

    def best(self) -> JStormSlot | None:
        """Return the best worker of the pool; None when the pool is empty."""
        while self._heap:
            key, _, slot = self._heap[0]
            if slot in self._pool and self._keys[slot] == key:
                return slot
            heapq.heappop(self._heap)
        return None

    def touched(self, node: str | None) -> None:
        """Compute the keys of a supervisor's workers again, after tasks were added there."""
        for slot in self._placed.slots_by_node.get(node, ()):
            if slot in self._pool:
                self._keys[slot] = self._placed.key(slot, self.component, self._is_system)
                heapq.heappush(self._heap, (self._keys[slot], self._rank[slot], slot))
