"""Duty that writes records again: assignments that were lost, damaged or put back, bases that were
put back.

Law: executors do not move by it where a newer copy is known; where none is, all fences rise and
every worker starts anew. Left out: times in records, which prove nothing where clocks jump
(decision 38); and stopping the topology, whose slots and data are as they were. Storm has no such
duty: any process with write access to its ZooKeeper controls its cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sparkstorm.common.errors import StoreInconsistentError, TamperedBlobError
from sparkstorm.common.model.assignment import Assignment, TopologyBase
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.scheduling.reconcile import placed_anew, with_new_version

_LOG = logging.getLogger(__name__)
# Heartbeats are not signed: a version far away from ours is no real one.
_LONGEST_STEP = 4096


class AssignmentRestorer:
    """Duty that publishes assignments which slots cannot or do not follow under a version that they
    do follow.

    It also restores bases: a signature proves the writer of a record, not its time. The newest base
    of each topology is in memory only: a Nimbus that begins to lead takes what it finds.
    """

    def __init__(self, state: StormState, publish: Callable[[Assignment, str], None]) -> None:
        self._state = state
        self._publish = publish
        self._newest: dict[str, TopologyBase] = {}

    def restore(self, reading: Reading, _now_ms: int) -> bool:
        """Write every such assignment again; whether there was one."""
        written = self._restore_bases(reading)
        # The reading is out of date when bases were written: the next turn follows at once with a
        # new one.
        for topology_id, base in reading.bases.items() if not written else ():
            assignment = reading.snapshot.assignments.get(topology_id)
            # Its assignment was removed on purpose, so that slots stop its workers.
            if base.status == TopologyStatus.KILLED:
                continue
            if assignment is None:
                written |= self._restore_lost(base)
            elif assignment.version < (seen := _newest_seen(reading, assignment)):
                self._overtake(base, assignment, seen)
                written = True
        return written

    def _restore_bases(self, reading: Reading) -> bool:
        """Write again the bases that are older than when they were read last; whether there was
        one.
        """
        newest_by_id = self._newest
        written = False
        self._newest = {}
        for topology_id, base in reading.bases.items():
            # In memory only: a copy in the store would be put back together with the record that it
            # is to guard.
            newest = newest_by_id.get(topology_id, base)
            if base.version < newest.version:
                _LOG.error(
                    "the record of %s was put back to an older state; it is written again",
                    topology_id,
                )
                self._state.restore_base(newest)
                written = True
            self._newest[topology_id] = max(base, newest, key=lambda candidate: candidate.version)
        return written

    def _restore_lost(self, base: TopologyBase) -> bool:
        last = self._backup(base)
        if last is None:
            return False
        _LOG.error(
            "the assignment of %s was lost or damaged; it is written again", base.topology_id
        )
        # A damaged node still has its version number; written over, the number would be compared
        # with a record that cannot be read.
        self._state.remove_assignment(base.topology_id)
        self._publish(with_new_version(last, last.kind), base.name)
        return True

    def _overtake(self, base: TopologyBase, assignment: Assignment, seen: int) -> None:
        """Publish the assignment above the version that slots have seen, since they refuse an older
        one: from the backup, else with all fences raised.
        """
        _LOG.error(
            "the assignment of %s went back to version %d, after slots have seen version %d; it is written again",
            base.topology_id,
            assignment.version,
            seen,
        )
        last = self._backup(base)
        # The backup when it is newer, since its executors have not moved; else ZooKeeper went back
        # as a whole and the present owners are unknown: raised fences let each worker start once
        # more.
        newer = (
            with_new_version(last, last.kind)
            if last and last.version > assignment.version
            else placed_anew(assignment, seen + 1)
        )
        self._publish(newer, base.name)

    def _backup(self, base: TopologyBase) -> Assignment | None:
        try:
            last = self._state.read_backup_assignment(base.name)
        except (StoreInconsistentError, TamperedBlobError) as error:
            _LOG.error("no assignment to go on with: %s; delete it and kill %s", error, base.name)
            return None
        return last if last is not None and last.topology_id == base.topology_id else None


def _newest_seen(reading: Reading, assignment: Assignment) -> int:
    """The greatest version in the heartbeats of its slots."""
    versions = (
        beat.assignment_version
        for beat in reading.beats
        if beat.topology_id == assignment.topology_id
    )
    return max(
        (version for version in versions if version <= assignment.version + _LONGEST_STEP),
        default=0,
    )
