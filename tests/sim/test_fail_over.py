"""A count over a primary, a replica and three Sentinels stays exact whichever way the primary
goes.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from sparkstorm.common.config import merge
from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.stores.addresses import redis_stores
from sparkstorm.common.stores.redis_client import check_redis, client_of
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.reader import RedisReader
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.data_plane.transport.servers.opening import AccessRefusedError, open_connection
from sparkstorm.extensions.embedded.certificates import make_certificates
from sparkstorm.extensions.embedded.process import free_port
from tests.sim.fail_over import KINDS, Trial, hand_over, kill, upgrade_to, versions_here
from tests.sim.targets import sqlite
from tests.sim.watched_redis import MASTER, Guard, Server, WatchedRedis, until
from tests.tls_servers import settings_of
from tests.transport.bare_redis import debian_redis

pytestmark = [pytest.mark.system, pytest.mark.nightly]


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with sqlite(tmp_path) as target:
        made = Trial(tmp_path, target)
        yield made
        made.close()


def test_a_count_and_a_table_are_exact_over_every_kind_of_fail_over_and_no_worker_gives_up(
    trial: Trial,
) -> None:
    dice = random.Random(1)
    with client_of(trial.watched.address, 10) as client:
        client.set("kept", "since before")
        for kind in KINDS.values():
            trial.fail_over(kind, dice)
        client.connection_pool.disconnect()
        assert client.get("kept") == b"since before"
    check_redis(trial.watched.address)
    assert trial.finish().numbers > 100 * len(KINDS)
    assert not [death for death in trial.running.deaths if "did not come back" in death], (
        "a worker waits for the promoted server"
    )


def test_a_server_that_is_a_replica_is_not_taken_for_the_primary(trial: Trial) -> None:
    watched = trial.watched
    replica = watched.other(watched.primary())
    # as one does that has not heard of a fail-over
    with watched.sentinel(watched.sentinels[0]) as sentinel:
        sentinel.sentinel_monitor("stale", "127.0.0.1", replica.port, 3)
    first = watched.address.sentinels[:1]
    sentence = f"the server at 127.0.0.1:{replica.port} is a replica, no primary"
    with pytest.raises(StoreUnavailableError, match=sentence):
        open_connection(replace(watched.address, master="stale", sentinels=first))
    sentence = r"no Sentinel names a primary unheard: .* knows no such name"
    with pytest.raises(StoreUnavailableError, match=sentence):
        open_connection(replace(watched.address, master="unheard", sentinels=first))
    open_connection(watched.address).disconnect()  # type: ignore[no-untyped-call]


def test_sentinels_that_stood_still_while_the_primary_died_promote_its_replica_soon(
    tmp_path: Path,
) -> None:
    """As on a machine without time for them: they then halt, and refuse a replica whose link was
    down for long when they took the primary for dead.
    """
    watched = WatchedRedis(tmp_path)
    with contextlib.closing(watched):
        primary = watched.primary()
        with primary.client() as client:
            client.set("kept", "since before")
        for port in watched.sentinels:
            with watched.sentinel(port) as client:
                # a link may be down for ten times as long
                client.sentinel_set(MASTER, "down-after-milliseconds", 100)
        for watcher in watched.watchers:
            watcher.send_signal(signal.SIGSTOP)
        primary.kill()
        time.sleep(2.5)
        for watcher in watched.watchers:
            watcher.send_signal(signal.SIGCONT)
        watched.until_promoted(watched.other(primary), limit_s=20)
        assert watched.restarts
        with watched.primary().client() as client:
            assert client.get("kept") == b"since before"


def test_a_count_is_exact_while_both_servers_are_replaced_by_newer_versions(tmp_path: Path) -> None:
    oldest, *newer = versions_here().items()
    if not newer:
        pytest.skip("one version of Redis is here")
    trial = Trial(tmp_path, guard=Guard(binary=oldest[1]))
    with contextlib.closing(trial):
        for _, binary in newer:
            trial.fail_over(upgrade_to(binary), random.Random(1))
        assert trial.finish().numbers > 100
        name, _, number = newer[-1][0].partition("-")
        for server in trial.watched.servers:
            with server.client() as client:
                assert client.info("server")[f"{name}_version"] == number


@pytest.mark.skipif(
    shutil.which("openssl") is None or shutil.which("dpkg-deb") is None,
    reason="certificates are made by openssl, and a Redis with TLS comes from Debian",
)
def test_a_count_is_exact_over_sentinels_with_tls_a_password_and_certificates_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_certificates(tmp_path / "tls", ["127.0.0.1"])
    trial = Trial(tmp_path, guard=Guard(debian_redis(), "of-the-sentinels", made))
    with contextlib.closing(trial):
        watched, dice = trial.watched, random.Random(1)
        for name, secret in (("", "of-the-trial"), ("SENTINEL_", "of-the-sentinels")):
            monkeypatch.setenv(f"SPARKSTORM_REDIS_{name}PASSWORD", secret)
        stores = redis_stores(merge({"sparkstorm.redis.url": watched.url, **settings_of(made)}))
        assert stores is not None and stores.home == watched.address
        require_keys(watched)
        trial.fail_over(kill, dice)
        trial.fail_over(hand_over, dice)
        check_redis(watched.address)
        assert trial.finish().numbers > 100


def require_keys(watched: WatchedRedis) -> None:
    """Check that nobody finds the primary without the password, and the certificate, of clients."""
    key = r"\(sparkstorm\.redis\.sentinel\.password\)"
    for secret, words in (
        ("", "want a password, none is set"),
        ("of-nobody", "refuse our password"),
    ):
        address = replace(watched.address, sentinel_password=secret)
        with pytest.raises(AccessRefusedError, match=rf"{words} {key}"):
            open_connection(address)
        with pytest.raises(StoreUnavailableError, match="no Sentinel names a primary") as caught:
            check_redis(address)
        assert len(str(caught.value)) < 200, "the settings of connections are no part of it"
    uncertified = replace(watched.address.tls_files, certificate="", key="")
    for lacking in ({"tls": False}, {"tls_files": uncertified}):
        with pytest.raises(StoreUnavailableError, match="no Sentinel names a primary"):
            open_connection(replace(watched.address, **lacking))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "server", free_port(), "of-the-trial")
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
        sentence = "cannot answer now: You can't write against a read only replica"
        with pytest.raises(StoreUnavailableError, match=sentence):
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


def test_a_worker_reads_from_the_server_that_it_commits_to_whatever_the_sentinels_say(
    tmp_path: Path, server: Server
) -> None:
    """A thawed primary takes commits for seconds after its replica's promotion, and a Sentinel that
    has not heard of that names it; what it took is undone.
    """
    watched = WatchedRedis(tmp_path, sentinels=2)
    with contextlib.closing(watched):
        promoted, former = watched.primary(), server
        first, second = watched.sentinels
        with watched.sentinel(second) as client:
            client.sentinel_monitor("words", "127.0.0.1", promoted.port, 1)
            client.sentinel_set("words", "auth-pass", promoted.password)
        transport = RedisTransport(replace(watched.address, master="words"), "words-1-1")
        stream = Keys("words-1-1").stream(1)
        with contextlib.closing(transport):
            transport.claim("owner", {1: 1})
            with watched.sentinel(first) as client:
                client.sentinel_monitor("words", "127.0.0.1", former.port, 1)
                client.sentinel_set("words", "auth-pass", former.password)
            for writer, row in ((former, b"undone"), (promoted, b"kept")):
                with writer.client() as client:
                    client.xadd(stream, {"f": row})
            received: list[bytes] = []

            def has_read() -> bool:
                transport.wait(100)
                received.extend(entry.data for entry in transport.poll({1: "0-0"}, 10))
                return bool(received)

            until(has_read, "nothing is read", limit_s=30)
            assert received == [b"kept"]


def test_an_idle_worker_and_a_client_go_to_the_primary_that_the_sentinels_name_by_now(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary that is cut from its replicas and the Sentinels, and not from the worker, answers
    every read with what it had.
    """
    monkeypatch.setattr("sparkstorm.data_plane.transport.reading._BLOCK_MS", 200)
    watched = WatchedRedis(tmp_path, sentinels=1)
    with contextlib.closing(watched):
        promoted = watched.primary()
        keys = Keys("words-1-1")
        for primary in (promoted, server):
            with contextlib.closing(RedisTransport(primary.address, "words-1-1")) as transport:
                transport.claim("owner", {1: 1})
        with promoted.client() as client:
            client.hset(keys("backlog"), "1", "7")

        def name(primary: Server) -> None:
            with watched.sentinel(watched.sentinels[0]) as client:
                with contextlib.suppress(redis.ResponseError):
                    client.sentinel_remove("words")
                client.sentinel_monitor("words", "127.0.0.1", primary.port, 1)
                client.sentinel_set("words", "auth-pass", primary.password)

        name(server)
        address = replace(watched.address, master="words")
        transport = RedisTransport(address, "words-1-1")
        reader = RedisReader(address, "words-1-1")
        with contextlib.closing(transport), contextlib.closing(reader):
            transport.claim("owner", {1: 1})
            monkeypatch.setattr(reader._link, "_check_s", 0.2)
            assert reader.backlog() == {}
            name(promoted)
            with promoted.client() as client:
                client.xadd(keys.stream(1), {"f": b"kept"})
            received: list[bytes] = []

            def has_read() -> bool:
                transport.wait(100)
                received.extend(entry.data for entry in transport.poll({1: "0-0"}, 10))
                return bool(received)

            until(has_read, "the worker stays where it was", limit_s=30)
            assert received == [b"kept"]
            until(lambda: reader.backlog() == {1: 7}, "the client stays where it was", limit_s=30)
