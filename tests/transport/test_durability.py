"""Reading of another cell's store as each durability has it. From a real replica: only what the
replica has, and only while it follows the primary that the owner knows. From a real store that
syncs before it answers, and from no other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.base import START, Cursor
from sparkstorm.data_plane.transport.durability import (
    ReplicaCursors,
    SyncedCursors,
    require_durable,
)
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.extensions.cells.foreign import RedisForeign
from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.extensions.embedded.process import free_port
from tests.sim.watched_redis import Server, WatchedRedis, until

pytestmark = [pytest.mark.system, pytest.mark.nightly]
TOPOLOGY, TASK = "words-1-1", 7
KEYS = Keys(TOPOLOGY)
# within it an entry that could be read would be: a hop takes a millisecond
_LONG_S = 0.5


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchedRedis]:
    with contextlib.closing(WatchedRedis(tmp_path, sentinels=1)) as made:
        yield made


class Reader:
    """A reading of a task's stream, and what it has found."""

    def __init__(self, address: RedisAddress, durability: str) -> None:
        self.foreign = RedisForeign(address, TOPOLOGY, 1, durability)
        assert not self.foreign.begin({TASK: START})
        self.at = START.entry
        self.found: list[bytes] = []

    def look(self) -> None:
        for entry in self.foreign.poll({TASK: self.at}, 10):
            self.found.append(entry.data)
            self.at = entry.id

    def goes_on_without(self) -> None:
        """Look for long enough, and find nothing more."""
        found, began_s = [*self.found], time.monotonic()
        until(lambda: not self.has_read(*found) or time.monotonic() > began_s + _LONG_S, "")
        assert self.found == found

    def has_read(self, *rows: bytes) -> bool:
        self.look()
        return self.found == [*rows]


def add(watched: WatchedRedis, row: bytes) -> None:
    with watched.primary().client() as client:
        client.xadd(KEYS.stream(TASK), {"f": row})


def test_entries_are_read_once_a_replica_of_the_same_history_has_them(
    watched: WatchedRedis,
) -> None:
    primary = watched.primary()
    replica = watched.other(primary)
    reader, other = (Reader(watched.address, each) for each in ("replica", "process"))
    with contextlib.closing(reader.foreign), contextlib.closing(other.foreign):
        add(watched, b"one")
        until(lambda: reader.has_read(b"one") and other.has_read(b"one"), "nothing is read")
        replica.freeze()
        add(watched, b"two")
        until(lambda: other.has_read(b"one", b"two"), "the primary has it")
        reader.goes_on_without()
        replica.thaw()
        until(lambda: reader.has_read(b"one", b"two"), "the replica has it now")
        primary.kill()
        watched.until_promoted(replica)
        add(watched, b"three")
        until(lambda: other.has_read(b"one", b"two", b"three"), "the promoted server is read")
        reader.goes_on_without()
        assert reader.foreign.retry_ms, "it is asked again later, and not at each turn"
        watched.make_whole()
        until(lambda: reader.has_read(b"one", b"two", b"three"), "the new replica is read")


