"""A count over a primary, a replica and three Sentinels stays exact whichever way the primary
goes.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from sparkstorm.errors import StoreUnavailableError
from sparkstorm.stores.redis_client import check_redis, client_of
from sparkstorm.transport.connection import Link, open_connection
from sparkstorm.transport.redis import RedisTransport
from tests.sim.fail_over import KINDS, Trial
from tests.sim.watched_redis import Server, until

pytestmark = pytest.mark.system


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path)
    yield made
    made.close()


def test_a_count_is_exact_over_every_kind_of_fail_over_and_no_worker_gives_up(trial: Trial) -> None:
    dice = random.Random(1)
    with client_of(trial.watched.address, 10) as client:
        client.set("kept", "since before")
        for kind in KINDS:
            trial.fail_over(kind, dice)
        client.connection_pool.disconnect()
        assert client.get("kept") == b"since before"
    check_redis(trial.watched.address)
    total, _ = trial.finish()
    assert total > 100 * len(KINDS)
    assert not [each for each in trial.running.deaths if "did not come back" in each], (
        "a worker waits for the promoted server"
    )


def test_a_server_that_is_a_replica_is_not_taken_for_the_primary(trial: Trial) -> None:
    watched = trial.watched
    replica = watched.other(watched.primary())
    # as one does that has not heard of a fail-over
    with redis.Redis(port=watched.sentinels[0]) as sentinel:
        sentinel.sentinel_monitor("stale", "127.0.0.1", replica.port, 3)
    first = watched.address.sentinels[:1]
    with pytest.raises(
        StoreUnavailableError,
        match=f"the server at 127.0.0.1:{replica.port} is a replica, no primary",
    ):
        open_connection(replace(watched.address, master="stale", sentinels=first))
    with pytest.raises(
        StoreUnavailableError, match=r"name no primary: No master found for 'unheard'"
    ):
        open_connection(replace(watched.address, master="unheard", sentinels=first))
    open_connection(watched.address).disconnect()  # type: ignore[no-untyped-call]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "server", "of-the-trial")
    made.start()
    yield made
    made.kill()


def test_a_server_that_says_it_is_a_replica_is_connected_to_anew(server: Server) -> None:
    """By hand and without Sentinels, which cut the clients of a server that they demote."""
    link = Link(server.address, 60)
    link.ask(("SET", "key", "1"))
    before = link.number
    with server.client() as client:
        client.replicaof("127.0.0.1", 1)
        back = threading.Timer(0.5, client.replicaof, ["NO", "ONE"])
        back.start()
        link.ask(("SET", "key", "2"))
        back.join()
        client.replicaof("127.0.0.1", 1)
        with pytest.raises(
            StoreUnavailableError,
            match="cannot answer now: You can't write against a read only replica",
        ):
            link.ask_once(("SET", "key", "3"))
    assert link.number > before
    link.close()


def test_a_question_that_a_server_holds_while_it_is_demoted_is_a_lost_one_and_no_damage(
    server: Server,
) -> None:
    transport = RedisTransport(server.address, "demoted-1-1")
    transport.claim("owner", {1: 1})
    assert transport.poll({1: "0-0"}, 10) == []
    with server.client() as client:
        until(lambda: client.info("clients")["blocked_clients"] == 1, "no question is open")
        client.replicaof("127.0.0.1", 1)
        client.replicaof("NO", "ONE")
    for _ in range(3):
        transport.wait(200)
        assert transport.poll({1: "0-0"}, 10) == []
    transport.close()
