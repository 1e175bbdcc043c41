"""Heartbeats, offered slots and ways to Redis that this Nimbus has seen, and interruptions of its
view of the store.

Law: only Nimbus's own clock counts: a heartbeat is new when it differs from the last one seen, also
with an older time, as in JStorm's isTaskDead. When much seems dead at once and the store was slow,
one round is waited. Nothing of this is stored: a new Nimbus takes all executors for alive until it
has looked for as long as the time-outs last.
"""

import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from sparkstorm.common.clock import time_of_day
from sparkstorm.common.model.assignment import Assignment, ExecutorId, SupervisorInfo, WorkerSlot
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.settings import NimbusSettings, WorkerTimers
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.scheduling.liveness import (
    BeatTimeouts,
    Cut,
    LastSeen,
    Mates,
    StoreReach,
    alive_executors,
    blind_ms_between,
    look_at_stores,
    looks_like_our_fault,
    mates_of,
    observe,
    vacated,
)
from sparkstorm.control_plane.scheduling.snapshot import Snapshot

_LOG = logging.getLogger(__name__)

Alive = Mapping[str, Set[ExecutorId]]


class HeartbeatMonitor:
    """LastSeen between rounds, and the guard against reassignment storms when the store was slow
    for all workers.
    """

    def __init__(self, settings: NimbusSettings) -> None:
        self._settings = settings
        self._timeouts = BeatTimeouts(
            settings.task_timeout_ms, settings.task_launch_ms, settings.supervisor_timeout_ms
        )
        self._sightings = LastSeen()
        self._had_trouble = False
        self._has_waited = False
        self._mates: dict[str, tuple[Assignment, dict[Mates, list[ExecutorId]]]] = {}

    def note_trouble(self) -> None:
        """Take note that the store did not answer, or our session was lost: the next reading may be
        stale.
        """
        # Set by the call that saw it and cleared by the round that has taken it into account.
        self._had_trouble = True

    def observe(self, reading: Reading, now_ms: int) -> None:
        """Take in what was read."""
        blind_ms = blind_ms_between(self._sightings, now_ms, self._settings.round_ms)
        # A Nimbus that was stopped for a while saw no beats then; workers that beat meanwhile must
        # not be taken for dead.
        if blind_ms:
            self.note_trouble()
        gone = reading.gone_nodes()
        self._sightings = observe(
            self._sightings, reading.beats, reading.offered_slots(), now_ms, blind_ms, gone
        )

    def alive(self, snapshot: Snapshot, now_ms: int) -> Alive:
        """Living executors by topology; all of them, for one round, when the store more likely than
        the workers caused the silence.
        """
        everybody = {
            topology_id: assignment.slot_by_executor.keys()
            for topology_id, assignment in snapshot.assignments.items()
        }
        if not self._settings.reassigns:
            return everybody
        # By identity of the assignment: unchanged records are the same objects, so the groups of
        # 10,000 executors are made once (decision 22).
        self._mates = {
            topology_id: self._mates_of(topology_id, assignment)
            for topology_id, assignment in snapshot.assignments.items()
        }
        alive = {
            topology_id: alive_executors(
                assignment,
                self._sightings,
                now_ms,
                self._timeouts_of(snapshot, topology_id),
                self._mates[topology_id][1],
            )
            for topology_id, assignment in snapshot.assignments.items()
        }
        return everybody if self._must_wait(snapshot, alive) else alive

    def _mates_of(
        self, topology_id: str, assignment: Assignment
    ) -> tuple[Assignment, dict[Mates, list[ExecutorId]]]:
        known_mates = self._mates.get(topology_id)
        return (
            known_mates
            if known_mates and known_mates[0] is assignment
            else (assignment, mates_of(assignment))
        )

    def _timeouts_of(self, snapshot: Snapshot, topology_id: str) -> BeatTimeouts:
        topology = snapshot.topologies.get(topology_id)
        asked_ms = WorkerTimers.of(topology.conf).topology_timeout_ms if topology else None
        if asked_ms is None:
            return self._timeouts
        # As in Storm: a topology may set a longer time-out than the cluster's, up to a limit, never
        # a shorter one.
        task_ms = min(
            max(asked_ms, self._timeouts.task_ms), self._settings.longest_worker_timeout_ms
        )
        return replace(self._timeouts, task_ms=task_ms)

    def _must_wait(self, snapshot: Snapshot, alive: Alive) -> bool:
        workers = self._workers(snapshot, alive)
        num_dead = sum(not lives for lives in workers.values())
        # Most of all workers dead at once, right after the store was slow, are more likely alive:
        # to move them all would be a storm of restarts. One round later the beats decide.
        ours = looks_like_our_fault(num_dead, len(workers), self._had_trouble)
        # Never twice in a row: workers that are really dead are replaced one round late, not never.
        self._has_waited = ours and not self._has_waited
        if self._has_waited:
            _LOG.warning(
                "%d of %d workers seem dead after trouble with the store", num_dead, len(workers)
            )
        else:
            self._had_trouble = False
        return self._has_waited

    def _workers(self, snapshot: Snapshot, alive: Alive) -> dict[WorkerSlot, bool]:
        """Return whether each worker lives, topologies under a kill left out; nothing when all
        live.
        """
        running = _running(snapshot)
        # Nearly every round: then nothing below has to be counted.
        if all(
            len(alive[topology_id]) == len(assignment.slot_by_executor)
            for topology_id, assignment in running.items()
        ):
            return {}
        lives: dict[WorkerSlot, bool] = {}
        for topology_id in running:
            for (slot, _, _), executors in self._mates[topology_id][1].items():
                lives[slot] = lives.get(slot, False) or executors[0] in alive[topology_id]
        return lives


