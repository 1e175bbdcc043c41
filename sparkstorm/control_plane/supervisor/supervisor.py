"""Supervisor's duties for one node: registration, assignments in LocalState, judgement of its
workers.

The duties fall to whichever slot process holds the flock in the node's folder; the kernel frees it
when that process dies, and another slot goes on at its next step (S2.1-S2.4, S2.10-S2.32). The
holder never starts or kills a child: each slot's own machine does that, also while the lock is
free.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.assignment import Assignment, SupervisorInfo, WorkerSlot
from sparkstorm.common.model.status import JsonValue
from sparkstorm.common.model.worker_spec import PlacedExecutor
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.base import NodeStorage
from sparkstorm.control_plane.supervisor.code_trials import CodeTrials
from sparkstorm.control_plane.supervisor.slot_machine import LocalAssignment
from sparkstorm.control_plane.supervisor.store_probe import StoreProbe

_LOG = logging.getLogger(__name__)


class WorkerClass(StrEnum):
    """Supervisor's judgement of the worker on a port (S2.22, Storm 0.9's sync-processes)."""

    NOT_STARTED = "NOT_STARTED"
    DISALLOWED = "DISALLOWED"
    TIMED_OUT = "TIMED_OUT"
    VALID = "VALID"


@dataclass(frozen=True, slots=True)
class LocalBeat:
    """A worker's heartbeat on its own machine: topology, port, tasks, time (S2.7)."""

    topology_id: str
    port: int
    tasks: tuple[int, ...]
    time_ms: int


@dataclass(frozen=True, slots=True)
class LocalAssignments:
    """Assignments of a node by port, as LocalState keeps them (S2.29)."""

    by_port: Mapping[int, LocalAssignment]


@dataclass(frozen=True, slots=True)
class SupervisorDuties:
    """Resources that a node offers, and the periods of its supervisor (Storm's supervisor.*
    keys).
    """

    host: str
    own_port: int
    heartbeat_ms: int = 5_000
    monitor_ms: int = 3_000
    worker_timeout_ms: int = 30_000
    keep_code_ms: int = 60_000
    resources: Mapping[str, float] = field(default_factory=dict)
    scheduler_meta: Mapping[str, JsonValue] = field(default_factory=dict)
    driver: str = ""  # address of Spark's driver
    # cores of the host, and the share of their time that others got
    host_load: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)


def part_of(assignment: Assignment, slot: WorkerSlot) -> LocalAssignment | None:
    """Return the part of an assignment for one slot; None when there is none."""
    executors = assignment.executors_at(slot)
    placed = tuple(
        PlacedExecutor(executor, assignment.placed_version_by_executor.get(executor, 0))
        for executor in executors
    )
    if not placed:
        return None
    code = assignment.code_at(slot)
    return LocalAssignment(
        assignment.topology_id, code.code_key, code.conf_key, placed, assignment.version
    )


class SlotParts:
    """Parts of one slot; executors are searched once per change: a record that is read again
    unchanged is the same object.
    """

    def __init__(self, slot: WorkerSlot) -> None:
        self._slot = slot
        self._known: dict[str, tuple[Assignment, LocalAssignment | None]] = {}

    def among(self, assignments: Mapping[str, Assignment]) -> list[LocalAssignment]:
        """Return the slot's parts of the assignments that it has one in."""
        known_parts = self._known
        self._known = {}
        for topology_id, assignment in assignments.items():
            before = known_parts.get(topology_id)
            self._known[topology_id] = (
                before
                if before and before[0] is assignment
                else (assignment, part_of(assignment, self._slot))
            )
        return [part for _, part in self._known.values() if part]


def local_assignments(
    node: str, assignments: Mapping[str, Assignment], before: Mapping[int, str]
) -> tuple[dict[int, LocalAssignment], list[str]]:
    """Return this node's parts by port, and a sentence per conflict.

    A port may serve only one topology (S2.28); where two claim it, the one that was there `before`
    keeps it, else the first by id: every reading gives the same answer, and a running worker is not
    ended by a wrong assignment.
    """
    wanted: dict[int, LocalAssignment] = {}
    conflicts: list[str] = []
    for topology_id, assignment in sorted(assignments.items()):
        for port in sorted(
            {slot.port for slot in assignment.slot_by_executor.values() if slot.node == node}
        ):
            part = part_of(assignment, WorkerSlot(node, port))
            assert part is not None
            if port in wanted:
                conflicts.append(
                    f"{node}:{port} is assigned to both {wanted[port].topology_id} and {topology_id}"
                )
            if port not in wanted or before.get(port) == topology_id:
                wanted[port] = part
    return wanted, conflicts


def classify(
    beat: LocalBeat | None, wanted: LocalAssignment | None, now_ms: int, timeout_ms: int
) -> WorkerClass:
    """Judge one port by its local heartbeat; the order of the tests is Storm's: disallowed before
    timed-out.
    """
    if beat is None:
        return WorkerClass.NOT_STARTED
    if wanted is None or beat.topology_id != wanted.topology_id:
        return WorkerClass.DISALLOWED
    if now_ms - beat.time_ms > timeout_ms:
        return WorkerClass.TIMED_OUT
    return WorkerClass.VALID


