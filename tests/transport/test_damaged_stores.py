"""Checks what a killed, shortened, full or foreign Redis does to owners: exact counts, or an error
that says why.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from sparkstorm.common.errors import (
    FencedError,
    StoreFullError,
    StoreInconsistentError,
    StoreRolledBackError,
)
from sparkstorm.data_plane.transport import frames
from sparkstorm.data_plane.transport.base import START, Commit, Cursor
from sparkstorm.data_plane.transport.connection import Link, Packed
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.extensions.embedded import RedisServer
from tests.contracts.benches import LocalBench, RedisBench, read
from tests.waiting import wait_for_aof, wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def bench(own_redis: RedisServer) -> Iterator[RedisBench]:
    """Owners on a server that may be damaged."""
    made = RedisBench(own_redis, patience_s=30)
    yield made
    made.close()


@pytest.fixture
def shared(redis_server: RedisServer) -> Iterator[RedisBench]:
    """Owners on the server of all tests."""
    made = RedisBench(redis_server)
    yield made
    made.close()


class Counter:
    """An owner that counts up in its journal and returns to the store's state on request."""

    def __init__(self, bench: RedisBench, name: str, task: int) -> None:
        self.transport: RedisTransport = bench.open()
        self.name, self.task = name, task
        self.rollbacks = 0
        self.claim()

    def claim(self) -> None:
        claim = self.transport.claim(self.name, {self.task: 1})
        self.generation, self.seq = claim.generation, claim.seq
        self.record = claim.record_by_task[self.task]
        self.count = len(self.record.journal)

    def step(self, **changes: Any) -> None:
        draft = Commit(
            self.name,
            {self.task: 1},
            self.generation,
            self.seq + 1,
            journal=[(self.task, b"%d" % self.count)],
            **changes,
        )
        try:
            self.transport.commit(draft)
        except (StoreRolledBackError, FencedError):  # the claim may be lost with the tail
            self.rollbacks += 1
            self.claim()
            return
        self.seq += 1
        self.count += 1


# -- killed


def test_a_redis_killed_between_commits_goes_on_where_it_was(
    bench: RedisBench, own_redis: RedisServer
) -> None:
    counter = Counter(bench, "c", 1)
    for _ in range(3):
        before = counter.count
        while counter.count < before + 5:
            counter.step(frames=[(2, b"%d" % counter.count, 1)])
        with own_redis.client() as client:
            wait_for_aof(client)
        own_redis.kill()
        own_redis.restart()
    while counter.count < 20:
        counter.step(frames=[(2, b"%d" % counter.count, 1)])
    numbers = [b"%d" % n for n in range(20)]
    assert bench.frames(2) == bench.reader().record(1).journal == numbers


def test_a_redis_killed_again_and_again_during_commits_keeps_exact_counts(
    bench: RedisBench, own_redis: RedisServer
) -> None:
    wanted = 600
    sender, receiver = Counter(bench, "s", 1), bench.open()
    reached = threading.Event()
    done = threading.Event()

    def send() -> None:
        while sender.count < wanted:
            sender.step(frames=[(2, b"%d" % sender.count, 10)])
            if sender.count % 150 == 100:
                reached.set()
        done.set()

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(3):
        reached.wait(60)
        reached.clear()
        own_redis.kill()
        own_redis.restart()
    thread.join(60)
    assert done.is_set()
    receiver.claim("r", {2: 1})
    found = read(receiver, {2: START.entry}, wanted)
    assert [e.data for e in found] == [b"%d" % n for n in range(wanted)]
    assert bench.reader().backlog() == {2: 10 * wanted}
    assert bench.reader().record(1).journal == [b"%d" % n for n in range(wanted)]


# -- shortened


def cut_last_transaction(data_dir: Path) -> int:
    """Cut the append-only file in the middle of its last MULTI, as a power cut does; returns the
    bytes removed.
    """
    path = max(data_dir.rglob("*.aof"), key=lambda p: (p.stat().st_mtime, p.name.count("incr")))
    data = path.read_bytes()
    begin, end = data.rindex(b"MULTI"), data.rindex(b"EXEC")
    assert begin < end
    keep = (begin + end) // 2
    path.write_bytes(data[:keep])
    return len(data) - keep


