"""Nimbus's reading of the store: one pass over bases, outlines, confs, assignments, supervisors and
heartbeats.

A record that cannot be read takes only its own topology, supervisor or worker out of the picture:
it is reported as a problem that names the path, and the slots its assignment holds stay reserved.
Left out: a picture kept up to date by watches, since a watch that is missed would be a wrong
placement for good. Records that did not change are the same objects in the next reading, which
makes a pass cheap (decision 22).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sparkstorm.common.errors import StoreInconsistentError, TamperedBlobError
from sparkstorm.common.model.assignment import Assignment, SupervisorInfo, TopologyBase, WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.names import driver_of_node
from sparkstorm.common.model.normalise import conf_from_bytes
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import HostMark
from sparkstorm.common.model.status import JsonValue
from sparkstorm.control_plane.blobs.store import BlobKind, BlobStore
from sparkstorm.control_plane.cluster.base import Hint
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.measurer import ReadCounts, no_counts
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology, Snapshot

ReadT = TypeVar("ReadT")


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of one pass; `problems` are sentences by topology, supervisor or slot; `bases` has all
    readable ones.
    """

    snapshot: Snapshot
    bases: dict[str, TopologyBase]
    beats: tuple[WorkerBeat, ...]
    problems: dict[str, str]
    drivers: frozenset[int] = frozenset()  # numbers of the registered drivers

    def gone_nodes(self) -> frozenset[str]:
        """Nodes with workers or their beats whose supervisor and driver are both gone: nothing will
        restart their workers.
        """
        used = {
            slot.node
            for assignment in self.snapshot.assignments.values()
            for slot in assignment.slot_by_executor.values()
        }
        used |= {beat.node for beat in self.beats}
        absent = used - self.snapshot.supervisors.keys() if self.drivers else set()
        return frozenset(node for node in absent if driver_of_node(node) not in self.drivers)

    def offered_slots(self) -> list[WorkerSlot]:
        """Every slot that a living supervisor offers."""
        return [
            WorkerSlot(info.supervisor_id, port)
            for info in self.snapshot.supervisors.values()
            for port in info.ports
        ]


