"""Heartbeats, offered slots and ways to Redis that this Nimbus has seen, and interruptions of its view of the store.

Law: only Nimbus's own clock counts: a heartbeat is new when it differs from the last one seen, whatever time it names, as in
JStorm's isTaskDead. When much seems dead at once and the store was slow, one round is waited. Nothing of this is stored: a
new Nimbus takes everybody for alive until it has looked for as long as the time-outs say.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from sparkstorm.model.assignment import Assignment, ExecutorId, SupervisorInfo, WorkerSlot
from sparkstorm.model.status import TopologyStatus
from sparkstorm.nimbus.cluster_reader import Reading
from sparkstorm.scheduling.liveness import (
    Cut,
    LastSeen,
    Mates,
    StoreReach,
    Timeouts,
    alive_executors,
    blind_ms_between,
    look_at_stores,
    looks_like_our_fault,
    mates_of,
    observe,
    vacated,
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
        # Set by whoever saw it and cleared by the round that has taken it into account.
        self._had_trouble = True

    def observe(self, reading: Reading, now_ms: int) -> None:
        """Take in what was read."""
        blind_ms = blind_ms_between(self._sightings, now_ms, self._settings.round_ms)
        # A Nimbus that was stopped for a while saw no beats then; those who beat meanwhile must not
        # pay for it.
        if blind_ms:
            self.note_trouble()
        gone = reading.gone_nodes()
        self._sightings = observe(self._sightings, reading.beats, reading.offered_slots(), now_ms, blind_ms, gone)

    def alive(self, snapshot: Snapshot, now_ms: int) -> Alive:
        """Living executors by topology; everybody, for one round, when the silence is more likely ours than theirs."""
        everybody = {each: found.slot_by_executor.keys() for each, found in snapshot.assignments.items()}
        if not self._settings.reassigns:
            return everybody
        # By identity of the assignment: unchanged records are the same objects, so the groups of
        # 10,000 executors are made once (decision 22).
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
        # As Storm has it: a topology may ask for more patience than the cluster's, up to a limit,
        # never for less.
        task_ms = min(max(asked_ms, self._timeouts.task_ms), self._settings.longest_worker_timeout_ms)
        return replace(self._timeouts, task_ms=task_ms)

    def _must_wait(self, snapshot: Snapshot, alive: Alive) -> bool:
        workers = self._workers(snapshot, alive)
        num_dead = sum(not lives for lives in workers.values())
        # Most of all workers dead at once, right after the store was slow, are more likely alive:
        # to move them all would be a storm of restarts. One round later the beats say who was
        # right.
        ours = looks_like_our_fault(num_dead, len(workers), self._had_trouble)
        # Never twice in a row: workers that are really dead are replaced one round late, not never.
        self._has_waited = ours and not self._has_waited
        if self._has_waited:
            _LOG.warning("%d of %d workers seem dead after trouble with the store", num_dead, len(workers))
        else:
            self._had_trouble = False
        return self._has_waited

    def _workers(self, snapshot: Snapshot, alive: Alive) -> dict[WorkerSlot, bool]:
        """Return whether each worker lives, topologies under a kill left out; nothing when all live."""
        running = _running(snapshot)
        # Nearly every round: then nothing below has to be counted.
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


class StoreWatch:
    """StoreReach between rounds; with `nimbus.reassign: false` hosts are named and nothing is moved."""

    def __init__(self, settings: NimbusSettings) -> None:
        self._timeout_ms, self._moves = settings.store_timeout_ms, settings.reassigns
        self._reach = StoreReach()

    @property
    def due_ms(self) -> int | None:
        """Return when workers are to be moved next."""
        return self._reach.due_ms(self._timeout_ms)

    def observe(self, supervisors: Iterable[SupervisorInfo], now_ms: int) -> None:
        """Take in what was read."""
        before, self._reach = self._reach, look_at_stores(self._reach, supervisors, now_ms, self._timeout_ms)
        for host in sorted(before.cut.keys() ^ self._reach.cut.keys()):
            _LOG.warning("host %s %s", host, "does not reach Redis" if host in self._reach.cut else "reaches Redis again")

    def usable(self, snapshot: Snapshot, alive: Alive) -> tuple[Snapshot, Alive]:
        """Return what a scheduler may see: hosts that were given up offer nothing, and no worker lives there."""
        # With nimbus.reassign: false the operator moves workers; the sentence about the host stays.
        return vacated(snapshot, alive, self._reach.given_up) if self._moves else (snapshot, alive)

    @property
    def problems(self) -> dict[str, str]:
        """A sentence for each cut host, one for all when no host reaches Redis."""
        cut = self._reach.cut
        # Moving helps nobody when all hosts are cut off: it is Redis that is away.
        if self._reach.is_general:
            first = min(cut.values(), key=lambda each: each.since_ms)
            return {"redis": f"no host reaches Redis since {_clock(first)}: {first.problem}; all workers stay in place"}
        return {f"host {host}": self._sentence(host, each) for host, each in sorted(cut.items())}

    def _sentence(self, host: str, cut: Cut) -> str:
        then = f"its workers are moved when that has lasted {self._timeout_ms / 1000:g} s (sparkstorm.worker.store.timeout.secs)"
        if not self._moves:
            then = "its workers stay there (nimbus.reassign is false)"
        elif host in self._reach.given_up:
            then = "its workers are moved to other hosts, and it gets none until it does"
        return f"{host} does not reach Redis since {_clock(cut)}: {cut.problem}; {then}"


def _clock(cut: Cut) -> str:
    return time.strftime("%H:%M:%S", time.localtime(cut.since_ms / 1000))