def test_a_store_whose_tail_was_cut_inside_a_commit_sends_all_owners_back(
    bench: RedisBench, own_redis: RedisServer
) -> None:
    first = Counter(bench, "first", 1)
    second = Counter(bench, "second", 2)
    idle = Counter(bench, "idle", 3)
    second.step()
    for n in range(5):
        first.step(frames=[(2, b"%d" % n, 1), (3, b"%d" % n, 1)])
    idle_read = read(idle.transport, {3: START.entry}, 5)
    own_redis.stop()
    assert cut_last_transaction(own_redis.data_dir) > 0
    own_redis.restart()
    assert bench.frames(2) == [b"0", b"1", b"2", b"3"]
    assert first.rollbacks == second.rollbacks == 0
    first.step()
    assert (first.rollbacks, first.generation, first.count) == (1, 1, 4)
    second.step()
    assert (second.rollbacks, second.generation) == (1, 1)
    idle.step(cursors={3: Cursor(idle_read[-1].id, 0)})  # it has the lost frame in memory
    assert (idle.rollbacks, idle.generation) == (1, 1)
    first.step(frames=[(2, b"4", 1), (3, b"4", 1)])
    second.step()
    numbers = [b"%d" % n for n in range(5)]
    assert bench.frames(2) == bench.frames(3) == bench.reader().record(1).journal == numbers
    assert [e.data for e in read(idle.transport, {3: START.entry}, 5)] == numbers


# -- full


def fill(bench: RedisBench, owner: RedisTransport, frame: bytes) -> Commit:
    """Commit frames for task 2 until Redis refuses; returns the refused commit."""
    client: Any = bench.client
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 4_000_000)
    for n in range(1, 1000):
        commit = Commit(
            "s", {1: 1}, 0, n, frames=[(2, frame, len(frame))], journal=[(1, b"%d" % n)]
        )
        try:
            owner.commit(commit)
        except StoreFullError:
            return commit
    raise AssertionError("Redis never got full")


def test_a_full_store_refuses_growth_as_a_whole_and_drains_to_exact_counts(
    bench: RedisBench,
) -> None:
    frame = b"x" * 100_000
    sender, receiver = bench.open(), bench.open()
    sender.claim("s", {1: 1})
    refused = fill(bench, sender, frame)
    sent = refused.seq - 1
    before = bench.dump()
    with pytest.raises(StoreFullError):
        sender.commit(refused)
    sender.release()
    assert bench.dump() == before
    assert len(bench.frames(2)) == sent
    claim = receiver.claim("r", {2: 1})  # on a full store, as a restarted worker does
    found = read(receiver, {2: claim.record_by_task[2].cursor.entry}, sent)
    for n, entry in enumerate(found, start=1):
        receiver.commit(
            Commit(
                "r",
                {2: 1},
                0,
                n,
                cursors={2: Cursor(entry.id, 0)},
                drained_bytes={2: len(frame)},
                journal=[(2, b"%d" % n)],
            )
        )
    assert sender.commit(refused).backlog_by_task == {}
    assert bench.frames(2) == [frame]
    reader = bench.reader()
    assert reader.backlog() == {2: len(frame)}
    assert reader.record(2).journal == [b"%d" % n for n in range(1, sent + 1)]
    assert reader.record(1).journal == [b"%d" % n for n in range(1, sent + 2)]


def test_a_commit_that_consumes_less_than_it_writes_waits_until_there_is_room(
    bench: RedisBench,
) -> None:
    frame = b"x" * 100_000
    sender, receiver = bench.open(), bench.open()
    sender.claim("s", {1: 1})
    fill(bench, sender, frame)
    receiver.claim("r", {2: 1})
    entry = read(receiver, {2: START.entry}, 2)[0]
    growing = Commit(
        "r", {2: 1}, 0, 1, cursors={2: Cursor(entry.id, 0)}, frames=[(3, frame + b"y", 1)]
    )
    before = bench.dump()
    with pytest.raises(StoreFullError):
        receiver.commit(growing)
    assert bench.dump() == before
    bench.client.config_set("maxmemory", 0)
    receiver.commit(growing)
    assert bench.frames(3) == [frame + b"y"]