def _running(snapshot: Snapshot) -> dict[str, Assignment]:
    killed = {
        topology_id
        for topology_id, topology in snapshot.topologies.items()
        if topology.base.status == TopologyStatus.KILLED
    }
    return {
        topology_id: assignment
        for topology_id, assignment in snapshot.assignments.items()
        if topology_id not in killed
    }


class StoreWatch:
    """StoreReach of each store between rounds; with `nimbus.reassign: false` hosts are named and
    nothing is moved.

    A host that alone is cut from one of several stores counts as cut: its workers may be those of
    any topology, and a scheduler places all topologies on the same hosts. A store that no host
    reaches moves nothing. Hosts that do not reach their driver are named next to them.
    """

    def __init__(self, settings: NimbusSettings) -> None:
        self._timeout_ms = settings.store_timeout_ms
        self._moves = settings.reassigns
        self._drivers = DriverWatch()
        # by store; the home store's name is empty here
        self._reach: dict[str, StoreReach] = {"": StoreReach()}

    @property
    def due_ms(self) -> int | None:
        """Return when workers are to be moved next."""
        dues = [
            due_ms
            for reach in self._reach.values()
            if (due_ms := reach.due_ms(self._timeout_ms)) is not None
        ]
        return min(dues, default=None)

    def observe(self, supervisors: Iterable[SupervisorInfo], now_ms: int) -> None:
        """Take in what was read."""
        infos = list(supervisors)
        self._drivers.observe(infos, now_ms)
        reach = self._reach
        self._reach = {}
        for store in ("", *sorted({store for info in infos for store in info.other_stores})):
            before = reach.get(store, StoreReach())
            self._reach[store] = reached = look_at_stores(
                before, _ways_to(store, infos), now_ms, self._timeout_ms
            )
            for host in sorted(before.cut.keys() ^ reached.cut.keys()):
                verb = "does not reach" if host in reached.cut else "reaches"
                again = "" if host in reached.cut else " again"
                _LOG.warning("host %s %s %s%s", host, verb, _name_of(store), again)

    def usable(self, snapshot: Snapshot, alive: Alive) -> tuple[Snapshot, Alive]:
        """Return the snapshot and the living executors for a scheduler: hosts that were given up
        offer nothing, and no worker lives there.
        """
        # With nimbus.reassign: false the operator moves workers; the sentence about the host stays.
        given_up = frozenset[str]().union(*(reach.given_up for reach in self._reach.values()))
        return vacated(snapshot, alive, given_up) if self._moves else (snapshot, alive)

    @property
    def problems(self) -> dict[str, str]:
        """A sentence for each host that is cut from a store or its driver, one for all when no host
        reaches a store.
        """
        problems: dict[str, str] = {}
        for store, reach in self._reach.items():
            # Moving is of no use when all hosts are cut off: it is Redis that is away.
            if reach.is_general:
                first = min(reach.cut.values(), key=lambda cut: cut.since_ms)
                since = time_of_day(first.since_ms)
                text = f"no host reaches {_name_of(store)} since {since}: {first.problem}; all workers stay in place"
                problems[f"redis {store}".rstrip()] = text
                continue
            for host, cut in sorted(reach.cut.items()):
                sentence = self._sentence(host, store, cut, host in reach.given_up)
                problems = joined(problems, {f"host {host}": sentence})
        return joined(problems, self._drivers.problems)

    def _sentence(self, host: str, store: str, cut: Cut, is_given_up: bool) -> str:
        then = f"its workers are moved when that has lasted {self._timeout_ms / 1000:g} s (sparkstorm.worker.store.timeout.secs)"
        if not self._moves:
            then = "its workers stay there (nimbus.reassign is false)"
        elif is_given_up:
            then = "its workers are moved to other hosts, and it gets none until it does"
        return f"{host} does not reach {_name_of(store)} since {time_of_day(cut.since_ms)}: {cut.problem}; {then}"


class DriverWatch:
    """Hosts that do not reach the driver of their slots, named between rounds; nothing is moved.

    Workers need no driver. Spark ends the slots of such a host after `spark.network.timeout`, and
    then their workers are placed elsewhere, as after any end of slots.
    """

    def __init__(self) -> None:
        self._since: dict[str, int] = {}  # by supervisor
        self.problems: dict[str, str] = {}
        """A sentence for each host."""

    def observe(self, supervisors: Iterable[SupervisorInfo], now_ms: int) -> None:
        """Take in what was read."""
        cut = sorted(
            (info for info in supervisors if info.driver_problem),
            key=lambda info: info.supervisor_id,
        )
        self._since = {
            info.supervisor_id: self._since.get(info.supervisor_id, now_ms) for info in cut
        }
        self.problems = {}
        for info in cut:
            sentence = (
                f"{info.host} does not reach the driver at {info.driver} since "
                f"{time_of_day(self._since[info.supervisor_id])}: {info.driver_problem}; workers there "
                "go on, and Spark gives up their slots after spark.network.timeout"
            )
            self.problems = joined(self.problems, {f"host {info.host}": sentence})


def joined(problems: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return sentences by subject; what both have of one subject is in one text."""
    return {
        about: "; ".join(text for text in (problems.get(about), more.get(about)) if text)
        for about in dict.fromkeys((*problems, *more))
    }


def _ways_to(store: str, infos: Iterable[SupervisorInfo]) -> Iterable[SupervisorInfo]:
    """Return the supervisors that know a store, as if it were the only one."""
    if not store:
        return infos
    knowing = (info for info in infos if store in info.other_stores)
    return [
        replace(info, store_problem=info.other_stores[store], store_away_ms=0) for info in knowing
    ]


def _name_of(store: str) -> str:
    return f"Redis {store}" if store else "Redis"
