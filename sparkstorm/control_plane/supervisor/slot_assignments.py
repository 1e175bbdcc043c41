"""Assignments that one slot follows, and the greatest version of each topology's that it has seen,
kept over restarts of its process.

A signature proves the writer and the path of a record, not its time: without this, an old signed
record that is put back would be followed once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sparkstorm.common.errors import StoreInconsistentError, TamperedBlobError
from sparkstorm.common.model.assignment import Assignment, WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.control_plane.cluster.base import Hint
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.base import LocalRecords
from sparkstorm.control_plane.supervisor.slot_machine import LocalAssignment
from sparkstorm.control_plane.supervisor.supervisor import SlotParts, part_of

_LOG = logging.getLogger(__name__)
REFUSED = "REFUSED"
"""Report of a slot that was given an older assignment than it has seen before."""
_MOST_TOPOLOGIES = 500  # those seen last; ids are never used again


@dataclass(frozen=True, slots=True)
class SeenVersions:
    """Versions by topology id."""

    by_topology: Mapping[str, int] = field(default_factory=dict)


class VersionGuard:
    """Check that refuses versions that go back; one thread of one process uses the file."""

    def __init__(self, file: LocalRecords) -> None:
        self._file = file
        self._seen = self._read()

    def seen(self, topology_id: str) -> int:
        """The greatest version seen so far; 0 when there is none."""
        return self._seen.get(topology_id, 0)

    def admit(self, topology_id: str, version: int) -> bool:
        """Return whether this version may be followed; a new greatest one is written down first."""
        seen = self.seen(topology_id)
        if version > seen:
            others = {name: number for name, number in self._seen.items() if name != topology_id}
            self._seen = dict([*others.items(), (topology_id, version)][-_MOST_TOPOLOGIES:])
            try:
                self._file.put("seen", SeenVersions(self._seen))
            except OSError as fault:
                _LOG.warning(
                    "%s cannot be written: %s; a restarted slot would not know version %d of %s",
                    self._file.path,
                    fault,
                    version,
                    topology_id,
                )
        return version >= seen

    def _read(self) -> dict[str, int]:
        try:
            seen = self._file.get("seen", SeenVersions)
        except StoreInconsistentError as fault:
            _LOG.warning("%s; it is written afresh", fault)
            seen = None
        return dict(seen.by_topology) if seen else {}


class SlotAssignments:
    """Assignments of all topologies as one slot follows them, and its parts in them."""

    def __init__(self, slot: WorkerSlot, seen: LocalRecords) -> None:
        self._slot = slot
        self._parts = SlotParts(slot)
        self._guard = VersionGuard(seen)
        self._refused: dict[str, int] = {}  # versions whose refusal was reported
        self.by_topology: Mapping[str, Assignment] = {}

    def parts(self) -> list[LocalAssignment]:
        """Return the slot's parts of those that it has one in."""
        return self._parts.among(self.by_topology)

    def read(
        self, state: StormState, hint: Hint, refuse: Callable[[WorkerBeat], None], now_ms: int
    ) -> None:
        """Read all again; one that is damaged, has a wrong signature or an older version stays as
        it was.
        """
        read = {}
        for topology_id in state.assignment_ids(hint):
            if assignment := self._read(state, topology_id, hint, refuse, now_ms):
                read[topology_id] = assignment
        self.by_topology = read

    def _read(
        self,
        state: StormState,
        topology_id: str,
        hint: Hint,
        refuse: Callable[[WorkerBeat], None],
        now_ms: int,
    ) -> Assignment | None:
        last = self.by_topology.get(topology_id)
        try:
            assignment = state.read_assignment(topology_id, hint)
        except (StoreInconsistentError, TamperedBlobError) as fault:
            _LOG.error("slot %s: %s", self._slot, fault)
            return last
        if assignment is None or self._guard.admit(topology_id, assignment.version):
            return assignment
        self._log_refusal(assignment)
        # A slot that has no newer one at hand reports it in a beat, and Nimbus writes another.
        if last is None and part_of(assignment, self._slot):
            node, port = self._slot
            seen = self._guard.seen(topology_id)
            refuse(WorkerBeat(topology_id, node, port, now_ms, 0, 0, 0, REFUSED, seen))
        return last

    def _log_refusal(self, assignment: Assignment) -> None:
        if self._refused.get(assignment.topology_id) != assignment.version:
            self._refused = {**self._refused, assignment.topology_id: assignment.version}
            text = "slot %s: the assignment of %s has version %d, older than version %d that was here before; it is not followed"
            seen = self._guard.seen(assignment.topology_id)
            _LOG.error(text, self._slot, assignment.topology_id, assignment.version, seen)
