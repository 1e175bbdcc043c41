"""Owns Storm's verbs over any state store: topologies, assignments, supervisors, beats, errors, blobs, leadership.

Who writes what (S3.38-S3.57): Nimbus writes storms, assignments, tasks and outlines (signed when the cluster has a
key) and makes workerbeats/<id> without data; each worker's slot writes its own child there; supervisors write their
ephemeral node. Beats, supervisors and errors are plain JSON. Every read checks what it finds and names the path and the
field that is wrong.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from sparkstorm.cluster import paths
from sparkstorm.cluster.base import MAX_NODE_BYTES, Hint, StateStore
from sparkstorm.cluster.envelope import seal, unseal
from sparkstorm.errors import FailedAssignTopologyError, StateConflictError, StoreInconsistentError
from sparkstorm.model.assignment import (
    Assignment,
    BlobMetadata,
    SupervisorInfo,
    TaskBeats,
    TaskError,
    TaskTable,
    TopologyBase,
    WorkerBeat,
    WorkerSlot,
)
from sparkstorm.model.names import node_to_name
from sparkstorm.model.outline import TopologyOutline
from sparkstorm.model.records import decode_record, encode_record
from sparkstorm.model.status import JsonValue

ERRORS_KEPT = 10  # per component (S3.42)
_MAX_BEAT_BYTES = 256 * 1024
_MAX_ERROR_TEXT = 64 * 1024
_CONFLICT_LIMIT = 20

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True)
class NimbusInfo:
    """Who leads: its name and when it took over."""

    owner: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission under way: its id is protected from orphan clean-up until the mark is gone; `owner` as of a leader."""

    topology_id: str
    since_ms: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Deploy:
    """A hot deploy under way: who follows, whether it takes the old one's data over, and who does should it be refused."""

    old_id: str
    base: TopologyBase
    inherits: bool
    fallback: TopologyBase | None = None


@dataclass(frozen=True, slots=True)
class ClusterConf:
    """The part of the cluster's configuration that clients need: what differs from the defaults and is no secret."""

    conf: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class _Count:
    count: int


