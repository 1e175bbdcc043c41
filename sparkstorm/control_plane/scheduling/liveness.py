"""Liveness: executors by their workers' heartbeats and the launch grace, supervisors by their node
records. PURE.

Laws: silence is measured on the observer's own clock, from the moment it saw a heartbeat change (as
in JStorm's isTaskDead); time in which the observer could not read the store does not count; the
first heartbeat seen counts as a new one, so a restarted observer declares no executor dead.

A host is cut from Redis when every supervisor on it reports so. Time in which no host reaches Redis
does not count, so that an outage of Redis moves no worker; a host that reaches Redis again is used
again at once.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from sparkstorm.common.model.assignment import (
    RUNNING,
    Assignment,
    ExecutorId,
    SupervisorInfo,
    WorkerSlot,
)
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.scheduling.snapshot import Snapshot

Worker = tuple[str, WorkerSlot]  # topology id and slot


@dataclass(frozen=True, slots=True)
class BeatTimeouts:
    """Storm's nimbus.task.timeout.secs, nimbus.task.launch.secs and nimbus.supervisor.timeout.secs
    in milliseconds.
    """

    task_ms: int = 30_000
    launch_ms: int = 120_000
    supervisor_ms: int = 60_000
    # A worker whose supervisor is gone is dead after this shorter silence: nothing would restart
    # it.
    forsaken_ms: int = 2_500


@dataclass(frozen=True, slots=True)
class Sighting:
    """A worker's last heartbeat and the time at which the observer saw it change."""

    beat_ms: int  # the worker's own time stamp: compared for change, not with the observer's clock
    seen_ms: int
    # of the assignment that the worker runs: it counts for executors placed up to that version
    version: int


@dataclass(frozen=True, slots=True)
class LastSeen:
    """Memory of one observer between its rounds."""

    by_worker: Mapping[Worker, Sighting] = field(default_factory=dict)
    # when a supervisor last offered the slot
    home_seen_ms: Mapping[WorkerSlot, int] = field(default_factory=dict)
    first_ms: int = 0  # the observer's first round: silence is measured from then at the earliest
    round_ms: int | None = None
    # their supervisor and their driver are gone: their workers are dead without a wait
    gone_nodes: Set[str] = frozenset()


def observe(
    before: LastSeen,
    beats: Iterable[WorkerBeat],
    offered: Iterable[WorkerSlot],
    now_ms: int,
    blind_ms: int = 0,
    gone_nodes: Set[str] = frozenset(),
) -> LastSeen:
    """Return the sightings after a round of heartbeats and offered slots; `blind_ms` of the time do
    not count as silence.
    """
    by_worker = {}
    for beat in beats:
        worker = (beat.topology_id, beat.slot)
        sighting = before.by_worker.get(worker)
        if beat.state == RUNNING and (sighting is None or sighting.beat_ms != beat.time_ms):
            by_worker[worker] = Sighting(beat.time_ms, now_ms, beat.assignment_version)
        elif sighting:
            by_worker[worker] = replace(sighting, seen_ms=min(sighting.seen_ms + blind_ms, now_ms))
    homes = {slot: min(seen + blind_ms, now_ms) for slot, seen in before.home_seen_ms.items()}
    homes.update(dict.fromkeys(offered, now_ms))
    first_ms = now_ms if before.round_ms is None else min(before.first_ms + blind_ms, now_ms)
    return LastSeen(by_worker, homes, first_ms, now_ms, gone_nodes)


# Executors of one slot that were placed together: they are alive or dead together.
Mates = tuple[WorkerSlot, int, int]  # slot, start time, version that placed them


def mates_of(assignment: Assignment) -> dict[Mates, list[ExecutorId]]:
    """Return the executors of an assignment in groups that are alive or dead together; valid as
    long as the assignment is.
    """
    starts = assignment.start_ms_by_executor
    versions = assignment.placed_version_by_executor
    executors_by_mates: dict[Mates, list[ExecutorId]] = {}
    for executor, slot in assignment.slot_by_executor.items():
        executors_by_mates.setdefault(
            (slot, starts.get(executor, 0), versions.get(executor, 0)), []
        ).append(executor)
    return executors_by_mates


def alive_executors(
    assignment: Assignment,
    sightings: LastSeen,
    now_ms: int,
    timeouts: BeatTimeouts,
    mates: Mapping[Mates, list[ExecutorId]] | None = None,
) -> Set[ExecutorId]:
    """Return the executors of an assignment that are alive or may still be starting."""
    dead: set[ExecutorId] = set()
    for worker, executors in (mates_of(assignment) if mates is None else mates).items():
        if not _live(worker, assignment.topology_id, sightings, now_ms, timeouts):
            dead.update(executors)
    everybody = assignment.slot_by_executor.keys()
    return everybody - dead if dead else everybody


def _live(
    mates: Mates, topology_id: str, sightings: LastSeen, now_ms: int, limit: BeatTimeouts
) -> bool:
    slot, start_ms, placed = mates
    if slot.node in sightings.gone_nodes:
        return False
    sighting = sightings.by_worker.get((topology_id, slot))
    since_ms = max(start_ms, sightings.first_ms)
    heard_ms = (
        max(since_ms, sighting.seen_ms) if sighting and placed <= sighting.version else since_ms
    )
    home_gone_ms = now_ms - sightings.home_seen_ms.get(slot, since_ms)
    if home_gone_ms > 0:
        # The supervisor, or this port, is gone (S3.58): nothing restarts the worker, and after a
        # time it counts as dead even if it still sends heartbeats; fences keep the two owners
        # apart.
        return now_ms - heard_ms <= limit.forsaken_ms and home_gone_ms <= limit.supervisor_ms
    grace_ms = max(limit.launch_ms, limit.task_ms)
    return now_ms - start_ms < grace_ms or now_ms - heard_ms <= limit.task_ms


