"""Storm's verbs over any state store: topologies, assignments, supervisors, heartbeats, errors,
blobs.

Writers (S3.38-S3.57): Nimbus writes storms, assignments, tasks and outlines (signed when the
cluster has a key) and makes workerbeats/<id> without data; each worker's slot writes its own child
there; supervisors write their ephemeral node. Beats, supervisors and errors are plain JSON. Every
read checks what it finds and names the path and the field that is wrong.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from sparkstorm.common.errors import (
    FailedAssignTopologyError,
    StateConflictError,
    StoreInconsistentError,
)
from sparkstorm.common.model.assignment import (
    Assignment,
    BlobMetadata,
    NamedBlob,
    NamedBlobs,
    SupervisorInfo,
    TaskTable,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.heartbeats import TaskBeats, WorkerBeat
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.records import encode_record
from sparkstorm.common.model.upgrade import GrayUpgrade
from sparkstorm.common.model.worker_spec import CellMarks, StoreMark, newer_mark
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.base import MAX_NODE_BYTES, Hint, no_hint
from sparkstorm.control_plane.cluster.nimbus_state import NimbusState

ERRORS_KEPT = 10  # per component (S3.42)
_MAX_BEAT_BYTES = 256 * 1024
_MAX_ERROR_TEXT = 64 * 1024


class StormState(NimbusState):
    """Storm's ClusterState: domain verbs over a StateStore; `key` signs and checks what Nimbus
    writes.
    """

    # -- topologies --------------------------------------------------------------------------------

    def topology_ids(self, hint: Hint | None = None) -> list[str]:
        """Ids of all topologies that were submitted and not removed."""
        return self._names(paths.STORMS, hint)

    def read_base(self, topology_id: str, hint: Hint | None = None) -> TopologyBase | None:
        """Return a topology's base record; None when it is gone."""
        return self._read_record(TopologyBase, paths.storm(topology_id), hint)

    def create_base(self, base: TopologyBase) -> None:
        """Record a new topology; StateConflictError when its id exists."""
        self._create(paths.storm(base.topology_id), base)

    def update_base(
        self, topology_id: str, change: Callable[[TopologyBase], TopologyBase]
    ) -> TopologyBase | None:
        """Change a base by a pure function, again when another writer was first; None when the
        topology is gone.

        A base that differs gets the next version.
        """

        def changed(base: TopologyBase | None) -> TopologyBase | None:
            new = change(base) if base else None
            return replace(new, version=base.version + 1) if base and new and new != base else new

        return self._update(TopologyBase, paths.storm(topology_id), changed)

    def restore_base(self, newest: TopologyBase) -> None:
        """Write a base again over an older one."""

        def changed(base: TopologyBase | None) -> TopologyBase | None:
            is_older = base is not None and base.version < newest.version
            return replace(newest, version=newest.version + 1) if is_older else base

        self._update(TopologyBase, paths.storm(newest.topology_id), changed)

    def write_outline(self, topology_id: str, outline: TopologyOutline) -> None:
        """Record a topology's shape."""
        self._write(paths.outline(topology_id), outline)

    def read_outline(self, topology_id: str) -> TopologyOutline | None:
        """A topology's shape without its code."""
        return self._read_record(TopologyOutline, paths.outline(topology_id))

    def require_outline(self, topology_id: str) -> TopologyOutline:
        """Return the outline of a topology; StoreInconsistentError when it is missing."""
        outline = self.read_outline(topology_id)
        if outline is None:
            raise StoreInconsistentError(
                f"topology {topology_id}: its outline is missing; kill it and submit again"
            )
        return outline

    def write_tasks(self, topology_id: str, table: TaskTable) -> None:
        """Record which task is an instance of what."""
        self._write(paths.tasks(topology_id), table)

    def read_tasks(self, topology_id: str) -> TaskTable | None:
        """Return a topology's task table."""
        return self._read_record(TaskTable, paths.tasks(topology_id))

    def write_task_beats(self, beats: TaskBeats) -> None:
        """Record a topology's task heartbeats."""
        self._write(paths.taskbeats(beats.topology_id), beats)

    def read_task_beats(self, topology_id: str) -> TaskBeats | None:
        """A topology's task heartbeats."""
        return self._read_record(TaskBeats, paths.taskbeats(topology_id))

    def remove_topology(self, topology_id: str, *, keeps_marks: bool = False) -> None:
        """Delete every record of a topology, the marks of its stores on request not; its base goes
        last, so that a cut half-way is taken up again.
        """
        if not keeps_marks:
            self.remove_store_marks(topology_id)
        for path_of in (
            paths.assignment,
            paths.workerbeats,
            paths.errors,
            paths.taskbeats,
            paths.log_config,
            paths.gray_upgrade,
            paths.tasks,
            paths.outline,
            paths.storm,
        ):
            self.store.delete(path_of(topology_id))

    def known_ids(self) -> set[str]:
        """Ids that have any trace in the tree; those without a base are orphans."""
        parents = (
            paths.STORMS,
            paths.ASSIGNMENTS,
            paths.WORKERBEATS,
            paths.ERRORS,
            paths.TASKBEATS,
            paths.LOG_CONFIGS,
            paths.STORE_MARKS,
            paths.CELL_MARKS,
            paths.GRAY_UPGRADE,
            paths.TASKS,
            paths.OUTLINES,
        )
        return {name for parent in parents for name in self._names(parent)}

    # -- gray upgrades -----------------------------------------------------------------------------

    def prepare_gray_upgrade(self, topology_id: str) -> None:
        """Make the paths that a gray upgrade will use (S0.46-S0.48)."""
        self.store.ensure_path(paths.upgrading_workers(topology_id))
        self.store.ensure_path(paths.upgraded_workers(topology_id))

    def read_upgrade(self, topology_id: str, hint: Hint | None = None) -> GrayUpgrade | None:
        """Return the record of a topology's gray upgrade; None when none is under way."""
        path = paths.gray_upgrade(topology_id)
        stored = self.store.get(path, hint)
        return (
            self._opened(GrayUpgrade, path, stored.data)
            if stored is not None and stored.data
            else None
        )

    def change_upgrade(
        self, topology_id: str, change: Callable[[GrayUpgrade | None], GrayUpgrade | None]
    ) -> GrayUpgrade | None:
        """Change the record by a pure function; StateConflictError when another writer was first.
        None writes nothing.
        """
        path = paths.gray_upgrade(topology_id)
        stored = self.store.get(path)
        upgrade = self.read_upgrade(topology_id)
        changed = change(upgrade)
        if changed is not None and changed != upgrade:
            self._write(path, changed, stored.version if stored is not None else None)
        return changed

    # -- assignments -------------------------------------------------------------------------------

    def assignment_ids(self, hint: Hint | None = None) -> list[str]:
        """Ids of all topologies that have an assignment."""
        return self._names(paths.ASSIGNMENTS, hint)

    def read_assignment(self, topology_id: str, hint: Hint | None = None) -> Assignment | None:
        """Return a topology's assignment; TamperedBlobError when it does not carry this cluster's
        signature.
        """
        assignment = self._read_record(Assignment, paths.assignment(topology_id), hint)
        if assignment and assignment.topology_id != topology_id:
            raise StoreInconsistentError(
                f"{paths.assignment(topology_id)}: is about {assignment.topology_id[:80]!r}"
            )
        return assignment

    def read_assignments(self, hint: Hint | None = None) -> dict[str, Assignment]:
        """All assignments by topology id; the hint fires when one comes, goes or changes."""
        assignments = {
            topology_id: self.read_assignment(topology_id, hint)
            for topology_id in self.assignment_ids(hint)
        }
        return {
            topology_id: assignment for topology_id, assignment in assignments.items() if assignment
        }

    def write_assignment(self, assignment: Assignment) -> None:
        """Publish an assignment; StateConflictError when a newer one is there (an old leader's late
        write).

        FailedAssignTopologyError when it is too large for one node: some 50,000 executors fit.
        """
        path = paths.assignment(assignment.topology_id)
        sealed = self._seal(path, assignment)
        if len(sealed) > MAX_NODE_BYTES:
            raise FailedAssignTopologyError(
                f"the assignment of {assignment.topology_id} with {len(assignment.slot_by_executor)} executors takes "
                f"{len(sealed)} bytes, more than a node's {MAX_NODE_BYTES}; give its components fewer executors"
            )
        versioned = self._read(Assignment, path)
        if versioned is None:
            self.store.create(path, sealed)
        elif versioned[0] == assignment:
            return
        elif versioned[0].version >= assignment.version:
            raise StateConflictError(
                f"{path}: version {assignment.version} comes after version {versioned[0].version}"
            )
        else:
            self.store.put(path, sealed, versioned[1])

    def remove_assignment(self, topology_id: str) -> None:
        """Take a topology off all slots."""
        self.store.delete(paths.assignment(topology_id))

    def backup_assignment(self, name: str, assignment: Assignment) -> None:
        """Keep the last assignment under the topology's name, for a later submission of that name
        (JStorm).
        """
        self._write(paths.under(paths.ASSIGNMENTS_BACKUP, name), assignment)

    def read_backup_assignment(self, name: str) -> Assignment | None:
        """The last assignment that a topology of this name had."""
        return self._read_record(Assignment, paths.under(paths.ASSIGNMENTS_BACKUP, name))

    def backup_names(self) -> list[str]:
        """Names under which a last assignment is kept."""
        return self._names(paths.ASSIGNMENTS_BACKUP)

    def remove_backup_assignment(self, name: str) -> None:
        """Forget the last assignment under a name."""
        self.store.delete(paths.under(paths.ASSIGNMENTS_BACKUP, name))

    # -- supervisors -------------------------------------------------------------------------------

    def register_supervisor(self, info: SupervisorInfo) -> None:
        """Write a supervisor's ephemeral node (S3.50); call it at every heartbeat: it also survives
        a lost session.
        """
        self.store.put_ephemeral(paths.supervisor(info.supervisor_id), encode_record(info))

    def supervisor_ids(self, hint: Hint | None = None) -> list[str]:
        """The living machines (S3.50)."""
        return self._names(paths.SUPERVISORS, hint)

    def read_supervisor(
        self, supervisor_id: str, hint: Hint | None = None
    ) -> SupervisorInfo | None:
        """Return a supervisor's record; None when it is gone."""
        return self._read_plain(SupervisorInfo, paths.supervisor(supervisor_id), hint)

    # -- worker beats ------------------------------------------------------------------------------

    def prepare_worker_beats(self, topology_id: str) -> None:
        """Make workerbeats/<id> without data (S3.43); workers make their own child (S3.54)."""
        self.store.ensure_path(paths.workerbeats(topology_id))

    def has_worker_beats(self, topology_id: str) -> bool:
        """Return whether workerbeats/<id> is there."""
        return self.store.get(paths.workerbeats(topology_id)) is not None

    def remove_worker_beats(self, topology_id: str) -> None:
        """Remove workerbeats/<id>: the mark that what a new topology begins with is whole."""
        self.store.delete(paths.workerbeats(topology_id))

    def write_worker_beat(self, beat: WorkerBeat) -> None:
        """Write a worker's sign of life; statistics that are too large are left out, the sign of
        life stays.
        """
        data = encode_record(beat)
        if len(data) > _MAX_BEAT_BYTES:
            data = encode_record(
                replace(beat, stats_by_executor=dict.fromkeys(beat.stats_by_executor))
            )
        self.store.put(paths.workerbeat(beat.topology_id, beat.slot), data)

    def remove_worker_beat(self, topology_id: str, slot: WorkerSlot) -> None:
        """Drop the beat of a worker that was stopped."""
        self.store.delete(paths.workerbeat(topology_id, slot))

    def worker_beat_slots(self, topology_id: str) -> list[WorkerSlot]:
        """Slots that have a beat; nodes with foreign names are passed over."""
        slots = map(paths.slot_of_workerbeat, self.store.children(paths.workerbeats(topology_id)))
        return [slot for slot in slots if slot]

    def read_worker_beat(self, topology_id: str, slot: WorkerSlot) -> WorkerBeat | None:
        """A worker's last beat; StoreInconsistentError when it is not one."""
        return self._read_plain(WorkerBeat, paths.workerbeat(topology_id, slot))

    def read_worker_beats(self, topology_id: str) -> list[WorkerBeat]:
        """Return the beats of a topology's workers but those that cannot be read or name another
        worker, which Nimbus reports.
        """
        beats = []
        for slot in self.worker_beat_slots(topology_id):
            with contextlib.suppress(StoreInconsistentError):
                beat = self.read_worker_beat(topology_id, slot)
                if beat and (beat.topology_id, beat.node, beat.port) == (topology_id, *slot):
                    beats.append(beat)
        return beats

    # -- the store of a topology's data ------------------------------------------------------------

    def read_store_mark(self, topology_id: str) -> StoreMark | None:
        """Return what is known of a topology's data in Redis."""
        return self._read_record(StoreMark, paths.store_mark(topology_id))

    def read_store_marks(self, topology_id: str, cells: int = 1) -> dict[int, StoreMark]:
        """Return the same for each of a topology's cells of which anything is known."""
        first = self.read_store_mark(topology_id)
        marks = {} if first is None else {0: first}
        if cells > 1:
            others = self._read_record(CellMarks, paths.cell_marks(topology_id))
            marks |= others.by_cell if others else {}
        return marks

    def note_store_mark(self, topology_id: str, mark: StoreMark, cell: int = 0) -> None:
        """Add one worker's knowledge; nothing is written for a topology that is gone."""
        if self.store.get(paths.storm(topology_id), no_hint) is None:
            return
        if cell:
            self._update(
                CellMarks,
                paths.cell_marks(topology_id),
                lambda marks: (marks or CellMarks()).with_mark(cell, mark),
            )
        else:
            self._update(
                StoreMark, paths.store_mark(topology_id), lambda stored: newer_mark(stored, mark)
            )

    def move_store_marks(self, old_id: str, new_id: str) -> None:
        """Let a topology expect the data of another, which is gone; may be cut and repeated."""
        mark = self.read_store_mark(old_id)
        if mark is not None:
            self._update(
                StoreMark, paths.store_mark(new_id), lambda stored: newer_mark(stored, mark)
            )
        others = self._read_record(CellMarks, paths.cell_marks(old_id))
        for cell, its in others.by_cell.items() if others else ():
            self._update(
                CellMarks,
                paths.cell_marks(new_id),
                lambda marks, cell=cell, its=its: (marks or CellMarks()).with_mark(cell, its),  # type: ignore[misc]
            )
        self.remove_store_marks(old_id)

    def remove_store_marks(self, topology_id: str) -> None:
        """Forget what is known of a topology's data in Redis."""
        self.store.delete(paths.store_mark(topology_id))
        self.store.delete(paths.cell_marks(topology_id))

    # -- errors ------------------------------------------------------------------------------------

    def prepare_errors(self, topology_id: str) -> None:
        """Make the topology's error root (S0.45)."""
        self.store.ensure_path(paths.errors(topology_id))

    def report_error(self, topology_id: str, error: Failure) -> None:
        """Add an error and keep the newest ten of its component (S3.42)."""
        short = replace(
            error, text=error.text[:_MAX_ERROR_TEXT], traceback=error.traceback[:_MAX_ERROR_TEXT]
        )
        self.store.create_sequential(
            paths.error_prefix(topology_id, error.component), encode_record(short)
        )
        folder = paths.under(paths.errors(topology_id), error.component)
        for name in sorted(self.store.children(folder), key=lambda name: name[1:])[:-ERRORS_KEPT]:
            self.store.delete(f"{folder}/{name}")

    def error_components(self, topology_id: str) -> list[str]:
        """Components that reported errors."""
        return self._names(paths.errors(topology_id))

    def read_errors(self, topology_id: str, component: str) -> list[Failure]:
        """A component's last errors, oldest first."""
        folder = paths.under(paths.errors(topology_id), component)
        errors = (
            self._read_plain(Failure, f"{folder}/{name}") for name in self.store.children(folder)
        )
        return [error for error in errors if error]

    # -- blobs -------------------------------------------------------------------------------------

    def write_blob_metadata(self, metadata: BlobMetadata) -> None:
        """Record a blob whose bytes are stored already."""
        self._write(paths.blob(metadata.key), metadata)

    def read_blob_metadata(self, key: str) -> BlobMetadata | None:
        """Return a blob's metadata."""
        return self._read_record(BlobMetadata, paths.blob(key))

    def remove_blob_metadata(self, key: str) -> None:
        """Delete a blob's metadata."""
        self.store.delete(paths.blob(key))

    def read_named_blobs(self, hint: Hint | None = None) -> Mapping[str, NamedBlob]:
        """Return the newest version of each blob with a name; the hint fires when one changes."""
        blobs = self._read_record(NamedBlobs, paths.NAMED_BLOBS, hint)
        return blobs.by_name if blobs else {}

    def change_named_blobs(
        self, change: Callable[[Mapping[str, NamedBlob]], Mapping[str, NamedBlob]]
    ) -> Mapping[str, NamedBlob]:
        """Change the blobs with names by a pure function, again when another writer was first;
        return all.
        """
        changed = self._update(
            NamedBlobs,
            paths.NAMED_BLOBS,
            lambda blobs: NamedBlobs(change(blobs.by_name if blobs else {})),
        )
        return changed.by_name if changed else {}

    def blob_keys(self) -> list[str]:
        """Keys of all blobs."""
        return self._names(paths.BLOBS)