class StormState:
    """Storm's ClusterState: domain verbs over a StateStore; `key` signs and checks what Nimbus writes."""

    def __init__(self, store: StateStore, key: bytes | None = None) -> None:
        self.store = store
        self._key = key
        # What was read last, by path: pollers read the same bytes over and over. Entries are replaced whole.
        self._read_before: dict[str, tuple[bytes, object]] = {}

    # -- records -------------------------------------------------------------------------------------------------

    def _write(self, path: str, record: object, version: int | None = None) -> None:
        self.store.put(path, seal(path, encode_record(record), self._key), version)

    def _read(self, kind: type[RecordT], path: str, hint: Hint | None = None) -> tuple[RecordT, int] | None:
        found = self.store.get(path, hint)
        if found is None:
            self._read_before.pop(path, None)
            return None
        data, record = self._read_before.get(path, (b"", None))
        if data != found.data or not isinstance(record, kind):
            record = decode_record(kind, unseal(path, found.data, self._key), path)
            self._read_before[path] = (found.data, record)
        return record, found.version

    def _read_record(self, kind: type[RecordT], path: str, hint: Hint | None = None) -> RecordT | None:
        found = self._read(kind, path, hint)
        return found[0] if found else None

    def _read_plain(self, kind: type[RecordT], path: str, hint: Hint | None = None) -> RecordT | None:
        found = self.store.get(path, hint)
        return decode_record(kind, found.data, path) if found and found.data else None

    def _names(self, path: str, hint: Hint | None = None) -> list[str]:
        return [node_to_name(node) for node in self.store.children(path, hint)]

    # -- topologies ----------------------------------------------------------------------------------------------

    def topology_ids(self, hint: Hint | None = None) -> list[str]:
        """Ids of all topologies that were submitted and not removed."""
        return self._names(paths.STORMS, hint)

    def read_base(self, topology_id: str, hint: Hint | None = None) -> TopologyBase | None:
        """What a topology was asked to be; None when it is gone."""
        return self._read_record(TopologyBase, paths.storm(topology_id), hint)

    def create_base(self, base: TopologyBase) -> None:
        """Record a new topology; StateConflictError when its id exists."""
        path = paths.storm(base.topology_id)
        self.store.create(path, seal(path, encode_record(base), self._key))

    def update_base(self, topology_id: str, change: Callable[[TopologyBase], TopologyBase]) -> TopologyBase | None:
        """Change a base by a pure function, again when another writer was first; None when the topology is gone."""
        path = paths.storm(topology_id)
        for _ in range(_CONFLICT_LIMIT):
            found = self._read(TopologyBase, path)
            if found is None:
                return None
            base, version = found
            changed = change(base)
            if changed == base:
                return base
            try:
                self._write(path, changed, version)
                return changed
            except StateConflictError:
                continue
        raise StateConflictError(f"{path}: {_CONFLICT_LIMIT} writers in a row were first")

    def write_outline(self, topology_id: str, outline: TopologyOutline) -> None:
        """Record a topology's shape."""
        self._write(paths.outline(topology_id), outline)

    def read_outline(self, topology_id: str) -> TopologyOutline | None:
        """A topology's shape without its code."""
        return self._read_record(TopologyOutline, paths.outline(topology_id))

    def write_tasks(self, topology_id: str, table: TaskTable) -> None:
        """Record which task is an instance of what."""
        self._write(paths.tasks(topology_id), table)

    def read_tasks(self, topology_id: str) -> TaskTable | None:
        """Which task is an instance of what."""
        return self._read_record(TaskTable, paths.tasks(topology_id))

    def write_task_beats(self, beats: TaskBeats) -> None:
        """Record a topology's task heartbeats."""
        self._write(paths.taskbeats(beats.topology_id), beats)

    def read_task_beats(self, topology_id: str) -> TaskBeats | None:
        """A topology's task heartbeats."""
        return self._read_record(TaskBeats, paths.taskbeats(topology_id))

    def prepare_gray_upgrade(self, topology_id: str) -> None:
        """Make the paths a gray upgrade will use (S0.46-S0.48)."""
        self.store.ensure_path(paths.under(paths.gray_upgrade(topology_id), "upgrading_workers"))
        self.store.ensure_path(paths.under(paths.gray_upgrade(topology_id), "upgraded_workers"))

    def remove_topology(self, topology_id: str) -> None:
        """Forget everything about a topology; its base goes last, so that a cut half-way is taken up again."""
        for path_of in (
            paths.assignment,
            paths.workerbeats,
            paths.errors,
            paths.taskbeats,
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
            paths.GRAY_UPGRADE,
            paths.TASKS,
            paths.OUTLINES,
        )
        return {name for parent in parents for name in self._names(parent)}

    # -- assignments ---------------------------------------------------------------------------------------------

    def assignment_ids(self, hint: Hint | None = None) -> list[str]:
        """Ids of all topologies that have an assignment."""
        return self._names(paths.ASSIGNMENTS, hint)

    def read_assignment(self, topology_id: str, hint: Hint | None = None) -> Assignment | None:
        """Where a topology runs; TamperedBlobError when its signature is not ours."""
        found = self._read_record(Assignment, paths.assignment(topology_id), hint)
        if found and found.topology_id != topology_id:
            raise StoreInconsistentError(f"{paths.assignment(topology_id)}: is about {found.topology_id[:80]!r}")
        return found

    def read_assignments(self, hint: Hint | None = None) -> dict[str, Assignment]:
        """All assignments by topology id; the hint fires when one comes, goes or changes."""
        found = {each: self.read_assignment(each, hint) for each in self.assignment_ids(hint)}
        return {topology_id: assignment for topology_id, assignment in found.items() if assignment}

    def write_assignment(self, assignment: Assignment) -> None:
        """Publish an assignment; StateConflictError when a newer one is there (an old leader's late write).

        FailedAssignTopologyError when it is too large for one node: some 50,000 executors fit.
        """
        path = paths.assignment(assignment.topology_id)
        sealed = seal(path, encode_record(assignment), self._key)
        if len(sealed) > MAX_NODE_BYTES:
            raise FailedAssignTopologyError(
                f"the assignment of {assignment.topology_id} with {len(assignment.slot_by_executor)} executors takes "
                f"{len(sealed)} bytes, more than a node's {MAX_NODE_BYTES}; give its components fewer executors"
            )
        found = self._read(Assignment, path)
        if found is None:
            self.store.create(path, sealed)
        elif found[0] == assignment:
            return
        elif found[0].version >= assignment.version:
            raise StateConflictError(f"{path}: version {assignment.version} comes after version {found[0].version}")
        else:
            self.store.put(path, sealed, found[1])

    def remove_assignment(self, topology_id: str) -> None:
        """Take a topology off all slots."""
        self.store.delete(paths.assignment(topology_id))

    def backup_assignment(self, name: str, assignment: Assignment) -> None:
        """Keep the last assignment under the topology's name, for a later submission of that name (JStorm)."""
        self._write(paths.under(paths.ASSIGNMENTS_BACKUP, name), assignment)

    def read_backup_assignment(self, name: str) -> Assignment | None:
        """The last assignment that a topology of this name had."""
        return self._read_record(Assignment, paths.under(paths.ASSIGNMENTS_BACKUP, name))

    # -- supervisors ---------------------------------------------------------------------------------------------

    def register_supervisor(self, info: SupervisorInfo) -> None:
        """Write a supervisor's ephemeral node (S3.50); call it at every heartbeat: it also survives a lost session."""
        self.store.put_ephemeral(paths.supervisor(info.supervisor_id), encode_record(info))

    def unregister_supervisor(self, supervisor_id: str) -> None:
        """Leave the cluster."""
        self.store.delete(paths.supervisor(supervisor_id))

    def supervisor_ids(self, hint: Hint | None = None) -> list[str]:
        """The living machines (S3.50)."""
        return self._names(paths.SUPERVISORS, hint)

    def read_supervisor(self, supervisor_id: str) -> SupervisorInfo | None:
        """What a supervisor offers; None when it is gone."""
        return self._read_plain(SupervisorInfo, paths.supervisor(supervisor_id))

    # -- worker beats --------------------------------------------------------------------------------------------

    def prepare_worker_beats(self, topology_id: str) -> None:
        """Make workerbeats/<id> without data (S3.43); workers make their own child (S3.54)."""
        self.store.ensure_path(paths.workerbeats(topology_id))

    def write_worker_beat(self, beat: WorkerBeat) -> None:
        """Write a worker's sign of life; statistics that are too large are left out, the sign of life stays."""
        data = encode_record(beat)
        if len(data) > _MAX_BEAT_BYTES:
            data = encode_record(replace(beat, stats_by_executor=dict.fromkeys(beat.stats_by_executor)))
        self.store.put(paths.workerbeat(beat.topology_id, WorkerSlot(beat.node, beat.port)), data)

    def remove_worker_beat(self, topology_id: str, slot: WorkerSlot) -> None:
        """Drop the beat of a worker that was stopped."""
        self.store.delete(paths.workerbeat(topology_id, slot))

    def worker_beat_slots(self, topology_id: str) -> list[WorkerSlot]:
        """Slots that have a beat; nodes with foreign names are passed over."""
        found = map(paths.slot_of_workerbeat, self.store.children(paths.workerbeats(topology_id)))
        return [slot for slot in found if slot]

    def read_worker_beat(self, topology_id: str, slot: WorkerSlot) -> WorkerBeat | None:
        """A worker's last beat; StoreInconsistentError when it is not one."""
        return self._read_plain(WorkerBeat, paths.workerbeat(topology_id, slot))

    # -- errors --------------------------------------------------------------------------------------------------

    def prepare_errors(self, topology_id: str) -> None:
        """Make the topology's error root (S0.45)."""
        self.store.ensure_path(paths.errors(topology_id))

    def report_error(self, topology_id: str, error: TaskError) -> None:
        """Add an error and keep the newest ten of its component (S3.42)."""
        short = replace(error, text=error.text[:_MAX_ERROR_TEXT])
        self.store.create_sequential(paths.error_prefix(topology_id, error.component), encode_record(short))
        folder = paths.under(paths.errors(topology_id), error.component)
        for name in sorted(self.store.children(folder), key=lambda name: name[1:])[:-ERRORS_KEPT]:
            self.store.delete(f"{folder}/{name}")

    def error_components(self, topology_id: str) -> list[str]:
        """Components that reported errors."""
        return self._names(paths.errors(topology_id))

    def read_errors(self, topology_id: str, component: str) -> list[TaskError]:
        """A component's last errors, oldest first."""
        folder = paths.under(paths.errors(topology_id), component)
        found = (self._read_plain(TaskError, f"{folder}/{name}") for name in self.store.children(folder))
        return [error for error in found if error]

    # -- blobs ---------------------------------------------------------------------------------------------------

    def write_blob_metadata(self, metadata: BlobMetadata) -> None:
        """Record a blob whose bytes are stored already."""
        self._write(paths.blob(metadata.key), metadata)

    def read_blob_metadata(self, key: str) -> BlobMetadata | None:
        """What is known of a blob."""
        return self._read_record(BlobMetadata, paths.blob(key))

    def remove_blob_metadata(self, key: str) -> None:
        """Forget a blob."""
        self.store.delete(paths.blob(key))

    def blob_keys(self) -> list[str]:
        """Keys of all blobs."""
        return self._names(paths.BLOBS)

    # -- nimbus --------------------------------------------------------------------------------------------------

    def next_submission_number(self) -> int:
        """Count submissions over all times, for topology ids (JStorm's submittedCount)."""
        path = paths.SUBMITTED_COUNT
        for _ in range(_CONFLICT_LIMIT):
            found = self._read(_Count, path)
            count = _Count(found[0].count + 1 if found else 1)
            try:
                if found:
                    self._write(path, count, found[1])
                else:
                    self.store.create(path, seal(path, encode_record(count), self._key))
                return count.count
            except StateConflictError:
                continue
        raise StateConflictError(f"{path}: {_CONFLICT_LIMIT} writers in a row were first")

    def begin_submission(self, name: str, submission: Submission) -> bool:
        """Mark a name as being submitted; False when another session submits it."""
        return self.store.try_ephemeral(paths.submission(name), encode_record(submission))

    def end_submission(self, name: str, topology_id: str | None = None) -> None:
        """Take the mark away; with an id, only when it is that submission's."""
        found = self._read_plain(Submission, paths.submission(name)) if topology_id else None
        if topology_id is None or (found and found.topology_id == topology_id):
            self.store.delete(paths.submission(name))

    def submissions(self) -> dict[str, Submission]:
        """Submissions under way, by topology name."""
        found = {name: self._read_plain(Submission, paths.submission(name)) for name in self._names(paths.SUBMISSIONS)}
        return {name: submission for name, submission in found.items() if submission}

    def submission_names(self) -> list[str]:
        """Names under submission; the marks themselves may be damaged."""
        return self._names(paths.SUBMISSIONS)

    def write_deploy(self, name: str, deploy: Deploy) -> None:
        """Record a hot deploy, so that any Nimbus can finish it."""
        self._write(paths.deploy(name), deploy)

    def read_deploy(self, name: str) -> Deploy | None:
        """The unfinished hot deploy of a name."""
        return self._read_record(Deploy, paths.deploy(name))

    def remove_deploy(self, name: str) -> None:
        """A hot deploy is finished, or given up."""
        self.store.delete(paths.deploy(name))

    def deploy_names(self) -> list[str]:
        """Names of hot deploys that are not finished; the records themselves may be damaged."""
        return self._names(paths.DEPLOYS)

    def write_cluster_conf(self, conf: Mapping[str, JsonValue]) -> None:
        """Publish the cluster's configuration for its clients."""
        self._write(paths.CLUSTER_CONF, ClusterConf(conf))

    def read_cluster_conf(self) -> Mapping[str, JsonValue]:
        """Return what the cluster's configuration changes in the defaults; empty before a driver has published it."""
        found = self._read_record(ClusterConf, paths.CLUSTER_CONF)
        return found.conf if found else {}

    def try_lead(self, info: NimbusInfo) -> bool:
        """Stand for election; True while this session leads."""
        return self.store.try_ephemeral(paths.LEADER, encode_record(info))

    def read_leader(self, hint: Hint | None = None) -> NimbusInfo | None:
        """Who leads now; the hint fires when it no longer does."""
        return self._read_plain(NimbusInfo, paths.LEADER, hint)

    def resign(self) -> None:
        """Give leadership up; call it only while leading."""
        self.store.delete(paths.LEADER)