def test_release_frees_on_a_full_store_what_stored_cursors_have_passed(bench: RedisBench) -> None:
    sender, receiver = bench.open(), bench.open()
    sender.claim("s", {1: 1})
    refused = fill(bench, sender, b"x" * 100_000)
    receiver.claim("r", {2: 1})
    found = read(receiver, {2: START.entry}, refused.seq - 1)
    bench.client.config_set("maxmemory", 0)
    bench.put_garbage(2, f"{found[-2].id} 0")
    bench.client.config_set("maxmemory", bench.client.info("memory")["used_memory"] - 100_000)
    with pytest.raises(StoreFullError):
        sender.commit(refused)
    receiver.release()
    sender.commit(refused)
    assert len(bench.frames(2)) == 2


def test_fullness_is_told_with_the_commit(bench: RedisBench) -> None:
    owner = bench.open()
    owner.claim("o", {1: 1})
    assert 0 < owner.commit(Commit("o", {1: 1}, 0, 1, frames=[(1, b"x", 1)])).fullness < 0.2
    full = bench.open()
    full.claim("f", {2: 1})
    used = bench.client.info("memory")["used_memory"]
    bench.client.config_set("maxmemory", int(used / 0.7))
    assert 0.6 < full.commit(Commit("f", {2: 1}, 0, 1)).fullness < 0.8


def test_a_commit_brings_the_fullness_and_the_taps_in_its_own_round_trip(
    bench: RedisBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkstorm.data_plane.transport.redis._TAPS_AFTER_S", 0)
    monkeypatch.setattr("sparkstorm.data_plane.transport.redis._FULLNESS_EVERY_S", 0)
    owner = bench.open()
    owner.claim("o", {1: 1})
    owner.commit(Commit("o", {1: 1}, 0, 1))  # it loads the script too
    assert not owner.open_taps(["a:default", "b:x"])
    bench.reader().open_tap("b:x")
    used = bench.client.info("memory")["used_memory"]
    bench.client.config_set("maxmemory", int(used / 0.7))
    trips: list[int] = []
    exchange = Link._exchange

    def counted(link: Link, make: Callable[[], Packed], replies: int) -> list[Any]:
        trips.append(replies)
        return exchange(link, make, replies)

    monkeypatch.setattr(Link, "_exchange", counted)
    owner.ask({1: START.entry}, 8)
    assert 0.6 < owner.commit(Commit("o", {1: 1}, 0, 2)).fullness < 0.8
    assert owner.open_taps(["a:default", "b:x"]) == {"b:x"}
    assert trips == [4]  # the script, the read, the memory, the taps


# -- without room on its disk


def await_write(client: Any, status: str) -> None:
    """Wait for the write that fails, or the one that goes through."""
    wait_until(lambda: client.info("persistence")["aof_last_write_status"] == status, status)


@contextmanager
def full_disk(bench: RedisBench | LocalBench) -> Iterator[None]:
    """The store cannot write one more byte to its files: write(2) fails in the running server."""
    if isinstance(bench, LocalBench):
        bench.store.is_disk_full = True
        yield
        bench.store.is_disk_full = False
        return
    client: Any = bench.client
    former = resource.prlimit(bench.server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(bench.server.pid, resource.RLIMIT_FSIZE, (0, former[1]))
    try:
        # refused when a write that was put off has failed before
        with suppress(redis.ResponseError):
            # the write that fails is the one after which others are refused
            client.set("makes it notice", b"x")
        await_write(client, "err")
        yield
    finally:
        resource.prlimit(bench.server.pid, resource.RLIMIT_FSIZE, former)
    await_write(client, "ok")


@pytest.mark.parametrize("kind", ["redis", "local"])
def test_a_store_whose_disk_is_full_refuses_every_write_and_then_takes_the_same_ones(
    kind: str, request: Any
) -> None:
    bench: RedisBench | LocalBench = (
        request.getfixturevalue("bench") if kind == "redis" else LocalBench()
    )
    sender, receiver = bench.open(), bench.open()
    sender.claim("s", {1: 1})
    sender.commit(Commit("s", {1: 1}, 0, 1, frames=[(2, b"first", 5)]))
    again = Commit("s", {1: 1}, 0, 2, frames=[(2, b"second", 6)])
    with full_disk(bench):
        before = bench.dump()
        for write in (
            lambda: sender.commit(again),
            sender.release,
            lambda: receiver.claim("r", {2: 1}),
        ):
            with pytest.raises(
                StoreFullError, match="MISCONF.*(AOF|append)" if kind == "redis" else "disk"
            ):
                write()
        assert bench.dump() == before
    sender.commit(again)
    sender.release()
    claim = receiver.claim("r", {2: 1})
    entries = read(receiver, {2: claim.record_by_task[2].cursor.entry}, 2)
    assert [entry.data for entry in entries] == [b"first", b"second"]


def append_only_file(server: RedisServer) -> Path:
    """Return the file that the server appends to; before Redis 7 there is one in all."""
    parts = server.data_dir.rglob("*.incr.aof")
    numbered = {int(path.name.split(".")[-3]): path for path in parts}
    return numbered[max(numbered)] if numbered else next(server.data_dir.rglob("*.aof"))


@contextmanager
def half_a_write(server: RedisServer) -> Iterator[None]:
    """The disk has room for seven bytes of the next write: they are written, and cut off again."""
    client: Any = server.client()
    former = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    client.set("written", b"before")
    wait_for_aof(client)
    resource.prlimit(
        server.pid, resource.RLIMIT_FSIZE, (append_only_file(server).stat().st_size + 7, former[1])
    )
    try:
        client.set("cut", b"off")
        await_write(client, "err")
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, former)
    await_write(client, "ok")
    client.close()


def test_an_embedded_server_whose_disk_was_full_starts_again_with_all_it_had(
    own_redis: RedisServer, caplog: Any
) -> None:
    client: Any = own_redis.client()
    # as each start of ours: the file that it opens is the one that gets a gap
    former = append_only_file(own_redis).stat().st_ino
    client.bgrewriteaof()
    wait_until(lambda: append_only_file(own_redis).stat().st_ino != former, "the rewrite")
    with half_a_write(own_redis):
        pass
    client.set("after", b"wards")
    wait_for_aof(client)
    own_redis.kill()
    # Redis 6.2, which has one file, appends at its end, whatever was cut off
    has_gap = append_only_file(own_redis).name.endswith(".incr.aof")
    assert (b"\0" * 7 in append_only_file(own_redis).read_bytes()) is has_gap
    own_redis.restart()
    assert client.mget("written", "cut", "after") == [b"before", b"off", b"wards"]
    client.close()
    said = [record.getMessage() for record in caplog.records]
    assert ["left a gap of 7 zero bytes" in each for each in said] == [True] * has_gap


def test_a_worker_that_met_a_full_disk_has_the_file_rewritten(bench: RedisBench) -> None:
    owner = Counter(bench, "o", 1)
    client: Any = bench.client
    owner.step()
    with half_a_write(bench.server), pytest.raises(StoreFullError, match="MISCONF"):
        owner.step()
    asked = client.info("commandstats")["cmdstat_bgrewriteaof"]["calls"]
    owner.step()
    owner.step()
    assert client.info("commandstats")["cmdstat_bgrewriteaof"]["calls"] == asked + 1
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "the rewrite")
    assert b"\0" * 7 not in append_only_file(bench.server).read_bytes()


