"""Storm's EvenScheduler: places missing executors round robin on free slots that are spread over the nodes."""

from collections.abc import Mapping

from sparkstorm.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.scheduling.records import Conf, Topologies, TopologyView
from sparkstorm.scheduling.view import ClusterView


def schedule_evenly(cluster: ClusterView, scope: Topologies | None = None) -> None:
    """Give every topology that lacks executors its share of the free slots, topologies by id (S4.21).

    Storm 2.x schedules all topologies of the cluster; `scope` limits them, as in Storm 0.9 and 3.
    """
    for topology in cluster.hungry_topologies():
        if scope is None or topology.id in scope:
            _place_missing(topology, cluster)


def _place_missing(topology: TopologyView, cluster: ClusterView) -> None:
    by_slot: dict[WorkerSlot, list[ExecutorId]] = {}
    for executor, slot in reassignment(topology, cluster):
        by_slot.setdefault(slot, []).append(executor)
    if by_slot:
        if cluster.reasons is not None:
            _explain(by_slot, topology.id, cluster)
        for slot, executors in by_slot.items():
            cluster.assign(slot, topology.id, executors)
    elif not cluster.free.count:
        cluster.status.setdefault(topology.id, f"No available slots for topology: {topology.name}")


def _explain(by_slot: Mapping[WorkerSlot, list[ExecutorId]], topology_id: str, cluster: ClusterView) -> None:
    if cluster.reasons is not None:
        for turn, (slot, executors) in enumerate(by_slot.items(), start=1):
            free = len(cluster.free.ports(slot.node))
            words = f"free slot {turn} of the {len(by_slot)} that its missing executors are dealt to in turn; "
            words += f"slots go one per node, nodes with most free slots first ({slot.node}: {free}), lowest port first"
            cluster.reasons.placed(topology_id, executors, slot, words)


def reassignment(topology: TopologyView, cluster: ClusterView) -> list[tuple[ExecutorId, WorkerSlot]]:
    """Return pairs (missing executor, slot): executors by first task, slots round robin (S4.22-S4.28)."""
    placement = cluster.placement(topology.id)
    total_slots = min(topology.num_workers, cluster.free.count + placement.num_workers)
    slots = cluster.free.interleaved(total_slots - placement.num_workers)
    if not slots:
        return []
    return [(executor, slots[turn % len(slots)]) for turn, executor in enumerate(placement.missing())]


class EvenScheduler:
    """Storm's EvenScheduler: fills free slots and frees none."""

    def prepare(self, conf: Conf) -> None:
        """Nothing to read."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Fill every topology of the cluster that needs scheduling."""
        schedule_evenly(cluster)
