"""Heartbeat monitor: heartbeats and offered slots that this Nimbus has seen, and interruptions of its view of the store."""

import logging
from collections.abc import Mapping, Set
from dataclasses import replace

from sparkstorm.model.assignment import Assignment, ExecutorId, WorkerSlot
from sparkstorm.model.status import TopologyStatus
from sparkstorm.nimbus.cluster_reader import Reading
from sparkstorm.scheduling.liveness import (
    LastSeen,
    Mates,
    Timeouts,
    alive_executors,
    blind_ms_between,
    looks_like_our_fault,
    mates_of,
    observe,
)
from sparkstorm.scheduling.snapshot import Snapshot
from sparkstorm.settings import NimbusSettings, WorkerTimers

_LOG = logging.getLogger(__name__)

Alive = Mapping[str, Set[ExecutorId]]


class HeartbeatMonitor:
    """LastSeen between rounds, and the guard against reassignment storms when the store was slow for everybody."""

    def __init__(self, settings: NimbusSettings) -> None:
        self._settings = settings
        self._timeouts = Timeouts(settings.task_timeout_ms, settings.task_launch_ms, settings.supervisor_timeout_ms)
        self._sightings = LastSeen()
        self._had_trouble = False
        self._has_waited = False
        self._mates: dict[str, tuple[Assignment, dict[Mates, list[ExecutorId]]]] = {}

    def note_trouble(self) -> None:
        """The store did not answer, or our session was lost: what we see next may be stale."""
        self._had_trouble = True

    def observe(self, reading: Reading, now_ms: int) -> None:
        """Take in what was read."""
        blind_ms = blind_ms_between(self._sightings, now_ms, self._settings.round_ms)
        if blind_ms:
            self.note_trouble()
        gone = reading.gone_nodes()
        self._sightings = observe(self._sightings, reading.beats, reading.offered_slots(), now_ms, blind_ms, gone)

    def alive(self, snapshot: Snapshot, now_ms: int) -> Alive:
        """Living executors by topology; everybody, for one round, when the silence is more likely ours than theirs."""
        everybody = {each: found.slot_by_executor.keys() for each, found in snapshot.assignments.items()}
        if not self._settings.reassigns:
            return everybody
        self._mates = {each: self._mates_of(each, found) for each, found in snapshot.assignments.items()}
        alive = {
            each: alive_executors(found, self._sightings, now_ms, self._timeouts_of(snapshot, each), self._mates[each][1])
            for each, found in snapshot.assignments.items()
        }
        return everybody if self._must_wait(snapshot, alive) else alive

    def _mates_of(self, topology_id: str, assignment: Assignment) -> tuple[Assignment, dict[Mates, list[ExecutorId]]]:
        known = self._mates.get(topology_id)
        return known if known and known[0] is assignment else (assignment, mates_of(assignment))

    def _timeouts_of(self, snapshot: Snapshot, topology_id: str) -> Timeouts:
        known = snapshot.topologies.get(topology_id)
        asked_ms = WorkerTimers.of(known.conf).topology_timeout_ms if known else None
        if asked_ms is None:
            return self._timeouts
        task_ms = min(max(asked_ms, self._timeouts.task_ms), self._settings.longest_worker_timeout_ms)
        return replace(self._timeouts, task_ms=task_ms)

    def _must_wait(self, snapshot: Snapshot, alive: Alive) -> bool:
        workers = self._workers(snapshot, alive)
        num_dead = sum(not lives for lives in workers.values())
        ours = looks_like_our_fault(num_dead, len(workers), self._had_trouble)
        self._has_waited = ours and not self._has_waited
        if self._has_waited:
            _LOG.warning("%d of %d workers seem dead after trouble with the store", num_dead, len(workers))
        else:
            self._had_trouble = False
        return self._has_waited

    def _workers(self, snapshot: Snapshot, alive: Alive) -> dict[WorkerSlot, bool]:
        """Return whether each worker lives, topologies under a kill left out; nothing when all live."""
        running = _running(snapshot)
        if all(len(alive[each]) == len(assignment.slot_by_executor) for each, assignment in running.items()):
            return {}
        lives: dict[WorkerSlot, bool] = {}
        for topology_id in running:
            for (slot, _, _), executors in self._mates[topology_id][1].items():
                lives[slot] = lives.get(slot, False) or executors[0] in alive[topology_id]
        return lives


def _running(snapshot: Snapshot) -> dict[str, Assignment]:
    killed = {each for each, known in snapshot.topologies.items() if known.base.status == TopologyStatus.KILLED}
    return {each: assignment for each, assignment in snapshot.assignments.items() if each not in killed}
