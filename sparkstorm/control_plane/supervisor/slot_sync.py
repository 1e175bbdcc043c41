"""Slot's store thread: reads the assignment, downloads code, writes heartbeats and errors.

It steps in its own thread, because ZooKeeper or Redis may keep it waiting for many seconds and
a dead worker may not wait for them. The slot's main thread reads `wish`, `stop` and `blob_view`,
and leaves beats and errors; every hand-over is one assignment or one deque operation.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from sparkstorm.common.errors import (
    StoreInconsistentError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import WorkerCode, WorkerSlot
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.heartbeats import WorkerBeat, master_task
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.tasks import cell_by_task
from sparkstorm.common.model.worker_messages import INACTIVE, NO_SHADOW, SetShadow, SetStatus
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.store_marks import StoreMarks
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.task_beats import TaskBeatGatherer
from sparkstorm.control_plane.supervisor.base import LogSink, NodeStorage
from sparkstorm.control_plane.supervisor.extension import (
    SlotContext,
    SlotExtension,
    slot_extensions,
)
from sparkstorm.control_plane.supervisor.slot_assignments import SlotAssignments
from sparkstorm.control_plane.supervisor.slot_code import SlotCode
from sparkstorm.control_plane.supervisor.slot_machine import LocalAssignment
from sparkstorm.control_plane.supervisor.supervisor import Supervisor

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
POLL_MS = 250  # between two readings when no hint came
MAX_ERRORS_WAITING = 200
_WORKING = (TopologyStatus.ACTIVE, TopologyStatus.UPGRADING, TopologyStatus.ROLLBACK)


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Assignment of this slot, with the parts of the topology that its worker needs."""

    assignment: LocalAssignment
    order: SetStatus = INACTIVE
    component_by_task: Mapping[int, str] = field(default_factory=dict)
    # by logger, those whose time is not over
    log_levels: Mapping[str, str] = field(default_factory=dict)
    shadow: SetShadow = NO_SHADOW  # code that is to run next to one of the worker's tasks
    # names of the Redis that hold the topology's data, one for each of its cells
    stores: tuple[str, ...] = ("",)

    @property
    def cell(self) -> int:
        """Return the cell of this slot's tasks; StoreInconsistentError when they are of several."""
        if len(self.stores) == 1:
            return 0
        cells = cell_by_task(self.component_by_task, len(self.stores))
        part = self.assignment
        part_cells = {cells.get(task, -1) for task in part.tasks}
        if len(part_cells) != 1 or -1 in part_cells:
            raise StoreInconsistentError(
                f"the assignment of {part.topology_id} puts tasks of several cells into one worker: rebalance it with --reassign"
            )
        return part_cells.pop()


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


@dataclass(frozen=True, slots=True)
class _StopNode:
    """Node whose coming ends the slot: an empty one, or one with this number if it has no worker."""

    path: str  # empty: there is none
    number: bytes


