"""Duties of a leading Nimbus: the steps of one turn in their order, and the memory of the cluster.

Law: all memory here belongs to one leadership. A Nimbus that begins to lead makes these duties
anew, since another may have led and changed everything; so nothing has to be forgotten piece by
piece, and nothing can be left over. Each duty takes the reading and the time, and returns whether
it has changed something: the cluster is then read again before the next duty decides (decision 16).
Left out: a thread per duty, as in Storm and JStorm, whose writes interleave.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.heartbeats import master_task
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.worker_spec import unknown_store
from sparkstorm.common.settings import NimbusSettings
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.task_beats import TaskBeatGatherer
from sparkstorm.control_plane.nimbus.assigner import Assigner
from sparkstorm.control_plane.nimbus.assignment_restorer import AssignmentRestorer
from sparkstorm.control_plane.nimbus.cleanup import TopologyCleanup
from sparkstorm.control_plane.nimbus.cluster_reader import ClusterReader, Reading
from sparkstorm.control_plane.nimbus.deploy import Deploys
from sparkstorm.control_plane.nimbus.error_reports import ErrorReports, FailurePauses, ProblemBoard
from sparkstorm.control_plane.nimbus.extension import nimbus_extensions
from sparkstorm.control_plane.nimbus.heartbeat_monitor import HeartbeatMonitor, StoreWatch
from sparkstorm.control_plane.nimbus.hooks import NimbusHooks
from sparkstorm.control_plane.nimbus.parts import NimbusParts, OutcomeWriter
from sparkstorm.control_plane.nimbus.rebalance import Rebalancer
from sparkstorm.control_plane.nimbus.request_verbs import RequestVerbs
from sparkstorm.control_plane.nimbus.requests import RequestDuty
from sparkstorm.control_plane.nimbus.supervisor_changes import SupervisorChanges
from sparkstorm.control_plane.scheduling.lifecycle import Effect, due_request, transition
from sparkstorm.control_plane.scheduling.view import Scheduler

_LOG = logging.getLogger(__name__)
# How often a killed topology is looked at until its workers are gone. Half would be ten looks a
# second for something that takes a worker's last epoch; double adds itself to each kill.
_DYING_RECHECK_MS = 200
# How often an upgrade's workers are judged and its time limit is looked at. Heartbeats come about
# once a second; more looks would judge the same counts again.
_UPGRADE_RECHECK_MS = 1_000

Duty = Callable[[Reading, int], bool]


@dataclass(slots=True)
class NextTurn:
    """Time of the next turn, and requests to take it earlier."""

    due_ms: int = 0
    is_round: bool = True  # something has changed: everything is looked at, at once
    # requests or upgrades go on at once; no round for schedulers that count rounds
    is_asked: bool = False

    @property
    def is_at_once(self) -> bool:
        """Return whether the turn waits for nothing."""
        return self.is_round or self.is_asked


class NimbusDuties:
    """Duties of one leadership; `wake` and `ask` may be called by any thread, `next_turn` is
    Nimbus's own.
    """

    def __init__(
        self,
        state: StormState,
        blobs: BlobStore,
        scheduler: Scheduler,
        conf: dict[str, Any],
        hooks: NimbusHooks,
        next_turn: NextTurn,
        wake: Callable[[], None],
        ask: Callable[[], None],
    ) -> None:
        self._state = state
        self._hooks = hooks
        self._next = next_turn
        self._wake = wake
        self._changes = SupervisorChanges(state, hooks.wake)
        settings = NimbusSettings.of(conf)
        self.board = ProblemBoard(state)
        self.reader = ClusterReader(state, blobs, conf, hooks.read_counts)
        self._heartbeat_monitor = HeartbeatMonitor(settings)
        self._stores = StoreWatch(settings)
        self._error_reports = ErrorReports(state)
        self.assigner = Assigner(
            state, self.reader, self._heartbeat_monitor, scheduler, conf, self._stores
        )
        self.cleanup = TopologyCleanup(state, blobs, settings, hooks)
        parts = NimbusParts(
            state,
            blobs,
            conf,
            self.reader,
            self.assigner,
            self.cleanup,
            OutcomeWriter(state),
            hooks,
        )
        self._rebalancer = Rebalancer(parts)
        self._deploys = Deploys(parts)
        self._extensions = nimbus_extensions(parts, ask)
        verbs = RequestVerbs(parts, self._rebalancer, self._deploys, self._extensions)
        self._requests = RequestDuty(parts, verbs, self._read, ask)
        self._pauses = FailurePauses(state)
        self._gatherer = TaskBeatGatherer(state, settings.task_heartbeat_ms)
        restorer = AssignmentRestorer(state, self.assigner.publish)
        # The order decides: records are whole before a duty acts on them, a due kill comes before
        # requests for its name, monitoring after all duties that change what should run.
        self.in_turn: tuple[Duty, ...] = (
            restorer.restore,
            self._run_timers,
            self._serve,
            self._extend,
        )
        self.in_round: tuple[Duty, ...] = (
            self._monitor,
            self._pause,
            self._gather,
            self.cleanup.sweep,
            self._requests.sweep,
        )

    def note_trouble(self) -> None:
        """Judge no silence by what was seen so far: the store did not answer, or our session was
        lost.
        """
        self._heartbeat_monitor.note_trouble()

    def turn(self, now_ms: int, is_round: bool) -> None:
        """Carry out what is due now, show the problems, and return when the next turn is due."""
        reading = self._read(now_ms)
        for duty in self.in_turn + (self.in_round if is_round else ()):
            if duty(reading, now_ms):
                reading = self._read(now_ms)
        self._show_problems(reading, now_ms)
        self._plan_next_turn(reading, now_ms)

    def _show_problems(self, reading: Reading, now_ms: int) -> None:
        problems_by_finder = {
            "reading": reading.problems,
            "deploys": self._deploys.problems,
            "requests": self._requests.problems,
            "cleanup": self.cleanup.problems,
            "stores": {**self._stores.problems, **self._without_store(reading)},
            "leader": {},
            "turn": {},
        }
        for finder, problems in problems_by_finder.items():
            self.board.put(finder, problems)
        self.board.show(now_ms)

    def _without_store(self, reading: Reading) -> dict[str, str]:
        """Return a sentence for each topology whose data are in a store that is not among this
        driver's.
        """
        known_stores = ("", *self._hooks.store_names)
        return {
            base.topology_id: str(unknown_store(base.topology_id, store, self._hooks.store_names))
            for base in reading.bases.values()
            for store in base.stores
            if store not in known_stores and base.status != TopologyStatus.KILLED
        }

    def _read(self, now_ms: int) -> Reading:
        self._changes.begin_reading()
        reading = self.reader.read(self._wake, self._changes.hint_of)
        supervisors = reading.snapshot.supervisors
        self._changes.note_read(supervisors)
        for name, problem in reading.problems.items():
            if self.board.problems.get(name) != problem:
                _LOG.error("%s is left out: %s", name, problem)
        self._heartbeat_monitor.observe(reading, now_ms)
        self._stores.observe(supervisors.values(), now_ms)
        return reading

    def _plan_next_turn(self, reading: Reading, now_ms: int) -> None:
        dues = [self._next.due_ms, *self._requests.waits_by_name.values()]
        # What is late waits for workers that end, or for records that cannot be read: not at once
        # again.
        soonest_ms = now_ms + _DYING_RECHECK_MS
        if (move_ms := self._stores.due_ms) is not None:
            dues.append(max(move_ms, soonest_ms))
        for base in reading.bases.values():
            if base.pending:
                dues.append(max(base.pending.due_ms, soonest_ms))
            if base.status in (TopologyStatus.UPGRADING, TopologyStatus.ROLLBACK):
                dues.append(now_ms + _UPGRADE_RECHECK_MS)
            if (
                base.status == TopologyStatus.KILLED
                and base.topology_id not in reading.snapshot.assignments
            ):
                dues.append(soonest_ms)
        self._next.due_ms = min(dues)

    def needs_scheduling(self) -> bool:
        """Return whether a supervisor that changed offers a slot that was not there, or has lost or
        found Redis or its driver; one with new trials of code is a reason to serve requests.
        """
        needs_scheduling = self._changes.needs_scheduling()
        self._next.is_asked |= self._changes.has_new_trials
        return needs_scheduling

    # -- duties of each turn -----------------------------------------------------------------------

    def _run_timers(self, reading: Reading, now_ms: int) -> bool:
        """Carry out what is due; whether something changed."""
        has_changed = False
        for base in reading.bases.values():
            has_changed |= self._run_timer(base, reading, now_ms)
        return has_changed

    def _run_timer(self, base: TopologyBase, reading: Reading, now_ms: int) -> bool:
        if base.status == TopologyStatus.KILLED:
            if self.cleanup.advance(base, now_ms):
                self._hooks.notify(base.name, "removeTopology")
            return True
        request = due_request(base, now_ms)
        topology = reading.snapshot.topologies.get(base.topology_id)
        if request is None or topology is None:
            return False
        decision = transition(base, request, now_ms, 0)
        if decision.effect == Effect.REBALANCE:
            self._rebalancer.carry_out(topology, decision, reading, now_ms)
        return True

    def _serve(self, reading: Reading, now_ms: int) -> bool:
        """Serve clients' requests and go on with hot deploys; another turn follows at once what was
        changed.
        """
        has_changed = self._requests.advance(reading, now_ms)
        if has_changed:
            reading = self._read(now_ms)
        has_changed = self._deploys.advance(reading, now_ms) or has_changed
        self._next.is_round |= has_changed
        return has_changed

    def _extend(self, reading: Reading, now_ms: int) -> bool:
        """Do what extensions have due; another turn follows at once what was written."""
        has_changed = False
        for extension in self._extensions:
            has_changed |= extension.advance(reading, now_ms)
        self._next.is_asked |= has_changed
        return has_changed

    # -- duties of a round -------------------------------------------------------------------------

    def _monitor(self, reading: Reading, now_ms: int) -> bool:
        """Replace what has died; nothing after it in a turn looks at places."""
        alive = self._heartbeat_monitor.alive(reading.snapshot, now_ms)
        lost = self._error_reports.losses(reading.snapshot, reading.beats)
        problems = {
            **lost,
            **self._error_reports.report_failed_starts(reading.snapshot, reading.beats, now_ms),
        }
        try:
            plan = self.assigner.plan(reading.snapshot, alive, now_ms)
        except FailedAssignTopologyError as error:
            _LOG.error("%s; the last good assignments stand", error)
            self.board.put("round", {**problems, "scheduler": str(error)})
            return False
        problems |= plan.refused
        if plan.blacklisted_hosts:
            hosts = ", ".join(sorted(plan.blacklisted_hosts))
            problems["blacklist"] = (
                f"{hosts}: a supervisor or a port was missing there too often, "
                "so the host gets nothing until blacklist.scheduler.resume.time.secs have passed"
            )
        self.board.put("round", problems)
        # Deaths are reported before the assignments that replace them: afterwards the places are
        # unknown.
        self._error_reports.report_deaths(reading.snapshot, alive, now_ms)
        for assignment in plan.assignments:
            self.assigner.publish(assignment, reading.bases[assignment.topology_id].name)
        self._remove_beats_of_gone(reading)
        return False

    def _pause(self, reading: Reading, _now_ms: int) -> bool:
        """Deactivate topologies most of whose tuples fail."""
        did = self._pauses.advance(reading)
        self.board.put("pauses", self._pauses.problems)
        return did

    def _gather(self, reading: Reading, now_ms: int) -> bool:
        """Write the task heartbeats of topologies without a topology master."""
        self._gatherer.keep_only(set(reading.bases))
        for topology_id, topology in reading.snapshot.topologies.items():
            components = topology.outline.component_by_task
            if master_task(components) is None and self._gatherer.is_due(topology_id, now_ms):
                beats = [beat for beat in reading.beats if beat.topology_id == topology_id]
                self._gatherer.step(topology_id, beats, components, now_ms)
        return False

    def _remove_beats_of_gone(self, reading: Reading) -> None:
        """Remove heartbeats of replaced workers that no other process removes: their supervisor and
        their driver are gone.
        """
        gone = reading.gone_nodes()
        for beat in reading.beats if gone else ():
            slot = beat.slot
            assignment = reading.snapshot.assignments.get(beat.topology_id)
            if beat.node in gone and assignment is not None and not assignment.executors_at(slot):
                self._state.remove_worker_beat(beat.topology_id, slot)
