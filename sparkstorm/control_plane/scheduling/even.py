"""Storm's EvenScheduler: places missing executors round robin on free slots that are spread over
the nodes, so that the loss of one node costs a topology as few workers as possible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot, grouped_by_slot
from sparkstorm.common.model.names import machine_of_node
from sparkstorm.control_plane.scheduling.records import (
    Conf,
    SupervisorView,
    Topologies,
    TopologyView,
)
from sparkstorm.control_plane.scheduling.settings import EvenSettings
from sparkstorm.control_plane.scheduling.view import ClusterView


def schedule_evenly(cluster: ClusterView, scope: Topologies | None = None) -> None:
    """Give every topology that lacks executors its share of the free slots, topologies by id
    (S4.21).

    Storm 2.x schedules all topologies of the cluster; `scope` limits them, as in Storm 0.9 and 3.
    """
    for topology in cluster.hungry_topologies():
        if scope is None or topology.id in scope:
            _place_missing(topology, cluster)


def _place_missing(topology: TopologyView, cluster: ClusterView) -> None:
    by_slot = grouped_by_slot(reassignment(topology, cluster))
    if by_slot:
        if cluster.reasons is not None:
            _explain(by_slot, topology.id, cluster)
        for slot, executors in by_slot.items():
            cluster.assign(slot, topology.id, executors)
    elif not cluster.free.count:
        cluster.status.setdefault(topology.id, f"No available slots for topology: {topology.name}")


def _explain(
    by_slot: Mapping[WorkerSlot, list[ExecutorId]], topology_id: str, cluster: ClusterView
) -> None:
    if cluster.reasons is not None:
        for turn, (slot, executors) in enumerate(by_slot.items(), start=1):
            free = len(cluster.free.ports(slot.node))
            words = f"free slot {turn} of the {len(by_slot)} that its missing executors are dealt to in turn; "
            words += f"slots go one per node, nodes with most free slots first ({slot.node}: {free}), lowest port first"
            cluster.reasons.placed(topology_id, executors, slot, words)


def reassignment(
    topology: TopologyView, cluster: ClusterView
) -> list[tuple[ExecutorId, WorkerSlot]]:
    """Return pairs (missing executor, slot): executors by first task, slots round robin
    (S4.22-S4.28).
    """
    placement = cluster.placement(topology.id)
    total_slots = min(topology.num_workers, cluster.free.count + placement.num_workers)
    slots = cluster.free.interleaved(total_slots - placement.num_workers)
    if not slots:
        return []
    return [
        (executor, slots[turn % len(slots)]) for turn, executor in enumerate(placement.missing())
    ]


# -- workers for idle supervisors (Storm 3) --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IdleRules:
    """Rules by which running workers move to supervisors without any worker: none do unless it is
    switched on.
    """

    is_enabled: bool = False
    most_per_topology: int = 0  # workers of a topology in one round; 0 is no limit
    least_uptime_ms: int = 0  # of an idle supervisor: one that has just returned may go again

    @classmethod
    def of(cls, conf: Conf) -> IdleRules:
        """Read the keys nimbus.even.rebalance.*."""
        read = EvenSettings.of_partial(conf)
        return cls(
            read.is_enabled,
            read.most_per_topology,
            max(0, read.stable_rounds) * max(1_000, read.monitor_ms),
        )


def move_to_idle(cluster: ClusterView, rules: IdleRules, scope: Topologies | None = None) -> None:
    """Move workers to supervisors that have none, a worker of each topology in turn, topologies by
    id.

    A topology gives its share of the idle supervisors at most, and only from supervisors where it
    keeps a worker.
    """
    if not rules.is_enabled:
        return
    usable = [
        home
        for node, home in sorted(cluster.supervisors.items())
        if home.ports and not cluster.is_blacklisted(node)
    ]
    used = {machine_of_node(slot.node) for slot in cluster.used_slots()}
    idle = [
        home for home in usable if machine_of_node(home.id) not in used and _is_stable(home, rules)
    ]
    machines = {machine_of_node(home.id) for home in usable}
    idle_machines = {machine_of_node(home.id) for home in idle}
    targets = deque(WorkerSlot(home.id, port) for home in idle for port in home.ports)
    moves_left = {
        topology_id: _share(topology, idle_machines, len(machines), cluster, rules)
        for topology_id, topology in sorted(
            (cluster.topologies if scope is None else scope).items()
        )
    }
    while targets and any(moves_left.values()):
        for topology_id in [
            topology_id for topology_id, number in moves_left.items() if number > 0
        ]:
            if targets:
                moves_left[topology_id] = (
                    moves_left[topology_id] - 1 if _move_one(topology_id, targets, cluster) else 0
                )


def _is_stable(supervisor: SupervisorView, rules: IdleRules) -> bool:
    """Return whether it has been up for long enough; an unknown uptime is enough, as in Storm."""
    return supervisor.uptime_ms is None or supervisor.uptime_ms >= rules.least_uptime_ms


def _share(
    topology: TopologyView, idle: set[str], num_usable: int, cluster: ClusterView, rules: IdleRules
) -> int:
    if idle <= {
        machine_of_node(slot.node) for slot in cluster.placement(topology.id).executors_by_slot
    }:
        return 0
    share = topology.num_workers // num_usable * len(idle)
    return min(share, rules.most_per_topology) if rules.most_per_topology > 0 else share


def _move_one(topology_id: str, targets: deque[WorkerSlot], cluster: ClusterView) -> bool:
    """Move the worker on the highest port of the node with most of the topology's workers; False
    when no node has two.
    """
    slots_by_machine: dict[str, list[WorkerSlot]] = {}
    for slot in cluster.placement(topology_id).executors_by_slot:
        slots_by_machine.setdefault(machine_of_node(slot.node), []).append(slot)
    crowded = sorted(
        (-len(slots), machine) for machine, slots in slots_by_machine.items() if len(slots) > 1
    )
    if not crowded:
        return False
    machine = crowded[0][1]
    giver = max(slots_by_machine[machine])
    target = targets.popleft()
    executors = list(cluster.placement(topology_id).executors_by_slot[giver])
    cluster.free_slot(
        giver,
        f"{target.node} had no worker, and {machine} had {len(slots_by_machine[machine])} of this topology's",
    )
    cluster.assign(
        target, topology_id, executors, "the next port of the supervisors without a worker"
    )
    return True


class EvenScheduler:
    """Storm's EvenScheduler: fills free slots and frees none, but for supervisors without a worker
    if that is switched on.
    """

    def __init__(self) -> None:
        self._idle = IdleRules()

    def prepare(self, conf: Conf) -> None:
        """Read the keys nimbus.even.rebalance.*."""
        self._idle = IdleRules.of(conf)

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Fill every topology of the cluster that needs scheduling."""
        move_to_idle(cluster, self._idle)
        schedule_evenly(cluster)
