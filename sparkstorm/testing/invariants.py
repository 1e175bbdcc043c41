"""Invariants that must hold after every step of a simulated topology."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.roots import split
from sparkstorm.common.model.tasks import cell_by_task
from sparkstorm.common.model.topology import stream_of
from sparkstorm.common.model.tuples import Roots, each_root
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.acking.pending import open_messages
from sparkstorm.data_plane.task_kit.held import unpack_held
from sparkstorm.data_plane.transport.frames import ROWS, RowFrame, decode, kind_of
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.data_plane.transport.progress import Edge, Progress, merge
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask
from sparkstorm.testing.components import FeederSpout
from sparkstorm.testing.in_process_worker import InProcessWorker
from sparkstorm.testing.local_cluster import LocalCluster
from sparkstorm.testing.local_topology import unconsumed
from sparkstorm.testing.sim_data import TopologyData


class WaitingRows:
    """Law 4: rows of trees in a store, frame by frame, each decoded once."""

    def __init__(self) -> None:
        self._roots_by_frame: dict[bytes, list[Roots]] = {}
        self._edge_by_frame: dict[bytes, tuple[int, str, int]] = {}

    def require_done(self, store: LocalStore, codec: Codec, acked: set[int]) -> None:
        """AssertionError when a row of one of these trees waits; members of batches by their split
        roots.
        """
        for task, keys in store.task_keys.items() if acked else ():
            for index, (number, frame) in enumerate(keys.stream):
                done = keys.cursor.row if index == 0 else 0
                waiting = acked.intersection(
                    split(root)
                    for roots in self._roots(codec, frame)[done:]
                    for root in each_root(roots)
                )
                assert not waiting, (
                    f"root {min(waiting)} is acked, and a row of it waits in entry {number} of task {task}"
                )
            for key, held in keys.held.items():
                waiting = acked.intersection(
                    map(split, each_root(unpack_held(codec, key, held).roots))
                )
                assert not waiting, (
                    f"root {min(waiting)} is acked, and input {key} of it is held by task {task}"
                )

    def count(
        self, store: LocalStore, codec: Codec, component_by_task: Mapping[int, str]
    ) -> Counter[Edge]:
        """Return the rows that wait behind the cursors, by edge; those of replayed dead letters
        belong to none.
        """
        count_by_edge = Counter[Edge]()
        for task, keys in store.task_keys.items():
            for index, (_, frame) in enumerate(keys.stream):
                edge_and_rows = self._edge_by_frame.get(frame)
                if edge_and_rows is None:
                    edge_and_rows = self._edge_by_frame[frame] = _edge(codec, frame)
                sender, stream, rows = edge_and_rows
                if rows:
                    done = keys.cursor.row if index == 0 else 0
                    count_by_edge[component_by_task[sender], stream, component_by_task[task]] += (
                        rows - done
                    )
        return count_by_edge

    def _roots(self, codec: Codec, frame: bytes) -> list[Roots]:
        """Return the roots of a frame's rows; none for messages to ackers and spouts."""
        roots_by_row = self._roots_by_frame.get(frame)
        if roots_by_row is None:
            decoded = decode(codec, frame) if kind_of(frame) == ROWS else None
            roots_by_row = self._roots_by_frame[frame] = (
                _by_row(decoded) if isinstance(decoded, RowFrame) else []
            )
        return roots_by_row


def acked_roots(spout: SpoutTask) -> set[int]:
    """Return the roots of a spout task that are acked and whose callbacks are still to come."""
    return {root for root, _, failure in spout.pending.snapshot()[1] if not failure}


def _edge(codec: Codec, frame: bytes) -> tuple[int, str, int]:
    """Return a sender, the stream and the number of rows of a frame; no rows for messages to ackers
    and spouts.
    """
    decoded = decode(codec, frame) if kind_of(frame) == ROWS else None
    if not isinstance(decoded, RowFrame):
        return 0, "", 0
    return decoded.senders[0], stream_of(decoded.stream), len(decoded)


def _by_row(frame: RowFrame) -> list[Roots]:
    """Return the roots of each row; those of a batch are by run."""
    if frame.batch is None:
        return list(frame.roots)
    return [
        roots
        for roots, length in zip(frame.roots, frame.lengths, strict=True)
        for _ in range(length)
    ]


