"""Checks on a real Redis that a topology's keys are deleted or handed to its successor, and no
other topology's.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from sparkstorm.model.worker_spec import RedisAddress
from sparkstorm.nimbus.redis_cleanup import RedisRetirement
from sparkstorm.transport.base import TOMBSTONE_MS
from sparkstorm.transport.keys import Keys

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
