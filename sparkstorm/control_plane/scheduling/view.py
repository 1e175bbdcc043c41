"""The cluster as a scheduler sees it: supervisors, topologies and placements (S4.3, S4.4); the
Scheduler protocol.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias

from sparkstorm.common.errors import FailedAssignTopologyError, show
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot, grouped_by_slot
from sparkstorm.control_plane.scheduling.free_slots import FreeSlots
from sparkstorm.control_plane.scheduling.placement import Placement
from sparkstorm.control_plane.scheduling.previous import PreviousPlacement
from sparkstorm.control_plane.scheduling.reasons import Reasons
from sparkstorm.control_plane.scheduling.records import (
    Conf,
    SupervisorView,
    Topologies,
    TopologyView,
)

Assignments: TypeAlias = Mapping[str, Mapping[ExecutorId, WorkerSlot]]


class ClusterView:
    """Storm's Cluster: supervisors and topologies are read only, placements change through the
    methods below.

    `assignments` are the living executors before the round; a slot of two topologies belongs to the
    first by id. Hosts in `excluded_hosts` stay on the blacklist, also when a scheduler replaces it.
    """

    def __init__(
        self,
        supervisors: Iterable[SupervisorView],
        topologies: Iterable[TopologyView],
        assignments: Mapping[str, Placement | Mapping[ExecutorId, WorkerSlot]] | None = None,
        conf: Conf | None = None,
        blacklisted_hosts: Iterable[str] = (),
        greylisted_hosts: Iterable[str] = (),
        excluded_hosts: Iterable[str] = (),
    ) -> None:
        self.supervisors = {
            supervisor.id: supervisor
            for supervisor in sorted(supervisors, key=lambda supervisor: supervisor.id)
        }
        self.topologies = {
            topology.id: topology
            for topology in sorted(topologies, key=lambda topology: topology.id)
        }
        self.conf: Conf = conf or {}
        grey = set(greylisted_hosts)
        # Released from the blacklist because slots are short: used after every other node.
        self.greylisted_nodes = frozenset(
            node for node, supervisor in self.supervisors.items() if supervisor.host in grey
        )
        self.status: dict[str, str] = {}
        # Topologies that the scheduler refused, with the reason: their submission or rebalance
        # fails with it.
        self.refused: dict[str, str] = {}
        self.evicted: list[str] = []
        self.previous: Mapping[str, PreviousPlacement] = {}
        self.reasons: Reasons | None = None  # records why executors are placed, if set
        self.free = FreeSlots()
        self._excluded = frozenset(excluded_hosts)
        self._blacklisted = {*blacklisted_hosts, *self._excluded}
        self._owner_by_slot: dict[WorkerSlot, str] = {}
        self._placements: dict[str, Placement] = {}
        self._hungry: set[str] = set()
        self._load(assignments or {})

    def _load(self, assignments: Mapping[str, Placement | Mapping[ExecutorId, WorkerSlot]]) -> None:
        for topology_id, topology in self.topologies.items():
            placement = self._placed(topology, assignments.get(topology_id, {}))
            self._owner_by_slot.update(dict.fromkeys(placement.executors_by_slot, topology_id))
            self._placements[topology_id] = placement
            self._note_hunger(topology_id)
        used_by_node: dict[str, set[int]] = {}
        for slot in self._owner_by_slot:
            used_by_node.setdefault(slot.node, set()).add(slot.port)
        for node, supervisor in self.supervisors.items():
            if supervisor.host not in self._blacklisted:
                self.free.set_ports(node, set(supervisor.ports) - used_by_node.get(node, set()))

    def _placed(
        self, topology: TopologyView, given: Placement | Mapping[ExecutorId, WorkerSlot]
    ) -> Placement:
        if not isinstance(given, Placement):
            return Placement(topology, given, self._owner_by_slot)
        if self._owner_by_slot.keys().isdisjoint(given.executors_by_slot):
            return given
        return Placement(topology, given.slot_by_executor, self._owner_by_slot)

    # -- hosts -------------------------------------------------------------------------------------

    @property
    def blacklisted_hosts(self) -> frozenset[str]:
        """Hosts that get no new workers."""
        return frozenset(self._blacklisted)

    @property
    def excluded_hosts(self) -> frozenset[str]:
        """Hosts that stay on the blacklist."""
        return self._excluded

    def set_blacklisted_hosts(self, hosts: Iterable[str]) -> None:
        """Replace the blacklist, to which excluded hosts always belong, and update the free
        slots.
        """
        wanted = {*hosts, *self._excluded}
        changed = wanted ^ self._blacklisted
        self._blacklisted = wanted
        for supervisor in self.supervisors.values():
            if supervisor.host in changed:
                self._refresh(supervisor)

    def stays(self, slot: WorkerSlot) -> bool:
        """Return whether a worker in that slot stays although its host is excluded: it needs no
        other slot.
        """
        supervisor = self.supervisors.get(slot.node)
        return (
            supervisor is not None
            and supervisor.host in self._excluded
            and slot.port in supervisor.ports
        )

    def host_of(self, node: str) -> str | None:
        """Return the host of a supervisor; None when it is dead."""
        supervisor = self.supervisors.get(node)
        return supervisor.host if supervisor else None

    def is_blacklisted(self, node: str) -> bool:
        """Return whether the supervisor's host is on the blacklist."""
        return self.host_of(node) in self._blacklisted

    def _refresh(self, supervisor: SupervisorView) -> None:
        slots = self.assignable_slots(supervisor.id)
        self.free.set_ports(
            supervisor.id, [slot.port for slot in slots if slot not in self._owner_by_slot]
        )

    # -- slots -------------------------------------------------------------------------------------

    def assignable_slots(self, node: str) -> list[WorkerSlot]:
        """Return all slots of a living supervisor that is not blacklisted, used or not, by port."""
        supervisor = self.supervisors.get(node)
        if supervisor is None or supervisor.host in self._blacklisted:
            return []
        return [WorkerSlot(node, port) for port in sorted(supervisor.ports)]

    def offered_slots(self) -> set[WorkerSlot]:
        """Return the slots of all supervisors, used or not."""
        return {
            WorkerSlot(node, port)
            for node, supervisor in self.supervisors.items()
            for port in supervisor.ports
        }

    def available_slots(self) -> list[WorkerSlot]:
        """Return the free slots of hosts that are not blacklisted, by node and port (S4.9)."""
        return [
            WorkerSlot(node, port) for node in self.supervisors for port in self.free.ports(node)
        ]

    def can_reassign(self, slot: WorkerSlot) -> bool:
        """Return whether a slot is on a living, not blacklisted supervisor and not a dead port
        (S4.12).
        """
        supervisor = self.supervisors.get(slot.node)
        return (
            supervisor is not None
            and supervisor.host not in self._blacklisted
            and slot.port in supervisor.ports
        )

    def used_slots(self) -> Mapping[WorkerSlot, str]:
        """Return every used slot with its topology."""
        return self._owner_by_slot

    # -- placements --------------------------------------------------------------------------------

    def placement(self, topology_id: str) -> Placement:
        """Return the placement of one topology; KeyError when the topology is unknown."""
        return self._placements[topology_id]

    def needs_scheduling(self, topology: TopologyView) -> bool:
        """More workers wanted than assigned, or an executor without a slot (S4.6)."""
        placement = self._placements[topology.id]
        return topology.num_workers > placement.num_workers or placement.num_missing > 0

    def topologies_to_schedule(self) -> list[TopologyView]:
        """Return the topologies that need scheduling, by id."""
        return [
            topology for topology in self.topologies.values() if self.needs_scheduling(topology)
        ]

    def hungry_topologies(self) -> list[TopologyView]:
        """Return the topologies with executors that have no slot, by id."""
        return [self.topologies[topology_id] for topology_id in sorted(self._hungry)]

    def assign(
        self, slot: WorkerSlot, topology_id: str, executors: Iterable[ExecutorId], reason: str = ""
    ) -> None:
        """Put executors on a free slot; FailedAssignTopologyError when slot or executor is taken
        (S4.31).

        A `reason`, one sentence, is shown for their place by `Scene.why` and `sparkstorm schedule
        --why`.
        """
        if not isinstance(slot, WorkerSlot):
            raise FailedAssignTopologyError(f"a slot is a WorkerSlot, not {show(slot)}")
        if slot in self._owner_by_slot:
            raise FailedAssignTopologyError(
                f"slot {slot} is already occupied by {self._owner_by_slot[slot]}"
            )
        placement = self._placements.get(topology_id)
        if placement is None:
            raise FailedAssignTopologyError(
                f"cannot place executors of {topology_id!r}: no such topology is known"
            )
        placed = list(executors)
        placement.assign(slot, placed)
        if reason and self.reasons is not None:
            self.reasons.placed(topology_id, placed, slot, reason)
        self._owner_by_slot[slot] = topology_id
        self.free.take(slot)
        self._note_hunger(topology_id)

    def free_slot(self, slot: WorkerSlot, reason: str = "") -> None:
        """Remove all executors from a slot; no change if it was free (S4.19). A `reason` comes
        before that of their next place.
        """
        topology_id = self._owner_by_slot.pop(slot, None)
        if topology_id is None:
            return
        if reason and self.reasons is not None:
            self.reasons.freed(topology_id, [slot], reason)
        self._placements[topology_id].unassign(slot)
        if self.can_reassign(slot):
            self.free.give(slot)
        self._note_hunger(topology_id)

    def free_slots(self, slots: Iterable[WorkerSlot], reason: str = "") -> None:
        """Free several slots."""
        for slot in list(slots):
            self.free_slot(slot, reason)

    def unassign(self, topology_id: str, reason: str = "") -> None:
        """Free every slot of a topology."""
        self.free_slots(self._placements[topology_id].executors_by_slot, reason)

    def assignments(self) -> dict[str, dict[ExecutorId, WorkerSlot]]:
        """Return the present placements by topology (S4.4); executors in no particular order."""
        return {
            topology_id: dict(placement.slot_by_executor)
            for topology_id, placement in self._placements.items()
        }

    def set_assignment(
        self, topology_id: str, slot_by_executor: Mapping[ExecutorId, WorkerSlot]
    ) -> None:
        """Replace the placement of one topology as a whole (S4.4's setAssignmentById)."""
        self.unassign(topology_id)
        for slot, executors in grouped_by_slot(slot_by_executor.items()).items():
            self.assign(slot, topology_id, executors)

    def _note_hunger(self, topology_id: str) -> None:
        if self._placements[topology_id].num_missing:
            self._hungry.add(topology_id)
        else:
            self._hungry.discard(topology_id)


class Scheduler(Protocol):
    """Storm's IScheduler. It changes nothing but the cluster, through its methods; equal input
    gives equal output (S4.1, S4.5).
    """

    def prepare(self, conf: Conf) -> None:
        """Read the cluster's configuration, once, before the first round; InvalidConfigError if a
        setting is unfit.
        """

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Place the missing executors of `topologies` in `cluster`; topologies that need nothing
        are in both, too.
        """
