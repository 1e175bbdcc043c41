"""Reads that a slot keeps until their watch fires: what is asked of the store, and what may never
be answered from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.control_plane.cluster.base import no_hint
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.watched import REREAD_MS, WatchedStore
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.extensions.embedded import ZooKeeperServer
from tests.waiting import wait_until


class Counting(LocalStateStore):
    """A session that counts its reads; `during` is called within the next one, after the tree was
    looked at.
    """

    def __init__(self, tree: LocalStateTree) -> None:
        super().__init__(tree)
        self.reads: list[str] = []
        self.during: Callable[[], object] = lambda: None
        self.keeps_hints = True

    def get(self, path: str, hint: Any = None) -> Any:
        found = super().get(path, hint if self.keeps_hints else None)
        self._note(path)
        return found

    def last_change(self, path: str, hint: Any = None) -> int | None:
        found = LocalStateStore.get(self, path, hint if self.keeps_hints else None)
        self._note(f"change of {path}")
        return None if found is None else found.change

    def children(self, path: str, hint: Any = None) -> list[str]:
        found = super().children(path, hint if self.keeps_hints else None)
        self._note(path + "/")
        return found

    def _note(self, what: str) -> None:
        self.reads.append(what)
        during, self.during = self.during, lambda: None
        during()


class Bench:
    """A watched session and another one that changes things."""

    def __init__(self) -> None:
        tree = LocalStateTree()
        self.now_ms = 0
        self.other, self.counting = LocalStateStore(tree), Counting(tree)
        self.store = WatchedStore(self.counting, lambda: self.now_ms)
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def text(self, path: str = "/a") -> bytes | None:
        found = self.store.get(path, self.wake)
        return None if found is None else found.data


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_poll_asks_once_until_a_change_and_then_once_more(bench: Bench) -> None:
    bench.other.put("/a", b"1")
    for _ in range(100):
        assert bench.text() == b"1"
        assert bench.text("/none") is None
        assert bench.store.children("/", bench.wake) == ["a"]
    assert sorted(bench.counting.reads) == ["/", "/a", "/none"] or sorted(bench.counting.reads) == [
        "//",
        "/a",
        "/none",
    ]
    bench.counting.reads.clear()
    bench.other.put("/a", b"2")
    assert bench.woken == 1
    assert [bench.text() for _ in range(9)] == [b"2"] * 9 and bench.counting.reads == ["/a"]
    bench.other.put("/none", b"here")
    assert bench.text("/none") == b"here" and bench.store.children("/", bench.wake) == ["a", "none"]


def test_a_read_without_a_hint_always_asks(bench: Bench) -> None:
    bench.other.put("/a", b"1")
    assert bench.text() == b"1"
    assert bench.store.get("/a") is not None and bench.store.get("/a") is not None
    assert bench.counting.reads == ["/a"] * 3


def test_a_change_during_the_read_wakes_and_is_read_again(bench: Bench) -> None:
    bench.other.put("/a", b"1")
    bench.counting.during = lambda: bench.other.put("/a", b"2")
    assert bench.text() == b"1" and bench.woken == 1
    assert bench.text() == b"2"


def test_what_the_session_itself_writes_is_read_again_before_the_watch_fires(bench: Bench) -> None:
    bench.counting.keeps_hints = False
    bench.store.put("/a/b", b"1")
    assert bench.text("/a/b") == b"1" and bench.store.children("/a", bench.wake) == ["b"]
    bench.store.put("/a/b", b"2")
    bench.store.create("/a/c", b"")
    assert bench.text("/a/b") == b"2" and bench.store.children("/a", bench.wake) == ["b", "c"]
    bench.store.delete("/a/b")
    assert bench.text("/a/b") is None and bench.store.children("/a", bench.wake) == ["c"]


def test_a_lost_watch_is_made_good_by_the_next_slow_read(bench: Bench) -> None:
    bench.counting.keeps_hints = False
    assert bench.text() is None
    bench.other.put("/a", b"1")
    assert bench.text() is None
    bench.now_ms = 2 * REREAD_MS
    assert bench.text() == b"1"


def test_a_slow_read_fetches_content_only_if_it_is_another_one(bench: Bench) -> None:
    bench.counting.keeps_hints = False
    bench.other.put("/a", b"1")
    assert bench.text() == b"1"
    bench.now_ms = 2 * REREAD_MS
    assert bench.text() == b"1" and bench.counting.reads == ["/a", "change of /a"]
    bench.other.delete("/a")
    bench.other.put("/a", b"2")  # of version 0, as the other was
    bench.now_ms = 4 * REREAD_MS
    assert bench.text() == b"2" and bench.counting.reads[2:] == ["change of /a", "/a"]
    bench.other.delete("/a")
    bench.now_ms = 6 * REREAD_MS
    assert bench.text() is None


def test_a_slow_read_watches_again(bench: Bench) -> None:
    bench.counting.keeps_hints = False
    bench.other.put("/a", b"1")
    assert bench.text() == b"1"
    bench.counting.keeps_hints = True
    bench.now_ms = 2 * REREAD_MS
    assert bench.text() == b"1"
    bench.other.put("/a", b"2")
    assert bench.woken == 1 and bench.text() == b"2"


def test_a_change_during_a_slow_read_is_read_again(bench: Bench) -> None:
    bench.other.put("/a", b"1")
    assert bench.text() == b"1"
    bench.now_ms = 2 * REREAD_MS
    bench.counting.during = lambda: bench.other.put("/a", b"2")
    assert bench.text() == b"1" and bench.woken
    assert bench.text() == b"2"


def test_a_new_session_reads_everything_again(bench: Bench) -> None:
    bench.counting.keeps_hints = False
    assert bench.text() is None
    bench.other.put("/a", b"1")
    bench.counting.expire_session()
    assert bench.text() == b"1"


def test_a_store_that_is_down_is_asked_again(bench: Bench) -> None:
    bench.other.put("/a", b"1")
    bench.counting.tree.is_down = True
    with pytest.raises(StoreUnavailableError):
        bench.text()
    bench.counting.tree.is_down = False
    assert bench.text() == b"1"


def test_nodes_that_nobody_asks_for_any_more_are_dropped(bench: Bench) -> None:
    for number in range(50):
        bench.text(f"/{number}")
    bench.now_ms = 10 * REREAD_MS
    bench.text("/a")
    assert len(bench.store._cached) == 1


def test_slow_reads_of_slots_that_start_together_are_spread(bench: Bench) -> None:
    for number in range(100):
        slot = WatchedStore(bench.counting, lambda: bench.now_ms, f"n1:{number}")
        slot.get("/a", no_hint)
        bench.now_ms = REREAD_MS
        slot.get("/a", no_hint)
        bench.now_ms = 0
    again = len(bench.counting.reads) - 100
    assert 25 < again < 75


def test_a_cut_connection_to_a_real_server_does_not_leave_an_old_answer(
    own_zookeeper: ZooKeeperServer,
) -> None:
    user, password = own_zookeeper.identity
    address = ZooKeeperAddress(own_zookeeper.hosts, "/watched", user, password, 60_000)
    real, other = ZooKeeperStateStore(address), ZooKeeperStateStore(address)
    store = WatchedStore(real, lambda: 0)
    try:
        other.put("/a", b"1")
        found = store.get("/a", no_hint)
        assert found is not None and found.data == b"1"
        own_zookeeper.kill()
        own_zookeeper.restart()
        other.put("/a", b"2")

        def is_new() -> bool:
            read = store.get("/a", no_hint)
            return read is not None and read.data == b"2"

        wait_until(is_new, "the change is read")
    finally:
        real.close()
        other.close()
