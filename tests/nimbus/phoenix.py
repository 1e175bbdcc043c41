"""A simulated cluster whose Nimbus, or whole driver, dies at a chosen write and is followed by another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkstorm.blobs.store import BlobStore
from sparkstorm.client.service import NimbusService
from sparkstorm.cluster.local import LocalStateStore
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.errors import FailedAssignTopologyError, StoreUnavailableError
from sparkstorm.model.assignment import Assignment
from sparkstorm.nimbus.hooks import NothingToRetire
from sparkstorm.nimbus.nimbus import Nimbus
from sparkstorm.scheduling.default import DefaultScheduler
from sparkstorm.scheduling.records import Topologies
from sparkstorm.scheduling.view import ClusterView
from tests.nimbus.fuses import Fuse
from tests.nimbus.nimbus_bench import KEY, Bench


@dataclass
class Keeper(NothingToRetire):
    """Keeps what topologies leave outside the state store."""

    data: dict[str, str] = field(default_factory=dict)

    def retire(self, topology_id: str) -> None:
        self.data.pop(topology_id, None)

    def hand_over(self, old_id: str, new_id: str) -> None:
        if old_id in self.data:
            self.data[new_id] = self.data.pop(old_id)

    def seed(self, topology_id: str, component_by_task: Mapping[int, str]) -> None:
        """Return what a topology begins with is kept there too."""
        self.data[topology_id] = "seeds"


class Picky(DefaultScheduler):
    """Refuses topologies that ask for it."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        if any(each.conf.get("app.refuse") for each in topologies.values()):
            raise FailedAssignTopologyError("there's no enough worker")
        super().schedule(topologies, cluster)


class Phoenix(Bench):
    """A cluster with a topology in it; Nimbus, or the driver with it, dies at its n-th write and is followed by another."""

    def __init__(self, is_inactive: bool = False) -> None:
        settings = {"nimbus__topology__blobstore__deletion__delay__ms": 1000, "task__cleanup__timeout__sec": 2}
        super().__init__(3, (6700, 6701), Picky(), **settings)
        for supervisor in self.supervisors.values():
            supervisor.opens = lambda _key: ""
        self.keeper = Keeper()
        self.nimbus.hooks.retirement = self.keeper
        self.old = self.submit()
        self.keeper.data[self.old] = "counts"
        if is_inactive:
            self.service.deactivate("wc")
        self.advance(3)
        self.before = self.assignment()
        self.fuse: Fuse | None = None

    def rest(self, secs: int) -> None:
        """Let time pass, in strides."""
        for _ in range(secs // 4):
            self.tick(4000)

    def assignment(self) -> Assignment:
        (topology_id,) = self.state.topology_ids()
        found = self.state.read_assignment(topology_id)
        assert found
        return found

    def doom_nimbus(self, fuse: Fuse) -> None:
        """Another Nimbus, which will die; the client has a session of its own and lives."""
        self.store.close()
        self.fuse = fuse
        self._follow(fuse.around(LocalStateStore(self.tree)), fuse.around(self.bytes_store))
        self.nimbus.hooks.retirement = fuse.around(self.keeper)
        self.store = LocalStateStore(self.tree)
        self.state = StormState(self.store, KEY)
        self.blobs = BlobStore(self.state, self.bytes_store, KEY)
        self.service = self.client()

    def doom_client(self, fuse: Fuse) -> None:
        """A client over a session of its own, which will die; Nimbus lives."""
        self.fuse = fuse
        state = StormState(fuse.around(LocalStateStore(self.tree)), KEY)
        blobs = BlobStore(state, fuse.around(self.bytes_store), KEY)
        self.service = NimbusService(state, blobs, self.conf, self.clock, self.wait_until)

    def doom_driver(self, fuse: Fuse) -> None:
        """Another driver, which will die: Nimbus and its service over one session."""
        self.store.close()
        self.fuse = fuse
        self.store = fuse.around(LocalStateStore(self.tree))
        self.state = StormState(self.store, KEY)
        whole, self.bytes_store = self.bytes_store, fuse.around(self.bytes_store)
        self.start_nimbus()
        self.bytes_store = whole
        self.nimbus.hooks.retirement = fuse.around(self.keeper)

    def follow_driver(self) -> None:
        """The driver that comes after."""
        self.fuse = None
        self.restart_nimbus()
        self.nimbus.hooks.retirement = self.keeper

    def _follow(self, store: Any, bytes_store: Any) -> None:
        state = StormState(store, KEY)
        self.nimbus = Nimbus(state, BlobStore(state, bytes_store, KEY), self.scheduler, self.conf)
        self.nimbus.hooks.retirement = self.keeper

    def tick(self, delta_ms: int = 1000) -> None:
        now_ms = self.clock.advance(delta_ms)
        for supervisor in self.supervisors.values():
            supervisor.step(now_ms)
        try:
            self.nimbus.step(now_ms)
        except StoreUnavailableError:
            assert self.fuse and self.fuse.is_burnt
            if not self.state.store.is_connected:
                raise  # the whole driver
            if self.fuse.is_dead:
                self._follow(LocalStateStore(self.tree), self.bytes_store)
        self.check()