class ClusterReader:
    """Reader of snapshots; keeps outlines and confs, which change only together with their base's
    keys.
    """

    def __init__(
        self,
        state: StormState,
        blobs: BlobStore,
        conf: dict[str, Any],
        read_counts: ReadCounts = no_counts,
    ) -> None:
        self.read_counts = read_counts
        self._state = state
        self._blobs = blobs
        self._conf = conf
        self._outline_by_id: dict[str, tuple[str, TopologyOutline]] = {}
        self._conf_by_key: dict[str, dict[str, JsonValue]] = {}
        self._marks: Mapping[str, HostMark] = {}

    def read(
        self, hint: Hint | None = None, hint_of_node: Callable[[str], Hint | None] = lambda _: None
    ) -> Reading:
        """One pass over the store; the hint fires when a supervisor, a driver or a topology comes
        or goes.

        A node's own hint fires when its supervisor's record changes.
        """
        problems: dict[str, str] = {}
        bases = self._read_each(self._state.topology_ids(hint), self._state.read_base, problems)
        # One pass in this order: bases first, since an id without a base is no topology, even with
        # other records.
        topologies = self._read_each(
            list(bases), lambda topology_id: self.complete(bases[topology_id]), problems
        )
        assignments = self._read_each(
            self._state.assignment_ids(), self._state.read_assignment, problems
        )
        # A hint for each node, because one that changes is a reason to look at that node, not at
        # everything.
        read_supervisor = lambda name: self._state.read_supervisor(name, hint_of_node(name))  # noqa: E731 - used once
        supervisors = self._read_each(self._state.supervisor_ids(hint), read_supervisor, problems)
        beats = tuple(
            beat for topology_id in assignments for beat in self._read_beats(topology_id, problems)
        )
        self._forget(set(topologies))
        # Without its assignment a topology would be placed as if it ran nowhere.
        topologies = {
            topology_id: topology
            for topology_id, topology in topologies.items()
            if topology_id not in problems
        }
        drivers = self._read_drivers(hint, problems)
        snapshot = replace(
            _snapshot(topologies, assignments, supervisors),
            marks=self._read_marks(hint, problems),
            beats=beats,
        )
        return Reading(snapshot, bases, beats, problems, drivers)

    def _read_marks(self, hint: Hint | None, problems: dict[str, str]) -> Mapping[str, HostMark]:
        """Return the marks of hosts; the last good ones when they are damaged."""
        try:
            # The last good ones stay: with no marks, a drained host would get workers again in the
            # very round in which its record was damaged.
            self._marks = self._state.read_host_marks(hint)
        except (StoreInconsistentError, TamperedBlobError) as error:
            problems["hosts"] = (
                f"{error}; exclude or drain the hosts that are meant again, and the record is written anew"
            )
        return self._marks

    def _read_drivers(self, hint: Hint | None, problems: dict[str, str]) -> frozenset[int]:
        try:
            return frozenset(driver.number for driver in self._state.read_drivers(hint))
        except StoreInconsistentError as error:
            problems["drivers"] = str(error)
            # No drivers means: unknown. A node is then never taken for gone, and its silence is
            # judged by time.
            return frozenset()

    def _read_each(
        self, names: list[str], read: Callable[[str], ReadT | None], problems: dict[str, str]
    ) -> dict[str, ReadT]:
        records = {}
        for name in names:
            try:
                record = read(name)
            except (StoreInconsistentError, TamperedBlobError) as error:
                problems[name] = str(error)
                continue
            if record is not None:
                records[name] = record
        return records

    def _read_beats(self, topology_id: str, problems: dict[str, str]) -> list[WorkerBeat]:
        slots = {str(slot): slot for slot in self._state.worker_beat_slots(topology_id)}
        beats = self._read_each(
            list(slots),
            lambda name: self._state.read_worker_beat(topology_id, slots[name]),
            problems,
        )
        # A beat counts for its own slot only, even if it names another.
        return [
            beat
            for name, beat in beats.items()
            if (beat.topology_id, beat.slot) == (topology_id, slots[name])
        ]

    def complete(self, base: TopologyBase) -> KnownTopology:
        """The topology that belongs to a base; StoreInconsistentError when parts are missing."""
        return KnownTopology(
            base, self._outline(base), {**self._conf, **self.topology_conf(base.conf_key)}
        )

    def _outline(self, base: TopologyBase) -> TopologyOutline:
        # By the key of the configuration, which a rebalance changes: outlines are large, and
        # reading and checking them anew was a part of each round's cost (decision 22).
        cached = self._outline_by_id.get(base.topology_id)
        if cached and cached[0] == base.conf_key:
            return cached[1]
        outline = self._state.require_outline(base.topology_id)
        self._outline_by_id[base.topology_id] = (base.conf_key, outline)
        return outline

    def topology_conf(self, conf_key: str) -> dict[str, JsonValue]:
        """The configuration in a blob."""
        if conf_key not in self._conf_by_key:
            self._conf_by_key[conf_key] = conf_from_bytes(
                self._blobs.get(conf_key, BlobKind.CONF), conf_key
            )
        return self._conf_by_key[conf_key]

    def forget(self, topology_id: str) -> None:
        """Drop this topology's cached outline."""
        self._outline_by_id.pop(topology_id, None)

    def _forget(self, present: set[str]) -> None:
        # What is gone is forgotten here, once a reading, and not where topologies end: they end in
        # several places.
        self._outline_by_id = {
            topology_id: outline
            for topology_id, outline in self._outline_by_id.items()
            if topology_id in present
        }
        used = {conf_key for conf_key, _ in self._outline_by_id.values()}
        self._conf_by_key = {key: conf for key, conf in self._conf_by_key.items() if key in used}


def _snapshot(
    topologies: dict[str, KnownTopology],
    assignments: dict[str, Assignment],
    supervisors: dict[str, SupervisorInfo],
) -> Snapshot:
    # A slot whose assignment belongs to no readable topology is still in use by a worker: given
    # away, two workers would run on one port.
    reserved = {
        slot
        for topology_id, assignment in assignments.items()
        if topology_id not in topologies
        for slot in assignment.slot_by_executor.values()
    }
    return Snapshot(topologies, assignments, supervisors, frozenset(reserved))
