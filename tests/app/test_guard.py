"""The guard over embedded servers: what dies is started again, until the guard is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sparkstorm.app.guard import ServerGuard
from sparkstorm.embedded import RedisServer
from sparkstorm.errors import EmbeddedServerError


class FakeServer:
    def __init__(self, failures: int = 0) -> None:
        self.alive, self.failures, self.restarts = True, failures, 0

    def is_alive(self) -> bool:
        return self.alive

    def restart(self) -> None:
        self.restarts += 1
        if self.restarts <= self.failures:
            raise EmbeddedServerError("the port is taken")
        self.alive = True


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
