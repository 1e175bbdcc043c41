"""The guard over embedded servers: what dies is started again, until the guard is stopped."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, SessionExpiredError

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.driver.guard import RestartPatience, ServerGuard
from sparkstorm.extensions.embedded import RedisServer, ZooKeeperServer
from tests.waiting import wait_until

pytestmark = pytest.mark.sampled


class FakeServer:
    def __init__(self, failures: int = 0) -> None:
        self.alive, self.failures, self.restarts = True, failures, 0
        self.answering, self.asked = True, 0

    def is_alive(self) -> bool:
        return self.alive

    def answers(self, limit_s: float) -> bool:
        self.asked += 1
        return self.answering

    def kill(self) -> None:
        self.alive = False

    def restart(self) -> None:
        self.restarts += 1
        self.answering = True
        if self.restarts <= self.failures:
            raise EmbeddedServerError("the port is taken")
        self.alive = True


def test_a_dead_server_is_started_again_and_said() -> None:
    said: list[str] = []
    server, other = FakeServer(), FakeServer()
    guard = ServerGuard({"redis": server, "zookeeper": other}, said.append)
    guard.start()
    server.alive = False
    wait_until(lambda: server.alive)
    guard.stop()
    assert (server.restarts, other.restarts) == (1, 0)
    assert [line.partition(" is back")[0] for line in said][1:] == ["embedded redis"]


def test_a_server_that_cannot_be_started_is_tried_again() -> None:
    said: list[str] = []
    server = FakeServer(failures=1)
    guard = ServerGuard({"redis": server}, said.append)
    guard.start()
    server.alive = False
    wait_until(lambda: server.alive)
    guard.stop()
    assert "embedded redis could not be started again: the port is taken" in said


def test_a_server_that_lives_and_answers_no_more_is_killed_and_started_again() -> None:
    said: list[str] = []
    server, other = FakeServer(), FakeServer()
    guard = ServerGuard(
        {"redis": server, "zookeeper": other}, said.append, RestartPatience(0.0, 0.1, 3, 0.0)
    )
    guard.start()
    server.answering = False
    wait_until(lambda: server.restarts)
    wait_until(lambda: server.asked > 3)
    guard.stop()
    assert (server.restarts, other.restarts) == (1, 0)
    assert (
        "embedded redis lives but has not answered for 0 s; it is started again on its data ..."
        in said
    )


def test_a_server_that_is_slow_now_and_then_is_left_alone() -> None:
    class SlowServer(FakeServer):
        def answers(self, limit_s: float) -> bool:
            self.asked += 1
            return self.asked % 3 == 0

    server = SlowServer()
    guard = ServerGuard({"zookeeper": server}, lambda _: None, RestartPatience(0.0, 0.1, 3, 0.0))
    guard.start()
    wait_until(lambda: server.asked > 12)
    guard.stop()
    assert server.restarts == 0


def test_a_server_is_given_the_whole_time_of_silence() -> None:
    server = FakeServer()
    server.answering = False
    guard = ServerGuard(
        {"zookeeper": server}, lambda _: None, RestartPatience(0.0, 0.1, 1, 3_600.0)
    )
    guard.start()
    wait_until(lambda: server.asked > 5)
    guard.stop()
    assert server.restarts == 0


def test_after_a_stop_the_dead_stay_dead() -> None:
    server = FakeServer()
    guard = ServerGuard({"redis": server}, lambda _: None)
    guard.start()
    guard.stop()
    server.alive = False
    assert server.restarts == 0


@pytest.mark.system
def test_a_killed_redis_is_back_on_its_port_with_its_data(own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        client.set("kept", "yes")
    before = own_redis.pid
    guard = ServerGuard({"redis": own_redis}, lambda _: None)
    guard.start()
    own_redis.kill()
    wait_until(lambda: own_redis.pid != before)
    guard.stop()
    with own_redis.client() as client:
        assert client.get("kept") == b"yes"


@pytest.mark.system
def test_stopped_processes_are_found_by_their_silence_and_keep_their_data(
    own_redis: RedisServer, own_zookeeper: ZooKeeperServer
) -> None:
    with own_redis.client() as client:
        client.set("kept", "yes")
    servers: dict[str, RedisServer | ZooKeeperServer] = {
        "redis": own_redis,
        "zookeeper": own_zookeeper,
    }
    before = {name: server.pid for name, server in servers.items()}
    assert all(server.answers(10.0) for server in servers.values())
    guard = ServerGuard(servers, lambda _: None, RestartPatience(0.1, 0.5, 2, 1.0))
    for pid in before.values():
        os.kill(pid, signal.SIGSTOP)
    assert all(server.is_alive() and not server.answers(0.2) for server in servers.values())
    guard.start()
    wait_until(lambda: all(server.pid != before[name] for name, server in servers.items()))
    guard.stop()
    assert all(server.answers(10.0) for server in servers.values())
    with own_redis.client() as client:
        assert client.get("kept") == b"yes"


@pytest.mark.system
def test_a_flooded_zookeeper_is_back_with_its_data(own_zookeeper: ZooKeeperServer) -> None:
    """A holder of the credential fills its memory: it ends or falls silent, and a full snapshot
    must not stop its return.
    """
    user, password = own_zookeeper.identity
    said: list[str] = []
    before = own_zookeeper.pid
    guard = ServerGuard(
        {"zookeeper": own_zookeeper}, said.append, RestartPatience(0.5, 2.0, 3, 5.0)
    )
    guard.start()
    client = KazooClient(
        own_zookeeper.hosts, auth_data=[("digest", f"{user}:{password}")], timeout=10
    )
    client.start(30)
    made = 0
    try:
        with contextlib.suppress(KazooException, SessionExpiredError):
            while made < 400:  # 400 MB, in a heap of 256
                client.create(f"/flood-{made}", b"x" * 1_000_000)
                made += 1
        assert 50 < made < 400
        wait_until(lambda: own_zookeeper.pid != before and any("is back" in line for line in said))
    finally:
        guard.stop()
        client.stop()
        client.close()
    assert (
        "embedded zookeeper has ended unasked" in said[0] or "lives but has not answered" in said[0]
    )
    wait_until(lambda: own_zookeeper.answers(10.0))
    fresh = KazooClient(
        own_zookeeper.hosts, auth_data=[("digest", f"{user}:{password}")], timeout=10
    )
    fresh.start(30)
    try:
        kept = [name for name in fresh.get_children("/") if name.startswith("flood-")]
        assert len(kept) >= made  # what was acknowledged is there
        fresh.delete("/flood-0")
    finally:
        fresh.stop()
        fresh.close()
