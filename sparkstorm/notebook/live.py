"""Display of a live cluster: assignments and heartbeats, read from ZooKeeper, as scenes, tables and
pictures.

Only reads. A look is the result of one pass over the store; two looks compared show what moved in
between.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sparkstorm.client.connect import zookeeper_address
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.config import default_conf, merge
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.settings import NimbusSettings
from sparkstorm.common.stores.connection import load_connection, signing_key
from sparkstorm.control_plane.blobs.redis import TAG, RedisBytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.base import StateStore
from sparkstorm.control_plane.cluster.envelope import FAMILY
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperStateStore
from sparkstorm.control_plane.nimbus.cluster_reader import ClusterReader, Reading
from sparkstorm.control_plane.nimbus.measurer import Measurer, ReadCounts, no_counts
from sparkstorm.control_plane.nimbus.redis_cleanup import read_counts
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements
from sparkstorm.control_plane.scheduling.round import supervisor_view
from sparkstorm.control_plane.scheduling.round_memory import topology_view
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.extensions.laboratory import Scene, moved
from sparkstorm.notebook.slot_map import slot_map
from sparkstorm.notebook.svg import Svg
from sparkstorm.notebook.tables import Table
from sparkstorm.notebook.timeline import Moment, timeline

_SHOWN_BYTES = 60
_REDIS_ANSWER_S = 10.0
_MOST_MOMENTS = 10_000  # of a timeline: half an hour of `wait`


@dataclass(frozen=True, slots=True)
class Look:
    """Result of one pass over the store, at `now_ms` of the local clock."""

    reading: Reading
    now_ms: int
    measured: Mapping[str, Measurements] = field(default_factory=dict)

    @property
    def scene(self) -> Scene:
        """The cluster as schedulers see it, for the laboratory."""
        snapshot = self.reading.snapshot
        placed = {
            topology_id: assignment.slot_by_executor
            for topology_id, assignment in snapshot.assignments.items()
            if topology_id in snapshot.topologies
        }
        return Scene.from_records(
            [supervisor_view(info) for info in snapshot.supervisors.values()],
            [
                replace(
                    topology_view(_own_part(topology), self.now_ms),
                    measured=self.measured.get(topology_id),
                )
                for topology_id, topology in snapshot.topologies.items()
            ],
            placed,
        )

    def beat_by_slot(self) -> dict[WorkerSlot, WorkerBeat]:
        """The last heartbeat of every worker."""
        return {beat.slot: beat for beat in self.reading.beats}

    def is_running(self, name: str, workers: int | None = None) -> bool:
        """Return whether a topology has the workers that it asks for, or so many, and each says
        that it runs.
        """
        ids = [id for id, base in self.reading.bases.items() if base.name == name]
        assignment = self.reading.snapshot.assignments.get(ids[0]) if ids else None
        if assignment is None:
            return False
        wanted = self.reading.bases[ids[0]].num_workers if workers is None else workers
        slots = set(assignment.slot_by_executor.values())
        beats = self.beat_by_slot()
        return len(slots) == wanted and all(
            slot in beats and beats[slot].state == "RUNNING" for slot in slots
        )

    @property
    def moment(self) -> Moment:
        """Return the part of this look that a timeline draws."""
        states = {slot: beat.state for slot, beat in self.beat_by_slot().items()}
        assignments = self.reading.snapshot.assignments
        names = {id: base.name for id, base in self.reading.bases.items()}
        workers = {
            slot: (names.get(id, id), states.get(slot, ""))
            for slot, (id, _) in self._workers().items()
        }
        versions = {names.get(id, id): found.version for id, found in assignments.items()}
        return Moment(self.now_ms, workers, frozenset(self.reading.offered_slots()), versions)

    def picture(self, before: Look | None = None, title: str = "") -> Svg:
        """Draw slots as a map; with an earlier look, mark moved executors and lost supervisors."""
        states = {slot: beat.state for slot, beat in self.beat_by_slot().items()}
        return slot_map(self.scene, before.scene if before else None, states, title)

    # -- tables ------------------------------------------------------------------------------------

    def topologies(self) -> Table:
        """Table of topologies."""
        rows = []
        for topology_id, base in sorted(self.reading.bases.items()):
            assignment = self.reading.snapshot.assignments.get(topology_id)
            slots = set(assignment.slot_by_executor.values()) if assignment else set()
            row = {
                "topology": topology_id,
                "status": str(base.status),
                "wanted_workers": base.num_workers,
                "workers": len(slots),
            }
            executors = len(assignment.slot_by_executor) if assignment else 0
            rows.append(
                {
                    **row,
                    "executors": executors,
                    "assignment_version": assignment.version if assignment else None,
                }
            )
        return Table(rows, "topologies")

    def supervisors(self) -> Table:
        """Table of supervisors."""
        used = Counter(slot.node for slot in self._workers())
        rows = [
            {
                "supervisor": node,
                "host": info.host,
                "slots": len(info.ports),
                "used": used[node],
                "up_secs": info.uptime_ms / 1000,
                "seen_secs_ago": max(0, self.now_ms - info.time_ms) / 1000,
            }
            for node, info in sorted(self.reading.snapshot.supervisors.items())
        ]
        return Table(rows, "supervisors")

    def slots(self) -> Table:
        """Every slot, with the worker in it and its heartbeat."""
        beats = self.beat_by_slot()
        workers = self._workers()
        offered = set(self.reading.offered_slots())
        rows = []
        for slot in sorted(offered | workers.keys()):
            topology_id, executors = workers.get(slot, (None, 0))
            row = {
                "slot": str(slot),
                "offered": slot in offered,
                "topology": topology_id,
                "executors": executors,
            }
            rows.append({**row, **self._beat_row(beats.get(slot))})
        return Table(rows, "slots")

    def executors(self) -> Table:
        """Every executor with its component and its place."""
        return Table(self.scene.rows(), "executors")

    def tasks(self) -> Table:
        """Every task with its component and its place."""
        rows = []
        for topology in self.scene.topologies:
            placed = self.scene.assignments.get(topology.id, {})
            for executor in topology.executors:
                slot = placed.get(executor)
                where = {
                    "topology": topology.name,
                    "component": topology.component_by_executor[executor],
                }
                rows += [
                    {"task": task, **where, "slot": str(slot) if slot else None}
                    for task in executor.tasks
                ]
        return Table(rows, "tasks")

    def moved_since(self, before: Look) -> Table:
        """Executors with a task whose slot is another one than in an earlier look."""
        return Table(moved(before.scene, self.scene), "moved")

    def _workers(self) -> dict[WorkerSlot, tuple[str, int]]:
        workers: dict[WorkerSlot, tuple[str, int]] = {}
        for topology_id, assignment in self.reading.snapshot.assignments.items():
            for slot in assignment.slot_by_executor.values():
                workers[slot] = (topology_id, workers.get(slot, ("", 0))[1] + 1)
        return workers

    def _beat_row(self, beat: WorkerBeat | None) -> dict[str, Any]:
        if beat is None:
            return {"state": None, "pid": None, "up_secs": None, "beat_secs_ago": None}
        up, ago = (
            max(0, self.now_ms - since_ms) / 1000 for since_ms in (beat.start_ms, beat.time_ms)
        )
        return {"state": beat.state, "pid": beat.pid, "up_secs": up, "beat_secs_ago": ago}


def _own_part(topology: KnownTopology) -> KnownTopology:
    """The topology with the settings that differ from the defaults: a cluster file should be short
    enough to read.
    """
    usual = default_conf()
    kept_keys = ("topology.workers",)
    return replace(
        topology,
        conf={
            key: value
            for key, value in topology.conf.items()
            if key in kept_keys or usual.get(key) != value
        },
    )


class Inspector:
    """View of a cluster through its stores."""

    def __init__(
        self,
        state: StormState,
        blobs: BlobStore,
        conf: Mapping[str, Any],
        read_counts: ReadCounts = no_counts,
    ) -> None:
        self._state = state
        self._measurer = Measurer(read_counts, NimbusSettings.of(conf))
        self._reader = ClusterReader(state, blobs, dict(conf))
        self._clock = SystemClock()
        self._pause = threading.Event()
        self._opened = contextlib.ExitStack()
        self._moments: deque[Moment] = deque(maxlen=_MOST_MOMENTS)

    @classmethod
    def connect(cls, connection_file: str | Path) -> Inspector:
        """Join the cluster of a connection file, until `close` or the end of a `with` block;
        InvalidConfigError or StoreUnavailableError name the obstacle.
        """
        connection = load_connection(Path(connection_file))
        conf = merge({})
        with contextlib.ExitStack() as opened:
            store = ZooKeeperStateStore(zookeeper_address(connection, conf))
            opened.callback(store.close)
            chunks = RedisBytesStore(
                Link(connection.redis, _REDIS_ANSWER_S, may_write=False, tag=TAG)
            )
            opened.callback(chunks.close)
            key = signing_key(connection.secret)
            state = StormState(store, key)
            counts = partial(read_counts, connection.stores, _REDIS_ANSWER_S)
            inspector = cls(state, BlobStore(state, chunks, key), conf.as_dict(), counts)
            inspector._opened = opened.pop_all()
        return inspector

    def close(self) -> None:
        """Close the connections that `connect` has opened."""
        self._opened.close()

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self, measures: bool = False) -> Look:
        """Read everything once; with `measures` the scene has what topologies were measured to do,
        for which the counts of each are read from Redis.
        """
        reading, now_ms = self._reader.read(), self._clock.now_ms()
        wanted = reading.snapshot.topologies if measures else ()
        look = Look(reading, now_ms, self._measurer.measured(reading.snapshot, wanted, now_ms))
        self._moments.append(look.moment)
        return look

    def timeline(self, title: str = "") -> Svg:
        """Draw what the looks so far have seen: the workers of each slot over time."""
        return timeline(list(self._moments), title)

    def tree(self, path: str = "") -> Table:
        """The nodes below a path, depth first, with their sizes and how their data begins."""
        return Table(list(_walk(self._state.store, path)), f"tree below {path or '/'}")

    def wait(self, condition: Callable[[Look], bool], timeout_secs: float = 60.0) -> Look:
        """Look until something holds; TimeoutError with the last topologies seen otherwise."""
        deadline_ms = self._clock.now_ms() + round(timeout_secs * 1000)
        while True:
            look = self.look()
            if condition(look):
                return look
            if self._clock.now_ms() >= deadline_ms:
                raise TimeoutError(
                    f"it did not come about within {timeout_secs:g} s:\n{look.topologies()!r}\n{look.slots()!r}"
                )
            self._pause.wait(0.2)

    def wait_running(
        self, name: str, workers: int | None = None, timeout_secs: float = 60.0
    ) -> Look:
        """Look until a topology's workers run, `workers` of them or as many as it asks for."""
        return self.wait(lambda look: look.is_running(name, workers), timeout_secs)


def _walk(store: StateStore, path: str) -> Iterator[dict[str, Any]]:
    for name in store.children(path or "/"):
        below = f"{path}/{name}"
        stored = store.get(below)
        if stored is not None:
            yield {
                "path": below,
                "version": stored.version,
                "bytes": len(stored.data),
                "begins": _beginning(stored.data),
            }
            yield from _walk(store, below)


def _beginning(data: bytes) -> str:
    """Return the start of a record without the header and its signature."""
    header, _, body = data.partition(b"\n")
    if header.startswith(FAMILY):
        data = b"(deflated)" if b" zlib " in header else body
    text = data[:_SHOWN_BYTES].decode("utf-8", "replace")
    return f"{text}…" if len(data) > _SHOWN_BYTES else text
