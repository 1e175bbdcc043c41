"""Slot's store thread: reads the assignment, downloads code, writes heartbeats and errors.

It steps in a thread of its own, because ZooKeeper or Redis may keep it waiting for many seconds and
a dead worker may not wait for them. The slot's main thread reads `wish`, `stop` and `blob_view`,
and leaves beats and errors; every hand-over is one assignment or one deque operation.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sparkstorm.common.errors import (
    SparkStormError,
    StoreInconsistentError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import Assignment, WorkerBeat, WorkerCode, WorkerSlot
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.task_beats import master_task
from sparkstorm.common.model.tasks import cell_by_task
from sparkstorm.common.model.worker_messages import INACTIVE, NO_SHADOW, SetShadow, SetStatus
from sparkstorm.common.model.worker_spec import StoreMark, WorkerSpec, newer_mark
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.task_beats import TaskBeatGatherer
from sparkstorm.control_plane.supervisor.base import LogSink, NodeStorage
from sparkstorm.control_plane.supervisor.extension import SlotExtension, SlotView, slot_extensions
from sparkstorm.control_plane.supervisor.seen_versions import VersionGuard
from sparkstorm.control_plane.supervisor.slot_code import Code, SlotCode
from sparkstorm.control_plane.supervisor.slot_machine import BlobView, LocalAssignment
from sparkstorm.control_plane.supervisor.supervisor import SlotParts, Supervisor, part_of

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
Cell = tuple[str, int]
"""A topology's id, and the number of one of its cells."""
POLL_MS = 250  # between two readings when no hint came
FETCH_RETRY_MS = 3_000  # for the new code of a worker that runs
MAX_ERRORS_WAITING = 200
MARK_EVERY_MS = 1_000
REFUSED = "REFUSED"
"""Report of a slot that was given an older assignment than it has seen before."""
_WORKING = (TopologyStatus.ACTIVE, TopologyStatus.UPGRADING, TopologyStatus.ROLLBACK)


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Assignment of this slot, with the parts of the topology that its worker needs."""

    assignment: LocalAssignment
    order: SetStatus = INACTIVE
    component_by_task: Mapping[int, str] = field(default_factory=dict)
    # by logger, those whose time is not over
    log_levels: Mapping[str, str] = field(default_factory=dict)
    shadow: SetShadow = NO_SHADOW  # code that is to run beside one of the worker's tasks
    # names of the Redis that hold the topology's data, one for each of its cells
    stores: tuple[str, ...] = ("",)

    @property
    def cell(self) -> int:
        """Return the cell of this slot's tasks; StoreInconsistentError when they are of several."""
        if len(self.stores) == 1:
            return 0
        cells = cell_by_task(self.component_by_task, len(self.stores))
        part = self.assignment
        found = {cells.get(task, -1) for task in part.tasks}
        if len(found) != 1 or -1 in found:
            raise StoreInconsistentError(
                f"the assignment of {part.topology_id} puts tasks of several cells into one worker: rebalance it with --reassign"
            )
        return found.pop()


@dataclass(frozen=True, slots=True)
class SlotStores:
    """Stores of a connected slot process; with several Redis a topology's base names the one with
    its data.
    """

    state: StormState
    blobs: BlobStore
    supervisor: Supervisor
    logs: LogSink | None = None
    gatherer: TaskBeatGatherer | None = None
    has_several: bool = False


