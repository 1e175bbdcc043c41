"""Owns what one Nimbus has seen with its own eyes: beats, offered slots, and trouble with its view of the store."""

import logging
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from sparkstorm.daemons.cluster_reader import Reading
from sparkstorm.daemons.nimbus_times import NimbusTimes
from sparkstorm.model.assignment import Assignment, ExecutorId, WorkerSlot
from sparkstorm.model.status import TopologyStatus
from sparkstorm.scheduling.liveness import (
    Sightings,
    Timeouts,
    alive_executors,
    blind_ms_between,
    looks_like_our_fault,
    observe,
)
from sparkstorm.scheduling.round import Snapshot

_LOG = logging.getLogger(__name__)

Alive = Mapping[str, Set[ExecutorId]]


class Observer:
    """Sightings between rounds, and the guard against reassignment storms when the store was slow for everybody."""

    def __init__(self, conf: Mapping[str, Any], times: NimbusTimes) -> None:
        self._reassigns = bool(conf.get("nimbus.reassign", True))
        self._times = times
        self._sightings = Sightings()
        self._had_trouble = False
        self._has_waited = False

    def note_trouble(self) -> None:
        """The store did not answer, or our session was lost: what we see next may be stale."""
        self._had_trouble = True

    def observe(self, reading: Reading, now_ms: int) -> None:
        """Take in what was read."""
        blind_ms = blind_ms_between(self._sightings, now_ms, self._times.round_ms)
        if blind_ms:
            self.note_trouble()
        self._sightings = observe(self._sightings, reading.beats, reading.offered_slots(), now_ms, blind_ms)

    def alive(self, snapshot: Snapshot, now_ms: int) -> Alive:
        """Living executors by topology; everybody, for one round, when the silence is more likely ours than theirs."""
        everybody = {each: set(found.slot_by_executor) for each, found in snapshot.assignments.items()}
        if not self._reassigns:
            return everybody
        alive = {
            topology_id: alive_executors(assignment, self._sightings, now_ms, self._timeouts(snapshot, topology_id))
            for topology_id, assignment in snapshot.assignments.items()
        }
        return everybody if self._must_wait(snapshot, alive) else alive

    def _timeouts(self, snapshot: Snapshot, topology_id: str) -> Timeouts:
        known = snapshot.topologies.get(topology_id)
        asked = known.conf.get("topology.worker.timeout.secs") if known else None
        if asked is None:
            return self._times.timeouts
        task_ms = min(max(round(asked * 1000), self._times.timeouts.task_ms), self._times.worker_max_ms)
        return replace(self._times.timeouts, task_ms=task_ms)

    def _must_wait(self, snapshot: Snapshot, alive: Alive) -> bool:
        lives_by_worker: dict[WorkerSlot, bool] = {}
        for topology_id, assignment in _running(snapshot).items():
            for executor, slot in assignment.slot_by_executor.items():
                lives_by_worker[slot] = lives_by_worker.get(slot, False) or executor in alive[topology_id]
        num_dead = sum(not lives for lives in lives_by_worker.values())
        ours = looks_like_our_fault(num_dead, len(lives_by_worker), self._had_trouble)
        self._has_waited = ours and not self._has_waited
        if self._has_waited:
            _LOG.warning("%d of %d workers seem dead after trouble with the store", num_dead, len(lives_by_worker))
        else:
            self._had_trouble = False
        return self._has_waited


def _running(snapshot: Snapshot) -> dict[str, Assignment]:
    killed = {each for each, known in snapshot.topologies.items() if known.base.status == TopologyStatus.KILLED}
    return {each: assignment for each, assignment in snapshot.assignments.items() if each not in killed}
