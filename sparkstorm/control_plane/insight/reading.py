"""Reading of a cluster at one moment, from which the records are made: what the stores hold,
unchanged. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparkstorm.common.model.assignment import (
    RUNNING,
    Assignment,
    SupervisorInfo,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.heartbeats import TaskBeat, WorkerBeat
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import HostMark, Outcome, Request
from sparkstorm.control_plane.cluster.nimbus_state import DriverInfo, NimbusInfo
from sparkstorm.control_plane.insight.deaths import death_culprits
from sparkstorm.control_plane.insight.health import Health, Life, examine
from sparkstorm.control_plane.insight.loads import StoreSnapshot
from sparkstorm.data_plane.transport.progress import Progress

JUDGED_MS = 600_000
"""Time over which a topology is judged, unless a command has another."""


@dataclass(frozen=True, slots=True)
class TopologyReading:
    """One topology; `look` is None where Redis did not answer, and `problem` has the reason."""

    base: TopologyBase
    outline: TopologyOutline
    assignment: Assignment | None
    beats: tuple[WorkerBeat, ...] = ()
    beat_by_task: Mapping[int, TaskBeat] = field(default_factory=dict)
    dead: frozenset[WorkerSlot] = frozenset()
    look: StoreSnapshot | None = None
    dead_letters: int | None = None
    errors: tuple[Failure, ...] = ()  # the last ten of each component, the newest first
    problems: tuple[str, ...] = ()
    workers_wanted: int | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    window_ms: int = JUDGED_MS

    @property
    def given_workers(self) -> int:
        """Return the number of slots in its assignment."""
        return len(set(self.assignment.slot_by_executor.values())) if self.assignment else 0

    def health(self, look: StoreSnapshot, now_ms: int) -> Health:
        """Return the verdict over the last `window_ms`: the same for everybody who reads the same
        stores.
        """
        base = self.base
        before = look.before(max(base.launch_ms, now_ms - self.window_ms))
        return examine(
            base.name,
            before,
            look,
            self.workers_wanted,
            self.given_workers,
            self.problems,
            self._life(look),
            death_culprits(self.beats, self.outline.component_by_task, self.window_ms),
        )

    def _life(self, look: StoreSnapshot) -> Life:
        running = {str(beat.slot) for beat in self.beats if beat.state == RUNNING}
        slots = set(self.assignment.slot_by_executor.values()) if self.assignment else set()
        # A worker that has committed has run; its death is its own problem.
        starting = {str(slot) for slot in slots} - running - look.progress.keys()
        is_drained = is_settled(look) and self._is_exhausted(look.merged)
        return Life(self.base.status, self.base.paused, is_drained, len(starting))

    def _is_exhausted(self, merged: Progress) -> bool:
        """Return whether every task of its spouts has reported that it has nothing more to emit."""
        components = self.outline.components
        spouts = {
            task
            for task, name in self.outline.component_by_task.items()
            if components[name].kind == "spout"
        }
        counts = [merged.counts_by_task.get(task) for task in spouts]
        return bool(counts) and all(
            task_counts is not None and task_counts.is_exhausted for task_counts in counts
        )


def is_settled(look: StoreSnapshot) -> bool:
    """Return whether no tuple is under way: no tree is open, no task waits and no stream holds
    bytes.
    """
    counts = look.merged.counts_by_task.values()
    is_open = any(task_counts.pending or task_counts.is_waiting for task_counts in counts)
    return not is_open and not any(look.backlog_by_task.values())


@dataclass(frozen=True, slots=True)
class StoreReading:
    """A cluster."""

    time_ms: int
    topologies: Mapping[str, TopologyReading]
    supervisors: tuple[SupervisorInfo, ...] = ()
    drivers: tuple[DriverInfo, ...] = ()
    leader: NimbusInfo | None = None
    host_marks: Mapping[str, HostMark] = field(default_factory=dict)
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    requests: tuple[tuple[Request, Outcome | None], ...] = ()
    is_read_only: bool = False


class ReadingSource(Protocol):
    """Source of a sampler: a client's connection, or a simulated cluster."""

    def read(self) -> StoreReading:
        """Read everything once; StoreUnavailableError when ZooKeeper does not answer."""
