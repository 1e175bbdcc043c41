"""Owns Nimbus: the turn that reads everything, decides purely and writes only differences.

Nothing Nimbus needs to go on is in its memory: a new one on the same store takes up timers, kills and rebalances where
the old one was (S3.37). Memory holds only sightings (who beat when), which a new one gathers afresh without burying
anyone. Nimbus never sleeps and starts no thread: whoever drives it calls `step` when it is due or `wake` was called.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sparkstorm.blobs.store import BlobStore
from sparkstorm.cluster.nimbus_state import NimbusInfo
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.errors import (
    FailedAssignTopologyError,
    NotAliveError,
    SparkStormError,
    StateConflictError,
    StoreInconsistentError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.model.assignment import Assignment, TaskError, TopologyBase
from sparkstorm.model.requests import RebalancePlan
from sparkstorm.model.status import Action, RebalanceOptions, TopologyStatus
from sparkstorm.nimbus.assign_event import AssignEvent
from sparkstorm.nimbus.assignment_restorer import AssignmentRestorer
from sparkstorm.nimbus.cleanup import TopologyCleanup
from sparkstorm.nimbus.cluster_reader import ClusterReader, Reading, conf_bytes
from sparkstorm.nimbus.deploy_finisher import DeployFinisher
from sparkstorm.nimbus.error_reports import ErrorReports
from sparkstorm.nimbus.heartbeat_monitor import Alive, HeartbeatMonitor
from sparkstorm.nimbus.listeners import TopologyActionListener
from sparkstorm.nimbus.nimbus_times import NimbusTimes
from sparkstorm.nimbus.rebalance import rebalanced_conf, rebalanced_topology
from sparkstorm.scheduling.base import Scheduler
from sparkstorm.scheduling.lifecycle import Decision, Effect, Request, due_request, transition
from sparkstorm.scheduling.rehearsal import twin_of
from sparkstorm.scheduling.round import plan_round
from sparkstorm.scheduling.round_memory import RoundMemory
from sparkstorm.scheduling.snapshot import KnownTopology, Plan, Snapshot

_LOG = logging.getLogger(__name__)
_DYING_RECHECK_MS = 200  # how often a killed topology is looked at until its workers are gone
_STAND_BY_MS = 30_000  # longer than a dead leader's session lasts


class Nimbus:
    """Storm's master as a stepped machine over the store; one leads, others stand by."""

    def __init__(
        self,
        state: StormState,
        blobs: BlobStore,
        scheduler: Scheduler,
        conf: Mapping[str, Any],
        owner: str = "nimbus",
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        times = NimbusTimes.of(conf)
        self.listeners: list[TopologyActionListener] = []
        self.problems: Mapping[str, str] = {}
        self.is_leading = False
        self._standing_by_ms: int | None = None
        self.cleanup = TopologyCleanup(state, blobs, times)
        self._state = state
        self._blobs = blobs
        self._scheduler = scheduler
        self._conf = dict(conf)
        self._owner = owner
        self._wake_drive = wake
        self._times = times
        self._reader = ClusterReader(state, blobs, self._conf)
        self._observer = HeartbeatMonitor(conf, times)
        self._reporter = ErrorReports(state)
        self._finisher = DeployFinisher(state, self.cleanup, self._assign_new)
        self._memory = RoundMemory()
        self._events: deque[AssignEvent] = deque()
        self._lock = threading.RLock()
        self._successor: Nimbus | None = None
        self._is_dirty = True
        self._due_ms = 0
        self._restorer = AssignmentRestorer(state, self._publish)
        self._epoch = state.store.session_epoch

    # -- being driven --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Ask for a turn at once; any thread, never blocks."""
        self._is_dirty = True
        self._wake_drive()

    def step(self, now_ms: int) -> int:
        """Take a turn when one is due; return when the next is. StoreUnavailableError is for the drive to retry."""
        with self._lock:
            if self._is_dirty or now_ms >= self._due_ms:
                self._is_dirty = False
                self._try_turn(now_ms)
            return now_ms if self._is_dirty else self._due_ms

    def _try_turn(self, now_ms: int) -> None:
        try:
            self._turn(now_ms)
        except StoreUnavailableError:
            self._observer.note_trouble()
            self._is_dirty = True
            raise
        except SparkStormError as error:
            # A record that changed under our hands, or is no record: the next turn reads everything anew.
            _LOG.error("this turn broke off: %s", error)
            self.problems = {**self.problems, "turn": str(error)}

    def _turn(self, now_ms: int) -> None:
        self._due_ms = now_ms + self._times.round_ms
        self.is_leading = self._state.try_lead(NimbusInfo(self._owner, now_ms))
        if not self.is_leading:
            self._stand_by(now_ms)
            return
        self._standing_by_ms = None
        if self._state.store.session_epoch != self._epoch:
            self._epoch = self._state.store.session_epoch
            self._observer.note_trouble()
        reading = self._read(now_ms)
        if self._restorer.restore(reading) or self._run_timers(reading, now_ms):
            reading = self._read(now_ms)
        if self._finisher.advance(reading, now_ms):
            reading = self._read(now_ms)
        if self._serve_events(reading, now_ms):
            reading = self._read(now_ms)
        self.problems = {**self.problems, **self._finisher.problems}
        self._monitor(reading, now_ms)
        self.cleanup.sweep(reading, now_ms)
        self._plan_next_turn(reading, now_ms)

    def _stand_by(self, now_ms: int) -> None:
        """Another leads: wait for its end; turn submitters away once it is clear that it is no dead one's session."""
        leader = self._state.read_leader(self.wake)
        since_ms = self._standing_by_ms = now_ms if self._standing_by_ms is None else self._standing_by_ms
        if leader:
            self.problems = {"leader": f"{leader.owner} leads, this Nimbus stands by"}
            while self._events and now_ms - since_ms >= _STAND_BY_MS:
                self._events.popleft().settle(
                    FailedAssignTopologyError(f"{leader.owner} leads this cluster; submit the topology there")
                )

    def _read(self, now_ms: int) -> Reading:
        reading = self._reader.read(self.wake)
        for name, problem in reading.problems.items():
            if self.problems.get(name) != problem:
                _LOG.error("%s is left out: %s", name, problem)
        self.problems = dict(reading.problems)
        self._observer.observe(reading, now_ms)
        return reading

    def _plan_next_turn(self, reading: Reading, now_ms: int) -> None:
        for base in reading.bases.values():
            if base.pending:
                # Late ones wait for their workers, or for records that cannot be read.
                self._due_ms = min(self._due_ms, max(base.pending.due_ms, now_ms + _DYING_RECHECK_MS))
            if base.status == TopologyStatus.KILLED and base.topology_id not in reading.snapshot.assignments:
                self._due_ms = min(self._due_ms, now_ms + _DYING_RECHECK_MS)

    # -- scheduling ----------------------------------------------------------------------------------------------

    def _plan(
        self,
        snapshot: Snapshot,
        alive: Alive,
        now_ms: int,
        rebalanced: Mapping[str, RebalanceOptions] | None = None,
        scheduler: Scheduler | None = None,
    ) -> Plan:
        """Ask the scheduler; whatever a plug-in raises comes out as FailedAssignTopologyError."""
        try:
            return plan_round(snapshot, alive, scheduler or self._scheduler, self._conf, now_ms, rebalanced, self._memory)
        except FailedAssignTopologyError:
            raise
        except Exception as error:  # user code: a scheduler that was plugged in
            _LOG.exception("the scheduler failed")
            raise FailedAssignTopologyError(f"the scheduler failed: {type(error).__name__}: {error}") from error

    def _monitor(self, reading: Reading, now_ms: int) -> None:
        alive = self._observer.alive(reading.snapshot, now_ms)
        failing = self._reporter.report_failed_starts(reading.snapshot, reading.beats, now_ms)
        self.problems = {**self.problems, **failing}
        try:
            plan = self._plan(reading.snapshot, alive, now_ms)
        except FailedAssignTopologyError as error:
            _LOG.error("%s; the last good assignments stand", error)
            self.problems = {**self.problems, "scheduler": str(error)}
            return
        self.problems = {**self.problems, **plan.refused}
        self._reporter.report_deaths(reading.snapshot, alive, now_ms)
        for assignment in plan.assignments:
            self._publish(assignment, reading.bases[assignment.topology_id].name)

    def _publish(self, assignment: Assignment, name: str) -> None:
        self._state.write_assignment(assignment)
        self._state.backup_assignment(name, assignment)

    # -- submissions ---------------------------------------------------------------------------------------------

    def submit(self, event: AssignEvent) -> None:
        """Queue a new topology for its first assignment (S0.59); any thread, never blocks."""
        self._events.append(event)
        if self._successor is not None:
            self._successor.take_over(self)
        self.wake()

    def take_over(self, former: "Nimbus") -> None:
        """Follow a Nimbus of this driver that was stopped: its listeners, and the events it had not served."""
        former._successor = self
        self.listeners = former.listeners
        while former._events:
            self._events.append(former._events.popleft())
        self.wake()

    def withdraw(self, event: AssignEvent) -> bool:
        """Take an event back whose submitter waits no longer; False when it is settled already."""
        with self._lock:
            if event.is_settled:
                return False
            with contextlib.suppress(ValueError):  # it waits in a Nimbus that was stopped
                self._events.remove(event)
            return True

    def _serve_events(self, reading: Reading, now_ms: int) -> bool:
        served = bool(self._events)
        while self._events:
            # An event leaves the queue only when settled: a store that fails now finds it there at the next turn.
            self._serve_event(self._events[0], reading, now_ms)
            self._events.popleft()
            reading = self._read(now_ms)
        return served

    def _serve_event(self, event: AssignEvent, reading: Reading, now_ms: int) -> None:
        try:
            self._assign_new(event.base, reading, now_ms)
        except StoreUnavailableError:
            raise
        except SparkStormError as error:
            self._state.remove_assignment(event.base.topology_id)
            event.settle(error)
        else:
            event.settle()
            self.notify(event.base.name, "startTopology")

    def _assign_new(self, base: TopologyBase, reading: Reading, now_ms: int) -> None:
        """Assignment first, base last (S0.65): a Nimbus that dies in between leaves an orphan, not a half topology."""
        snapshot = self._with_backup(_with_topology(reading.snapshot, self._reader.complete(base)), base)
        plan = self._plan(snapshot, self._observer.alive(snapshot, now_ms), now_ms)
        _raise_refusal(plan, base.topology_id)
        for assignment in plan.assignments:
            if assignment.topology_id == base.topology_id:
                self._publish(assignment, base.name)
        try:
            self._state.create_base(base)
        except StateConflictError:
            # Our own create whose reply was lost, or an id that exists.
            if self._state.read_base(base.topology_id) != base:
                raise

    def _with_backup(self, snapshot: Snapshot, base: TopologyBase) -> Snapshot:
        """The last assignment of the name too, when the topology wants its old places back (S0.84)."""
        if not snapshot.topologies[base.topology_id].conf.get("use.old.assignment"):
            return snapshot
        try:
            last = self._state.read_backup_assignment(base.name)
        except (StoreInconsistentError, TamperedBlobError) as error:
            _LOG.error("%s starts without its old places: %s", base.topology_id, error)
            return snapshot
        return replace(snapshot, backups={base.topology_id: last}) if last else snapshot

    # -- life cycle ----------------------------------------------------------------------------------------------

    def _run_timers(self, reading: Reading, now_ms: int) -> bool:
        """Carry out what is due; True when something changed."""
        num_changed = sum(self._run_timer(base, reading, now_ms) for base in reading.bases.values())
        return num_changed > 0

    def _run_timer(self, base: TopologyBase, reading: Reading, now_ms: int) -> bool:
        if base.status == TopologyStatus.KILLED:
            if self.cleanup.advance(base, now_ms):
                self.notify(base.name, "removeTopology")
            return True
        request = due_request(base, now_ms)
        known = reading.snapshot.topologies.get(base.topology_id)
        if request is None or known is None:
            return False
        decision = transition(base, request, now_ms, 0)
        if decision.effect == Effect.REBALANCE:
            self._rebalance(known, decision, reading, now_ms)
        return True

    def _rebalance(self, known: KnownTopology, decision: Decision, reading: Reading, now_ms: int) -> None:
        """Outline and assignment first, base last: a Nimbus that dies in between rebalances again, to the same end."""
        base, options = known.base, decision.rebalance or RebalanceOptions()
        own_conf = rebalanced_conf(self._reader.topology_conf(base.conf_key), options)
        conf_key = self._blobs.put(conf_bytes(own_conf), now_ms)
        after = rebalanced_topology(known, decision, {**self._conf, **own_conf}, conf_key)
        try:
            snapshot = _with_topology(reading.snapshot, after)
            plan = self._plan(snapshot, self._observer.alive(snapshot, now_ms), now_ms, {base.topology_id: options})
            _raise_refusal(plan, base.topology_id)
        except FailedAssignTopologyError as error:
            self._give_rebalance_up(known, error, now_ms)
            return
        self._state.write_outline(base.topology_id, after.outline)
        self._reader.forget(base.topology_id)
        for assignment in plan.assignments:
            self._publish(assignment, snapshot.topologies[assignment.topology_id].base.name)
        self._settle_rebalance(base, after.base)
        self.notify(base.name, "rebalance")

    def _give_rebalance_up(self, known: KnownTopology, error: SparkStormError, now_ms: int) -> None:
        base = known.base
        _LOG.error("the rebalance of %s is given up: %s", base.topology_id, error)
        component = next(iter(sorted(known.outline.components)))
        text = f"rebalance given up: {error}"
        self._state.report_error(base.topology_id, TaskError(now_ms, component, 0, "nimbus", 0, text))
        status = base.previous_status or TopologyStatus.ACTIVE
        self._settle_rebalance(base, replace(base, status=status, previous_status=None, pending=None))

    def _settle_rebalance(self, before: TopologyBase, after: TopologyBase) -> None:
        # Whoever killed it, or asked for another rebalance, meanwhile is not overwritten.
        self._state.update_base(before.topology_id, lambda found: after if found.pending == before.pending else found)

    def plan_rebalance(self, topology_id: str, options: RebalanceOptions, now_ms: int) -> RebalancePlan:
        """What a rebalance would do now (a dry run): reads everything, writes nothing."""
        with self._lock:
            reading = self._reader.read()
            known = reading.snapshot.topologies.get(topology_id)
            if known is None:
                raise NotAliveError(f"topology {topology_id} is not running")
            asked = transition(known.base, Request(Action.REBALANCE, 0, options), now_ms, 0)
            decision = transition(asked.base, Request(Action.DO_REBALANCE, 0, options), now_ms, 0)
            own_conf = rebalanced_conf(self._reader.topology_conf(known.base.conf_key), options)
            after = rebalanced_topology(known, decision, {**self._conf, **own_conf}, known.base.conf_key)
            snapshot = _with_topology(reading.snapshot, after)
            alive = {each: found.slot_by_executor.keys() for each, found in snapshot.assignments.items()}
            plan = self._plan(snapshot, alive, now_ms, {topology_id: options}, twin_of(self._scheduler))
            _raise_refusal(plan, topology_id)
        before, placed = reading.snapshot.assignments.get(topology_id), plan.placed[topology_id]
        unplaced = tuple(each for each in after.executors() if each not in placed)
        return RebalancePlan(topology_id, before.slot_by_executor if before else {}, placed, unplaced)

    def notify(self, topology_name: str, action: str) -> None:
        """Tell the listeners; what they raise is logged (S0.51)."""
        for listener in self.listeners:
            try:
                listener.notify(topology_name, action)
            except Exception:  # user code
                _LOG.exception("a topology action listener failed on %s of %s", action, topology_name)


def _raise_refusal(plan: Plan, topology_id: str) -> None:
    if topology_id in plan.refused:
        raise FailedAssignTopologyError(plan.refused[topology_id])


def _with_topology(snapshot: Snapshot, known: KnownTopology) -> Snapshot:
    return replace(snapshot, topologies={**snapshot.topologies, known.base.topology_id: known})