def test_a_replica_that_was_cut_from_its_primary_is_left_for_another(
    watched: WatchedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica without its primary answers every read with what it had."""
    monkeypatch.setattr("sparkstorm.data_plane.transport.reading._BLOCK_MS", 200)
    primary = watched.primary()
    replica = watched.other(primary)
    third = Server(tmp_path / "three", free_port(), primary.password)
    third.start(primary.port)
    # Sentinels find a new replica within ten seconds
    places = [("127.0.0.1", each.port) for each in (replica, third)]
    monkeypatch.setattr("sparkstorm.data_plane.transport.durability._replicas_of", lambda _: places)
    reader = Reader(watched.address, "replica")
    with contextlib.closing(reader.foreign), contextlib.ExitStack() as ends:
        ends.callback(third.kill)
        until(third.is_linked, "the third has no copy")
        add(watched, b"one")
        until(lambda: reader.has_read(b"one"), "nothing is read")
        with replica.client() as client:
            client.config_set("masterauth", "wrong")
        with primary.client() as client:
            client.client_kill_filter(_type="replica")
        until(lambda: not replica.is_linked(), "the replica is not cut")
        until(third.is_linked, "the third has not come back")
        add(watched, b"two")
        until(lambda: reader.has_read(b"one", b"two"), "the other replica is not read", limit_s=30)


def test_cursors_are_those_of_a_replica(watched: WatchedRedis) -> None:
    primary = watched.primary()
    replica = watched.other(primary)
    cursors = ReplicaCursors(watched.address, TOPOLOGY, timeout_s=0.3)
    with contextlib.closing(cursors), primary.client() as client:
        client.hset(KEYS("foreign", TASK), "1", "5-0 2")

        def has(cursor: Cursor) -> bool:
            # until the Sentinels have found the replica, and after it was frozen
            with contextlib.suppress(StoreUnavailableError):
                return cursors.foreign_cursors([TASK]) == {(1, TASK): cursor}
            return False

        until(lambda: has(Cursor("5-0", 2)), "the replica has it")
        replica.freeze()
        client.hset(KEYS("foreign", TASK), "1", "6-0 0")
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            cursors.foreign_cursors([TASK])
        replica.thaw()
        until(lambda: has(Cursor("6-0", 0)), "the replica is asked again")
        with replica.client() as other:
            other.replicaof("NO", "ONE")
        with pytest.raises(StoreUnavailableError, match="no replica"):
            cursors.foreign_cursors([TASK])


def test_a_store_without_sentinels_is_refused_by_its_name(watched: WatchedRedis) -> None:
    require_durable("replica", [watched.address])
    alone = replace(watched.address, master="", name="far")
    with pytest.raises(InvalidConfigError, match="the store far has no Sentinels"):
        require_durable("replica", [watched.address, alone])


@pytest.fixture
def synced(redis_server: RedisServer) -> Iterator[RedisAddress]:
    """A store that syncs before it answers."""
    with redis_server.client() as client:
        before = client.config_get("appendfsync")
        client.config_set("appendfsync", "always")
        yield replace(redis_server.address, name="far")
        client.config_set("appendfsync", before["appendfsync"])
        client.config_set("no-appendfsync-on-rewrite", "no")
        client.delete(KEYS("foreign", TASK))


@pytest.mark.parametrize(
    ("name", "value"), [("appendfsync", "everysec"), ("no-appendfsync-on-rewrite", "yes")]
)
def test_a_store_that_may_answer_before_it_syncs_is_refused_for_disk(
    redis_server: RedisServer, synced: RedisAddress, name: str, value: str
) -> None:
    cursors = SyncedCursors(synced, TOPOLOGY)
    foreign = RedisForeign(synced, TOPOLOGY, 1, "disk")
    with (
        contextlib.closing(cursors),
        contextlib.closing(foreign),
        redis_server.client() as client,
    ):
        require_durable("disk", [synced])
        client.hset(KEYS("foreign", TASK), "1", "5-0 2")
        assert cursors.foreign_cursors([TASK]) == {(1, TASK): Cursor("5-0", 2)}
        assert not foreign.begin({TASK: START})
        client.config_set(name, value)
        words = f"is disk, and the store far has {name} {value}.*CONFIG SET {name} "
        with pytest.raises(InvalidConfigError, match=words):
            require_durable("disk", [synced])
        with pytest.raises(InvalidConfigError, match=words):
            cursors.foreign_cursors([TASK])

        def is_refused() -> bool:
            # away at first, while the server's file is rewritten once
            foreign.begin({TASK: START})
            return False

        with pytest.raises(InvalidConfigError, match=words):
            until(is_refused, "it is read")


def test_a_store_that_does_not_tell_its_settings_is_refused_for_disk(
    redis_server: RedisServer, synced: RedisAddress
) -> None:
    """As at providers that forbid CONFIG."""
    with redis_server.client() as client:
        client.acl_setuser(
            "narrow", enabled=True, passwords=["+pass"], commands=["+@all", "-config"]
        )
        try:
            at = replace(synced, user="narrow", password="pass")
            with pytest.raises(InvalidConfigError, match=r"store far does not say .*\+config\|get"):
                require_durable("disk", [at])
        finally:
            client.acl_deluser("narrow")
    with pytest.raises(StoreUnavailableError):
        require_durable("disk", [replace(synced, port=1)])