# -- foreign


def test_a_key_of_another_type_stops_the_topology_for_good_and_names_the_key(
    shared: RedisBench,
) -> None:
    owner, other = Counter(shared, "o", 1), Counter(shared, "p", 2)
    shared.client.set(shared.key("journal", 1), "not a list")
    with pytest.raises(StoreInconsistentError, match="WRONGTYPE"):
        owner.step(frames=[(9, b"half", 1)])
    assert shared.frames(9) == [b"half"]  # Redis keeps what a script wrote before it failed
    sentence = r"broken by RPUSH \{contract\}-\d+:journal:1: .*WRONGTYPE"
    with pytest.raises(StoreInconsistentError, match=sentence):
        other.step()
    with pytest.raises(StoreInconsistentError, match="cannot be trusted any more"):
        owner.step()
    with pytest.raises(StoreInconsistentError, match="cannot be trusted any more"):
        owner.transport.claim("o", {1: 2})


@pytest.mark.parametrize("key", ["seq", "fence", "generation"])
def test_a_bookkeeping_key_of_another_type_is_found_before_anything_is_written(
    shared: RedisBench, key: str
) -> None:
    owner = Counter(shared, "o", 1)
    shared.client.delete(shared.key(key))
    shared.client.rpush(shared.key(key), "what")
    before = shared.dump()
    with pytest.raises(StoreInconsistentError, match="WRONGTYPE"):
        owner.step(frames=[(9, b"x", 1)])
    assert shared.dump() == before


