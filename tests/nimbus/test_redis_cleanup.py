"""Checks on a real Redis that a topology's keys are deleted or handed to its successor, and no
other topology's.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.control_plane.nimbus.redis_cleanup import RedisRetirement, read_counts
from sparkstorm.control_plane.scheduling.measured.measuring import CountRecords
from sparkstorm.data_plane.transport.base import TOMBSTONE_MS
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.progress import (
    INHERITED,
    EdgeCounts,
    Progress,
    TaskCounts,
    merge,
)

pytestmark = pytest.mark.system


@pytest.fixture
def client(own_redis: Any) -> Iterator[Any]:
    with own_redis.client() as client:
        for topology_id in ("a-1-1", "a-1-10"):
            for part in ("task:1", "snapshot:1", "journal:2"):
                client.set(Keys(topology_id)(part), f"{part} of {topology_id}")
            client.hset(Keys(topology_id)("fence"), "1", "7")
        yield client


@pytest.fixture
def retirement(own_redis: Any) -> RedisRetirement:
    return RedisRetirement(RedisAddress(own_redis.host, own_redis.port, own_redis.password))


def names(client: Any) -> set[str]:
    return {name.decode() for name in client.keys("*")}


def test_counts_are_read_with_those_of_earlier_minutes(own_redis: Any) -> None:
    address = RedisAddress(own_redis.host, own_redis.port, own_redis.password)
    newest, before = (Progress({1: TaskCounts("a", executed=n)}, now_ms=n) for n in (9, 5))
    base = TopologyBase("a-1-1", "a", 0, TopologyStatus.ACTIVE, 1, {}, "code", "conf")
    with own_redis.client() as client:
        client.hset(Keys("a-1-1")("progress"), "n1:1", newest.encode())
        client.hset(Keys("a-1-1")("earlier"), "n1:1 3", before.encode())
        found = read_counts(RedisStores(address), 5.0, base)
    assert found == [CountRecords({"n1:1": newest}, {"n1:1": [before]})]


def test_retiring_deletes_one_topology_whole_and_may_be_repeated(
    client: Any, retirement: RedisRetirement
) -> None:
    retirement.retire("a-1-1")
    retirement.retire("a-1-1")
    left = names(client) - {"{a}-1-1:ended"}
    assert len(left) == 4 and all(name.startswith("{a}-1-10:") for name in left)
    assert 0 < client.pttl("{a}-1-1:ended") <= TOMBSTONE_MS


def test_a_successor_gets_the_data_without_the_fences_of_the_dead(
    client: Any, retirement: RedisRetirement
) -> None:
    retirement.hand_over("a-1-1", "a-2-5")
    retirement.hand_over("a-1-1", "a-2-5")
    assert names(client) - {name for name in names(client) if name.startswith("{a}-1-10")} == {
        "{a}-1-1:ended", "{a}-2-5:task:1", "{a}-2-5:snapshot:1", "{a}-2-5:journal:2",
    }  # fmt: skip
    assert client.get("{a}-2-5:task:1") == b"task:1 of a-1-1"
    assert client.hget("{a}-1-10:fence", "1") == b"7"


def test_nothing_is_handed_over_from_a_store_that_was_emptied(
    client: Any, retirement: RedisRetirement
) -> None:
    """Data of an heir that nobody has claimed would never be named as forgotten."""
    retirement.hand_over("b-1-1", "b-2-5")
    assert [name for name in names(client) if name.startswith("{b}")] == ["{b}-1-1:ended"]


EDGE = ("lines", "default", "work")


def test_a_successors_counts_begin_with_what_is_under_way(
    client: Any, retirement: RedisRetirement
) -> None:
    workers = {
        "n:1": Progress({1: TaskCounts("lines", 7, 90, pending=3)}, edges={EDGE: EdgeCounts(90)}),
        "n:2": Progress(
            {2: TaskCounts("work", 7, executed=80, parked=5, replayed=1, held=2)},
            quarantined=1,
            edges={EDGE: EdgeCounts(0, 80)},
        ),
    }
    for owner, each in workers.items():
        client.hset(Keys("a-1-1")("progress"), owner, each.encode())

    def begins(topology_id: str) -> Progress:
        stored = client.hgetall(Keys(topology_id)("progress"))
        assert INHERITED.encode() in stored
        return merge(map(Progress.decode, stored.values()))

    retirement.hand_over("a-1-1", "a-2-5")
    expected = Progress(
        {1: TaskCounts("lines", emitted=3), 2: TaskCounts("work", executed=2, parked=4)},
        quarantined=1,
        edges={EDGE: EdgeCounts(10)},
    )
    assert begins("a-2-5") == expected
    own = Progress(edges={EDGE: EdgeCounts(5, 12)}, quarantined=1)
    client.hset(Keys("a-2-5")("progress"), "n:1", own.encode())
    retirement.hand_over("a-2-5", "a-3-9")
    assert begins("a-3-9").edges == {EDGE: EdgeCounts(3)} and begins("a-3-9").quarantined == 2


def test_damaged_counts_do_not_keep_a_successor_from_the_data(
    client: Any, retirement: RedisRetirement
) -> None:
    client.hset(Keys("a-1-1")("progress"), "n:1", b"\xc1")
    retirement.hand_over("a-1-1", "a-2-5")
    assert client.get("{a}-2-5:task:1") == b"task:1 of a-1-1"
