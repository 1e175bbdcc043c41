"""One slot: a process (a Spark task or a plain one) that keeps one worker process as its assignment
asks for.

The main thread steps the slot's machine and handles the child; a sync in a second thread talks to
the stores.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparkstorm.common.config import Conf, default_conf, merge
from sparkstorm.common.errors import SparkStormError, StoreInconsistentError
from sparkstorm.common.model.assignment import ExecutorId, WorkerCode, WorkerSlot
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.names import file_name
from sparkstorm.common.model.status import JsonValue
from sparkstorm.common.model.worker_messages import (
    NO_SHADOW,
    Alive,
    Beat,
    ComponentError,
    ExitCode,
    Exiting,
    Ready,
    SetLogLevels,
    SetStatus,
    Stop,
    WorkerReport,
)
from sparkstorm.common.model.worker_spec import WorkerSpec, read_mark
from sparkstorm.common.settings import MemorySettings, SupervisorSettings
from sparkstorm.common.slot_spec import SlotSpec
from sparkstorm.control_plane.supervisor.base import Lock, NodeStorage, SpawnWorker, WorkerProcess
from sparkstorm.control_plane.supervisor.heartbeat_pace import HeartbeatPace
from sparkstorm.control_plane.supervisor.poison_detector import PoisonDetector
from sparkstorm.control_plane.supervisor.slot_code import Code
from sparkstorm.control_plane.supervisor.slot_machine import (
    ChildView,
    DumpStacks,
    FetchBlob,
    KillChild,
    LocalAssignment,
    Observation,
    Phase,
    SlotAction,
    SlotState,
    StartChild,
    StopChild,
    WorkerExited,
    settle,
    timing_of,
)
from sparkstorm.control_plane.supervisor.slot_reports import (
    CRASHES,
    ReportSubject,
    SlotReports,
    cause_of_end,
    crash_place,
)
from sparkstorm.control_plane.supervisor.slot_sync import DesiredState, SlotSync
from sparkstorm.control_plane.supervisor.supervisor import LocalBeat, write_local_beat
from sparkstorm.control_plane.supervisor.worker_memory import MemoryWatch

_LOG = logging.getLogger(__name__)
LOG_CAP_BYTES = 64 * 1024 * 1024
HOUSE_MS = 1_000
MAX_STEP_MS = 100
MAX_MESSAGE_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class Launches:
    """Number of worker processes that this (node, port) has had, or more: the minor part of a fence
    token.
    """

    count: int


@dataclass(frozen=True, slots=True)
class ClaimedSlot:
    """Node and port that a slot process has claimed, with its host and storage; the claim ends with
    the process.
    """

    slot: WorkerSlot
    host: str
    node_dir: NodeStorage
    claim: Lock
    cpus: tuple[int, ...] = ()


class Child:
    """The living worker, and the slot's records of it."""

    def __init__(self, process: WorkerProcess, spec: WorkerSpec, now_ms: int) -> None:
        self.process = process
        self.spec = spec
        self.started_ms = now_ms
        self.view = ChildView(now_ms)
        self.order = SetStatus(spec.status, spec.activations)
        self.log_levels: Mapping[str, str] = {}
        self.shadow = NO_SHADOW
        self.stats: dict[str, JsonValue] = {}
        self.last_words = ""
        self.hung_s = 0  # time without progress when it was asked where it hangs
        # a thread of it has reported that the process runs, apart from its loop
        self.says_alive = False
        self.memory = MemoryWatch(MemorySettings.of(spec.conf).limit_mb)
        self.must_end_ms: int | None = None  # when it is killed if it does not end by itself
        self.has_reported_end = False  # its end is an error record already
        self.oom_kills = process.oom_kills()


