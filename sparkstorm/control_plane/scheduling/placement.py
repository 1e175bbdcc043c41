"""Placement of one topology: executor to slot and back (Storm's SchedulerAssignmentImpl, S4.30)."""

import copy
from collections.abc import Container, Mapping, Sequence

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.records import TopologyView


class Placement:
    """Executors of one topology on slots; executors that the topology no longer has stay until
    their slot is freed.
    """

    def __init__(
        self,
        topology: TopologyView,
        slot_by_executor: Mapping[ExecutorId, WorkerSlot],
        taken: Container[WorkerSlot] = (),
    ) -> None:
        self._known = topology.component_by_executor
        self.is_untouched = False  # true for a fork without changes
        self.executors_by_slot: dict[WorkerSlot, list[ExecutorId]] = {}
        self.slot_by_executor: dict[ExecutorId, WorkerSlot] = {}
        for executor, slot in slot_by_executor.items():
            if slot not in taken:
                self.slot_by_executor[executor] = slot
                self.executors_by_slot.setdefault(slot, []).append(executor)
        placed = self._known.keys() & self.slot_by_executor.keys()
        self.num_missing = len(self._known) - len(placed)
        self.num_unknown = len(self.slot_by_executor) - len(placed)

    def fork(self) -> "Placement":
        """Return a copy on write; the original must not change afterwards."""
        twin = copy.copy(self)
        twin.is_untouched = True
        return twin

    def _own(self) -> None:
        if self.is_untouched:
            self.executors_by_slot, self.slot_by_executor = (
                dict(self.executors_by_slot),
                dict(self.slot_by_executor),
            )
            self.is_untouched = False

    @property
    def num_workers(self) -> int:
        """Slots in use."""
        return len(self.executors_by_slot)

    @property
    def is_exact(self) -> bool:
        """Return whether all of the topology's executors are placed, and no others."""
        return self.num_missing == 0 and self.num_unknown == 0

    def missing(self) -> list[ExecutorId]:
        """Return the topology's executors without a slot, by first task."""
        if not self.num_missing:
            return []
        return sorted(self._known.keys() - self.slot_by_executor.keys())

    def assign(self, slot: WorkerSlot, executors: Sequence[ExecutorId]) -> None:
        """Place executors; FailedAssignTopologyError when one has a slot already."""
        for executor in executors:
            if executor in self.slot_by_executor:
                raise FailedAssignTopologyError(
                    f"executor {executor} is on slot {self.slot_by_executor[executor]} already; "
                    f"it must be unassigned before it can go to {slot}"
                )
        self._own()
        self.slot_by_executor.update(dict.fromkeys(executors, slot))
        self.executors_by_slot[slot] = list(executors)
        self._count(executors, 1)

    def unassign(self, slot: WorkerSlot) -> None:
        """Remove all executors from a slot."""
        self._own()
        executors = self.executors_by_slot.pop(slot, [])
        for executor in executors:
            del self.slot_by_executor[executor]
        self._count(executors, -1)

    def _count(self, executors: Sequence[ExecutorId], sign: int) -> None:
        num_known = sum(executor in self._known for executor in executors)
        self.num_missing -= sign * num_known
        self.num_unknown += sign * (len(executors) - num_known)
