"""Reading of a cluster at one moment, from which the records are made: what the stores hold,
unchanged. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparkstorm.cluster.nimbus_state import DriverInfo, NimbusInfo
from sparkstorm.insight.health import Look
from sparkstorm.model.assignment import (
    Assignment,
    SupervisorInfo,
    TopologyBase,
    WorkerBeat,
    WorkerSlot,
)
from sparkstorm.model.failure import Failure
from sparkstorm.model.outline import TopologyOutline
from sparkstorm.model.requests import HostMark, Outcome, Request
from sparkstorm.model.task_beats import TaskBeat


@dataclass(frozen=True, slots=True)
class TopologyReading:
    """One topology; `look` is None where Redis did not answer, and `problem` has the reason."""

    base: TopologyBase
    outline: TopologyOutline
    assignment: Assignment | None
    beats: tuple[WorkerBeat, ...] = ()
    beat_by_task: Mapping[int, TaskBeat] = field(default_factory=dict)
    dead: frozenset[WorkerSlot] = frozenset()
    look: Look | None = None
    dead_letters: int | None = None
    errors: tuple[Failure, ...] = ()  # the last ten of each component, the newest first
    problems: tuple[str, ...] = ()
    workers_wanted: int | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
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


class Source(Protocol):
    """Source of a sampler: a client's connection, or a simulated cluster."""

    def read(self) -> Reading:
        """Read everything once; StoreUnavailableError when ZooKeeper does not answer."""
