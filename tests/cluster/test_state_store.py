"""Checks the laws of the state store on its twin and on a real ZooKeeper."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import SessionExpiredError

from sparkstorm.common.errors import StateConflictError, StoreUnavailableError
from sparkstorm.control_plane.cluster.base import StateStore, Stored
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.watched import WatchedStore
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.extensions.embedded import ZooKeeperServer
from tests.waiting import wait_until

DEADLINE_S = 60.0


class LocalBench:
    """Sessions on one local tree."""

    def __init__(self) -> None:
        self.tree = LocalStateTree()

    def open(self) -> StateStore:
        return LocalStateStore(self.tree)

    def expire(self, store: StateStore) -> None:
        assert isinstance(store, LocalStateStore)
        store.expire_session()

    def close(self) -> None:
        pass


class WatchedBench(LocalBench):
    """Sessions on one local tree whose reads with a hint are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.local: dict[int, LocalStateStore] = {}

    def open(self) -> StateStore:
        inner = LocalStateStore(self.tree)
        watched = WatchedStore(inner, lambda: 0)
        self.local[id(watched)] = inner
        return watched

    def expire(self, store: StateStore) -> None:
        self.local[id(store)].expire_session()


class ZooKeeperBench:
    """Sessions on a real ZooKeeper, below a root of this test."""

    roots = 0

    def __init__(self, server: Any) -> None:
        ZooKeeperBench.roots += 1
        user, password = server.identity
        self.address = ZooKeeperAddress(
            server.hosts, f"/contract-{ZooKeeperBench.roots}", user, password, 4_000
        )
        self.opened: list[ZooKeeperStateStore] = []

    def open(self) -> StateStore:
        self.opened.append(ZooKeeperStateStore(self.address))
        return self.opened[-1]

    def expire(self, store: StateStore) -> None:
        assert isinstance(store, ZooKeeperStateStore)
        epoch = store.session_epoch
        # Two connections of one session: closing the second ends the session for both.
        thief = KazooClient(self.address.hosts, client_id=store._client.client_id)
        thief.start()
        thief.stop()
        thief.close()
        wait_until(lambda: store.session_epoch > epoch and store.is_connected)

    def close(self) -> None:
        for store in self.opened:
            store.close()


Bench = LocalBench | ZooKeeperBench


