"""Rights of a viewer, tried as attacks on real servers: it reads what it needs, and the servers
refuse everything else.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl

from sparkstorm.common.config import merge
from sparkstorm.common.errors import InvalidConfigError, ReadOnlyConnectionError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.stores.connection import (
    VIEWER,
    Connection,
    ReadOnlyConnection,
    load_any_connection,
    load_connection,
    new_secret,
    read_only_path,
    redis_password,
    signing_key,
    viewer_redis_password,
    viewer_zookeeper_password,
    zookeeper_password,
)
from sparkstorm.common.stores.redis_client import client_of
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.nimbus_state import NimbusInfo
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.tickets import TicketOffice
from sparkstorm.control_plane.cluster.zookeeper import (
    ZooKeeperAddress,
    ZooKeeperStateStore,
    viewer_identity,
)
from sparkstorm.data_plane.transport.reader import RedisReader, is_kept_in
from sparkstorm.extensions.embedded import RedisServer, ZooKeeperServer, open_stores, start_redis

pytestmark = pytest.mark.system
SECRET = new_secret()
KEY = b"the cluster's key"


# -- ZooKeeper -------------------------------------------------------------------------------------


@pytest.fixture
def owner_address(
    zookeeper_server: ZooKeeperServer, request: pytest.FixtureRequest
) -> ZooKeeperAddress:
    user, password = zookeeper_server.identity
    root = f"/read-only-{os.getpid()}-{request.node.name}"
    viewer = viewer_identity(VIEWER, viewer_zookeeper_password(SECRET))
    return ZooKeeperAddress(zookeeper_server.hosts, root, user, password, 4_000, viewer=viewer)


@pytest.fixture
def owner(owner_address: ZooKeeperAddress) -> Iterator[ZooKeeperStateStore]:
    made = ZooKeeperStateStore(owner_address)
    yield made
    made.close()


def viewer_of(address: ZooKeeperAddress) -> ZooKeeperAddress:
    return replace(
        address,
        user=VIEWER,
        password=viewer_zookeeper_password(SECRET),
        viewer="",
        is_read_only=True,
    )


@contextlib.contextmanager
def raw_viewer(address: ZooKeeperAddress) -> Iterator[KazooClient]:
    """A viewer that does not use our client."""
    client = KazooClient(
        address.hosts, auth_data=[("digest", f"{VIEWER}:{viewer_zookeeper_password(SECRET)}")]
    )
    client.start(10)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_a_viewer_reads_records_without_their_key(
    owner: ZooKeeperStateStore, owner_address: ZooKeeperAddress
) -> None:
    StormState(owner, KEY).write_cluster_conf({"topology.workers": 3})
    with contextlib.closing(ZooKeeperStateStore(viewer_of(owner_address))) as store:
        state = StormState(store)
        assert state.read_cluster_conf() == {"topology.workers": 3}
        assert store.children("/nimbus") == ["conf"]


ATTACKS: dict[str, Callable[[KazooClient, str], Any]] = {
    "overwrite": lambda client, root: client.set(f"{root}/nimbus/conf", b"mine"),
    "delete": lambda client, root: client.delete(f"{root}/nimbus/conf"),
    "delete all": lambda client, root: client.delete(root, recursive=True),
    "request": lambda client, root: client.create(
        f"{root}/nimbus/requests/{'0' * 32}", b"mine", makepath=True
    ),
    "lead": lambda client, root: client.create(f"{root}/nimbus/leader", b"mine", ephemeral=True),
    "stop the slots": lambda client, root: client.create(f"{root}/stop-slots", b""),
    "open the tree": lambda client, root: client.set_acls(
        f"{root}/nimbus/conf", [make_digest_acl(VIEWER, "mine", all=True)]
    ),
    "list tickets": lambda client, root: client.get_children(f"{root}/tickets"),
    "outside": lambda client, root: client.create("/elsewhere", b""),
    "list the server": lambda client, root: client.get_children("/"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_viewer_changes_nothing_in_zookeeper(
    owner: ZooKeeperStateStore, owner_address: ZooKeeperAddress, attack: str
) -> None:
    StormState(owner, KEY).write_cluster_conf({})
    before = owner.get(paths.CLUSTER_CONF)
    with TicketOffice(owner, owner_address).ticket(b"spec"), raw_viewer(owner_address) as client:
        with pytest.raises(NoAuthError):
            ATTACKS[attack](client, owner_address.root)
        (ticket,) = owner.children(paths.TICKETS)
        with pytest.raises(NoAuthError):
            client.get(f"{owner_address.root}/tickets/{ticket}")
    assert owner.get(paths.CLUSTER_CONF) == before


def test_a_viewers_store_refuses_writes_in_one_sentence(
    owner: ZooKeeperStateStore, owner_address: ZooKeeperAddress
) -> None:
    owner.ensure_path("/nimbus")
    with contextlib.closing(ZooKeeperStateStore(viewer_of(owner_address))) as store:
        for write in (
            lambda: store.put("/nimbus/conf", b"mine"),
            lambda: store.create("/nimbus/requests/1", b"mine"),
            lambda: StormState(store).try_lead(NimbusInfo("me", 1)),
            lambda: store.delete("/nimbus"),
        ):
            with pytest.raises(ReadOnlyConnectionError, match="for a viewer"):
                write()


def test_a_tree_of_an_earlier_release_is_opened_to_viewers_but_not_its_tickets(
    owner_address: ZooKeeperAddress,
) -> None:
    with contextlib.closing(ZooKeeperStateStore(replace(owner_address, viewer=""))) as former:
        StormState(former, KEY).write_cluster_conf({"topology.workers": 2})
        former.create("/tickets/old", b"sealed")
    with (
        raw_viewer(owner_address) as client,
        contextlib.closing(ZooKeeperStateStore(owner_address)) as store,
    ):
        with pytest.raises(NoAuthError):
            client.get(f"{owner_address.root}/nimbus/conf")
        store.open_to_viewer(paths.TICKETS)
        assert b"topology.workers" in client.get(f"{owner_address.root}/nimbus/conf")[0]
        for hidden in ("/tickets", "/tickets/old"):
            with pytest.raises(NoAuthError):
                client.get(owner_address.root + hidden)


# -- Redis -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = start_redis(
        tmp_path_factory.mktemp("redis"),
        password=redis_password(SECRET),
        viewer=(VIEWER, viewer_redis_password(SECRET)),
    )
    with made.client() as client:
        client.hset("{t}-1-1:progress", "node:6700", b"record")
        client.xadd("{t}-1-1:dead", {"f": b"letter"})
        client.set("sparkstorm:{blob}:abc:0", b"code")
    yield made
    made.stop()


@pytest.fixture
def viewer(server: RedisServer) -> Iterator[redis.Redis]:
    with client_of(
        RedisAddress(server.host, server.port, viewer_redis_password(SECRET), VIEWER), 10
    ) as client:
        yield client


def test_a_viewer_reads_what_topologies_keep_in_redis(server: RedisServer) -> None:
    address = RedisAddress(server.host, server.port, viewer_redis_password(SECRET), VIEWER)
    with contextlib.closing(RedisReader(address, "t-1-1", may_write=False)) as reader:
        assert reader.progress() == {"node:6700": b"record"}
        assert [data for _, data in reader.parked(10)] == [b"letter"]
        assert reader.record(1).journal == [] and reader.backlog() == {}
        assert reader.progress_and_backlog() == ({"node:6700": b"record"}, {})


@pytest.mark.parametrize(
    "command",
    [
        "SET {t}-1-1:x 1",
        "DEL {t}-1-1:dead",
        "UNLINK {t}-1-1:dead",
        "HSET {t}-1-1:fence 1 99",
        "XADD {t}-1-1:task:1 * f x",
        "XDEL {t}-1-1:dead 1-1",
        "XTRIM {t}-1-1:dead MAXLEN 0",
        "XREADGROUP GROUP g c STREAMS {t}-1-1:dead >",
        "RENAME {t}-1-1:dead {t}-1-1:task:1",
        "EXPIRE {t}-1-1:dead 1",
        "GET sparkstorm:{blob}:abc:0",
        "DUMP {t}-1-1:dead",
        "EVAL return(1) 0",
        "SCRIPT FLUSH",
        "SCRIPT LOAD return(1)",
        "FLUSHALL",
        "FLUSHDB",
        "KEYS *",
        "CONFIG GET requirepass",
        "CONFIG SET requirepass x",
        "ACL LIST",
        "ACL SETUSER sparkstorm-viewer allcommands",
        "BGREWRITEAOF",
        "SHUTDOWN NOSAVE",
        "DEBUG SLEEP 0",
        "REPLICAOF 127.0.0.1 1",
        "MODULE LIST",
        "CLIENT KILL TYPE normal",
        "MONITOR",
        "SUBSCRIBE x",
        "PUBLISH x y",
        "INFO",
    ],
)
def test_a_viewer_is_refused_by_redis(
    server: RedisServer, viewer: redis.Redis, command: str
) -> None:
    with server.client() as client:
        before = {name: client.dump(name) for name in client.keys("*")}
        # Redis 7 refuses DEBUG to every user, before it looks at rights
        sentence = r"(?i)no permissions|DEBUG command not allowed"
        with pytest.raises(redis.ResponseError, match=sentence):
            viewer.execute_command(*command.split(" "))  # type: ignore[no-untyped-call]
        assert {name: client.dump(name) for name in client.keys("*")} == before


def test_the_default_user_keeps_its_password_beside_the_viewer(server: RedisServer) -> None:
    for password in ("", viewer_redis_password(SECRET)):
        client = client_of(RedisAddress(server.host, server.port, password), 10)
        with client, pytest.raises((redis.AuthenticationError, redis.ResponseError)):
            client.ping()


# -- the file --------------------------------------------------------------------------------------


def test_the_read_only_file_holds_no_secret_and_nothing_that_leads_to_one(tmp_path: Path) -> None:
    conf = merge({"storm.local.dir": str(tmp_path), "storm.zookeeper.servers": ["127.0.0.1:1"]})
    with open_stores(conf):
        whole = load_connection(tmp_path / "connection.json")
        file = read_only_path(tmp_path / "connection.json")
        assert file.name == "connection-read-only.json" and file.stat().st_mode & 0o777 == 0o600
        text = file.read_text()
        found = load_any_connection(file)
    secrets = (
        whole.secret,
        redis_password(whole.secret),
        zookeeper_password(whole.secret),
        signing_key(whole.secret).hex(),
    )
    assert not [secret for secret in secrets if secret in text]
    assert isinstance(found, ReadOnlyConnection)
    assert found.redis.user == VIEWER
    assert found.zookeeper.user == VIEWER
    assert isinstance(load_any_connection(tmp_path / "connection.json"), Connection)
    with pytest.raises(InvalidConfigError, match="ReadOnlyConnection"):
        load_connection(file)


def test_a_redis_of_the_users_own_needs_a_viewer_of_its_own(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    own = {
        "storm.local.dir": str(tmp_path),
        "storm.zookeeper.servers": ["127.0.0.1:1"],
        "sparkstorm.redis.url": f"redis://:{redis_server.password}@127.0.0.1:{redis_server.port}",
    }
    file = tmp_path / "connection-read-only.json"
    with open_stores(
        merge(
            {
                **own,
                "sparkstorm.redis.viewer.user": "eve",
                "sparkstorm.redis.viewer.password": "looks",
            }
        )
    ):
        content = json.loads(file.read_text())
        assert (content["redis"]["user"], content["redis"]["password"]) == ("eve", "looks")
        assert redis_server.password not in file.read_text()
    with open_stores(merge(own)):
        assert not file.exists()


def test_a_viewer_finds_what_an_ended_topology_left_in_one_of_several_stores(
    tmp_path: Path,
) -> None:
    server = start_redis(tmp_path / "redis", password="of-the-cluster", viewer=(VIEWER, "looks"))
    try:
        with server.client() as client:
            client.xadd("{gone}-1-1:dead", {"f": b"a letter"})
        at = RedisAddress(server.host, server.port, "looks", VIEWER)
        assert is_kept_in(at, "gone-1-1") and not is_kept_in(at, "other-1-1")
    finally:
        server.stop()