def dead_slots(
    assignments: Iterable[Assignment], alive: Mapping[str, Set[ExecutorId]]
) -> set[WorkerSlot]:
    """Return slots with a dead executor; they are not offered in the round that declares it dead
    (Storm's dead slots).
    """
    dead: set[WorkerSlot] = set()
    for assignment in assignments:
        placed = assignment.slot_by_executor
        living = alive.get(assignment.topology_id, frozenset())
        if not placed.keys() <= living:
            dead.update(placed[executor] for executor in placed.keys() - living)
    return dead


def looks_like_our_fault(num_dead: int, num_known: int, had_trouble: bool) -> bool:
    """Return whether to wait a round: more than half of the workers died at once while the observer
    read the store badly.
    """
    return had_trouble and num_dead * 2 > num_known and num_dead > 0


def blind_ms_between(before: LastSeen, now_ms: int, period_ms: int) -> int:
    """Return the time since the last round if the observer was stopped or got no answer meanwhile,
    else 0.
    """
    if before.round_ms is None:
        return 0
    late_ms = now_ms - before.round_ms - 2 * period_ms
    return now_ms - before.round_ms if late_ms > 0 else 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A host without Redis: since when, since when others reach it (None: no host does), and the
    sentence of its supervisor.
    """

    since_ms: int
    apart_ms: int | None
    problem: str


@dataclass(frozen=True, slots=True)
class StoreReach:
    """Cut hosts by name, and those of them that were given up: their workers are to be placed
    elsewhere.
    """

    cut: Mapping[str, Cut] = field(default_factory=dict)
    given_up: Set[str] = frozenset()
    is_general: bool = False  # no host at all reaches Redis

    def due_ms(self, timeout_ms: int) -> int | None:
        """Return when the next host is given up; None while there is none to come."""
        waiting = [
            cut.apart_ms
            for host, cut in self.cut.items()
            if cut.apart_ms is not None and host not in self.given_up
        ]
        return min(waiting) + timeout_ms if waiting else None


def look_at_stores(
    before: StoreReach, supervisors: Iterable[SupervisorInfo], now_ms: int, timeout_ms: int
) -> StoreReach:
    """Return what the records of the living supervisors show; a host is given up `timeout_ms` after
    it was the only one cut.
    """
    by_host: dict[str, list[SupervisorInfo]] = {}
    for info in supervisors:
        by_host.setdefault(info.host, []).append(info)
    said = {
        host: infos[0]
        for host, infos in by_host.items()
        if all(info.store_problem for info in infos)
    }
    is_general = bool(said) and len(said) == len(by_host)
    cut = {}
    for host, info in said.items():
        past = before.cut.get(host)
        apart_ms = (
            None
            if is_general
            else now_ms
            if past is None or past.apart_ms is None
            else past.apart_ms
        )
        since_ms = past.since_ms if past else now_ms - info.store_away_ms
        cut[host] = Cut(since_ms, apart_ms, info.store_problem)
    given_up = frozenset(
        host
        for host, loss in cut.items()
        if loss.apart_ms is not None and now_ms - loss.apart_ms >= timeout_ms
    )
    return StoreReach(cut, given_up, is_general)


def leaving_executors(
    snapshot: Snapshot, alive: Mapping[str, Set[ExecutorId]]
) -> dict[str, Set[ExecutorId]]:
    """Return the executors, by topology, that leave drained hosts: whole workers, as many as there
    are free slots elsewhere.

    A topology that lacks executors is left out: what has died is placed first, and the drain goes
    on after it.
    """
    drained = {
        node
        for node, info in snapshot.supervisors.items()
        if (mark := snapshot.marks.get(info.host)) and mark.is_drained
    }
    if not drained:
        return {}
    used = {slot for old in snapshot.assignments.values() for slot in old.slot_by_executor.values()}
    free = len(snapshot.open_slots() - used - snapshot.reserved)
    leaving: dict[str, Set[ExecutorId]] = {}
    for topology_id, topology in sorted(snapshot.topologies.items()):
        assignment = snapshot.assignments.get(topology_id)
        if assignment is None or topology.base.status == TopologyStatus.KILLED:
            continue
        if (
            not assignment.slot_by_executor.keys()
            == set(topology.executors())
            <= alive.get(topology_id, frozenset())
        ):
            continue
        slots = sorted(
            {slot for slot in assignment.slot_by_executor.values() if slot.node in drained}
        )[:free]
        if slots:
            free -= len(slots)
            leaving[topology_id] = {
                executor for executor, slot in assignment.slot_by_executor.items() if slot in slots
            }
    return leaving


def vacated(
    snapshot: Snapshot, alive: Mapping[str, Set[ExecutorId]], hosts: Set[str]
) -> tuple[Snapshot, Mapping[str, Set[ExecutorId]]]:
    """Return a snapshot whose hosts offer nothing, and the living executors without those that are
    there.
    """
    nodes = {node for node, info in snapshot.supervisors.items() if info.host in hosts}
    if not nodes:
        return snapshot, alive
    supervisors = {
        node: replace(info, ports=()) if node in nodes else info
        for node, info in snapshot.supervisors.items()
    }
    placed = {key: old.slot_by_executor for key, old in snapshot.assignments.items()}
    remaining = {
        key: frozenset(
            executor
            for executor in living
            if executor not in placed[key] or placed[key][executor].node not in nodes
        )
        if key in placed
        else living
        for key, living in alive.items()
    }
    return replace(snapshot, supervisors=supervisors), remaining
