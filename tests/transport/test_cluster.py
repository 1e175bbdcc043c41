"""A Redis Cluster of two nodes: where its clients connect, what they do while a slot moves, and what
is said of URLs and nodes that do not fit.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from sparkstorm.common.errors import (
    InvalidConfigError,
    SparkStormError,
    StoreRolledBackError,
    StoreUnavailableError,
)
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.stores.redis_client import check_redis, client_of
from sparkstorm.data_plane.transport.base import Commit
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.reader import names_of
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.data_plane.transport.servers.opening import AccessRefusedError, servers_of
from sparkstorm.data_plane.transport.servers.slots import SLOTS, slot_of
from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.extensions.embedded.process import free_ports
from sparkstorm.extensions.embedded.redis import find_redis_binary
from tests.contracts.benches import read
from tests.sim.watched_redis import Guard
from tests.transport.cluster_redis import HOST, ClusterRedis, Node
from tests.waiting import wait_until

pytestmark = pytest.mark.system
LIMIT_S = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRedis]:
    made = ClusterRedis(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


class Meanwhile:
    """A call on its own thread, and its end."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._act = act
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._act()
        except BaseException as error:
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> Any:
        """Wait for the end, and return the call's result."""
        self._thread.join(LIMIT_S)
        assert self.is_over, "it does not end"
        if self.error is not None:
            raise self.error
        return self.result


class Moving:
    """The slot of a topology, half of whose keys have moved to the other node."""

    def __init__(self, cluster: ClusterRedis, topology_id: str) -> None:
        self.cluster, self.prefix = cluster, Keys(topology_id).prefix
        self.slot = slot_of(self.prefix)
        self.source = cluster.node_of(topology_id)
        self.target = next(each for each in cluster.primaries if each is not self.source)
        cluster.begin_move(self.slot, self.source, self.target)
        first = self.source("CLUSTER", "GETKEYSINSLOT", self.slot, 3)
        self.half = len(first)
        for name in first:
            self.move(name)

    def move(self, name: bytes) -> None:
        target = self.target
        self.source("MIGRATE", HOST, target.port, name, 0, 10_000, "AUTH", target.password)

    def finish(self) -> None:
        self.cluster.move_keys(self.slot, self.source, self.target)
        self.cluster.end_move(self.slot, self.target)


class Owner:
    """An owner of task 1 that sends to itself."""

    def __init__(self, cluster: ClusterRedis, topology_id: str) -> None:
        self.said: list[str] = []
        self.transport = RedisTransport(cluster.address, topology_id, LIMIT_S, self.said.append)
        claim = self.transport.claim("owner", {1: 1})
        self.seq, self.generation = claim.seq, claim.generation

    def commit(self) -> int:
        self.seq += 1
        frames = [(1, b"frame %d" % self.seq, 1)]
        journal = [(1, b"delta %d" % self.seq)]
        commit = Commit("owner", {1: 1}, self.generation, self.seq, frames=frames, journal=journal)
        return self.transport.commit(commit).step


@pytest.fixture
def owner(cluster: ClusterRedis) -> Iterator[Owner]:
    made = Owner(cluster, "moved-1-1")
    made.commit()
    yield made
    made.transport.close()
    for node in cluster.nodes:
        # also behind a test that failed half-way
        with contextlib.suppress(redis.ResponseError):
            node("CLUSTER", "SETSLOT", slot_of("{moved}"), "STABLE")
        for name in node("KEYS", "{moved}*"):
            node("DEL", name)


def values(cluster: ClusterRedis) -> list[list[bytes]]:
    """Return the journal as each node has it."""
    found = []
    for node in cluster.nodes:
        with contextlib.suppress(redis.ResponseError):
            found.append(node("LRANGE", Keys("moved-1-1")("journal", 1), 0, -1))
    return found


def test_a_commit_waits_while_its_slot_moves_and_is_applied_once(
    cluster: ClusterRedis, owner: Owner
) -> None:
    moving = Moving(cluster, "moved-1-1")
    assert moving.half > 0
    commit = Meanwhile(owner.commit)
    words = f"slot {moving.slot} ({moving.prefix}) is on its way to {HOST}:{moving.target.port}"
    wait_until(lambda: any(words in each for each in owner.said), "the owner says why it waits")
    assert not commit.is_over
    moving.finish()
    commit.end()
    assert owner.commit() == 4  # a claim and three commits
    with moving.target.client() as client:
        assert client.lrange(Keys("moved-1-1")("journal", 1), 0, -1) == [
            b"delta 1", b"delta 2", b"delta 3",
        ]  # fmt: skip
        assert client.xlen(Keys("moved-1-1").stream(1)) == 3
    assert moving.source("KEYS", "{moved}*") == []


