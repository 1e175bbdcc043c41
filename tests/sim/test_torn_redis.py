"""A running count over a real Redis that is killed, torn within its last commit, restarted and
killed again: exact.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.extensions.embedded import RedisServer
from tests.sim.over_redis import Numbers, OverRedis
from tests.transport.bare_redis import log_of

pytestmark = pytest.mark.system
MOST = Numbers.most
ROUNDS_BETWEEN = 10


@pytest.fixture
def running(own_redis: RedisServer) -> Iterator[OverRedis]:
    made = OverRedis(RedisAddress(own_redis.host, own_redis.port, own_redis.password))
    yield made
    made.close()


def tear(server: RedisServer, chance: random.Random) -> None:
    """Kill the server and cut its log within the last transaction."""
    server.kill()
    path = log_of(server.data_dir)
    data = path.read_bytes()
    begin, end = data.rindex(b"$5\r\nMULTI"), data.rindex(b"$4\r\nEXEC")
    assert begin < end, "no transaction at the end of the log"
    path.write_bytes(data[: chance.randrange(begin + len(b"$5\r\nMULTI\r\n"), end)])


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(2))
def test_a_count_is_exact_whatever_byte_its_redis_is_torn_at(
    running: OverRedis, own_redis: RedisServer, seed: int
) -> None:
    chance = random.Random(seed)
    tears = 0
    while len(running.counted) < MOST:
        running.rounds(ROUNDS_BETWEEN)
        if tears < 4:
            tear(own_redis, chance)
            own_redis.restart()
            running.rounds(ROUNDS_BETWEEN)
            own_redis.kill()
            own_redis.restart()
            tears += 1
    running.rounds(50)
    assert tears == 4
    assert running.counted == dict.fromkeys(range(MOST), 1)
    assert not any(running.reader.backlog().values())
