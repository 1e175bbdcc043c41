"""Owns the tests of the embedded ZooKeeper."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from sparkstorm.embedded import ZooKeeperServer

pytestmark = pytest.mark.system


def test_zookeeper_serves_a_client_with_its_auth(zookeeper_server: ZooKeeperServer) -> None:
    client = KazooClient(zookeeper_server.hosts, auth_data=[zookeeper_server.auth])
    client.start(10)
    client.create("/embedded-test", b"x")
    assert client.get("/embedded-test")[0] == b"x"
    client.stop()
    client.close()