def test_a_stream_of_another_type_is_found_by_polling(shared: RedisBench) -> None:
    owner = Counter(shared, "o", 1)
    shared.client.set(shared.key("task", 1), "no stream")

    def is_found() -> bool:
        try:
            owner.transport.poll({1: START.entry}, 1)
            owner.transport.wait(20)
        except StoreInconsistentError as error:
            return "WRONGTYPE" in str(error)
        return False

    wait_until(is_found, "an error for a stream that is none")


def test_a_frame_somebody_else_wrote_into_a_stream_is_handed_over_to_be_quarantined(
    shared: RedisBench,
) -> None:
    owner = Counter(shared, "o", 1)
    shared.client.xadd(shared.key("task", 1), {"strange": b"bytes", "more": b"x"})
    assert [e.data for e in read(owner.transport, {1: START.entry}, 1)] == [b"bytes"]


@pytest.mark.parametrize(
    "damage",
    ["", "x", "5-5", "5-5 x", "1-1 -1", "-1-1 0", "99999999999999999999-1 0", "1-1 0 0", "\xff"],
)
def test_a_damaged_cursor_is_refused_with_its_key(shared: RedisBench, damage: str) -> None:
    owner = Counter(shared, "o", 1)
    shared.client.hset(shared.key("cursor"), "1", damage)
    sentence = r"the key \{contract\}-\d+:cursor in Redis is damaged"
    with pytest.raises(StoreInconsistentError, match=sentence):
        owner.claim()
    with pytest.raises(StoreInconsistentError, match="kill the topology and submit it again"):
        shared.reader().record(1)
    with pytest.raises(StoreInconsistentError, match=":cursor in Redis is damaged"):
        owner.transport.release()


@pytest.mark.parametrize(("key", "field"), [("seq", "o"), ("fence", "1")])
def test_a_damaged_number_is_refused_with_its_key_before_anything_is_written(
    shared: RedisBench, key: str, field: str
) -> None:
    owner = Counter(shared, "o", 1)
    owner.step()
    shared.client.hset(shared.key(key), field, "no number")
    before = shared.dump()
    sentence = rf"the key \{{contract\}}-\d+:{key} in Redis is damaged .it holds"
    with pytest.raises(StoreInconsistentError, match=sentence):
        owner.step()
    with pytest.raises(StoreInconsistentError, match=rf":{key} in Redis is damaged"):
        owner.claim()
    if key == "fence":
        assert shared.dump() == before


def test_a_damaged_backlog_is_refused_with_its_key_and_a_damaged_low_is_passed_over(
    shared: RedisBench,
) -> None:
    owner = Counter(shared, "o", 1)
    shared.client.hset(shared.key("low"), "o", "no number")
    shared.client.hset(shared.key("backlog"), "2", "no number")
    assert owner.transport.oldest_waiting_ms((1, 2)) is None
    with pytest.raises(StoreInconsistentError, match=":backlog in Redis is damaged"):
        owner.step(watched=(2,))
    with pytest.raises(StoreInconsistentError, match=":backlog in Redis is damaged"):
        shared.reader().backlog()


def test_data_of_an_older_version_are_refused_with_a_sentence(shared: RedisBench) -> None:
    owner = Counter(shared, "o", 1)
    owner.claim()
    shared.client.hdel(shared.key("steps"), "format")
    before = shared.dump()
    sentence = r"another version of SparkStorm .frames of version 1, here 4.*--fresh"
    with pytest.raises(StoreInconsistentError, match=sentence):
        owner.claim()
    assert shared.dump() == before
    scripts = Path(frames.__file__).parent
    assert f"FRAMES = '{frames.VERSION}'" in (scripts / "claim.lua").read_text()
    for name in ("oldest.lua", "pass.lua"):
        assert f"== 'SF\\{frames.VERSION}'" in (scripts / name).read_text(), name


@pytest.mark.parametrize("is_new", [False, True], ids=["reconnects", "claims"])
def test_half_a_commit_is_noticed_by_whoever_comes_after_a_restart(
    shared: RedisBench, is_new: bool
) -> None:
    """A torn append-only file brings back a commit that was begun and not ended; workers that go on
    have lost their connections.
    """
    owner = Counter(shared, "n:1", 1)
    owner.step()
    shared.client.hincrby(shared.key("steps"), "begun", 1)
    shared.proxy.cut_all()
    before = shared.dump()
    with pytest.raises(StoreInconsistentError, match="half of an earlier commit was read back"):
        owner.claim() if is_new else owner.step()
    assert shared.dump() == before