def test_a_claim_waits_while_its_slot_moves(cluster: ClusterRedis, owner: Owner) -> None:
    moving = Moving(cluster, "moved-1-1")
    other = RedisTransport(cluster.address, "moved-1-1", LIMIT_S)
    claim = Meanwhile(lambda: other.claim("other", {1: 2}))
    moving.finish()
    assert claim.end().record_by_task[1].journal == [b"delta 1"]
    other.close()


def test_a_script_that_followed_the_node_that_it_is_sent_to_would_find_a_part_of_the_keys(
    cluster: ClusterRedis, owner: Owner
) -> None:
    """The reason to wait ASK out and not to follow it (decision 70)."""
    moving = Moving(cluster, "moved-1-1")
    prefix = Keys("moved-1-1").prefix
    script = "return #redis.call('KEYS', KEYS[1] .. ':*')"
    there = len(moving.source("KEYS", f"{prefix}:*"))
    with pytest.raises(redis.exceptions.AskError):
        moving.source("EVAL", script, 1, prefix)
    with moving.target.client() as client:
        client.connection = client.connection_pool.get_connection()
        client.execute_command("ASKING")
        found = client.execute_command("EVAL", script, 1, prefix)
    assert found == moving.half and there > 0
    moving.finish()


def test_names_are_listed_when_all_keys_are_on_one_node(
    cluster: ClusterRedis, owner: Owner
) -> None:
    prefix = Keys("moved-1-1").prefix
    with contextlib.closing(Link(cluster.address, LIMIT_S, tag=prefix)) as link:
        before = sorted(names_of(link, f"{prefix}:"))
        moving = Moving(cluster, "moved-1-1")
        listed = Meanwhile(lambda: sorted(names_of(link, f"{prefix}:")))
        moving.finish()
        assert listed.end() == before and len(before) > moving.half


def test_names_are_listed_again_when_keys_have_left_meanwhile(
    cluster: ClusterRedis, owner: Owner
) -> None:
    prefix = Keys("moved-1-1").prefix

    class Late(Link):
        """A link whose first list of names meets a move half-way."""

        moving: Moving | None = None

        def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
            if commands[0][0] != "SCAN" or self.moving is not None:
                return super().ask(*commands)
            self.moving = Moving(cluster, "moved-1-1")
            try:
                return super().ask(*commands)
            finally:
                self.moving.finish()

    with contextlib.closing(Late(cluster.address, LIMIT_S, tag=prefix)) as link:
        before = {name.decode() for name in cluster.node_of("moved-1-1")("KEYS", f"{prefix}:*")}
        assert set(names_of(link, f"{prefix}:")) == before and len(before) > 3


def test_a_reader_that_waits_for_entries_finds_them_behind_the_move(
    cluster: ClusterRedis, owner: Owner
) -> None:
    (first,) = read(owner.transport, {1: "0-0"}, 1)
    owner.transport.ask({1: first.id}, 10)
    owner.transport.wait(1)  # a question is open at the source
    Moving(cluster, "moved-1-1").finish()
    owner.commit()
    found: list[bytes] = []

    def has_come() -> bool:
        found.extend(each.data for each in owner.transport.poll({1: first.id}, 10))
        owner.transport.wait(20)
        return bool(found)

    wait_until(has_come, "the entry is read at the target")
    assert found == [b"frame 2"]


def test_a_frame_that_was_read_is_looked_for_when_the_connection_for_reading_alone_was_lost(
    cluster: ClusterRedis, owner: Owner
) -> None:
    """A node that is demoted and promoted again keeps a worker's connection for commits, and may
    lack what it had sent on the other.
    """
    (first,) = read(owner.transport, {1: "0-0"}, 1)
    owner.transport.ask({1: first.id}, 10)
    owner.transport.wait(1)
    node = cluster.node_of("moved-1-1")
    node("XDEL", Keys("moved-1-1").stream(1), first.id)
    with node.client() as client:
        (waiting,) = [each for each in client.client_list() if "b" in each["flags"]]
        client.client_kill_filter(_id=waiting["id"])

    def polled() -> bool:
        owner.transport.wait(20)
        owner.transport.poll({1: first.id}, 10)
        return False

    with pytest.raises(StoreRolledBackError):
        wait_until(polled, "the frame is missed")


