"""Runs Nimbus over a real ZooKeeper and a real Redis: submit, restart, rebalance, kill, a store
that goes away.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparkstorm.client.service import NimbusService
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.config import default_conf
from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.assignment import SupervisorInfo
from sparkstorm.common.model.requests import OutcomeState
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.control_plane.blobs.redis import RedisBytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.control_plane.nimbus.nimbus import Nimbus
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.data_plane.transport.connection import Link
from tests.nimbus.nimbus_bench import CODE, KEY, wordcount

pytestmark = pytest.mark.system
DEADLINE_S = 120.0


class Cluster:
    """A Nimbus and one supervisor, each with its own session."""

    def __init__(self, zookeeper: Any, redis: Any, root: str) -> None:
        user, password = zookeeper.identity
        self.address = ZooKeeperAddress(zookeeper.hosts, root, user, password, 4000, 5000, 1, 100)
        self.redis = redis
        self.root = root
        self.clock = SystemClock()
        self.conf = {
            **default_conf().as_dict(),
            "nimbus.monitor.freq.secs": 0.2,
            "task.cleanup.timeout.sec": 0.5,
        }
        self.sessions: list[ZooKeeperStateStore] = []
        self.stores: list[RedisBytesStore] = []
        self.host = StormState(self.open(), KEY)
        self.start_nimbus()

    def open(self) -> ZooKeeperStateStore:
        self.sessions.append(ZooKeeperStateStore(self.address))
        return self.sessions[-1]

    def start_nimbus(self) -> None:
        self.state = StormState(self.open(), KEY)
        self.bytes_store = RedisBytesStore(Link(self.redis.address, 10), f"nimbus-test{self.root}:")
        self.stores.append(self.bytes_store)
        self.blobs = BlobStore(self.state, self.bytes_store, KEY)
        self.nimbus = Nimbus(self.state, self.blobs, DefaultScheduler(), self.conf)
        self.service = NimbusService(self.state, self.blobs, self.conf, self.clock, self.drive)

    def drive(self, done: Callable[[], bool], timeout_ms: int = 0) -> bool:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            try:
                now_ms = self.clock.now_ms()
                self.host.register_supervisor(SupervisorInfo("s1", "host", now_ms, 0, (6700, 6701)))
                self.nimbus.step(now_ms)
            except StoreUnavailableError:
                continue
            time.sleep(0.02)
        return True

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        for store in self.stores:
            store.close()


@pytest.fixture
def cluster(
    zookeeper_server: Any, redis_server: Any, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    made = Cluster(zookeeper_server, redis_server, f"/{request.node.name}")
    yield made
    made.close()


def workers(cluster: Cluster, topology_id: str) -> int:
    assignment = cluster.state.read_assignment(topology_id)
    return len(set(assignment.slot_by_executor.values())) if assignment else 0


def test_a_topology_lives_and_ends_on_real_stores(cluster: Cluster) -> None:
    topology_id = cluster.service.submit("wc", wordcount(), {"topology.workers": 1}, CODE)
    cluster.drive(lambda: workers(cluster, topology_id) == 1)
    pending = cluster.service.begin(
        cluster.service.rebalance_request("wc", RebalanceOptions(2), wait_secs=0.2)
    )
    cluster.drive(lambda: pending.poll() is not None)
    cluster.sessions.pop().close()  # the old Nimbus, in the middle of the rebalance
    cluster.start_nimbus()
    outcome = cluster.service.begin(pending.request).wait()
    assert outcome.state is OutcomeState.DONE and workers(cluster, topology_id) == 2
    cluster.service.kill("wc", wait_secs=0)
    cluster.drive(lambda: cluster.state.known_ids() == set())


def test_a_store_that_goes_away_and_comes_back_moves_nobody(
    own_zookeeper: Any, redis_server: Any
) -> None:
    cluster = Cluster(own_zookeeper, redis_server, "/away")
    try:
        topology_id = cluster.service.submit("wc", wordcount(), {"topology.workers": 2}, CODE)
        cluster.drive(lambda: workers(cluster, topology_id) == 2)
        before = cluster.state.read_assignment(topology_id)
        own_zookeeper.stop()
        with pytest.raises(StoreUnavailableError, match=own_zookeeper.hosts):
            cluster.nimbus.step(cluster.clock.now_ms() + 60_000)
        own_zookeeper.restart()
        epoch_turns = [0]

        def turned() -> bool:
            epoch_turns[0] += 1
            return epoch_turns[0] > 20 and cluster.state.store.is_connected

        cluster.drive(turned)
        assert cluster.state.read_assignment(topology_id) == before
    finally:
        cluster.close()


def test_another_password_is_refused_with_a_sentence(
    zookeeper_server: Any, cluster: Cluster
) -> None:
    cluster.state.store.put("/storms/x", b"")
    user, _ = zookeeper_server.identity
    with pytest.raises(StoreUnavailableError, match=r"storm\.zookeeper\.auth\.password"):
        ZooKeeperStateStore(
            ZooKeeperAddress(zookeeper_server.hosts, cluster.root, user, "wrong", 4000)
        ).get("/storms/x")


def test_an_address_where_nobody_listens_is_named(tmp_path: Any) -> None:
    sentence = r"127\.0\.0\.1:1/storm does not answer within 300 ms"
    with pytest.raises(StoreUnavailableError, match=sentence):
        ZooKeeperStateStore(ZooKeeperAddress("127.0.0.1:1", connection_timeout_ms=300))
