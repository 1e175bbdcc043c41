"""Data of one topology in a simulated cluster: what Redis would hold, frames on their way, and what
its workers have reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.settings import SubmissionSettings
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.scheduling.measured.measuring import CountRecords
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.data_plane.transport.progress import INHERITED, Progress, under_way
from sparkstorm.data_plane.user_code.topology_code import open_topology
from sparkstorm.testing.sim_transport import Arrivals

Opened = tuple[Topology, Callable[[str], Any]]


class TopologyData:
    """One topology's part of the simulated Redis."""

    def __init__(
        self, topology_id: str, max_bytes: int | None = None, is_synced: bool = False
    ) -> None:
        self.id = topology_id
        self.store = LocalStore(max_bytes, topology_id)
        self.store.is_synced = is_synced
        self.arrivals = Arrivals(self.store)
        self.errors: list[Failure] = []
        self.failure: Exception | None = None  # of a worker, that another start would find again
        self.activity = 0  # grows with every step in which anything was emitted or sent
        self.codec = Codec()
        # its predecessor's counts are gone, its spouts' positions are not
        self.has_inherited = False

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Put the data back to a checkpoint; what faults have made of the server's room stays."""
        settings = {"is_disk_full": self.store.is_disk_full, "max_bytes": self.store.max_bytes}
        self.store.restore({**checkpoint, **settings})


class DataPlane:
    """The data of all topologies in the home store; it is also what Nimbus retires topologies with.

    `others` are the stores next to it by name, each its own plane: what lies in one is not seen
    in another.
    """

    def __init__(self, max_bytes: int | None = None, name: str = "", *others: str) -> None:
        self.name = name
        self.away_ms = range(0)  # times at which the store does not answer
        self.is_synced = False  # it syncs its file before it answers
        self.others = {other: DataPlane(max_bytes, other) for other in others}
        self._max_bytes = max_bytes
        self._by_id: dict[str, TopologyData] = {}
        self._opened: dict[str, Opened] = {}
        # ids of those that faults have taken data of, and of those whose end has deleted some
        self.emptied: set[str] = set()
        self.deleted: set[str] = set()
        self._ended: set[str] = set()
        self._ends: list[Callable[[], None]] = []

    def of(self, topology_id: str) -> TopologyData:
        """The data of a topology, empty at first."""
        data = self._by_id.get(topology_id)
        if data is None:
            data = self._by_id[topology_id] = TopologyData(
                topology_id, self._max_bytes, self.is_synced
            )
            data.store.has_ended = topology_id in self._ended
        return data

    def at(self, store: str) -> DataPlane:
        """Return the plane of a store; the home store's for any name that is not another's."""
        return self.others.get(store, self)

    def named_by(self, conf: Mapping[str, Any]) -> Sequence[DataPlane]:
        """Return the planes of the stores that a topology's configuration names, else the home
        store's.
        """
        settings = SubmissionSettings.of(conf)
        named = settings.store or ""
        return [
            self.at(store_name)
            for store_name in (named.split(",") if settings.cells > 1 else [named])
        ]

    def finder(self, state: StormState) -> Callable[[str], Sequence[TopologyData]]:
        """Return what finds a topology's data in the stores that its base names, one for each
        cell.
        """

        def find(topology_id: str) -> Sequence[TopologyData]:
            base = state.read_base(topology_id) if self.others else None
            return [self.at(store).of(topology_id) for store in (base.stores if base else ("",))]

        return find

    def planes(self) -> Sequence[DataPlane]:
        """Return the planes of all stores, the home store's first."""
        return (self, *self.others.values())

    def read_counts(self, base: TopologyBase) -> list[CountRecords]:
        """Return the counts of a topology, of each of its stores."""
        readers = [LocalReader(self.at(store).of(base.topology_id).store) for store in base.stores]
        return [CountRecords.decoded(reader.progress(), reader.earlier()) for reader in readers]

    def require_durable(self, durability: str, stores: Sequence[str]) -> None:
        """Refuse a store that does not sync its file before it answers where that is wanted; each
        has a replica.
        """
        lax = [store for store in stores if durability == "disk" and not self.at(store).is_synced]
        if lax:
            raise InvalidConfigError(
                f"topology.cells.durability is disk, and the store {lax[0]} has appendfsync everysec"
            )

    def own(self) -> Sequence[TopologyData]:
        """The data of all topologies in this store."""
        return list(self._by_id.values())

    def all(self) -> Sequence[TopologyData]:
        """The data of all topologies in all stores."""
        return [data for plane in self.planes() for data in plane.own()]

    def is_away(self, now_ms: int) -> bool:
        """Return whether the store does not answer."""
        return now_ms in self.away_ms

    def stores_of(self, topology_id: str) -> list[str]:
        """Return the names of the stores that hold data of a topology."""
        return [plane.name for plane in self.planes() if topology_id in plane._by_id]

    def open(self, code: bytes, key: str) -> Opened:
        """A topology's code; instances are made afresh, the topology itself is read once."""
        if key not in self._opened:
            self._opened[key] = open_topology(code, key)
        return self._opened[key]

    def empty(self) -> None:
        """Take the data of every topology in this store, as FLUSHALL would."""
        for data in self.own():
            if data.store.holds_data():
                self.emptied.add(data.id)
            data.restore(LocalStore(data.store.max_bytes, data.id).checkpoint())

    def repeat_ends(self) -> None:
        """Carry out once more all ends so far, as a leader does that was deposed in the middle of
        one and goes on late.
        """
        self._ends, calls = [], self._ends
        for call in calls:
            call()

    def retire(self, topology_id: str) -> None:
        """Delete what a topology left; zombies of it keep their own reference, to a store that has
        ended.
        """
        self._ends.append(lambda: self.retire(topology_id))
        self._ended.add(topology_id)
        data = self._by_id.pop(topology_id, None)
        if data is not None:
            if data.store.holds_data():
                self.deleted.add(topology_id)
            LocalReader(data.store).delete()

    def unended(self) -> dict[str, int]:
        """Count the tasks of each topology that workers have claimed and that has not ended; a
        successor's data were claimed by the topology before it.
        """
        return {
            topology_id: len(data.store.task_keys)
            for topology_id, data in self._by_id.items()
            if data.store.history.step and topology_id not in self._ended
        }

    def ended(self, topology_ids: Collection[str]) -> set[str]:
        """Return those of these ids that have ended."""
        return self._ended & {*topology_ids}

    def hand_over(self, old_id: str, new_id: str) -> None:
        """Give streams, cursors, journals and held inputs to the successor; what belongs to
        processes is dropped.
        """
        self._ends.append(lambda: self.hand_over(old_id, new_id))
        if old_id in self._ended:
            return  # a hand-over that is repeated, maybe late and by a deposed leader
        old = self.of(old_id)
        new = self.of(new_id)
        self._ended.add(old_id)
        del self._by_id[old_id]
        for task, keys in old.store.task_keys.items():
            keys.fence = 0
            keys.owner = ""
            new.store.task_keys[task] = keys
        new.store.dead_letters += old.store.dead_letters
        new.store.letters_so_far = old.store.letters_so_far
        new.store.quarantine += old.store.quarantine
        new.store.follow(old.store)
        new.errors[:0] = old.errors
        new.arrivals.follow(old.arrivals)
        new.has_inherited = True
        if counts := [*map(Progress.decode, old.store.progress_by_owner.values())]:
            new.store.progress_by_owner[INHERITED] = under_way(counts).encode()
        old.store.dead_letters, old.store.letters_so_far = [], 0
        old.store.end()