class SlotSync:
    """One slot's sync; `notify` wakes the slot's main thread when there is something new to see.

    `connect` opens the stores (StoreUnavailableError when it cannot, and it is tried again); an
    empty node that appears at `stop_path` ends the slot, one that holds the slot's `number` ends it
    if it has no worker.
    """

    def __init__(
        self,
        slot: WorkerSlot,
        node_dir: NodeStorage,
        connect: Callable[[], SlotStores],
        stop_path: str = "",
        number: int = 0,
    ) -> None:
        self._slot = slot
        self._dir = node_dir
        self._connect = connect
        self._stop_path = stop_path
        self._number = str(number).encode()
        self._opened: SlotStores | None = None
        self._extensions: tuple[SlotExtension, ...] = ()
        self._changed = threading.Event()
        self._assignments: dict[str, Assignment] = {}
        self._parts = SlotParts(slot)
        self._guard = VersionGuard(node_dir.seen_versions(slot.port))
        self._refused: dict[str, int] = {}  # versions whose refusal was reported
        self._refusals: deque[WorkerBeat] = deque(maxlen=1)
        self._beats: deque[WorkerBeat] = deque(maxlen=1)
        self._errors: deque[tuple[str, Failure]] = deque(maxlen=MAX_ERRORS_WAITING)
        self._left: deque[str] = deque()
        self._orders: deque[LocalAssignment] = deque(maxlen=1)
        self._code: dict[LocalAssignment, Code | BlobView] = {}
        self._status_read: TopologyStatus | None = None  # of the topology of the wish, as its store
        # new code that could not be had, and when to try again
        self._unfetched: tuple[LocalAssignment, int] | None = None
        self._fetch_problem = self._disk_problem = ""
        self._stores_read: tuple[str, ...] = ("",)
        # of the stores of topologies and cells, as this slot's workers and ZooKeeper know them
        self._marks: dict[Cell, StoreMark] = {}
        self._new_mark: Cell | None = None  # cell whose mark ZooKeeper lacks
        self._mark_due_ms = 0
        self._written_mark: tuple[Cell, StoreMark, int] | None = None  # cell, mark, session
        self._first_task: tuple[Cell, int] = (("", 0), 0)  # of the cell of the worker that runs
        # topology and code of a worker that has beaten
        self._runs: tuple[str, WorkerCode] | None = None
        self._slot_code = SlotCode(node_dir, slot.port, self.wake)
        self._duties: tuple[Callable[[int], None], ...] = (
            self._follow,
            self._supervise,
            self._fetch,
            self._renew_blobs,
            self._deliver,
            self._extend,
            self._gather,
            self._publish,
        )
        self.wish: DesiredState | None = None
        self.stop = False
        self.problem = ""  # why code could not be fetched, or what this host's disk refused
        self.notify: Callable[[], None] = lambda: None

    # -- the slot's side ---------------------------------------------------------------------------

    def beat(self, beat: WorkerBeat) -> None:
        """Leave the newest beat; an older one that still waits is replaced."""
        self._beats.append(beat)

    def runs(self, topology_id: str, code: WorkerCode) -> None:
        """Take note that the worker of that topology has beaten under that code."""
        self._runs = (topology_id, code)

    def runs_nothing(self) -> None:
        """Take note that the worker has ended."""
        self._runs = None

    def report(self, topology_id: str, error: Failure) -> None:
        """Leave an error; when hundreds wait, the oldest go."""
        self._errors.append((topology_id, error))

    def note_store(self, spec: WorkerSpec, mark: StoreMark | None) -> None:
        """Take in a worker's record of its store; the record of the worker with the lowest task, or
        of a new incarnation, counts for all.
        """
        cell = spec.topology_id, spec.cell
        known = self._marks.get(cell)
        if mark is None:
            return
        is_new = known is None or (known.incarnation, known.losses) != (
            mark.incarnation,
            mark.losses,
        )
        if (found := newer_mark(known, mark)) is not None:
            self._marks = {cell: found}  # one assignment: the sync's thread reads it
        if is_new or min(spec.tasks(), default=0) == self._first_task_of(spec):
            self._new_mark = cell

    def _first_task_of(self, spec: WorkerSpec) -> int:
        """Return the lowest task of a worker's cell, worked out once for each."""
        cell = spec.topology_id, spec.cell
        if self._first_task[0] != cell:
            cells = cell_by_task(spec.component_by_task, max(1, len(spec.cells)))
            first = min((task for task, its in cells.items() if its == spec.cell), default=0)
            self._first_task = cell, first
        return self._first_task[1]

    def store_mark(self, topology_id: str, cell: int = 0) -> StoreMark | None:
        """Return what is known of the store of a topology's cell."""
        return self._marks.get((topology_id, cell))

    def leave(self, topology_id: str) -> None:
        """Remove the beat of the topology's worker, which is gone for good."""
        self._left.append(topology_id)

    def order(self, assignment: LocalAssignment) -> None:
        """Ask for a topology's code."""
        self._code.pop(assignment, None)
        self._orders.append(assignment)
        self._changed.set()

    def blob_view(self, assignment: LocalAssignment) -> BlobView:
        found = self._code.get(assignment, BlobView.MISSING)
        return BlobView.READY if isinstance(found, Code) else found

    def code(self, assignment: LocalAssignment) -> Code | None:
        """The code that was fetched, None when it is not there (any more)."""
        found = self._code.get(assignment)
        return found if isinstance(found, Code) and self._dir.has_code(found.code_path) else None

    # -- the sync's side ---------------------------------------------------------------------------

    def step(self, now_ms: int) -> int:
        """Do what is due; returns when to come back. A store that does not answer is asked again
        next time.
        """
        problem = ""
        try:
            for duty in self._duties:
                try:
                    duty(now_ms)
                except OSError as fault:  # a full disk: heartbeats and errors do not need it
                    problem = f"the disk of {self._slot.node} refuses writes: {fault}"
        except StoreUnavailableError as fault:
            # Every wait for it may take many seconds: the other duties would only add theirs.
            _LOG.warning("slot %s: %s", self._slot, fault)
        if problem and problem != self._disk_problem:
            _LOG.error("slot %s: %s", self._slot, problem)
        self._disk_problem = problem
        self.problem = problem or self._fetch_problem or self._slot_code.problem
        return now_ms + POLL_MS

    def wait(self, timeout_ms: int) -> None:
        """Sleep until something was hinted at or left here."""
        self._changed.wait(timeout_ms / 1000)

    def wake(self) -> None:
        """Cut a `wait` short; also the hint that watches call, from any thread."""
        self._changed.set()

    @property
    def is_woken(self) -> bool:
        """Return whether something was hinted at or left here since the last step."""
        return self._changed.is_set()

    def close(self) -> None:
        """Deliver what is left, release the node's lock, end the session."""
        if self._opened is None:
            return
        try:
            self._deliver(0)
        except StoreUnavailableError as fault:
            _LOG.warning("slot %s: last words lost: %s", self._slot, fault)
        self._opened.supervisor.resign()
        if self._opened.logs is not None:
            self._opened.logs.close()
        self._opened.state.store.close()

    def _desk(self) -> SlotStores:
        if self._opened is None:
            self._opened = self._connect()
            self._extensions = slot_extensions(self._opened.state, self.wake)
        return self._opened

    def _follow(self, now_ms: int) -> None:
        """Read the assignments of all topologies for this slot; a record that is damaged or has a
        wrong signature is passed over.
        """
        self._changed.clear()
        before = self.wish
        stopping = self.stop
        state = self._desk().state
        asked = state.store.get(self._stop_path, self.wake) if self._stop_path else None
        if asked is not None and not asked.data:
            self.stop = True
        topology_ids = state.assignment_ids(self.wake)
        read = {each: self._read(each, now_ms) for each in topology_ids}
        self._assignments = {each: assignment for each, assignment in read.items() if assignment}
        self.wish = self._make_wish(now_ms)
        if (
            asked is not None
            and asked.data == self._number
            and self.wish is None
            and self._runs is None
        ):
            self.stop = True  # it is to run on another host, and nothing is lost by that
        if (self.wish, self.stop) != (before, stopping):
            self.notify()

    def _read(self, topology_id: str, now_ms: int) -> Assignment | None:
        known = self._assignments.get(topology_id)
        try:
            found = self._desk().state.read_assignment(topology_id, self.wake)
        except (StoreInconsistentError, TamperedBlobError) as fault:
            _LOG.error("slot %s: %s", self._slot, fault)
            return known
        if found is None or self._guard.admit(topology_id, found.version):
            return found
        self._refuse(found, now_ms, is_known=known is not None)
        return known

    def _refuse(self, found: Assignment, now_ms: int, is_known: bool) -> None:
        """Follow no older version; a slot that has no newer one at hand reports it in a beat, and
        Nimbus writes another.
        """
        seen = self._guard.seen(found.topology_id)
        if self._refused.get(found.topology_id) != found.version:
            self._refused = {**self._refused, found.topology_id: found.version}
            text = "slot %s: the assignment of %s has version %d, older than version %d that was here before; it is not followed"
            _LOG.error(text, self._slot, found.topology_id, found.version, seen)
        if not is_known and part_of(found, self._slot):
            self._refusals.append(
                WorkerBeat(
                    found.topology_id,
                    self._slot.node,
                    self._slot.port,
                    now_ms,
                    0,
                    0,
                    0,
                    REFUSED,
                    seen,
                )
            )

    def _make_wish(self, now_ms: int) -> DesiredState | None:
        parts = self._parts.among(self._assignments)
        if not parts:
            return None
        running = self.wish.assignment.topology_id if self.wish else ""
        part = min(parts, key=lambda part: (part.topology_id != running, part.topology_id))
        part = replace(part, turn=self._slot_code.turn)
        try:
            levels = self._log_levels(part.topology_id, now_ms)
            order = self._order(part.topology_id)
            components = self._components(part.topology_id)
            # The assignment comes before the base: of several stores it does not name the one with
            # the data.
            if self._status_read is None and self._desk().has_several:
                return None
            wish = DesiredState(
                part,
                order,
                components,
                levels,
                self._shadow(part, components, now_ms),
                self._stores_read,
            )
            return wish if self._has_new_code(wish, now_ms) else self.wish
        except (StoreInconsistentError, TamperedBlobError) as fault:
            _LOG.error("slot %s: %s", self._slot, fault)
            return self.wish

    def _shadow(
        self, part: LocalAssignment, components: Mapping[int, str], now_ms: int
    ) -> SetShadow:
        """Return the code that an extension has run beside one of this worker's tasks."""
        view = SlotView(self._slot, part, components, self._status_read)
        known = self.wish.shadow if self.wish else NO_SHADOW
        bring = lambda other: self._slot_code.bring(other, self._desk(), now_ms)  # noqa: E731 - short
        found = (each.shadow(view, known, bring) for each in self._extensions)
        return next((order for order in found if order != NO_SHADOW), NO_SHADOW)

    def _has_new_code(self, wish: DesiredState, now_ms: int) -> bool:
        """Fetch and check the new code of a gray upgrade (S0.25); a worker that runs is not ended
        for code that is not here.
        """
        old = self.wish.assignment if self.wish else None
        new = wish.assignment
        if (
            old is None
            or old.topology_id != new.topology_id
            or (old.code_key, old.conf_key) == (new.code_key, new.conf_key)
        ):
            return True
        if (
            self._unfetched is not None
            and self._unfetched[0] == new
            and now_ms < self._unfetched[1]
        ):
            return False
        try:
            self._slot_code.bring(new, self._desk(), now_ms)
        except (SparkStormError, OSError) as fault:
            if isinstance(fault, StoreUnavailableError):
                raise
            _LOG.error(
                "slot %s: new code of %s: %s; the worker stays as it is",
                self._slot,
                new.topology_id,
                fault,
            )
            self._unfetched = (new, now_ms + FETCH_RETRY_MS)
            return False
        self._unfetched = None
        return True

    def _extend(self, now_ms: int) -> None:
        if self.wish is None:
            return
        part = self.wish.assignment
        view = SlotView(
            self._slot,
            part,
            self.wish.component_by_task,
            self._status_read,
            self._code_of_worker(),
            self._assignments.get(part.topology_id),
        )
        for extension in self._extensions:
            extension.step(view, now_ms)

    def _gather(self, now_ms: int) -> None:
        """Write the topology's task heartbeats while the worker with its master's task beats."""
        gatherer = self._desk().gatherer
        if gatherer is None or self.wish is None or self._code_of_worker() is None:
            return
        part, components = self.wish.assignment, self.wish.component_by_task
        if master_task(components) in part.tasks and gatherer.is_due(part.topology_id, now_ms):
            beats = self._desk().state.read_worker_beats(part.topology_id)
            gatherer.step(part.topology_id, beats, components, now_ms)

    def _code_of_worker(self) -> WorkerCode | None:
        """Return the code under which the worker of the wish has beaten."""
        is_its = self.wish and self._runs and self._runs[0] == self.wish.assignment.topology_id
        return self._runs[1] if is_its and self._runs else None

    def _order(self, topology_id: str) -> SetStatus:
        base = self._desk().state.read_base(topology_id, self.wake)
        self._status_read, self._stores_read = (base.status, base.stores) if base else (None, ("",))
        if base is None:
            return INACTIVE
        return SetStatus("ACTIVE" if base.status in _WORKING else "INACTIVE", base.activations)

    def _log_levels(self, topology_id: str, now_ms: int) -> Mapping[str, str]:
        found = self._desk().state.read_log_config(topology_id, self.wake)
        levels = found.levels if found else {}
        return {
            logger: one.level
            for logger, one in levels.items()
            if not one.until_ms or one.until_ms > now_ms
        }

    def _components(self, topology_id: str) -> Mapping[int, str]:
        # A topology's tasks never change (S3.12), so what was read once stays valid.
        if (
            self.wish
            and self.wish.assignment.topology_id == topology_id
            and self.wish.component_by_task
        ):
            return self.wish.component_by_task
        table = self._desk().state.read_tasks(topology_id)
        return (
            {task: info.component_id for task, info in table.info_by_task.items()} if table else {}
        )

    def _supervise(self, now_ms: int) -> None:
        self._desk().supervisor.step(now_ms, self._assignments)

    def _fetch(self, now_ms: int) -> None:
        while self._orders:
            assignment = self._orders.popleft()
            self._code.clear()
            try:
                self._read_mark(assignment.topology_id)
                self._code[assignment] = self._slot_code.bring(assignment, self._desk(), now_ms)
                self._fetch_problem = ""
            except (SparkStormError, OSError) as fault:
                self._fetch_problem = (
                    f"the code of {assignment.topology_id} cannot be fetched: {fault}"
                )
                _LOG.error("slot %s: %s", self._slot, self._fetch_problem)
                self._code[assignment] = BlobView.FAILED
            self.notify()

    def _renew_blobs(self, now_ms: int) -> None:
        """Bring new versions of the blobs of the worker that runs; one that cannot be had leaves
        the one before.
        """
        code = self._code.get(self.wish.assignment) if self.wish else None
        if self.wish is not None and isinstance(code, Code):
            before = self._slot_code.turn
            self._slot_code.renew(self.wish.assignment.topology_id, code, self._desk(), now_ms)
            if self._slot_code.turn != before:
                self.wake()  # the wish has changed

    def _deliver(self, now_ms: int) -> None:
        state = self._desk().state
        _drain(self._refusals, state.write_worker_beat)
        _drain(self._beats, state.write_worker_beat)
        _drain(self._errors, lambda entry: state.report_error(*entry))
        _drain(self._left, self._take_leave)
        self._write_mark(now_ms)

    def _read_mark(self, topology_id: str) -> None:
        """Read what ZooKeeper knows of a topology's store, before its worker is started."""
        cells = len(self.wish.stores) if self.wish else 1
        found = {
            (topology_id, cell): mark
            for cell, mark in self._desk().state.read_store_marks(topology_id, cells).items()
        }
        known = {each: mark for each, mark in self._marks.items() if each[0] == topology_id}
        both = {each: newer_mark(known.get(each), found.get(each)) for each in {*known, *found}}
        self._marks = {each: mark for each, mark in both.items() if mark is not None}

    def _write_mark(self, now_ms: int) -> None:
        """Write what is known to ZooKeeper, once a second."""
        cell = self._new_mark
        if cell is None or now_ms < self._mark_due_ms:
            return
        mark = self._marks.get(cell)
        state = self._desk().state
        # A ZooKeeper that was put back to an older state ends the session: then it is written
        # again.
        written = None if mark is None else (cell, mark, state.store.session_epoch)
        if mark is not None and written != self._written_mark:
            state.note_store_mark(cell[0], mark, cell[1])
            self._written_mark = written
        self._mark_due_ms = now_ms + MARK_EVERY_MS
        if self._new_mark == cell:
            self._new_mark = None

    def _take_leave(self, topology_id: str) -> None:
        """Remove the heartbeat; leave a trace of a topology that was removed before its worker
        ended.

        Such a worker may have written to Redis after the topology's keys were deleted. Nimbus's
        sweep finds the trace and deletes them.
        """
        stores = self._desk()
        if stores.logs is not None:
            # before the beat goes: then the topology's keys may be deleted
            stores.logs.publish(topology_id)
        stores.state.remove_worker_beat(topology_id, self._slot)
        if not stores.state.has_worker_beats(topology_id):
            stores.state.prepare_worker_beats(topology_id)

    def _publish(self, now_ms: int) -> None:
        logs = self._desk().logs
        if logs is not None and self.wish is not None:
            # All workers' logs lie in the first store, in which clients look for them.
            logs.step(self.wish.assignment.topology_id, now_ms, self.wish.stores[0])


def _drain(queue: deque[_T], write: Callable[[_T], None]) -> None:
    """Write everything that waits; what could not be written waits on, unless newer ones came."""
    while queue:
        entry = queue.popleft()
        try:
            write(entry)
        except StoreUnavailableError:
            with contextlib.suppress(IndexError):  # full; `appendleft` would drop the newest
                queue.insert(0, entry)
            raise
