"""Distribution of a topology's missing executors over its new workers; `topology.spread.components`
go to different nodes (Storm's NodePool.RoundRobinSlotScheduler).
"""

from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.multitenant.node import Node
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.settings import MachineSettings
from sparkstorm.control_plane.scheduling.view import ClusterView


class RoundRobinWorkers:
    """Queue of new workers; spread components add one executor per node, the last worker takes the
    rest.
    """

    def __init__(self, topology: TopologyView, num_workers: int, cluster: ClusterView) -> None:
        self._topology = topology
        self._cluster = cluster
        self._spread: dict[str, list[ExecutorId]] = {
            name: [] for name in MachineSettings.of_partial(topology.conf).spread or ()
        }
        self._workers: list[list[ExecutorId]] = [[] for _ in range(num_workers)]
        self._next = 0
        self._components_by_node: dict[str, set[str]] = {}
        placement = cluster.placement(topology.id)
        for executor, slot in placement.slot_by_executor.items():
            component = topology.component_by_executor.get(executor)
            if component is not None:
                self._components_by_node.setdefault(slot.node, set()).add(component)
        self._deal(set(placement.missing()))

    def _deal(self, missing: set[ExecutorId]) -> None:
        turn = 0
        for component in self._topology.components:
            executors = [
                executor for executor in sorted(component.executors) if executor in missing
            ]
            if component.id in self._spread:
                self._spread[component.id] += executors
                continue
            for executor in executors:
                self._workers[turn % len(self._workers)].append(executor)
                turn += 1

    def assign_next(self, node: Node) -> bool:
        """Place the next worker on a node; return whether more are queued."""
        executors = self._workers[self._next]
        self._next += 1
        is_last = self._next == len(self._workers)
        for component, waiting in self._spread.items():
            if is_last:
                executors += waiting
            elif waiting and component not in self._components_by_node.setdefault(node.id, set()):
                self._components_by_node[node.id].add(component)
                executors.append(waiting.pop(0))
        words = ""
        if self._cluster.reasons is not None:
            words = f"worker {self._next} of {len(self._workers)} in its pool, on the pool's next node ({node.num_free} free ports)"
        node.assign(self._topology.id, executors, self._cluster, words)
        return not is_last
