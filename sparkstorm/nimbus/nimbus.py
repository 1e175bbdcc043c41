"""Nimbus: a turn reads everything, decides purely and writes only differences.

Nothing Nimbus needs to go on is in its memory: a new one on the same store takes up requests, timers, kills and hot deploys
where the old one was (S3.37). Memory holds only sightings (who beat when), which a new one gathers afresh without burying
anyone; a Nimbus that stands by has none of use, and begins afresh when it leads. Nimbus never sleeps and starts no thread:
whoever drives it calls `step` when it is due or `wake` was called.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from sparkstorm.blobs.store import BlobStore
from sparkstorm.cluster.master_duties import TaskBeatGatherer, master_task
from sparkstorm.cluster.nimbus_state import DriverInfo, NimbusInfo
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.errors import FailedAssignTopologyError, SparkStormError, StoreInconsistentError, StoreUnavailableError
from sparkstorm.model.assignment import SupervisorInfo, TopologyBase, WorkerSlot
from sparkstorm.model.status import TopologyStatus
from sparkstorm.nimbus.assigner import Assigner
from sparkstorm.nimbus.assignment_restorer import AssignmentRestorer
from sparkstorm.nimbus.cleanup import TopologyCleanup
from sparkstorm.nimbus.cluster_reader import ClusterReader, Reading
from sparkstorm.nimbus.deploy import Deploys
from sparkstorm.nimbus.error_reports import ErrorReports, FailurePauses, ProblemBoard
from sparkstorm.nimbus.gray_upgrade import GrayUpgrades
from sparkstorm.nimbus.heartbeat_monitor import HeartbeatMonitor, StoreWatch
from sparkstorm.nimbus.parts import NimbusParts, OutcomeWriter, TopologyActionListener
from sparkstorm.nimbus.rebalance import Rebalancer
from sparkstorm.nimbus.request_verbs import RequestVerbs
from sparkstorm.nimbus.requests import RequestDuty
from sparkstorm.scheduling.lifecycle import Effect, due_request, transition
from sparkstorm.scheduling.view import Scheduler
from sparkstorm.settings import NimbusSettings

_LOG = logging.getLogger(__name__)
# How often a follower looks at the leader. It may be long: the end of the leader's session wakes
# it.
_STAND_BY_MS = 1_000
_DYING_RECHECK_MS = 200  # how often a killed topology is looked at until its workers are gone
_UPGRADE_RECHECK_MS = 1_000  # how often an upgrade's workers are judged and its time limit is looked at


class Nimbus:
    """Storm's master as a stepped machine over the store; one leads, the others are on standby.

    `driver` says who leads; `depose` is asked whether the leader is known to be dead, and ends its leadership before its
    session does; `on_lead` is called when this Nimbus begins to lead.
    """

    def __init__(
        self,
        state: StormState,
        blobs: BlobStore,
        scheduler: Scheduler,
        conf: Mapping[str, Any],
        owner: str = "nimbus",
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = NimbusSettings.of(conf)
        self.listeners: list[TopologyActionListener] = []
        self.is_leading = False
        self.leader: NimbusInfo | None = None
        self.driver: DriverInfo | None = None
        self.depose: Callable[[NimbusInfo], bool] = lambda _leader: False
        self.on_lead: Callable[[], None] = lambda: None
        self._state, self._blobs, self._scheduler, self._conf = state, blobs, scheduler, dict(conf)
        self._owner, self._wake_drive = owner, wake
        self.cleanup = TopologyCleanup(state, blobs, self._settings)
        self._is_dirty = True
        self._is_asked = False
        self._hint_by_node: dict[str, Callable[[], None]] = {}
        self._changed_nodes: set[str] = set()  # supervisors whose records have changed since they were read
        self._info_by_node: Mapping[str, SupervisorInfo] = {}  # as they were read
        self._due_ms = 0
        self._epoch = state.store.session_epoch
        self._forget()

    def _forget(self) -> None:
        """Make all parts anew: what was remembered of the cluster is out of date once another may have led."""
        state, conf = self._state, self._conf
        retirement = self.cleanup.retirement
        self.cleanup = TopologyCleanup(state, self._blobs, self._settings)
        self.cleanup.retirement = retirement
        self._reader = ClusterReader(state, self._blobs, conf)
        self._observer = HeartbeatMonitor(self._settings)
        self._stores = StoreWatch(self._settings)
        self._reporter = ErrorReports(state)
        self._assigner = Assigner(state, self._reader, self._observer, self._scheduler, conf, self._stores)
        outcomes = OutcomeWriter(state)
        parts = NimbusParts(state, self._blobs, conf, self._reader, self._assigner, self.cleanup, outcomes, self.notify)
        self._rebalancer = Rebalancer(parts)
        self._deploys = Deploys(parts)
        self._upgrades = GrayUpgrades(parts, self._ask)
        verbs = RequestVerbs(parts, self._rebalancer, self._deploys, self._upgrades)
        self._requests = RequestDuty(parts, verbs, self._read, self._ask)
        restorer = AssignmentRestorer(state, self._assigner.publish)
        self._duties: tuple[Callable[[Reading, int], bool], ...] = (restorer.restore, self._run_timers, self._serve, self._upgrade)
        self._pauses = FailurePauses(state)
        self._round_duties = (self._monitor, self._pause, self._gather, self.cleanup.sweep, self._requests.sweep)
        self._gatherer = TaskBeatGatherer(state, self._settings.task_heartbeat_ms)
        self._board = ProblemBoard(state)

    @property
    def problems(self) -> Mapping[str, str]:
        """Return what keeps this Nimbus from something: sentences by topology, supervisor, slot, or word."""
        return self._board.problems

    # -- being driven --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Ask for a turn at once; any thread, never blocks."""
        self._is_dirty = True
        self._wake_drive()

    def _ask(self) -> None:
        """Ask for a turn that serves requests: a question is no round for schedulers that count rounds."""
        self._is_asked = True
        self._wake_drive()

    def step(self, now_ms: int) -> int:
        """Take a turn when one is due; return when the next is. StoreUnavailableError is for the drive to retry."""
        is_round = self._is_dirty or now_ms >= self._due_ms or self._has_new_slots()
        if is_round or self._is_asked:
            self._is_dirty = self._is_asked = False
            self._try_turn(now_ms, is_round)
        return now_ms if self._is_dirty or self._is_asked else self._due_ms

    def _hint_of(self, node: str) -> Callable[[], None]:
        return self._hint_by_node.setdefault(node, lambda: self._note_change(node))

    def _note_change(self, node: str) -> None:
        self._changed_nodes.add(node)
        self._wake_drive()

    def _has_new_slots(self) -> bool:
        """Look at supervisors that changed; whether one offers a slot that was not there, or has lost or found Redis.

        One with new trials of code is a reason to serve requests.
        """
        while self.is_leading and self._changed_nodes:
            node = self._changed_nodes.pop()
            try:
                info = self._state.read_supervisor(node, self._hint_of(node))
            except StoreInconsistentError:
                continue  # the next round names it
            if info is None:
                continue
            known = self._info_by_node.get(node)
            if known is None or not set(known.ports).issuperset(info.ports):
                return True
            if bool(known.store_problem) is not bool(info.store_problem):
                return True
            self._is_asked |= not (known.trials or {}).keys() >= (info.trials or {}).keys()
        return False

    def _try_turn(self, now_ms: int, is_round: bool) -> None:
        try:
            self._turn(now_ms, is_round)
        except StoreUnavailableError:
            self._observer.note_trouble()
            self._is_dirty = True
            raise
        except SparkStormError as error:
            # A record that changed under our hands, or is no record: the next turn reads everything anew.
            _LOG.error("this turn broke off: %s", error)
            self._board.put("turn", {"turn": str(error)})
            self._board.show(now_ms)

    def _turn(self, now_ms: int, is_round: bool) -> None:
        if is_round:
            self._due_ms = now_ms + self._settings.round_ms
        if not self._lead(now_ms):
            self._stand_by(now_ms)
            return
        reading = self._read(now_ms)
        for duty in self._duties + (self._round_duties if is_round else ()):
            if duty(reading, now_ms):
                reading = self._read(now_ms)
        found = {
            "reading": reading.problems,
            "deploys": self._deploys.problems,
            "requests": self._requests.problems,
            "upgrades": self._upgrades.problems,
            "cleanup": self.cleanup.problems,
            "stores": self._stores.problems,
            "leader": {},
            "turn": {},
        }
        for finder, problems in found.items():
            self._board.put(finder, problems)
        self._board.show(now_ms)
        self._plan_next_turn(reading, now_ms)

    def _lead(self, now_ms: int) -> bool:
        """Stand for election; whether this Nimbus leads."""
        epoch, was_leading = self._state.store.session_epoch, self.is_leading
        self.is_leading = False  # whatever the store answers
        me = NimbusInfo(self._owner, now_ms, self.driver)
        if not self._state.try_lead(me):
            return False
        if not was_leading or epoch != self._epoch:
            _LOG.info("%s leads", self._owner)
            self._forget()
            self.leader = me
            self.on_lead()
        if epoch != self._epoch:
            self._epoch = epoch
            self._observer.note_trouble()
        self.is_leading = True
        return True

    def _stand_by(self, now_ms: int) -> None:
        """Another leads: wait for its end."""
        self._due_ms = now_ms + _STAND_BY_MS
        self.leader = leader = self._state.read_leader(self.wake)
        self._is_dirty = leader is None or self.depose(leader)
        if leader:
            self._board = ProblemBoard(self._state)  # what it found while it led is the leader's to say now
            self._board.put("leader", {"leader": f"{leader.owner} leads, this Nimbus stands by"})

    def _read(self, now_ms: int) -> Reading:
        self._changed_nodes.clear()
        reading = self._reader.read(self.wake, self._hint_of)
        self._info_by_node = supervisors = reading.snapshot.supervisors
        self._hint_by_node = {node: hint for node, hint in self._hint_by_node.items() if node in supervisors}
        for name, problem in reading.problems.items():
            if self.problems.get(name) != problem:
                _LOG.error("%s is left out: %s", name, problem)
        self._observer.observe(reading, now_ms)
        self._stores.observe(supervisors.values(), now_ms)
        return reading

    def _plan_next_turn(self, reading: Reading, now_ms: int) -> None:
        self._due_ms = min([self._due_ms, *self._requests.waits_by_name.values()])
        if (move_ms := self._stores.due_ms) is not None:
            self._due_ms = min(self._due_ms, max(move_ms, now_ms + _DYING_RECHECK_MS))
        for base in reading.bases.values():
            if base.pending:
                # Late ones wait for their workers, or for records that cannot be read.
                self._due_ms = min(self._due_ms, max(base.pending.due_ms, now_ms + _DYING_RECHECK_MS))
            if base.status in (TopologyStatus.UPGRADING, TopologyStatus.ROLLBACK):
                self._due_ms = min(self._due_ms, now_ms + _UPGRADE_RECHECK_MS)
            if base.status == TopologyStatus.KILLED and base.topology_id not in reading.snapshot.assignments:
                self._due_ms = min(self._due_ms, now_ms + _DYING_RECHECK_MS)

    # -- duties --------------------------------------------------------------------------------------------------

    def _run_timers(self, reading: Reading, now_ms: int) -> bool:
        """Carry out what is due; whether something changed."""
        has_changed = False
        for base in reading.bases.values():
            has_changed |= self._run_timer(base, reading, now_ms)
        return has_changed

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
            self._rebalancer.carry_out(known, decision, reading, now_ms)
        return True

    def _serve(self, reading: Reading, now_ms: int) -> bool:
        """Serve clients' requests and go on with hot deploys; another turn follows at once what was changed."""
        has_changed = self._requests.advance(reading, now_ms)
        if has_changed:
            reading = self._read(now_ms)
        has_changed = self._deploys.advance(reading, now_ms) or has_changed
        self._is_dirty |= has_changed
        return has_changed

    def _upgrade(self, reading: Reading, now_ms: int) -> bool:
        """Carry gray upgrades on; another turn follows at once what was written."""
        has_changed = self._upgrades.advance(reading, now_ms)
        self._is_asked |= has_changed
        return has_changed

    def _monitor(self, reading: Reading, now_ms: int) -> bool:
        """Replace what has died; nothing after it in a turn looks at places."""
        alive = self._observer.alive(reading.snapshot, now_ms)
        lost = self._reporter.losses(reading.snapshot, reading.beats)
        found = {**lost, **self._reporter.report_failed_starts(reading.snapshot, reading.beats, now_ms)}
        try:
            plan = self._assigner.plan(reading.snapshot, alive, now_ms)
        except FailedAssignTopologyError as error:
            _LOG.error("%s; the last good assignments stand", error)
            self._board.put("round", {**found, "scheduler": str(error)})
            return False
        found |= plan.refused
        if plan.blacklisted_hosts:
            hosts = ", ".join(sorted(plan.blacklisted_hosts))
            found["blacklist"] = (
                f"{hosts}: a supervisor or a port was missing there too often, "
                "so the host gets nothing until blacklist.scheduler.resume.time.secs have passed"
            )
        self._board.put("round", found)
        self._reporter.report_deaths(reading.snapshot, alive, now_ms)
        for assignment in plan.assignments:
            self._assigner.publish(assignment, reading.bases[assignment.topology_id].name)
        self._remove_beats_of_gone(reading)
        return False

    def _pause(self, reading: Reading, _now_ms: int) -> bool:
        """Deactivate topologies most of whose tuples fail."""
        did = self._pauses.advance(reading)
        self._board.put("pauses", self._pauses.problems)
        return did

    def _gather(self, reading: Reading, now_ms: int) -> bool:
        """Write the task heartbeats of topologies without a topology master."""
        self._gatherer.keep_only(set(reading.bases))
        for topology_id, known in reading.snapshot.topologies.items():
            components = known.outline.component_by_task
            if master_task(components) is None and self._gatherer.is_due(topology_id, now_ms):
                beats = [beat for beat in reading.beats if beat.topology_id == topology_id]
                self._gatherer.step(topology_id, beats, components, now_ms)
        return False

    def _remove_beats_of_gone(self, reading: Reading) -> None:
        """Remove heartbeats of replaced workers that no other process removes: their supervisor and their driver are gone."""
        gone = reading.gone_nodes()
        for beat in reading.beats if gone else ():
            slot, assignment = WorkerSlot(beat.node, beat.port), reading.snapshot.assignments.get(beat.topology_id)
            if beat.node in gone and assignment is not None and not assignment.executors_at(slot):
                self._state.remove_worker_beat(beat.topology_id, slot)

    def notify(self, topology_name: str, action: str) -> None:
        """Tell the listeners; what they raise is logged (S0.51)."""
        for listener in self.listeners:
            try:
                listener.notify(topology_name, action)
            except Exception:  # user code
                _LOG.exception("a topology action listener failed on %s of %s", action, topology_name)
