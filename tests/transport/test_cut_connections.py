"""Checks that nothing is lost and nothing doubled, wherever in its life a connection to a real
Redis breaks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.errors import FencedError, StoreUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.base import START, Commit, Cursor
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.transport.reader import RedisReader
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.data_plane.transport.servers.opening import open_connection
from sparkstorm.extensions.embedded import RedisServer
from tests.contracts.benches import RedisBench, read
from tests.system.proxy import Cut
from tests.waiting import assert_once_within, wait_until

pytestmark = pytest.mark.system
COMMITS = 4


@pytest.fixture
def bench(redis_server: RedisServer) -> Iterator[RedisBench]:
    made = RedisBench(redis_server)
    yield made
    made.close()


def run_pipe(bench: RedisBench) -> None:
    """A sender commits two frames at a time, a receiver consumes them and notes each in its
    journal; all is counted.
    """
    sender, receiver = bench.open(), bench.open()
    sender.claim("s", {1: 1})
    receiver.claim("r", {2: 1})
    after = START.entry
    for n in range(1, COMMITS + 1):
        sent = sender.commit(
            Commit("s", {1: 1}, 0, n, frames=[(2, b"%da" % n, 2), (2, b"%db" % n, 2)], watched=(2,))
        )
        assert sent.backlog_by_task == {2: 4}
        found = read(receiver, {2: after}, 2)
        after = found[-1].id
        receiver.commit(
            Commit(
                "r",
                {2: 1},
                0,
                n,
                cursors={2: Cursor(after, 0)},
                drained_bytes={2: 4},
                journal=[(2, entry.data) for entry in found],
            )
        )


def test_counts_and_what_waits_are_read_as_of_one_moment(bench: RedisBench) -> None:
    sender, reader = bench.open(), bench.reader()
    sender.claim("s", {1: 1})
    ask, asked = reader._link.ask, list[int]()

    def ask_with_a_commit_between(*commands: tuple[Any, ...]) -> list[Any]:
        number = len(asked) + 1
        asked.append(number)
        first = ask(*commands[:2])
        if number < 3:
            sender.commit(
                Commit("s", {1: 1}, 0, number, frames=[(2, b"frame", 5)], progress=b"%d" % number)
            )
        return first + ask(*commands[2:])

    reader._link.ask = ask_with_a_commit_between  # type: ignore[method-assign]
    assert reader.progress_and_backlog() == ({"s": b"2"}, {2: 10})
    assert reader.is_one_moment and len(asked) == 3


def assert_exact(bench: RedisBench) -> None:
    reader = bench.reader()
    result = reader.record(2).journal
    assert result == [b"%d%s" % (n, part) for n in range(1, COMMITS + 1) for part in (b"a", b"b")]
    assert reader.backlog() == {2: 0}
    assert bench.frames(2) == []
    assert bench.client.get(bench.key("generation")) is None


@pytest.mark.sampled
@pytest.mark.parametrize("nth", range(1, 2 * COMMITS + 3))
@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
def test_claims_and_commits_are_exact_wherever_the_connection_breaks(
    bench: RedisBench, cut: Cut, nth: int
) -> None:
    fault = bench.proxy.add_fault(cut, nth, b"EVALSHA")
    run_pipe(bench)
    assert fault.is_done
    assert_exact(bench)
    bench.proxy.deliver_late()
    assert_exact(bench)


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
@pytest.mark.parametrize(
    "request_word", [b"XREAD", b"SCRIPT", b"AUTH", b"XREVRANGE", b"INFO"], ids=bytes.decode
)
def test_every_other_request_may_break_as_well(
    bench: RedisBench, cut: Cut, request_word: bytes
) -> None:
    fault = bench.proxy.add_fault(cut, 2, request_word)
    run_pipe(bench)
    assert fault.is_done
    assert_exact(bench)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
def test_a_dead_letter_is_put_back_once_wherever_the_connection_breaks(
    bench: RedisBench, cut: Cut, nth: int
) -> None:
    bench.open().claim("o", {1: 1})
    bench.client.xadd(bench.key("dead"), {"f": b"first"})
    bench.client.xadd(bench.key("dead"), {"f": b"second"})
    with contextlib.closing(RedisReader(bench.address, bench.topology)) as reader:
        ids = [id for id, _ in reader.parked(10)]
        fault = bench.proxy.add_fault(cut, nth, b"EVALSHA")
        result = [reader.put_back([(id, 1, b"frame %d" % n)]) for n, id in enumerate(ids)]
        assert result == [[ids[0]], [ids[1]]]
        assert fault.is_done
        bench.proxy.deliver_late()
        assert reader.parked(10) == []
        assert bench.frames(1) == [b"frame 0", b"frame 1"]
        assert reader.backlog() == {1: 14}


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
def test_several_dead_letters_are_put_back_once_wherever_the_connection_breaks(
    bench: RedisBench, cut: Cut
) -> None:
    bench.open().claim("o", {1: 1})
    for data in (b"first", b"second"):
        bench.client.xadd(bench.key("dead"), {"f": data})
    with contextlib.closing(RedisReader(bench.address, bench.topology)) as reader:
        ids = [id for id, _ in reader.parked(10)]
        fault = bench.proxy.add_fault(cut, 1, b"EVALSHA")
        several = [(ids[0], 1, b"frame 0"), ("1-1", 1, b"gone"), (ids[1], 1, b"frame 1")]
        assert reader.put_back(several) == ids, "an answer that was cut is given again"
        assert fault.is_done
        bench.proxy.deliver_late()
        assert reader.parked(10) == []
        assert bench.frames(1) == [b"frame 0", b"frame 1"]
        assert reader.backlog() == {1: 14}


def test_every_second_try_of_all_commits_may_break(bench: RedisBench) -> None:
    nine = [*Cut, *Cut][:9]
    faults = [bench.proxy.add_fault(cut, 2 * n, b"EVALSHA") for n, cut in enumerate(nine, start=1)]
    run_pipe(bench)
    assert all(fault.is_done for fault in faults)
    assert_exact(bench)


def test_a_commit_that_reaches_the_server_after_its_successor_is_neither_applied_nor_taken_for_a_loss(
    bench: RedisBench,
) -> None:
    owner = bench.open()
    owner.claim("o", {1: 1})
    bench.proxy.add_fault(Cut.LATE_REQUEST, 1, b"EVALSHA")
    for n in (1, 2, 3):
        owner.commit(Commit("o", {1: 1}, 0, n, frames=[(2, b"%d" % n, 1)]))
    before = bench.dump()
    bench.proxy.deliver_late()
    assert bench.dump() == before
    owner.commit(Commit("o", {1: 1}, 0, 4, frames=[(2, b"4", 1)]))
    assert bench.frames(2) == [b"1", b"2", b"3", b"4"]


def test_scripts_that_the_server_forgot_are_loaded_again(bench: RedisBench) -> None:
    owner = bench.open()
    owner.claim("o", {1: 1})
    for n in range(1, 5):
        bench.client.script_flush()
        owner.commit(Commit("o", {1: 1}, 0, n, frames=[(2, b"%d" % n, 1)]))
    bench.client.script_flush()
    owner.claim("o", {1: 2})
    assert bench.frames(2) == [b"1", b"2", b"3", b"4"]


def test_a_commit_waits_for_a_server_that_is_away_for_a_while(bench: RedisBench) -> None:
    owner = bench.open()
    owner.claim("o", {1: 1})
    bench.proxy.refuse()
    bench.proxy.cut_all()
    done = threading.Event()

    def commit() -> None:
        owner.commit(Commit("o", {1: 1}, 0, 1, frames=[(2, b"1", 1)]))
        done.set()

    thread = threading.Thread(target=commit)
    thread.start()
    assert not done.wait(0.1)
    bench.proxy.refuse(False)
    thread.join(60)
    assert done.is_set()
    assert bench.frames(2) == [b"1"]


def test_poll_stays_quick_and_goes_on_by_itself_while_its_connection_stalls_and_breaks(
    bench: RedisBench,
) -> None:
    owner = bench.open()
    owner.claim("o", {1: 1})
    assert owner.poll({1: START.entry}, 10) == []
    bench.proxy.pause()
    bench.client.xadd(bench.key("task", 1), {"f": b"a"})

    def polled() -> float:
        started = time.monotonic()
        assert all(owner.poll({1: START.entry}, 10) == [] for _ in range(20))
        owner.wait(1)
        return time.monotonic() - started

    assert_once_within(1.0, polled)
    bench.proxy.resume()
    found = read(owner, {1: START.entry}, 1)
    bench.proxy.cut_all()
    bench.client.xadd(bench.key("task", 1), {"f": b"b"})
    assert [e.data for e in read(owner, {1: found[0].id}, 1)] == [b"b"]


def test_wait_returns_for_a_descriptor_that_wakes_it(bench: RedisBench) -> None:
    owner = bench.open()
    owner.claim("o", {1: 1})
    owner.poll({1: START.entry}, 10)
    waker, woken = socket.socketpair()
    with waker, woken:
        waker.send(b"!")
        started = time.monotonic()
        owner.wait(30_000, [woken.fileno()])
        assert time.monotonic() - started < 25


@pytest.mark.parametrize(
    ("password", "fault"),
    [("wrong", "refuses our password"), ("", "wants a password and none is set")],
)
def test_a_wrong_password_is_named_at_once_however_patient_one_is(
    redis_server: RedisServer, password: str, fault: str
) -> None:
    address = RedisAddress(redis_server.host, redis_server.port, password)
    sentence = f"Redis at 127.0.0.1:{redis_server.port} {fault}"
    with pytest.raises(StoreUnavailableError, match=sentence):
        RedisTransport(address, "nobody", patience_s=600).claim("o", {1: 1})


def test_an_address_says_who_enters_and_which_database(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.acl_setuser(
            "guest",
            enabled=True,
            passwords=["+of-guest"],
            categories=["+@all"],
            keys=["*"],
            channels=["*"],
        )
        try:
            guest = RedisAddress(redis_server.host, redis_server.port, "of-guest", "guest")
            link = Link(guest, patience_s=5)
            assert link.ask(("ACL", "WHOAMI")) == [b"guest"]
            link.close()
            # the embedded server has one
            with pytest.raises(StoreUnavailableError, match="DB index is out of range"):
                open_connection(replace(guest, db=5))
        finally:
            client.acl_deluser("guest")


def test_an_unreachable_redis_is_named_when_patience_is_over(bench: RedisBench) -> None:
    port = bench.proxy.port
    bench.proxy.close()
    transport = RedisTransport(RedisAddress("127.0.0.1", port), "nobody", patience_s=0.1)
    sentence = rf"Redis at 127\.0\.0\.1:{port} did not come back in 0\.1 s"
    with pytest.raises(StoreUnavailableError, match=sentence):
        transport.claim("o", {1: 1})


def test_connections_are_given_back(bench: RedisBench) -> None:
    owner = bench.open()
    owner.claim("o", {1: 1})
    owner.poll({1: START.entry}, 1)
    wait_until(lambda: bench.proxy.connection_count() == 2)
    owner.close()
    wait_until(lambda: bench.proxy.connection_count() == 0, "closing")


def test_topologies_on_one_server_do_not_touch_each_other(
    bench: RedisBench, redis_server: RedisServer
) -> None:
    sibling = RedisBench(redis_server)
    sibling.topology = bench.topology + "[1]*?"  # a name that is a pattern
    for each in (bench, sibling):
        owner = each.open()
        owner.claim("o", {1: 1})
        owner.commit(Commit("o", {1: 1}, 0, 1, frames=[(1, each.topology.encode(), 1)]))
    sibling.reader().delete()
    assert sibling.dump() == {}
    assert bench.frames(1) == [bench.topology.encode()]
    sibling.close()


@pytest.mark.parametrize("call", ["commit", "poll", "wait", "read_state"])
def test_a_fork_sends_and_reads_nothing_on_its_parents_connections(
    bench: RedisBench, call: str
) -> None:
    """As a worker whose user code has forked in C: the child has the very same transport."""
    owner = bench.open()
    owner.claim("o", {1: 1})
    owner.commit(Commit("o", {1: 1}, 0, 1, frames=[(1, b"a", 1)]))
    owner.ask({1: START.entry}, 10)
    calls: dict[str, Any] = {
        "commit": lambda: owner.commit(Commit("o", {1: 1}, 0, 2, frames=[(1, b"b", 1)])),
        "poll": lambda: owner.poll({1: START.entry}, 10),
        "wait": lambda: owner.wait(100),
        "read_state": lambda: owner.read_state(1, [b"key"]),
    }
    if (pid := os.fork()) == 0:
        try:
            calls[call]()
            os._exit(1)
        except FencedError as error:
            os._exit(0 if "of process" in str(error) else 2)
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [entry.data for entry in read(owner, {1: START.entry}, 1)] == [b"a"]
    owner.commit(Commit("o", {1: 1}, 0, 2, frames=[(1, b"c", 1)]))
    assert bench.frames(1) == [b"a", b"c"]