class Invariants:
    """Call it after every step; AssertionError names what does not hold.

    1. A commit is applied only of the owner that claimed its tasks last (checked by each simulated
       transport).
    2. A root is in exactly one place: open at one spout task, or settled there, never both, never
       at two.
    3. What a feeder has emitted is open, acked or failed: nothing is lost, nothing is counted
       twice. (Not where nothing is tracked: under at-most-once.)
    4. When a tree is acked, no row of it waits: neither in a stream behind its task's cursor nor as
       a held input.
    5. On each edge, rows sent = rows consumed + rows that wait in Redis, in any state after a crash
       or a claim, and after a hot deploy. (Not where frames could not be decoded.)
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._decoded: dict[tuple[str, int], tuple[bytes, Progress]] = {}
        self._seen: dict[str, list[tuple[int, int, int]]] = {}
        self._order: dict[str, tuple[str, ...]] = {}
        self._rows = WaitingRows()
        self._component_by_task: dict[str, Mapping[int, str]] = {}
        self.checks = 0

    def __call__(self) -> None:
        """Check each topology in which something was committed since the last time."""
        cells: dict[str, list[TopologyData]] = {}
        for data in self._cluster.data_plane.all():
            cells.setdefault(data.id, []).append(data)
        for topology_id, parts in cells.items():
            seen = [
                (part.arrivals.commits, part.store.history.generation, part.store.restores)
                for part in parts
            ]
            if seen != self._seen.get(topology_id) and (
                in_order := self._in_order(topology_id, parts)
            ):
                self._seen[topology_id] = seen
                self.checks += 1
                self._check(in_order)

    def _in_order(self, topology_id: str, parts: list[TopologyData]) -> list[TopologyData]:
        """Return a topology's data by cell; none while the order is not known: ZooKeeper was away
        all the time.
        """
        if len(self._cluster.data_plane.planes()) == 1:
            return parts
        with contextlib.suppress(StoreUnavailableError):
            base = self._cluster.storm_state.read_base(topology_id)
            if base is not None:
                self._order[topology_id] = base.stores
        plane = self._cluster.data_plane
        return [plane.at(store).of(topology_id) for store in self._order.get(topology_id, ())]

    def forget(self) -> None:
        """Check everything the next time."""
        self._seen.clear()

    def _check(self, parts: list[TopologyData]) -> None:
        processes = [slot.process for slot in self._cluster.slots if slot.process is not None]
        live = [
            process
            for process in processes
            if any(process.data is part for part in parts) and self._is_settled(process)
        ]
        acked = self._check_roots(live)
        components = self._components(parts[0].id) if len(parts) > 1 else {}
        cells = cell_by_task(components, len(parts))
        waiting = unconsumed([part.store for part in parts], cells)
        for store in waiting:
            self._rows.require_done(store, parts[0].codec, acked)
        self._check_edges(parts, waiting)
        for process in live:
            assert process.worker is not None
            for task, spout in process.worker.task_set.spouts.items():
                if process.worker.is_tracking:
                    self._check_feeder(process.data, task, spout)

    def _is_settled(self, process: InProcessWorker) -> bool:
        """Return whether a worker's memory is what the store holds: no commit under way, and the
        store is not behind it.
        """
        store = process.data.store
        worker = process.worker
        return (
            worker is not None
            and not process.is_zombie
            and worker.is_settled
            and not process.is_fenced
            and worker.commits
            == (store.history.generation, store.seq_by_owner.get(process.place, 0))
        )

    def _check_roots(self, live: list[InProcessWorker]) -> set[int]:
        """Return the roots that are acked and whose callbacks are still to come."""
        acked: set[int] = set()
        owner_by_root: dict[int, int] = {}
        for process in live:
            assert process.worker is not None
            for task, spout in process.worker.task_set.spouts.items():
                opened, settled = spout.pending.snapshot()
                for root in [*open_messages(opened), *(root for root, *_ in settled)]:
                    assert root not in owner_by_root, (
                        f"root {root} is at tasks {owner_by_root[root]} and {task}"
                    )
                    owner_by_root[root] = task
                acked |= acked_roots(spout)
        return acked

    def _progress(self, data: TopologyData) -> list[Progress]:
        """Return the owners' records, each decoded once."""
        records = []
        for owner, encoded in data.store.progress_by_owner.items():
            decoded = self._decoded.get((owner, id(data.store)))
            if decoded is None or decoded[0] is not encoded:
                decoded = (encoded, Progress.decode(encoded))
                self._decoded[owner, id(data.store)] = decoded
            records.append(decoded[1])
        return records

    def _check_edges(self, parts: list[TopologyData], stores: list[LocalStore]) -> None:
        merged = merge(record for part in parts for record in self._progress(part))
        components = self._components(parts[0].id)
        if merged.quarantined or not components:
            return
        waiting = Counter[Edge]()
        for store in stores:
            waiting += self._rows.count(store, parts[0].codec, components)
        for edge, flow in merged.edges.items():
            there = waiting.pop(edge, 0)
            assert flow.sent == flow.consumed + there, (
                f"{edge}: {flow.sent} sent, {flow.consumed} consumed, {there} wait"
            )
        assert not +waiting, f"rows wait that nobody has sent: {dict(waiting)}"

    def _components(self, topology_id: str) -> Mapping[int, str]:
        """Return the component of each task, which is fixed; empty while ZooKeeper is away."""
        if topology_id not in self._component_by_task:
            with contextlib.suppress(StoreUnavailableError):
                table = self._cluster.storm_state.read_tasks(topology_id)
                if table is not None:
                    self._component_by_task[topology_id] = {
                        t: info.component_id for t, info in table.info_by_task.items()
                    }
        return self._component_by_task.get(topology_id, {})

    def _check_feeder(self, data: TopologyData, task: int, spout: SpoutTask) -> None:
        if data.has_inherited or not isinstance(spout.spout, FeederSpout):
            return
        counts_by_owner = [record.counts_by_task.get(task) for record in self._progress(data)]
        settled = sum(
            counts.acked + counts.failed for counts in counts_by_owner if counts is not None
        )
        emitted = spout.spout.emitted
        pending = len(spout.pending)
        assert emitted == settled + pending, (
            f"task {task} emitted {emitted}, but {settled} settled and {pending} open"
        )
