"""A simulated cluster whose Nimbus, or whole driver, dies at a chosen write and is followed by
another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkstorm.client.service import NimbusService
from sparkstorm.common.errors import FailedAssignTopologyError, StoreUnavailableError
from sparkstorm.common.model.assignment import Assignment
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.hooks import NothingToRetire
from sparkstorm.control_plane.nimbus.nimbus import Nimbus
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.nimbus.crash_points import CrashPoint
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


class RefusingScheduler(DefaultScheduler):
    """Refuses topologies that ask for it."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        if any(each.conf.get("app.refuse") for each in topologies.values()):
            raise FailedAssignTopologyError("there's no enough worker")
        super().schedule(topologies, cluster)


class CrashingBench(Bench):
    """A cluster with a topology in it; Nimbus, or the driver with it, dies at its n-th write and is
    followed by another.
    """

    def __init__(self, is_inactive: bool = False) -> None:
        settings = {
            "nimbus__topology__blobstore__deletion__delay__ms": 1000,
            "task__cleanup__timeout__sec": 2,
        }
        super().__init__(3, (6700, 6701), RefusingScheduler(), **settings)
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
        self.crash: CrashPoint | None = None

    def rest(self, secs: int) -> None:
        """Let time pass, in strides."""
        for _ in range(secs // 4):
            self.tick(4000)

    def assignment(self) -> Assignment:
        (topology_id,) = self.state.topology_ids()
        found = self.state.read_assignment(topology_id)
        assert found
        return found

    def crash_nimbus(self, crash: CrashPoint) -> None:
        """Another Nimbus, which will die; the client has its own session and lives."""
        self.store.close()
        self.crash = crash
        self._follow(crash.around(LocalStateStore(self.tree)), crash.around(self.bytes_store))
        self.nimbus.hooks.retirement = crash.around(self.keeper)
        self.store = LocalStateStore(self.tree)
        self.state = StormState(self.store, KEY)
        self.blobs = BlobStore(self.state, self.bytes_store, KEY)
        self.service = self.client()

    def crash_client(self, crash: CrashPoint) -> None:
        """A client over its own session, which will die; Nimbus lives."""
        self.crash = crash
        state = StormState(crash.around(LocalStateStore(self.tree)), KEY)
        blobs = BlobStore(state, crash.around(self.bytes_store), KEY)
        self.service = NimbusService(state, blobs, self.conf, self.clock, self.wait_until)

    def crash_driver(self, crash: CrashPoint) -> None:
        """Another driver, which will die: Nimbus and its service over one session."""
        self.store.close()
        self.crash = crash
        self.store = crash.around(LocalStateStore(self.tree))
        self.state = StormState(self.store, KEY)
        whole, self.bytes_store = self.bytes_store, crash.around(self.bytes_store)
        self.start_nimbus()
        self.bytes_store = whole
        self.nimbus.hooks.retirement = crash.around(self.keeper)

    def follow_driver(self) -> None:
        """The driver that comes after."""
        self.crash = None
        self.restart_nimbus()
        self.nimbus.hooks.retirement = self.keeper

    def _follow(self, store: Any, bytes_store: Any) -> None:
        state = StormState(store, KEY)
        self.nimbus = Nimbus(state, BlobStore(state, bytes_store, KEY), self.scheduler, self.conf)
        self.nimbus.hooks.retirement = self.keeper

    def step_nimbus(self, now_ms: int) -> None:
        try:
            self.nimbus.step(now_ms)
        except StoreUnavailableError:
            assert self.crash and self.crash.has_crashed
            if not self.state.store.is_connected:
                raise  # the whole driver
            if self.crash.is_dead:
                self._follow(LocalStateStore(self.tree), self.bytes_store)