@pytest.fixture(params=["local", "watched", pytest.param("zookeeper", marks=pytest.mark.system)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    twins = {"local": LocalBench, "watched": WatchedBench}
    twin = twins.get(request.param)
    made: Bench = twin() if twin else ZooKeeperBench(request.getfixturevalue("zookeeper_server"))
    yield made
    made.close()


@pytest.fixture
def store(bench: Bench) -> StateStore:
    return bench.open()


def content(store: StateStore, path: str) -> tuple[bytes, int] | None:
    """Data and version of a node."""
    found = store.get(path)
    return None if found is None else (found.data, found.version)


def test_a_missing_node_reads_as_none_and_has_no_children(store: StateStore) -> None:
    assert store.get("/nothing/here") is None
    assert store.children("/nothing/here") == []


def test_put_makes_parents_and_counts_versions_from_zero(store: StateStore) -> None:
    assert store.put("/a/b/c", b"one") == 0
    assert store.put("/a/b/c", b"two") == 1
    assert content(store, "/a/b/c") == (b"two", 1)
    assert store.children("/a") == ["b"]


def test_compare_and_put_refuses_every_version_but_the_present(store: StateStore) -> None:
    store.put("/a", b"one")
    assert store.put("/a", b"two", version=0) == 1
    with pytest.raises(StateConflictError, match=r"/a: .*version 0"):
        store.put("/a", b"three", version=0)
    with pytest.raises(StateConflictError, match="/b: expected version 0, found no node"):
        store.put("/b", b"three", version=0)
    assert content(store, "/a") == (b"two", 1)
    assert store.get("/b") is None


def test_every_write_and_every_birth_of_a_node_is_another_change(
    bench: Bench, store: StateStore
) -> None:
    other = bench.open()
    seen: list[int] = []

    def note() -> None:
        found, change = store.get("/a"), store.last_change("/a")
        assert found is not None and change == found.change == store.last_change("/a")
        seen.append(change)

    assert store.last_change("/a") is None
    for write in (other.put, other.put, store.put, other.put_ephemeral):
        write("/a", b"same")
        note()
        other.put("/b", b"")  # another node's
        assert store.last_change("/a") == seen[-1]
    other.delete("/a")
    assert store.last_change("/a") is None
    other.create("/a", b"same")  # of version 0, as the first
    note()
    assert len(set(seen)) == len(seen) == 5


def test_a_hint_of_the_last_change_is_one_of_the_content(bench: Bench, store: StateStore) -> None:
    data, birth, end = threading.Event(), threading.Event(), threading.Event()
    other = bench.open()
    other.put("/watched", b"one")
    other.put("/doomed", b"one")
    store.last_change("/watched", data.set)
    store.last_change("/unborn", birth.set)
    store.last_change("/doomed", end.set)
    other.put("/watched", b"two")
    other.put("/unborn", b"")
    other.delete("/doomed")
    assert data.wait(DEADLINE_S) and birth.wait(DEADLINE_S) and end.wait(DEADLINE_S)


def test_create_refuses_what_is_there(store: StateStore) -> None:
    store.create("/a/b", b"one")
    with pytest.raises(StateConflictError, match="/a/b"):
        store.create("/a/b", b"two")
    assert content(store, "/a/b") == (b"one", 0)


def test_ensure_path_leaves_data_alone(store: StateStore) -> None:
    store.put("/a/b", b"kept")
    store.ensure_path("/a/b")
    store.ensure_path("/a/c/d")
    assert content(store, "/a/b") == (b"kept", 0)
    assert content(store, "/a/c/d") == (b"", 0)


def test_delete_takes_everything_below_and_nothing_beside(store: StateStore) -> None:
    for path in ("/a/b/c", "/a/b/d/e", "/a/bb"):
        store.put(path, b"x")
    store.delete("/a/b")
    store.delete("/a/b")
    assert store.children("/a") == ["bb"]
    assert store.get("/a/b/d/e") is None


def test_children_come_sorted(store: StateStore) -> None:
    for name in ("c", "a", "b"):
        store.put(f"/top/{name}", b"")
    assert store.children("/top") == ["a", "b", "c"]


@pytest.mark.parametrize("path", ["relative", "/a//b", "/a/../b", "/a/", "/a/.", "/nul\x00"])
def test_a_path_that_is_none_is_refused_by_name(store: StateStore, path: str) -> None:
    with pytest.raises(ValueError, match="not a state path"):
        store.put(path, b"")


def test_more_than_a_node_takes_is_refused_by_name_and_the_session_lives_on(
    store: StateStore,
) -> None:
    store.put("/a", b"kept")
    for write in (store.put, store.create, store.put_ephemeral):
        with pytest.raises(ValueError, match=r"/[ab]: 1000001 bytes are more than a node takes"):
            write("/a" if write == store.put else "/b", b"x" * 1_000_001)
    assert content(store, "/a") == (b"kept", 0)
    assert store.get("/b") is None


def test_sequential_nodes_grow(store: StateStore) -> None:
    paths = [store.create_sequential("/errors/t/e", b"%d" % i) for i in range(12)]
    assert sorted(paths) == paths
    assert len(set(paths)) == 12
    assert all(path.startswith("/errors/t/e") and path[-10:].isdigit() for path in paths)
    assert (store.get(paths[-1]) or Stored(b"", 0, 0)).data == b"11"


def test_an_ephemeral_node_dies_with_its_session(bench: Bench, store: StateStore) -> None:
    other = bench.open()
    other.put_ephemeral("/supervisors/s1", b"mine")
    other.put("/lasting", b"stays")
    assert store.get("/supervisors/s1") is not None
    other.close()
    wait_until(lambda: store.get("/supervisors/s1") is None)
    assert store.get("/lasting") is not None


def test_an_expired_session_says_so_and_its_owner_makes_the_node_again(
    bench: Bench, store: StateStore
) -> None:
    watcher = bench.open()
    store.put_ephemeral("/supervisors/s1", b"before")
    epoch = store.session_epoch
    bench.expire(store)
    assert store.session_epoch > epoch
    wait_until(lambda: watcher.get("/supervisors/s1") is None)
    store.put_ephemeral("/supervisors/s1", b"after")
    assert (watcher.get("/supervisors/s1") or Stored(b"", 0, 0)).data == b"after"


def test_put_ephemeral_updates_in_place_within_a_session(store: StateStore) -> None:
    store.put_ephemeral("/s", b"one")
    store.put_ephemeral("/s", b"two")
    assert content(store, "/s") == (b"two", 1)


def test_a_successor_takes_over_the_node_of_a_session_that_lingers(
    bench: Bench, store: StateStore
) -> None:
    dead = bench.open()
    dead.put_ephemeral("/supervisors/s1", b"dead")
    store.put_ephemeral("/supervisors/s1", b"alive")
    dead.close()
    assert (bench.open().get("/supervisors/s1") or Stored(b"", 0, 0)).data == b"alive"


def test_only_one_session_wins_an_election_until_it_ends(bench: Bench, store: StateStore) -> None:
    rival = bench.open()
    assert store.try_ephemeral("/leader", b"a")
    assert not rival.try_ephemeral("/leader", b"b")
    assert store.try_ephemeral("/leader", b"a")
    store.close()
    wait_until(lambda: rival.try_ephemeral("/leader", b"b"))


def test_an_ephemeral_node_makes_its_parents(store: StateStore) -> None:
    store.put_ephemeral("/deep/er/node", b"x")
    assert store.children("/deep/er") == ["node"]


def test_a_hint_tells_of_changed_data_and_of_new_children(bench: Bench, store: StateStore) -> None:
    data, names, birth = threading.Event(), threading.Event(), threading.Event()
    other = bench.open()
    other.put("/watched", b"one")
    store.get("/watched", data.set)
    store.children("/watched", names.set)
    store.get("/unborn", birth.set)
    other.put("/watched", b"two")
    other.put("/watched/child", b"")
    other.put("/unborn", b"")
    assert data.wait(DEADLINE_S) and names.wait(DEADLINE_S) and birth.wait(DEADLINE_S)


def test_a_hint_fires_at_most_once_per_read(bench: Bench, store: StateStore) -> None:
    calls: list[int] = []
    store.put("/watched", b"one")
    store.get("/watched", lambda: calls.append(1))
    store.put("/watched", b"two")
    store.put("/watched", b"three")
    wait_until(lambda: bool(calls))
    assert calls == [1]


def test_a_closed_store_refuses_by_name(store: StateStore) -> None:
    store.close()
    store.close()
    assert not store.is_connected
    with pytest.raises(StoreUnavailableError):
        store.get("/a")


def test_rivals_never_both_win_a_compare_and_put(bench: Bench, store: StateStore) -> None:
    store.put("/counter", b"0")

    def add(times: int, session: StateStore) -> None:
        while times:
            found = session.get("/counter")
            assert found is not None
            try:
                session.put("/counter", b"%d" % (int(found.data) + 1), found.version)
                times -= 1
            except StateConflictError:
                continue

    threads = [threading.Thread(target=add, args=(20, bench.open())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert content(store, "/counter") == (b"60", 60)


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_request_that_was_cut_is_not_sent_again_under_a_later_session_of_a_bound_store(
    is_bound: bool, zookeeper_server: ZooKeeperServer
) -> None:
    bench = ZooKeeperBench(zookeeper_server)
    bench.address = replace(bench.address, is_bound=is_bound)
    store, sent = bench.open(), list[str]()
    assert isinstance(store, ZooKeeperStateStore)
    create = store._client.create_async

    def cut_at_first(path: str, *arguments: Any, **options: Any) -> Any:
        sent.append(path)
        if len(sent) == 1:
            bench.expire(store)  # the process was paused, and its session ended meanwhile
            raise SessionExpiredError
        return create(path, *arguments, **options)

    store._client.create_async = cut_at_first
    try:
        if is_bound:
            sentence = r"session with ZooKeeper at .* was lost"
            with pytest.raises(StoreUnavailableError, match=sentence):
                store.create("/a", b"x")
            assert len(sent) == 1 and store.get("/a") is None
        else:
            store.create("/a", b"x")
        store.create("/b", b"x")  # the next request is one of the new session
    finally:
        bench.close()