def test_a_node_that_is_cut_off_from_the_others_is_passed_over(
    cluster: ClusterRedis, tmp_path: Path
) -> None:
    alone = Node(tmp_path / "alone", free_ports(2), False, Guard(find_redis_binary()))
    alone.start()
    try:
        alone("CLUSTER", "ADDSLOTSRANGE", 1, SLOTS - 1)  # one is missing: it takes itself for down
        places = (f"{HOST}:{alone.port}", *cluster.address.nodes)
        at = replace(cluster.address, nodes=places)
        with contextlib.closing(RedisTransport(at, "words-1-1", 10)) as transport:
            transport.claim("o", {1: 1})
        assert alone("DBSIZE") == 0
        only = replace(cluster.address, nodes=places[:1])
        assert "takes the cluster for down" in str(refusal_of(only))
    finally:
        alone.kill()


# -- what does not fit


def refusal_of(address: RedisAddress, patience_s: float = 0.0) -> SparkStormError:
    transport = RedisTransport(address, "words-1-1", patience_s)
    with contextlib.closing(transport), pytest.raises(SparkStormError) as caught:
        transport.claim("o", {1: 1})
    return caught.value


def test_a_plain_url_of_a_node_is_refused_with_its_mend(cluster: ClusterRedis) -> None:
    away = next(each for each in cluster.nodes if each is not cluster.node_of("words-1-1")).address
    for said in (refusal_of(away, 60), caught(lambda: check_redis(away))):
        assert isinstance(said, InvalidConfigError)
        assert f"{HOST}:{away.port} is a node of a cluster" in str(said)
        assert "write redis+cluster:// in place of redis://" in str(said)


def caught(act: Callable[[], object]) -> SparkStormError:
    with pytest.raises(SparkStormError) as found:
        act()
    return found.value


def test_a_cluster_url_of_a_server_that_is_no_cluster_is_refused_with_its_mend(
    redis_server: RedisServer,
) -> None:
    place = f"{redis_server.host}:{redis_server.port}"
    at = RedisAddress(redis_server.host, redis_server.port, redis_server.password, nodes=(place,))
    for said in (refusal_of(at, 60), caught(lambda: servers_of(at))):
        assert isinstance(said, InvalidConfigError)
        assert f"Redis at {place} is no node of a cluster: write redis:// in place" in str(said)


def test_any_configured_node_is_enough_and_all_are_named_when_none_answers(
    cluster: ClusterRedis,
) -> None:
    (node, *_) = cluster.address.nodes
    one = replace(cluster.address, port=1, nodes=(f"{HOST}:1", node))
    with contextlib.closing(RedisTransport(one, "words-1-1", 5)) as transport:
        transport.claim("o", {1: 1})
    with client_of(one, 5) as client:
        assert client.ping()
    for server in servers_of(one):
        check_redis(server, is_node=True)
    none = replace(one, nodes=(f"{HOST}:1", f"{HOST}:2"))
    said = refusal_of(none)
    assert isinstance(said, StoreUnavailableError) and f"{HOST}:1: " in str(said)
    assert f"{HOST}:2: " in str(said)
    assert isinstance(caught(lambda: servers_of(none)), StoreUnavailableError)


def test_a_wrong_password_is_told_at_once(cluster: ClusterRedis) -> None:
    said = refusal_of(replace(cluster.address, password="wrong"), 600)
    assert isinstance(said, AccessRefusedError) and "refuses our password" in str(said)


def test_a_node_that_is_not_where_the_cluster_says_is_named(cluster: ClusterRedis) -> None:
    node = cluster.node_of("words-1-1")
    other = next(each for each in cluster.nodes if each is not node)
    only = replace(cluster.address, nodes=(f"{HOST}:{other.port}",))
    node("CONFIG", "SET", "cluster-announce-port", 1)
    try:
        wait_until(lambda: b":1@" in other("CLUSTER", "NODES"), "the address is announced")
        said = refusal_of(only)
        assert f"node {HOST}:1, as the cluster names it" in str(said)
    finally:
        node("CONFIG", "SET", "cluster-announce-port", node.port)
        wait_until(lambda: b":1@" not in other("CLUSTER", "NODES"), "the address is right")


def test_a_slot_that_no_node_has_is_named(cluster: ClusterRedis) -> None:
    node, slot = cluster.node_of("words-1-1"), slot_of("{words}")
    for each in cluster.nodes:
        each("CONFIG", "SET", "cluster-require-full-coverage", "no")
    node("CLUSTER", "DELSLOTS", slot)
    only = replace(cluster.address, nodes=(f"{HOST}:{node.port}",))
    try:
        assert f"slot {slot}" in str(refusal_of(only))
    finally:
        node("CLUSTER", "ADDSLOTS", slot)
        for each in cluster.nodes:
            each("CONFIG", "SET", "cluster-require-full-coverage", "yes")
        cluster.until_working()