class Slot:
    """The slot's main thread, between two waits: `step` does everything that is due."""

    def __init__(
        self, spec: SlotSpec, claimed: ClaimedSlot, sync: SlotSync, spawn: SpawnWorker
    ) -> None:
        self._spec = spec
        self._claimed = claimed
        self._sync = sync
        self._spawn = spawn
        self._conf = merge(default_conf(), spec.conf)
        self._timing = timing_of(self._conf)
        self._state = SlotState()
        self._child: Child | None = None
        self._suspicion = PoisonDetector()
        self._message = ""
        self._reports = SlotReports(claimed.host, str(claimed.slot), sync.report)
        # as far as this process knows, should the disk refuse to keep the number
        self._launches = 0
        self._disk_problem = ""  # why this host refused the last write
        self._pace = HeartbeatPace(SupervisorSettings.of(self._conf).worker_heartbeat_ms)
        self._house_due_ms = 0

    @property
    def is_over(self) -> bool:
        """Return whether the slot is stopped and has no worker process left."""
        return self._state.phase is Phase.STOPPED

    @property
    def phase(self) -> Phase:
        """Phase of the slot."""
        return self._state.phase

    @property
    def due_ms(self) -> int:
        """Return when the phase's own wait ends; in the past when it has none."""
        return self._state.due_ms

    @property
    def is_settled(self) -> bool:
        """Return whether the slot matches the wish of its sync: no worker, or a worker that runs
        with the status of the wish.
        """
        wish = self._sync.wish
        state = self._state
        child = self._child
        if wish is None or child is None:
            return wish is None and state.phase is Phase.EMPTY
        is_same = state.assignment == wish.assignment and child.order == wish.order
        return is_same and state.phase is Phase.RUNNING and child.view.exit_code is None

    def filenos(self) -> list[int]:
        """Descriptors whose readiness is a reason to step."""
        return self._child.process.filenos() if self._child else []

    def step(self, now_ms: int) -> int:
        """Read the child's reports, step the machine, write heartbeats; return when to be called
        again at the latest.
        """
        self._hear(now_ms)
        while True:
            before = self._state
            self._state, actions = settle(before, self._observe(), now_ms, self._timing)
            for action in actions:
                self._carry_out(action, now_ms)
            if self._state.phase is not before.phase:
                _LOG.info("slot %s: %s -> %s", self._claimed.slot, before.phase, self._state.phase)
                self._pace.hurry()
                self._leave_if_over(before)
            if not actions and self._state == before:
                break
        self._pass_status()
        self._beat(now_ms)
        try:
            self._keep_house(now_ms)
        except OSError as fault:
            # a full disk or no more processes: no reason to end a worker that works
            self._note_disk(fault)
        return min(
            now_ms + MAX_STEP_MS,
            self._state.due_ms if self._state.due_ms > now_ms else now_ms + MAX_STEP_MS,
        )

    def _leave_if_over(self, before: SlotState) -> None:
        """Have the beat removed of a topology that ends between two of its workers: its end waits
        for that.
        """
        if before.phase is Phase.WAITING_FOR_RELAUNCH and before.assignment is not None:
            now = self._state.assignment
            if now is None or now.topology_id != before.assignment.topology_id:
                self._sync.leave(before.assignment.topology_id)

    def close(self) -> None:
        """Kill all processes that still live."""
        if self._child is not None:
            self._child.process.close()
        self._child = None

    # -- reports of the child ----------------------------------------------------------------------

    def _hear(self, now_ms: int) -> None:
        child = self._child
        if child is None:
            return
        # Death is checked first: all reports that the child wrote before it are then in the pipe.
        exit_code = child.process.poll_exit()
        for report in child.process.poll_reports():
            self._take(child, report, now_ms)
        if exit_code is not None:
            child.view = replace(child.view, exit_code=exit_code)

    def _take(self, child: Child, report: WorkerReport, now_ms: int) -> None:
        child.says_alive |= isinstance(report, Alive)
        is_stuck = isinstance(report, Alive) and not report.is_printing
        moved_ms = child.view.stuck_since_ms if is_stuck else now_ms
        child.view = replace(child.view, heard_ms=now_ms, moved_ms=moved_ms)
        self._suspicion = self._suspicion.heard(report)
        if isinstance(report, Ready):
            child.view = replace(child.view, ready=True)
            self._message = ""
            child.has_reported_end = False
        elif isinstance(report, Beat):
            child.stats = dict(report.stats)
            self._reports.standstill(
                ReportSubject.of_spec(child.spec), child.stats.get("blocked"), now_ms
            )
            self._sync.marks.note(child.spec, read_mark(child.stats.get("store")))
        elif isinstance(report, ComponentError):
            child.has_reported_end |= not child.view.ready
            self._report_error(child, report.failure, now_ms)
        elif isinstance(report, Exiting) and child.must_end_ms is None:
            child.last_words = report.reason

    def _report_error(self, child: Child, failure: Failure, now_ms: int) -> None:
        text = failure.text
        if child.hung_s and failure.kind is FailureKind.HUNG:
            silence = f"hung: no progress for {child.hung_s} s"
            text, child.last_words = (
                silence + text,
                f"{silence} in '{failure.component}'#{failure.task}{text}",
            )
            child.has_reported_end = True
        slot = self._claimed.slot
        version = child.spec.code_key
        placed = replace(
            failure,
            text=text,
            time_ms=now_ms,
            host=self._claimed.host,
            worker=str(slot),
            code_version=version,
        )
        self._sync.report(child.spec.topology_id, placed)

    def _note_disk(self, fault: OSError) -> None:
        if self._disk_problem != str(fault):
            _LOG.warning("slot %s: %s", self._claimed.slot, fault)
        self._disk_problem = str(fault)

    # -- actions of the machine --------------------------------------------------------------------

    def _observe(self) -> Observation:
        wish = self._sync.wish
        assignment = self._state.assignment
        blob = self._sync.code.view(assignment) if assignment else Observation().blob
        child = self._child.view if self._child else None
        return Observation(wish.assignment if wish else None, blob, child, self._sync.stop)

    def _carry_out(self, action: SlotAction, now_ms: int) -> None:
        if isinstance(action, FetchBlob):
            self._suspicion = PoisonDetector()
            self._message = ""
            self._reports.begin()
            self._sync.code.order(action.assignment)
        elif isinstance(action, StartChild):
            self._start(action.assignment, now_ms)
        elif isinstance(action, WorkerExited):
            self._bury(action, now_ms)
        elif self._child is None:
            return
        elif isinstance(action, StopChild):
            self._child.process.order(Stop())
        elif isinstance(action, DumpStacks):
            self._ask_where_it_hangs(self._child, now_ms)
        elif isinstance(action, KillChild):
            self._child.process.kill()

    def _ask_where_it_hangs(self, child: Child, now_ms: int) -> None:
        child.hung_s = max(1, (now_ms - child.view.stuck_since_ms) // 1000)
        child.last_words = f"hung: no progress for {child.hung_s} s (its log shows where)"
        silent_ms = now_ms - child.view.heard_ms
        if child.says_alive and silent_ms >= self._timing.worker_timeout_ms:
            child.last_words = f"no sign of life for {silent_ms // 1000} s: it is stopped, or C code keeps the interpreter"
        child.process.dump_stacks()

    def _start(self, assignment: LocalAssignment, now_ms: int) -> None:
        wish = self._sync.wish
        code = self._sync.code.get(assignment)
        if wish is None or wish.assignment != assignment or code is None:
            # the code went from the disk: the failed start is tried again
            self._sync.code.order(assignment)
            self._message = f"the code of {assignment.topology_id} is gone from this machine"
            return
        try:
            conf = merge(self._conf, code.conf)
            self._timing = timing_of(conf)
            spec = self._worker_spec(wish, conf, code, now_ms)
            process = self._spawn()
        except (SparkStormError, OSError) as fault:
            _LOG.error("slot %s: no worker can be started: %s", self._claimed.slot, fault)
            self._message = f"no worker can be started: {fault}"
            self._reports.problem(ReportSubject.of_wish(wish), self._message, now_ms)
            return
        process.give(spec)
        process.rotate_log(LOG_CAP_BYTES)
        self._child = Child(process, spec, now_ms)

    def _worker_spec(self, wish: DesiredState, conf: Conf, code: Code, now_ms: int) -> WorkerSpec:
        assignment = wish.assignment
        slot = self._claimed.slot
        stores = [self._spec.stores.of(assignment.topology_id, store) for store in wish.stores]
        cell = wish.cell
        return WorkerSpec(
            topology_id=assignment.topology_id,
            node=slot.node,
            port=slot.port,
            host=self._claimed.host,
            launch=self._next_launch(now_ms),
            assignment_version=assignment.version,
            executors=assignment.executors,
            component_by_task=wish.component_by_task,
            conf=conf.as_dict(),
            code_key=assignment.code_key,
            conf_key=assignment.conf_key,
            redis=stores[cell],
            cell=cell,
            cells=tuple(stores) if len(stores) > 1 else (),
            log_path=str(Path(self._spec.log_dir) / worker_log_name(assignment.topology_id, slot)),
            status=wish.order.status,
            activations=wish.order.activations,
            code_path=str(code.code_path),
            blobs_folder=str(code.blobs or ""),
            careful=self._suspicion.careful,
            suspects=self._suspicion.suspects(),
            cpus=self._claimed.cpus,
            store_mark=self._sync.marks.get(assignment.topology_id, cell),
        )

    def _next_launch(self, now_ms: int) -> int:
        # Not below the clock's seconds: should this folder be lost, the numbers still go up.
        state = self._claimed.node_dir.worker_state(self._claimed.slot.port)
        try:
            last = state.get("launches", Launches)
        except StoreInconsistentError as fault:
            _LOG.warning("slot %s: %s; it is written afresh", self._claimed.slot, fault)
            last = None
        self._launches = max((last.count if last else 0) + 1, self._launches + 1, now_ms // 1000)
        try:
            state.put("launches", Launches(self._launches))
        except OSError as fault:
            # a full disk: the number still grows, in this process and by the clock
            self._note_disk(fault)
        return self._launches

    def _bury(self, action: WorkerExited, now_ms: int) -> None:
        child = self._child
        self._child = None
        if child is None:
            return
        child.process.close()
        self._sync.runs_nothing()
        log = child.process.last_lines(has_crashed := -action.exit_code in CRASHES)
        cause = cause_of_end(action.exit_code, child.process.oom_kills() > child.oom_kills)
        words = child.last_words or cause + (crash_place(log) if has_crashed else "")
        _LOG.info("slot %s: worker %d ended: %s", self._claimed.slot, child.process.pid, words)
        if action.blameless:
            self._sync.leave(child.spec.topology_id)
            self._message = ""
            return
        trying = self._suspicion.trying if action.started else None
        self._reports.note_death(words, now_ms, trying)
        tail = [line for line in log if not line.endswith(words)]  # reported already
        # its successor runs elsewhere
        is_said = child.has_reported_end or action.exit_code == ExitCode.FENCED
        # Nimbus records later ones
        if not is_said and (action.started or self._state.failed_starts <= 1):
            self._reports.end(
                ReportSubject.of_spec(child.spec), words, action.started, trying, tail, now_ms
            )
        if action.started:
            self._suspicion = self._suspicion.died(action.exit_code, bool(child.last_words), words)
        # the sentence stays whole, for any end of the log
        room = MAX_MESSAGE_CHARS - len(words[:MAX_MESSAGE_CHARS])
        # there a trace has less
        is_whole = action.exit_code in (ExitCode.DAMAGED, ExitCode.MISTAKEN)
        end = "" if is_whole else "".join(f"\n{line}" for line in tail)
        self._message = words[:MAX_MESSAGE_CHARS] + end[max(len(end) - room, 0) :]

    def _pass_status(self) -> None:
        wish = self._sync.wish
        child = self._child
        if wish is None or child is None or wish.assignment.topology_id != child.spec.topology_id:
            return
        if wish.order != child.order:
            child.order = wish.order
            child.process.order(wish.order)
        if wish.log_levels != child.log_levels and child.view.ready:
            child.log_levels = wish.log_levels
            child.process.order(SetLogLevels(wish.log_levels))
        if wish.shadow != child.shadow and child.view.ready:
            child.shadow = wish.shadow
            child.process.order(wish.shadow)

    def _beat(self, now_ms: int) -> None:
        assignment = self._state.assignment
        if assignment is None or not self._pace.is_due(now_ms):
            return
        slot = self._claimed.slot
        child = self._child
        by_executor, of_worker = _divide(child.stats if child else {})
        word = self._state.reported(self._timing)
        host_problem = self._sync.problem or self._disk_problem
        if host_problem and self._sync.wish is not None:
            self._reports.problem(ReportSubject.of_wish(self._sync.wish), host_problem, now_ms)
        beat = WorkerBeat(
            topology_id=assignment.topology_id,
            node=slot.node,
            port=slot.port,
            time_ms=now_ms,
            start_ms=child.started_ms if child else 0,
            pid=child.process.pid if child else 0,
            launch=child.spec.launch if child else 0,
            state=word,
            assignment_version=assignment.version,
            stats_by_executor=by_executor,
            stats={**of_worker, **self._figures(now_ms)},
            message=self._message or host_problem,
        )
        if self._pace.is_worth_writing(beat, of_worker, self._silent_ms(now_ms), now_ms):
            self._sync.beat(beat)
        if child is not None and child.stats and self._state.phase is Phase.RUNNING:
            self._sync.runs(
                child.spec.topology_id, WorkerCode(child.spec.code_key, child.spec.conf_key)
            )

    def _figures(self, now_ms: int) -> dict[str, JsonValue]:
        own: dict[str, JsonValue] = {
            **self._reports.figures(now_ms),
            "silent_ms": self._silent_ms(now_ms),
            "careful": self._suspicion.careful,
        }
        return {**(self._child.memory.figures() if self._child else {}), **own}

    def _silent_ms(self, now_ms: int) -> int:
        """Milliseconds since the running child's last sign of progress."""
        return (
            now_ms - self._child.view.stuck_since_ms
            if self._child and self._child.view.ready
            else 0
        )

    def _keep_house(self, now_ms: int) -> None:
        """Write the local heartbeat, and keep the worker's log and memory below their limits."""
        child = self._child
        if child and child.view.ready and now_ms >= self._house_due_ms:
            self._house_due_ms = now_ms + HOUSE_MS
            child.process.rotate_log(LOG_CAP_BYTES)
            self._watch_memory(child, now_ms)
            tasks = tuple(child.spec.tasks())
            beat = LocalBeat(
                child.spec.topology_id, self._claimed.slot.port, tasks, child.view.heard_ms
            )
            write_local_beat(self._claimed.node_dir, beat)
            self._disk_problem = ""

    def _watch_memory(self, child: Child, now_ms: int) -> None:
        """Measure the worker; warn when its limit is near, end it after its epoch when it is
        reached, hard if it must be.
        """
        if (usage := child.process.usage()) is not None:
            child.memory.note(now_ms, usage)
        if child.must_end_ms is not None and now_ms >= child.must_end_ms:
            child.process.kill()
        keeps = child.stats.get("keeps")
        complaint = child.memory.complaint(
            [str(name) for name in keeps] if isinstance(keeps, list) else []
        )
        if not complaint:
            return
        first = child.spec.tasks()[0]
        failure = Failure(FailureKind.SYSTEM, complaint, child.spec.component_by_task[first], first)
        self._report_error(child, failure, now_ms)
        if child.memory.is_over:
            child.has_reported_end = True
            child.last_words, child.must_end_ms = complaint, now_ms + self._timing.soft_kill_ms
            child.process.order(Stop())


def worker_log_name(topology_id: str, slot: WorkerSlot) -> str:
    """The file in the log folder that takes what this slot's workers of a topology print."""
    return f"{file_name(f'{topology_id}-{slot.node}-{slot.port}')}.log"


def _divide(
    stats: dict[str, JsonValue],
) -> tuple[dict[ExecutorId, JsonValue], dict[str, JsonValue]]:
    """A beat's statistics, keyed by executor ("1-3") or by a name of the worker's own."""
    by_executor: dict[ExecutorId, JsonValue] = {}
    of_worker: dict[str, JsonValue] = {}
    for name, value in stats.items():
        try:
            by_executor[ExecutorId.parse(name)] = value
        except ValueError:
            of_worker[name] = value
    return by_executor, of_worker
