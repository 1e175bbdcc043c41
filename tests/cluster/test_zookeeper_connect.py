"""Checks of a session that comes back while its server is starting."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from kazoo.client import KazooClient

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.control_plane.cluster.zookeeper import (
    ZooKeeperAddress,
    ZooKeeperStateStore,
    _make_client,
)
from sparkstorm.control_plane.cluster.zookeeper_patience import BoundedHandler
from sparkstorm.control_plane.cluster.zookeeper_rollback import SessionRenewal
from sparkstorm.extensions.embedded import ZooKeeperServer

WITHIN_S = 12.0  # kazoo alone: the session's 60 s


def test_a_connection_that_a_starting_server_never_answers_is_given_up_for_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WITHIN_S)
        client = _make_client(
            ZooKeeperAddress(f"127.0.0.1:{server.getsockname()[1]}", session_timeout_ms=60_000)
        )
        client.start_async()
        try:
            with server.accept()[0], server.accept()[0]:
                pass
        finally:
            client.stop()
            client.close()


def test_waits_for_a_slow_answer_grow_and_shrink_again() -> None:
    handler, (one, other) = BoundedHandler(), socket.socketpair()
    with one, other:
        handler._wait_s = 0.01
        assert handler.select([one], [], [], 60.0)[0] == []
        assert handler._wait_s == 0.02
        other.send(b"x")
        assert handler.select([one], [], [], 60.0)[0] == [one]
        assert handler._wait_s == 2.0
        assert handler.select([one, other], [], [], 0.0)[0] == [one]
        assert handler.select([], [one], [], 1.0)[1] == [one]


def test_a_session_that_comes_back_while_a_probe_looks_is_not_ahead_of_its_server(
    own_zookeeper: ZooKeeperServer,
) -> None:
    user, password = own_zookeeper.identity
    address = ZooKeeperAddress(own_zookeeper.hosts, "/storm", user, password)
    client, said = _make_client(address), list[str]()
    client.start()

    class Probe(KazooClient):  # type: ignore[misc]  # kazoo has no types
        def exists_async(self, path: str, watch: Any = None) -> Any:
            answer = super().exists_async(path, watch)
            answer.get(timeout=WITHIN_S)
            client.ensure_path("/written/after/the/probe")
            return answer

    def make_probe() -> KazooClient:
        return Probe(hosts=own_zookeeper.hosts, auth_data=[own_zookeeper.auth])

    try:
        assert not SessionRenewal(
            client, make_probe, lambda: said.append("rolled back")
        )._is_ahead_of_server()
    finally:
        client.stop()
        client.close()


def test_a_request_to_a_server_that_is_away_ends_within_its_limit_and_names_what_may_still_be_done(
    own_zookeeper: ZooKeeperServer,
) -> None:
    user, password = own_zookeeper.identity
    store = ZooKeeperStateStore(
        ZooKeeperAddress(
            own_zookeeper.hosts, "/storm", user, password, 4_000, request_timeout_ms=1_000
        )
    )
    try:
        own_zookeeper.kill()
        began = time.monotonic()
        for request, may_still in (
            (store.children, False),
            (store.get, False),
            (lambda path: store.put(path, b""), True),
        ):
            with pytest.raises(StoreUnavailableError, match="did not answer the request") as caught:
                request("/storm")
            assert ("what was asked may still be done" in str(caught.value)) is may_still
        assert time.monotonic() - began < WITHIN_S
    finally:
        store.close()