class Outbox:
    """Records to write for a slot: the newest beat and refusal, errors, and topologies
    whose workers are gone for good.
    """

    def __init__(self) -> None:
        self.refusals: deque[WorkerBeat] = deque(maxlen=1)
        self.beats: deque[WorkerBeat] = deque(maxlen=1)
        self.errors: deque[tuple[str, Failure]] = deque(maxlen=MAX_ERRORS_WAITING)
        self.left: deque[str] = deque()

    def deliver(self, state: StormState, take_leave: Callable[[str], None]) -> None:
        """Write everything that waits."""
        _drain(self.refusals, state.write_worker_beat)
        _drain(self.beats, state.write_worker_beat)
        _drain(self.errors, lambda entry: state.report_error(*entry))
        _drain(self.left, take_leave)


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
        self._connect = connect
        self._stop_node = _StopNode(stop_path, str(number).encode())
        self._opened: SlotStores | None = None
        self._extensions: tuple[SlotExtension, ...] = ()
        self._changed = threading.Event()
        self._assignments = SlotAssignments(slot, node_dir.seen_versions(slot.port))
        self._outbox = Outbox()
        self._status_read: TopologyStatus | None = None  # of the topology of the wish, as its store
        self._disk_problem = ""
        self._stores_read: tuple[str, ...] = ("",)
        # topology and code of a worker that has beaten
        self._runs: tuple[str, WorkerCode] | None = None
        self._has_ended = False  # a worker, since code was put back for it
        self._duties: tuple[Callable[[int], None], ...] = (
            self._follow,
            self._supervise,
            self._fetch,
            self._put_code_back,
            self._renew_blobs,
            self._deliver,
            self._extend,
            self._gather,
            self._publish,
        )
        self.marks = StoreMarks()
        self.code = SlotCode(node_dir, slot.port, self.wake)
        self.wish: DesiredState | None = None
        self.stop = False
        self.problem = ""  # why code could not be fetched, or what this host's disk refused
        self.notify: Callable[[], None] = lambda: None

    # -- the slot's side ---------------------------------------------------------------------------

    def beat(self, beat: WorkerBeat) -> None:
        """Leave the newest beat; an older one that still waits is replaced."""
        self._outbox.beats.append(beat)

    def runs(self, topology_id: str, code: WorkerCode) -> None:
        """Take note that the worker of that topology has beaten under that code."""
        self._runs = (topology_id, code)

    def runs_nothing(self) -> None:
        """Take note that the worker has ended."""
        self._runs = None
        self._has_ended = True

    def report(self, topology_id: str, error: Failure) -> None:
        """Leave an error; when hundreds wait, the oldest go."""
        self._outbox.errors.append((topology_id, error))

    def leave(self, topology_id: str) -> None:
        """Remove the beat of the topology's worker, which is gone for good."""
        self._outbox.left.append(topology_id)

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
        self.problem = problem or self.code.problem
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
        node = self._stop_node
        asked = state.store.get(node.path, self.wake) if node.path else None
        if asked is not None and not asked.data:
            self.stop = True
        self._assignments.read(state, self.wake, self._outbox.refusals.append, now_ms)
        self.wish = self._make_wish(now_ms)
        if (
            asked is not None
            and asked.data == node.number
            and self.wish is None
            and self._runs is None
        ):
            self.stop = True  # it is to run on another host, and nothing is lost by that
        if (self.wish, self.stop) != (before, stopping):
            self.notify()

    def _make_wish(self, now_ms: int) -> DesiredState | None:
        parts = self._assignments.parts()
        if not parts:
            return None
        running = self.wish.assignment.topology_id if self.wish else ""
        part = min(parts, key=lambda part: (part.topology_id != running, part.topology_id))
        part = replace(part, turn=self.code.turn)
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
        """Return the code that an extension has run next to one of this worker's tasks."""
        view = SlotContext(self._slot, part, components, self._status_read)
        known_shadow = self.wish.shadow if self.wish else NO_SHADOW
        bring = lambda other: self.code.bring(other, self._desk(), now_ms)  # noqa: E731 - short
        shadows = (extension.shadow(view, known_shadow, bring) for extension in self._extensions)
        return next((order for order in shadows if order != NO_SHADOW), NO_SHADOW)

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
        return self.code.try_new(new, self._desk(), now_ms)

    def _extend(self, now_ms: int) -> None:
        if self.wish is None:
            return
        part = self.wish.assignment
        view = SlotContext(
            self._slot,
            part,
            self.wish.component_by_task,
            self._status_read,
            self._code_of_worker(),
            self._assignments.by_topology.get(part.topology_id),
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
        log_config = self._desk().state.read_log_config(topology_id, self.wake)
        levels = log_config.levels if log_config else {}
        return {
            logger: level.level
            for logger, level in levels.items()
            if not level.until_ms or level.until_ms > now_ms
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
        self._desk().supervisor.step(now_ms, self._assignments.by_topology)

    def _fetch(self, now_ms: int) -> None:
        cells = len(self.wish.stores) if self.wish else 1
        for assignment in self.code.take_orders():
            read_marks = partial(self.marks.read, self._desk().state, assignment.topology_id, cells)
            self.code.fetch(assignment, self._desk(), now_ms, read_marks)
            self.notify()

    def _put_code_back(self, now_ms: int) -> None:
        """Put the code of a worker that has ended back into the store, should the store have lost it.

        An emptied Redis ends every worker, and this host may be the only one that has the code.
        The worker starts again from the copy on the disk, while another host waits for the code.
        """
        if self._has_ended:
            self._has_ended = False
            try:
                self.code.put_back(self._desk(), now_ms)
            except BaseException:
                self._has_ended = True
                raise

    def _renew_blobs(self, now_ms: int) -> None:
        """Bring new versions of the blobs of the worker that runs; one that cannot be had leaves
        the one before.
        """
        if self.wish is not None and self.code.renew(self.wish.assignment, self._desk(), now_ms):
            self.wake()  # the wish has changed

    def _deliver(self, now_ms: int) -> None:
        state = self._desk().state
        self._outbox.deliver(state, self._take_leave)
        self.marks.write(state, now_ms)

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
