"""Topology master of the slot that holds its task: task heartbeats and the handler of gray upgrades
(JStorm's TopologyMaster).

The master's worker child has no session with the store, so its slot reads and writes for it, while
that worker beats. When the worker or the slot is lost, both duties wait until the master runs
again; topologies go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkstorm.common.errors import StateConflictError, StoreInconsistentError
from sparkstorm.common.model.assignment import Assignment, WorkerBeat
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.task_beats import TaskBeatGatherer
from sparkstorm.extensions.upgrade.master_duties import UpgradeHandler

_HANDLER_MS = 1_000  # JStorm's handler looks every 15 s


class TopologyMaster:
    """Duties of one topology's master, stepped by its slot."""

    def __init__(self, state: StormState, period_ms: int) -> None:
        self._state = state
        self._gatherer = TaskBeatGatherer(state, period_ms)
        self._handler = UpgradeHandler(state)
        self._topology_id = ""
        self._handler_due_ms = 0

    def step(
        self,
        assignment: Assignment,
        component_by_task: Mapping[int, str],
        is_upgrading: bool,
        now_ms: int,
    ) -> None:
        """Do what is due for the topology of that assignment."""
        topology_id = assignment.topology_id
        if topology_id != self._topology_id:
            self._topology_id, self._handler = topology_id, UpgradeHandler(self._state)
        handles = is_upgrading and now_ms >= self._handler_due_ms
        if not handles and not self._gatherer.is_due(topology_id, now_ms):
            return
        beats = self._beats(topology_id)
        self._gatherer.step(topology_id, beats, component_by_task, now_ms)
        if handles:
            try:
                did = self._handler.step(
                    self._state.upgrade_state(topology_id),
                    assignment,
                    component_by_task,
                    beats,
                    now_ms,
                )
            except StateConflictError:
                did = True  # a request has changed the record meanwhile
            self._handler_due_ms = now_ms + (0 if did else _HANDLER_MS)

    def _beats(self, topology_id: str) -> list[WorkerBeat]:
        found = []
        for slot in self._state.worker_beat_slots(topology_id):
            try:
                beat = self._state.read_worker_beat(topology_id, slot)
            except StoreInconsistentError:
                continue  # Nimbus names it among its problems
            if beat is not None and (beat.topology_id, beat.node, beat.port) == (
                topology_id,
                *slot,
            ):
                found.append(beat)
        return found