class Supervisor:
    """The duties, stepped by every slot of the node; only the one with the lock does anything.

    Without `trials` no code is tried, without `probe` Redis counts as reached, without
    `driver_probe` Spark's driver; `other_probes` are those of the stores next to the home store, by
    name.
    """

    def __init__(
        self,
        settings: SupervisorDuties,
        node_dir: NodeStorage,
        state: StormState,
        trials: CodeTrials | None = None,
        probe: StoreProbe | None = None,
        other_probes: Mapping[str, StoreProbe] | None = None,
        driver_probe: StoreProbe | None = None,
    ) -> None:
        self._driver_probe = driver_probe
        self._other_probes = other_probes or {}
        self._settings = settings
        self._dir = node_dir
        self._state = state
        self._trials = trials
        self._probe = probe
        self._lock = node_dir.duties_lock()
        self._since_ms = 0
        self._heartbeat_due_ms = self._monitor_due_ms = 0
        self._registered: tuple[object, ...] = ()
        self.classes: dict[int, WorkerClass] = {}

    @property
    def is_in_office(self) -> bool:
        """Return whether this process does the duties now."""
        return self._lock.is_held

    def step(self, now_ms: int, assignments: Mapping[str, Assignment]) -> None:
        """Take the node's lock if it is free, then do what is due; StoreUnavailableError leaves it
        due.
        """
        if not self._lock.is_held and not self._take_office(now_ms):
            return
        if now_ms >= self._monitor_due_ms:
            self._sync(now_ms, assignments)
            self._monitor_due_ms = now_ms + self._settings.monitor_ms
        self._register(now_ms)
        if self._trials is not None and self._trials.step(now_ms):
            self._register(now_ms)

    def resign(self) -> None:
        """Release the node's lock for another slot."""
        probes = (self._probe, self._driver_probe, *self._other_probes.values())
        for part in (self._trials, *probes):
            if part is not None:
                part.close()
        self._lock.release()

    def _take_office(self, now_ms: int) -> bool:
        if not self._lock.try_take():
            return False
        self._dir.clean_tmp()
        self._since_ms = now_ms
        _LOG.info(
            "supervisor %s: the slot on %d has the duties", self._dir.node, self._settings.own_port
        )
        return True

    def _register(self, now_ms: int) -> None:
        """Write the ephemeral node when it is due, and at once when fields that Nimbus acts on have
        changed.
        """
        settings = self._settings
        ports = self._dir.live_ports(settings.own_port)
        used = [
            port
            for port, judged in self.classes.items()
            if judged is WorkerClass.VALID and port in ports
        ]
        trials = None if self._trials is None else self._trials.verdicts
        away_ms, problem = (0, "") if self._probe is None else self._probe.away()
        others = {name: probe.away()[1] for name, probe in self._other_probes.items()}
        driver_problem = "" if self._driver_probe is None else self._driver_probe.away()[1]
        ways = (bool(away_ms), *map(bool, others.values()), bool(driver_problem))
        present = (self._state.store.session_epoch, tuple(ports), tuple(used), trials, ways)
        if present == self._registered and now_ms < self._heartbeat_due_ms:
            return
        cores, steal = settings.host_load()
        info = SupervisorInfo(
            self._dir.node,
            settings.host,
            now_ms,
            now_ms - self._since_ms,
            tuple(ports),
            tuple(used),
            settings.resources,
            settings.scheduler_meta,
            trials,
            problem,
            away_ms,
            others,
            settings.driver,
            driver_problem,
            cores,
            round(steal, 3),
        )
        self._state.register_supervisor(info)
        self._registered, self._heartbeat_due_ms = present, now_ms + settings.heartbeat_ms

    def _sync(self, now_ms: int, assignments: Mapping[str, Assignment]) -> None:
        before = {port: part.topology_id for port, part in self._wanted_before().items()}
        wanted, conflicts = local_assignments(self._dir.node, assignments, before)
        for conflict in conflicts:
            _LOG.error("%s; the second is ignored", conflict)
        self.classes = {
            port: classify(
                self._beat(port), wanted.get(port), now_ms, self._settings.worker_timeout_ms
            )
            for port in self._dir.ports()
        }
        self._dir.local_state.put("local-assignments", LocalAssignments(wanted))
        in_use = {part.topology_id for part in wanted.values()}
        # what came a moment ago may be about to be used
        self._dir.forget_code(in_use, now_ms - self._settings.keep_code_ms)

    def _wanted_before(self) -> Mapping[int, LocalAssignment]:
        try:
            return read_local_assignments(self._dir)
        except StoreInconsistentError as fault:
            _LOG.warning("%s; it is written afresh", fault)
            return {}

    def _beat(self, port: int) -> LocalBeat | None:
        try:
            return self._dir.worker_state(port).get("heartbeat", LocalBeat)
        except StoreInconsistentError as fault:
            _LOG.warning("%s", fault)
            return None


def write_local_beat(node_dir: NodeStorage, beat: LocalBeat) -> None:
    """Leave a worker's heartbeat for the supervisor (S2.38, S3.56)."""
    node_dir.worker_state(beat.port).put("heartbeat", beat)


def read_local_assignments(node_dir: NodeStorage) -> Mapping[int, LocalAssignment]:
    """Return the supervisor's last assignments by port (S2.21: an empty map at first)."""
    assignments = node_dir.local_state.get("local-assignments", LocalAssignments)
    return assignments.by_port if assignments else {}
