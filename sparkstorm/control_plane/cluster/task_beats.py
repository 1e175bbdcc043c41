"""Writer of task heartbeats (JStorm's TopologyMaster): the slot that holds a topology master's task
writes those of its topology; those of topologies without a master, Nimbus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkstorm.common.model.heartbeats import WorkerBeat, gather
from sparkstorm.control_plane.cluster.storm_state import StormState


class TaskBeatGatherer:
    """Writer of taskbeats/<id>, once per period, when workers have statistics.

    Nothing is in memory that the next one needs: its loss only delays the next record.
    """

    def __init__(self, state: StormState, period_ms: int) -> None:
        self._state = state
        self._period_ms = period_ms
        self._due_ms: dict[str, int] = {}

    def is_due(self, topology_id: str, now_ms: int) -> bool:
        """Return whether that topology's record is to be written now."""
        return now_ms >= self._due_ms.get(topology_id, 0)

    def step(
        self,
        topology_id: str,
        beats: Sequence[WorkerBeat],
        component_by_task: Mapping[int, str],
        now_ms: int,
    ) -> None:
        """Write the record if it is due."""
        if not self.is_due(topology_id, now_ms) or not component_by_task:
            return
        self._due_ms[topology_id] = now_ms + self._period_ms
        gathered = gather(topology_id, beats, component_by_task, now_ms)
        if gathered.by_task:
            self._state.write_task_beats(gathered)

    def keep_only(self, topology_ids: set[str]) -> None:
        """Drop topologies that are gone."""
        self._due_ms = {id: due_ms for id, due_ms in self._due_ms.items() if id in topology_ids}
