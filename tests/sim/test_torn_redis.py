"""A running count over a real Redis that is killed, torn within its last commit, restarted and
killed again: exact.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from sparkstorm.api import ReplayableSpout
from sparkstorm.embedded import RedisServer
from sparkstorm.model.worker_spec import RedisAddress
from sparkstorm.testing import LocalCluster
from sparkstorm.testing.in_process_worker import InProcessWorker
from sparkstorm.transport.reader import RedisReader
from sparkstorm.transport.redis import RedisTransport
from tests.topologies import Count
from tests.transport.bare_redis import log_of
from tests.worker.building import Pass, chain

pytestmark = pytest.mark.system
MOST = 6_000
ROUNDS_BETWEEN = 10


class Numbers(ReplayableSpout):
    """The numbers from 0 on, each once."""

    outputs = ("value",)

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.next = collector, 0

    def next_tuple(self) -> None:
        if self.next < MOST:
            self.next += 1
            self.collector.emit((self.next - 1,), message_id=self.next)

    def is_exhausted(self) -> bool:
        return self.next >= MOST

    def snapshot(self) -> Any:
        return self.next

    def restore(self, position: Any) -> None:
        self.next = position


class OverRedis:
    """A simulated cluster whose workers' transports are real ones."""

    def __init__(self, server: RedisServer) -> None:
        self.at = RedisAddress(server.host, server.port, server.password)
        self.opened: list[RedisTransport] = []
        self.cluster = LocalCluster(supervisors=3, slots=1, make_transport=self._open)
        conf = {"topology.workers": 3, "topology.epoch.rows": 20, "topology.max.spout.pending": 200}
        self.topology_id = self.cluster.submit(chain(Numbers(), Pass(), Count(), 2), conf)
        self.reader = RedisReader(self.at, self.topology_id)

    def _open(self, worker: InProcessWorker) -> RedisTransport:
        self.opened.append(RedisTransport(self.at, worker.host.id))
        return self.opened[-1]

    def rounds(self, count: int) -> None:
        """Let every worker run so many epochs, and simulated time pass; slots pause before they
        start a worker again.
        """
        for _ in range(count):
            while any(slot.worker is None for slot in self.cluster.topology().workers):
                self.cluster.simulation.advance(100)
            self.cluster.simulation.wake_all()
            self.cluster.simulation.advance(5)

    @property
    def counted(self) -> dict[Any, Any]:
        return self.cluster.state("capture")

    def close(self) -> None:
        self.cluster.close()
        self.reader.close()
        for transport in self.opened:
            transport.close()


@pytest.fixture
def running(own_redis: RedisServer) -> Iterator[OverRedis]:
    made = OverRedis(own_redis)
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
